"""Values and small parts that stand for themselves: defaults, request numbers, back-offs, timers, gauges."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.clock import VirtualClock
from controller.core import events
from controller.core.controller import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, Backoff
from controller.core.events import AnsweredOnce, Reelect
from controller.core.leadership import ControllerSettings, RequestLog, TermTimers
from controller.core.metrics import IDLE_MS, QUANTILES, SAMPLES

KAFKAS = {
    "inter_broker_protocol": "2.8",
    "inter_broker_listener": "PLAINTEXT",
    "unclean_leader_election": False,
    "delete_topic": True,
    "auto_leader_rebalance": True,
    "leader_imbalance_per_broker_percentage": 10,
    "leader_imbalance_check_interval_seconds": 300,
    "min_insync_replicas": 1,
    "num_partitions": 1,
    "default_replication_factor": 1,
}
"""KafkaConfig's defaults (2.8)."""
OWN = {"reassignments_in_cluster": 0, "reassignments_on_broker": 0, "shutdown_check": True}
RESPONSES = {"LeaderAndIsrResponseReceived", "UpdateMetadataResponseReceived", "StopReplicaResponseReceived"}


def test_settings_have_kafkas_defaults() -> None:
    assert asdict(ControllerSettings()) == {**KAFKAS, **OWN}


@pytest.mark.parametrize(
    "name",
    ["num_partitions", "default_replication_factor", "leader_imbalance_check_interval_seconds", "min_insync_replicas"],
)
def test_a_setting_below_one_is_refused(name: str) -> None:
    ControllerSettings(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name} 0: expected 1 or more"):
        ControllerSettings(**{name: 0})  # type: ignore[arg-type]


def test_histograms_are_kafkas() -> None:
    assert (SAMPLES, IDLE_MS, QUANTILES) == (1028, 300_000.0, (0.5, 0.75, 0.95, 0.98, 0.99, 0.999))


def test_what_a_watch_or_a_timer_puts_is_pending_once_and_what_is_answered_or_an_answer_each_time() -> None:
    modules = [events]
    for module in modules:
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and "coalesces" in dir(kind):
                answered = issubclass(kind, AnsweredOnce) or kind is events.Answerable
                assert kind.coalesces is not (answered or name in RESPONSES), name  # type: ignore[attr-defined]


BROKERS = st.tuples(st.integers(1, 2), st.integers(1, 2))
STEPS = st.lists(st.tuples(st.sampled_from(["ask", "ask", "answer", "forget"]), BROKERS), max_size=30)


@given(steps=STEPS)
def test_requests_are_numbered_by_broker_and_answered_in_order(steps: list[tuple[str, tuple[int, int]]]) -> None:
    """Against a list of every request that waits: (broker, broker epoch, number)."""
    log, sent, waiting = RequestLog(), {1: 0, 2: 0}, list[tuple[int, int, int]]()
    for step, (broker, epoch) in steps:
        own = [one for one in waiting if one[:2] == (broker, epoch)]
        if step == "ask":
            assert log.number(broker, epoch) == sent[broker]
            waiting.append((broker, epoch, sent[broker]))
            sent[broker] += 1
        elif step == "answer":
            assert log.answered(broker, epoch) == (own[0][2] if own else None)
            if own:
                waiting.remove(own[0])
        else:
            log.forget(broker)
            waiting = [one for one in waiting if one[0] != broker]
        assert log.unanswered == len(waiting)
        counts = {one: sum(other[0] == one for other in waiting) for one in (1, 2)}
        assert {one: count for one, count in log.by_broker().items() if count} == {
            one: count for one, count in counts.items() if count
        }
        for one in (1, 2):
            assert log.last(one) == sent[one] - 1
            for life in (1, 2):
                left = [number for *key, number in waiting if key == [one, life]]
                for number in range(sent[one]):
                    assert log.is_answered(one, life, number) == all(other > number for other in left)


def passes(clock: VirtualClock, ms: float) -> None:
    until_ms = clock.now_ms() + ms
    clock.call_later(ms, lambda: None)
    assert clock.run_until(lambda: clock.now_ms() >= until_ms, until_ms + 1.0)


def test_a_back_off_doubles_up_to_a_limit_and_puts_its_event_once() -> None:
    clock, put = VirtualClock(), deque[Any]()
    backoff = Backoff(Reelect(), put.append, clock)
    assert not backoff.is_early()
    waits = [100.0 * 2**place for place in range(7)] + [10_000.0] * 40
    assert (FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS) == (100.0, 10_000.0)
    for wait_ms in waits:
        backoff.failed()
        assert backoff.is_early()
        passes(clock, wait_ms - 0.5)
        assert not put
        assert backoff.is_early()
        passes(clock, 0.5)
        assert put.pop() == Reelect()
        assert not put
        assert not backoff.is_early()
    backoff.succeeded()
    backoff.failed()
    backoff.failed()
    passes(clock, 199.0)
    assert not put, "a schedule takes the place of the one before it"
    backoff.cancel()
    passes(clock, 20_000.0)
    assert not put, "cancelled"


def test_who_looks_too_early_is_called_again_once_even_after_a_cancellation() -> None:
    clock, put = VirtualClock(), deque[Any]()
    backoff = Backoff(Reelect(), put.append, clock)
    backoff.failed()
    backoff.cancel()
    passes(clock, 40.0)
    assert backoff.is_early()
    assert backoff.is_early()
    passes(clock, 59.0)
    assert not put
    passes(clock, 1.0)
    assert list(put) == [Reelect()]


def test_a_terms_timers_are_one_a_name_and_end_with_it() -> None:
    clock, called = VirtualClock(), list[str]()
    timers = TermTimers()
    timers.set("a", clock, 10.0, lambda: called.append("first"))
    timers.set("a", clock, 20.0, lambda: called.append("second"))
    timers.set("b", clock, 30.0, lambda: called.append("third"))
    passes(clock, 25.0)
    assert called == ["second"]
    timers.cancel_all()
    passes(clock, 100.0)
    assert called == ["second"]
