"""An operating-system process as the world sees it: it runs, stands still, or is dead.

What reaches a process (a timer of its, bytes from a socket, its turn on the processor) goes through `deliver`. One
that is paused finds it all when it goes on, in the order in which it came; a dead one never does. Nothing of a
process runs by any other way, which is what makes a kill take everything volatile with it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Protocol

from controller.clock import Clock, Future, Timer, VirtualClock


class ProcessState(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Owned(Protocol):
    def close(self) -> None:
        """The process is dead."""


class _DeathCallback:
    """A callback at a process's death, without anything to close."""

    __slots__ = ("close",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.close = callback


class Process:
    """A simulated process; `name` is for messages.

    When it ends, what it `owns` is closed and the `at_death` callbacks run, in the order of registration. This is what
    the operating system does for a dead process, such as closing its sockets.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ProcessState.RUNNING
        self.runs_freely = True
        """What reaches it is its own at once: it runs, and nothing is held that came before."""
        self._held: deque[Callable[[], None]] = deque()
        self._at_death: dict[Owned, None] = {}

    @property
    def alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    def deliver(self, callback: Callable[[], None]) -> None:
        if self.runs_freely:
            callback()
        elif self.alive:
            self._held.append(callback)

    def pause(self) -> None:
        if self.alive:
            self.state, self.runs_freely = ProcessState.PAUSED, False

    def resume(self) -> None:
        if self.state is not ProcessState.PAUSED:
            return
        self.state, self.runs_freely = ProcessState.RUNNING, not self._held
        while self._held and self.state is ProcessState.RUNNING:
            callback = self._held.popleft()
            self.runs_freely = not self._held
            callback()

    def die(self) -> None:
        if not self.alive:
            return
        self.state, self.runs_freely = ProcessState.DEAD, False
        self._held.clear()
        owned, self._at_death = list(self._at_death), {}
        for one in owned:
            one.close()

    def at_death(self, callback: Callable[[], None]) -> None:
        self._at_death[_DeathCallback(callback)] = None

    def owns(self, one: Owned) -> None:
        self._at_death[one] = None

    def lets_go(self, one: Owned) -> None:
        """It is closed already."""
        self._at_death.pop(one, None)


_ROUNDING_MS = 1e-6
"""More than all that floats of a day's milliseconds are rounded by, and less than anything takes."""


class MachineClock:
    """The clock of one machine, which need not agree with the world's: `rate` of its milliseconds pass in one of the
    world's, and its wall clock can be set. Its monotonic time never goes back. A timer that is set already keeps the
    moment that it was set for. Timers of it know no process: see `ProcessClock`."""

    def __init__(self, world: VirtualClock, rate: float = 1.0) -> None:
        self._world = world
        self._rate = 1.0
        self._since_ms = self._at_since_ms = world.now_ms()
        self._wall_offset_ms = 0
        self._wall_ms = 0
        self.set_rate(rate)

    @property
    def rate(self) -> float:
        return self._rate

    def set_rate(self, rate: float) -> None:
        if rate <= 0:
            raise ValueError(f"rate {rate}: expected more than 0")
        self._at_since_ms = self.now_ms()
        self._since_ms = self._world.now_ms()
        self._rate = rate

    def step_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock; nothing may notice but what is written down (S61)."""
        self._wall_offset_ms += by_ms

    def now_ms(self) -> float:
        now_ms = self._world.now_ms()
        if self._rate == 1.0 and self._at_since_ms == self._since_ms:
            return now_ms  # to the bit: no rounding of ours
        return self._at_since_ms + (now_ms - self._since_ms) * self._rate

    def wall_ms(self) -> int:
        """The same object within one millisecond: what is written down of it is held in many places."""
        wall_ms = self._world.wall_ms() + self._wall_offset_ms
        if wall_ms != self._wall_ms:
            self._wall_ms = wall_ms
        return self._wall_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back at the time or later by this clock, never earlier.

        Otherwise, because of rounding, a caller that waits for the rest of a delay would be called again and again at
        the same virtual time.
        """
        if self._rate == 1.0 and self._at_since_ms == self._since_ms:
            return self._world.call_later(delay_ms, callback)
        return self._world.call_later(delay_ms / self._rate + (_ROUNDING_MS if delay_ms else 0.0), callback)

    def sleep(self, delay_ms: float) -> Future[None]:
        pending: Future[None] = Future()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending


class _ProcessTimer:
    """A timer that was due while its process stood still can still be cancelled."""

    __slots__ = ("__weakref__", "_callback", "_process", "_timer")

    def __init__(self, process: Process, machine: Clock, delay_ms: float, callback: Callable[[], None]) -> None:
        self._process = process
        self._callback: Callable[[], None] | None = callback
        self._timer = machine.call_later(delay_ms, self)

    def __call__(self) -> None:
        """It is due."""
        process = self._process
        if not process.runs_freely:
            process.deliver(self._fire)
            return
        callback, self._callback = self._callback, None  # as `_fire`, without two calls of our own
        if callback is not None:
            callback()

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        self._timer.cancel()


class ProcessClock:
    """Its machine's time (the world's, where it is on no machine in particular), and timers that fire in this process
    only."""

    def __init__(self, machine: Clock, process: Process) -> None:
        self._machine = machine
        self._process = process
        self.now_ms = machine.now_ms
        self.wall_ms = machine.wall_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return _ProcessTimer(self._process, self._machine, delay_ms, callback)

    def sleep(self, delay_ms: float) -> Future[None]:
        pending: Future[None] = Future()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending


class PacedExecutor:
    """The executor of a node's event loop: each action waits for `cost()` milliseconds before its turn."""

    def __init__(self, clock: ProcessClock, cost: Callable[[], float]) -> None:
        self._clock = clock
        self._cost = cost
        self.now_ms = clock.now_ms
        self.call_later = clock.call_later

    def call_soon(self, action: Callable[[], None]) -> None:
        self._clock.call_later(self._cost(), action)
