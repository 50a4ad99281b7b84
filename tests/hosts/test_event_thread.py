"""The event thread: one event at a time to its end, and a term found void is ended wherever the handler stands."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from controller.clock import Coro, Future
from controller.core.channels import Resign
from controller.core.event_loop import EventQueue
from controller.core.events import BrokerChange, Event, Reelect, Startup, TopicChange
from controller.hosts.event_thread import ControllerEventThread
from controller.hosts.network import NetworkThread, RealClock
from tests.hosts.harness import KeptTrace, running_network
from tests.processes import eventually


class Lead:
    """A controller that leads until `lease_until` (minus infinity: its session is gone); None: it does not lead."""

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self.lease_until: float | None = None
        self.resigned: list[str] = []

    def void_reason(self) -> str | None:
        if self.lease_until is None or self._clock.now_ms() < self.lease_until:
            return None
        return "the lease ran out"

    def lease_until_ms(self) -> float:
        return math.inf if self.lease_until is None else self.lease_until

    def resign(self, reason: str) -> None:
        self.resigned.append(reason)
        self.lease_until = None


class Node:
    """Handles each event with `handler`, and catches Resign as the controller does."""

    def __init__(self, clock: RealClock, wake: Callable[[], None]) -> None:
        self.controller = Lead(clock)
        self.events = EventQueue(100, threading.Lock(), wake)
        self.handler: Callable[[Event], Coro[None]] = self.nothing
        self.begun: list[Event] = []
        self.ended: list[Event] = []
        self.threads: set[str] = set()

    async def nothing(self, event: Event) -> None:
        pass

    async def process(self, event: Event) -> None:
        self.threads.add(threading.current_thread().name)
        self.begun.append(event)
        try:
            await self.handler(event)
        except Resign as resign:
            self.controller.resign(str(resign))
        self.ended.append(event)


class Running:
    def __init__(self, network: NetworkThread) -> None:
        self.clock = network.clock
        self.trace = KeptTrace()
        self.faults: list[BaseException] = []
        self.thread = ControllerEventThread(self.clock, self.trace, self.faults.append)
        self.node = Node(self.clock, self.thread.wake)
        self.lead = self.node.controller

    def await_ended(self, count: int) -> None:
        eventually(lambda: len(self.node.ended) >= count, f"{count} events handled")


@pytest.fixture
def running() -> Iterator[Running]:
    with running_network() as network:
        under_test = Running(network)
        under_test.thread.start(under_test.node)
        yield under_test
        assert under_test.thread.stop(10.0)


def test_events_are_handled_one_at_a_time_in_order_on_one_thread(running: Running) -> None:
    first: Future[None] = Future()

    async def wait_in_startup(event: Event) -> None:
        if isinstance(event, Startup):
            await first

    running.node.handler = wait_in_startup
    for event in (Startup(), BrokerChange(), TopicChange()):
        running.node.events.put(event)
    eventually(lambda: running.node.begun == [Startup()], "the first has begun")
    assert running.node.ended == []
    first.resolve(None)
    running.await_ended(3)
    expected: list[Event] = [Startup(), BrokerChange(), TopicChange()]
    assert running.node.ended == expected
    assert running.node.threads == {"controller-event"}


def test_many_answers_from_other_threads_are_all_heard(running: Running) -> None:
    async def sleep(_event: Event) -> None:
        for _ in range(200):
            await running.clock.sleep(0.0)

    running.node.handler = sleep
    running.node.events.put(Startup())
    running.await_ended(1)


def test_s12_a_lease_that_runs_out_while_a_handler_waits_ends_the_term(running: Running) -> None:
    """The answer never comes (a connection that stays suspended): only the local clock can end this wait."""

    async def wait_for_ever(_event: Event) -> None:
        running.lead.lease_until = running.clock.now_ms() + 150.0
        await Future[None]()

    running.node.handler = wait_for_ever
    running.node.events.put(BrokerChange())
    running.await_ended(1)
    assert running.lead.resigned == ["the lease ran out"]


def test_a_lease_that_is_extended_without_a_word_is_believed(running: Running) -> None:
    running.lead.lease_until = running.clock.now_ms() + 1_000.0
    answer: Future[None] = Future()

    async def wait(_event: Event) -> None:
        await answer

    running.node.handler = wait
    running.node.events.put(BrokerChange())
    eventually(lambda: running.node.begun == [BrokerChange()], "begun")
    for _ in range(4):
        before_ms, running.lead.lease_until = running.lead.lease_until, running.lead.lease_until + 1_000.0
        eventually(lambda before_ms=before_ms: running.clock.now_ms() > before_ms, "what the lease was is over")  # type: ignore[misc]
    answer.resolve(None)
    running.await_ended(1)
    assert running.lead.resigned == []


def test_an_answer_that_comes_after_the_lease_resumes_nobody(running: Running) -> None:
    """The process was paused: lease run out and answer there at once. The lease goes first."""
    went_on: list[str] = []
    answer: Future[None] = Future()

    async def wait(_event: Event) -> None:
        await answer
        went_on.append("wrote")

    running.node.handler = wait
    running.lead.lease_until = math.inf
    running.node.events.put(BrokerChange())
    eventually(lambda: running.node.begun == [BrokerChange()], "begun")
    running.lead.lease_until = running.clock.now_ms() - 1.0
    answer.resolve(None)
    running.await_ended(1)
    assert went_on == []
    assert running.lead.resigned == ["the lease ran out"]


def test_an_idle_controller_resigns_when_its_lease_runs_out_and_stands_again(running: Running) -> None:
    running.lead.lease_until = running.clock.now_ms() + 100.0
    running.thread.wake()
    running.await_ended(1)
    assert running.lead.resigned == ["the lease ran out"]
    assert running.node.ended == [Reelect()]


def test_a_term_that_is_void_before_an_event_begins_is_ended_first(running: Running) -> None:
    """A coroutine that has not begun can't catch what is thrown into it."""
    running.lead.lease_until = -math.inf
    running.node.events.put(BrokerChange())
    running.await_ended(2)
    assert running.lead.resigned == ["the lease ran out"]
    expected: list[Event] = [BrokerChange(), Reelect()]
    assert running.node.ended == expected


def test_a_handler_that_lets_an_error_out_ends_the_thread_and_is_told(running: Running) -> None:
    async def fail(_event: Event) -> None:
        raise ZeroDivisionError("planted")

    running.node.handler = fail
    running.node.events.put(Startup())
    eventually(lambda: bool(running.faults), "the fault is told")
    assert isinstance(running.faults[0], ZeroDivisionError)
    assert "ZeroDivisionError: planted" in running.trace.notes("error")[0]


def test_s18_a_thread_that_waits_for_an_answer_can_be_stopped(running: Running) -> None:
    closed: list[bool] = []

    async def wait_for_ever(_event: Event) -> None:
        try:
            await Future[None]()
        except GeneratorExit:
            closed.append(True)
            raise

    running.node.handler = wait_for_ever
    running.node.events.put(Startup())
    eventually(lambda: running.node.begun == [Startup()], "begun")
    assert running.thread.stop(10.0)
    assert closed == [True]
