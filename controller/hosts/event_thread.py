"""The thread on which a node's events are handled: one at a time, each to its end.

It drives the handler's coroutine, blocks on each request that it awaits, and looks at the controller's lease whenever
the handler could go on: before it is resumed, while it waits, and when there is nothing to do. A term found void is
ended by throwing Resign into the handler where it stands, or, when idle, by a call. Watches, responses and timers only
queue events and wake this thread; nobody ever waits for it while holding a lock (KAFKA-6517, KAFKA-6879).
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from controller import points
from controller.clock import Clock
from controller.core.events import Event, Reelect
from controller.core.ports import Resign, require_handling
from controller.pending import Pending, Task
from controller.trace import Noted, Trace


class Lead(Protocol):
    """What the thread needs of the controller."""

    def void_reason(self) -> str | None: ...

    def lease_until_ms(self) -> float: ...

    def resign(self, reason: str) -> None: ...


class Handles(Protocol):
    """What the thread needs of the node."""

    @property
    def controller(self) -> Lead: ...

    @property
    def events(self) -> Queue: ...

    def process(self, event: Event) -> Task[None]: ...


class Queue(Protocol):
    def take(self) -> Event | None: ...

    def put(self, event: Event) -> None: ...


class ControllerEventThread:
    """Made before the node, whose queue is given `wake`; `start` brings the node. `on_fault` is told, once and on this
    thread, of an error that a handler let out: the thread has ended with it."""

    def __init__(self, clock: Clock, trace: Trace, on_fault: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._trace = trace
        self._on_fault = on_fault
        self._bell = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something was queued, or answered. From any thread; never blocks."""
        self._bell.set()

    def start(self, node: Handles) -> None:
        require_handling(node)
        self._thread = threading.Thread(target=self._run, args=(node,), name="controller-event", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """Asks the thread to end, the handler that runs included, and waits. Whether it has ended."""
        self._stopping = True
        self.wake()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self, node: Handles) -> None:
        try:
            while not self._stopping:
                self._turn(node)
        except (Exception, Resign) as error:  # noqa: BLE001 - told to whoever can end the process; the thread is over
            self._trace.emit(Noted("error", f"the event thread ends: {error}\n{traceback.format_exc()}"))
            self._on_fault(error)

    def _turn(self, node: Handles) -> None:
        """One event, or the wait for one."""
        self._bell.clear()  # before the look at the queue, so that what is queued after it rings again
        void = node.controller.void_reason()
        if void is not None:
            node.controller.resign(void)
            node.events.put(Reelect())
        event = node.events.take()
        if event is None:
            self._wait_for_bell(node.controller)
            return
        self._drive(node.controller, node.process(event))

    def _drive(self, lead: Lead, task: Task[None]) -> None:
        awaited: Pending[Any] | None = None
        try:
            while not self._stopping:
                points.reach("event thread: before the check")
                # A coroutine that has not begun has nobody inside to catch what is thrown.
                void = lead.void_reason() if awaited is not None else None
                points.reach("event thread: before resume")
                awaited = task.send(None) if void is None else task.throw(Resign(void))
                self._wait(lead, awaited)
        except StopIteration:
            return
        finally:
            task.close()

    def _wait(self, lead: Lead, awaited: Pending[Any]) -> None:
        """Until the answer is there, the term is void, or the thread is to end."""
        awaited.on_done(self.wake)
        while not (awaited.done or self._stopping or lead.void_reason() is not None):
            points.reach("event thread: waits")
            self._wait_for_bell(lead)
            self._bell.clear()

    def _wait_for_bell(self, lead: Lead) -> None:
        """At most until the lease runs out, as far as is known now: an acknowledged ping extends it without a word."""
        until_ms = lead.lease_until_ms()
        if math.isinf(until_ms):
            self._bell.wait()
        else:
            self._bell.wait(max(until_ms - self._clock.now_ms(), 0.0) / 1_000.0 + _GRAIN_S)


_GRAIN_S = 0.001
"""So that a wait which ends a rounding too early is not repeated a hundred times."""
