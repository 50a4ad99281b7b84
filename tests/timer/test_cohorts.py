"""Operations that are handed in one after another for one time are one task of a virtual timer, and nobody can tell:
each is pending, cancelled, restarted and run as if it were in the timer by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.timer import AlreadyStarted, Timer, TimerTask, VirtualTimer
from controller.timer.cohort import Cohort
from controller.timer.operation import OperationState
from controller.timer.purgatory import Purgatory
from controller.timer.task import IN_BUNDLE
from tests.timer.operations import Switched
from tests.timer.test_purgatory import Behind

Pending, Completed, Expired, Cancelled = OperationState
TIMEOUT_MS = 50


def handed_in(
    purgatory: Purgatory[str, Switched], names: str, told: list[str], timeout_ms: int = TIMEOUT_MS
) -> list[Switched]:
    """An operation a letter, which watches "all" and its letter, and writes that into `told` when it answers."""
    operations = [Switched(name, timeout_ms) for name in names]
    for operation in operations:
        operation.told = partial(told.append, operation.name)
        assert not purgatory.try_complete_else_watch(operation, ["all", operation.name])
    return operations


def cohort_of(names: str) -> tuple[VirtualTimer, Purgatory[str, Switched], list[Switched], list[str]]:
    timer, told = VirtualTimer(), list[str]()
    purgatory: Purgatory[str, Switched] = Purgatory(timer)
    operations = handed_in(purgatory, names, told)
    # The first was by itself when the second came.
    assert [operation._next is IN_BUNDLE for operation in operations] == [False] + [True] * (len(names) - 1)
    return timer, purgatory, operations, told


def test_they_run_in_the_order_in_which_all_tasks_of_the_timer_were_started() -> None:
    timer, purgatory, _, told = cohort_of("abc")
    timer.call_later(TIMEOUT_MS, lambda: told.append("task"))
    handed_in(purgatory, "def", told)
    other: Purgatory[str, Switched] = Purgatory(timer)
    handed_in(other, "g", told)
    handed_in(purgatory, "hij", told)
    assert (len(timer), purgatory.delayed) == (11, 9)
    assert timer.advance_to(TIMEOUT_MS - 1) == 0
    assert timer.advance_to(TIMEOUT_MS) == 11
    assert told == [*"abc", "task", *"defghij"]
    assert (len(timer), purgatory.delayed, purgatory.purges) == (0, 0, 0)


def test_each_is_a_task_of_the_timer_for_whoever_asks() -> None:
    timer, purgatory, (a, b, c, d, e), told = cohort_of("abcde")
    assert [(one.pending, one.due_ms) for one in (a, c)] == [(True, TIMEOUT_MS)] * 2
    with pytest.raises(AlreadyStarted, match="due at 50 ms"):
        timer.start(c, 1)
    assert (timer.cancel(b), timer.cancel(b), b.pending) == (True, False, False)
    timer.restart(c, 2 * TIMEOUT_MS)
    assert d.force_complete()
    assert (d.pending, timer.cancel(d), len(timer)) == (False, False, 3)
    assert timer.advance_to(TIMEOUT_MS) == 2
    assert (told, purgatory.delayed, len(timer)) == (["d", "a", "e"], 2, 1)
    timer.advance_to(2 * TIMEOUT_MS)
    assert (told, b.state, purgatory.delayed) == (["d", "a", "e", "c"], Pending, 1)
    b.on = True
    assert purgatory.check_and_complete("b") == 1, "out of the timer, but watched"
    assert (a.expirations, d.expirations, e.expirations) == (1, 0, 1)


@pytest.mark.parametrize("let_in", [False, True])
def test_an_answer_ends_cancels_and_restarts_those_that_come_after_it(let_in: bool) -> None:
    timer, purgatory, (a, b, c, d, e, f), told = cohort_of("abcdef")
    if let_in:
        assert purgatory.check_and_complete("all") == 0
    seen: list[Any] = []

    def act() -> None:
        told.append("b")
        c.on = True
        seen.append((purgatory.check_and_complete("all"), purgatory.cancel_for_key("d"), timer.cancel(e)))
        timer.restart(f, 5)
        handed_in(purgatory, "xyz", told, 1)
        purgatory.purge()
        seen.append((len(timer), purgatory.delayed))

    b.told = act
    assert timer.advance_to(TIMEOUT_MS) == 2
    assert told == ["a", "b", "c"]
    assert seen == [(1, [d], True), (4, 5)]
    assert [one.state for one in (a, b, c, d, e, f)] == [Expired, Expired, Completed, Cancelled, Pending, Pending]
    assert timer.advance_to(TIMEOUT_MS + 100) == 4
    assert told == [*"abcxyzf"]
    assert (len(timer), purgatory.delayed) == (0, 1)
    assert purgatory.cancel_all() == [e]
    purgatory.purge()
    assert (purgatory.watched, purgatory.delayed) == (0, 0)


def test_one_that_raises_is_reported_by_name_and_what_ends_the_program_leaves_the_rest_ready() -> None:
    heard: list[tuple[TimerTask, str]] = []
    timer, told = VirtualTimer(on_error=lambda task, error: heard.append((task, str(error)))), list[str]()
    purgatory: Purgatory[str, Switched] = Purgatory(timer)
    _, b, c, _ = handed_in(purgatory, "abcd", told)

    def fail(error: BaseException) -> None:
        raise error

    b.told = partial(fail, OSError("planted"))
    c.told = partial(fail, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        timer.advance_to(TIMEOUT_MS)
    assert (heard, told, len(timer), purgatory.delayed) == ([(b, "planted")], ["a"], 1, 1)
    assert timer.advance_to(TIMEOUT_MS) == 1
    assert (told, len(timer), purgatory.delayed) == (["a", "d"], 0, 0)


def cohorts_in(timer: VirtualTimer) -> int:
    buckets, wheel = [timer._fresh], timer._lowest
    buckets += wheel.buckets
    while wheel.above is not None:
        wheel = wheel.above
        buckets += wheel.buckets
    found = 0
    for bucket in buckets:
        task = bucket._next
        while task is not None and task is not bucket:
            found += isinstance(task, Cohort)
            task = task._next
    return found


@pytest.mark.parametrize("news", [False, True])
def test_a_purge_takes_cohorts_of_which_all_have_ended_out_of_the_timer(news: bool) -> None:
    """S60: of a long timeout there would be one a tick until it is over."""
    timer = VirtualTimer()
    purgatory: Purgatory[str, Switched] = Purgatory(timer, purge_interval=10)
    for tick in range(100):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abc", [], 3_600_000):
            operation.force_complete()
        if news:
            purgatory.check_and_complete("all")
    timer.advance_to(100)
    assert purgatory.purges > 5
    assert cohorts_in(timer) < 15
    purgatory.purge()
    handed_in(purgatory, "ab", [], 3_600_000)
    assert cohorts_in(timer) <= 2, "the last one stays, and the new one"


def test_what_a_cohort_lets_go_needs_no_purge_and_is_counted_as_gone() -> None:
    timer = VirtualTimer()
    purgatory: Purgatory[str, Switched] = Purgatory(timer, purge_interval=100, purge_share=0)
    for tick in range(200):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abcde", [], 10):
            operation.force_complete()
        assert purgatory.watched <= 2 * 5 * 12
    assert purgatory.purges == 1, "for the first of all, which is in no cohort"
    for tick in range(200, 230):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abcde", [], 10_000):
            operation.force_complete()
        assert purgatory.watched <= 2 * (100 + 5 * 13)
    assert purgatory.purges == 2


STEPS = st.one_of(
    st.tuples(st.just("watch"), st.integers(1, 6), st.sampled_from((5, 5, 5, 30, 0)), st.sampled_from("abc")),
    st.tuples(st.just("news"), st.sampled_from("abc"), st.integers(0, 30)),
    st.tuples(st.just("force"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.sampled_from("abc")),
    st.tuples(st.just("timer"), st.integers(0, 30), st.sampled_from(("cancel", "restart", "start")), st.integers(0, 9)),
    st.tuples(st.just("task"), st.sampled_from((5, 30))),
    st.tuples(st.just("advance"), st.integers(0, 12)),
    st.tuples(st.just("purge")),
)


def play(make: Callable[[VirtualTimer], Timer], steps: list[Any], reactions: dict[int, list[Any]]) -> list[Any]:
    """All that can be seen of a purgatory on such a timer, step by step."""
    timer = VirtualTimer(tick_ms=2)
    seen: list[Any] = []
    operations: list[Switched] = []
    purgatory: Purgatory[str, Switched] = Purgatory(make(timer), purge_interval=4)

    def told(number: int) -> None:
        seen.append((number, operations[number].state, timer.now_ms))
        for step in reactions.get(number, ()):
            if step[0] != "advance":
                take(*step)

    def take(what: str, *of: Any) -> None:
        if what == "watch":
            count, timeout_ms, key = of
            for _ in range(count):
                operations.append(operation := Switched(str(len(operations)), timeout_ms))
                operation.told = partial(told, len(operations) - 1)
                seen.append(purgatory.try_complete_else_watch(operation, ["all", key]))
        elif what == "news":
            if operations:
                operations[of[1] % len(operations)].on = True
            seen.append(purgatory.check_and_complete(of[0]))
        elif what == "force" and operations:
            seen.append(operations[of[0] % len(operations)].force_complete())
        elif what == "cancel":
            seen.append(list(map(repr, purgatory.cancel_for_key(of[0]))))
        elif what == "timer" and operations:
            operation = operations[of[0] % len(operations)]
            if of[1] == "cancel":
                seen.append(timer.cancel(operation))
            elif of[1] == "restart" and operation.state is Pending:
                timer.restart(operation, of[2])
            elif of[1] == "start" and operation.pending:
                with pytest.raises(AlreadyStarted):
                    timer.start(operation, of[2])
        elif what == "task":
            timer.call_later(of[0], partial(seen.append, "task"))
        elif what == "advance":
            seen.append(timer.advance_to(timer.now_ms + of[0]))
        elif what == "purge":
            purgatory.purge()
        seen.append((len(timer), purgatory.delayed, [one.pending for one in operations]))

    for step in steps:
        take(*step)
    take("advance", 100)
    seen.append([(one.state, one.answers, one.expirations) for one in operations])
    purgatory.cancel_all()
    purgatory.purge()
    seen.append((purgatory.watched, purgatory.delayed, len(timer)))
    return seen


@given(
    steps=st.lists(STEPS, max_size=30),
    reactions=st.dictionaries(st.integers(0, 12), st.lists(STEPS, min_size=1, max_size=3), max_size=4),
)
def test_with_cohorts_and_without_the_same_is_seen(steps: list[Any], reactions: dict[int, list[Any]]) -> None:
    assert play(lambda timer: timer, steps, reactions) == play(Behind, steps, reactions)
