"""The event loop in virtual time: one at a time, a void term stopped wherever it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import Coro, Future, VirtualClock
from controller.core.channels import Resign
from controller.core.event_loop import EventLoop, EventQueue
from controller.core.events import BrokerModifications, Event, Reelect
from controller.machine.process import PacedExecutor, Process, ProcessClock

Body = Callable[["Toy", Event], Coro[None]]


class Toy:
    """A node whose controller has a lease, and whose handler is the test's. It is its own controller."""

    def __init__(self, body: Body, cost_ms: float = 1.0) -> None:
        self.world = VirtualClock()
        self.os_process = Process("toy")
        self.clock = ProcessClock(self.world, self.os_process)
        self.event_loop = EventLoop(PacedExecutor(self.clock, lambda: cost_ms), self.defect)
        self.events = EventQueue(100, wake=self.event_loop.wake)
        self.body = body
        self.log: list[str] = []
        self.until_ms = math.inf
        self.active = False
        self.answers: list[Future[Any]] = []

    @property
    def controller(self) -> Toy:
        return self

    def process(self, event: Any) -> Coro[None]:
        return self.body(self, event)

    def defect(self, event: Event, error: BaseException) -> None:
        self.log.append(f"defect {type(error).__name__}")

    def lead(self, until_ms: float) -> None:
        self.active, self.until_ms = True, until_ms

    def lease_until_ms(self) -> float:
        return self.until_ms if self.active else math.inf

    def void_reason(self) -> str | None:
        return "lease" if self.active and self.world.now_ms() >= self.until_ms else None

    def resign(self, reason: str) -> None:
        self.active = False
        self.log.append(f"resigned at {self.world.now_ms():.1f}")

    def put(self, *brokers: int) -> None:
        for broker in brokers:
            self.events.put(BrokerModifications(broker))

    def run(self, until_ms: float) -> list[str]:
        self.event_loop.start(self)
        self.world.advance_to(until_ms)
        return self.log


async def sleeps(toy: Toy, event: Event) -> None:
    """Notes when it begins and ends; in between it waits 10 ms, twice."""
    name = "reelect" if isinstance(event, Reelect) else str(getattr(event, "broker", "?"))
    toy.log.append(f"{name} begins")
    try:
        await toy.clock.sleep(10)
        await toy.clock.sleep(10)
    except Resign:
        toy.resign("thrown in")
        return
    toy.log.append(f"{name} ends")


def test_events_are_handled_one_at_a_time_in_order() -> None:
    toy = Toy(sleeps)
    toy.put(1, 2)
    toy.world.call_later(60, lambda: toy.put(3))
    assert toy.run(200) == ["1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends"]


def test_a_term_whose_lease_runs_out_is_stopped_at_the_await_where_it_is() -> None:
    toy = Toy(sleeps)
    toy.lead(until_ms=5)
    toy.put(1)
    assert toy.run(100) == ["1 begins", "resigned at 5.0"]


def test_an_answer_that_comes_after_the_lease_ran_out_is_not_acted_on() -> None:
    """The answer is there at 11, its turn comes at 31, the lease ends between."""
    toy = Toy(sleeps, cost_ms=20)
    toy.lead(until_ms=35)
    toy.put(1)
    assert toy.run(100) == ["1 begins", "resigned at 35.0"]


async def writes_after_an_answer(toy: Toy, event: Event) -> None:
    try:
        await toy.clock.sleep(10)
        toy.log.append("writes")
    except Resign:
        toy.resign("thrown in")


def test_an_answer_whose_turn_comes_as_the_lease_ends_is_not_acted_on() -> None:
    """Both at 12: the event begins at 1, its answer is there at 11."""
    toy = Toy(writes_after_an_answer)
    toy.lead(until_ms=12)
    toy.put(1)
    assert toy.run(13) == ["resigned at 12.0"]


def test_a_lease_that_is_renewed_stops_nothing() -> None:
    toy = Toy(sleeps)
    toy.lead(until_ms=5)
    toy.world.call_later(4, lambda: toy.lead(until_ms=100))
    toy.put(1)
    assert toy.run(99) == ["1 begins", "1 ends"]


def test_an_idle_leader_resigns_too_and_stands_again() -> None:
    toy = Toy(sleeps)
    toy.lead(until_ms=50)
    toy.event_loop.start(toy)
    assert toy.run(200) == ["resigned at 50.0", "reelect begins", "reelect ends"]


def test_a_paused_leader_resigns_before_anything_else_of_its_handler_runs() -> None:
    """S01: its lease ran out while it stood still."""
    toy = Toy(sleeps)
    toy.lead(until_ms=500)
    toy.put(1)
    toy.world.call_later(5, toy.os_process.pause)
    toy.world.call_later(1_000, toy.os_process.resume)
    assert toy.run(1_100) == ["1 begins", "resigned at 1000.0"]


async def stubborn(toy: Toy, event: Event) -> None:
    """Resigns when told, and goes on with something else."""
    if isinstance(event, Reelect):
        return
    try:
        await toy.clock.sleep(1_000)
    except Resign:
        toy.resign("thrown in")
    toy.log.append("goes on")
    await toy.clock.sleep(10)
    toy.log.append("ends")


def test_a_handler_may_go_on_after_it_resigned_and_its_old_wait_is_forgotten() -> None:
    toy = Toy(stubborn)
    toy.lead(until_ms=50)
    toy.put(1)
    toy.world.call_later(60, lambda: toy.put(2))
    assert toy.run(1_500) == ["resigned at 50.0", "goes on", "ends", "goes on", "ends"]


@pytest.mark.parametrize("until_ms", [0.25 * step for step in range(130)])
def test_at_no_moment_are_two_handlers_running(until_ms: float) -> None:
    running = 0

    async def counts(toy: Toy, event: Event) -> None:
        nonlocal running
        running += 1
        assert running == 1
        try:
            await toy.clock.sleep(7)
            if event in (BrokerModifications(1), BrokerModifications(2)):
                toy.put(3)
            await toy.clock.sleep(1)
        except Resign:
            toy.resign("thrown in")
        if not toy.active:
            await toy.clock.sleep(1)
        running -= 1

    toy = Toy(counts, cost_ms=3)
    toy.lead(until_ms)
    toy.put(1, 2)
    assert "defect AssertionError" not in toy.run(200)
    assert running == 0


async def fails(toy: Toy, event: Event) -> None:
    await toy.clock.sleep(1)
    if getattr(event, "broker", 0) == 1:
        raise KeyError("planted")
    toy.log.append("next one handled")


def test_a_handler_that_lets_an_error_out_is_told_and_the_next_event_comes() -> None:
    toy = Toy(fails)
    toy.put(1, 2)
    assert toy.run(100) == ["defect KeyError", "next one handled"]


def test_stopped_in_the_middle_nothing_of_it_runs_any_more() -> None:
    """A kill. What the handler has in `finally` runs in a process that is dead already."""
    toy = Toy(sleeps)
    toy.put(1, 2)
    toy.world.call_later(15, toy.os_process.die)
    toy.world.call_later(15, toy.event_loop.stop)
    toy.world.call_later(20, lambda: toy.put(3))
    assert toy.run(200) == ["1 begins"]
