"""Schemes 1 and 2: all timers in one list, without order and in the order of expiry.

Varghese and Lauck's first scheme pays at each tick for every timer, their second at each start for every timer that it
has to walk past: what VAX/VMS and UNIX did.
"""

from __future__ import annotations

from controller.timer.schemes.links import Link, append, insert_after, unlink
from controller.timer.schemes.scheme import Scheme, SchemeTimer


class UnorderedList(Scheme):
    """Scheme 1. Start O(1), stop O(1), a tick O(n)."""

    def __init__(self) -> None:
        super().__init__()
        self._timers = Link()

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._timers, timer)

    def _remove(self, timer: SchemeTimer) -> None:
        unlink(timer)

    def _collect(self) -> None:
        sentinel, now_tick = self._timers, self.now_tick
        link = sentinel.next
        while link is not sentinel:
            timer, link = link, link.next
            assert isinstance(timer, SchemeTimer)
            if timer.due_tick == now_tick:
                unlink(timer)
                self._due(timer)


class OrderedList(Scheme):
    """Scheme 2. Start O(n), stop O(1), a tick O(1).

    The place of a new timer is searched from the rear: what starts later is mostly due later.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timers = Link()

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        insert_in_order(self._timers, timer)

    def _remove(self, timer: SchemeTimer) -> None:
        unlink(timer)

    def _collect(self) -> None:
        while (timer := first_due(self._timers, self.now_tick)) is not None:
            unlink(timer)
            self._due(timer)


def insert_in_order(sentinel: Link, timer: SchemeTimer) -> None:
    """Behind all that are due no later than it."""
    due_tick = timer.due_tick
    place = sentinel.previous
    while isinstance(place, SchemeTimer) and place.due_tick > due_tick:
        place = place.previous
    insert_after(place, timer)


def first_due(sentinel: Link, now_tick: int) -> SchemeTimer | None:
    """The head of a list in order, if it is due at `now_tick`."""
    head = sentinel.next
    return head if isinstance(head, SchemeTimer) and head.due_tick == now_tick else None
