"""The thread on which a node's event loop runs (`core/event_loop.py`)."""

from __future__ import annotations

import heapq
import threading
import traceback
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NoReturn

from controller.clock import Clock
from controller.core.channels import Resign
from controller.core.event_loop import EventHandler, EventLoop
from controller.core.events import Event
from controller.trace import Noted, Trace


class ControllerEventThread:
    """Made before the node, whose queue is given `wake`; `start` brings the node. `on_fault` is called, once and
    on this thread, with an error that a handler let out: the thread ends with it."""

    def __init__(self, clock: Clock, trace: Trace, on_fault: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._trace = trace
        self._on_fault = on_fault
        self._loop = EventLoop(self, _raise)
        self._actions: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timers_set = count()
        self._bell = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="controller-event", daemon=True)

    def wake(self) -> None:
        """Something was queued. From any thread; never blocks."""
        self._loop.wake()

    def start(self, handler: EventHandler) -> None:
        """Handle the node's events from now on. Raises TypeError for an object that is no EventHandler."""
        self._loop.start(handler)
        self._thread.start()

    def stop(self, limit_s: float) -> bool:
        """Ask the thread to end, the handler that runs included, and wait. Return whether it has ended."""
        self._stopping = True
        self._bell.set()
        if self._thread.ident is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    # -- the executor of the event loop

    def now_ms(self) -> float:
        return self._clock.now_ms()

    def call_soon(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        self._bell.set()

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> _Timer:
        timer = _Timer(action)
        heapq.heappush(self._timers, (self.now_ms() + delay_ms, next(self._timers_set), timer))
        return timer

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._bell.clear()  # before the look at the actions, so that one submitted after it rings again
                while self._actions and not self._stopping:
                    self._actions.popleft()()
                self._fire()
                if not self._actions and not self._stopping:
                    self._bell.wait(self._wait_s())
        except (Exception, Resign) as error:  # noqa: BLE001 - passed to on_fault, which can end the process
            self._trace.emit(Noted("error", f"the event thread ends: {error}\n{traceback.format_exc()}"))
            self._on_fault(error)
        finally:
            self._loop.stop()

    def _fire(self) -> None:
        """Run the timers that are due."""
        while self._timers and self._timers[0][0] <= self.now_ms() and not self._stopping:
            _, _, timer = heapq.heappop(self._timers)
            if timer.action is not None:
                timer.action()

    def _wait_s(self) -> float | None:
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return max(self._timers[0][0] - self.now_ms(), 0.0) / 1_000.0 if self._timers else None


class _Timer:
    """`action` is None once it was cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


def _raise(_event: Event, error: BaseException) -> NoReturn:
    raise error
