"""What drives a coroutine over Futures by their answers, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from controller.clock import Future, spawn


async def summed(first: Future[int], second: Future[int]) -> int:
    return await first + await second


def test_it_runs_up_to_the_first_that_is_unanswered_and_on_from_there() -> None:
    first, second = Future[int](), Future[int]()
    outcome = spawn(summed(first, second))
    first.resolve(1)
    assert not outcome.done
    second.resolve(2)
    assert outcome.result() == 3


def test_an_error_is_the_outcomes() -> None:
    first = Future[int]()
    outcome = spawn(summed(first, Future.resolved(2)))
    first.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        outcome.result()


def test_what_has_ended_is_gone_without_a_search_for_garbage() -> None:
    gc.collect()
    gc.disable()
    try:
        first = Future[int]()
        task = summed(first, Future.resolved(2))
        left = weakref.ref(task)
        outcome = spawn(task)
        del task
        first.resolve(1)
        assert outcome.result() == 3
        del first
        assert left() is None
    finally:
        gc.enable()
