"""The purgatory under threads: forced races, each of which a purgatory with that very fault must lose.

Threads are held by the operations' own methods and by the timer, which are the tests'. A check takes the kind of
purgatory it is to look at, so that it can be given a wrong one.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from controller.labs.thread_timer import ThreadTimer
from controller.labs.threaded_purgatory import ShardedWatchLists, ThreadedPurgatory
from controller.labs.virtual_timer import VirtualTimer
from controller.timer import TimerTask
from controller.timer.purgatory import CANCELLED, COMPLETED, EXPIRED, PENDING, DelayedOperation, OperationState
from tests.timer.operations import Switched

LIMIT_S = 20.0
STUCK_S = 0.5
"""How long a planted deadlock is waited for; a sound purgatory waits for nobody."""
FAR_MS = 3_600_000

Shared = ThreadedPurgatory[str, Switched]


class Aside:
    """`work` on another thread from now on. What it raises is for `finish` to raise, so that a thread which was given
    up, and finds a timer that was closed meanwhile, disturbs nobody."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the test waits
            self._errors.append(error)

    def finish(self, limit_s: float = LIMIT_S) -> None:
        """Waits for its end. AssertionError if it does not come to one."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "another thread waits for this one, which waits for it"
        if self._errors:
            raise self._errors[0]


def elsewhere(work: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Does `work` on another thread, to its end, as `Aside` does."""
    Aside(work).finish(limit_s)


def check_a_change_during_a_look_is_seen(kind: type[Shared]) -> None:
    """S58, KAFKA-6653: A has looked and seen nothing; the condition comes true; B's news find A still in the look."""
    purgatory = kind(VirtualTimer())
    operation = Switched()
    purgatory.try_complete_else_watch(operation, ["a"])

    def changed_behind_the_look() -> None:
        operation.looked = None
        operation.on = True
        elsewhere(lambda: purgatory.check_and_complete("a"))

    operation.looked = changed_behind_the_look
    purgatory.check_and_complete("a")
    assert operation.state is COMPLETED, "a change was missed"
    assert operation.answers == 1


def check_a_change_before_the_watch_is_seen(kind: type[Shared]) -> None:
    """The condition comes true after the first look, and its news come before anybody stands in the list."""
    purgatory = kind(VirtualTimer())
    operation = Switched()

    def changed_behind_the_look() -> None:
        operation.looked = None
        operation.on = True
        elsewhere(lambda: purgatory.check_and_complete("a"))

    operation.looked = changed_behind_the_look
    assert purgatory.try_complete_else_watch(operation, ["a"])
    assert (operation.state, operation.answers) == (COMPLETED, 1)


class LateTimer:
    """Something happens on another thread just before a callback is set."""

    def __init__(self) -> None:
        self.timer = VirtualTimer()
        self.before_start: Callable[[], object] | None = None

    def __len__(self) -> int:
        return len(self.timer)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> TimerTask:
        if self.before_start is not None:
            elsewhere(self.before_start)
        return self.timer.call_later(delay_ms, callback)


def check_what_ends_before_its_start_leaves_the_timer(kind: type[Shared]) -> None:
    """S60: else a completed operation would lie in the timer until its time."""
    timer = LateTimer()
    purgatory = kind(timer)
    operation = Switched(timeout_ms=FAR_MS)
    timer.before_start = operation.force_complete
    assert purgatory.try_complete_else_watch(operation, ["a"])
    assert (len(timer), purgatory.delayed, operation.answers) == (0, 0, 1)


def check_who_comes_first_is_the_only_one(kind: type[Shared]) -> None:
    """Completion, expiry and cancellation at the same moment, many times: one answer, or one cancellation, in all."""
    purgatory = kind(VirtualTimer())
    for turn in range(100):
        operation = Switched()
        purgatory.try_complete_else_watch(operation, ["a"])
        cancelled: list[Switched] = []
        works: list[Callable[[], object]] = [operation.force_complete, operation.expire]
        works.append(partial(lambda into: into.extend(purgatory.cancel_for_key("a")), cancelled))
        together(works[turn % 3 :] + works[: turn % 3])
        assert operation.answers + len(cancelled) == 1, f"ended {operation.answers + len(cancelled)} times"
        assert operation.expirations == (operation.state is EXPIRED)
        assert len(cancelled) == (operation.state is CANCELLED)
        assert purgatory.delayed == 0


def together(works: list[Callable[[], object]]) -> None:
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        ready.wait(LIMIT_S)
        work()

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def everything(purgatory: Shared) -> None:
    """Every call there is, with an answer in it."""
    mine = Switched("mine", FAR_MS)
    purgatory.try_complete_else_watch(mine, ["a", "b"])
    mine.on = True
    purgatory.check_and_complete("a")
    purgatory.try_complete_else_watch(Switched(timeout_ms=FAR_MS), ["b", "mine"])
    purgatory.cancel_for_key("mine")
    purgatory.purge()
    assert purgatory.watched >= 0


def check_no_answer_is_given_under_a_lock(kind: type[Shared]) -> None:
    """S57, KAFKA-3994, KAFKA-6042: each method of an operation waits for another thread that uses the purgatory for
    the same keys, which would wait for the first if that held anything."""
    purgatory = kind(timer := VirtualTimer())
    stuck: list[AssertionError] = []

    def calls_back() -> None:
        try:
            elsewhere(lambda: everything(purgatory), STUCK_S if kind is not ThreadedPurgatory else LIMIT_S)
        except AssertionError as error:  # which the purgatory would report, as of any operation, and go on
            stuck.append(error)

    first, news, expires, looks, forced = (Switched(timeout_ms=50) for _ in range(5))
    first.on = True
    for operation in (first, news, expires, forced):
        operation.told = calls_back

    def looked() -> None:
        looks.looked = None  # news told within each look would have it look again for ever
        calls_back()

    looks.looked = looked
    for operation in (first, news, expires, forced, looks):
        purgatory.try_complete_else_watch(operation, ["a", "b"])
    news.on = True
    purgatory.check_and_complete("a")
    forced.force_complete()
    timer.advance_to(100)
    assert not stuck, stuck[0]
    assert [one.answers for one in (first, news, expires, looks, forced)] == [1] * 5


def check_two_groups_may_answer_each_other(kind: type[Shared]) -> None:
    """S57 as it happened: both threads are in an answer, and each completes the other's key."""
    purgatory = kind(VirtualTimer())
    inside = threading.Barrier(2)
    groups = {key: [Switched(key), Switched(f"{key} too")] for key in "ab"}
    for key, (one, two) in groups.items():
        for operation in (one, two):
            purgatory.try_complete_else_watch(operation, [key])
        one.on = True

    def told(other: str) -> None:
        inside.wait(LIMIT_S)
        groups[other][1].on = True
        purgatory.check_and_complete(other)

    groups["a"][0].told = lambda: told("b")
    groups["b"][0].told = lambda: told("a")
    together([lambda: purgatory.check_and_complete("a"), lambda: purgatory.check_and_complete("b")])
    assert [operation.answers for group in groups.values() for operation in group] == [1, 1, 1, 1]


CHECKS = [
    check_a_change_during_a_look_is_seen,
    check_a_change_before_the_watch_is_seen,
    check_what_ends_before_its_start_leaves_the_timer,
    check_who_comes_first_is_the_only_one,
    check_no_answer_is_given_under_a_lock,
    check_two_groups_may_answer_each_other,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_a_forced_race(check: Callable[[type[Shared]], None]) -> None:
    check(ThreadedPurgatory)


class NobodyLooksAgain(Shared):
    """Finds another thread in the look, and goes (KAFKA-6653 as it was)."""

    def _try(self, operation: Switched) -> bool:
        if operation in self._trying:
            return False
        self._trying.add(operation)
        try:
            return operation.try_complete()
        finally:
            self._trying.discard(operation)


class MarksNoNews(Shared):
    """Tells news without a word to those who are about to stand in the lists."""

    def check_and_complete(self, key: str) -> int:
        return super(ThreadedPurgatory, self).check_and_complete(key)


class AsOnOneThread(Shared):
    """Looks once, before it watches, and starts whatever happened."""

    def try_complete_else_watch(self, operation: Switched, keys: Any) -> bool:
        if operation.try_complete():
            return True
        operation.arbiter = self
        self._pending[operation] = None
        self._lists.watch(operation, keys)
        operation.timer = self._timer.call_later(operation.timeout_ms, operation.expire)
        return operation.state is not PENDING


class NotInOneStep(Shared):
    """Looks whether it is pending, and then says that it is not."""

    def settle(self, operation: DelayedOperation, end: OperationState) -> bool:
        if operation.state is not PENDING:
            return False
        wait_a_turn()
        operation.state = end
        self._pending.pop(operation, None)
        return True


def wait_a_turn() -> None:
    threading.Event().wait(0.001)


class AnswersUnderTheGuard(Shared):
    """Completes under the lock that is for whose turn it is; its own thread may enter it again."""

    def __init__(self, timer: Any) -> None:
        super().__init__(timer)
        self._guard = threading.RLock()  # type: ignore[assignment]

    def _try(self, operation: Switched) -> bool:
        with self._guard:
            return super()._try(operation)


class TellsUnderTheShard(Shared):
    """Tells news while it holds the watch list's lock."""

    def __init__(self, timer: Any) -> None:
        super().__init__(timer, shards=1)
        lists: Any = self._watchers
        self._only = lists._locks[0] = threading.RLock()

    def check_and_complete(self, key: str) -> int:
        with self._only:
            return super().check_and_complete(key)


@pytest.mark.parametrize(
    ("kind", "check", "message"),
    [
        (NobodyLooksAgain, check_a_change_during_a_look_is_seen, "a change was missed"),
        (MarksNoNews, check_a_change_before_the_watch_is_seen, "assert"),
        (AsOnOneThread, check_a_change_before_the_watch_is_seen, "assert"),
        (AsOnOneThread, check_what_ends_before_its_start_leaves_the_timer, "assert"),
        (NotInOneStep, check_who_comes_first_is_the_only_one, "ended [23] times"),
        (AnswersUnderTheGuard, check_no_answer_is_given_under_a_lock, "waits"),
        (TellsUnderTheShard, check_no_answer_is_given_under_a_lock, "waits"),
    ],
)
def test_a_planted_race_is_lost(kind: type[Shared], check: Callable[[type[Shared]], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(kind)


def check_the_last_reference_does_not_go_under_a_lock(kind: type[Shared]) -> None:
    """What an operation holds may, as it goes, use the purgatory: S57 by way of a finalizer."""
    purgatory = kind(VirtualTimer(), shards=1)

    class Last(Switched):
        def __del__(self) -> None:
            gone.append(purgatory.check_and_complete("a"))

    gone: list[int] = []
    for _ in range(2):
        purgatory.try_complete_else_watch(operation := Last(), ["a"])
        purgatory.check_and_complete("b")  # it stands in the list of its key
        operation.force_complete()
        del operation
    elsewhere(purgatory.purge, STUCK_S if kind is not ThreadedPurgatory else LIMIT_S)
    purgatory.try_complete_else_watch(Last(), ["a"])
    elsewhere(lambda: purgatory.cancel_for_key("a"))
    assert gone == [0, 0, 0]


def test_the_last_reference_to_an_operation_does_not_go_under_a_lock() -> None:
    check_the_last_reference_does_not_go_under_a_lock(ThreadedPurgatory)


class SweptUnderTheShard(ShardedWatchLists[str, Switched]):
    def sweep(self, key: str) -> int:
        with self._lock_of(key):
            return super(ShardedWatchLists, self).sweep(key)


class SweepsUnderTheShard(Shared):
    def __init__(self, timer: Any, shards: int) -> None:
        super().__init__(timer)
        self._watchers = self._lists = SweptUnderTheShard(shards)


def test_a_last_reference_that_goes_under_a_lock_is_found() -> None:
    with pytest.raises(AssertionError, match="waits"):
        check_the_last_reference_does_not_go_under_a_lock(SweepsUnderTheShard)


@contextmanager
def often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def churn(purgatory: Shared, seed: int, operations: int) -> list[Switched]:
    """Watches, changes conditions, tells, completes and cancels under few keys."""
    rng = random.Random(seed)
    made: list[Switched] = []
    for _ in range(operations):
        operation = Switched(timeout_ms=rng.choice([0, 1, 2, 5, FAR_MS]))
        made.append(operation)
        purgatory.try_complete_else_watch(operation, rng.sample("abcdef", 3))
        other = rng.choice(made)
        chance = rng.random()
        if chance < 0.4:
            other.on = True
            purgatory.check_and_complete(rng.choice("abcdef"))
        elif chance < 0.6:
            other.force_complete()
        elif chance < 0.65:
            purgatory.cancel_for_key(rng.choice("abcdef"))
    return made


def check_churn(kind: type[Shared], operations: int) -> None:
    """Four threads and the timer's own: each operation ends once, and nothing is left anywhere."""
    timer = ThreadTimer()
    purgatory = kind(timer, purge_interval=50)
    made: list[Switched] = []
    try:
        with often_switched():
            together([partial(lambda seed: made.extend(churn(purgatory, seed, operations)), seed) for seed in range(4)])
            for key in "abcdef":
                purgatory.check_and_complete(key)
            purgatory.cancel_all()
    finally:
        timer.close()
    assert len(made) == 4 * operations
    for operation in made:
        assert operation.state is not PENDING
        assert operation.answers == (operation.state is not CANCELLED)
        assert operation.expirations == (operation.state is EXPIRED)
        assert operation not in purgatory._trying
    assert {operation.state for operation in made} == {COMPLETED, EXPIRED, CANCELLED}
    purgatory.purge()
    assert (purgatory.delayed, purgatory.watched, len(timer), len(purgatory._asked_again)) == (0, 0, 0, 0)
    assert purgatory.purges > 2


def test_many_threads_end_each_operation_once_and_leave_nothing() -> None:
    check_churn(ThreadedPurgatory, 1_500)


def test_many_threads_find_a_settlement_that_takes_two_steps() -> None:
    with pytest.raises(AssertionError):
        check_churn(NotInOneStep, 100)


def test_a_step_of_the_wall_clock_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """S61, KAFKA-4051: the purgatory has no clock, and its timer's is monotonic."""
    timer = ThreadTimer()
    purgatory: Shared = ThreadedPurgatory(timer)
    over = threading.Event()
    late, soon = Switched(timeout_ms=FAR_MS), Switched(timeout_ms=20)
    soon.told = over.set
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 1e12)
        patch.setattr("time.time_ns", lambda: 10**21)
        for operation in (late, soon):
            purgatory.try_complete_else_watch(operation, ["a"])
        assert over.wait(LIMIT_S)
    timer.close()
    assert (late.state, soon.state) == (PENDING, EXPIRED)
