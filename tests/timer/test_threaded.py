"""The timer with a thread: each task exactly once whoever comes when, no lock held meanwhile, no wake for nothing.

The races are forced: the timer's thread is held at a named point, or its lock is held by the test. What each check is
for is planted in a timer that does it wrong, and must be caught.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from controller.labs.thread_timer import ThreadTimer, TimerClosed, monotonic_ms
from controller.timer import AlreadyStarted, TimerTask
from controller.timer.wheel import NEVER_MS, TimingWheel
from tests.sync_points import Script, installed

LIMIT_S = 20.0
SOON_S = 2.0
"""How long a timer with a planted fault is waited for."""
FAR_MS = 3_600_000


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "not within the limit"
        time.sleep(0.001)


class Counted(TimerTask):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0
        self.ran = threading.Event()
        self.at_ms = 0

    def run(self) -> None:
        self.runs += 1
        self.at_ms = monotonic_ms()
        self.ran.set()


@contextmanager
def timer_of(kind: type[ThreadTimer] = ThreadTimer) -> Iterator[ThreadTimer]:
    timer = kind()
    try:
        yield timer
    finally:
        timer.close()


def test_tasks_run_when_due_and_not_before() -> None:
    with timer_of() as timer:
        tasks = [(Counted(), delay_ms) for delay_ms in (0, 1, 5, 30, 70, -5)]
        starts = []
        for task, delay_ms in tasks:
            starts.append(monotonic_ms())
            timer.start(task, delay_ms)
        for (task, delay_ms), started_ms in zip(tasks, starts, strict=True):
            assert task.ran.wait(LIMIT_S)
            assert task.at_ms >= started_ms + delay_ms
        assert [task.runs for task, _ in tasks] == [1] * len(tasks)
        assert len(timer) == 0


def test_an_earlier_task_wakes_the_thread() -> None:
    with timer_of() as timer:
        timer.start(late := Counted(), FAR_MS)
        wait_until(lambda: timer._sleeps_until_ms > 0)
        timer.start(soon := Counted(), 1)
        assert soon.ran.wait(LIMIT_S)
        assert (late.runs, late.pending, len(timer)) == (0, True, 1)


def test_an_idle_timer_does_not_wake() -> None:
    """Nothing started: asleep for good. One far task: asleep until the first coarse bucket. All cancelled: the same."""
    with timer_of() as timer:
        wait_until(lambda: timer._sleeps_until_ms == NEVER_MS)
        far = [TimerTask() for _ in range(100)]
        for task in far:
            timer.start(task, FAR_MS)
        wait_until(lambda: 0 < timer._sleeps_until_ms < NEVER_MS)
        assert timer._sleeps_until_ms > monotonic_ms() + 1_000
        wakes = timer.wakes
        assert all(timer.cancel(task) for task in far)
        timer.start(soon := Counted(), 2)
        assert soon.ran.wait(LIMIT_S)
        wait_until(lambda: timer._sleeps_until_ms == NEVER_MS)  # and not until an emptied bucket's time
        assert timer.wakes - wakes <= 3


def test_a_task_may_start_cancel_and_restart_itself_and_others() -> None:
    with timer_of() as timer:
        again = 3
        done = threading.Event()
        victim, moved = Counted(), Counted()

        def act() -> None:
            nonlocal again
            again -= 1
            if again:
                timer.start(self, 1)
                return
            assert timer.cancel(victim)
            timer.restart(moved, 1)
            assert not timer.cancel(self)
            done.set()

        self = TimerTask(act)
        timer.start(victim, FAR_MS)
        timer.start(moved, FAR_MS)
        timer.start(self, 0)
        assert done.wait(LIMIT_S)
        assert moved.ran.wait(LIMIT_S)
        assert (victim.runs, moved.runs, len(timer)) == (0, 1, 0)


def test_an_exception_is_reported_and_harms_no_other() -> None:
    reported: list[tuple[TimerTask, Exception]] = []

    def report(task: TimerTask, error: Exception) -> None:
        reported.append((task, error))
        raise RuntimeError("the report fails too")

    def fail() -> None:
        raise ValueError("planted")

    timer = ThreadTimer(on_error=report)
    timer.start(failing := TimerTask(fail), 0)
    timer.start(other := Counted(), 1)
    assert other.ran.wait(LIMIT_S)
    assert [(task, str(error)) for task, error in reported] == [(failing, "planted")]
    timer.close()


def test_no_task_runs_under_the_lock() -> None:
    """S57: a task waits for another thread that needs the timer."""
    with timer_of() as timer:
        helped = threading.Event()

        def need_help() -> None:
            def help_it() -> None:
                timer.start(TimerTask(), FAR_MS)
                helped.set()

            threading.Thread(target=help_it).start()
            assert helped.wait(LIMIT_S)

        timer.start(TimerTask(need_help), 0)
        assert helped.wait(LIMIT_S)


def test_closing() -> None:
    timer = ThreadTimer()
    timer.start(pending := Counted(), FAR_MS)
    timer.close()
    timer.close()
    with pytest.raises(TimerClosed):
        timer.start(Counted(), 0)
    assert pending.pending
    assert timer.cancel(pending)
    assert pending.runs == 0


def test_a_task_may_close_its_timer() -> None:
    timer = ThreadTimer()
    timer.start(TimerTask(timer.close), 0)
    timer._thread.join(LIMIT_S)
    assert not timer._thread.is_alive()


def test_closing_says_that_a_task_still_runs() -> None:
    timer = ThreadTimer(name="slow")
    go_on, running = threading.Event(), threading.Event()

    def take_long() -> None:
        running.set()
        go_on.wait(LIMIT_S)

    timer.start(TimerTask(take_long), 0)
    assert running.wait(LIMIT_S)
    with pytest.raises(TimeoutError, match="slow"):
        timer.close(limit_s=0.01)
    go_on.set()
    timer.close()


def test_a_task_in_a_timer_is_not_started_twice() -> None:
    with timer_of() as timer:
        timer.start(task := TimerTask(), FAR_MS)
        with pytest.raises(AlreadyStarted, match="due at"):
            timer.start(task, 1)
        assert len(timer) == 1


class Wall:
    """A wall clock that is stepped."""

    step_ms = 0

    def __call__(self) -> int:
        return monotonic_ms() + self.step_ms


def check_steps_of_the_wall_clock(timer: ThreadTimer, wall: Wall, limit_s: float = LIMIT_S) -> None:
    """S61: the wall clock is set back an hour while a task is pending."""
    try:
        timer.start(task := Counted(), 30)
        wall.step_ms -= FAR_MS
        assert task.ran.wait(limit_s), "late by as much as the wall clock was set back"
    finally:
        timer.close()


def test_s61_a_step_of_the_wall_clock_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall()
    monkeypatch.setattr(time, "time_ns", lambda: wall() * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: wall() / 1_000)
    check_steps_of_the_wall_clock(ThreadTimer(), wall)


def test_s61_a_timer_on_the_wall_clock_is_caught() -> None:
    wall = Wall()
    with pytest.raises(AssertionError, match="set back"):
        check_steps_of_the_wall_clock(ThreadTimer(clock_ms=wall), wall, SOON_S)


# Forced races. Each check takes the kind of timer, so that a timer with a fault in it can be handed in.


def check_cancelled_or_run_when_taken(kind: type[ThreadTimer]) -> None:
    """The thread has taken a task and not run it: a cancel that comes now is too late, and says so."""
    with installed(Script(LIMIT_S)) as script, timer_of(kind) as timer:
        hold = script.hold("timer: task taken")
        timer.start(task := Counted(), 0)
        with hold:
            cancelled = timer.cancel(task)
        timer.start(last := Counted(), 0)
        assert last.ran.wait(LIMIT_S)
        assert task.runs == (0 if cancelled else 1), f"cancelled: {cancelled}, ran {task.runs} times"


def check_restarted_when_taken(kind: type[ThreadTimer]) -> None:
    """The thread has taken a task and not run it, and it is restarted: it runs for both starts."""
    with installed(Script(LIMIT_S)) as script, timer_of(kind) as timer:
        hold = script.hold("timer: task taken")
        timer.start(task := Counted(), 0)
        with hold:
            timer.restart(task, 0)
        timer.start(last := Counted(), 0)
        assert last.ran.wait(LIMIT_S)
        assert task.runs == 2


def check_start_and_sleep(kind: type[ThreadTimer]) -> None:
    """Started while the thread is about to sleep until much later: the lock orders the two, and the task runs."""
    limit_s = LIMIT_S if kind is ThreadTimer else SOON_S
    with timer_of(kind) as timer:
        timer.start(Counted(), FAR_MS)
        for _ in range(50):
            timer.start(task := Counted(), 0)
            assert task.ran.wait(limit_s), "the thread slept through a start"


def check_many_threads(kind: type[ThreadTimer]) -> None:
    """Four threads start, cancel and restart over one another; each start is run once or cancelled once."""
    with timer_of(kind) as timer:
        totals = []

        def work(seed: int) -> None:
            rng = random.Random(seed)
            started = cancelled = 0
            tasks = [Counted() for _ in range(300)]
            for task in tasks:
                timer.start(task, rng.randrange(4))
                started += 1
                other = rng.choice(tasks)
                if other.pending and timer.cancel(other):
                    cancelled += 1
            totals.append((tasks, started, cancelled))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        wait_until(lambda: len(timer) == 0)
        timer.close()
        assert len(totals) == 4
        for tasks, started, cancelled in totals:
            assert sum(task.runs for task in tasks) + cancelled == started
            assert max(task.runs for task in tasks) == 1


class Guarded:
    """A wheel that may be used under the lock only. What was done without is in `faults`."""

    def __init__(self, wheel: TimingWheel, lock: threading.Lock) -> None:
        self._of = wheel, lock
        self.faults: list[str] = []

    def __getattr__(self, name: str) -> Any:
        wheel, lock = self._of
        if not lock.locked():
            self.faults.append(name)
        return getattr(wheel, name)


def check_the_lock_is_held(kind: type[ThreadTimer]) -> None:
    """One thread at a time, so that a lock which is held is held by whoever is at the wheel."""
    with timer_of(kind) as timer:
        wait_until(lambda: timer._sleeps_until_ms == NEVER_MS)
        guarded = Guarded(timer._wheel, timer._lock)
        timer._wheel = cast(TimingWheel, guarded)
        tasks = [Counted() for _ in range(4)]
        for task in tasks:
            timer.start(task, FAR_MS)
        timer.restart(tasks[0], FAR_MS)
        assert timer.cancel(tasks[1])
        timer.restart(tasks[2], 0)
        assert tasks[2].ran.wait(LIMIT_S)
        assert guarded.faults == []


RACES = (
    check_cancelled_or_run_when_taken,
    check_restarted_when_taken,
    check_start_and_sleep,
    check_many_threads,
    check_the_lock_is_held,
)


@pytest.mark.parametrize("check", RACES, ids=lambda check: str(check.__name__))
def test_a_forced_race(check: Callable[[type[ThreadTimer]], None]) -> None:
    check(ThreadTimer)


class RunsWhatIsCancelled(ThreadTimer):
    """A task that is being run is pending meanwhile."""

    def _next(self) -> TimerTask | None:
        task = super()._next()
        if task is not None and task._next is None:
            with self._lock:
                self._wheel.start(task, FAR_MS)
        return task


class RunsTwice(ThreadTimer):
    _last: TimerTask | None = None

    def _next(self) -> TimerTask | None:
        self._last, task = None, self._last
        if task is None:
            task = self._last = super()._next()
        return task


class ForgetsARestart(ThreadTimer):
    def restart(self, task: TimerTask, delay_ms: int) -> None:
        if task.pending:
            super().restart(task, delay_ms)


class ForgetsToWake(ThreadTimer):
    def _start(self, task: TimerTask, delay_ms: int) -> None:
        self._wheel.start(task, self._clock_ms() + delay_ms - self._wheel.now_ms)


class CancelsWithoutTheLock(ThreadTimer):
    def cancel(self, task: TimerTask) -> bool:
        return self._wheel.cancel(task)


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (RunsWhatIsCancelled, check_cancelled_or_run_when_taken),
        (RunsTwice, check_cancelled_or_run_when_taken),
        (RunsTwice, check_many_threads),
        (ForgetsARestart, check_restarted_when_taken),
        (ForgetsToWake, check_start_and_sleep),
        (CancelsWithoutTheLock, check_the_lock_is_held),
    ],
)
def test_a_planted_race_is_caught(faulty: type[ThreadTimer], check: Callable[[type[ThreadTimer]], None]) -> None:
    with pytest.raises(AssertionError):
        check(faulty)
