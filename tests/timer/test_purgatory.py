"""The purgatory on one thread: who is tried when, how operations end, what stays in the lists and for how long.

Everything here holds for the threaded one too, which runs the same tests.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.labs.thread_timer import ThreadTimer, TimerClosed
from controller.labs.threaded_purgatory import ThreadedPurgatory
from controller.timer.purgatory import AlreadyWatched, DelayedOperation, OperationState, Purgatory
from tests.timer.operations import Switched
from tests.timer.wheel_clock import CountedClock, WheelClock

Pending, Completed, Expired, Cancelled = OperationState


@dataclass(frozen=True)
class Make:
    """Makes a kind of purgatory, and a timer for it whose time is the test's to move."""

    purgatory: Callable[..., Purgatory[str, Switched]]
    timer: Callable[[], Any]

    def __call__(self, timer: Any, **settings: Any) -> Purgatory[str, Switched]:
        return self.purgatory(timer, **settings)


KINDS: dict[str, Make] = {
    "wheel": Make(Purgatory, WheelClock),
    "virtual clock": Make(Purgatory, CountedClock),
    "threads": Make(ThreadedPurgatory, CountedClock),
    "one shard": Make(partial(ThreadedPurgatory, shards=1), WheelClock),
}
EACH_KIND = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


FAR_MS = 3_600_000


def fails(message: str) -> None:
    raise OSError(message)


@EACH_KIND
def test_what_can_be_answered_at_once_is_not_kept(make: Make) -> None:
    timer = make.timer()
    purgatory = make(timer)
    assert purgatory.try_complete_else_watch(operation := Switched(on=True), ["a"])
    assert (operation.state, operation.answers, operation.looks) == (Completed, 1, 1)
    assert (purgatory.delayed, purgatory.watched, len(timer)) == (0, 0, 0)


@EACH_KIND
def test_news_of_any_of_its_keys_complete_it_and_it_leaves_the_timer_at_once(make: Make) -> None:
    timer = make.timer()
    purgatory = make(timer)
    operations = [Switched(name) for name in "xyz"]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, ["a", operation.name])
    assert (purgatory.delayed, purgatory.watched, len(timer)) == (3, 6, 3)
    assert purgatory.check_and_complete("a") == 0
    operations[0].on = operations[1].on = True
    assert purgatory.check_and_complete("nobody's") == 0
    assert purgatory.check_and_complete("y") == 1
    assert (purgatory.delayed, len(timer)) == (2, 2)
    assert purgatory.check_and_complete("a") == 1
    assert [operation.answers for operation in operations] == [1, 1, 0]
    assert purgatory.watched == 3, "a check leaves out what has ended in its own list: z under a and z, x under x"
    timer.advance_to(5_000)
    assert [operation.state for operation in operations] == [Completed, Completed, Expired]
    assert [operation.answers for operation in operations] == [1, 1, 1]


@EACH_KIND
@pytest.mark.parametrize("timeout_ms", [0, -1, 1, 200])
def test_when_its_time_is_over_it_answers_and_then_counts(make: Make, timeout_ms: int) -> None:
    timer = make.timer()
    purgatory = make(timer)
    operation = Switched(timeout_ms=timeout_ms)
    seen: list[tuple[OperationState, int, int]] = []
    operation.told = lambda: seen.append((operation.state, operation.expirations, timer.now_ms()))
    assert not purgatory.try_complete_else_watch(operation, ["a"])
    timer.advance_to(1_000)
    assert seen == [(Expired, 0, max(timeout_ms, 0))]
    assert (operation.answers, operation.expirations) == (1, 1)
    operation.on = True
    assert not operation.force_complete()
    assert purgatory.check_and_complete("a") == 0
    assert (operation.state, operation.answers, purgatory.delayed, purgatory.watched) == (Expired, 1, 0, 0)


@EACH_KIND
def test_completion_by_force_comes_before_the_time_or_after_it_but_never_twice(make: Make) -> None:
    timer = make.timer()
    purgatory = make(timer)
    purgatory.try_complete_else_watch(operation := Switched(timeout_ms=10), ["a"])
    assert operation.force_complete()
    assert not operation.force_complete()
    timer.advance_to(100)
    assert (operation.state, operation.answers, operation.expirations) == (Completed, 1, 0)
    unwatched = Switched()
    assert unwatched.force_complete()
    assert not unwatched.force_complete()
    assert unwatched.answers == 1


@EACH_KIND
def test_cancelled_operations_are_handed_over_and_never_answered(make: Make) -> None:
    timer = make.timer()
    purgatory = make(timer)
    both, other, done = Switched("both"), Switched("other"), Switched("done")
    for operation, keys in ((both, ["a", "b"]), (other, ["b"]), (done, ["a"])):
        purgatory.try_complete_else_watch(operation, keys)
    done.force_complete()
    assert purgatory.cancel_for_key("a") == [both]
    assert purgatory.cancel_for_key("a") == []
    both.on = True
    assert purgatory.check_and_complete("b") == 0
    assert (both.state, both.answers, other.state, len(timer), purgatory.delayed) == (Cancelled, 0, Pending, 1, 1)
    purgatory.try_complete_else_watch(Switched("third"), ["c"])
    assert sorted(map(repr, purgatory.cancel_all())) == ["other", "third"]
    assert (len(timer), purgatory.delayed, purgatory.watched) == (0, 0, 0)


@EACH_KIND
def test_an_answer_may_watch_check_and_cancel_under_its_own_key(make: Make) -> None:
    timer = make.timer()
    purgatory = make(timer)
    first, second, third, fourth = (Switched(name) for name in ("first", "second", "third", "fourth"))
    for operation in (first, second, fourth):
        purgatory.try_complete_else_watch(operation, ["a"])

    def told() -> None:
        second.on = True
        assert purgatory.check_and_complete("a") == 1
        assert not purgatory.try_complete_else_watch(third, ["a"])
        assert purgatory.cancel_for_key("a") == [fourth, third]
        assert not purgatory.try_complete_else_watch(fifth, ["a"])

    fifth = Switched("fifth")
    first.told = told
    first.on = True
    assert purgatory.check_and_complete("a") == 1
    assert [one.state for one in (first, second, third, fourth)] == [Completed, Completed, Cancelled, Cancelled]
    assert (purgatory.delayed, purgatory.watched) == (1, 1)
    fifth.on = True
    assert purgatory.check_and_complete("a") == 1


@EACH_KIND
def test_one_that_raises_is_reported_and_harms_no_other(make: Make) -> None:
    timer = make.timer()
    heard: list[tuple[DelayedOperation, str]] = []
    purgatory = make(timer, on_error=lambda operation, error: heard.append((operation, str(error))))
    looks, answers, sound = Switched("looks"), Switched("answers"), Switched("sound")
    for operation in (looks, answers, sound):
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.on = True
    looks.looked = partial(fails, "look")
    answers.told = partial(fails, "answer")
    assert purgatory.check_and_complete("a") == 1
    assert heard == [(looks, "look"), (answers, "answer")]
    assert [one.state for one in (looks, answers, sound)] == [Pending, Completed, Completed]
    looks.looked = None
    timer.advance_to(1_000)
    assert (looks.answers, answers.answers, sound.answers) == (1, 1, 1)


@EACH_KIND
def test_what_the_first_look_raises_is_its_callers_and_nothing_is_kept(make: Make) -> None:
    purgatory = make(timer := make.timer())
    operation = Switched(on=True)
    operation.told = partial(fails, "no number")
    with pytest.raises(OSError, match="no number"):
        purgatory.try_complete_else_watch(operation, ["a"])
    assert (purgatory.delayed, purgatory.watched, len(timer)) == (0, 0, 0)


@EACH_KIND
def test_an_operation_is_watched_once(make: Make) -> None:
    purgatory = make(make.timer())
    purgatory.try_complete_else_watch(operation := Switched("fetch"), ["a"])
    with pytest.raises(AlreadyWatched, match="operation fetch can't be watched again; it is Pending"):
        purgatory.try_complete_else_watch(operation, ["a"])
    operation.force_complete()
    with pytest.raises(AlreadyWatched, match="it is Completed"):
        make(make.timer()).try_complete_else_watch(operation, ["a"])


@EACH_KIND
def test_it_watches_what_it_was_handed_in_with_whatever_becomes_of_the_callers_list(make: Make) -> None:
    purgatory = make(make.timer())
    purgatory.try_complete_else_watch(operation := Switched(), keys := ["a", "a", "b"])
    keys[:] = ["c"]
    assert purgatory.purge() == 0
    assert purgatory.watched == 3
    operation.on = True
    assert (purgatory.check_and_complete("c"), purgatory.check_and_complete("b")) == (0, 1)


@EACH_KIND
def test_a_timer_that_is_closed_leaves_no_operation_that_nobody_ends(make: Make) -> None:
    timer = ThreadTimer()
    timer.close()
    purgatory = make(timer)
    with pytest.raises(TimerClosed):
        purgatory.try_complete_else_watch(operation := Switched(), ["a"])
    assert (operation.state, operation.answers, purgatory.delayed) == (Cancelled, 0, 0)
    assert purgatory.purge() == 1


@EACH_KIND
def test_a_key_that_has_no_hash_leaves_no_operation_that_nobody_ends(make: Make) -> None:
    purgatory: Any = make(timer := make.timer())
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.try_complete_else_watch(operation := Switched(), ["a", []])
    assert (operation.state, operation.answers, purgatory.delayed, len(timer)) == (Cancelled, 0, 0, 0)


@EACH_KIND
@pytest.mark.parametrize(("interval", "share", "pending", "purged_at"), [(10, 0, 0, 12), (10, 0, 50, 62), (1, 0, 5, 8)])
def test_a_purge_begins_when_the_estimate_exceeds_the_pending_by_the_interval(
    make: Make, interval: int, share: float, pending: int, purged_at: int
) -> None:
    """Kafka's rule. `purged_at`: with the how manieth operation, if all but the first `pending` end at once."""
    purgatory = make(make.timer(), purge_interval=interval, purge_share=share)
    for count in range(1, purged_at + 1):
        assert purgatory.purges == 0, f"at {count}"
        purgatory.try_complete_else_watch(operation := Switched(), ["a", str(count)])
        if count > pending:
            operation.force_complete()
    assert (purgatory.purges, purgatory.watched, purgatory.delayed) == (1, 2 * (pending + 1), pending)
    assert purgatory.purged == 2 * (purged_at - pending - 1)


def test_with_many_pending_a_purge_waits_until_as_many_have_ended() -> None:
    purgatory: Purgatory[str, Switched] = Purgatory(CountedClock(), purge_interval=10, purge_share=0.5)
    for _ in range(100):
        purgatory.try_complete_else_watch(Switched(), ["a"])
    for count in range(52):
        assert purgatory.purges == 0, f"at {count}"
        purgatory.try_complete_else_watch(operation := Switched(), ["a"])
        operation.force_complete()
    assert (purgatory.purges, purgatory.purged) == (1, 51)


@EACH_KIND
def test_whatever_ends_operations_the_lists_stay_within_their_bound(make: Make) -> None:
    """S60, KAFKA-664, KAFKA-1989: a key that never has news, and operations that end elsewhere."""
    timer = make.timer()
    purgatory = make(timer, purge_interval=100)
    for count in range(5_000):
        purgatory.try_complete_else_watch(operation := Switched(timeout_ms=20), ["quiet", f"once {count}"])
        if count % 3 == 0:
            operation.force_complete()
        timer.advance_to(count)
        assert purgatory.watched <= 2 * (3 * purgatory.delayed + 100 + 2)
    assert purgatory.purges > 10
    timer.advance_to(6_000)
    purgatory.purge()
    assert (purgatory.watched, purgatory.delayed, purgatory._watchers.watched_keys()) == (0, 0, [])


def leftover_blocks(purgatory: Purgatory[str, Switched], timer: Any, operations: int, timeout_ms: int = 5) -> int:
    """How many more blocks of memory are in use after so many operations than before them. Each ends, by force or in
    its time, while they run; with a longer timeout than they take, all by force."""

    def batch(count: int) -> None:
        for one in range(count):
            purgatory.try_complete_else_watch(operation := Switched(timeout_ms=timeout_ms), ("a", "b", "c"))
            if one % 2 or timeout_ms > 5:
                operation.force_complete()
            if one % 50 == 0:
                timer.advance_to(timer.now_ms() + 1)
        timer.advance_to(timer.now_ms() + 10)
        purgatory.purge()
        gc.collect()

    batch(2_000)
    before = sys.getallocatedblocks()
    batch(operations)
    return sys.getallocatedblocks() - before


@EACH_KIND
@pytest.mark.parametrize(("operations", "timeout_ms"), [(50_000, 5), (10_000, 3_600_000)])
def test_operations_leave_the_memory_where_it_was(make: Make, operations: int, timeout_ms: int) -> None:
    assert leftover_blocks(make(timer := make.timer()), timer, operations, timeout_ms) < 200


def test_a_purgatory_that_never_purges_is_found() -> None:
    class Hoards(Purgatory[str, Switched]):
        def purge(self) -> int:
            return 0

    assert leftover_blocks(Hoards(timer := CountedClock()), timer, 4_000, 3_600_000) > 2_000


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"purge_interval": 0}, "purge_interval 0"),
        ({"purge_share": -0.1}, "purge_share -0.1"),
        ({"shards": 0}, "shards 0"),
    ],
)
def test_settings_that_cant_be_meant_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThreadedPurgatory[str, Switched](CountedClock(), **setting)


STEPS = st.one_of(
    st.tuples(st.just("watch"), st.integers(1, 30), st.sets(st.sampled_from("abc"), min_size=1), st.booleans()),
    st.tuples(st.just("news"), st.sampled_from("abc"), st.integers(0, 30)),
    st.tuples(st.just("force"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.sampled_from("abc")),
    st.tuples(st.just("advance"), st.integers(0, 40)),
    st.tuples(st.just("purge")),
)


class Model:
    """A purgatory that looks at everything each time: a list, no timer, no purge."""

    def __init__(self) -> None:
        self.rows: list[tuple[Switched, set[str], int]] = []
        self.states: list[OperationState] = []

    def pending(self, key: str | None = None) -> list[int]:
        return [
            row
            for row, (_, keys, _) in enumerate(self.rows)
            if self.states[row] is Pending and (not key or key in keys)
        ]

    def end(self, rows: list[int], end: OperationState) -> int:
        for row in rows:
            self.states[row] = end
        return len(rows)


def check_any_sequence(timer: Any, purgatory: Purgatory[str, Switched], steps: list[Any]) -> None:
    """`timer` has `advance_to`, and stands at 0."""
    model, now_ms = Model(), 0
    for step, *what in steps:
        if step == "watch":
            timeout_ms, keys, on = what
            operation = Switched(timeout_ms=timeout_ms, on=on)
            model.rows.append((operation, keys, now_ms + timeout_ms))
            model.states.append(Completed if on else Pending)
            assert purgatory.try_complete_else_watch(operation, sorted(keys)) == on
        elif step == "news":
            key, chosen = what
            for row in model.pending(key)[: chosen % 3]:
                model.rows[row][0].on = True
            rows = [row for row in model.pending(key) if model.rows[row][0].on]
            assert purgatory.check_and_complete(key) == model.end(rows, Completed)
        elif step == "force" and model.rows:
            row = what[0] % len(model.rows)
            assert model.rows[row][0].force_complete() == (model.states[row] is Pending)
            model.end([row] if model.states[row] is Pending else [], Completed)
        elif step == "cancel":
            rows = model.pending(what[0])
            assert purgatory.cancel_for_key(what[0]) == [model.rows[row][0] for row in rows]
            model.end(rows, Cancelled)
        elif step == "advance":
            timer.advance_to(now_ms := now_ms + what[0])
            model.end([row for row in model.pending() if model.rows[row][2] <= now_ms], Expired)
        elif step == "purge":
            purgatory.purge()
        assert [row[0].state for row in model.rows] == model.states
        assert purgatory.delayed == len(timer) == len(model.pending())
        assert purgatory.watched >= sum(len(model.rows[row][1]) for row in model.pending())
    assert all(
        row[0].answers == (state in (Completed, Expired)) for row, state in zip(model.rows, model.states, strict=True)
    )


@EACH_KIND
@given(steps=st.lists(STEPS, max_size=40))
def test_any_sequence_ends_the_same_operations_in_the_same_way_as_a_list_would(make: Make, steps: list[Any]) -> None:
    timer = make.timer()
    check_any_sequence(timer, make(timer, purge_interval=3), steps)
