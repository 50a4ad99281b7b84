"""How deep answers may complete one another."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from controller.labs.threaded_purgatory import ThreadedPurgatory
from controller.timer.purgatory import OperationState, Purgatory
from tests.timer.operations import Switched
from tests.timer.wheel_clock import CountedClock

DEEP = 10_000
SHALLOW = 50
Pending, Completed, Expired, _ = OperationState
EACH_KIND = pytest.mark.parametrize("kind", [Purgatory, ThreadedPurgatory])


def chain(
    purgatory: Purgatory[int, Switched], length: int, do: Callable[[Callable[[], object]], object]
) -> list[Switched]:
    """Operations of which each answer makes the next one's condition true; the news are told by `do`."""
    operations = [Switched(str(place), timeout_ms=100) for place in range(length)]
    for place, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, [place])

    def tell(place: int) -> None:
        operations[place].on = True
        purgatory.check_and_complete(place)

    def told(following: int) -> None:
        do(partial(tell, following))

    for place, operation in enumerate(operations[:-1]):
        operation.told = partial(told, place + 1)
    tell(0)
    return operations


@EACH_KIND
def test_answers_may_complete_one_another_to_some_depth(kind: type[Purgatory[int, Switched]]) -> None:
    operations = chain(kind(CountedClock()), SHALLOW, lambda work: work())
    assert {operation.state for operation in operations} == {Completed}


@EACH_KIND
def test_answers_that_only_queue_what_they_set_off_complete_one_another_to_any_depth(
    kind: type[Purgatory[int, Switched]],
) -> None:
    """Kafka's way since KAFKA-8334: what an answer sets off is queued, and done when the answer has been given."""
    queue: deque[Callable[[], object]] = deque()
    operations = chain(kind(CountedClock()), DEEP, queue.append)
    while queue:
        queue.popleft()()
    assert {(operation.state, operation.answers) for operation in operations} == {(Completed, 1)}


@EACH_KIND
def test_a_chain_beyond_the_interpreters_limit_breaks_off_and_all_that_was_not_reached_waits_on(
    kind: type[Purgatory[int, Switched]],
) -> None:
    heard: list[Exception] = []
    timer = CountedClock()
    purgatory = kind(timer, on_error=lambda _, error: heard.append(error))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(min(before, 1_000))
    try:
        operations = chain(purgatory, DEEP, lambda work: work())
    finally:
        sys.setrecursionlimit(before)
    assert any(isinstance(error, RecursionError) for error in heard)
    depth = [operation.state for operation in operations].index(Pending)
    assert depth > SHALLOW
    assert {operation.state for operation in operations[depth:]} == {Pending}
    unanswered = [operation for operation in operations[:depth] if operation.answers == 0]
    assert len(unanswered) <= 1, "more than the one at which it broke off"
    for operation in operations:
        operation.told = None
    timer.advance_to(200)
    assert {(operation.state, operation.answers) for operation in operations[depth:]} == {(Expired, 1)}
