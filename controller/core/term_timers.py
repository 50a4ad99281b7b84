"""The timers of a term, by name: at most one of each name, all cancelled when the term ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from controller.clock import Clock, Timer


@dataclass(slots=True)
class TermTimers:
    """Set and cancelled by the controller's handlers alone; what is called back must only put an event."""

    _set: dict[str, Timer] = field(default_factory=dict)

    def set(self, name: str, clock: Clock, delay_ms: float, callback: Callable[[], None]) -> None:
        """In place of one of that name that has not come yet."""
        earlier = self._set.pop(name, None)
        if earlier is not None:
            earlier.cancel()
        self._set[name] = clock.call_later(delay_ms, callback)

    def cancel_all(self) -> None:
        """The term is over."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()
