"""Schemes 4, 5 and 6: one wheel, an array of buckets through which time walks, a bucket a tick.

The fourth has a bucket for every tick up to the longest interval. The fifth and the sixth hash: the bucket is the due
tick modulo the number of buckets, so that a bucket also holds timers for later turns of the wheel. They differ in where
they pay for that: the fifth at the start, the sixth when the bucket is visited.
"""

from __future__ import annotations

from controller.timer.schemes.links import Link, append, take_all, unlink
from controller.timer.schemes.lists import first_due, insert_in_order
from controller.timer.schemes.scheme import IntervalTooLong, Scheme, SchemeTimer


class Wheel(Scheme):
    """`slots` buckets; time stands in bucket `now_tick` modulo `slots`. Raises ValueError without a slot."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        if slots < 1:
            raise ValueError(f"{type(self).__name__}: {slots} slots, expected 1 or more")
        self._buckets = [Link() for _ in range(slots)]

    def _bucket(self, tick: int) -> Link:
        return self._buckets[tick % len(self._buckets)]

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._bucket(timer.due_tick), timer)

    def _remove(self, timer: SchemeTimer) -> None:
        unlink(timer)


class SimpleWheel(Wheel):
    """Scheme 4. Start, stop and tick O(1); intervals up to the number of slots. A new timer may go into the bucket in
    which time stands: what was due there has been collected, and time comes back in `slots` ticks."""

    def _check(self, interval: int) -> None:
        super()._check(interval)
        if interval > len(self._buckets):
            raise IntervalTooLong("simple wheel", interval, len(self._buckets))

    def _collect(self) -> None:
        take_all(self._bucket(self.now_tick), self._expired)


class OrderedHashedWheel(Wheel):
    """Scheme 5. Start O(n) at worst, but O(1) on the average while there are no more timers than slots; stop and tick
    O(1)."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        insert_in_order(self._bucket(timer.due_tick), timer)

    def _collect(self) -> None:
        bucket = self._bucket(self.now_tick)
        while (timer := first_due(bucket, self.now_tick)) is not None:
            unlink(timer)
            self._due(timer)


class UnorderedHashedWheel(Wheel):
    """Scheme 6. Start and stop O(1); a tick O(n) at worst, n divided by the number of slots on the average: every
    timer is visited once in each turn of the wheel. `place` counts the visits that are still to pass it by."""

    def _rounds(self, interval: int) -> int:
        return (interval - 1) // len(self._buckets)

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        timer.place = self._rounds(interval)
        super()._insert(timer, interval)

    def _collect(self) -> None:
        sentinel = self._bucket(self.now_tick)
        link = sentinel.next
        while link is not sentinel:
            timer, link = link, link.next
            assert isinstance(timer, SchemeTimer)
            if timer.place:
                timer.place -= 1
            else:
                unlink(timer)
                self._due(timer)
