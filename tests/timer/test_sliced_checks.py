"""A check of a key that many operations watch, in slices: none is lost, each ends once, others are served between."""

from __future__ import annotations

import random

import pytest

from controller.clock import VirtualClock
from controller.timer.purgatory import DelayedOperation, OperationState, Purgatory


class Waiter(DelayedOperation):
    """Completes once `world` has reached `wanted`."""

    def __init__(
        self, number: int, world: list[int], done: list[int], wanted: int = 1, timeout_ms: int = 60_000
    ) -> None:
        super().__init__(timeout_ms)
        self.number, self.world, self.done, self.wanted = number, world, done, wanted

    def try_complete(self) -> bool:
        return self.world[0] >= self.wanted and self.force_complete()

    def on_complete(self) -> None:
        self.done.append(self.number)


class Waiting:
    def __init__(self, count: int, slice_operations: int | None, keys: str = "a") -> None:
        self.clock = VirtualClock()
        self.world, self.done = [0], list[int]()
        self.purgatory: Purgatory[str, Waiter] = Purgatory(self.clock, slice_operations=slice_operations)
        for number in range(count):
            self.purgatory.try_complete_else_watch(Waiter(number, self.world, self.done), keys[number % len(keys)])


def test_a_long_list_is_completed_a_slice_each_time_the_timer_runs_in_order_of_arrival() -> None:
    waiting = Waiting(250, 100)
    waiting.world[0] = 1
    assert waiting.purgatory.check_and_complete("a") == 100
    counts = [len(waiting.done)]
    while waiting.clock.step() and waiting.purgatory.delayed:
        counts.append(len(waiting.done))
    assert counts == [100, 200]
    assert waiting.done == list(range(250))
    assert (waiting.purgatory.delayed, waiting.purgatory.watched) == (0, 0)


def test_a_short_list_is_completed_at_once_and_sets_no_timer() -> None:
    waiting = Waiting(100, 100)
    waiting.world[0] = 1
    assert waiting.purgatory.check_and_complete("a") == 100
    assert waiting.clock.next_due_ms() is None


def test_what_else_is_due_runs_between_two_slices() -> None:
    waiting = Waiting(300, 100)
    waiting.world[0] = 1
    seen: list[int] = []

    def look() -> None:
        seen.append(len(waiting.done))
        if len(waiting.done) < 300:
            waiting.clock.call_later(0, look)

    waiting.clock.call_later(0, look)
    waiting.purgatory.check_and_complete("a")
    waiting.clock.advance_to(0)
    assert seen == [100, 200, 300]


def test_keys_take_turns_one_slice_at_a_time_over_all() -> None:
    waiting = Waiting(400, 100, keys="ab")
    waiting.world[0] = 1
    assert waiting.purgatory.check_and_complete("a") == 100
    assert waiting.purgatory.check_and_complete("b") == 0, "its turn comes"
    waiting.clock.advance_to(0)
    assert [number % 2 for number in waiting.done] == [0] * 100 + [0] * 100 + [1] * 100 + [1] * 100


def test_a_change_during_a_check_is_seen_by_those_that_were_tried_before_it() -> None:
    waiting = Waiting(250, 100)
    assert waiting.purgatory.check_and_complete("a") == 0
    waiting.world[0] = 1  # the first 100 have been tried, and were not to be completed
    waiting.purgatory.check_and_complete("a")
    waiting.clock.advance_to(0)
    assert sorted(waiting.done) == list(range(250))
    assert waiting.purgatory.watched == 0


def test_what_expires_or_is_cancelled_during_a_check_ends_once() -> None:
    waiting = Waiting(250, 100)
    waiting.world[0] = 1
    waiting.purgatory.check_and_complete("a")
    cancelled = waiting.purgatory.cancel_for_key("a")
    assert [one.number for one in cancelled] == list(range(100, 250))
    waiting.clock.advance_to(120_000)
    assert waiting.done == list(range(100))
    assert {one.state for one in cancelled} == {OperationState.Cancelled}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_between_each_ends_once_and_none_is_missed(seed: int) -> None:
    """Against the same events without slices: the same operations end, each once."""
    outcomes = []
    for slice_operations in (None, 3):
        draw = random.Random(seed)
        waiting = Waiting(0, slice_operations)
        purgatory, clock = waiting.purgatory, waiting.clock
        for number in range(200):
            match draw.randrange(8):
                case 0:
                    waiting.world[0] += 1
                    purgatory.check_and_complete("a")
                    purgatory.check_and_complete("b")
                case 1:
                    if clock.next_due_ms() == clock.now_ms():
                        clock.step()  # a slice; the timeouts are later
                case 2:
                    purgatory.purge()
                case _:
                    wanted = waiting.world[0] + draw.randrange(1, 4)
                    keys = draw.choice(("a", "b", "ab"))
                    waiter = Waiter(number, waiting.world, waiting.done, wanted, timeout_ms=1_000_000)
                    purgatory.try_complete_else_watch(waiter, keys)
        clock.advance_to(clock.now_ms())
        outcomes.append(sorted(waiting.done))
        assert len(set(waiting.done)) == len(waiting.done)
    assert outcomes[0] == outcomes[1]


def test_an_operation_that_raises_does_not_keep_the_others() -> None:
    failed: list[DelayedOperation] = []

    class Raises(Waiter):
        def on_complete(self) -> None:
            raise ValueError("no")

    clock, world, done = VirtualClock(), [0], list[int]()
    purgatory: Purgatory[str, Waiter] = Purgatory(
        clock, slice_operations=2, on_error=lambda operation, _: failed.append(operation)
    )
    for number in range(10):
        purgatory.try_complete_else_watch((Raises if number == 1 else Waiter)(number, world, done), "a")
    world[0] = 1
    purgatory.check_and_complete("a")
    clock.advance_to(0)
    assert done == [0, *range(2, 10)]
    assert len(failed) == 1


def test_a_slice_has_at_least_one_operation() -> None:
    with pytest.raises(ValueError, match="slice_operations 0: expected 1 or more"):
        Purgatory(VirtualClock(), slice_operations=0)
