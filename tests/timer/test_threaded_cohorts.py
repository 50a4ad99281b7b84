"""Cohorts with threads: whatever happens between two steps of who is handed in, whoever asks for a key finds him, his
time comes, and nothing is left anywhere.

Steps are forced apart (`threaded_world`), and by the operations' own methods. A check takes the kind
of purgatory it is to look at, so that it can be given one with a step left out or done in the wrong order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

from controller.timer import COMPILED, threaded_purgatory
from controller.timer.operation import CANCELLED, COMPLETED, EXPIRED, PENDING
from controller.timer.threaded import TimerClosed
from controller.timer.threaded_cohort import ThreadedCohort
from controller.timer.threaded_purgatory import ThreadedPurgatory
from tests.timer.driven import Driven
from tests.timer.operations import Switched
from tests.timer.test_purgatory_threads import LIMIT_S, Aside, elsewhere, everything
from tests.timer.threaded_world import TIMEOUT_MS, Door, Step, Steps, Stepwise, joins_at, world_of

FAR_MS = 3_600_000


def check_he_joins_a_cohort_that_has_fired(kind: type[Stepwise]) -> None:
    with world_of(kind) as world:
        late = world.away(lambda: elsewhere(world.pass_time))
        world.is_over_for(world.first, world.second, late)


def check_he_joins_a_cohort_that_is_firing(kind: type[Stepwise]) -> None:
    """Its members have been read; the first of them is in its answer when he joins."""
    with world_of(kind) as world:
        firing, joined = threading.Event(), threading.Event()
        others: list[Aside] = []

        def told() -> None:
            firing.set()
            assert joined.wait(LIMIT_S)

        def time_comes() -> None:
            others.append(Aside(world.pass_time))
            assert firing.wait(LIMIT_S)

        world.second.told = told
        try:
            late = world.away(time_comes)
        finally:
            joined.set()
        others[0].finish()
        world.is_over_for(world.first, world.second, late)


def check_he_joins_a_cohort_whose_newcomers_are_entered(kind: type[Stepwise]) -> None:
    """Another cohort was opened behind it, so nobody will look for newcomers in it again."""
    with world_of(kind) as world:

        def others_come_and_news() -> None:
            world.another_cohort()
            assert world.purgatory.check_and_complete("nobody's") == 0

        late = world.away(lambda: elsewhere(others_come_and_news))
        late.on = True
        assert world.purgatory.check_and_complete("late") == 1, "overlooked"
        assert late.answers == 1


def check_he_joins_a_cohort_while_its_newcomers_are_entered(kind: type[Stepwise]) -> None:
    """The same, and he joins when they have been entered, while another thread is at the door."""
    with world_of(kind) as world:
        at_the_door, joined = threading.Event(), threading.Event()

        def entered() -> None:
            at_the_door.set()
            assert joined.wait(LIMIT_S)

        def others_come_and_news() -> None:
            elsewhere(world.another_cohort)
            world.steps.then["entered"] = entered
            others.append(Aside(lambda: world.purgatory.check_and_complete("x")))
            assert at_the_door.wait(LIMIT_S)

        others: list[Aside] = []
        try:
            # The first stands with nobody's cohort, which is entered before; the second's is the one that he has found.
            world.purgatory.check_and_complete("nobody's")
            late = world.away(others_come_and_news)
        finally:
            joined.set()
        others[0].finish()
        late.on = True
        assert world.purgatory.check_and_complete("late") == 1, "overlooked"


def check_he_joins_a_cohort_that_was_dropped(kind: type[Stepwise]) -> None:
    with world_of(kind) as world:
        for operation in (world.first, world.second):
            operation.force_complete()
        late = world.away(lambda: elsewhere(world.purgatory.purge))
        assert len(world.timer) == 1
        world.pass_time()
        world.is_over_for(late)


def check_he_joins_a_cohort_while_it_is_dropped(kind: type[Stepwise]) -> None:
    """It seemed empty."""
    with world_of(kind) as world:
        for operation in (world.first, world.second):
            operation.force_complete()
        world.purgatory.check_and_complete("all")  # those that stood with nobody's cohort are gone
        late = joins_at(world, "empty", world.purgatory.purge)
        world.pass_time()
        world.is_over_for(late)


def check_he_joins_a_cohort_while_it_is_swept(kind: type[Stepwise]) -> None:
    """It was looked through."""
    with world_of(kind) as world:
        world.purgatory.check_and_complete("nobody's")  # so that there is no cohort but this one
        late = joins_at(world, "copied", world.steps.sweep_cohorts)
        world.purgatory.purge()
        late.on = world.second.on = True
        assert world.purgatory.check_and_complete("all") == 2, "overlooked"
        world.pass_time()
        assert world.purgatory.delayed == 0


def check_he_joins_when_the_timer_is_closed(kind: type[Stepwise]) -> None:
    with world_of(kind) as world:
        late = Switched("late", TIMEOUT_MS)
        world.clock.then = lambda: elsewhere(world.timer.close)
        refused = False
        try:
            world.purgatory.try_complete_else_watch(late, ["all"])
        except TimerClosed:
            refused = True
        assert refused, "waits for a timer that is closed"
        assert (late.state, late.answers, world.purgatory.delayed) == (CANCELLED, 0, 2)


def check_news_that_are_told_while_he_joins(kind: type[Stepwise]) -> None:
    """Who tells them has asked for the key and found nobody; then he joins, and is through; then they go on."""
    with world_of(kind) as world:
        world.purgatory.check_and_complete("all")
        late = joins_at(world, "asked", lambda: world.purgatory.check_and_complete("late"), changes=True)
        assert (late.state, late.answers) == (COMPLETED, 1), "a change was missed"


def check_a_newcomer_whose_cohort_has_gone_is_found(kind: type[Stepwise]) -> None:
    """He was cancelled in the timer, so his cohort's time did not end him."""
    with world_of(kind) as world:
        assert world.timer.cancel(world.second)
        world.handed_in("third")
        world.pass_time()
        assert (world.second.state, world.purgatory.delayed) == (PENDING, 1)
        world.second.on = True
        assert world.purgatory.check_and_complete("second") == 1, "overlooked"
        world.purgatory.purge()
        assert (world.purgatory.watched, len(world.timer), world.timer._cohorts) == (0, 0, {})


def check_who_asks_while_newcomers_are_entered_misses_nobody(kind: type[Stepwise]) -> None:
    with world_of(kind) as world:
        through = threading.Event()  # the other is: at the door, or past it
        steps: Any = world.steps
        steps._door = Door(through.set)
        completed: list[int] = []
        others: list[Aside] = []

        def ask() -> None:
            completed.append(world.purgatory.check_and_complete("second"))
            through.set()

        def another_asks() -> None:
            others.append(Aside(ask))
            assert through.wait(LIMIT_S)

        world.second.on = True
        world.steps.then["entering"] = lambda: world.steps.then.update(entering=another_asks)  # of the second's cohort
        assert world.purgatory.check_and_complete("nobody's") == 0
        others[0].finish()
        assert completed == [1], "overlooked"


def check_a_cohort_that_is_dropped_before_it_is_started(kind: type[Stepwise]) -> None:
    """All in it have ended, and a purge comes, before it is in the timer: nothing of it stays there."""

    class Late(Driven):
        before: Step | None = None

        def start_cohort(self, cohort: ThreadedCohort) -> None:
            if self.before is not None:
                elsewhere(self.before)
            super().start_cohort(cohort)

    timer = Late()
    purgatory = kind(timer)
    purgatory.try_complete_else_watch(Switched(timeout_ms=FAR_MS), ["a"])
    second = Switched(timeout_ms=FAR_MS)
    timer.before = lambda: [second.force_complete(), purgatory.purge()]
    assert purgatory.try_complete_else_watch(second, ["a"])
    assert (len(timer), timer._pending, len(timer._cohorts)) == (1, 1, 0)


def check_no_answer_is_given_at_the_door(kind: type[Stepwise]) -> None:
    """S57: each member's answer waits for another thread that uses the purgatory."""
    with world_of(kind) as world:
        stuck: list[AssertionError] = []

        def calls_back() -> None:
            try:
                elsewhere(lambda: everything(world.purgatory), world.limit_s)
            except AssertionError as error:
                stuck.append(error)

        for operation in (world.first, world.second, world.handed_in("third"), world.handed_in("fourth")):
            operation.told = calls_back
        world.pass_time()
        assert not stuck, stuck[0]


def check_the_last_reference_does_not_go_at_the_door(kind: type[Stepwise]) -> None:
    """S57 by way of a finalizer: of newcomers, when they are let in, swept by a purge, and let go by their cohort."""
    with world_of(kind) as world:

        class Last(Switched):
            def __del__(self) -> None:
                gone.append(world.purgatory.check_and_complete("nobody's"))

        gone: list[int] = []

        def leave() -> None:
            for _ in range(2):
                world.purgatory.try_complete_else_watch(operation := Last("last", TIMEOUT_MS), ["last"])
                operation.force_complete()

        leave()
        elsewhere(world.purgatory.purge, world.limit_s)
        assert len(gone) == 2
        leave()
        elsewhere(world.pass_time, world.limit_s)
        world.eventually(lambda: len(gone) == 4, "kept")
        world.purgatory._alone = None
        leave()  # the first stands with a cohort that is in no timer
        world.clock.at_ms += 1
        leave()
        elsewhere(lambda: world.purgatory.check_and_complete("last"), world.limit_s)
        world.pass_time()
        world.eventually(lambda: len(gone) == 8, "kept")


CHECKS = [
    check_he_joins_a_cohort_that_has_fired,
    check_he_joins_a_cohort_that_is_firing,
    check_he_joins_a_cohort_whose_newcomers_are_entered,
    check_he_joins_a_cohort_while_its_newcomers_are_entered,
    check_he_joins_a_cohort_that_was_dropped,
    check_he_joins_a_cohort_while_it_is_dropped,
    check_he_joins_a_cohort_while_it_is_swept,
    check_he_joins_when_the_timer_is_closed,
    check_news_that_are_told_while_he_joins,
    check_a_newcomer_whose_cohort_has_gone_is_found,
    check_who_asks_while_newcomers_are_entered_misses_nobody,
    check_a_cohort_that_is_dropped_before_it_is_started,
    check_no_answer_is_given_at_the_door,
    check_the_last_reference_does_not_go_at_the_door,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_a_forced_race(check: Callable[[type[Stepwise]], None]) -> None:
    check(Stepwise)


class NeverLooks(Stepwise):
    """Joins, and does not look whether the cohort is over."""

    joins = True

    def _start_or_open(self, operation: Switched) -> None:
        self.joins = False
        super()._start_or_open(operation)
        self.joins = True

    def _open(self, operation: Switched, opened_ms: int) -> None:
        if not self.joins:
            super()._open(operation, opened_ms)


class LooksBeforeItJoins(NeverLooks):
    """Looks whether the cohort is over, and then joins."""

    def try_complete_else_watch(self, operation: Switched, keys: Collection[str]) -> bool:
        self.joins = not self._lists.last.over
        return super().try_complete_else_watch(operation, keys)


class MarksNewsLate(Stepwise):
    def check_and_complete(self, key: str) -> int:
        completed = super(ThreadedPurgatory, self).check_and_complete(key)
        self._news = object()
        return completed


class OpensWhatWasDropped(Stepwise):
    def _open(self, operation: Switched, opened_ms: int) -> None:
        timer = self._thread_timer
        assert timer is not None
        cohort = ThreadedCohort(self._lists, timer, opened_ms, operation.timeout_ms)
        cohort.members.append(operation)
        self._lists.fresh[cohort] = None
        timer.start_cohort(cohort)
        self._lists.last = cohort


class ClosesWhatIsEntered(Steps):
    """Enters newcomers, and then says that who comes must stand elsewhere."""

    def let_in(self) -> None:
        with self._door:
            for cohort in list(self.fresh):
                self._enter_newcomers_of(cohort)
                if cohort is not self.last:
                    cohort.over = True
                    del self.fresh[cohort]
                    if not cohort.out:
                        self.entered_in_timer[cohort] = None


class MarksBeforeItEnters(Steps):
    """Says that newcomers are entered, and enters them; who sees that they are does not come to the door."""

    def let_in(self) -> None:
        if all(cohort.entered == len(cohort.members) for cohort in list(self.fresh)):
            return
        super().let_in()

    def _enter_newcomers_of(self, cohort: ThreadedCohort) -> None:
        newcomers = cohort.members[cohort.entered :]
        cohort.entered = len(cohort.members)
        self.happen("entering")
        for operation in newcomers:
            self.watch(operation, operation.watches)


class SweepsAll(Steps):
    """Assigns the whole list."""

    def _sweep(self, cohort: ThreadedCohort, before: list[Switched]) -> tuple[int, int]:
        self.happen("copied")
        cohort.members[:] = [operation for operation in before if operation.state is PENDING]
        return 0, 0


class DropsWhatSeemsEmpty(Steps):
    """Says that it is over, and does not look again."""

    def _drop(self, cohort: ThreadedCohort) -> bool:
        self.happen("empty")
        cohort.over = cohort.out = True
        self.fresh.pop(cohort, None)
        self.entered_in_timer.pop(cohort, None)
        return True


class LetsGoOfNewcomers(Steps):
    """Drops a cohort whose time has come, whoever stands there."""

    def let_go(self, cohort: ThreadedCohort) -> None:
        super().let_go(cohort)
        self.fresh.pop(cohort, None)


class FreesAtTheDoor(Steps):
    def _sweep(self, cohort: ThreadedCohort, before: list[Switched]) -> tuple[int, int]:
        swept = super()._sweep(cohort, before)
        before.clear()
        return swept


class AnswersAtTheDoor(Stepwise):
    def settle(self, operation: Any, end: Any) -> bool:
        if end is EXPIRED and operation.told is not None:
            with self._lists._door:
                operation.told()
        return super().settle(operation, end)


def with_lists(lists: type[Steps]) -> type[Stepwise]:
    return type(lists.__name__, (Stepwise,), {"lists_of": lists})


FAULTS = [
    (NeverLooks, check_he_joins_a_cohort_that_has_fired),
    (NeverLooks, check_he_joins_a_cohort_that_is_firing),
    (NeverLooks, check_he_joins_a_cohort_whose_newcomers_are_entered),
    (NeverLooks, check_he_joins_a_cohort_while_its_newcomers_are_entered),
    (NeverLooks, check_he_joins_a_cohort_that_was_dropped),
    (NeverLooks, check_he_joins_when_the_timer_is_closed),
    (LooksBeforeItJoins, check_he_joins_a_cohort_that_has_fired),
    (MarksNewsLate, check_news_that_are_told_while_he_joins),
    (OpensWhatWasDropped, check_a_cohort_that_is_dropped_before_it_is_started),
    (with_lists(ClosesWhatIsEntered), check_he_joins_a_cohort_while_its_newcomers_are_entered),
    (with_lists(MarksBeforeItEnters), check_who_asks_while_newcomers_are_entered_misses_nobody),
    (with_lists(SweepsAll), check_he_joins_a_cohort_while_it_is_swept),
    (with_lists(DropsWhatSeemsEmpty), check_he_joins_a_cohort_while_it_is_dropped),
    (with_lists(LetsGoOfNewcomers), check_a_newcomer_whose_cohort_has_gone_is_found),
    (with_lists(FreesAtTheDoor), check_the_last_reference_does_not_go_at_the_door),
    (AnswersAtTheDoor, check_no_answer_is_given_at_the_door),
]


@pytest.mark.parametrize(("kind", "check"), FAULTS, ids=lambda one: str(one.__name__))
def test_a_step_that_is_left_out_is_found(kind: type[Stepwise], check: Callable[[type[Stepwise]], None]) -> None:
    with pytest.raises(AssertionError):
        check(kind)


if not COMPILED:

    class ReadsBeforeItIsOver(ThreadedCohort):
        def run(self) -> None:
            members = self.members[:]
            timer: Any = self._timer
            for operation in members:
                timer.run_of_cohort(operation)
            self.over = True

    def test_a_cohort_that_is_over_when_its_members_have_been_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
        class Plain(Stepwise):
            """So that it is not waited for as long as for a sound one."""

        monkeypatch.setattr(threaded_purgatory, "ThreadedCohort", ReadsBeforeItIsOver)
        with pytest.raises(AssertionError, match="never expires"):
            check_he_joins_a_cohort_that_is_firing(Plain)
