"""A log directory whose device is slow, or answers nothing, delays and refuses the partitions that lie there alone."""

from __future__ import annotations

import errno
import threading

import pytest
from msgspec.structs import replace

from controller.broker.log_maintenance import AFTER_SHORTAGE_MS, ASK_AGAIN_MS, LogMaintenance
from controller.broker.partition import Role
from controller.broker.request_context import SLICE, Job, Steps, finish, together
from controller.protocol.codec import ApiKey
from controller.protocol.control import LeaderAndIsrResponse
from controller.protocol.errors import ErrorCode
from controller.storage import DeviceUnavailable, LogSettings, OutOfResources
from controller.storage.directory import LogsChange
from tests.broker.leading import Holder
from tests.broker.test_changes_by_jobs import error_of, stopping
from tests.broker.test_cold_reads import Asked
from tests.broker.test_upkeep_on_devices import Jobs

FAILED, NONE = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE
SILENT = DeviceUnavailable("8:1", "no answer")
SHORT = OutOfResources("logs0", OSError(errno.EMFILE, "too many open files"))


class SlowHolder(Holder):
    """Has two log directories; the test runs the jobs of LeaderAndIsr. `asked_for` counts the notices to the
    controller."""

    def __init__(self, partitions: int = 4) -> None:
        super().__init__(partitions, disks=2)
        self.asked_for = 0
        self.is_new = True
        self.jobs = Jobs()
        self.maintenance = LogMaintenance(
            self.settings,
            self.logs,
            self.broker.replicas,
            self.clock,
            self.trace,
            ask_controller=self._answered,
            drive=self.jobs.drive,
        )
        self.hear((1, 2, 3))

    def _answered(self) -> None:
        self.asked_for += 1

    def begin_roles(self, numbers: tuple[int, ...] = (0, 1, 2, 3)) -> Asked:
        """LeaderAndIsr for these partitions, as far as its jobs."""
        self.broker.drive = self.jobs.drive
        request = self.roles((1, 2, 3))
        (topic,) = request.topic_states
        states = (replace(topic.partition_states[number], is_new=self.is_new) for number in numbers)
        asked = replace(topic, partition_states=tuple(states))
        return Asked(self, ApiKey.LEADER_AND_ISR, 5, replace(request, topic_states=(asked,)))

    def finished(self, asked: Asked) -> list[ErrorCode]:
        """Each partition's error, with all jobs that are left done."""
        while self.jobs.waiting:
            self.jobs.run()
        (response,) = asked.responses
        assert isinstance(response, LeaderAndIsrResponse)
        return [ErrorCode(one.error_code) for topic in response.topics for one in topic.partition_errors]

    def orders(self) -> list[str]:
        return [job.order for _, job in self.jobs.waiting]

    def where(self) -> dict[int, str]:
        return {number: one.path for one in self.logs.directories for _, number in one.logs}


class Begun:
    """The first job's change, which a thread has begun; `end` ends it."""

    def __init__(self, jobs: Jobs) -> None:
        change = jobs.waiting[0][1].call
        assert isinstance(change, LogsChange)
        begun, self._go = threading.Event(), threading.Event()
        call = change._call

        def slow() -> None:
            begun.set()
            self._go.wait()
            call()

        change._call = slow
        self._thread = threading.Thread(target=change, daemon=True)
        self._thread.start()
        begun.wait()

    def end(self) -> None:
        self._go.set()
        self._thread.join()


def test_roles_wait_for_the_files_in_their_own_directory_alone() -> None:
    broker = SlowHolder()
    asked = broker.begin_roles()
    assert broker.orders() == ["logs0", "logs1"], "at the same time"
    broker.jobs.waiting.reverse()
    broker.jobs.run()
    leading = [one.index for one in broker.broker.replicas.partitions() if one.role is Role.LEADER]
    assert leading == [1, 3]
    assert broker.finished(asked) == [NONE] * 4


def test_roles_of_partitions_that_are_here_wait_for_no_files() -> None:
    broker = SlowHolder()
    assert broker.finished(broker.begin_roles((0, 1))) == [NONE] * 2
    for one in broker.broker.replicas.partitions():
        one.stand_down()
        one.leader_epoch = -1
    asked = broker.begin_roles()
    assert [one.index for one in broker.broker.replicas.partitions() if one.role is Role.LEADER] == [0, 1]
    assert broker.finished(asked) == [NONE] * 4


def test_without_an_answer_the_partitions_of_one_directory_are_refused_and_can_be_made_later() -> None:
    broker = SlowHolder()
    asked = broker.begin_roles()
    broker.jobs.fail(SILENT)  # not begun
    assert broker.finished(asked) == [FAILED, NONE, FAILED, NONE]
    assert not [name for name in broker.disk.names("logs0") if name.startswith("t-")]
    assert broker.asked_for == 1, "the device has answered since: the controller is to ask again"
    assert broker.finished(broker.begin_roles()) == [NONE, ErrorCode.STALE_CONTROLLER_EPOCH] * 2
    assert sorted(broker.where()) == [0, 1, 2, 3]


def test_what_a_device_is_late_with_is_taken_once_and_lies_in_one_directory() -> None:
    broker = SlowHolder()
    asked = broker.begin_roles((0, 1))
    late = Begun(broker.jobs)
    broker.jobs.fail(SILENT)
    assert broker.orders() == ["logs1", "logs0"], "the second is the question whether the device answers"
    question = broker.jobs.waiting.pop()
    assert broker.finished(asked) == [FAILED, NONE]
    # While it is at it, the partition is nowhere, and the next ones are made where the device answers.
    assert broker.finished(broker.begin_roles((0, 2))) == [FAILED, NONE]
    assert broker.where() == {1: "logs1", 2: "logs1"}
    assert broker.asked_for == 0
    late.end()
    broker.jobs.waiting.append(question)
    broker.jobs.run()
    assert broker.asked_for == 1
    assert broker.where() == {0: "logs0", 1: "logs1", 2: "logs1"}
    assert broker.finished(broker.begin_roles((0, 3))) == [NONE, NONE]
    assert broker.where()[3] == "logs0"
    assert broker.partition(0).role is Role.LEADER


def test_a_device_that_answers_nothing_is_asked_again() -> None:
    broker = SlowHolder()
    broker.begin_roles((0,))
    late = Begun(broker.jobs)
    broker.jobs.fail(SILENT)
    broker.jobs.waiting.reverse()
    for _ in range(3):
        (question,) = [job for _, job in broker.jobs.waiting if job.what == "a look whether logs0 answers"]
        assert question.order == "logs0"
        broker.jobs.waiting.sort(key=lambda one: one[1] is not question)
        broker.jobs.fail(SILENT)
        broker.clock.advance_to(broker.clock.now_ms() + ASK_AGAIN_MS)
    late.end()
    while broker.jobs.waiting:
        broker.jobs.run()
    assert broker.asked_for == 1
    broker.clock.advance_to(broker.clock.now_ms() + 10 * ASK_AGAIN_MS)
    assert (broker.asked_for, broker.jobs.waiting) == (1, [])


def test_a_late_deletion_is_done_when_it_is_done() -> None:
    broker = Holder(log=LogSettings())
    broker.begin_leading()
    jobs, asked = stopping(broker)
    late = Begun(jobs)
    jobs.fail(SILENT)
    assert error_of(jobs, asked) is FAILED
    assert broker.broker.replicas.partition("t", 0) is None
    broker.broker.drive = finish
    assert broker.stop_replica(delete=True) == [FAILED], "it is not gone yet"
    late.end()
    (directory,) = broker.logs.directories
    assert directory.finish_late()
    assert broker.stop_replica(delete=True) == [NONE]
    broker.begin_leading(leader_epoch=9, version=10)
    assert broker.log().log_end_offset == 0


def test_steps_together_end_with_the_last_and_raise_the_first_error() -> None:
    jobs = Jobs()
    ended: list[object] = []

    def each(number: int) -> Steps:
        ended.append((number, (yield Job(lambda: number))))

    def all_of_them() -> Steps:
        with pytest.raises(DeviceUnavailable):
            yield from together([each(number) for number in range(3)], jobs.drive)
        ended.append("all")

    jobs.drive(all_of_them())
    jobs.fail(SILENT)
    jobs.run()
    assert ended == [(1, 1)]
    jobs.run()
    assert ended == [(1, 1), (2, 2), "all"]
    assert finish(together([], finish)) is None


def test_a_directory_that_refused_before_it_had_begun_is_avoided_too() -> None:
    broker = SlowHolder()
    asked = broker.begin_roles((0, 1))
    broker.jobs.fail(SILENT)  # not begun
    question = broker.jobs.waiting.pop()
    assert broker.finished(asked) == [FAILED, NONE]
    assert broker.finished(broker.begin_roles((2, 3))) == [NONE, NONE]
    assert broker.where() == {1: "logs1", 2: "logs1", 3: "logs1"}
    broker.jobs.waiting.append(question)
    assert broker.finished(broker.begin_roles((0,))) == [NONE]
    assert broker.where()[0] == "logs1", "the question has no answer before the request is made"
    assert broker.asked_for == 1


def test_rows_that_need_no_files_wait_for_none_in_a_large_request() -> None:
    count = 2 * SLICE + 10
    broker = SlowHolder(count)
    last = count - 1
    assert broker.finished(broker.begin_roles((last,))) == [NONE]
    (one,) = broker.broker.replicas.partitions()
    one.stand_down()
    one.leader_epoch = -1
    asked = broker.begin_roles(tuple(range(count)))
    assert one.role is Role.LEADER
    sizes = [len(job.call.partitions) for _, job in broker.jobs.waiting if isinstance(job.call, LogsChange)]
    assert sizes == [SLICE, SLICE]
    broker.jobs.fail(SILENT)  # what follows in that directory is refused at once
    errors = broker.finished(asked)
    assert errors.count(FAILED) == count // 2
    assert errors.count(NONE) == count - count // 2
    assert one.role is Role.LEADER


def test_a_partition_that_is_named_twice_has_one_log() -> None:
    broker = SlowHolder()
    assert broker.finished(broker.begin_roles((0, 0, 1, 0))) == [
        NONE, ErrorCode.STALE_CONTROLLER_EPOCH, NONE, ErrorCode.STALE_CONTROLLER_EPOCH
    ]  # fmt: skip
    assert sorted(number for one in broker.logs.directories for _, number in one.logs) == [0, 1]


def test_what_was_refused_is_made_later_although_another_directory_went_offline() -> None:
    """It had no log anywhere, so that the other directory can't have one."""
    broker = SlowHolder()
    broker.logs.directories[1].health.fail(OSError("planted"))
    asked = broker.begin_roles((0,))
    broker.jobs.fail(SILENT)
    assert broker.finished(asked) == [FAILED]
    broker.is_new = False
    assert broker.finished(broker.begin_roles((0,))) == [NONE]
    assert broker.finished(broker.begin_roles((1,))) == [FAILED], "one that may lie in the directory that is offline"


def test_after_a_shortage_the_controller_is_asked_once_for_what_was_refused() -> None:
    broker = SlowHolder()
    asked = broker.begin_roles()
    broker.jobs.fail(SHORT)
    assert broker.finished(asked) == [FAILED, NONE, FAILED, NONE]
    began_ms = broker.clock.now_ms()
    broker.clock.advance_to(began_ms + AFTER_SHORTAGE_MS - 1.0)
    assert broker.asked_for == 0
    broker.clock.advance_to(began_ms + 3 * AFTER_SHORTAGE_MS)
    assert broker.asked_for == 1
    broker.logs.directories[1].health.fail(OSError("planted"))
    broker.is_new = False
    assert broker.finished(broker.begin_roles((0, 2))) == [NONE] * 2, "no directory that is offline has them"
    assert broker.where() == {0: "logs0", 1: "logs1", 2: "logs0", 3: "logs1"}


def test_where_a_log_is_to_lie_outlasts_a_refusal() -> None:
    broker = SlowHolder()
    broker.logs.prefer(("t", 0), "logs1")
    asked = broker.begin_roles((0,))
    assert broker.orders() == ["logs1"]
    broker.jobs.fail(SILENT)
    assert broker.finished(asked) == [FAILED]
    assert broker.finished(broker.begin_roles((0,))) == [NONE]
    assert broker.where() == {0: "logs1"}
    assert not broker.logs.preferred


def test_a_log_of_which_some_files_were_made_is_made_there_whatever_is_asked_for_meanwhile() -> None:
    """Planted: remember the place as AlterReplicaLogDirs' wish, which the next one replaces. The partition was in two
    directories, with which no broker starts."""
    broker = SlowHolder()
    asked = broker.begin_roles((0,))
    assert broker.orders() == ["logs0"]
    broker.jobs.fail(SHORT)
    assert broker.finished(asked) == [FAILED]
    broker.logs.prefer(("t", 0), "logs1")
    assert broker.finished(broker.begin_roles((0,))) == [NONE]
    assert broker.where() == {0: "logs0"}


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), None])
def test_late_files_that_could_not_be_made_are_asked_for_again(error: OSError | None) -> None:
    """In the directory where some of them may lie."""
    broker = SlowHolder()
    asked = broker.begin_roles((0,))
    late = Begun(broker.jobs)
    broker.jobs.fail(SILENT)
    question = broker.jobs.waiting.pop(0)
    assert broker.finished(asked) == [FAILED]
    broker.log_settings = LogSettings(segment_bytes=12_345)
    make_directory = broker.disk.make_directory

    def failing(path: str) -> None:
        make_directory(path)
        if error is not None:
            raise error

    broker.disk.make_directory = failing  # type: ignore[method-assign]
    late.end()
    broker.disk.make_directory = make_directory  # type: ignore[method-assign]
    broker.jobs.waiting.append(question)
    broker.jobs.run()
    assert broker.asked_for == 1
    assert broker.finished(broker.begin_roles((0,))) == [NONE]
    assert broker.where() == {0: "logs0"}
    assert broker.log(0).settings.segment_bytes == 12_345, "as they are now"
