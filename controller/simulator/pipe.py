"""One direction of a connection in memory: what is sent arrives after its latency, in its order, or not for now.

A pipe can be held (nothing arrives until it is let go, as TCP sends again until it gets through), put off (what is in
it arrives late) and closed (what is in it is lost). It never loses or doubles one message of several: TCP does not.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from functools import partial
from typing import Any

from controller.clock import VirtualClock


class Pipe(metaclass=ABCMeta):
    """Override `takes_ms` and `deliver`: a world has a million of them, and what one holds counts."""

    __slots__ = ("_clock", "_closed", "_due_ms", "_generation", "_held", "_queue")

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._queue: list[Any] | tuple[()] = ()
        self._generation = 0
        self._held = False
        self._closed = False
        self._due_ms = 0.0

    @abstractmethod
    def takes_ms(self) -> float:
        """How long the next message is under way."""

    @abstractmethod
    def deliver(self, message: Any) -> None:
        """It has arrived."""

    def send(self, message: Any) -> None:
        if self._closed:
            return
        if self._queue:
            self._queue.append(message)
        else:
            self._queue = [message]
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
        self._queue = ()
        self._generation += 1

    def _again(self) -> None:
        """Forgets when what is in it was to arrive, and says so anew."""
        self._generation += 1
        if not self._held:
            for _ in self._queue:
                self._schedule()

    def _schedule(self) -> None:
        now_ms = self._clock.now_ms()
        delay_ms = self.takes_ms()
        due_ms = now_ms + delay_ms
        if due_ms < self._due_ms:
            delay_ms = self._due_ms - now_ms
        else:
            self._due_ms = due_ms
        self._clock.call_later(delay_ms, partial(self._arrive, self._generation))

    def _arrive(self, generation: int) -> None:
        # The queue gives the order; a timer only says that one more has arrived.
        if generation == self._generation:
            queue = self._queue
            assert queue
            message = queue.pop(0)
            if not queue:
                self._queue = ()
                if self._due_ms <= self._clock.now_ms():
                    self._due_ms = 0.0  # which says as much, and is one object for all that are empty
            self.deliver(message)
