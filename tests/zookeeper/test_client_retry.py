"""Retries: bounded, jittered from a seed, in the clock's time, and without an event loop."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import cast

import pytest
from tenacity import RetryCallState

from controller.clock import Future, VirtualClock, spawn
from controller.zookeeper.client import ATTEMPTS, FIRST_DELAY_MS, LONGEST_DELAY_MS, JitteredBackoff, Retrier
from controller.zookeeper.operations import BadVersion, ConnectionLost, NoNode


def retry(clock: VirtualClock, seed: int, failures: int, error: Exception) -> tuple[Future[int], list[float]]:
    attempts_ms: list[float] = []

    async def attempt() -> int:
        attempts_ms.append(clock.now_ms())
        if len(attempts_ms) <= failures:
            raise error
        return len(attempts_ms)

    return spawn(Retrier(clock, seed).call(attempt, over=(ConnectionLost,))), attempts_ms


def test_tries_again_until_it_succeeds_waiting_longer_each_time() -> None:
    """Driven by hand: nothing on the way may need an event loop."""
    clock = VirtualClock()
    answer, attempts_ms = retry(clock, 1, 5, ConnectionLost("planted"))
    assert not answer.done
    clock.advance_to(60_000.0)
    assert answer.result() == 6
    waits = [later - sooner for sooner, later in pairwise(attempts_ms)]
    for number, waited_ms in enumerate(waits):
        assert FIRST_DELAY_MS * 2**number / 2 <= waited_ms <= FIRST_DELAY_MS * 2**number


def test_gives_up_with_the_last_error() -> None:
    clock = VirtualClock()
    answer, attempts_ms = retry(clock, 1, 10**9, ConnectionLost("planted"))
    clock.advance_to(ATTEMPTS * LONGEST_DELAY_MS)
    with pytest.raises(ConnectionLost, match="planted"):
        answer.result()
    assert len(attempts_ms) == ATTEMPTS


def test_another_error_ends_it_at_once() -> None:
    clock = VirtualClock()
    answer, attempts_ms = retry(clock, 1, 1, NoNode("/x"))
    with pytest.raises(NoNode):
        answer.result()
    assert len(attempts_ms) == 1


def test_it_goes_on_where_the_answer_comes_on_another_thread() -> None:
    """As on the real host: asked on the broker's thread, answered on ZooKeeper's, and refused because two brokers
    took the same block of producer ids."""
    clock = VirtualClock()
    answers: list[Future[int]] = [Future() for _ in range(3)]
    asked: list[int] = []

    async def attempt() -> int:
        asked.append(threading.get_ident())
        return await answers[len(asked) - 1]

    outcome = spawn(Retrier(clock, 1).call(attempt, over=(BadVersion,)))
    for reply in (
        lambda: answers[0].fail(BadVersion("/x")),
        lambda: clock.advance_to(10_000.0),
        lambda: answers[1].fail(BadVersion("/x")),
        lambda: clock.advance_to(20_000.0),
        lambda: answers[2].resolve(3),
    ):
        thread = threading.Thread(target=reply)
        thread.start()
        thread.join()
    assert outcome.result() == 3
    assert len(set(asked)) > 1


def test_the_seed_alone_decides_the_delays() -> None:
    runs = []
    for seed in (3, 3, 4):
        clock = VirtualClock()
        _, attempts_ms = retry(clock, seed, 6, ConnectionLost("planted"))
        random.random()  # the global generator has no part in it
        clock.advance_to(60_000.0)
        runs.append(attempts_ms)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_wait_never_exceeds_the_longest() -> None:
    backoff = JitteredBackoff(random.Random(1), 10.0, 1_000.0)
    for attempt in (1, 8, 1_000, 10**6):
        state = cast(RetryCallState, type("State", (), {"attempt_number": attempt})())
        assert 0.0 < backoff(state) <= 1.0


class Thrown(BaseException):
    """What a host throws into a running handler."""


@pytest.mark.parametrize("while_waiting", [True, False])
def test_a_resignation_thrown_in_is_not_held_up(while_waiting: bool) -> None:
    """Tenacity catches BaseException; it must come out again without a further attempt."""
    clock = VirtualClock()
    attempts = 0
    never: Future[int] = Future()

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        if while_waiting:
            raise ConnectionLost("planted")
        return await never

    task = Retrier(clock, 1).call(attempt, over=(ConnectionLost,))
    task.send(None)
    with pytest.raises(Thrown):
        task.throw(Thrown())
    assert attempts == 1
