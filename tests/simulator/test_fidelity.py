"""The simulated cluster sends each broker what a real Kafka 2.8.2 cluster's controller sent, in its order.

A recorded cluster's steps, taken by simulated brokers with the controller among them: nothing here stands in for any
of them. Compared are the frames that each broker received, field by field; ids, hosts, ports and broker epochs are
this cluster's own, and the batches of a failover are one (`recorded_failover`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from controller.core.channels import ControlRequest, _Channel
from controller.core.context import ControllerContext, Replicas
from controller.core.request_batch import RequestBatch
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    SHUTDOWN_UNSAID,
    ControlledShutdownRequest,
)
from tests.kafka_recording import (
    ALTER_ISRS,
    DEATH_OF_2,
    FIRST_BROKERS,
    MORE_PARTITIONS,
    NEW_TOPICS,
    PREFERRED_ELECTION,
    RETURN_OF_2,
    SHUTDOWN_OF_2,
    Request,
    before_the_shutdown,
    deletion_requests,
    deletion_writes,
    recorded,
    recorded_failover,
    recorded_states,
    value_of,
    writes_of,
)
from tests.simulator.recorded_cluster import RecordedCluster

SEEDS = (1, 2, 3, 4)


def with_ids(told: dict[int, list[Request]], ids: dict[bytes, bytes]) -> dict[int, list[Request]]:
    """With the recorded topics' ids in the place of ours."""

    def translated(request: Request) -> Request:
        api, controller, named, states = request
        return api, controller, named, {name: (ids.get(one, one), state) for name, (one, state) in states.items()}

    return {broker: [translated(request) for request in requests] for broker, requests in told.items()}


def assignment_of(told: Iterable[int]) -> tuple[bytes, dict[int, tuple[int, ...]]]:
    """The recorded id of the one topic that is told of, and its replicas."""
    states = recorded_states(told)
    (topic_id,) = {topic_id for topic_id, _ in states.values()}
    return topic_id, {partition: state.replicas for (_, partition), (_, state) in sorted(states.items())}


def beginning(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Brokers start, topics are created, one is expanded."""
    cluster = RecordedCluster(monkeypatch, seed)
    for broker, told in FIRST_BROKERS:
        mark = len(cluster.heard)
        cluster.start(broker)
        assert cluster.told_since(mark) == recorded(told), broker
    ids: dict[bytes, bytes] = {}
    for topic, told in NEW_TOPICS:
        mark = len(cluster.heard)
        topic_id, assignment = assignment_of(told)
        placed = tuple(CreatableReplicaAssignment(*one) for one in assignment.items())
        answer = cluster.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest((CreatableTopic(topic, -1, -1, placed),)))
        cluster.settle()
        assert [result.error_code for result in answer.topics] == [0]
        ids[answer.topics[0].topic_id] = topic_id
        assert with_ids(cluster.told_since(mark), ids) == recorded(told), topic
    mark = len(cluster.heard)
    _, added = assignment_of(MORE_PARTITIONS)
    more = tuple(CreatePartitionsAssignment(replicas) for replicas in added.values())
    asked = CreatePartitionsTopic("pay", max(added) + 1, more)
    answer = cluster.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest((asked,), 10_000))
    cluster.settle()
    assert [result.error_code for result in answer.results] == [0]
    assert with_ids(cluster.told_since(mark), ids) == recorded(MORE_PARTITIONS)
    cluster.check()


def same_request(ours: Any, line: int) -> None:
    """A broker's own request, its broker epoch aside, and the tagged field in which ours says how it goes."""
    theirs = value_of(line)
    if isinstance(ours, ControlledShutdownRequest):
        ours = replace(ours, manner=SHUTDOWN_UNSAID)
    assert replace(ours, broker_epoch=theirs.broker_epoch) == theirs, line


def departures(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A broker shuts down, dies, returns and catches up; the controller is killed; both that are left shut down."""
    cluster = RecordedCluster(monkeypatch, seed)
    cluster.start_led_by(1, (2, 3), 0, list(writes_of(before_the_shutdown())))
    shut_down_and_back(cluster)
    catch_up(cluster)
    mark = len(cluster.heard)
    cluster.process(1).kill()
    cluster.until(lambda: cluster.controller == 3)
    cluster.settle()
    assert cluster.told_since(mark) == recorded_failover()
    both_shut_down(cluster)
    cluster.check()


def shut_down_and_back(cluster: RecordedCluster) -> None:
    mark = len(cluster.heard)
    cluster.process(2).stop()
    cluster.until(lambda: bool(cluster.asked_since(mark, ApiKey.CONTROLLED_SHUTDOWN)))
    cluster.pass_ms(500.0)
    assert cluster.told_since(mark) == recorded(SHUTDOWN_OF_2)
    (asked,) = cluster.asked_since(mark, ApiKey.CONTROLLED_SHUTDOWN)
    same_request(asked.value, 151)

    mark = len(cluster.heard)
    cluster.until(lambda: 2 not in cluster.host.running())
    cluster.settle()
    assert cluster.told_since(mark) == recorded(DEATH_OF_2)

    mark = len(cluster.heard)
    cluster.farther_from_zookeeper(2)
    cluster.start(2)
    assert cluster.told_since(mark) == recorded(RETURN_OF_2)


def catch_up(cluster: RecordedCluster) -> None:
    for line, told in ALTER_ISRS:
        mark = len(cluster.heard)
        (topic,) = value_of(line).topics
        (change,) = topic.partitions
        cluster.catch_up(value_of(line).broker_id, topic.name, change.partition_index, 2)
        (asked,) = cluster.asked_since(mark, ApiKey.ALTER_ISR)
        same_request(asked.value, line)
        assert cluster.told_since(mark) == recorded(told), line


def both_shut_down(cluster: RecordedCluster) -> None:
    """The controller among them. Each asks, and asks again 5 s later. Before, the controller gives a partition back to
    its preferred leader, by itself, 5 s after its failover."""
    mark = len(cluster.heard)
    cluster.pass_ms(6_000.0)
    assert cluster.told_since(mark) == recorded(PREFERRED_ELECTION)

    asked_first, asked_again = (range(249, 258), (259, *range(261, 265)))
    mark = len(cluster.heard)
    cluster.process(3).stop()
    cluster.pass_ms(12.0)
    cluster.process(2).stop()
    cluster.settle()
    assert cluster.told_since(mark) == recorded(asked_first)
    mark = len(cluster.heard)
    cluster.pass_ms(5_000.0)
    assert cluster.told_since(mark) == recorded(asked_again)
    assert {one.value.broker_id for one in cluster.asked_since(mark, ApiKey.CONTROLLED_SHUTDOWN)} == {2, 3}


def deletion(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A topic is made, expanded and deleted. Of this the recording has no frames: the controller's log says which
    requests it sent, and ZooKeeper's what it wrote."""
    cluster = RecordedCluster(monkeypatch, seed)
    cluster.start_led_by(3, (1, 2), 1, [])
    placed = (CreatableReplicaAssignment(0, (2,)),)
    cluster.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest((CreatableTopic("tmp1x", -1, -1, placed),)))
    added = CreatePartitionsTopic("tmp1x", 3, (CreatePartitionsAssignment((3,)), CreatePartitionsAssignment((1,))))
    cluster.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest((added,), 10_000))
    cluster.settle()
    mark, written = len(cluster.heard), cluster.writes_from_now(3)
    answer = cluster.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest((DeleteTopicState("tmp1x"),), 10_000))
    assert [result.error_code for result in answer.responses] == [0]
    cluster.settle()
    told = cluster.told_since(mark)
    assert {broker: [(one[0], len(one[3])) for one in requests] for broker, requests in told.items()} == (
        deletion_requests()
    )
    for metadata, stop, delete in told.values():
        fields = {(one.leader, one.leader_epoch, one.zk_version, len(one.isr)) for _, one in metadata[3].values()}
        assert fields == {(LEADER_DURING_DELETE, 0, 0, 1)}
        flags = [(one.leader_epoch, one.delete_partition) for asked in (stop, delete) for _, one in asked[3].values()]
        assert flags == [(EPOCH_DURING_DELETE, False), (EPOCH_DURING_DELETE, True)]
    expected = deletion_writes()
    assert [one for one in written if one[0] == "delete"] == [one for one in expected if one[0] == "delete"]
    assert [one for one in written if one[0] == "setData"] == sorted(expected[:3], key=lambda one: one[1])
    for broker in cluster.brokers():
        assert "tmp1x" not in broker.metadata.snapshot.topics
        assert all(partition.topic != "tmp1x" for partition in broker.replicas.partitions())
    cluster.check()


Scene = Callable[[pytest.MonkeyPatch, int], None]
SCENES: tuple[Scene, ...] = (beginning, departures, deletion)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.__name__))
def test_brokers_are_told_what_a_real_controller_told(scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene(monkeypatch, seed)


# -- what the comparison must find


def metadata_first(monkeypatch: pytest.MonkeyPatch) -> None:
    leader_and_isr, metadata = RequestBatch._send_leader_and_isr, RequestBatch._send_update_metadata
    monkeypatch.setattr(RequestBatch, "_send_leader_and_isr", metadata)
    monkeypatch.setattr(RequestBatch, "_send_update_metadata", leader_and_isr)


def no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestBatch, "_send_stop_replicas", lambda batch: None)


def queue_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes before those that wait, where more than one does."""
    put = _Channel.put

    def overtaking(channel: _Channel, request: ControlRequest) -> None:
        put(channel, request)
        if len(channel._queue) > 2:
            channel._queue.insert(1, channel._queue.pop())

    monkeypatch.setattr(_Channel, "put", overtaking)


def shutting_down_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControllerContext, "eligible_ids", property(lambda context: context.broker_ids))


def always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = RequestBatch.leader_and_isr

    def as_new(batch: RequestBatch, replicas: Replicas, *, is_new: bool = False) -> None:
        tell(batch, replicas, is_new=True)

    monkeypatch.setattr(RequestBatch, "leader_and_isr", as_new)


Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: tuple[tuple[Scene, Fault], ...] = (
    (beginning, metadata_first),
    (departures, metadata_first),
    (departures, no_stop),
    (departures, queue_overtaken),
    (departures, shutting_down_is_live),
    (departures, always_new),
    (deletion, no_stop),
)


@pytest.mark.parametrize(("scene", "fault"), FAULTS, ids=lambda one: str(one.__name__).replace("_", " "))
def test_a_planted_fault_is_found(scene: Scene, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        scene(monkeypatch, SEEDS[0])
