"""DeleteRecords: a leader moves where its log begins, its followers do so when their fetches tell them, and the client
is answered when all of them have. Kafka 2.8's rules.

Offsets go, not bytes: files follow with retention. Nothing beyond the high watermark can be deleted, and nothing of a
topic whose policy is not to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.broker.metadata import INTERNAL_TOPICS, MetadataCache
from controller.broker.partition import LeaderState, Partition, Progress
from controller.broker.records.produce import DelayedParts
from controller.broker.replica_manager import RecordAccess, Refused, refused
from controller.broker.steps import SLICE, Steps
from controller.protocol.admin_values import (
    NO_LOW_WATERMARK,
    UP_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from controller.protocol.errors import ErrorCode
from controller.storage import StorageError
from controller.timer.purgatory import Purgatory


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a result waits for. `leading`: the leadership that deleted; `offset`: where the log begins now."""

    partition: Partition
    leading: LeaderState
    offset: int

    def low_watermark(self, metadata: MetadataCache) -> int:
        """Return the offset below which all live replicas are known to have deleted."""
        log, brokers = self.partition.log, metadata.snapshot.brokers
        if log is None:
            return NO_LOW_WATERMARK
        live = [replica for replica in self.partition.replicas if replica in brokers]
        return self.leading.low_watermark(log.log_start_offset, live)

    def lost(self) -> ErrorCode | None:
        """Why nothing more can be waited for; None while this broker leads."""
        if self.partition.leading is self.leading:
            return None
        return ErrorCode.KAFKA_STORAGE_ERROR if self.partition.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER


@dataclass(slots=True)
class DeletePart:
    """One partition's result, which is final once nothing is `awaited`."""

    result: DeleteRecordsPartitionResult
    awaited: Deletion | None = None

    def settle(self, error: ErrorCode, low_watermark: int) -> None:
        self.awaited = None
        self.result = replace(self.result, error_code=error, low_watermark=low_watermark)


Parts = Sequence[tuple[str, Sequence[DeletePart]]]
"""By topic, as the request has them."""


class DelayedDeleteRecords(DelayedParts[DeletePart]):
    __slots__ = ("_answer", "_metadata")

    def __init__(
        self, timeout_ms: int, parts: Parts, metadata: MetadataCache, answer: Callable[[DeleteRecordsResponse], None]
    ) -> None:
        super().__init__(timeout_ms, parts)
        self._metadata = metadata
        self._answer = answer

    def look_at(self, part: DeletePart) -> None:
        deletion = part.awaited
        if deletion is None:
            return
        lost = deletion.lost()
        if lost is not None:
            part.settle(lost, NO_LOW_WATERMARK)
            return
        low_watermark = deletion.low_watermark(self._metadata)
        if low_watermark >= deletion.offset:
            part.settle(ErrorCode.NONE, low_watermark)

    def give_up(self, part: DeletePart) -> None:
        if part.awaited is not None:
            part.settle(ErrorCode.REQUEST_TIMED_OUT, part.awaited.low_watermark(self._metadata))

    def answer(self) -> None:
        topics = [DeleteRecordsTopicResult(topic, tuple(part.result for part in those)) for topic, those in self._parts]
        self._answer(DeleteRecordsResponse(tuple(topics)))


Deletes = Callable[[str], bool | None]
"""Whether records of a topic may be deleted; None: its config is not known yet."""


class DeleteRecords:
    """`metadata_changed` when brokers may have come or gone: a dead follower is not waited for."""

    def __init__(
        self,
        access: RecordAccess,
        metadata: MetadataCache,
        progress: Progress,
        purgatory: Purgatory[tuple[str, int], DelayedDeleteRecords],
        deletes: Deletes,
    ) -> None:
        self._access = access
        self._metadata = metadata
        self._purgatory = purgatory
        self._deletes = deletes
        self._progress = progress
        self._watched: dict[tuple[str, int], None] = {}
        progress.of_followers.append(self._follower_fetched)
        progress.of_high_watermarks.append(self._changed)
        progress.idle[self._changed] = lambda: not self._watched

    def handle(
        self, request: DeleteRecordsRequest, version: int, answer: Callable[[DeleteRecordsResponse], None]
    ) -> Steps:
        parts = []
        done = 0
        for topic in request.topics:
            those = []
            for one in topic.partitions:
                those.append(self._delete(topic.name, one))
                done += 1
                if done % SLICE == 0:
                    yield None
            parts.append((topic.name, those))
        operation = DelayedDeleteRecords(request.timeout_ms, parts, self._metadata, answer)
        keys = operation.keys()
        if not self._purgatory.try_complete_else_watch(operation, keys):
            self._watched.update(dict.fromkeys(keys))

    def metadata_changed(self) -> None:
        for key in tuple(self._watched):
            self._purgatory.check_and_complete(key)
        if not self._purgatory.delayed:
            self._watched.clear()

    def _follower_fetched(self, partition: Partition, _broker: int) -> None:
        if self._watched:  # else no request waits
            self._purgatory.check_and_complete(partition.key)

    def _changed(self, partition: Partition) -> None:
        if self._watched:
            self._purgatory.check_and_complete(partition.key)

    def _delete(self, topic: str, asked: DeleteRecordsPartition) -> DeletePart:
        try:
            deletion = self._deleted(topic, asked)
        except (Refused, StorageError) as error:
            return DeletePart(DeleteRecordsPartitionResult(asked.partition_index, refused(error).error))
        return DeletePart(DeleteRecordsPartitionResult(asked.partition_index, ErrorCode.NONE), deletion)

    def _deleted(self, topic: str, asked: DeleteRecordsPartition) -> Deletion:
        """Refused, StorageError."""
        if topic in INTERNAL_TOPICS:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
        partition, log = self._access.leader_log(topic, asked.partition_index)
        assert partition.leading is not None
        deletes = self._deletes(topic)
        if deletes is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the config of {topic} is not known yet")
        if not deletes:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"records of {topic} are not deleted, by its cleanup.policy")
        offset = partition.high_watermark if asked.offset == UP_TO_HIGH_WATERMARK else asked.offset
        if offset < 0:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}")
        if log.delete_records_before(offset, partition.high_watermark):
            self._progress.changed((partition,))
        return Deletion(partition, partition.leading, offset)
