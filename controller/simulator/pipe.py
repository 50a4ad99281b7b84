"""One direction of a connection in memory: what is sent arrives after its latency, in its order, or not for now.

A pipe can be held (nothing arrives until it is let go, as TCP sends again until it gets through), put off (what is in
it arrives late) and closed (what is in it is lost). It never loses or doubles one message of several: TCP does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from controller.clock import VirtualClock


class Pipe:
    """`latency` gives the milliseconds that the next message takes."""

    __slots__ = ("_clock", "_closed", "_deliver", "_due_ms", "_generation", "_held", "_latency", "_queue")

    def __init__(self, clock: VirtualClock, latency: Callable[[], float], deliver: Callable[[Any], None]) -> None:
        self._clock = clock
        self._latency = latency
        self._deliver = deliver
        self._queue: deque[Any] = deque()
        self._due_ms = 0.0
        self._generation = 0
        self._held = False
        self._closed = False

    def send(self, message: Any) -> None:
        if self._closed:
            return
        self._queue.append(message)
        if not self._held:
            self._schedule()

    def hold(self, held: bool) -> None:
        """Whether what is in it, and what is sent into it, stays there from now on."""
        if held == self._held:
            return
        self._held = held
        self._again()

    def put_off(self, delay_ms: float) -> None:
        """What is in it arrives `delay_ms` from now, at the earliest."""
        self._due_ms = max(self._due_ms, self._clock.now_ms() + delay_ms)
        self._again()

    def close(self) -> None:
        """What is in it, and what is still sent, is lost."""
        self._closed = True
        self._queue.clear()
        self._generation += 1

    def _again(self) -> None:
        """Forgets when what is in it was to arrive, and says so anew."""
        self._generation += 1
        if not self._held:
            for _ in self._queue:
                self._schedule()

    def _schedule(self) -> None:
        now_ms = self._clock.now_ms()
        delay_ms = self._latency()
        if now_ms + delay_ms < self._due_ms:
            delay_ms = self._due_ms - now_ms
        else:
            self._due_ms = now_ms + delay_ms
        self._clock.call_later(delay_ms, partial(self._arrive, self._generation))

    def _arrive(self, generation: int) -> None:
        # The queue gives the order; a timer only says that one more has arrived.
        if generation == self._generation:
            self._deliver(self._queue.popleft())
