"""What drives a coroutine over Pendings by their answers, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from controller.pending import Pending, drive


async def summed(first: Pending[int], second: Pending[int]) -> int:
    return await first + await second


def test_it_runs_up_to_the_first_that_is_unanswered_and_on_from_there() -> None:
    first, second = Pending[int](), Pending[int]()
    outcome = drive(summed(first, second))
    first.resolve(1)
    assert not outcome.done
    second.resolve(2)
    assert outcome.result() == 3


def test_an_error_is_the_outcomes() -> None:
    first = Pending[int]()
    outcome = drive(summed(first, Pending.resolved(2)))
    first.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        outcome.result()


def test_what_has_ended_is_gone_without_a_search_for_garbage() -> None:
    gc.collect()
    gc.disable()
    try:
        first = Pending[int]()
        task = summed(first, Pending.resolved(2))
        left = weakref.ref(task)
        outcome = drive(task)
        del task
        first.resolve(1)
        assert outcome.result() == 3
        del first
        assert left() is None
    finally:
        gc.enable()
