"""Notifications of partition changes: the high watermark moved, the log grew, the leader changed.

Delayed requests for records are notified here and nowhere else. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from controller.broker.partition import Partition
from controller.clock import Clock

Heard = Callable[[Partition], None]


class Progress:
    """Registers listeners for partition changes and notifies them.

    `of_high_watermarks`: a high watermark or a role changed. `of_appends`: a log grew and its high watermark did not
    move. `of_followers`: a follower's fetch, with its broker, was recorded, unless it repeats the one before.
    `of_others`: a change in several partitions that completes no request: the ISR, or the log start offset. A listener
    may complete requests, and must not change the partition's records. `idle` holds, for some listeners of
    `of_high_watermarks`, whether no request waits there, so that role changes need not be sent to it. `live`: whether
    a replica of a partition is live."""

    def __init__(self, clock: Clock, lag_max_ms: float, live: Callable[[Partition, int], bool]) -> None:
        self._clock = clock
        self._lag_max_ms = lag_max_ms
        self._live = live
        self.of_high_watermarks: list[Heard] = []
        self.idle: dict[Heard, Callable[[], bool]] = {}
        self.of_appends: list[Heard] = []
        self.of_followers: list[Callable[[Partition, int], None]] = []
        self.of_others: list[Callable[[Sequence[Partition]], None]] = []

    def appended(self, partition: Partition) -> None:
        """Its log has a new end, a leader's or a follower's."""
        if not self.advance(partition):
            for heard in self.of_appends:
                heard(partition)

    def advance(self, partition: Partition) -> bool:
        """Advance a leader's high watermark as far as its followers allow; return whether it moved. Called for each
        change of a follower or the ISR, and after time has passed."""
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
        """Notify listeners that the partitions' leader or leader epoch changed, that they have no leader here, were
        removed, or are offline: requests that wait for them can't succeed."""
        idle = self.idle
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
        """Notify listeners that the partitions' ISR, log start offset or role changed; clients are yet to learn it."""
        for heard in self.of_others:
            heard(partitions)
