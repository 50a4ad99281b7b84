"""Jobs on devices: each is answered exactly once, whatever it, its device or a shutdown does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.storage import device_pools
from controller.storage.device_pools import DevicePools
from controller.storage.devices import DeviceLimits, JobOutcome
from controller.storage.disk import Device, NotCached, state_of
from controller.storage.disk_files import FileDisk
from controller.storage.errors import DeviceUnavailable
from tests.processes import eventually

ONE, OTHER = Device("8:1"), Device("8:2")
WAIT_S = 20.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Answers:
    """The outcomes of jobs by name, in the order of their coming."""

    def __init__(self) -> None:
        self.got: list[tuple[str, JobOutcome]] = []
        self._changed = threading.Condition()

    def of(self, name: str) -> Callable[[JobOutcome], None]:
        def then(outcome: JobOutcome) -> None:
            with self._changed:
                self.got.append((name, outcome))
                self._changed.notify_all()

        return then

    def wait(self, count: int) -> list[tuple[str, JobOutcome]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, WAIT_S), self.got
        return self.got

    def error(self, name: str) -> str:
        return str(next(outcome.error for of, outcome in self.got if of == name))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What jobs wait for that do not return during a test."""
    event = threading.Event()
    yield event
    event.set()


def pools(clock: Clock, **limits: Any) -> DevicePools:
    return DevicePools(DeviceLimits(**{"threads": 1, "limit_ms": 1_000.0, **limits}), clock)


def test_a_device_that_is_written_to_is_asked_and_overdue_until_it_answers(
    clock: Clock, stuck: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_pools, "CHECK_S", WAIT_S)  # this test alone looks
    disk = FileDisk()
    device = disk.device_of(str(tmp_path))
    file = disk.open(f"{tmp_path}/0.log")
    those = pools(clock)
    asked = threading.Event()

    def ask(_device: Device) -> None:
        asked.set()
        stuck.wait()

    those.watch([device], ask)
    disk.no_wait = True
    try:
        file.append(b"at once")
        assert not those.expire()  # what it asks does not make the next look an early one
        assert asked.wait(WAIT_S)
        file.append(b", and again")
        clock.now_s = 0.6  # more than half of its limit
        assert those.expire()
        with pytest.raises(NotCached, match=r"append to .*/0.log"):
            file.append(b"never")
        stuck.set()
        eventually(lambda: not state_of(device).overdue, "the device has answered")
        file.append(b"!")
    finally:
        disk.no_wait = False
        stuck.set()
    assert file.read_at(0, 100) == b"at once, and again!"
    assert those.close(WAIT_S) == []
    disk.ask(device)
    disk.stop()


@pytest.mark.parametrize(("size_bytes", "order", "since_s"), [(4_096, "", 0.4), (0, "", 0.0), (4_096, "log", 0.0)])
def test_a_device_that_goes_on_to_read_is_not_overdue(
    clock: Clock, stuck: threading.Event, size_bytes: int, order: str, since_s: float
) -> None:
    answers, device = Answers(), Device(f"reads {size_bytes} {order}")
    those = pools(clock, threads=2)
    those.submit(device, stuck.wait, answers.of("long"))
    eventually(lambda: those.stats()[0].running == 1, "the long job has begun")
    clock.now_s = 0.4
    those.submit(device, lambda: None, answers.of("short"), size_bytes=size_bytes, order=order)
    answers.wait(1)
    for now_s in (0.45, 0.8, 0.9):  # overdue after half of the limit, which is 0.5 s
        clock.now_s = now_s
        those.expire()
        assert bool(state_of(device).overdue) == (now_s >= since_s + 0.5)
    stuck.set()
    assert those.close(WAIT_S) == []
    assert not state_of(device).overdue


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="has no real-time priority")
@pytest.mark.parametrize(
    ("policy", "priority", "expected"), [("SCHED_OTHER", 0, 0), ("SCHED_RR", 1, 1), ("SCHED_RR", 9, 8)]
)
def test_threads_of_a_device_give_way_to_others_with_real_time_priority(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, policy: str, priority: int, expected: int
) -> None:
    scheduled = {"policy": getattr(os, policy), "priority": priority}
    monkeypatch.setattr(os, "sched_getparam", lambda _: os.sched_param(scheduled["priority"]))
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: scheduled["policy"])
    monkeypatch.setattr(
        os,
        "sched_setscheduler",
        lambda _, policy, asked: scheduled.update(policy=policy, priority=asked.sched_priority),
    )
    answers = Answers()
    those = pools(clock)
    those.submit(ONE, lambda: None, answers.of("job"))
    answers.wait(1)
    assert scheduled == {"policy": getattr(os, policy), "priority": expected}
    assert those.close(WAIT_S) == []


def test_a_job_is_answered_with_its_result_or_with_what_it_raised(clock: Clock) -> None:
    answers = Answers()
    those = pools(clock)
    those.submit(ONE, lambda: 7, answers.of("result"))
    those.submit(ONE, lambda: 1 // 0, answers.of("error"))
    got = dict(answers.wait(2))
    assert got["result"] == JobOutcome(7)
    assert isinstance(got["error"].error, ZeroDivisionError)
    assert those.close(WAIT_S) == []


@pytest.mark.parametrize("raised", [MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_a_thread_outlives_whatever_a_job_or_its_answer_raises(clock: Clock, raised: type[BaseException]) -> None:
    answers = Answers()
    those = pools(clock)

    def fails() -> None:
        raise raised

    def answer_fails(outcome: JobOutcome) -> None:
        answers.of("failed")(outcome)
        raise RuntimeError("a defect")

    those.submit(ONE, fails, answer_fails, order="log")
    those.submit(ONE, lambda: 7, answers.of("next"), order="log")
    failed, following = answers.wait(2)
    assert isinstance(failed[1].error, Exception)
    assert following == ("next", JobOutcome(7))


def test_jobs_of_one_order_run_one_after_the_other_and_others_beside_them(clock: Clock, stuck: threading.Event) -> None:
    answers = Answers()
    those = pools(clock, threads=4)
    those.submit(ONE, stuck.wait, answers.of("first"), order="log")
    those.submit(ONE, lambda: 2, answers.of("second"), order="log")
    those.submit(ONE, lambda: 3, answers.of("third"), order="log")
    those.submit(ONE, lambda: 4, answers.of("other log"), order="other")
    those.submit(ONE, lambda: 5, answers.of("none"))
    assert {name for name, _ in answers.wait(2)} == {"other log", "none"}
    stuck.set()
    assert [name for name, _ in answers.wait(5)[2:]] == ["first", "second", "third"]


def test_what_waits_behind_a_job_that_does_not_return_is_answered_at_its_own_limit(
    clock: Clock, stuck: threading.Event
) -> None:
    answers = Answers()
    those = pools(clock, threads=2)
    ran: list[str] = []
    those.submit(ONE, stuck.wait, answers.of("stuck"), order="log", what="sync of log")
    those.submit(ONE, lambda: ran.append("behind"), answers.of("behind"), order="log", what="removal from log")
    eventually(lambda: those.stats()[0].running == 1, "the first job runs")
    clock.now_s = 0.9
    those.expire()
    assert answers.got == []
    clock.now_s = 1.0
    those.expire()
    assert [name for name, _ in answers.wait(2)] == ["stuck", "behind"]
    assert answers.error("stuck") == "device 8:1: sync of log: no answer from the device in 1.0 s"
    assert answers.error("behind") == "device 8:1: removal from log: no answer from the device in 1.0 s"
    those.submit(ONE, lambda: 3, answers.of("after"), order="log")
    stuck.set()
    assert answers.wait(3)[2] == ("after", JobOutcome(3))
    assert ran == [], "what was answered with an error is not done later"
    assert len(answers.got) == 3


def test_a_device_whose_threads_are_all_stuck_refuses_at_once_and_the_others_go_on(
    clock: Clock, stuck: threading.Event
) -> None:
    answers = Answers()
    those = pools(clock, threads=2)
    for name in ("one", "two"):
        those.submit(ONE, stuck.wait, answers.of(name))
    eventually(lambda: those.stats()[0].running == 2, "both jobs run")
    clock.now_s = 1.0
    those.expire()
    those.submit(ONE, lambda: 3, answers.of("refused"), what="read of t-0")
    assert answers.error("refused") == "device 8:1: read of t-0: the device does not answer"
    assert those.stats()[0].is_hung
    those.submit(OTHER, lambda: 4, answers.of("other device"))
    assert answers.wait(4)[3] == ("other device", JobOutcome(4))
    stuck.set()
    eventually(lambda: not those.stats()[0].is_hung, "the device answers again")
    those.submit(ONE, lambda: 5, answers.of("again"))
    assert answers.wait(5)[4] == ("again", JobOutcome(5))


def test_the_number_of_jobs_and_their_memory_are_bounded(clock: Clock, stuck: threading.Event) -> None:
    answers = Answers()
    those = pools(clock, queued_jobs=2)
    for name in ("one", "two", "three"):
        those.submit(ONE, stuck.wait, answers.of(name))
    assert answers.error("three") == "device 8:1: a job: 2 jobs wait for the device"
    those = pools(clock, queued_bytes=100)
    those.submit(ONE, stuck.wait, answers.of("large"), size_bytes=101)
    those.submit(ONE, stuck.wait, answers.of("too much"), size_bytes=1)
    assert answers.error("too much") == "device 8:1: a job: jobs of 101 bytes wait for the device"
    assert [name for name, _ in answers.got] == ["three", "too much"]


def test_closing_has_a_deadline_answers_what_is_left_and_names_it(clock: Clock, stuck: threading.Event) -> None:
    answers = Answers()
    those = pools(clock, limit_ms=1e9)
    those.submit(ONE, stuck.wait, answers.of("stuck"), order="log", what="sync of t-0")
    those.submit(ONE, lambda: 1, answers.of("behind"), order="log", what="removal from t-0")
    those.submit(ONE, lambda: 1, answers.of("queued"), what="read of t-1")
    those.submit(OTHER, lambda: 1, answers.of("other"))
    answers.wait(1)
    left = those.close(0.0)
    assert left == ["device 8:1: sync of t-0", "device 8:1: removal from t-0", "device 8:1: read of t-1"]
    assert sorted(name for name, _ in answers.wait(4)) == ["behind", "other", "queued", "stuck"]
    for name in ("stuck", "behind", "queued"):
        assert "the broker shuts down" in answers.error(name)
    those.submit(ONE, lambda: 1, answers.of("late"))
    those.submit(Device("8:3"), lambda: 1, answers.of("late elsewhere"))
    assert "the broker shuts down" in answers.error("late")
    assert "the broker shuts down" in answers.error("late elsewhere")
    stuck.set()
    eventually(lambda: those.stats()[0].running == 0, "the job that was left has ended")
    assert len(answers.got) == 6


def test_closing_waits_for_what_goes_on(clock: Clock) -> None:
    answers = Answers()
    go_on = threading.Event()
    those = pools(clock)
    those.submit(ONE, lambda: go_on.wait(WAIT_S), answers.of("one"))
    those.submit(ONE, lambda: 2, answers.of("two"))
    threading.Timer(0.01, go_on.set).start()
    assert those.close(WAIT_S) == []
    assert answers.got == [("one", JobOutcome(True)), ("two", JobOutcome(2))]


def test_the_limits_are_watched_without_anyone_asking(stuck: threading.Event) -> None:
    answers = Answers()
    those = DevicePools()
    those.submit(ONE, stuck.wait, answers.of("stuck"), limit_ms=1.0)
    assert isinstance(answers.wait(1)[0][1].error, DeviceUnavailable)


def test_a_device_that_stops_to_answer_is_noted_once_and_that_it_answers_again(
    clock: Clock, stuck: threading.Event
) -> None:
    answers, notes = Answers(), list[str]()
    those = DevicePools(DeviceLimits(threads=1, limit_ms=1_000.0), clock, notes.append)
    those.submit(ONE, stuck.wait, answers.of("first"), what="read of a")
    those.submit(ONE, lambda: 2, answers.of("second"), what="read of b")
    eventually(lambda: those.stats()[0].running == 1, "the first has begun")
    clock.now_s += 2.0
    those.expire()
    answers.wait(2)
    refused = "device 8:1 does not answer, what needs it is refused: read of a: no answer from the device in 2.0 s"
    assert notes == [refused]
    stuck.set()
    eventually(lambda: len(notes) == 2, "the first returns")
    assert notes == [refused, "device 8:1 answers again"]
    those.submit(ONE, lambda: 3, answers.of("third"))
    answers.wait(3)
    assert len(notes) == 2


def test_counts(clock: Clock) -> None:
    answers = Answers()
    those = pools(clock)
    those.submit(ONE, lambda: setattr(clock, "now_s", 3.0), answers.of("one"), size_bytes=5)
    answers.wait(1)
    stats = those.stats()[0]
    assert (stats.device, stats.done, stats.running, stats.queued, stats.queued_bytes) == (ONE, 1, 0, 0, 0)
    assert stats.busy_s == 3.0
    assert not stats.is_hung


def test_a_job_that_hangs_does_not_take_the_thread_of_the_next(clock: Clock, stuck: threading.Event) -> None:
    answers = Answers()
    those = pools(clock, threads=2)
    those.submit(ONE, lambda: None, answers.of("first"))
    answers.wait(1)
    pool = those._pools[ONE]
    eventually(lambda: pool._idle == 1, "the thread waits")
    with pool.changed:  # the idle thread is notified of the first of these, and can't take it before both are there
        those.submit(ONE, stuck.wait, answers.of("hangs"))
        those.submit(ONE, lambda: 7, answers.of("second"))
    assert answers.wait(2)[1] == ("second", JobOutcome(7))


def test_a_job_wakes_one_thread(clock: Clock, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: notify all threads that wait when a job has ended. Beside cold reads they kept the broker's thread off
    the interpreter."""
    answers = Answers()
    those = pools(clock, threads=3)
    for number in range(3):
        those.submit(ONE, stuck.wait, answers.of(str(number)))
    stuck.set()
    answers.wait(3)
    pool = those._pools[ONE]
    eventually(lambda: pool._idle == 3, "the threads wait")
    woken = 0
    wait = pool.changed.wait

    def counted(timeout_s: float) -> bool:
        nonlocal woken
        woken += 1  # before it waits again
        return wait(timeout_s)

    monkeypatch.setattr(pool.changed, "wait", counted)
    for number in range(5):
        those.submit(ONE, lambda: None, answers.of("next"))
        answers.wait(4 + number)

        def waits(woken_now: int = number + 1) -> bool:
            with pool.changed:
                return pool._idle == 3 and woken >= woken_now

        eventually(waits, "the thread waits again")
    assert woken == 5
