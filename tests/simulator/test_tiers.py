"""Simulated brokers with an SSD and two HDDs: data moves with its age, and lost devices lose what they alone had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from controller.broker.log_manager import LogManager
from controller.broker.node import Node
from controller.protocol import ApiKey
from controller.protocol.admin import AlterReplicaLogDirsRequest, LogDirToMoveTo, ReplicasToMove
from controller.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.scenarios.faults import BreakLogDirectory, Reassign
from controller.scenarios.files import parse_plan, plan_text
from controller.simulator import Simulation
from controller.simulator.plan_generator import draw_plan
from controller.simulator.simulation import NotInTime
from controller.simulator.swarm import run_plan
from controller.storage import LogOffline, headers_of
from controller.storage.batches import Record, encode_batch
from controller.storage.tiered_log import TieredLog
from statemachines.log_segment import ON_SSD, SegmentState
from tests.simulator.planted_tiers import full_ssd_stays_full, serves_after_a_lost_ssd, throttle_ignored

SETTINGS = {
    "log.dirs": "/ssd,/hdd1,/hdd2",
    "log.dirs.tiers": "ssd,hdd,hdd",
    "log.segment.bytes": "4000",
    "camerlengo.tier.ssd.bytes": "40000",
    "camerlengo.tier.interval.ms": "200",
}
RECORD = b"x" * 200


class Tiered:
    """A simulated cluster with one topic of one partition."""

    def __init__(self, brokers: int = 1, **changed: str) -> None:
        settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in changed.items()}}
        self.made = made = Simulation(brokers, seed=1, settings=settings)
        made.run_until(lambda: len(made.registered) == brokers)
        assert made.answer(made.create_topic("t", 1, brokers)) == "done"
        made.run_until_rest()
        self.produced = 0

    def node(self, broker: int = 1) -> Node:
        node = self.made.node(broker)
        assert node is not None
        return node

    def log(self, broker: int = 1) -> TieredLog:
        services = self.node(broker).services
        assert services is not None
        log = services.logs.get("t", 0)
        assert isinstance(log, TieredLog)
        return log

    def leader(self) -> int:
        return next(one for one in self.made.registered if self.leads(one))

    def leads(self, broker: int, topic: str = "t") -> bool:
        partition = self.node(broker).broker.replicas.partition(topic, 0)
        return partition is not None and partition.leading is not None

    def produce(self, count: int, leader: int = 1) -> list[int]:
        """Send so many batches, one after another; the error codes."""
        errors = []
        for _ in range(count):
            batch = encode_batch([Record(0, self.made.clock.wall_ms(), None, RECORD)])
            request = ProduceRequest(-1, 1_000, (ProduceTopic("t", (ProducePartition(0, batch),)),))
            answer = self.made.answer(self.made.ask(leader, ApiKey.PRODUCE, request))
            errors.append(answer.responses[0].partition_responses[0].error_code)
            self.produced += errors[-1] == 0
        return errors

    def append(self, batch: bytes, topic: str = "t") -> int:
        """Send one batch; the error code."""
        request = ProduceRequest(-1, 1_000, (ProduceTopic(topic, (ProducePartition(0, batch),)),))
        answer = self.made.answer(self.made.ask(1, ApiKey.PRODUCE, request))
        return int(answer.responses[0].partition_responses[0].error_code)

    def states(self, broker: int = 1) -> Counter[str]:
        return Counter(segment.state.name for segment in self.log(broker).segments)

    def read_all(self, broker: int = 1) -> int:
        """The number of records that can be read, from the log's start on."""
        log, offset = self.log(broker), self.log(broker).log_start_offset
        while offset < log.log_end_offset:
            offset = headers_of(log.read(offset, 1 << 20).read())[-1].next_offset
        return offset - log.log_start_offset

    def fail(self, path: str, broker: int = 1) -> None:
        now_ms = self.made.now_ms
        self.made.inject(BreakLogDirectory(at_ms=now_ms, node=broker, directory=path, for_ms=600_000.0))


def test_old_segments_leave_the_ssd_and_are_read_from_the_hdd() -> None:
    tiered = Tiered()
    for _ in range(20):
        assert set(tiered.produce(15)) == {0}
        tiered.made.run_for(1_000)
    states = tiered.states()
    assert states["WithoutCache"] >= 5
    assert states["Cached"] >= 1
    assert tiered.log().ssd_bytes() <= 40_000
    on_ssd = [segment.state in ON_SSD for segment in tiered.log().segments]
    assert on_ssd == sorted(on_ssd), "the oldest leave first"
    assert tiered.read_all() == tiered.produced == 300
    counts = tiered.node().tiers
    assert counts is not None
    assert counts.counts.evicted_segments == states["WithoutCache"]
    assert tiered.made.host.world.disks[1].names("/hdd1") or tiered.made.host.world.disks[1].names("/hdd2")


def test_a_copy_keeps_to_its_rate() -> None:
    tiered = Tiered(camerlengo_tier_copy_bytes_per_second="1000")
    tiered.produce(100)
    maintenance = tiered.node().tiers
    assert maintenance is not None
    before, began_ms = maintenance.counts.copied_bytes, tiered.made.clock.now_ms()
    tiered.made.run_for(20_000)
    copied = maintenance.counts.copied_bytes - before
    assert 10_000 <= copied <= 1.0 * (tiered.made.clock.now_ms() - began_ms) + 4_000


def test_a_full_ssd_refuses_appends_with_a_reason_and_goes_on_once_there_is_room() -> None:
    tiered = Tiered(camerlengo_tier_copy_bytes_per_second="1")
    errors = tiered.produce(250)
    assert set(errors) == {0, 56}, "KAFKA_STORAGE_ERROR, which clients retry"
    assert tiered.log().health.cause is None
    assert tiered.log().ssd_bytes() <= 40_000
    maintenance = tiered.node().tiers
    assert maintenance is not None
    maintenance.rate = maintenance.rate.__class__(1e9, 1e9, 1e9)
    maintenance.budget = maintenance.budget.__class__(tiered.made.clock.now_ms())
    tiered.made.run_for(5_000)
    assert set(tiered.produce(10)) == {0}
    assert tiered.read_all() == tiered.produced


def test_a_batch_that_fits_only_after_an_eviction_is_taken() -> None:
    """Found by the swarm: the SSD was used below the threshold of evictions, and the batch was refused for good."""
    tiered = Tiered(camerlengo_tier_ssd_bytes="12000")
    while tiered.log().ssd_bytes() <= 8_500:
        assert tiered.produce(1) == [0]
        tiered.made.run_for(500)
    batch = encode_batch([Record(one, tiered.made.clock.wall_ms(), None, RECORD) for one in range(13)])
    assert tiered.append(batch) == 56
    tiered.made.run_for(500)
    assert tiered.append(batch) == 0


def test_an_ssd_full_of_active_segments_gets_room() -> None:
    tiered = Tiered(log_segment_bytes="100000")
    assert 56 in tiered.produce(200)
    tiered.made.run_for(2_000)
    assert tiered.produce(1) == [0]
    assert tiered.read_all() == tiered.produced


def test_a_compacted_topic_leaves_the_ssd_and_is_cleaned_on_both_tiers() -> None:
    """Found by the swarm: the SSD stayed full of `__consumer_offsets` and `__transaction_state`."""
    tiered = Tiered(log_cleaner_backoff_ms="3000", camerlengo_tier_ssd_bytes="12000")
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}
    assert tiered.made.answer(tiered.made.create_topic("compacted", 1, 1, config)) == "done"
    tiered.made.run_until_rest()
    services = tiered.node().services
    assert services is not None
    log = services.logs.get("compacted", 0)
    assert isinstance(log, TieredLog)
    states: Counter[SegmentState] = Counter()
    for number in range(400):
        record = Record(0, tiered.made.clock.wall_ms(), b"key-%d" % (number % 7), RECORD)
        while tiered.append(encode_batch([record]), "compacted") != 0:
            tiered.made.run_for(200)
        tiered.made.run_for(50)
        states.update(segment.state for segment in log.segments)
    assert states[SegmentState.WithoutCache] > 0
    assert log.cleaned_to > 100
    assert log.size_bytes < 30_000, "100,000 bytes were written"
    tiered.made.run_until(lambda: log.segments[0].state is SegmentState.Cached)


def test_a_restart_finds_every_segment_again() -> None:
    tiered = Tiered()
    for _ in range(10):
        tiered.produce(30)
        tiered.made.run_for(1_000)
    before = tiered.states()
    assert before["WithoutCache"]
    tiered.made.kill(1)
    tiered.made.run_for(1_000)
    tiered.made.start(1)
    tiered.made.run_until(lambda: tiered.made.node(1) is not None and tiered.leads(1))
    tiered.made.run_until_rest()
    assert tiered.read_all() == tiered.produced
    assert tiered.states()["WithoutCache"] == before["WithoutCache"]


@pytest.mark.parametrize("tier", ["ssd", "hdd"])
def test_followers_append_where_their_topic_wants_and_leaders_to_the_ssd(tier: str) -> None:
    tiered = Tiered(brokers=2, camerlengo_follower_tier=tier)
    leader = tiered.leader()
    tiered.produce(40, leader)
    follower = 3 - leader
    assert tiered.log(leader).segments[-1].state is SegmentState.Active
    expected = SegmentState.ActiveOnHdd if tier == "hdd" else SegmentState.Active
    assert tiered.log(follower).segments[-1].state is expected
    tiered.made.kill(leader)
    tiered.made.run_until(lambda: tiered.made.node(follower) is not None and tiered.leads(follower))
    tiered.produce(5, follower)
    assert tiered.log(follower).segments[-1].state is SegmentState.Active
    assert tiered.read_all(follower) == tiered.produced


def test_a_lost_hdd_leaves_hot_data_served() -> None:
    tiered = Tiered()
    for _ in range(10):
        tiered.produce(30)
        tiered.made.run_for(1_000)
    log = tiered.log()
    lost = next(segment.store for segment in log.segments if segment.state is SegmentState.WithoutCache)
    assert lost is not None
    tiered.fail(lost.path)
    tiered.produce(60)
    tiered.made.run_for(5_000)
    assert not lost.is_online, "the next copy finds it"
    assert log.unavailable is not None
    with pytest.raises(LogOffline, match="on an HDD that is lost"):
        log.read(log.log_start_offset, 100)
    assert log.read(log.unavailable.end_offset, 100).length
    assert set(tiered.produce(30)) == {0}
    tiered.made.run_for(5_000)
    assert tiered.states()["Cached"], "copies go to the other HDD"


def test_a_lost_ssd_takes_the_replica_out_of_the_isr() -> None:
    tiered = Tiered(brokers=2)
    leader = tiered.leader()
    tiered.produce(60, leader)
    tiered.made.run_for(2_000)
    tiered.fail("/ssd", leader)
    other = 3 - leader
    tiered.made.run_for(100)
    batch = encode_batch([Record(0, tiered.made.clock.wall_ms(), None, RECORD)])
    request = ProduceRequest(1, 1_000, (ProduceTopic("t", (ProducePartition(0, batch),)),))
    tiered.made.ask(leader, ApiKey.PRODUCE, request)
    tiered.made.run_until(lambda: tiered.leads(other))
    partition = tiered.node(other).broker.replicas.partition("t", 0)
    assert partition is not None
    tiered.made.run_until(lambda: partition.isr == (other,))
    fetch = FetchRequest(100, 1, topics=(FetchTopic("t", (FetchPartition(0, 0, 1 << 20),)),))
    answer = tiered.made.answer(tiered.made.ask(leader, ApiKey.FETCH, fetch))
    assert answer.responses[0].partitions[0].error_code != 0
    assert tiered.read_all(other) >= tiered.produced


def test_a_replica_on_two_tiers_is_reassigned() -> None:
    """What an HDD alone has is copied to the new broker too, and nothing of it stays behind."""
    tiered = Tiered(brokers=2)
    made, leader = tiered.made, tiered.leader()
    for _ in range(5):
        tiered.produce(30, leader)
        made.run_for(1_000)
    assert tiered.states(leader)["WithoutCache"]
    other = 3 - leader
    made.inject(Reassign(at_ms=made.now_ms, topic="t", partition=0, replicas=[other]))
    made.run_until(lambda: tiered.leads(other))
    made.run_until_rest()
    assert tiered.read_all(other) == tiered.produced == 150
    assert tiered.states(other)["WithoutCache"]
    made.run_for(120_000)  # the removal of deleted partitions
    disk = made.host.world.disks[leader]
    assert [name for path in ("/ssd", "/hdd1", "/hdd2") for name in disk.names(path) if name.startswith("t-0")] == []


def test_a_corrupt_batch_on_an_hdd_takes_that_replica_alone_offline() -> None:
    tiered = Tiered(brokers=2)
    made, leader = tiered.made, tiered.leader()
    assert made.answer(made.create_topic("u", 1, 2)) == "done"
    for _ in range(5):
        tiered.produce(30, leader)
        made.run_for(1_000)
    made.run_until_rest()
    log = tiered.log(leader)
    segment = next(one for one in log.segments if one.state is SegmentState.WithoutCache)
    made.safety_checker.expected_errors += ("a log in /ssd is offline",)
    made.host.world.disks[leader].damage(segment.path, 16)
    fetch = FetchRequest(100, 1, topics=(FetchTopic("t", (FetchPartition(0, segment.base_offset, 1 << 20),)),))
    for _ in range(2):  # the first may be read in by the device
        answer = made.answer(made.ask(leader, ApiKey.FETCH, fetch))
    assert answer.responses[0].partitions[0].error_code != 0
    made.run_until(lambda: tiered.leads(3 - leader))
    assert tiered.read_all(3 - leader) == tiered.produced
    services = tiered.node(leader).services
    assert services is not None
    assert [one.health.cause for one in services.logs.directories] == [None] * 3
    assert services.logs.lost_with(services.logs.directories[0]) == [("t", 0)]
    assert tiered.leads(leader, "u") or tiered.leads(3 - leader, "u")
    partition = tiered.node(leader).broker.replicas.partition("u", 0)
    assert partition is not None
    assert not partition.offline


def test_a_log_moves_to_an_hdd_and_back() -> None:
    """AlterReplicaLogDirs: whole onto an HDD, where it has one tier, and back to the SSD, which it fills by age."""
    tiered = Tiered()
    made = tiered.made
    for _ in range(5):
        tiered.produce(30)
        made.run_for(1_000)
    assert tiered.states()["WithoutCache"]
    for path in ("/hdd1", "/ssd"):
        to = (LogDirToMoveTo(path, (ReplicasToMove("t", (0,)),)),)
        answer = made.answer(made.ask(1, ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(to)))
        assert answer.results[0].partitions[0].error_code == 0
        services = tiered.node().services
        assert services is not None
        logs = services.logs

        def home(logs: LogManager = logs) -> str | None:
            directory = logs.directory_of("t", 0)
            return None if directory is None else directory.path

        made.run_until(lambda path=path: home() == path)  # type: ignore[misc]
        made.run_for(5_000)  # the SSD is full of what came at once
        assert set(tiered.produce(30)) == {0}
        made.run_for(1_000)
    made.run_for(120_000)
    assert tiered.read_all() == tiered.produced == 210
    assert tiered.states()["WithoutCache"]
    disk = made.host.world.disks[1]
    assert [name for name in disk.names("/hdd1") if name.startswith("t-0") and not name.endswith("-tier")] == []


@pytest.mark.parametrize(
    ("plant", "finds"),
    [
        (throttle_ignored, test_a_copy_keeps_to_its_rate),
        (serves_after_a_lost_ssd, test_a_lost_ssd_takes_the_replica_out_of_the_isr),
        (full_ssd_stays_full, test_a_batch_that_fits_only_after_an_eviction_is_taken),
        (full_ssd_stays_full, test_an_ssd_full_of_active_segments_gets_room),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], finds: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, NotInTime)):
        finds()


@pytest.mark.parametrize("seed", [2, 267])
def test_a_seed_of_the_swarm_with_tiers_holds(seed: int) -> None:
    """`camerlengo simulate swarm --seeds 0..4999 --tiers` runs many. 267: an SSD is lost while a coordinator reads."""
    plan = draw_plan(seed, tiers=True)
    assert parse_plan(plan_text(plan), "it") == plan
    run = run_plan(plan)
    assert run.violation is None, str(run.violation)
