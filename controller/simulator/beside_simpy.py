"""A simulated cluster inside a SimPy program: its time goes along with SimPy's, event by event.

A SimPy process steps the world to each of its moments, so that whatever the model does in between happens in between.
Whoever acts on the world does so through `act`, which first brings it to SimPy's now. SimPy itself is not imported: the
environment is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from controller.pending import Pending
from controller.simulator.simulation import Simulation

if TYPE_CHECKING:
    from simpy import Environment, Event

T = TypeVar("T")


class BesideSimPy:
    """`world` from SimPy's present time on; `unit_ms` is how many of its milliseconds one unit of SimPy's time is. What
    breaks in the world (`BrokenInvariant`) comes out of `env.run`."""

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
        """To look into. What acts on it goes through `act`."""
        return self._world

    def act(self, action: Callable[[Simulation], T]) -> T:
        """Does something to the world, at SimPy's now."""
        self._bring_to_now()
        try:
            return action(self._world)
        finally:
            self._wake()

    def answered(self, pending: Pending[Any]) -> Event:
        """A SimPy event that succeeds, with the answer, at the moment when there is one; fails if that is an error."""
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
        """What is due next may have changed."""
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
                self._world.run_until(due_ms)  # and not to SimPy's now, which may be a rounding before it
