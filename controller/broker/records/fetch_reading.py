"""Reads the partitions of a fetch one after the other: the records' location in files, or an error.

A consumer reads up to the high watermark, a follower up to the leader's log end offset. A follower's fetch also reports
its own log end offset. That is recorded before its records are read, so the high watermark in the answer already
includes it. Source: Kafka 2.8's Partition.readRecords and ReplicaManager.readFromLocalLog.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from controller.broker.partition import Partition
from controller.broker.progress import Progress
from controller.broker.records.record_access import RecordAccess, Refused, local_log, refused
from controller.broker.replication_throttle import ReplicationThrottle
from controller.broker.steps import SLICE, finish
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    NO_DIVERGENCE,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    READ_COMMITTED,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionData,
)
from controller.protocol.records import Records
from controller.quick import maker, quick
from controller.storage import FileRange, OffsetOutOfRange, PartitionLog, StorageError

FIRST_VERSION_WITH_BATCHES = 4
"""Below it there is no record batch of version 2, and nothing is converted here."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What holds for all partitions of a fetch. `min_bytes` is what it waits for; `only_leader`: it may not be answered
    from a follower's log."""

    replica_id: int
    replica_epoch: int
    version: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    whole_first_batch: bool
    only_leader: bool
    from_follower: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_follower", self.replica_id >= 0)  # asked for each partition, several times


@dataclass(frozen=True, slots=True)
class Reading:
    """One partition's part of the answer. `ends_the_wait`: an error or a divergence, which is answered at once.
    `partition`, its `log` and `leader_epoch` are those at the time of the read, where it was read."""

    topic: str
    data: FetchPartitionData
    size_bytes: int = 0
    ends_the_wait: bool = False
    partition: Partition | None = None
    log: PartitionLog | None = None
    leader_epoch: int = NO_LEADER_EPOCH

    def is_still_there(self, ask: Ask) -> bool:
        """Whether who asks may go on reading this very log."""
        partition = self.partition
        return (
            partition is not None
            and partition.log is self.log
            and partition.leader_epoch == self.leader_epoch
            and (partition.leading is not None or not ask.only_leader)
        )

    def is_still_empty(self, ask: Ask, asked: FetchPartition) -> bool:
        """Whether reading anew would find nothing, and the same in everything else."""
        partition, log, data = self.partition, self.log, self.data
        if partition is None or log is None or self.size_bytes or data.high_watermark != partition.high_watermark:
            return False
        return (
            asked.fetch_offset == (log.log_end_offset if ask.from_follower else data.high_watermark)
            and data.log_start_offset == log.log_start_offset
            and self.is_still_there(ask)
        )


quick(Reading)
_reading = maker(Reading)


class FetchReading:
    def __init__(self, access: RecordAccess, progress: Progress, clock: Clock, throttle: ReplicationThrottle) -> None:
        self._access = access
        self._throttle = throttle
        self._progress = progress
        self._clock = clock

    def read(
        self, ask: Ask, partitions: Sequence[tuple[str, FetchPartition]], before: Sequence[Reading | None]
    ) -> Generator[None, None, list[Reading]]:
        """In slices, in the order asked for, no more than `max_bytes` in all. `before`: what the very same question
        about that partition was answered the last time, where it was asked: if that was nothing, and nothing has
        changed, it is the answer again."""
        return self._read_all(ask, partitions, before, reports_position=True)

    def read_again(
        self, ask: Ask, partitions: Sequence[tuple[str, FetchPartition]], before: Sequence[Reading | None]
    ) -> list[Reading]:
        """Read again for the same fetch after its wait; this does not count as another fetch by the follower."""
        readings: list[Reading] = finish(self._read_all(ask, partitions, before, reports_position=False))
        return readings

    def holds_back(self, ask: Ask, reading: Reading) -> bool:
        """Whether the partition has nothing for who asks only since that goes too fast."""
        partition = reading.partition
        return partition is not None and self._holds_back(ask, partition)

    def _holds_back(self, ask: Ask, partition: Partition) -> bool:
        leading = partition.leading
        return (
            ask.from_follower
            and leading is not None
            and self._throttle.holds_back(partition.topic, partition.index, ask.replica_id, leading.isr)
        )

    def _read_all(
        self,
        ask: Ask,
        partitions: Sequence[tuple[str, FetchPartition]],
        before: Sequence[Reading | None],
        *,
        reports_position: bool,
    ) -> Generator[None, None, list[Reading]]:
        left, whole = ask.max_bytes, ask.whole_first_batch
        readings: list[Reading] = []
        fetch_ms = self._clock.now_ms() if reports_position and ask.from_follower and partitions else None
        for done, ((topic, asked), known) in enumerate(zip(partitions, before, strict=True), 1):
            if done % SLICE == 0:
                yield None
            position_ms = fetch_ms
            if known is not None and known.is_still_empty(ask, asked):
                if position_ms is None:
                    readings.append(known)
                    continue
                assert known.partition is not None
                assert known.log is not None
                self._hear(known.partition, known.log, ask, asked, position_ms)
                position_ms = None
                if known.partition.high_watermark == known.data.high_watermark:  # all that hearing may have moved
                    readings.append(known)
                    continue
            limit = min(max(asked.partition_max_bytes, 0), left)
            reading = self._read(ask, topic, asked, limit, whole, position_ms)
            readings.append(reading)
            if reading.size_bytes:
                left, whole = max(left - reading.size_bytes, 0), False
        return readings

    def _read(
        self,
        ask: Ask,
        topic: str,
        asked: FetchPartition,
        max_bytes: int,
        whole_first_batch: bool,
        position_ms: float | None,
    ) -> Reading:
        """Read one partition. `position_ms`: the time of the fetch, if it reports a follower's log end offset."""
        try:
            partition = self._access.partition(topic, asked.partition)
            log = local_log(partition, asked.current_leader_epoch, only_leader=ask.only_leader)
            if ask.version < FIRST_VERSION_WITH_BATCHES:
                raise Refused(ErrorCode.UNSUPPORTED_VERSION)
            if ask.from_follower:
                _require_replica(partition, ask.replica_id, asked)
            divergence = _divergence(log, asked) if asked.last_fetched_epoch != NO_LEADER_EPOCH else None
            if divergence is not None:
                data = _data(ask, asked, partition, log, b"", divergence)
                return Reading(topic, data, ends_the_wait=True)
            if position_ms is not None:
                self._hear(partition, log, ask, asked, position_ms)
            up_to = log.log_end_offset if ask.from_follower else partition.high_watermark
            if asked.fetch_offset == up_to == log.log_end_offset or self._holds_back(ask, partition):
                log.health.check()
                data = _data(ask, asked, partition, log, b"", NO_DIVERGENCE)
                return _reading(topic, data, 0, False, partition, log, partition.leader_epoch)
            found = log.read(asked.fetch_offset, max_bytes, up_to, whole_first_batch=whole_first_batch)
        except (Refused, StorageError) as error:
            data = FetchPartitionData(asked.partition, refused(error).error, NO_OFFSET, b"")
            return Reading(topic, data, ends_the_wait=True)
        if ask.from_follower:
            self._throttle.sent(topic, asked.partition, found.length)
        data = _data(ask, asked, partition, log, found if found.length else b"", NO_DIVERGENCE)
        return _reading(topic, data, found.length, False, partition, log, partition.leader_epoch)

    def _hear(self, partition: Partition, log: PartitionLog, ask: Ask, asked: FetchPartition, now_ms: float) -> None:
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            raise OffsetOutOfRange(asked.fetch_offset, log.log_start_offset, log.log_end_offset)
        leading = partition.leading
        assert leading is not None
        moved = leading.follower_fetched(
            ask.replica_id,
            asked.fetch_offset,
            asked.log_start_offset,
            log.log_end_offset,
            now_ms,
            ask.replica_epoch,
        )
        self._progress.follower_fetched(partition, ask.replica_id, moved=moved)


def _require_replica(partition: Partition, broker: int, asked: FetchPartition) -> None:
    """A follower that the assignment does not name: it, or this broker, does not know yet of a reassignment. With an
    epoch that agrees it is to try again (as Kafka from 3.3 on; 2.8 answers with nothing)."""
    if partition.leading is None or broker not in partition.leading.followers:
        knows_epoch = asked.current_leader_epoch != NO_LEADER_EPOCH
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _divergence(log: PartitionLog, asked: FetchPartition) -> EpochEndOffset | None:
    """Where the asker's log may still agree with this one, if what it fetched last is not here (KIP-595)."""
    if (
        log.epochs.latest == asked.last_fetched_epoch
        and log.log_start_offset <= asked.fetch_offset <= log.log_end_offset
    ):
        return None  # as nearly always, and the same as below
    end = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end.epoch == NO_LEADER_EPOCH or asked.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(asked.fetch_offset, log.log_start_offset, log.log_end_offset)
    if end.epoch < asked.last_fetched_epoch or end.end_offset < asked.fetch_offset:
        return EpochEndOffset(end.epoch, end.end_offset)
    return None


def _data(
    ask: Ask,
    asked: FetchPartition,
    partition: Partition,
    log: PartitionLog,
    found: FileRange | bytes,
    divergence: EpochEndOffset,
) -> FetchPartitionData:
    """Without transactions everything that is committed is stable."""
    if found == b"" and divergence is NO_DIVERGENCE:
        aborted = ask.isolation_level == READ_COMMITTED and not ask.from_follower
        return _nothing(asked.partition, partition.high_watermark, log.log_start_offset, aborted)
    records: Records = found
    return FetchPartitionData(
        asked.partition,
        ErrorCode.NONE,
        partition.high_watermark,
        records,
        last_stable_offset=partition.high_watermark,
        log_start_offset=log.log_start_offset,
        diverging_epoch=divergence,
        aborted_transactions=() if ask.isolation_level == READ_COMMITTED and not ask.from_follower else None,
    )


@lru_cache(maxsize=1_024)
def _nothing(index: int, high_watermark: int, log_start_offset: int, lists_aborted: bool) -> FetchPartitionData:
    """Return an empty result. Cached, since waiting fetches hold it and nearly all idle partitions have the same."""
    return FetchPartitionData(
        index,
        ErrorCode.NONE,
        high_watermark,
        b"",
        last_stable_offset=high_watermark,
        log_start_offset=log_start_offset,
        aborted_transactions=() if lists_aborted else None,
    )
