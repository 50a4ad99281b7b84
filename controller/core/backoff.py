"""Exponential back-off for one event of the controller: one timer, and the count of failures in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.backoff import backoff_ms
from controller.clock import Clock, Timer
from controller.core.events import Event

FIRST_BACKOFF_MS = 100.0
LONGEST_BACKOFF_MS = 10_000.0


class Backoff:
    """Puts `event` again after a failure: after `FIRST_BACKOFF_MS`, twice as long each time, `LONGEST_BACKOFF_MS` at
    most. Each thing that is retried has a Backoff of its own, so that no retry cancels another."""

    def __init__(self, event: Event, put: Callable[[Any], None], clock: Clock) -> None:
        self._event = event
        self._put = put
        self._clock = clock
        self._failures = 0
        self._not_before_ms = 0.0
        self._timer: Timer | None = None

    def failed(self) -> None:
        """Schedule the event, in place of an earlier schedule."""
        self._failures += 1
        delay_ms = backoff_ms(self._failures, FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        self._not_before_ms = self._clock.now_ms() + delay_ms
        self.cancel()
        self._schedule()

    def is_early(self) -> bool:
        """Return whether the back-off is not over yet; the event is then scheduled for its end."""
        if self._clock.now_ms() >= self._not_before_ms:
            return False
        if self._timer is None:
            self._schedule()
        return True

    def succeeded(self) -> None:
        """The next failure is the first of a new series."""
        self._failures = 0

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        def put() -> None:
            self._timer = None
            self._put(self._event)

        self._timer = self._clock.call_later(max(0.0, self._not_before_ms - self._clock.now_ms()), put)
