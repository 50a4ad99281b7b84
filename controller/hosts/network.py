"""One asyncio loop on a thread of its own: everything that touches a socket of Kafka's protocol runs there, and so do
the callbacks of all of the process's timers, which are on one timing wheel."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from math import ceil
from threading import get_ident
from typing import Any, TypeVar

from controller.clock import Timer
from controller.pending import Pending
from controller.timer.wheel import MAX_DELAY_MS, NEVER_MS, NOWHERE, TimerTask, TimingWheel

T = TypeVar("T")

AT_ONCE = 1_000
"""How many timers run before the loop's other callbacks have their turn."""


class NetworkThread:
    """Runs from `start` to `stop`. `call` and `run` may be used by any other thread; the loop's own uses asyncio."""

    def __init__(self, name: str = "network") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.ident: int | None = None
        """The thread's, once it runs."""
        self.clock = RealClock(self)

    def start(self) -> None:
        self._thread.start()

    def on_loop(self) -> bool:
        return threading.get_ident() == self.ident

    def call(self, action: Callable[[], object]) -> None:
        """Run `action` on the loop: at once if called from the loop's thread, otherwise as soon as the loop is free.

        After `stop` the action is dropped: no connection is left to respond to.
        """
        if self.on_loop():
            action()
            return
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, task: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """The result of an asyncio coroutine, waited for on the calling thread. TimeoutError."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(task, self.loop)
        return future.result(timeout_s)

    def stop(self, limit_s: float = 2.0) -> bool:
        """Cancels every task, runs what that takes, and ends the loop; whether it did in time. Safe to call twice."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
            self.ident = None  # another thread may get it


def monotonic_ms() -> float:
    return time.monotonic() * 1_000.0


class RealClock:
    """The monotonic clock. Any thread may set timers; their callbacks run on the loop, which is also the broker's
    thread: `call_later(0, f)` runs `f` there.

    Timers are on one `TimingWheel` with a resolution of 1 ms, driven by one timer of asyncio's for the next bucket in
    use. A timer never fires early: its due time is rounded up to a millisecond. One without a delay is not on the
    wheel; the loop runs it in its next iteration. The wheel is touched on the loop's thread only.
    """

    def __init__(self, network: NetworkThread, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self.now_ms = now_ms
        self._network = network
        self._loop = network.loop
        self._wheel = TimingWheel(start_ms=int(self.now_ms()))
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ms = NEVER_MS

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        now_ms = self.now_ms()  # the way to the loop is not added to the delay
        timer = _WheelTimer(self._network, callback)
        if delay_ms <= 0.0:
            self._network.call(partial(self._call_soon, timer, now_ms / 1_000.0))
            return timer
        due_ms = ceil(now_ms + delay_ms) if delay_ms < MAX_DELAY_MS else NEVER_MS
        if get_ident() != self._network.ident:
            self._network.call(partial(self._start, timer, due_ms))
            return timer
        wheel = self._wheel  # as `_start`
        wheel.start(timer, due_ms - wheel.now_ms)
        if wheel.next_ms < self._armed_ms:
            self._arm()
        return timer

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending

    # -- on the loop

    def _call_soon(self, timer: _WheelTimer, due_s: float) -> None:
        if timer.callback is not None:
            self._loop.call_at(due_s, timer.run)

    def _start(self, timer: _WheelTimer, due_ms: int) -> None:
        if timer.callback is None:  # cancelled on its way to the loop
            return
        wheel = self._wheel
        wheel.start(timer, due_ms - wheel.now_ms)
        if wheel.next_ms < self._armed_ms:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_ms = self._wheel.next_ms
        self._handle = self._loop.call_at(self._armed_ms / 1_000.0, self._run) if self._armed_ms < NEVER_MS else None

    def _run(self) -> None:
        """Run the timers that are due."""
        self._handle = None
        self._armed_ms = -1  # what is started meanwhile needs not arm
        wheel = self._wheel
        try:
            for _ in range(AT_ONCE):
                while (timer := wheel.take()) is None:
                    if not wheel.turn(int(self.now_ms())):
                        return
                try:
                    timer.run()
                except Exception as error:  # noqa: BLE001 - whatever a callback raises, the others run
                    self._loop.call_exception_handler({"message": f"a timer failed: {timer!r}", "exception": error})
        finally:
            self._arm()


class _WheelTimer(TimerTask):
    """`callback` None is what says, on any thread, that it will not run."""

    __slots__ = ("__weakref__", "_network", "callback")

    def __init__(self, network: NetworkThread, callback: Callable[[], None]) -> None:
        self._next = None
        self._network = network
        self.callback: Callable[[], None] | None = callback

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        """From any thread; the wheel's links are the loop's alone."""
        if self.callback is None:
            return
        self.callback = None
        if get_ident() != self._network.ident:
            self._network.call(super().cancel)
            return
        following = self._next  # as `TimerTask.cancel`
        if following is not None:
            previous = self._previous
            previous._next = following
            following._previous = previous
            self._next = None
            self._previous = NOWHERE
