"""Where a follower's log parts from its leader's: by leader epochs, never by the high watermark as long as epochs are
known.

Pure: values in, values out. Rules: Kafka 2.8's AbstractFetcherThread. A follower that cut to its high watermark threw
away what was committed and it had not heard of yet, and kept what a leader in between had replaced (KIP-101); one that
took a leader's answer about an epoch that it never saw kept records of a third log (KIP-279).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.broker.following.fetcher_queue import Followed
from controller.broker.partition import Partition
from controller.protocol.fetch_values import NO_DIVERGENCE, FetchPartitionData
from controller.storage import BadBatches, CorruptBatch, OffsetsOutOfOrder
from controller.storage.checkpoints import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEnd, LeaderEpochs
from controller.trace import LogTruncated, Noted, Trace


class FollowerLogs:
    """Applies fetched data to followers' logs. `truncate` truncates a partition's log (`Logs.truncate`); `changed` is
    called with each partition whose log or high watermark has changed."""

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
            followed.agreed = True  # the next fetch shows whether the logs diverge further
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
            # The answer contained the beginning of a batch only. This partition comes first soon, and a leader sends
            # the first batch of an answer complete.
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
            self._emit_truncation(followed, end, high_watermark, why)
            self._changed(partition)

    def restart(self, followed: Followed, offset: int) -> None:
        """Everything goes: the leader begins after this log's end."""
        partition = followed.partition
        end, high_watermark = followed.log.log_end_offset, partition.high_watermark
        followed.log.restart_at(offset)
        partition.high_watermark = offset
        self._emit_truncation(followed, end, high_watermark, f"the leader begins at {offset}")
        self._changed(partition)

    def _emit_truncation(self, followed: Followed, before: int, high_watermark: int, why: str) -> None:
        if self._trace.enabled:
            partition, end = followed.partition, followed.log.log_end_offset
            self._trace.emit(LogTruncated(partition.topic, partition.index, end, followed.leader_epoch))
            # What was committed may go only where an election was unclean.
            below = f", below the high watermark {high_watermark}" if end < high_watermark else ""
            level = "warning" if below else "info"
            self._trace.emit(Noted(level, f"{followed} truncated from {before} to {end}{below}: {why}"))


@dataclass(frozen=True, slots=True)
class Truncation:
    """`offset`: the log keeps what is below. `agreed`: what is kept is the leader's too; else the leader must be asked
    again, with the epoch that is the latest then."""

    offset: int
    agreed: bool


def truncation(own: LeaderEpochs, log_end: int, high_watermark: int, leader: EpochEnd) -> Truncation:
    """What a leader's answer means for a log with these epochs. `leader`: the largest epoch of the leader's up to the
    one that it was asked for (the log's latest), and where that ends there. Never above `log_end`."""
    if leader.end_offset == UNDEFINED_OFFSET:
        # Records from before there were epochs, or an epoch before all that the leader knows: the old rule.
        return Truncation(min(high_watermark, log_end), agreed=True)
    if leader.epoch == UNDEFINED_EPOCH:
        return Truncation(min(leader.end_offset, log_end), agreed=True)
    mine = own.end_offset_for(leader.epoch, log_end)
    if mine.end_offset == UNDEFINED_OFFSET:
        return Truncation(min(leader.end_offset, log_end), agreed=True)
    if mine.epoch != leader.epoch:
        # The leader's epoch never was here, so nothing from where it would begin is the leader's (KIP-279).
        return Truncation(min(mine.end_offset, log_end), agreed=False)
    return Truncation(min(mine.end_offset, leader.end_offset, log_end), agreed=True)


@dataclass(frozen=True, slots=True)
class LeadersRange:
    """The leader's log holds `start` to `end`. `start` is None while it was not asked for."""

    end: int
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The leader's log ends before this one (after an unclean election): what is beyond goes."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The leader has nothing as old as this log's end: all of it goes, and it begins again there."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskForStart:
    """The leader's end says nothing against this log."""


@dataclass(frozen=True, slots=True)
class InRange:
    """There is nothing to put right: the leader's log has changed since it refused."""


def after_out_of_range(log_end: int, leader: LeadersRange) -> Cut | Restart | AskForStart | InRange:
    """What a follower does to whom the leader said that its log's end is out of range."""
    if leader.end < log_end:
        return Cut(leader.end)
    if leader.start is None:
        return AskForStart()
    return Restart(leader.start) if leader.start > log_end else InRange()
