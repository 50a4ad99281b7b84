"""Threads in place of a host: a clock, and waiting for a Future. For programs that only want ZooKeeper, and for tests.

The one place of this room, besides the kazoo connection, that knows threads. Nothing here may be waited for on the
connection's own thread (in a listener or a callback): what it waits for could then never come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from controller.clock import Coro, Future, Timer, spawn

T = TypeVar("T")


def wait(pending: Future[T], timeout_s: float) -> T:
    """The answer, or the error that it is, within `timeout_s` seconds; TimeoutError after that. A request that was
    not answered in time may be carried out all the same."""
    answered = threading.Event()
    pending.on_done(answered.set)
    if not answered.wait(timeout_s):
        raise TimeoutError(f"not answered within {timeout_s:g} s")
    return pending.result()


def run(task: Coro[T], timeout_s: float) -> T:
    """Runs a coroutine over Futures (as `ZooKeeperClient.commit_rows`) to its end; otherwise as `wait`."""
    return wait(spawn(task), timeout_s)


class ThreadClock:
    """The machine's clock, a thread a timer: for the few timers that a connection and its retries set."""

    def now_ms(self) -> float:
        return time.monotonic() * 1_000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = threading.Timer(delay_ms / 1_000.0, callback)
        timer.daemon = True
        timer.start()
        return timer

    def sleep(self, delay_ms: float) -> Future[None]:
        pending: Future[None] = Future()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
