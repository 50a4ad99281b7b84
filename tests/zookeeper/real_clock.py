"""The machine's clock, for tests that talk to a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from controller.clock import Timer
from controller.pending import Pending


class RealClock:
    def now_ms(self) -> float:
        return time.monotonic() * 1_000.0

    def wall_ms(self) -> int:
        return int(time.time() * 1_000.0)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = threading.Timer(delay_ms / 1_000.0, callback)
        timer.daemon = True
        timer.start()
        return timer

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
