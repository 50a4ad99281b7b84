"""What a log remembers of idempotent producers is bounded in time, in number and in the time that a roll takes."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import pytest

from controller.broker.log_manager import LogManager
from controller.broker.request_context import finish
from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogSettings
from controller.storage.batches import BatchHeader
from controller.storage.disk_files import FileDisk
from controller.storage.errors import SequenceOutOfOrder
from controller.storage.log import PartitionLog
from controller.storage.producer_states import ProducerStates
from tests.processes import eventually
from tests.storage.batches import START_MS, Clock, batch

KEY = ("t", 0)
LIMIT_S = 60.0
SLICE_CPU_S = 0.1


def log_with(settings: LogSettings, clock: Clock, disk: MemoryDisk | None = None) -> PartitionLog:
    disk = disk or MemoryDisk()
    disk.make_directory("log")
    return PartitionLog(disk, "log", settings, clock)


def sent(producer_id: int, sequence: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, 0, 0, START_MS, START_MS, producer_id, 0, sequence, 1)


def test_the_one_that_was_silent_longest_is_evicted() -> None:
    log = log_with(LogSettings(producer_ids_max=3), Clock())
    for producer_id in (1, 2, 3):
        log.append_as_leader(batch(producer=(producer_id, 0, 0)), 0)
    log.append_as_leader(batch(producer=(1, 0, 1)), 0)
    log.append_as_leader(batch(producer=(4, 0, 0)), 0)
    assert [number for number in range(1, 5) if log.producers.producer(number)] == [1, 3, 4]
    assert log.append_as_leader(batch(producer=(1, 0, 1)), 0).duplicate
    assert not log.append_as_leader(batch(producer=(2, 0, 7)), 0).duplicate, "one that was evicted may go on"
    assert len(log.producers) == 3


def test_a_follower_and_a_restart_keep_the_bound_too() -> None:
    disk, settings = MemoryDisk(), LogSettings(producer_ids_max=5)
    log = log_with(settings, Clock(), disk)
    for producer_id in range(20):
        at = batch(base_offset=producer_id, leader_epoch=0, producer=(producer_id, 0, 0))
        log.append_as_follower(at)
    assert len(log.producers) == 5
    again = PartitionLog(disk, "log", settings, Clock())
    again.append_as_leader(batch(producer=(99, 0, 0)), 0)
    assert len(again.producers) == 5


@pytest.mark.parametrize("segment_batches", [1, 3, 100])
def test_all_batches_in_flight_are_known_after_a_restart(segment_batches: int) -> None:
    """A snapshot keeps the last of each producer alone; a producer may send five again."""
    disk = MemoryDisk()
    settings = LogSettings(segment_bytes=segment_batches * len(batch(producer=(1, 0, 0))))
    directory = LogDirectory(disk, "/d", lambda _: settings, Clock())
    log = directory.create(KEY)
    for sequence in range(7):
        log.append_as_leader(batch(producer=(1, 0, sequence)), 0)
        log.append_as_leader(batch(producer=(2, 1, sequence)), 0)
    directory.close()
    again = LogDirectory(disk, "/d", lambda _: settings, Clock()).logs[KEY]
    for sequence in range(2, 7):
        appended = again.append_as_leader(batch(producer=(1, 0, sequence)), 0)
        assert (appended.duplicate, appended.base_offset) == (True, 2 * sequence)
    with pytest.raises(SequenceOutOfOrder):
        again.append_as_leader(batch(producer=(1, 0, 1)), 0)
    assert not again.append_as_leader(batch(producer=(2, 1, 7)), 0).duplicate


def test_producers_expire_without_a_roll() -> None:
    clock = Clock()
    log = log_with(LogSettings(producer_id_expiration_ms=1_000), clock)
    log.append_as_leader(batch(producer=(1, 0, 0)), 0)
    clock.now_ms += 999
    log.apply_retention(0)
    assert log.producers.producer(1) is not None
    clock.now_ms += 1
    log.apply_retention(0)
    assert log.producers.producer(1) is None
    assert len(log.segment_offsets) == 1


def test_a_snapshot_is_as_of_when_it_was_asked_for() -> None:
    states = ProducerStates()
    for number in range(50):
        states.update(sent(number))
    expected, encoder = states.encode(), states.encoder()
    states.update(sent(0, 1))
    states.expire(START_MS + 10, 10)
    assert encoder() == expected


class Held:
    """Encodes snapshots when it is allowed to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = threading.Event()
        self.threads: list[str] = []
        encode = ProducerStates.encoder

        def held(states: ProducerStates) -> object:
            encoder = encode(states)

            def run() -> bytes:
                self.threads.append(threading.current_thread().name)
                assert self.allowed.wait(LIMIT_S) or self.threads[-1] == "MainThread"
                return encoder()

            return run

        monkeypatch.setattr(ProducerStates, "encoder", held)


def test_a_roll_does_not_wait_for_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    log = directory.create(KEY)
    log.append_as_leader(batch(3, producer=(7, 0, 0)), 0)
    log.roll()
    log.append_as_leader(batch(3, producer=(7, 0, 3)), 0)
    path = tmp_path / "t-0" / f"{3:020d}.snapshot"
    assert not path.exists()
    held.allowed.set()
    eventually(path.exists, "the snapshot is written")
    assert set(held.threads) == {"disk-later"}
    known = ProducerStates.decode("snapshot", path.read_bytes()).producer(7)
    assert known is not None
    assert known.last_sequence == 2
    directory.close()


@pytest.mark.parametrize("what", ["truncated", "restarted", "deleted"])
def test_a_snapshot_that_waits_does_not_outlive_what_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Two rolls; the first's snapshot is being made, the second's waits. What they know is then cut off, or deleted."""
    held = Held(monkeypatch)
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    log = directory.create(KEY)
    for number in range(2):
        log.append_as_leader(batch(5, producer=(7, 0, 5 * number)), 0)
        log.roll()
    eventually(lambda: bool(held.threads), "one is being made")
    threading.Timer(0.05, held.allowed.set).start()
    if what == "truncated":
        log.truncate_to(0)
    elif what == "restarted":
        log.restart_at(0)
    else:
        directory.delete(KEY)
        log = directory.create(KEY)
    for number in range(12):
        log.append_as_leader(batch(producer=(8, 0, number)), 0)
    assert [path.name for path in (tmp_path / "t-0").glob("*.snapshot")] == []
    log.flush()
    directory.checkpoint_recovery_points()
    directory.unlock()
    again = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    producers = again.logs[KEY].producers
    assert (producers.producer(7), len(producers)) == (None, 1)
    again.close()


def test_a_snapshot_that_can_not_be_written_is_left_out(tmp_path: Path) -> None:
    directory = LogDirectory(FileDisk(), str(tmp_path), lambda _: LogSettings(), Clock())
    log = directory.create(KEY)
    (tmp_path / "t-0" / f"{1:020d}.snapshot.tmp").mkdir()
    for number in range(3):
        log.append_as_leader(batch(producer=(7, 0, number)), 0)
        log.roll()
    eventually((tmp_path / "t-0" / f"{3:020d}.snapshot").exists, "the last is written")
    assert directory.health.cause is None
    directory.unlock()


def broker_logs(most: int, disk: MemoryDisk, clock: Clock) -> LogManager:
    return LogManager(disk, ["one", "two"], lambda _topic: LogSettings(), clock, producer_ids_max=most)


def known(logs: LogManager, partitions: int) -> dict[int, set[int]]:
    """By partition, the producer ids that it remembers; of producer ids from 0 to 9,999."""
    found = {}
    for index in range(partitions):
        log = logs.get("t", index)
        assert log is not None
        found[index] = {number for number in range(10_000) if log.producers.producer(number) is not None}
    return found


def test_all_partitions_of_a_broker_together_have_a_bound_and_the_one_silent_longest_goes_first() -> None:
    disk, clock = MemoryDisk(), Clock()
    logs = broker_logs(100, disk, clock)
    in_use = logs.get_or_create(("t", 0))
    in_use.append_as_leader(batch(producer=(0, 0, 0)), 0)
    for number in range(1, 1_000):
        clock.now_ms += 1
        # A client's timestamps decide nothing.
        at_ms = clock.now_ms + (10**9 if number % 2 else -(10**6))
        logs.get_or_create(("t", number % 50)).append_as_leader(batch(producer=(number, 0, 0), timestamp_ms=at_ms), 0)
        in_use.append_as_leader(batch(producer=(0, 0, number)), 0)
        assert sum(map(len, known_counts(logs))) <= 100
    left = set().union(*known(logs, 50).values())
    assert len(left) >= 90
    assert left == {0, *range(1_001 - len(left), 1_000)}
    logs.close()
    again = broker_logs(30, disk, clock)
    assert sum(map(len, known_counts(again))) <= 30, "after a restart, too"


def known_counts(logs: LogManager) -> list[ProducerStates]:
    return [log.producers for directory in logs.directories for log in directory.logs.values()]


def test_a_truncation_and_a_deletion_leave_the_bound_as_it_is() -> None:
    disk, clock = MemoryDisk(), Clock()
    logs = broker_logs(100, disk, clock)
    one, other = logs.get_or_create(("t", 0)), logs.get_or_create(("t", 1))
    for number in range(95):
        clock.now_ms += 1
        one.append_as_leader(batch(producer=(number, 0, 0)), 0)
    one.truncate_to(90)
    for number in range(1_000, 1_200):
        clock.now_ms += 1
        other.append_as_leader(batch(producer=(number, 0, 0)), 0)
        assert sum(map(len, known_counts(logs))) <= 100
    finish(logs.delete_all([("t", 1)]))
    assert known_counts(logs) == [one.producers]
    for number in range(2_000, 2_080):
        clock.now_ms += 1
        one.append_as_leader(batch(producer=(number, 0, 0)), 0)
    assert one.producers.producer(2_000) is not None, "what was deleted is not counted"


def test_eviction_of_producer_ids_of_many_partitions_takes_no_long_slice() -> None:
    disk, clock = MemoryDisk(), Clock()
    logs = broker_logs(20_000, disk, clock)
    made = [logs.get_or_create(("t", index)) for index in range(2_000)]
    longest_s = 0.0
    gc.collect()
    gc.freeze()  # as a broker does at its start: what other tests left would be looked at in a collection
    try:
        for number in range(24_000):
            clock.now_ms += 1
            data = batch(producer=(number, 0, 0))
            began_s = time.thread_time()
            made[number % 2_000].append_as_leader(data, 0)
            longest_s = max(longest_s, time.thread_time() - began_s)
    finally:
        gc.unfreeze()
    assert longest_s < SLICE_CPU_S
