"""AlterReplicaLogDirs on simulated brokers: replicas move between directories while they are written and followed."""

from __future__ import annotations

from random import Random

import pytest

from controller.broker import log_moves
from controller.broker.log_manager import LogManager
from controller.broker.node import Node
from controller.machine.disk import MemoryDisk
from controller.protocol import ApiKey
from controller.protocol.admin import (
    AlterReplicaLogDirsRequest,
    DescribedReplica,
    DescribeLogDirsRequest,
    LogDirToMoveTo,
    ReplicasToMove,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.scenarios.faults import BreakLogDirectory
from controller.simulator import Simulation
from controller.storage import LogDirectory, LogSettings, PartitionLog, headers_of
from controller.storage.batches import Record, encode_batch
from tests.storage.batches import batch

A, B = "/a", "/b"
RECORD = b"x" * 200
KEY = ("t", 0)


class Moving:
    """Brokers with two directories and one topic of one partition; pieces are small, so that a move takes a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: int = 1, **changed: str) -> None:
        monkeypatch.setattr(log_moves, "PIECE_BYTES", 1_000)
        monkeypatch.setattr(log_moves, "BETWEEN_MS", 20.0)
        settings = {"log.dirs": f"{A},{B}", "log.segment.bytes": "4000", "replica.lag.time.max.ms": "1000"} | changed
        self.made = made = Simulation(brokers, seed=1, settings=settings)
        made.run_until(lambda: len(made.registered) == brokers)
        assert made.answer(made.create_topic("t", 1, brokers)) == "done"
        made.run_until_rest()
        self.produced = 0

    def node(self, broker: int = 1) -> Node:
        node = self.made.node(broker)
        assert node is not None
        return node

    def place(self, broker: int = 1) -> str:
        services = self.node(broker).services
        assert services is not None
        directory = services.logs.directory_of(*KEY)
        assert directory is not None
        return directory.path

    def log(self, broker: int = 1) -> PartitionLog:
        partition = self.node(broker).broker.replicas.partition(*KEY)
        assert partition is not None
        assert partition.log is not None
        return partition.log

    def leads(self, broker: int) -> bool:
        partition = self.node(broker).broker.replicas.partition(*KEY)
        return partition is not None and partition.leading is not None

    def produce(self, count: int, leader: int = 1) -> None:
        for _ in range(count):
            data = encode_batch([Record(0, self.made.clock.wall_ms(), None, RECORD)])
            request = ProduceRequest(-1, 1_000, (ProduceTopic("t", (ProducePartition(0, data),)),))
            answer = self.made.answer(self.made.ask(leader, ApiKey.PRODUCE, request))
            assert answer.responses[0].partition_responses[0].error_code == 0
            self.produced += 1

    def alter(self, path: str, broker: int = 1, topic: str = "t") -> ErrorCode:
        request = AlterReplicaLogDirsRequest((LogDirToMoveTo(path, (ReplicasToMove(topic, (0,)),)),))
        answer = self.made.answer(self.made.ask(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, request))
        (result,) = answer.results
        assert result.topic_name == topic
        return ErrorCode(result.partitions[0].error_code)

    def other(self, broker: int = 1) -> str:
        return B if self.place(broker) == A else A

    def described(self, broker: int = 1) -> dict[str, list[DescribedReplica]]:
        answer = self.made.answer(self.made.ask(broker, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None)))
        return {
            one.log_dir: [replica for topic in one.topics for replica in topic.partitions] for one in answer.results
        }

    def arrive(self, path: str, broker: int = 1) -> None:
        self.made.run_until(lambda: self.place(broker) == path)

    def check(self, broker: int = 1) -> None:
        log = self.log(broker)
        assert count(log) == log.log_end_offset - log.log_start_offset
        names = [name for path in (A, B) for name in self.made.host.world.disks[broker].names(path)]
        assert [name for name in names if name.startswith("t-0") and not name.endswith("-delete")] == ["t-0"]


def count(log: PartitionLog) -> int:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        offset = headers_of(log.read(offset, 1 << 20).read())[-1].next_offset
    return offset - log.log_start_offset


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Moving:
    return Moving(monkeypatch)


def test_a_replica_moves_while_it_is_written(moving: Moving) -> None:
    moving.produce(30)
    target = moving.other()
    assert moving.alter(target) is ErrorCode.NONE
    current = moving.described()
    assert [one.is_future_key for one in current[target]] == [True]
    assert [one.is_future_key for path, those in current.items() for one in those if path != target] == [False]
    moving.produce(5)
    moving.arrive(target)
    moving.produce(5)
    assert moving.log().log_end_offset == moving.produced == 40
    assert [one.is_future_key for one in moving.described()[target]] == [False]
    moving.check()
    assert moving.alter(target) is ErrorCode.NONE  # where it is already
    moving.made.kill(1)
    moving.made.run_for(1_000)
    moving.made.start(1)
    moving.made.run_until(lambda: moving.made.node(1) is not None and moving.leads(1))
    assert moving.place() == target
    assert moving.log().log_end_offset == 40
    moving.check()


def test_errors_are_kafkas(moving: Moving) -> None:
    assert moving.alter("/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
    assert moving.alter(A, topic="unknown") is ErrorCode.REPLICA_NOT_AVAILABLE
    assert moving.alter(A, topic="u" * 249) is ErrorCode.INVALID_TOPIC_EXCEPTION
    target = moving.other()
    moving.made.inject(BreakLogDirectory(at_ms=moving.made.now_ms, node=1, directory=target, for_ms=600_000.0))
    assert moving.alter(target) is ErrorCode.KAFKA_STORAGE_ERROR  # found when the future log is made
    assert moving.alter(target) is ErrorCode.KAFKA_STORAGE_ERROR
    moving.produce(1)


def test_a_log_that_is_made_later_lies_where_it_was_asked_for(moving: Moving) -> None:
    for number, path in enumerate((A, B, B, A)):
        assert moving.alter(path, topic=f"later-{number}") is ErrorCode.REPLICA_NOT_AVAILABLE
        assert moving.made.answer(moving.made.create_topic(f"later-{number}", 1, 1)) == "done"
        moving.made.run_until_rest()
        services = moving.node().services
        assert services is not None
        directory = services.logs.directory_of(f"later-{number}", 0)
        assert directory is not None
        assert directory.path == path


def test_a_move_that_is_sent_back_leaves_nothing(moving: Moving) -> None:
    moving.produce(30)
    here, there = moving.place(), moving.other()
    assert moving.alter(there) is ErrorCode.NONE
    assert moving.alter(here) is ErrorCode.NONE
    moving.made.run_for(1_000)
    assert moving.place() == here
    moving.check()


def test_a_follower_moves_and_goes_on_following(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(monkeypatch, brokers=2)
    leader = next(one for one in moving.made.registered if moving.leads(one))
    follower = 3 - leader
    moving.produce(20, leader)
    target = moving.other(follower)
    assert moving.alter(target, follower) is ErrorCode.NONE
    moving.produce(10, leader)
    moving.arrive(target, follower)
    moving.produce(10, leader)
    assert moving.log(follower).log_end_offset == 40
    moving.check(follower)
    moving.made.kill(leader)
    moving.made.run_until(lambda: moving.leads(follower))
    moving.produce(5, follower)
    assert moving.log(follower).log_end_offset == 45


def test_a_leader_that_changes_does_not_end_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(monkeypatch, brokers=2)
    leader = next(one for one in moving.made.registered if moving.leads(one))
    follower = 3 - leader
    moving.produce(60, leader)
    target = moving.other(follower)
    moving.made.kill(leader)
    assert moving.alter(target, follower) is ErrorCode.NONE
    moving.made.run_until(lambda: moving.leads(follower))
    moving.arrive(target, follower)
    moving.produce(5, follower)
    assert count(moving.log(follower)) == 65


def test_a_deleted_topic_takes_its_move_along(moving: Moving) -> None:
    moving.produce(30)
    target = moving.other()
    assert moving.alter(target) is ErrorCode.NONE
    assert moving.made.answer(moving.made.delete_topic("t")) == "done"
    moving.made.run_until_rest()
    names = [name for path in (A, B) for name in moving.made.host.world.disks[1].names(path)]
    assert [name for name in names if name.startswith("t-0") and not name.endswith("-delete")] == []


def test_a_restart_begins_the_move_anew(moving: Moving) -> None:
    moving.produce(60)
    target = moving.other()
    assert moving.alter(target) is ErrorCode.NONE
    moving.made.kill(1)
    moving.made.run_for(1_000)
    moving.made.start(1)
    moving.made.run_until(lambda: moving.made.node(1) is not None and moving.leads(1))
    moving.arrive(target)
    assert moving.log().log_end_offset == 60
    moving.check()


def test_a_target_that_is_lost_leaves_the_replica_where_it_is(moving: Moving) -> None:
    moving.produce(60)
    here, target = moving.place(), moving.other()
    assert moving.alter(target) is ErrorCode.NONE
    moving.made.inject(BreakLogDirectory(at_ms=moving.made.now_ms, node=1, directory=target, for_ms=600_000.0))
    moving.made.run_for(1_000)
    moving.produce(1)
    assert moving.place() == here


# -- every step


def opened(disk: MemoryDisk) -> tuple[dict[str, LogDirectory], list[str]]:
    """Both directories as a broker opens them; the paths of those that have the partition."""
    logs = LogManager(disk, (A, B), lambda _: LogSettings(segment_bytes=2_000), lambda: disk.now_ms)
    directories = {one.path: one for one in logs.directories}
    return directories, [path for path, one in directories.items() if KEY in one.logs]


def test_a_crash_at_any_step_leaves_one_log_with_everything() -> None:
    """Each change of the disk in turn is the last before a loss of power; what was flushed is there, once."""
    places: set[str] = set()
    for step in range(200):
        disk = MemoryDisk()
        directories, _ = opened(disk)
        log = directories[A].create(KEY)
        for number in range(12):
            log.append_as_follower(batch(3, base_offset=3 * number))
        log.flush()
        directories[A].checkpoint_recovery_points()
        disk.fail_after = disk.changes + step
        done = moved(directories)
        disk.crash(Random(step))
        disk.now_ms += 1_000
        directories, found = opened(disk)
        assert len(found) == 1, (step, found)
        (path,) = found
        assert all(one.health.cause is None for one in directories.values()), step
        assert directories[path].logs[KEY].log_end_offset == 36, (step, path)
        assert count(directories[path].logs[KEY]) == 36, (step, path)
        assert not directories[A].unsettled
        assert not directories[B].unsettled
        assert all("future" not in name for one in (A, B) for name in disk.names(one)), step
        places.add(path)
        if done:
            assert path == B
            break
    else:
        raise AssertionError("a move has more than 200 changes")
    assert places == {A, B}


def moved(directories: dict[str, LogDirectory]) -> bool:
    """The steps of a move, without a broker. False if the disk failed."""
    source, target = directories[A], directories[B]
    try:
        log, future = source.logs[KEY], target.begin_future(KEY, bytes(16))
        while future.log_end_offset < log.log_end_offset:
            future.append_as_follower(log.read(future.log_end_offset, 500).read())
        known = target.name_future(KEY, 30)
        source.delete(KEY)
        assert target.take_named(KEY, known).log_end_offset == 36
    except Exception:  # noqa: BLE001 - whatever a broken disk leads to
        return False
    return True


@pytest.mark.parametrize("cut", [0, 5, 20, 36])
def test_a_future_log_follows_truncations(cut: int) -> None:
    disk = MemoryDisk()
    directories, _ = opened(disk)
    log, future = directories[A].create(KEY), directories[B].begin_future(KEY, bytes(16))
    for number in range(12):
        log.append_as_follower(batch(3, base_offset=3 * number, leader_epoch=number // 4))
    while future.log_end_offset < log.log_end_offset:
        future.append_as_follower(log.read(future.log_end_offset, 500).read())
    log.truncate_to(cut)
    for _ in range(12):
        log.append_as_follower(batch(3, base_offset=log.log_end_offset, leader_epoch=7))
    while future.log_end_offset < log.log_end_offset or future.epochs.latest < 7:
        log_moves.follow(log, future)
        future.append_as_follower(log.read(future.log_end_offset, 500).read())
    log_moves.follow(log, future)
    assert future.epochs.entries() == log.epochs.entries()
    assert all_bytes(future) == all_bytes(log)


def all_bytes(log: PartitionLog) -> bytes:
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20).read()
        found, offset = found + data, headers_of(data)[-1].next_offset
    return found
