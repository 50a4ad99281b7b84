"""Faults planted once, in the event loop and in the channels: tests of both hosts must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.core.channels import ControllerChannels, PeerError, _Channel
from controller.core.event_loop import EventLoop
from tests.hosts import test_channels as real_channels
from tests.hosts import test_event_thread as real_loop
from tests.hosts.harness import running_network
from tests.processes import eventually
from tests.simulator import test_channels as simulated_channels
from tests.simulator import test_event_loop as simulated_loop

Patch = pytest.MonkeyPatch
DEADLINE_S = 1.0
"""How long a test of the real host waits for what a planted fault keeps from happening."""


def resumed_in_a_void_term(patch: Patch) -> None:
    """An answer resumes its handler whatever has become of the term (S01)."""

    def go_on(self: EventLoop, waiting: Any) -> None:
        if self._waiting is waiting:
            self._resume(None)

    patch.setattr(EventLoop, "_go_on", go_on)


def lease_not_watched(patch: Patch) -> None:
    """A handler that waits for ever is never told that its lease ran out (S12)."""
    patch.setattr(EventLoop, "_watch_lease", lambda self, handler: None)


def lease_not_looked_at_again(patch: Patch) -> None:
    """A lease that was extended once is not watched any more."""

    def lease_due(self: EventLoop) -> None:
        self._lease_timer = None
        reason = self._started().controller.void_reason()
        if reason is not None:
            self._resume(reason)

    patch.setattr(EventLoop, "_lease_due", lease_due)


def stands_no_more(patch: Patch) -> None:
    """An idle controller that resigns does not stand for election again."""

    def resign(self: EventLoop, handler: Any) -> None:
        reason = handler.controller.void_reason()
        if reason is not None:
            handler.controller.resign(reason)

    patch.setattr(EventLoop, "_resign_if_void", resign)


def begun_in_a_void_term(patch: Patch) -> None:
    """An event is begun though the term is void."""
    patch.setattr(EventLoop, "_resign_if_void", lambda self, handler: None)


def next_event_forgotten(patch: Patch) -> None:
    """Where several events wait, the first is handled."""

    def ended(self: EventLoop, handler: Any) -> None:
        self._task = None

    patch.setattr(EventLoop, "_ended", ended)


def dequeued_before_the_answer(patch: Patch) -> None:
    """What was sent counts as done (KAFKA-1738)."""

    async def serve(self: _Channel, connection: Any) -> PeerError | None:
        while self._queue and not self._closed:
            sent = self._queue.popleft()
            try:
                answer = await connection.request(sent.api_key, sent.api_version, sent.body, 1_000.0, sent.rest)
            except PeerError as error:
                return error
            self._channels.answered(sent, answer)
        return PeerError("nothing is queued")

    patch.setattr(_Channel, "_serve", serve)


def resent_behind_the_next(patch: Patch) -> None:
    """A request without an answer goes to the end of its queue."""
    serve = _Channel._serve

    async def serving(self: _Channel, connection: Any) -> PeerError | None:
        error = await serve(self, connection)
        if len(self._queue) > 1:
            self._queue.append(self._queue.popleft())
        return error

    patch.setattr(_Channel, "_serve", serving)


def term_not_asked_before_sending(patch: Patch) -> None:
    """Requests go out in a void term (S12)."""
    patch.setattr(ControllerChannels, "may_send", lambda self: True)


def gives_up_for_good(patch: Patch) -> None:
    """A channel that may not send closes, though its lease is extended a moment later."""
    may_send = ControllerChannels.may_send

    def asked(self: ControllerChannels) -> bool:
        if not may_send(self):
            for channel in self._channels.values():
                channel.close()
        return may_send(self)

    patch.setattr(ControllerChannels, "may_send", asked)


def incarnations_taken_for_one(patch: Patch) -> None:
    """What was meant for a broker's earlier incarnation goes to the next one (S29)."""
    patch.setattr(_Channel, "reaches", lambda self, endpoint: True)


def queue_dropped_when_announced_again(patch: Patch) -> None:
    """A broker that is announced once more gets nothing of what waits for it."""
    patch.setattr(_Channel, "reaches", lambda self, endpoint: False)


def answers_after_the_term(patch: Patch) -> None:
    """An answer becomes an event of a term that is over."""

    def answered(self: ControllerChannels, request: Any, body: bytes) -> None:
        self._events.put(request.response_event(body))

    patch.setattr(ControllerChannels, "answered", answered)
    patch.setattr(_Channel, "_is_closed", lambda self: False)
    patch.setattr(_Channel, "_stop", lambda self: None)


def no_second_connection(patch: Patch) -> None:
    """A broken connection is not replaced."""
    run = _Channel._run

    async def once(self: _Channel) -> None:
        serve = self._serve

        async def serving(connection: Any) -> PeerError | None:
            error = await serve(connection)
            self._closed = True
            return error

        patch.setattr(self, "_serve", serving, raising=False)
        await run(self)

    patch.setattr(_Channel, "_run", once)


def with_real_loop(test: Callable[[real_loop.Running], None]) -> Callable[[], None]:
    def run() -> None:
        with running_network() as network:
            under_test = real_loop.Running(network)
            under_test.thread.start(under_test.node)
            try:
                test(under_test)
            finally:
                under_test.thread.stop(DEADLINE_S)

    return run


def with_real_channels(test: Callable[[real_channels.Wired], None]) -> Callable[[], None]:
    def run() -> None:
        with running_network() as network:
            under_test = real_channels.Wired(network)
            try:
                test(under_test)
            finally:
                under_test.broker.server.close()
                under_test.silent_port.release()

    return run


FOUND_BY: dict[Callable[[Patch], None], tuple[Callable[[], object], Callable[[], object]]] = {
    resumed_in_a_void_term: (
        simulated_loop.test_an_answer_whose_turn_comes_as_the_lease_ends_is_not_acted_on,
        with_real_loop(real_loop.test_an_answer_that_comes_after_the_lease_resumes_nobody),
    ),
    lease_not_watched: (
        simulated_loop.test_a_term_whose_lease_runs_out_is_stopped_at_the_await_where_it_is,
        with_real_loop(real_loop.test_s12_a_lease_that_runs_out_while_a_handler_waits_ends_the_term),
    ),
    lease_not_looked_at_again: (
        simulated_loop.test_an_idle_leader_resigns_too_and_stands_again,
        with_real_loop(real_loop.test_an_idle_controller_resigns_when_its_lease_runs_out_and_stands_again),
    ),
    stands_no_more: (
        simulated_loop.test_an_idle_leader_resigns_too_and_stands_again,
        with_real_loop(real_loop.test_an_idle_controller_resigns_when_its_lease_runs_out_and_stands_again),
    ),
    begun_in_a_void_term: (
        simulated_loop.test_an_idle_leader_resigns_too_and_stands_again,
        with_real_loop(real_loop.test_a_term_that_is_void_before_an_event_begins_is_ended_first),
    ),
    next_event_forgotten: (
        simulated_loop.test_events_are_handled_one_at_a_time_in_order,
        with_real_loop(real_loop.test_events_are_handled_one_at_a_time_in_order_on_one_thread),
    ),
    dequeued_before_the_answer: (
        lambda: list(map(simulated_channels.assert_resent_in_place, range(1, 60))),
        with_real_channels(real_channels.test_s33_a_request_whose_answer_was_lost_goes_first_over_the_next_connection),
    ),
    resent_behind_the_next: (
        lambda: list(map(simulated_channels.assert_resent_in_place, range(1, 60))),
        with_real_channels(real_channels.test_s33_a_request_whose_answer_was_lost_goes_first_over_the_next_connection),
    ),
    term_not_asked_before_sending: (
        simulated_channels.test_a_void_term_sends_nothing_more,
        with_real_channels(real_channels.test_s12_nothing_goes_out_while_the_term_does_not_hold),
    ),
    gives_up_for_good: (
        lambda: simulated_channels.test_a_term_whose_lease_was_extended_sends_what_waited(30.0),
        with_real_channels(real_channels.test_s12_nothing_goes_out_while_the_term_does_not_hold),
    ),
    incarnations_taken_for_one: (
        simulated_channels.test_another_life_gets_nothing_of_what_was_meant_for_the_one_before,
        with_real_channels(real_channels.test_a_channel_to_an_earlier_life_is_dropped_with_its_queue),
    ),
    queue_dropped_when_announced_again: (
        simulated_channels.test_a_channel_that_is_announced_again_keeps_its_queue,
        with_real_channels(real_channels.test_a_channel_that_is_announced_again_keeps_its_queue),
    ),
    answers_after_the_term: (
        lambda: simulated_channels.test_after_the_term_no_answer_becomes_an_event(5.0),
        with_real_channels(real_channels.test_after_the_term_no_answer_becomes_an_event),
    ),
    no_second_connection: (
        lambda: list(map(simulated_channels.assert_resent_in_place, range(1, 60))),
        with_real_channels(real_channels.test_a_broker_that_keeps_silent_is_asked_again_after_the_timeout),
    ),
}
"""A fault, and a test of each host that fails with it."""


@pytest.mark.parametrize("host", ["simulated", "real"])
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], host: str, monkeypatch: Patch) -> None:
    def soon(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
        eventually(condition, what, min(deadline_s, DEADLINE_S))

    for module in (real_loop, real_channels):
        monkeypatch.setattr(module, "eventually", soon)
    monkeypatch.setattr(real_channels, "DEADLINE_S", DEADLINE_S)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        FOUND_BY[plant][host == "real"]()
