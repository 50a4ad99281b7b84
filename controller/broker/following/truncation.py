"""Where a follower's log parts from its leader's: by leader epochs, never by the high watermark as long as epochs are
known.

Pure: values in, values out. Rules: Kafka 2.8's AbstractFetcherThread. A follower that cut to its high watermark threw
away what was committed and it had not heard of yet, and kept what a leader in between had replaced (KIP-101); one that
took a leader's answer about an epoch that it never saw kept records of a third log (KIP-279).
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.storage.epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEnd, LeaderEpochs


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
