"""The clock of a scenario on real processes: the machine's monotonic one, with its zero at the scenario's start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from controller.clock import Timer
from controller.pending import Pending


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

    def sleep(self, delay_ms: float) -> Pending[None]:
        time.sleep(delay_ms / 1000)
        return Pending.resolved(None)
