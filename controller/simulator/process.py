"""An operating-system process as the world sees it: it runs, stands still, or is dead.

What reaches a process (a timer of its, bytes from a socket, its turn on the processor) goes through `deliver`. One
that is paused finds it all when it goes on, in the order in which it came; a dead one never does. Nothing of a
process runs by any other way, which is what makes a kill take everything volatile with it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

from controller.clock import Timer, VirtualClock
from controller.pending import Pending


class ProcessState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Process:
    """`name` is for messages. Told of its end are those who asked by `at_death`, in the order of asking: what the
    operating system does for a dead process, such as closing its sockets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ProcessState.RUNNING
        self._held: deque[Callable[[], None]] = deque()
        self._at_death: list[Callable[[], None]] = []

    @property
    def alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    def deliver(self, callback: Callable[[], None]) -> None:
        if self.state is ProcessState.RUNNING and not self._held:
            callback()
        elif self.alive:
            self._held.append(callback)

    def pause(self) -> None:
        if self.alive:
            self.state = ProcessState.PAUSED

    def resume(self) -> None:
        if self.state is not ProcessState.PAUSED:
            return
        self.state = ProcessState.RUNNING
        while self._held and self.state is ProcessState.RUNNING:
            callback = self._held.popleft()
            callback()

    def die(self) -> None:
        if not self.alive:
            return
        self.state = ProcessState.DEAD
        self._held.clear()
        for callback in self._at_death:
            callback()

    def at_death(self, callback: Callable[[], None]) -> None:
        self._at_death.append(callback)


class _ProcessTimer:
    """A timer that was due while its process stood still can still be cancelled."""

    __slots__ = ("_callback", "_process", "_timer")

    def __init__(self, process: Process, world: VirtualClock, delay_ms: float, callback: Callable[[], None]) -> None:
        self._process = process
        self._callback: Callable[[], None] | None = callback
        self._timer = world.call_later(delay_ms, self._due)

    def _due(self) -> None:
        self._process.deliver(self._fire)

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        self._timer.cancel()


class ProcessClock:
    """The world's time, and timers that fire in this process only."""

    def __init__(self, world: VirtualClock, process: Process) -> None:
        self._world = world
        self._process = process

    def now_ms(self) -> float:
        return self._world.now_ms()

    def wall_ms(self) -> int:
        return self._world.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return _ProcessTimer(self._process, self._world, delay_ms, callback)

    def sleep(self, delay_ms: float) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending
