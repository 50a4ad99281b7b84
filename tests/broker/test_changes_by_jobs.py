"""Rolls, flushes and deletions are jobs of the device: the broker's thread does not wait, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

from controller.broker.request_context import finish
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from controller.storage import LogSettings
from controller.storage.directory import LogsChange
from controller.storage.disk import state_of
from controller.storage.errors import DeviceUnavailable
from tests.broker.harness import BROKER_EPOCH
from tests.broker.leading import CONTROLLER, Holder
from tests.broker.test_cold_reads import Asked
from tests.broker.test_upkeep_on_devices import Jobs
from tests.storage.batches import batch

SIZE = len(batch())
SILENT = DeviceUnavailable("8:1", "no answer")


def leading(settings: LogSettings, count: int = 0) -> Holder:
    broker = Holder(log=settings)
    broker.begin_leading()
    for _ in range(count):
        broker.produce(acks=1)
    return broker


def produce(broker: Holder, count: int = 1) -> Asked:
    data = ProducePartition(0, batch(count, timestamp_ms=broker.clock.wall_ms()))
    return Asked(broker, ApiKey.PRODUCE, 9, ProduceRequest(1, 5_000, (ProduceTopic("t", (data,)),)))


def result(asked: Asked) -> tuple[ErrorCode, int]:
    (response,) = asked.responses
    assert isinstance(response, ProduceResponse)
    part = response.responses[0].partition_responses[0]
    return ErrorCode(part.error_code), part.base_offset


def results(those: Sequence[Asked]) -> list[tuple[ErrorCode, int]]:
    return [result(one) for one in those]


def test_a_roll_is_a_job_and_later_requests_of_the_partition_keep_their_order() -> None:
    broker = leading(LogSettings(segment_bytes=2 * SIZE), 2)
    first = produce(broker)
    later = [produce(broker, 2), produce(broker, 3)]
    assert first.job is not None
    assert first.job.what.startswith("roll of")
    assert first.job.order == broker.log().directory
    assert [one.responses for one in later] == [[], []]
    first.run_job()
    assert results([first, *later]) == [(ErrorCode.NONE, 2), (ErrorCode.NONE, 3), (ErrorCode.NONE, 5)]
    assert broker.log().segment_offsets[:2] == (0, 2)


def test_a_roll_without_an_answer_fails_what_waits_for_it_and_is_made_later() -> None:
    broker = leading(LogSettings(segment_bytes=2 * SIZE), 2)
    first, later = produce(broker), produce(broker)
    assert first.job is not None
    late = first.job.call
    first.fail_job(SILENT)  # not begun: it is not made any more
    assert result(first)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert results([later]) == [(ErrorCode.NONE, 2)]  # its own roll, at once: the test's broker drives what waited
    late()
    assert broker.log().segment_offsets == (0, 2)
    assert broker.log().log_end_offset == 3


def test_a_roll_that_ends_after_its_limit_is_taken_by_the_next_append() -> None:
    broker = leading(LogSettings(segment_bytes=2 * SIZE), 2)
    first = produce(broker)
    assert first.job is not None
    first.job.call()
    first.fail_job(SILENT)
    assert result(first)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert results([produce(broker)]) == [(ErrorCode.NONE, 2)]
    assert broker.log().segment_offsets == (0, 2)


def test_a_failed_roll_takes_the_directory_offline() -> None:
    broker = leading(LogSettings(segment_bytes=2 * SIZE), 2)
    first = produce(broker)
    broker.disk.fail_after = broker.disk.changes
    first.run_job()
    assert result(first)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.logs.directories[0].health.cause is not None


def test_a_log_without_a_file_opens_it_by_a_job_while_its_device_is_slow() -> None:
    broker = leading(LogSettings())
    overdue = state_of(broker.log()._device).overdue
    overdue.add(0)
    try:
        first = produce(broker)
        assert first.job is not None
        assert first.job.what.startswith("opening of")
        first.run_job()
    finally:
        overdue.clear()
    assert result(first) == (ErrorCode.NONE, 0)


def test_a_flush_before_the_answer_is_a_job_and_appends_go_on() -> None:
    broker = leading(LogSettings(flush_messages=1))
    log = broker.log()
    first = produce(broker)
    assert first.job is not None
    assert first.job.what.startswith("flush of")
    second = produce(broker)
    assert log.log_end_offset == 2
    assert log.recovery_point == 0
    first.run_job()
    assert result(first) == (ErrorCode.NONE, 0)
    assert log.recovery_point == 1
    second.finish()
    assert result(second) == (ErrorCode.NONE, 1)
    assert log.recovery_point == 2


def test_a_flush_without_an_answer_refuses_the_request() -> None:
    broker = leading(LogSettings(flush_messages=1))
    first = produce(broker)
    first.fail_job(SILENT)
    assert result(first)[0] is ErrorCode.KAFKA_STORAGE_ERROR
    produce(broker).finish()
    assert broker.log().recovery_point == 2


def stopping(broker: Holder) -> tuple[Jobs, Asked]:
    jobs = Jobs()
    broker.broker.drive = jobs.drive
    states = (StopReplicaPartitionState(0, 6, delete_partition=True),)
    request = StopReplicaRequest(CONTROLLER, 1, (StopReplicaTopicState("t", states),), BROKER_EPOCH)
    return jobs, Asked(broker, ApiKey.STOP_REPLICA, 3, request)


def error_of(jobs: Jobs, asked: Asked) -> ErrorCode:
    while jobs.waiting:
        jobs.run()  # the answer is encoded by a job
    (response,) = asked.responses
    assert isinstance(response, StopReplicaResponse)
    return ErrorCode(response.partition_errors[0].error_code)


def test_a_deletion_is_a_job() -> None:
    broker = leading(LogSettings(), 1)
    jobs, asked = stopping(broker)
    assert broker.disk.is_directory("logs0/t-0")
    assert jobs.run().order == "logs0"
    assert error_of(jobs, asked) is ErrorCode.NONE
    assert not broker.disk.is_directory("logs0/t-0")


def test_a_deletion_that_was_not_begun_leaves_the_log() -> None:
    broker = leading(LogSettings(), 1)
    jobs, asked = stopping(broker)
    jobs.fail(SILENT)
    assert error_of(jobs, asked) is ErrorCode.KAFKA_STORAGE_ERROR
    broker.broker.drive = finish
    assert broker.stop_replica(delete=True) == [ErrorCode.NONE]
    assert not broker.disk.is_directory("logs0/t-0")


def test_nothing_is_made_of_a_partition_whose_deletion_has_begun_and_no_answer() -> None:
    """Else its log could come to lie in another directory too."""
    broker = leading(LogSettings(), 1)
    jobs, asked = stopping(broker)
    (retiring,) = [job.call for _, job in jobs.waiting]
    assert isinstance(retiring, LogsChange)
    assert retiring._claimed()  # a thread has it
    jobs.fail(SILENT)
    assert error_of(jobs, asked) is ErrorCode.KAFKA_STORAGE_ERROR
    broker.broker.drive = finish
    broker.hear((1, 2, 3), leader_epoch=8)
    assert broker.lead((1, 2, 3), leader_epoch=8, version=9) == [ErrorCode.KAFKA_STORAGE_ERROR]
    retiring._call()  # and ends
    broker.start()
    broker.begin_leading(leader_epoch=9, version=10)
    assert broker.log().log_end_offset == 0
