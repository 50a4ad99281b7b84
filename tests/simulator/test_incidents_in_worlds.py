"""Incidents whose moment no plan can name: worlds that are stepped to it by what is in them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.broker.isr_manager import IsrManager
from controller.broker.partition import Partition
from controller.broker.replica_manager import ReplicaManager
from controller.clock import Future
from controller.protocol import ApiKey, ErrorCode
from controller.protocol.control import NO_EPOCH, StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from controller.simulator import NotInTime, PartitionView, Simulation, TraceRecord
from controller.storage.batches import Record, encode_batch
from controller.trace import IsrProposed

T = ("t", 0)
LAG_MS = 1_000.0
LOGS = {"log.dirs": "/logs", "replica.lag.time.max.ms": f"{LAG_MS:.0f}"}


def world(brokers: int, replication_factor: int, seed: int, **settings: str) -> Simulation:
    """At rest, with one partition, whose brokers hold logs."""
    made = Simulation(brokers, seed=seed, settings={**LOGS, **settings})
    made.run_until(lambda: len(made.registered) == brokers)
    assert made.answer(made.create_topic("t", 1, replication_factor)) == "done"
    made.run_until_rest()
    return made


def state(made: Simulation) -> PartitionView:
    return made.partitions()[T]


def produce(made: Simulation, leader: int, value: bytes, timeout_ms: int = 10_000) -> Future[ProduceResponse]:
    """One record, acknowledged by the whole ISR."""
    batch = encode_batch([Record(0, made.clock.wall_ms(), None, value)])
    request = ProduceRequest(-1, timeout_ms, (ProduceTopic("t", (ProducePartition(0, batch),)),))
    return made.ask(leader, ApiKey.PRODUCE, request, 1.5 * timeout_ms)


def error(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


# -- S30


def stopped_late(seed: int) -> tuple[Simulation, int, int]:
    """A StopReplica of an earlier leader epoch comes to a follower that has been told of the next one: the world, who
    it came to, and the partition's error."""
    made = world(3, 3, seed)
    gone = state(made).assignment[-1]
    made.kill(gone, for_ms=3_000)
    made.run_until(lambda: gone not in state(made).isr)
    made.run_until_rest()
    now = state(made)
    follower = now.isr[-1]
    late = made.add_node("a connection that was slow")
    request = StopReplicaRequest(
        made.controller or 0,
        made.controller_epoch,
        (StopReplicaTopicState("t", (StopReplicaPartitionState(0, now.leader_epoch - 1, True),)),),
        made.zookeeper.row(f"/brokers/ids/{follower}").stat.czxid,  # type: ignore[union-attr]
    )
    response = made.answer(late.ask(follower, ApiKey.STOP_REPLICA, request))
    return made, follower, response.partition_errors[0].error_code


def test_s30_a_stop_replica_that_was_overtaken_stops_nothing() -> None:
    made, follower, code = stopped_late(4)
    assert code == ErrorCode.FENCED_LEADER_EPOCH
    made.run_for(5_000)
    made.run_until_rest()
    assert follower in state(made).isr


def test_s30_a_broker_that_obeyed_it_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = ReplicaManager._stop

    def obey(self: ReplicaManager, topic: str, told: StopReplicaPartitionState, stopped: list[Partition]) -> ErrorCode:
        return stop(self, topic, replace(told, leader_epoch=NO_EPOCH), stopped)

    monkeypatch.setattr(ReplicaManager, "_stop", obey)
    made, follower, code = stopped_late(4)
    assert code == ErrorCode.NONE
    node = made.node(follower)
    assert node is not None
    assert node.broker.replicas.partition(*T) is None
    assert made.unrest() is not None


# -- S40


def an_empty_follower_is_asked_in(seed: int) -> tuple[Simulation, int, int]:
    """A leader alone in its ISR asks for a follower that has everything; its request is long under way. Meanwhile the
    follower dies, loses its disk and registers anew. Then the request arrives. The world, the leader, the follower."""
    made = world(4, 2, seed)
    leader, follower = state(made).isr
    assert made.controller not in (leader, follower), "another seed: the controller is to be a third"
    made.kill(follower)
    made.run_until(lambda: state(made).isr == (leader,))
    assert error(made.answer(produce(made, leader, b"kept"))) == ErrorCode.NONE
    made.cut(leader, made.controller or 0)
    asked: list[TraceRecord] = []
    made.subscribe(lambda record: asked.append(record) if isinstance(record.event, IsrProposed) else None)
    made.start(follower)
    made.run_until(lambda: bool(asked))
    made.kill(follower)
    del made.host.world.disks[follower]
    made.cut(follower, leader)
    made.run_until(lambda: follower not in made.registered)
    made.start(follower)
    made.run_until(lambda: follower in made.registered)
    made.run_for(50)
    made.heal(leader, made.controller or 0)
    made.run_for(1_000)
    return made, leader, follower


S40_SEEDS = (3, 4, 5)


@pytest.mark.parametrize("seed", S40_SEEDS)
def test_s40_a_follower_that_lost_its_disk_is_not_taken_for_its_earlier_life(seed: int) -> None:
    made, leader, follower = an_empty_follower_is_asked_in(seed)
    assert state(made).isr == (leader,)
    made.heal(follower, leader)
    made.run_until_rest()
    assert set(state(made).isr) == {leader, follower}, "by what its present life has fetched"
    made.kill(leader)
    made.run_until(lambda: state(made).leader == follower)
    assert log_end(made, follower) == 1, "the record that was acknowledged"


def test_s40_without_lives_told_the_record_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IsrManager, "_member_epochs", lambda self, partition, members: ())
    made, leader, follower = an_empty_follower_is_asked_in(S40_SEEDS[0])
    assert state(made).isr == (leader, follower)
    made.kill(leader)
    made.run_until(lambda: state(made).leader == follower)
    assert log_end(made, follower) == 0


def log_end(made: Simulation, broker: int) -> int:
    node = made.node(broker)
    assert node is not None
    partition = node.broker.replicas.partition(*T)
    assert partition is not None
    assert partition.log is not None
    return partition.log.log_end_offset


# -- S44


def acknowledged_after(seed: int) -> float:
    """A record waits for a follower that stands still; nothing else is ever appended. By how much after the ISR without
    that follower was written the producer has its answer, ms."""
    made = world(3, 2, seed)
    leader, follower = state(made).isr
    made.pause(follower)
    answer = produce(made, leader, b"the last for now", timeout_ms=20_000)
    made.run_until(lambda: state(made).isr == (leader,))
    shrunk_ms = made.now_ms
    assert error(made.answer(answer)) == ErrorCode.NONE
    return made.now_ms - shrunk_ms


@pytest.mark.parametrize("seed", range(3))
def test_s44_a_shrunk_isr_moves_the_high_watermark_without_another_append(seed: int) -> None:
    assert acknowledged_after(seed) < LAG_MS / 4


def test_s44_a_leader_that_waited_for_the_next_append_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the high watermark when an ISR has changed."""
    for looks in ("_changed", "_isr_changed"):
        monkeypatch.setattr(IsrManager, looks, lambda self, partition: None)
    made = world(3, 2, 0)
    leader, follower = state(made).isr
    made.pause(follower)
    answer = produce(made, leader, b"the last for now", timeout_ms=8_000)
    with pytest.raises(NotInTime):
        made.answer(answer, within_ms=5_000)


# -- S47


@pytest.mark.parametrize("seed", range(3))
def test_s47_a_leader_that_missed_a_change_follows_and_isrs_change_on(seed: int) -> None:
    """Cut off from ZooKeeper, it takes a record that its followers never see, and wants them out of its ISR: by a
    version that is behind, in an epoch that is over."""
    made = world(3, 3, seed)
    before = state(made)
    deposed = before.leader
    others = [broker for broker in made.running if broker != deposed]
    made.cut_zookeeper(deposed)
    made.run_until(lambda: state(made).leader not in (deposed, -1))
    made.run_for(100)  # and its followers have been told
    now = state(made)
    lost = produce(made, deposed, b"nobody else's", timeout_ms=3_000)
    made.run_for(3_000)
    assert deposed not in state(made).isr
    assert state(made).leader == now.leader
    made.heal_zookeeper(deposed)
    made.run_until_rest()
    assert set(state(made).isr) == {deposed, *others}
    assert error(made.answer(lost)) != ErrorCode.NONE
    assert {log_end(made, broker) for broker in made.running} == {0}
    assert error(made.answer(produce(made, state(made).leader, b"and on"))) == ErrorCode.NONE
