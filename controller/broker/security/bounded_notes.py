"""Lines of the log about clients that fail, bounded: a client that tries again and again must not fill the disk."""

from __future__ import annotations

from collections.abc import Callable

from controller.clock import Clock

AT_ONCE, A_SECOND = 100, 10.0
"""Lines that may come at once, and how many more each second (a token bucket)."""


class BoundedNotes:
    """Passes lines on to `note`. The first one after some were left out says how many."""

    def __init__(self, clock: Clock, note: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._note = note
        self._may = float(AT_ONCE)
        self._at_ms = clock.now_ms()
        self.left_out = 0

    def __call__(self, level: str, message: str) -> None:
        now_ms = self._clock.now_ms()
        self._may = min(self._may + (now_ms - self._at_ms) * A_SECOND / 1_000.0, AT_ONCE)
        self._at_ms = now_ms
        if self._may < 1.0:
            self.left_out += 1
            return
        self._may -= 1.0
        left_out, self.left_out = self.left_out, 0
        self._note(level, f"{message} ({left_out} such lines were left out before)" if left_out else message)
