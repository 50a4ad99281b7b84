"""The clock of a scenario on real processes: the machine's monotonic one, with its zero at the scenario's start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from controller.clock import Future, Timer
from controller.trace import StoodStill


class ScenarioClock:
    """`sleep` blocks the thread that calls it: the runner's, which has nothing else to do."""

    def __init__(self) -> None:
        self.zero_ms = time.monotonic() * 1000
        """The scenario's start on the machine's clock, which all processes share."""

    def now_ms(self) -> float:
        return time.monotonic() * 1000 - self.zero_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = threading.Timer(delay_ms / 1000, callback)
        timer.daemon = True
        timer.start()
        return timer

    def sleep(self, delay_ms: float) -> Future[None]:
        time.sleep(delay_ms / 1000)
        return Future.resolved(None)


LOOK_MS = 20.0
LEAST_MS = 250.0
"""The shortest stall that is reported: far above a scheduler's time slice, far below any session timeout."""
_CLOSE_S = 10.0


class HostStallWatch:
    """Reports each period in which its thread was not scheduled to `seen`, after it ended. `now_ms` is monotonic."""

    def __init__(self, now_ms: Callable[[], float], seen: Callable[[StoodStill], None]) -> None:
        self._now_ms = now_ms
        self._seen = seen
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standstills", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Safe to call twice, and before `start`."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        before_ms = self._now_ms()
        while not self._closing.wait(LOOK_MS / 1_000):
            now_ms = self._now_ms()
            if now_ms - before_ms >= LOOK_MS + LEAST_MS:
                self._seen(StoodStill(now_ms - before_ms))
            before_ms = now_ms
