"""A client's request that the controller of this process answers: through its events, on its own thread, in time.

The clock brings the answer back to the broker's thread; one that comes after the client's time is up is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controller.clock import Clock, Timer
from controller.core.ports import EventSink

A = TypeVar("A")


def ask_controller(
    events: EventSink,
    clock: Clock,
    timeout_ms: int,
    event: Callable[[Callable[[A], None]], object],
    answered: Callable[[A], None],
    too_late: Callable[[], None],
) -> None:
    """Puts `event(respond)`; calls either `answered` with what was responded or, after `timeout_ms` (0 or less: never),
    `too_late`."""
    timer: Timer | None = None
    over = False

    def late() -> None:
        nonlocal over
        over = True
        too_late()

    def on_broker_thread(answer: A) -> None:
        if over:
            return
        if timer is not None:
            timer.cancel()
        answered(answer)

    if timeout_ms > 0:
        timer = clock.call_later(timeout_ms, late)
    events.put(event(lambda answer: _hop(clock, lambda: on_broker_thread(answer))))


def _hop(clock: Clock, action: Callable[[], None]) -> None:
    clock.call_later(0.0, action)
