"""ControllerEventThread: one thread takes one event at a time and drives its coroutine to the end.

It blocks on each Pending that the handler awaits. Before each resume, while it waits and when it is idle it asks
whether the term is void (the lease ran out, the session ended): then `Resign` is thrown into the handler at its
current await, or, with no handler running, the controller resigns at once. A cut-off client is told nothing by
ZooKeeper (S12), so this look at the clock is all that stops such a leader.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from loguru import logger

from controller.clock import Clock
from controller.core.events import Event, Reelect
from controller.core.ports import Resign
from controller.pending import Pending, Task


class Terms(Protocol):
    """What the thread must know of the controller's term."""

    def void_reason(self) -> str | None: ...

    def lease_until_ms(self) -> float: ...

    def resign(self, reason: str) -> None: ...


class Queue(Protocol):
    def take(self) -> Event | None: ...

    def put(self, event: Event) -> None: ...


class Handling(Protocol):
    """What the thread runs: a broker's node."""

    @property
    def events(self) -> Queue: ...

    @property
    def controller(self) -> Terms: ...

    def process(self, event: Any) -> Task[None]: ...


class ControllerEventThread:
    """`wake` is given to the event queue; `start` once there is something to run."""

    def __init__(self, clock: Clock, name: str = "controller-event-thread") -> None:
        self._clock = clock
        self._woken = threading.Event()
        self._stopping = False
        self._name = name
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        self._woken.set()

    def start(self, node: Handling) -> None:
        self._thread = threading.Thread(target=self._run, args=(node,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends after the event in hand. True if it did within `timeout_s` (whoever closes the ZooKeeper client
        first has answered everything that it could wait for there)."""
        self._stopping = True
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self, node: Handling) -> None:
        while not self._stopping:
            self._woken.clear()
            self._resign_if_void(node)
            event = node.events.take()
            if event is None:
                self._idle(node)
                continue
            try:
                self._drive(node, node.process(event))
            except Exception:  # noqa: BLE001 - a defect in one event must not end the thread that answers them all
                logger.exception("the event {} was not handled to its end", event)

    def _resign_if_void(self, node: Handling) -> None:
        reason = node.controller.void_reason()
        if reason is not None:
            node.controller.resign(reason)
            node.events.put(Reelect())

    def _idle(self, node: Handling) -> None:
        """Sleeps until something is put, or until the lease could have run out."""
        self._woken.wait(self._patience_s(node))

    def _patience_s(self, node: Handling) -> float | None:
        """How long the lease still runs, as it stands now (an acknowledged ping renews it); None: no term."""
        until_ms = node.controller.lease_until_ms()
        if until_ms == float("inf"):
            return None
        return max(0.0, until_ms - self._clock.now_ms()) / 1000 + 0.001

    def _drive(self, node: Handling, task: Task[None]) -> None:
        pending = _resume(task, None)
        while pending is not None:
            self._wait(node, pending)
            pending = _resume(task, node.controller.void_reason())

    def _wait(self, node: Handling, pending: Pending[Any]) -> None:
        """Until the answer is there, or the term is void."""
        answered = threading.Event()
        pending.on_done(answered.set)
        while not answered.wait(self._patience_s(node)):
            if node.controller.void_reason() is not None:
                return


def _resume(task: Task[None], void_reason: str | None) -> Pending[Any] | None:
    """Runs the handler to its next await. None: it has ended."""
    try:
        return task.send(None) if void_reason is None else task.throw(Resign(void_reason))
    except StopIteration:
        return None
