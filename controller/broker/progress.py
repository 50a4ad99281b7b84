"""Where partitions' changes end: the high watermark moved, the log grew, its leader is another. Whoever waits for
records hears of it here and nowhere else. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from controller.broker.partition import Partition
from controller.clock import Clock

Heard = Callable[[Partition], None]


class Progress:
    """`of_high_watermarks` hear that a high watermark or a role changed; `of_appends` that a log grew and its high
    watermark stayed; `of_followers` of a follower's fetch, with its broker, once it is put down, unless it repeats what
    the one before said; `of_others` what changed in several that ends nobody's wait: the ISR, or where the log begins.
    A listener may complete requests, and must not change the partition's records. `have_nobody`, of some of the first:
    whether nobody waits there, who then need not hear of each. `live`: whether a replica of a partition is."""

    def __init__(self, clock: Clock, lag_max_ms: float, live: Callable[[Partition, int], bool]) -> None:
        self._clock = clock
        self._lag_max_ms = lag_max_ms
        self._live = live
        self.of_high_watermarks: list[Heard] = []
        self.have_nobody: dict[Heard, Callable[[], bool]] = {}
        self.of_appends: list[Heard] = []
        self.of_followers: list[Callable[[Partition, int], None]] = []
        self.of_others: list[Callable[[Sequence[Partition]], None]] = []

    def appended(self, partition: Partition) -> None:
        """Its log has a new end, a leader's or a follower's."""
        if not self.advance(partition):
            for heard in self.of_appends:
                heard(partition)

    def advance(self, partition: Partition) -> bool:
        """Moves a leader's high watermark to where its followers let it be, and tells if it moved. For each news of
        a follower, of the ISR, or that time has passed."""
        log = partition.log
        if log is None or partition.high_watermark >= log.log_end_offset:
            return False  # as far as it can be
        moved = partition.advance_high_watermark(
            self._clock.now_ms(), self._lag_max_ms, lambda broker: self._live(partition, broker)
        )
        if moved:
            self.high_watermark_moved(partition)
        return moved

    def follower_fetched(self, partition: Partition, broker: int, *, moved: bool) -> None:
        """`moved`: it has another end than before, by what it asks for."""
        if moved:
            self.advance(partition)
        for heard in self.of_followers:
            heard(partition, broker)

    def high_watermark_moved(self, partition: Partition) -> None:
        for heard in self.of_high_watermarks:
            heard(partition)

    def roles_changed(self, partitions: Iterable[Partition]) -> None:
        """They are led by another, in another epoch, by nobody here, gone, or their files are offline: who waits is
        told that it waits in vain."""
        idle = self.have_nobody
        listeners = [heard for heard in self.of_high_watermarks if heard not in idle or not idle[heard]()]
        for partition in partitions:
            log = partition.log
            if log is not None and partition.high_watermark < log.log_end_offset:
                self.advance(partition)
            for heard in listeners:
                heard(partition)

    def isr_changed(self, partition: Partition) -> None:
        """The controller has written another."""
        self.changed((partition,))
        self.advance(partition)

    def changed(self, partitions: Sequence[Partition]) -> None:
        """Their ISR is another, or where their log begins, or their role, of which who waits has yet to be told."""
        for heard in self.of_others:
            heard(partitions)
