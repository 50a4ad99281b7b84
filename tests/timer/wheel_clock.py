"""The real host's clock on virtual time: its wheel, driven by a loop whose timers are a `VirtualClock`'s."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from controller.clock import VirtualClock
from controller.hosts.network import RealClock

ROUNDING_MS = 1e-6


class VirtualLoop:
    """What of an asyncio loop and of its thread `RealClock` needs. `armed`: how often a timer was asked for."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.loop = self
        self.ident = get_ident()
        self.armed = 0
        self.failures: list[str] = []

    def call(self, action: Callable[[], object]) -> None:
        action()

    def call_at(self, due_s: float, callback: Callable[[], None]) -> Any:
        self.armed += 1
        now_ms, due_ms = self.clock.now_ms(), due_s * 1_000.0
        whole_ms = round(due_ms)
        if abs(due_ms - whole_ms) < ROUNDING_MS and whole_ms > now_ms:
            # Called early by a rounding error, a real loop calls again a moment later; virtual time would stand still.
            return self.clock.call_later(max(whole_ms - now_ms, ROUNDING_MS), callback)
        is_over = due_ms - now_ms < ROUNDING_MS
        return self.clock.call_later(0.0 if is_over else due_ms - now_ms, callback)

    def call_soon(self, callback: Callable[[], None]) -> Any:
        return self.clock.call_later(0.0, callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(str(context["exception"]))


class WheelClock(RealClock):
    """A `RealClock` whose time is virtual."""

    def __init__(self, now_ms: float = 0.0) -> None:
        self.virtual = VirtualClock(now_ms)
        self.host = VirtualLoop(self.virtual)
        host: Any = self.host
        super().__init__(host, self.virtual.now_ms)

    def __len__(self) -> int:
        """Timers that are pending and not on their way to the loop."""
        return len(self._wheel)

    def advance_to(self, now_ms: float) -> None:
        self.virtual.advance_to(now_ms)


class CountedClock(VirtualClock):
    """A `VirtualClock` that knows how many of its timers are pending."""

    def __len__(self) -> int:
        return pending_timers(self)


def pending_timers(clock: VirtualClock) -> int:
    timers = itertools.chain.from_iterable(
        each if isinstance(each, Iterable) else (each,) for each in clock._due.values()
    )
    return sum(timer.callback is not None for timer in timers)
