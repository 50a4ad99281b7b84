"""One of a cohort of a timer with a thread is a task of that for whoever asks, and the cohort is nobody's business."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.timer import AlreadyStarted, TimerTask, VirtualTimer
from controller.timer.operation import CANCELLED, COMPLETED, EXPIRED, PENDING
from controller.timer.task import IN_COHORT
from controller.timer.threaded_purgatory import ThreadedPurgatory
from tests.sync_points import Script, installed
from tests.timer.driven import Driven
from tests.timer.operations import Switched
from tests.timer.test_purgatory import STEPS, check_any_sequence
from tests.timer.test_purgatory_threads import LIMIT_S
from tests.timer.test_threaded import wait_until
from tests.timer.threaded_world import TIMEOUT_MS, Stepwise, world_of

FAR_MS = 3_600_000
Shared = ThreadedPurgatory[str, Switched]


def handed_in(
    purgatory: Shared, names: str, told: list[str] | None = None, timeout_ms: int = TIMEOUT_MS
) -> list[Switched]:
    """An operation a letter, which watches "all" and its letter, and writes that into `told` when it answers."""
    operations = [Switched(name, timeout_ms) for name in names]
    for operation in operations:
        if told is not None:
            operation.told = partial(told.append, operation.name)
        assert not purgatory.try_complete_else_watch(operation, ["all", operation.name])
    return operations


def test_each_is_a_task_of_the_timer_for_whoever_asks() -> None:
    told: list[str] = []
    purgatory: Shared = ThreadedPurgatory(timer := Driven())
    a, b, c, d, e = operations = handed_in(purgatory, "abcde", told)
    assert [operation._next is IN_COHORT for operation in operations] == [False] + [True] * 4
    assert [(one.pending, one.due_ms) for one in (a, c)] == [(True, TIMEOUT_MS)] * 2
    with pytest.raises(AlreadyStarted, match="due at 50 ms"):
        timer.start(c, 1)
    assert (timer.cancel(b), timer.cancel(b), b.pending) == (True, False, False)
    timer.restart(c, 2 * TIMEOUT_MS)
    assert d.force_complete()
    assert (d.pending, timer.cancel(d), len(timer)) == (False, False, 3)
    timer.advance_to(TIMEOUT_MS)
    assert (told, purgatory.delayed, len(timer)) == (["d", "a", "e"], 2, 1)
    timer.start(e, 1)  # which has ended, and does nothing
    timer.advance_to(2 * TIMEOUT_MS)
    assert (told, b.state, purgatory.delayed) == (["d", "a", "e", "c"], PENDING, 1)
    b.on = True
    assert purgatory.check_and_complete("b") == 1, "out of the timer, but watched"
    assert [one.expirations for one in operations] == [1, 0, 1, 0, 1]
    assert (len(timer), timer._pending, len(timer._cohorts)) == (0, 0, 0)


def test_one_that_has_ended_may_be_started_again_anywhere() -> None:
    purgatory: Shared = ThreadedPurgatory(timer := Driven())
    _, b, c, d = handed_in(purgatory, "abcd")
    for operation in (b, c, d):
        assert operation.force_complete()
    virtual = VirtualTimer()
    virtual.start(b, 5)
    timer.start(c, 5)
    timer.restart(d, 5)
    assert (b.pending, c.pending, d.pending, len(virtual), len(timer)) == (True, True, True, 1, 3)
    assert virtual.advance_to(5) == 1
    timer.advance_to(TIMEOUT_MS)
    assert (len(timer), timer._pending, [one.answers for one in (b, c, d)]) == (0, 0, [1, 1, 1])


def test_an_answer_ends_cancels_and_restarts_those_that_come_after_it() -> None:
    told: list[str] = []
    purgatory: Shared = ThreadedPurgatory(timer := Driven())
    a, b, c, d, e, f = handed_in(purgatory, "abcdef", told)

    def act() -> None:
        told.append("b")
        c.on = True
        assert (purgatory.check_and_complete("all"), purgatory.cancel_for_key("d"), timer.cancel(e)) == (1, [d], True)
        timer.restart(f, 5)
        handed_in(purgatory, "xyz", told, 1)
        purgatory.purge()
        assert (len(timer), purgatory.delayed) == (4, 5)

    b.told = act
    timer.advance_to(TIMEOUT_MS)
    assert told == ["a", "b", "c"]
    assert [one.state for one in (a, b, c, d, e, f)] == [EXPIRED, EXPIRED, COMPLETED, CANCELLED, PENDING, PENDING]
    timer.advance_to(TIMEOUT_MS + 10)
    assert told == [*"abcxyzf"]
    assert (len(timer), purgatory.cancel_all()) == (0, [e])
    purgatory.purge()
    assert (purgatory.watched, purgatory.delayed, len(timer._cohorts)) == (0, 0, 0)


def test_one_that_is_about_to_run_is_cancelled_too_late_and_the_next_one_in_time() -> None:
    """The timer's thread is held when it has taken a member of a cohort and not run it."""
    with installed(Script(LIMIT_S)) as script, world_of(Stepwise) as world:
        timer, b, c = world.timer, world.second, world.handed_in("third")
        hold = script.hold("timer: task taken", nth=3)  # the first, which is by itself; the cohort; its first
        world.clock.at_ms += TIMEOUT_MS
        timer.start(TimerTask(), 0)  # which wakes the thread
        with hold:
            assert (timer.cancel(b), timer.cancel(c), b.pending, c.pending) == (False, True, False, False)
        wait_until(lambda: b.expirations == 1 and not timer._cohorts and len(timer) == 0)
        assert (c.state, world.purgatory.delayed) == (PENDING, 1)


def test_one_that_raises_is_reported_by_name_and_harms_no_other() -> None:
    heard: list[tuple[TimerTask, str]] = []
    purgatory: Shared = ThreadedPurgatory(timer := Driven())
    timer._on_error = lambda task, error: heard.append((task, str(error)))
    told: list[str] = []
    _, b, c = handed_in(purgatory, "abc", told)

    def fails() -> None:
        raise OSError("planted")

    b.told = fails
    timer.advance_to(TIMEOUT_MS)
    assert (heard, told, c.state, len(timer)) == ([(b, "planted")], ["a", "c"], EXPIRED, 0)


def test_a_timer_that_is_closed_by_an_answer_runs_no_other_and_the_rest_can_be_cancelled() -> None:
    purgatory: Shared = ThreadedPurgatory(timer := Driven())
    _, b, c, d = handed_in(purgatory, "abcd")
    b.told = timer.close
    timer.advance_to(TIMEOUT_MS)
    assert [(one.state, one.pending) for one in (b, c, d)] == [(EXPIRED, False), (PENDING, True), (PENDING, True)]
    assert (len(timer), timer.cancel(c), len(timer)) == (2, True, 1)
    assert purgatory.cancel_all() == [c, d]
    assert len(timer) == 0


@pytest.mark.parametrize("news", [False, True])
def test_a_purge_takes_cohorts_of_which_all_have_ended_out_of_the_timer(news: bool) -> None:
    """S60: of a long timeout there would be one a tick until it is over."""
    purgatory: Shared = ThreadedPurgatory(timer := Driven(), purge_interval=10)
    for tick in range(100):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abc", timeout_ms=FAR_MS):
            operation.force_complete()
        if news:
            purgatory.check_and_complete("all")
    assert purgatory.purges > 5
    lists = purgatory._lists
    assert max(len(timer._cohorts), len(lists.fresh) + len(lists.entered_in_timer)) < 15
    purgatory.purge()
    assert (len(timer._cohorts), timer._pending, len(lists.entered_in_timer)) == (0, 0, 0)
    assert len(lists.fresh) <= 1, "the last one, if it is in no timer"


@pytest.mark.parametrize(("timeouts", "stay"), [((10,), False), ((10, 10, 20), True)])
def test_of_one_timeout_nobody_stays_behind_of_several_until_a_purge(timeouts: tuple[int, ...], stay: bool) -> None:
    """Who is in the timer by itself may outlive the cohort with which it stands."""
    purgatory: Shared = ThreadedPurgatory(timer := Driven(), purge_interval=100)
    for tick in range(300):
        timer.advance_to(tick)
        for timeout_ms in timeouts:
            handed_in(purgatory, "ab", timeout_ms=timeout_ms)
        assert purgatory.watched <= 2 * (3 * purgatory.delayed + 100 + 2)
        assert len(purgatory._lists.fresh) <= 12 + (3 * purgatory.delayed + 100 if stay else 0)
    assert (purgatory.purges > 0) == stay


def test_what_a_cohort_lets_go_needs_no_purge_and_is_counted_as_gone() -> None:
    purgatory: Shared = ThreadedPurgatory(timer := Driven(), purge_interval=300, purge_share=0)
    for tick in range(200):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abcdefghij", timeout_ms=10):
            operation.force_complete()
        assert purgatory.watched <= 2 * (10 * 12 + 10)
        assert len(purgatory._lists.fresh) <= 13
    assert purgatory.purges == 0
    for tick in range(200, 300):
        timer.advance_to(tick)
        for operation in handed_in(purgatory, "abcdefghij", timeout_ms=10_000):
            operation.force_complete()
        assert purgatory.watched <= 2 * (300 + 10 * 13)
    assert purgatory.purges >= 2


def leftover_blocks(timeout_ms: int, operations: int) -> int:
    purgatory: Shared = ThreadedPurgatory(timer := Driven())

    def batch(count: int) -> None:
        for number in range(count):
            purgatory.try_complete_else_watch(operation := Switched(timeout_ms=timeout_ms), ("a", "b", "c"))
            if number % 2 or timeout_ms == FAR_MS:
                operation.force_complete()
            if number % 50 == 0:
                timer.advance_to(timer.at_ms + 1)
        timer.advance_to(timer.at_ms + 10)
        purgatory.purge()

    batch(2_000)
    before = sys.getallocatedblocks()
    batch(operations)
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize(("operations", "timeout_ms"), [(20_000, 5), (10_000, FAR_MS)])
def test_operations_leave_the_memory_where_it_was(operations: int, timeout_ms: int) -> None:
    assert leftover_blocks(timeout_ms, operations) < 200


@given(steps=st.lists(STEPS, max_size=40))
def test_any_sequence_ends_the_same_operations_in_the_same_way_as_a_list_would(steps: list[Any]) -> None:
    timer = Driven()
    purgatory: Shared = ThreadedPurgatory(timer, purge_interval=3)
    # Each comes three times, so that cohorts are made; the list knows of one, two just wait for their time or a purge.
    original = purgatory.try_complete_else_watch
    others: list[Switched] = []

    def thrice(operation: Switched, keys: Any) -> bool:
        for _ in range(2):
            others.append(other := Switched(timeout_ms=operation.timeout_ms, on=operation.on))
            original(other, ["others"])
        return original(operation, keys)

    class Seen:
        """The purgatory and the timer without those others."""

        def __getattr__(self, name: str) -> Any:
            return getattr(purgatory, name)

        try_complete_else_watch = staticmethod(thrice)

        @property
        def delayed(self) -> int:
            return purgatory.delayed - sum(other.state is PENDING for other in others)

        def advance_to(self, now_ms: int) -> None:
            timer.advance_to(now_ms)

        def __len__(self) -> int:
            return len(timer) - sum(other.state is PENDING for other in others)

    seen: Any = Seen()
    check_any_sequence(seen, seen, steps)
    timer.advance_to(timer.at_ms + 50)
    assert all(other.answers == 1 for other in others)
    purgatory.cancel_all()
    purgatory.purge()
    assert (purgatory.delayed, purgatory.watched, len(timer), timer._pending, len(timer._cohorts)) == (0, 0, 0, 0, 0)
