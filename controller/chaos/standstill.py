"""Whether the machine kept up: a thread that has nothing to do but to wake, and that notes when it was not let.

A machine whose cores others have taken, that was suspended or swaps, stops brokers as a fault would that nobody
injected: an acknowledged ping comes too late, a lease runs out, a session ends. The brokers' traces can't tell that
from a defect; the run's own process, which stood still with them, can.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.trace import StoodStill

LOOK_MS = 20.0
LEAST_MS = 250.0
"""What is told of: far more than a scheduler's turn, far less than any session can bear."""
_CLOSE_S = 10.0


class StandstillWatch:
    """Tells `seen` of each time for which its thread got no turn, when it is over. `now_ms` is monotonic."""

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
