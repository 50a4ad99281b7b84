"""The old design answers the same questions, and has the fault for which it was given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from controller.labs.old_purgatory import OldPurgatory
from controller.timer.purgatory import AlreadyWatched, OperationState
from tests.timer.operations import Switched

LIMIT_S = 20.0
FAR_MS = 3_600_000


@pytest.fixture
def old() -> Iterator[OldPurgatory[str, Switched]]:
    purgatory: OldPurgatory[str, Switched] = OldPurgatory(purge_interval=20)
    yield purgatory
    purgatory.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "not within the limit"
        time.sleep(0.001)


def test_operations_end_by_news_by_force_or_in_time_and_once(old: OldPurgatory[str, Switched]) -> None:
    news, forced, expires, at_once = Switched(), Switched(), Switched(timeout_ms=5), Switched(on=True)
    over = threading.Event()
    expires.told = over.set
    assert old.try_complete_else_watch(at_once, ["a"])
    for operation in (news, forced, expires):
        assert not old.try_complete_else_watch(operation, ["a", "b"])
    with pytest.raises(AlreadyWatched):
        old.try_complete_else_watch(news, ["a"])
    assert old.check_and_complete("nobody's") == 0
    news.on = True
    assert old.check_and_complete("a") == 1
    assert forced.force_complete()
    assert not forced.force_complete()
    assert over.wait(LIMIT_S)
    assert [one.state.name for one in (news, forced, expires)] == ["Completed", "Completed", "Expired"]
    assert [one.answers for one in (news, forced, expires, at_once)] == [1, 1, 1, 1]


def test_what_has_ended_stays_in_the_queue_and_the_lists_until_the_reaper_walks_them_all(
    old: OldPurgatory[str, Switched],
) -> None:
    for _ in range(19):
        old.try_complete_else_watch(operation := Switched(timeout_ms=FAR_MS), ["a"])
        operation.force_complete()
    assert (old.watched, old.queued) == (19, 19)
    for _ in range(2):
        old.try_complete_else_watch(operation := Switched(timeout_ms=FAR_MS), ["a"])
        operation.force_complete()
    wait_until(lambda: old.watched == old.queued == 0)


def test_with_more_pending_than_its_interval_it_walks_all_of_them_after_each_that_expires(
    old: OldPurgatory[str, Switched],
) -> None:
    """Why it collapses."""
    for _ in range(30):
        old.try_complete_else_watch(Switched(timeout_ms=FAR_MS), ["a"])
    expiring = [Switched(timeout_ms=1) for _ in range(50)]
    for operation in expiring:
        old.try_complete_else_watch(operation, ["a"])
    wait_until(lambda: all(operation.state is OperationState.Expired for operation in expiring))
    wait_until(lambda: old.purges >= 50)
    assert old.watched >= 30


def test_one_that_raises_is_reported_and_the_reaper_lives_on() -> None:
    heard: list[str] = []
    old: OldPurgatory[str, Switched] = OldPurgatory(on_error=lambda _, error: heard.append(str(error)))

    def fails() -> None:
        raise OSError("no answer")

    bad, looks, over = Switched(timeout_ms=1), Switched(timeout_ms=FAR_MS), threading.Event()
    bad.told = fails
    later = Switched(timeout_ms=5)
    later.told = over.set
    for operation in (bad, later, looks):
        old.try_complete_else_watch(operation, ["a"])
    assert over.wait(LIMIT_S)
    looks.looked = fails
    assert old.check_and_complete("a") == 0
    old.close()
    assert heard == ["no answer", "no answer"]
