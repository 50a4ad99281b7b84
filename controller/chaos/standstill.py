"""Detection of host stalls: a thread that only sleeps and wakes, and records each time when it woke late.

A machine that is overloaded, suspended or swapping stalls brokers like a fault that the run did not inject: a ping is
acknowledged too late, a lease runs out, a session expires. The brokers' traces cannot distinguish that from a defect.
The run's own process, which stalls with them, can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.trace import StoodStill

LOOK_MS = 20.0
LEAST_MS = 250.0
"""The shortest stall that is reported: far above a scheduler's time slice, far below any session timeout."""
_CLOSE_S = 10.0


class StandstillWatch:
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
