"""The start offset of each leader epoch, from which a leader answers a follower that asks where their logs diverge.

Pure; the text of `leader-epoch-checkpoint` is in `checkpoints.py`. The rules are those of Kafka's
LeaderEpochFileCache (KIP-101, KIP-279).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from controller.quick import maker, quick

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


@dataclass(frozen=True, slots=True)
class EpochStart:
    epoch: int
    start_offset: int


quick(EpochStart)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """`end_offset` is the first offset that is not of `epoch` or an earlier one; both -1 if unknown."""

    epoch: int
    end_offset: int


quick(EpochEnd)
_start, _end = maker(EpochStart), maker(EpochEnd)


class LeaderEpochs:
    """Epochs and start offsets, both ascending. Each change sets `changed`, so that the checkpoint is written."""

    __slots__ = ("_entries", "changed")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: tuple[EpochStart, ...] = ()
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)
        self.changed = False

    def entries(self) -> tuple[EpochStart, ...]:
        return self._entries

    @property
    def latest(self) -> int:
        """The latest epoch, -1 with none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`. What is known of later epochs or offsets was of a log that is no more
        and is forgotten; an epoch that is known keeps its start."""
        if epoch < 0 or start_offset < 0:
            return
        if self._entries and self._entries[-1].epoch == epoch and self._entries[-1].start_offset <= start_offset:
            return
        kept = [one for one in self._entries if one.epoch < epoch and one.start_offset < start_offset]
        self._entries = (*kept, _start(epoch, start_offset)) if kept else _one(epoch, start_offset)
        self.changed = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """OffsetForLeaderEpoch: the largest epoch up to `epoch` that is known, and where the next one begins."""
        if epoch < 0 or not self._entries or epoch > self.latest:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest:
            return _end(epoch, log_end_offset)
        above = bisect_right(self._entries, epoch, key=lambda one: one.epoch)
        # Older than all that is known: nothing of it is left here, so it ended where the oldest begins.
        found = self._entries[above - 1].epoch if above else epoch
        return EpochEnd(found, self._entries[above].start_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """The log ends at `end_offset` now: epochs that begin there or later never were."""
        if not self._entries or self._entries[-1].start_offset < end_offset:
            return
        self._entries = tuple(one for one in self._entries if one.start_offset < end_offset)
        self.changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: the epoch it is in begins there too."""
        above = bisect_right(self._entries, start_offset, key=lambda one: one.start_offset)
        if above == 0:
            return
        first = EpochStart(self._entries[above - 1].epoch, start_offset)
        if self._entries[0] != first:
            self._entries, self.changed = (first, *self._entries[above:]), True

    def clear(self) -> None:
        self.changed = self.changed or bool(self._entries)
        self._entries = ()


@lru_cache(maxsize=256)
def _one(epoch: int, start_offset: int) -> tuple[EpochStart]:
    """Many logs know one epoch, which began at 0."""
    return (EpochStart(epoch, start_offset),)
