"""Sync points: a test holds a thread at one for as long as it says and not for ever; each declared point exists."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller import sync_points
from controller.sync_points import POINTS
from tests.sync_points import HOLD_LIMIT_S, HeldTooLong, NotReached, Script, UnknownPoint, installed

ROOT = Path(__file__).parents[2]
A, B = "channel: answered", "zookeeper: answered"


def on_thread(action: Callable[[], None], name: str = "worker") -> threading.Thread:
    thread = threading.Thread(target=action, name=name, daemon=True)
    thread.start()
    return thread


def test_a_thread_is_held_until_it_is_released() -> None:
    went_on = threading.Event()

    def come() -> None:
        sync_points.reach(A)
        went_on.set()

    with installed(Script()) as script:
        hold = script.hold(A)
        thread = on_thread(come)
        with hold:
            assert hold.held
            assert not went_on.is_set()
        thread.join(HOLD_LIMIT_S)
    assert went_on.is_set()


@pytest.mark.parametrize(
    ("nth", "thread", "expected"),
    [(1, None, []), (3, None, ["early"] * 2), (5, None, ["early"] * 4), (2, "late", ["early"] * 4 + ["late"])],
)
def test_the_nth_time_and_the_thread_are_chosen(nth: int, thread: str | None, expected: list[str]) -> None:
    """Four arrivals of one thread, then two of another: who is held has come so far, and no further."""
    passed: list[str] = []

    def come(name: str, times: int) -> None:
        for _ in range(times):
            sync_points.reach(A)
            passed.append(name)

    def come_one_after_the_other() -> None:
        for name, times in (("early", 4), ("late", 2)):
            on_thread(lambda name=name, times=times: come(name, times), name).join(HOLD_LIMIT_S)  # type: ignore[misc]

    with installed(Script()) as script:
        hold = script.hold(A, nth=nth, thread=thread)
        arrivals = on_thread(come_one_after_the_other)
        with hold:
            assert passed == expected
        arrivals.join(HOLD_LIMIT_S)
        assert len(passed) == script.reached(A) == 6


def test_two_holds_of_one_point_take_one_thread_after_the_other() -> None:
    with installed(Script()) as script:
        first, second = script.hold(A), script.hold(A)
        workers = [on_thread(lambda: sync_points.reach(A)) for _ in range(2)]
        with first, second:
            assert first.held
            assert second.held
        for worker in workers:
            worker.join(HOLD_LIMIT_S)
        assert not any(worker.is_alive() for worker in workers)


def hold_unknown(script: Script) -> None:
    script.hold("channel: nowhere")


def count_unknown(script: Script) -> None:
    script.reached("channel: nowhere")


def reach_unknown(_script: Script) -> None:
    sync_points.reach("channel: nowhere")


@pytest.mark.parametrize("use", [hold_unknown, count_unknown, reach_unknown])
def test_a_name_that_is_not_declared_is_an_error(use: Callable[[Script], None]) -> None:
    with installed(Script()) as script, pytest.raises(UnknownPoint, match="'channel: nowhere' is no point"):
        use(script)


def test_a_point_that_nobody_reaches_is_an_error_and_not_a_wait_for_ever() -> None:
    with installed(Script(limit_s=0.02)) as script:
        with pytest.raises(NotReached, match=A), script.hold(A):
            raise AssertionError("nobody is held")
        with pytest.raises(NotReached, match="not 1"):
            script.await_reached(A, 1)


def test_a_thread_that_is_forgotten_goes_on_and_the_test_fails() -> None:
    def forget() -> None:
        with installed(Script(limit_s=0.02)) as script:
            script.hold(A)
            sync_points.reach(A)

    with pytest.raises(HeldTooLong, match=A):
        forget()


def test_the_end_of_a_script_releases_everybody() -> None:
    with installed(Script()) as script:
        hold = script.hold(A)
        thread = on_thread(lambda: sync_points.reach(A))
        hold.wait()
    thread.join(HOLD_LIMIT_S)
    assert not thread.is_alive()
    sync_points.reach("with no script a name is not even looked at")


def test_one_script_at_a_time() -> None:
    with installed(Script()), pytest.raises(RuntimeError, match="installed already"), installed(Script()):
        raise AssertionError("a second one")
    with pytest.raises(ValueError, match="0th"):
        Script().hold(A, nth=0)


def reached_in(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "sync_points.reach":
            yield ast.literal_eval(node.args[0])


def test_every_declared_point_is_reached_in_one_place_and_every_reached_one_is_declared() -> None:
    found = [
        name
        for path in sorted((ROOT / "controller").rglob("*.py"))
        for name in reached_in(path.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == sorted(POINTS)
