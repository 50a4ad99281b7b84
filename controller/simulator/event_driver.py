"""Drives one node's events in virtual time: one event at a time, its coroutine resumed as its answers come.

The rules are those of the real host's event thread. Before each resume, while the handler waits, and when there is
nothing to do, it asks whether the term is void (the lease ran out, the session ended): then `Resign` is thrown into
the handler at its current await, or the controller resigns at once. Between an answer and the resume that it allows,
and between one event and the next, a little time passes, drawn from a seed: whatever else happens in the cluster can
happen there, at every await.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from controller.clock import Timer
from controller.core.events import Event, Reelect
from controller.core.ports import Resign, require_handling
from controller.pending import Pending, Task
from controller.simulator.process import ProcessClock

_JUST_AFTER_MS = 1e-3


class Terms(Protocol):
    """What the driver must know of the controller's term."""

    def void_reason(self) -> str | None: ...

    def lease_until_ms(self) -> float: ...

    def resign(self, reason: str) -> None: ...


class Queue(Protocol):
    def take(self) -> Event | None: ...

    def put(self, event: Event) -> None: ...


class Handling(Protocol):
    """What an event driver drives: a broker's node, or a server of another kind with a controller of its own."""

    @property
    def events(self) -> Queue: ...

    @property
    def controller(self) -> Terms: ...

    def process(self, event: Any) -> Task[None]: ...


Defect = Callable[[Event, BaseException], None]
"""Told of an event that ended with an error: no handler may let one out."""


class EventDriver:
    """`wake` is given to the event queue; `start` once there is something to run. `cost` gives the milliseconds that
    the next step waits for its turn."""

    def __init__(self, clock: ProcessClock, cost: Callable[[], float], defect: Defect) -> None:
        self._clock = clock
        self._cost = cost
        self._defect = defect
        self._node: Handling | None = None
        self._event: Event | None = None
        self._task: Task[None] | None = None
        self._waiting: Pending[Any] | None = None
        self._scheduled = False
        self._lease_timer: Timer | None = None
        self._lease_due_ms = math.inf

    def start(self, node: Handling) -> None:
        require_handling(node)
        self._node = node
        self.wake()

    def wake(self) -> None:
        """There is an event, or may be."""
        if self._node is not None and self._task is None and not self._scheduled:
            self._schedule(self._next_event)

    def doing(self) -> str:
        """What it is at, in words."""
        if self._task is None:
            return "none is being handled"
        return f"{self._event} is being handled" + (", waiting for an answer" if self._waiting is not None else "")

    def stop(self) -> None:
        """No event is begun and no handler resumed any more. One that waits is closed where it stands."""
        self._node = None
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.close()

    def _schedule(self, step: Callable[[], None]) -> None:
        self._scheduled = True

        def turn() -> None:
            self._scheduled = False
            if self._node is not None:
                step()

        self._clock.call_later(self._cost(), turn)

    def _next_event(self) -> None:
        if self._task is not None:
            return  # begun already: a turn that was granted to the handler before it resigned let another be asked for
        node = self._running()
        self._resign_if_void(node)
        self._event = event = node.events.take()
        if event is None:
            self._watch_lease(node)
            return
        self._task = node.process(event)
        self._resume(None)

    def _resume(self, void_reason: str | None) -> None:
        """Runs the handler to its next await, or to its end."""
        node, task = self._running(), self._task
        assert task is not None
        self._waiting = None
        try:
            waiting = task.send(None) if void_reason is None else task.throw(Resign(void_reason))
        except StopIteration:
            self._ended(node)
            return
        except (Exception, Resign) as error:  # noqa: BLE001 - told to whoever judges the run, and the next event comes
            assert self._event is not None
            self._defect(self._event, error)
            self._ended(node)
            return
        self._waiting = waiting
        waiting.on_done(lambda: self._answered(waiting))
        self._watch_lease(node)

    def _ended(self, node: Handling) -> None:
        self._task = None
        if self._node is not None:
            self._schedule(self._next_event)

    def _answered(self, waiting: Pending[Any]) -> None:
        """Of no interest if the handler waits for something else by now, since it had to resign."""
        if self._node is not None and self._waiting is waiting:
            self._schedule(lambda: self._go_on(waiting))

    def _go_on(self, waiting: Pending[Any]) -> None:
        if self._waiting is waiting:
            self._resume(self._running().controller.void_reason())

    def _resign_if_void(self, node: Handling) -> None:
        reason = node.controller.void_reason()
        if reason is not None:
            node.controller.resign(reason)
            node.events.put(Reelect())

    def _watch_lease(self, node: Handling) -> None:
        """Sets the timer for when the lease could run out, as it stands now; an acknowledged ping renews it."""
        until_ms = node.controller.lease_until_ms()
        if until_ms == math.inf or (self._lease_timer is not None and self._lease_due_ms <= until_ms):
            return
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._lease_due_ms = max(until_ms, self._clock.now_ms())
        delay_ms = self._lease_due_ms - self._clock.now_ms() + _JUST_AFTER_MS
        self._lease_timer = self._clock.call_later(delay_ms, self._lease_due)

    def _lease_due(self) -> None:
        self._lease_timer, self._lease_due_ms = None, math.inf
        node = self._node
        if node is None:
            return
        reason = node.controller.void_reason()
        if reason is None:
            self._watch_lease(node)
        elif self._waiting is not None:
            self._resume(reason)
        elif self._task is None:
            self._resign_if_void(node)
            self._watch_lease(node)

    def _running(self) -> Handling:
        assert self._node is not None
        return self._node
