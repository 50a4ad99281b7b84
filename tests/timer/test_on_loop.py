"""The timer on an asyncio loop: one `call_at` for all tasks, none while idle, and the loop's other callbacks run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from controller.timer import TimerError, TimerTask
from controller.timer.on_loop import AT_ONCE, AsyncioTimer
from controller.timer.wheel import NEVER_MS

FAR_MS = 3_600_000
LIMIT_S = 20.0


def on_loop(test: Callable[[AsyncioTimer, list[str]], Awaitable[None]]) -> list[str]:
    """Runs the test with a timer; what it reported of failing tasks."""
    reported: list[str] = []

    async def main() -> None:
        timer = AsyncioTimer(on_error=lambda task, error: reported.append(str(error)))
        await asyncio.wait_for(test(timer, reported), LIMIT_S)
        timer.close()

    asyncio.run(main())
    return reported


async def rounds_until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("not within a million rounds of the loop")


def no_handle(timer: AsyncioTimer) -> bool:
    return timer._handle is None


def note(ran: list[str], name: str) -> TimerTask:
    return TimerTask(lambda: ran.append(name))


def test_tasks_run_in_the_order_of_their_times_and_starts() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        ran: list[str] = []
        done = asyncio.Event()
        delays = {"last": 60, "first": 0, "second": 20, "third": 20}
        for name, delay_ms in delays.items():
            timer.start(note(ran, name), delay_ms)
        timer.start(TimerTask(done.set), 60)
        assert (ran, len(timer)) == ([], 5)  # nothing runs inside of start
        await done.wait()
        timer.start(note(ran, "past"), -9)
        await rounds_until(lambda: len(timer) == 0)
        assert ran == ["first", "second", "third", "last", "past"]

    on_loop(test)


def test_an_idle_timer_asks_nothing_of_the_loop() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        assert no_handle(timer)
        done = asyncio.Event()
        far = [TimerTask() for _ in range(100)]
        for task in far:
            timer.start(task, FAR_MS)
        assert isinstance(timer._handle, asyncio.TimerHandle)
        assert timer._handle.when() > asyncio.get_running_loop().time() + 1
        assert all(timer.cancel(task) for task in far)
        timer.start(TimerTask(done.set), 1)
        await done.wait()
        await rounds_until(lambda: timer._armed_ms == NEVER_MS)
        assert no_handle(timer)

    on_loop(test)


def test_an_earlier_task_moves_the_wake_up_and_a_later_one_does_not() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        timer.start(TimerTask(), FAR_MS)
        timer.start(TimerTask(), 500)
        first = timer._handle
        timer.start(TimerTask(), FAR_MS)
        assert timer._handle is first
        timer.start(TimerTask(), 100)
        assert timer._handle is not first

    on_loop(test)


def test_an_exception_is_reported_and_harms_no_other() -> None:
    def fail() -> None:
        raise ValueError("planted")

    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        done = asyncio.Event()
        timer.start(TimerTask(fail), 1)
        timer.start(TimerTask(done.set), 1)
        await done.wait()

    assert on_loop(test) == ["planted"]


def test_a_failing_report_reaches_the_loop_and_harms_no_other() -> None:
    async def main() -> None:
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))
        failure = RuntimeError("the report fails")

        def report(task: TimerTask, error: Exception) -> None:
            raise failure

        def fail() -> None:
            raise ValueError("planted")

        timer = AsyncioTimer(on_error=report)
        done = asyncio.Event()
        timer.start(TimerTask(fail), 1)
        timer.start(TimerTask(done.set), 1)
        await asyncio.wait_for(done.wait(), LIMIT_S)
        assert heard == [failure]

    asyncio.run(main())


def test_a_task_that_starts_itself_at_once_leaves_the_loop_to_others() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        runs = 0

        def again() -> None:
            nonlocal runs
            runs += 1
            timer.start(task, 0)

        task = TimerTask(again)
        timer.start(task, 0)
        await rounds_until(lambda: runs >= 3 * AT_ONCE)
        assert timer.cancel(task)

    on_loop(test)


def test_tasks_start_cancel_and_restart_each_other() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        ran: list[str] = []
        done = asyncio.Event()
        victim = note(ran, "victim")
        moved = note(ran, "moved")

        def act() -> None:
            assert timer.cancel(victim)
            timer.restart(moved, 2)
            timer.start(TimerTask(done.set), 3)

        timer.start(TimerTask(act), 5)
        timer.start(victim, 5)
        timer.start(moved, 5)
        await done.wait()
        assert ran == ["moved"]

    on_loop(test)


def test_closing() -> None:
    async def test(timer: AsyncioTimer, _: list[str]) -> None:
        ran: list[str] = []
        timer.start(TimerTask(timer.close), 1)
        timer.start(same_tick := note(ran, "after the end"), 1)
        await rounds_until(lambda: timer._closed)
        await asyncio.sleep(0)
        assert (ran, same_tick.pending) == ([], True)
        with pytest.raises(TimerError, match="closed"):
            timer.start(TimerTask(), 1)
        assert timer.cancel(same_tick)
        timer.close()

    on_loop(test)
