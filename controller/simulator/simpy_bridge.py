"""A bridge between a simulated cluster and a SimPy program: the cluster's virtual time advances with SimPy's.

A SimPy process steps the world to each of its events, so that what the model does between two of them happens between
them. All actions on the world go through `act`, which first advances the world to SimPy's current time. This module
does not import SimPy: the caller passes the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from controller.clock import Future
from controller.simulator.simulation import Simulation

if TYPE_CHECKING:
    from simpy import Environment, Event

T = TypeVar("T")


class SimPyBridge:
    """Advance `world` with `env`, from SimPy's current time on.

    Args:
        unit_ms: The number of the world's milliseconds in one unit of SimPy's time.

    A violated invariant (`BrokenInvariant`) is raised from `env.run`.
    """

    def __init__(self, env: Environment, world: Simulation, unit_ms: float = 1_000.0) -> None:
        if unit_ms <= 0:
            raise ValueError(f"unit_ms {unit_ms}: expected more than 0")
        self._env = env
        self._world = world
        self._unit_ms = unit_ms
        self._zero_ms = world.now_ms - env.now * unit_ms
        self._look_again = env.event()
        env.process(self._run())

    @property
    def world(self) -> Simulation:
        """The world, for inspection. Actions go through `act`."""
        return self._world

    def act(self, action: Callable[[Simulation], T]) -> T:
        """Run `action` on the world at SimPy's current time and return its result."""
        self._bring_to_now()
        try:
            return action(self._world)
        finally:
            self._wake()

    def answered(self, pending: Future[Any]) -> Event:
        """Return a SimPy event that succeeds with the result of `pending` when it is done, or fails with its error."""
        event = self._env.event()

        def done() -> None:
            if pending.error is None:
                event.succeed(pending.result())
            elif isinstance(pending.error, Exception):
                event.fail(pending.error)

        pending.on_done(done)
        return event

    def _bring_to_now(self) -> None:
        self._world.run_until(self._zero_ms + self._env.now * self._unit_ms)

    def _wake(self) -> None:
        """Make the SimPy process read again which event is due next."""
        if not self._look_again.triggered:
            self._look_again.succeed()

    def _run(self) -> Generator[Event, Any, None]:
        env = self._env
        while True:
            again = self._look_again = env.event()
            due_ms = self._world.next_ms
            if due_ms is None:
                yield again
                continue
            wait = max(0.0, (due_ms - self._zero_ms) / self._unit_ms - env.now)
            due = env.timeout(wait)
            yield due | again
            if due.processed:
                self._world.run_until(due_ms)  # not to SimPy's time, which may lie before it by a rounding error
