"""The life of a compacted log on two tiers: cleanings between and beside copies and evictions, crashes, lost HDDs.

`run(seed)` raises AssertionError where a reader gets something else than `check_compacted` allows, or where a segment
is not where its state says.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress

from controller.storage import LogDirectory, LogOffline
from controller.storage.batches import Record, encode_batch
from tests.storage.compacting import Compacting, Written
from tests.storage.tiered_life import HDDS, OnTwoTiers


class TieredCompacting(OnTwoTiers, Compacting):
    folder = "compacted-0"

    def __init__(self, seed: int) -> None:
        self.is_uniform = seed % 2 == 1
        super().__init__(seed)

    def _open(self) -> LogDirectory:
        return self.open_tiers(self.settings)

    def _reopen(self) -> None:
        """Sometimes without an HDD, which comes back with all that it had. A log that needs it waits for it."""
        for one in (self.directory, *self.hdds):
            one.unlock()
        self.lost = frozenset([self.draw.choice(HDDS)]) if self.draw.random() < 0.3 else frozenset()
        super()._reopen()
        if not self.directory.logs:
            self.lost = frozenset()
            for one in (self.directory, *self.hdds):
                one.unlock()
            super()._reopen()

    def append(self) -> None:
        """In every other seed batches of one size, so that a segment is often as large as the one that it replaces."""
        if not self.is_uniform:
            return super().append()
        offset, now_ms = self.log.log_end_offset, self.clock.now_ms
        record = Record(0, now_ms, b"key-%d" % self.draw.randint(0, 8), b"%08d" % offset)
        self.log.append_as_leader(encode_batch([record]), 1)
        self.history.append(Written(offset, now_ms, record.key or b"", record.value))
        return None

    def beside(self) -> None:
        """Copies and evictions, and perhaps the loss of an HDD, on which the log is opened anew."""
        self._move()
        if self.draw.random() < 0.002 and not self.lost:
            self.lose_an_hdd()

    def step(self) -> None:
        for _ in range(self.draw.randint(0, 8)):
            self._move()
        if self.draw.random() < 0.01 and not self.lost:
            self.lose_an_hdd()
        super().step()

    def _move(self) -> None:
        choice = self.draw.random()
        if choice < 0.5:
            with suppress(LogOffline) if self.lost else nullcontext():
                self.copy_a_step()
        elif choice < 0.55:
            with suppress(LogOffline) if self.lost else nullcontext():
                self.copy_all()
        elif choice < 0.7:
            self.evict()
        elif choice < 0.72:
            self.place()

    def lose_an_hdd(self) -> None:
        store = self.draw.choice(self.directory.stores)
        store.health.fail(OSError(5, "lost"))
        self.lost = frozenset([store.path])
        if not self.tiered.hdd_lost(store):
            self.crash()

    def check(self) -> None:
        self.check_placement()
        super().check()


def run(seed: int, steps: int = 150) -> int:
    """How many cleanings came to their end."""
    one = TieredCompacting(seed)
    one.go(steps)
    return one.cleanings
