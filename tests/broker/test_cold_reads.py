"""Reads of what is not in memory: a job of the device reads it in, and the broker's thread does not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.broker.records import cold_reads
from controller.broker.records import fetch as fetching
from controller.broker.records.cold_reads import AHEAD_FROM_BYTES, AHEAD_MAX, ATTEMPTS, KEEP_MS
from controller.broker.request_context import Job, Steps
from controller.machine.disk import MemoryFile
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchPartition, FetchPartitionData, FetchRequest, FetchResponse, FetchTopic
from controller.protocol.framing import joined
from controller.protocol.schema import RequestValue, ResponseValue
from controller.storage import FileRange
from controller.storage.disk import ANY_DEVICE, NotCached
from controller.storage.disk_files import OpenFile
from controller.storage.errors import DeviceUnavailable
from controller.storage.log import PartitionLog
from tests.broker.leading import Holder, offsets

VERSION = 11


class Asked:
    """A request whose jobs the test runs."""

    def __init__(self, broker: Holder, key: ApiKey, version: int, value: RequestValue) -> None:
        self.are_recent: list[bool] = []
        self.responses: list[ResponseValue] = []
        self._steps: Steps | None
        self.job: Job | None = None

        def respond(parts: Any) -> None:
            self.are_recent += [one.is_recent for one in parts if isinstance(one, FileRange)]
            data = joined([one if isinstance(one, bytes | memoryview) else one.read() for one in parts])
            self.responses.append(decode_response(key, version, data)[1])

        self._steps = broker.broker.begin(encode_request(RequestHeader(key, version, 1, "c"), value), respond)
        self._go_on(lambda steps: steps.send(None))

    def _go_on(self, step: Callable[[Steps], Any]) -> None:
        self.job = None
        if self._steps is None:
            return
        try:
            yielded = step(self._steps)
            while not isinstance(yielded, Job):
                yielded = self._steps.send(None)
            self.job = yielded
        except StopIteration:
            self._steps = None

    def run_job(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        assert self.job is not None
        result = self.job.call()
        meanwhile()
        self._go_on(lambda steps: steps.send(result))

    def fail_job(self, error: Exception) -> None:
        self._go_on(lambda steps: steps.throw(error))

    def finish(self) -> ResponseValue:
        for _ in range(100):
            if self.job is None:
                break
            self.run_job()
        (response,) = self.responses
        return response


def holder(partitions: int = 1) -> Holder:
    """Leads partitions with five batches of one record each, of which nothing is in memory."""
    broker = Holder(partitions)
    broker.begin_leading()
    for _ in range(5):
        broker.produce(acks=1, numbers=range(partitions))
    for replica in (2, 3):
        broker.fetch(5, replica=replica, epoch=4, numbers=range(partitions))
    pass_time(broker)
    broker.disk.evict()
    return broker


def pass_time(broker: Holder) -> None:
    passed = broker.clock.sleep(60_000)
    broker.clock.run_until(lambda: passed.done, broker.clock.now_ms() + 60_000)


def fetch(broker: Holder, offset: int, numbers: tuple[int, ...] = (0,), limit: int = 1 << 20) -> Asked:
    partitions = tuple(FetchPartition(number, fetch_offset=offset, partition_max_bytes=limit) for number in numbers)
    return Asked(broker, ApiKey.FETCH, VERSION, FetchRequest(0, 1, (FetchTopic("t", partitions),)))


def parts(response: ResponseValue) -> tuple[FetchPartitionData, ...]:
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions


def test_a_fetch_of_what_is_not_in_memory_is_answered_after_jobs_of_the_device() -> None:
    broker = holder()
    asked = fetch(broker, 1)
    assert asked.job is not None
    assert asked.job.lane == ANY_DEVICE
    assert "00000000000000000000.log" in asked.job.what
    assert asked.job.size_bytes > 0
    assert asked.responses == []
    (data,) = parts(asked.finish())
    assert offsets(data) == [1, 2, 3, 4]


def test_a_fetch_of_what_is_in_memory_needs_no_job() -> None:
    broker = holder()
    broker.disk.not_cached.clear()
    asked = fetch(broker, 1)
    assert asked.job is None
    assert offsets(parts(asked.finish())[0]) == [1, 2, 3, 4]


def test_what_was_written_lately_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = holder()
    asked: list[int] = []
    for end in (6, 7):
        broker.produce(acks=1)
        for replica in (2, 3):
            broker.follow(replica, end)
    monkeypatch.setattr(MemoryFile, "require_cached", lambda _file, _position, length: asked.append(length))
    monkeypatch.setattr(fetching, "AHEAD_FROM_BYTES", 1)
    one = len(broker.disk.read(f"{broker.logs.directories[0].path}/t-0/00000000000000000000.log")) // 7
    latest = fetch(broker, 5, limit=one)
    assert offsets(parts(latest.finish())[0]) == [5]
    assert asked == [], "not for what is behind it either"
    pass_time(broker)
    assert (latest.are_recent, fetch(broker, 5, limit=one).are_recent) == ([True], [False])
    broker.clock.advance_to(broker.clock.now_ms())
    assert asked == [one], "what is behind it is not asked for while all that was asked for is in memory"
    assert broker.broker.data is not None
    broker.broker.data.reading.ahead.missed()
    fetch(broker, 5, limit=one)
    assert asked == [one] * 2, "it is asked for when the answer has gone out"
    broker.clock.advance_to(broker.clock.now_ms())
    assert asked == [one] * 3


def test_a_device_that_does_not_answer_is_a_storage_error_and_the_directory_stays_online() -> None:
    broker = holder()
    asked = fetch(broker, 1)
    asked.fail_job(DeviceUnavailable("8:1", "no answer"))
    (data,) = parts(asked.finish())
    assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.logs.directories[0].health.cause is None
    broker.disk.not_cached.clear()
    assert offsets(parts(fetch(broker, 1).finish())[0]) == [1, 2, 3, 4]


def test_a_job_that_fails_leaves_it_to_the_read_to_find_out_why() -> None:
    """Retention may have removed the file meanwhile; if the disk has failed, the read fails too, as without a job."""
    broker = holder()
    asked = fetch(broker, 1)
    asked.fail_job(FileNotFoundError(2, "no such file"))
    assert offsets(parts(asked.finish())[0]) == [1, 2, 3, 4]
    assert broker.logs.directories[0].health.cause is None


def test_the_leadership_may_be_lost_while_a_job_runs() -> None:
    broker = holder()
    asked = fetch(broker, 1)
    broker.lead((2, 3), leader=2, leader_epoch=5)
    broker.lead((2, 3), leader=2, leader_epoch=6)
    (data,) = parts(asked.finish())
    assert offsets(data) == [1, 2, 3, 4] or data.error_code != ErrorCode.NONE


def test_a_partition_that_is_evicted_again_and_again_is_read_in_the_end() -> None:
    broker = holder()
    asked = fetch(broker, 1)
    for _ in range(ATTEMPTS):
        asked.run_job(broker.disk.evict)
    assert asked.job is None, "at last the disk is waited for"
    assert offsets(parts(asked.finish())[0]) == [1, 2, 3, 4]


def test_a_hung_partition_does_not_keep_others_from_their_answers() -> None:
    broker = holder(2)
    broker.disk.not_cached = {path for path in broker.disk.not_cached if "/t-0/" in path}
    asked = fetch(broker, 1, (0, 1))
    assert asked.job is not None
    asked.fail_job(DeviceUnavailable("8:1", "no answer"))
    first, second = parts(asked.finish())
    assert (first.error_code, offsets(second)) == (ErrorCode.KAFKA_STORAGE_ERROR, [1, 2, 3, 4])


def test_the_index_of_aborted_transactions_is_read_in_by_a_job_too(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = holder()
    broker.disk.not_cached = {"/index"}

    def aborted(_log: PartitionLog, _offset: int, _up_to: int) -> list[Any]:
        if broker.disk.no_wait:
            broker.disk.require_cached("/index", 34)
        return []

    monkeypatch.setattr(PartitionLog, "aborted_transactions", aborted)
    partition = FetchPartition(0, fetch_offset=1, partition_max_bytes=1 << 20)
    request = FetchRequest(0, 1, (FetchTopic("t", (partition,)),), isolation_level=1)
    asked = Asked(broker, ApiKey.FETCH, VERSION, request)
    assert asked.job is not None
    assert asked.job.what == "read of 34 bytes of /index"
    (data,) = parts(asked.finish())
    assert (offsets(data), data.aborted_transactions) == ([1, 2, 3, 4], ())


def test_reading_without_waiting_ends_with_the_call() -> None:
    broker = holder()
    log: PartitionLog = broker.log()
    with pytest.raises(Exception, match="read of"):
        log.read_cached(1, 1 << 20)
    assert not broker.disk.no_wait
    assert log.read(1, 1 << 20).length


def test_what_follows_a_large_answer_is_read_in_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = holder()
    broker.disk.not_cached.clear()
    one = len(broker.disk.read(f"{broker.logs.directories[0].path}/t-0/00000000000000000000.log")) // 5
    missing: list[tuple[int, int]] = []

    def require_cached(_file: MemoryFile, position: int, length: int) -> None:
        if (position, length) == (2 * one, 2 * one):
            missing.append((position, length))
            raise NotCached(ANY_DEVICE, lambda at_least=0: None, length, "t-0")

    monkeypatch.setattr(MemoryFile, "require_cached", require_cached)
    ahead: list[Steps] = []
    assert broker.broker.data is not None
    broker.broker.data.reading.ahead.drive = ahead.append
    broker.broker.data.reading.ahead.missed()
    for from_bytes in (2 * one + 1, 2 * one):
        assert ahead == [], "what follows a small answer is not asked for"
        monkeypatch.setattr(fetching, "AHEAD_FROM_BYTES", from_bytes)
        assert offsets(parts(fetch(broker, 0, limit=2 * one).finish())[0]) == [0, 1]
        broker.clock.advance_to(broker.clock.now_ms())
    (steps,) = ahead
    assert missing == [(2 * one, 2 * one)]
    assert isinstance(next(steps), Job)
    with pytest.raises(StopIteration):
        steps.throw(DeviceUnavailable("8:1", "no answer"))  # the fetch that needs it finds out
    assert offsets(parts(fetch(broker, 0).finish())[0]) == [0, 1, 2, 3, 4]
    broker.clock.advance_to(broker.clock.now_ms())
    assert len(ahead) == 1  # nothing follows


class Missing:
    """A file of which nothing is in memory."""

    def require_cached(self, position: int, length: int) -> None:
        raise NotCached(ANY_DEVICE, lambda at_least=0: None, length, f"{length} bytes at {position}")


def test_what_follows_is_read_once_at_a_time_and_not_for_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks again and again, and for many partitions, takes no place in the queue from fetches."""
    ahead, driven = cold_reads.ReadAhead(lambda: 0.0), list[Steps]()
    ahead.drive = driven.append
    found = FileRange(Missing(), 0, AHEAD_FROM_BYTES, 0, 10_000)  # type: ignore[arg-type]
    for _ in range(3):
        ahead.answered("t", 0, 5, found)
    assert len(driven) == 1
    for partition in range(2 * AHEAD_MAX):
        ahead.answered("t", partition, 5, found)
    assert len(driven) == AHEAD_MAX
    assert [job.size_bytes for job in (next(one) for one in driven) if isinstance(job, Job)] == [0] * AHEAD_MAX
    with pytest.raises(StopIteration):
        driven[0].send(None)
    ahead.answered("t", 0, 5, found)
    assert len(driven) == AHEAD_MAX + 1


class Kept(Missing):
    """A file that is in memory, but for what is `missing`. `kept` has what it was to keep there."""

    def __init__(self) -> None:
        self.missing = False
        self.kept: list[tuple[int, int]] = []

    def require_cached(self, position: int, length: int) -> None:
        if self.missing:
            super().require_cached(position, length)

    def keeping(self, position: int, length: int) -> NotCached:
        return NotCached(ANY_DEVICE, lambda at_least=0: self.kept.append((position, length)), length, "kept")


def test_what_follows_is_kept_in_memory_for_a_while_after_something_was_missing() -> None:
    """Else it may be evicted just before it is asked for. Where nothing is missing that costs nothing."""
    now, file = [1_000.0], Kept()
    ahead = cold_reads.ReadAhead(lambda: now[0])
    found = FileRange(file, 10, AHEAD_FROM_BYTES, 0, 10_000_000)  # type: ignore[arg-type]
    on = [ahead.is_on]
    file.missing = True
    ahead.answered("t", 0, 5, found)
    file.missing = False
    for _ in range(2):
        now[0] += KEEP_MS / 2 - 1
        on.append(ahead.is_on)
        ahead.answered("t", 0, 5, found)
    assert file.kept == [(10 + AHEAD_FROM_BYTES, AHEAD_FROM_BYTES)] * 2
    now[0] += 2
    assert [*on, ahead.is_on] == [False, True, True, False]


def test_what_follows_is_not_asked_for_once_its_file_is_closed(tmp_path: Path) -> None:
    file = OpenFile(str(tmp_path / "log"))
    file.append(bytes(2 * AHEAD_FROM_BYTES))
    file.close()
    ahead, driven = cold_reads.ReadAhead(lambda: 0.0), list[Steps]()
    ahead.drive = driven.append
    ahead.answered("t", 0, 5, FileRange(file, 0, AHEAD_FROM_BYTES, 0, AHEAD_FROM_BYTES))
    assert not driven
