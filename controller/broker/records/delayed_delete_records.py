"""A DeleteRecords that waits until the records are gone from every live replica.

A partition's part is over when the low watermark, the lowest log start of the leader and its live followers, has come
to the offset, when this broker no longer leads, or when the time is up. Source: Kafka 2.8's DelayedDeleteRecords.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.broker.leader_state import LeaderState
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.partition import Partition
from controller.broker.records.delayed_parts import DelayedParts
from controller.protocol.admin_values import (
    NO_LOW_WATERMARK,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from controller.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a result waits for. `leading`: the leadership that deleted; `offset`: where the log begins now."""

    partition: Partition
    leading: LeaderState
    offset: int

    def low_watermark(self, metadata: MetadataCache) -> int:
        """As far as all live replicas are known to have deleted."""
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
class Part:
    """One partition's result, which is final once nothing is `awaited`."""

    result: DeleteRecordsPartitionResult
    awaited: Deletion | None = None

    def settle(self, error: ErrorCode, low_watermark: int) -> None:
        self.awaited = None
        self.result = replace(self.result, error_code=error, low_watermark=low_watermark)


Parts = Sequence[tuple[str, Sequence[Part]]]
"""By topic, as the request has them."""


class DelayedDeleteRecords(DelayedParts[Part]):
    __slots__ = ("_answer", "_metadata")

    def __init__(
        self, timeout_ms: int, parts: Parts, metadata: MetadataCache, answer: Callable[[DeleteRecordsResponse], None]
    ) -> None:
        super().__init__(timeout_ms, parts)
        self._metadata = metadata
        self._answer = answer

    def look_at(self, part: Part) -> None:
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

    def give_up(self, part: Part) -> None:
        if part.awaited is not None:
            part.settle(ErrorCode.REQUEST_TIMED_OUT, part.awaited.low_watermark(self._metadata))

    def answer(self) -> None:
        topics = [DeleteRecordsTopicResult(topic, tuple(part.result for part in those)) for topic, those in self._parts]
        self._answer(DeleteRecordsResponse(tuple(topics)))
