"""What a leader's answers do to a follower's log: records appended, ends cut, starts and high watermarks moved.

Synchronous, on the broker's thread; whether the partition is still followed was looked at by the caller, just before.
Rules: Kafka 2.8's ReplicaFetcherThread. Raises what the log raises.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.following.fetcher_states import Followed
from controller.broker.following.truncation import truncation
from controller.broker.partition import Partition
from controller.protocol.fetch_values import NO_DIVERGENCE, FetchPartitionData
from controller.storage import BadBatches, CorruptBatch, EpochEnd, OffsetsOutOfOrder
from controller.trace import LogTruncated, Noted, Trace


class FollowerLogs:
    """`truncate` cuts a partition's log (`Logs.truncate`); `changed` hears of each partition whose log or high
    watermark is another than before."""

    def __init__(
        self, truncate: Callable[[Partition, int], None], changed: Callable[[Partition], None], trace: Trace
    ) -> None:
        self._truncate = truncate
        self._changed = changed
        self._trace = trace

    def take(self, followed: Followed, data: FetchPartitionData) -> None:
        """A fetched answer without an error. Raises CorruptBatch, OffsetsOutOfOrder."""
        if data.diverging_epoch is not NO_DIVERGENCE and data.diverging_epoch != NO_DIVERGENCE:
            self.agree(followed, EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset))
            followed.agreed = True  # whether that was all is what the next fetch tells
            return
        appended = self._append(followed, data)
        moved = self._move_high_watermark(followed, data.high_watermark)
        started = self._move_start(followed, data.log_start_offset)
        if appended or moved or started:
            self._changed(followed.partition)

    def _append(self, followed: Followed, data: FetchPartitionData) -> bool:
        records = data.records
        assert records is None or isinstance(records, bytes | memoryview)
        if not records:
            return False
        try:
            followed.log.append_as_follower(records)
        except (CorruptBatch, OffsetsOutOfOrder):
            raise
        except BadBatches:
            # The answer had room for the beginning of a batch only. It is this partition's turn soon: a leader lets the
            # first batch of an answer through whole.
            return False
        return True

    def _move_high_watermark(self, followed: Followed, leaders: int) -> bool:
        """What the leader says, as far as there are records. Also back: a new leader may not know yet how far the
        last one had come."""
        partition, log = followed.partition, followed.log
        reached = max(min(leaders, log.log_end_offset), log.log_start_offset)
        moved = reached != partition.high_watermark
        partition.high_watermark = reached
        return moved

    def _move_start(self, followed: Followed, leaders: int) -> bool:
        if leaders <= followed.log.log_start_offset:
            return False
        high_watermark = followed.partition.high_watermark
        return followed.log.delete_records_before(min(leaders, high_watermark), high_watermark)

    def agree(self, followed: Followed, leader: EpochEnd) -> None:
        """The leader's answer about this log's latest epoch: what it has not is cut off. `followed.agreed` says whether
        that was all."""
        log = followed.log
        found = truncation(log.epochs, log.log_end_offset, followed.partition.high_watermark, leader)
        self.cut(followed, found.offset, f"the leader's epoch {leader.epoch} ends at {leader.end_offset}")
        followed.agreed = found.agreed

    def cut(self, followed: Followed, offset: int, why: str) -> None:
        """To `offset`, or to the beginning of the batch that it lies within."""
        partition, log = followed.partition, followed.log
        end, high_watermark = log.log_end_offset, partition.high_watermark
        self._truncate(partition, offset)
        partition.high_watermark = min(high_watermark, log.log_end_offset)
        if log.log_end_offset != end:
            self._told(followed, end, high_watermark, why)
            self._changed(partition)

    def restart(self, followed: Followed, offset: int) -> None:
        """Everything goes: the leader begins after this log's end."""
        partition = followed.partition
        end, high_watermark = followed.log.log_end_offset, partition.high_watermark
        followed.log.restart_at(offset)
        partition.high_watermark = offset
        self._told(followed, end, high_watermark, f"the leader begins at {offset}")
        self._changed(partition)

    def _told(self, followed: Followed, before: int, high_watermark: int, why: str) -> None:
        if self._trace.enabled:
            partition, end = followed.partition, followed.log.log_end_offset
            self._trace.emit(LogTruncated(partition.topic, partition.index, end, followed.leader_epoch))
            # What was committed may go only where an election was unclean.
            below = f", below the high watermark {high_watermark}" if end < high_watermark else ""
            level = "warning" if below else "info"
            self._trace.emit(Noted(level, f"{followed} truncated from {before} to {end}{below}: {why}"))
