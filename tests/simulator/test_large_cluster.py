"""An cluster of many brokers loses some and is whole again; whoever says that it is whole notices what is not; and what
many brokers share is what each would have had alone."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CoroutineType
from typing import Any

import msgspec
import pytest

from controller.broker.fetcher import Fetcher, LeaderLink
from controller.broker.fetcher_state import FetcherQueue, FetchSessionHandler
from controller.broker.metadata import NOTHING_KNOWN, MetadataSnapshot
from controller.broker.node import Node
from controller.broker.partition import Role
from controller.broker.records.fetch import DelayedFetch
from controller.protocol.codec import ApiKey, RequestHeader, decode_request, encode_request_body, request_head
from controller.protocol.control import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.simulator.large_cluster import LargeClusterSpec, LargeClusterWorld, NotConverged, missing
from controller.simulator.metadata_interning import KEPT, MetadataInterning
from controller.simulator.network import Pipe, SharedFrame, Socket
from controller.simulator.observer import partitions
from controller.simulator.requests import BrokerConnection
from controller.storage import PartitionLog
from controller.storage.segment import Segment
from controller.trace import RequestAnswered, RequestSent
from controller.zookeeper import paths
from controller.zookeeper.codecs import PartitionStateZnode, encode_partition_state
from controller.zookeeper.operations import ANY_VERSION, Delete, SetData

BROKERS, PARTITIONS = 20, 2_000
LOST = (3, 13)
LEFT = tuple(node for node in range(1, BROKERS + 1) if node not in LOST)


@pytest.fixture(scope="module")
def built() -> Iterator[LargeClusterWorld]:
    world = LargeClusterWorld(LargeClusterSpec(BROKERS, PARTITIONS))
    world.build()
    before = partitions(world.zookeeper)
    assert len(before) == PARTITIONS
    assert all(state.isr == state.assignment for state in before.values())
    world.lose(LOST)
    with pytest.raises(NotConverged, match="registered"):  # nobody has noticed yet
        world.until_converged(LEFT, 1_000.0)
    world.until_converged(LEFT, 60_000.0)
    yield world
    world.close()


def _node(world: LargeClusterWorld, broker: int) -> Node:
    node = world.cluster.node(broker)
    assert node is not None
    return node


def test_what_lost_brokers_led_is_led_by_others(built: LargeClusterWorld) -> None:
    for key, state in partitions(built.zookeeper).items():
        left = [replica for replica in state.assignment if replica not in LOST]
        assert left, key
        assert state.leader == left[0], key  # whose ISR was whole: in the assignment's order
        assert sorted(state.isr) == sorted(left), key


def test_each_broker_left_tells_and_does_what_zookeeper_holds(built: LargeClusterWorld) -> None:
    held = partitions(built.zookeeper)
    for broker in LEFT:
        node = _node(built, broker)
        snapshot = node.broker.metadata.snapshot
        assert tuple(sorted(snapshot.brokers)) == LEFT
        shown = {
            (topic, number): (state.leader, state.isr, state.leader_epoch)
            for topic, states in snapshot.topics.items()
            for number, state in states.items()
        }
        assert shown == {key: (state.leader, state.isr, state.leader_epoch) for key, state in held.items()}
        mine = {(one.topic, one.index): one for one in node.broker.replicas.partitions()}
        assert set(mine) == {key for key, state in held.items() if broker in state.assignment}
        for key, partition in mine.items():
            assert partition.leader_epoch == held[key].leader_epoch
            assert (partition.role is Role.LEADER) == (held[key].leader == broker)


def test_all_brokers_left_hold_one_metadata_image(built: LargeClusterWorld) -> None:
    assert len({id(_node(built, broker).broker.metadata.snapshot) for broker in LEFT}) == 1


def test_every_request_was_answered_and_no_invariant_broken(built: LargeClusterWorld) -> None:
    events = [record.event for record in built.safety_checker.records]
    sent = [event for event in events if isinstance(event, RequestSent) and event.to_broker not in LOST]
    answered = [event for event in events if isinstance(event, RequestAnswered) and event.to_broker not in LOST]
    assert built.safety_checker.violation is None
    assert len(sent) == len(answered) > len(LEFT)


# -- whoever says that it is whole


def _path(world: LargeClusterWorld, row: int) -> str:
    return paths.partition_state(*world.cluster.keys[row])


@contextmanager
def _written(world: LargeClusterWorld, change: Callable[[PartitionStateZnode], PartitionStateZnode]) -> Iterator[None]:
    """The first partition's znode, written over by somebody: the controller does not watch it."""
    path, states = _path(world, 0), world.cluster.states()
    isr = tuple(member for member in states.isr[0].tolist() if member >= 0)
    was = PartitionStateZnode(int(states.leader[0]), int(states.leader_epoch[0]), isr, int(states.controller_epoch[0]))
    row = world.zookeeper.row(path)
    assert row is not None
    node = world.zookeeper._database.tree.nodes[path]
    version = node.version
    world.zookeeper.restore([SetData(path, encode_partition_state(change(was)), ANY_VERSION)])
    try:
        yield
    finally:
        world.zookeeper.restore([SetData(path, row.data, ANY_VERSION)])
        node.version = version


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: dataclasses.replace(state, leader=-1), "not led"),
        (lambda state: dataclasses.replace(state, leader=LOST[0]), "not led"),
        (lambda state: dataclasses.replace(state, isr=state.isr[:1]), "ISRs are not all that live"),
        (lambda state: dataclasses.replace(state, leader_epoch=99), "in the controller's context"),
        (lambda state: state, "in the controller's context"),  # its version is another
    ],
    ids=["no leader", "a dead leader", "a smaller ISR", "another epoch", "another version"],
)
def test_a_state_that_is_not_whole_is_noticed(
    built: LargeClusterWorld, change: Callable[[PartitionStateZnode], PartitionStateZnode], says: str
) -> None:
    assert missing(built.cluster, LEFT) is None
    with _written(built, change):
        found = missing(built.cluster, LEFT)
        assert found is not None
        assert says in found
    assert missing(built.cluster, LEFT) is None


def _without_a_partition(snapshot: MetadataSnapshot) -> MetadataSnapshot:
    name, states = next(iter(snapshot.topics.items()))
    return msgspec.structs.replace(snapshot, topics={**snapshot.topics, name: dict(list(states.items())[1:])})


def _with_another_leader(snapshot: MetadataSnapshot) -> MetadataSnapshot:
    name, states = next(iter(snapshot.topics.items()))
    number, state = next(iter(states.items()))
    other = msgspec.structs.replace(state, leader=state.leader + 1)
    return msgspec.structs.replace(snapshot, topics={**snapshot.topics, name: {**states, number: other}})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda snapshot: msgspec.structs.replace(snapshot, controller_id=LEFT[-1] + 1), "reports controller"),
        (lambda snapshot: msgspec.structs.replace(snapshot, brokers={}), "knows 0 brokers"),
        (_without_a_partition, "shows 1999 partitions"),
        (_with_another_leader, "ZooKeeper has leader"),
    ],
    ids=["controller", "brokers", "a partition less", "another leader"],
)
def test_metadata_of_one_broker_that_is_another_is_noticed(
    built: LargeClusterWorld, change: Callable[[MetadataSnapshot], MetadataSnapshot], says: str
) -> None:
    metadata = _node(built, LEFT[-1]).broker.metadata
    was = metadata.snapshot
    metadata.snapshot = change(was)
    found = missing(built.cluster, LEFT)
    metadata.snapshot = was
    assert found is not None
    assert says in found
    assert missing(built.cluster, LEFT) is None


def test_a_replica_that_goes_by_another_leader_is_noticed(built: LargeClusterWorld) -> None:
    replicas = _node(built, LEFT[0]).broker.replicas
    partition = next(iter(replicas.partitions()))
    leader, partition.leader = partition.leader, -1
    assert "has leader -1" in (missing(built.cluster, LEFT) or "")
    partition.leader = leader
    del replicas._partitions[partition.topic, partition.index]
    assert "replicas have a role" in (missing(built.cluster, LEFT) or "")
    replicas._partitions[partition.topic, partition.index] = partition


def test_another_number_of_brokers_is_noticed(built: LargeClusterWorld) -> None:
    assert "are registered" in (missing(built.cluster, LEFT[1:]) or "")
    assert "are registered" in (missing(built.cluster, (*LEFT, LOST[0])) or "")


def test_an_invariant_that_breaks_while_it_is_waited_for_ends_the_wait() -> None:
    world = LargeClusterWorld(LargeClusterSpec(brokers=3, partitions=30, a_topic=7))
    world.build()
    world.lose([2])
    world.safety_checker.violated("partition-states-sound", [1], "planted")
    with pytest.raises(NotConverged, match="planted"):
        world.until_converged([1, 3], 60_000.0)
    world.close()


def test_brokers_with_logs_are_whole_again_while_their_idle_fetches_are_parked() -> None:
    others = [one for one in gc.get_objects() if isinstance(one, CoroutineType)]  # of worlds before this one
    world = LargeClusterWorld(LargeClusterSpec(brokers=8, partitions=120, a_topic=15, logs=True))
    world.build()
    world.lose([2, 5])
    world.until_converged([1, 3, 4, 6, 7, 8], 60_000.0)
    assert world.safety_checker.violation is None
    for broker in (1, 3, 4, 6, 7, 8):
        partitions_here = list(_node(world, broker).broker.replicas.partitions())
        assert partitions_here
        assert all(partition.log is not None for partition in partitions_here)
    world.until_parked(5_000.0)  # fetches of new leaderships wait less at first
    fetching = [one for broker in (1, 3) for one in world.host.processes[broker].unanswered() if one.api == "FETCH"]
    assert fetching
    assert world.parked == world.fetchers == 6 * 5
    # As many as pairs of brokers: none may hold a coroutine's frames, or a dictionary for its fields.
    gc.collect()
    held = gc.get_objects()
    coroutines = [one for one in held if isinstance(one, CoroutineType) and one.cr_frame]
    waiting = [one.__qualname__ for one in coroutines if not any(one is other for other in others)]
    assert not [name for name in waiting if "Fetch" in name or "Link" in name or "Connection" in name]
    of_fetchers = (Fetcher, FetcherQueue, FetchSessionHandler, LeaderLink, BrokerConnection, DelayedFetch)
    there = [one for one in held if isinstance(one, (*of_fetchers, PartitionLog, Segment, Pipe, Socket))]
    assert {type(one) for one in there} >= set(of_fetchers)
    assert not [type(one) for one in there if hasattr(one, "__dict__")]
    world.close()


def test_an_estate_that_nobody_leads_is_not_whole() -> None:
    world = LargeClusterWorld(LargeClusterSpec(brokers=3, partitions=30))
    world.build()
    world.zookeeper.restore([Delete(paths.CONTROLLER, ANY_VERSION)])
    assert missing(world.cluster, (1, 2, 3)) == "no active controller"
    world.close()


# -- what many share


def _request(leader: int, broker_epoch: int, live: int = 40) -> UpdateMetadataRequest:
    states = tuple(UpdateMetadataPartitionState(n, 1, leader, 2, (1, 2), 3, (1, 2), ()) for n in range(5))
    brokers = tuple(
        UpdateMetadataBroker(n, (UpdateMetadataEndpoint(9092, f"broker-{n}", "PLAINTEXT", 0),), None)
        for n in range(live)
    )
    return UpdateMetadataRequest(1, 1, (UpdateMetadataTopicState("t", states, bytes(16)),), brokers, broker_epoch)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("version", [5, 6, 7])
def test_what_is_decoded_once_is_what_each_would_have_decoded(version: int, follow: bool) -> None:
    interning = MetadataInterning()
    ours: dict[str, Any] = {"partitions_follow": follow, "complete_but": ("t",) if follow else None}
    requests = {epoch: msgspec.structs.replace(_request(1, epoch), **ours) for epoch in (7, 8, 9)}
    bodies = {epoch: encode_request_body(ApiKey.UPDATE_METADATA, version, one) for epoch, one in requests.items()}
    rest = bodies[7][16:]
    decoded = []
    for number, (epoch, body) in enumerate(bodies.items()):
        header = RequestHeader(ApiKey.UPDATE_METADATA, version, number, "controller")
        frame = SharedFrame(request_head(header) + body[:16], rest)
        found = interning.request(frame)
        assert found == decode_request(frame.joined())
        assert isinstance(found.value, UpdateMetadataRequest)
        assert (found.value.broker_epoch, found.header.correlation_id) == (epoch, number)
        assert found.value.partitions_follow == (follow and version >= 6)
        assert found.value.complete_but == (("t",) if follow and version >= 6 else None)
        decoded.append(found.value)
    assert decoded[0].topic_states is decoded[1].topic_states is decoded[2].topic_states


def test_equal_bytes_that_are_another_object_are_decoded_anew_and_old_ones_are_forgotten() -> None:
    interning, rests = MetadataInterning(), []
    for number in range(3 * KEPT):
        body = encode_request_body(ApiKey.UPDATE_METADATA, 7, _request(number, 7))
        header = RequestHeader(ApiKey.UPDATE_METADATA, 7, number, "controller")
        rests.append(body[16:])
        frame = SharedFrame(request_head(header) + body[:16], rests[-1])
        assert interning.request(frame) == decode_request(frame.joined())
    assert len(interning._decoded) == KEPT


def test_what_was_told_before_is_the_same_value_when_it_is_told_again() -> None:
    interning, found = MetadataInterning(), []
    for number, leader in enumerate((1, 1, 2, 1)):
        body = encode_request_body(ApiKey.UPDATE_METADATA, 7, _request(leader, 7))
        header = RequestHeader(ApiKey.UPDATE_METADATA, 7, number, "controller")
        value = interning.request(SharedFrame(request_head(header) + body[:16], body[16:])).value
        assert isinstance(value, UpdateMetadataRequest)
        assert value == _request(leader, 7)
        found.append(value.topic_states)
    assert found[0] is found[1] is found[3]
    assert found[2] is not found[0]


def test_brokers_that_go_the_same_way_come_to_the_same_snapshot_and_others_to_their_own() -> None:
    interning, one, other = MetadataInterning(), _request(1, 7), _request(2, 7)
    first = interning.updated(NOTHING_KNOWN, one)
    assert first == NOTHING_KNOWN.updated(one)
    assert interning.updated(NOTHING_KNOWN, msgspec.structs.replace(one, broker_epoch=8)) is first
    assert interning.updated(NOTHING_KNOWN, other) == NOTHING_KNOWN.updated(other) != first
    assert interning.updated(first, other) == first.updated(other)
    moved = msgspec.structs.replace(one, controller_id=5)
    assert interning.updated(NOTHING_KNOWN, moved).controller_id == 5


def test_what_a_request_names_is_found_once_for_all_and_a_live_broker_is_one_object_in_all_requests() -> None:
    interning, found = MetadataInterning(), []
    for number in (1, 2):
        body = encode_request_body(ApiKey.UPDATE_METADATA, 7, _request(number, 7))
        header = RequestHeader(ApiKey.UPDATE_METADATA, 7, number, "controller")
        value = interning.request(SharedFrame(request_head(header) + body[:16], body[16:])).value
        assert isinstance(value, UpdateMetadataRequest)
        found.append(value)
    first, second = found
    assert all(one is other for one, other in zip(first.live_brokers, second.live_brokers, strict=True))
    named = interning.named(first)
    assert interning.named(msgspec.structs.replace(first, broker_epoch=8)) is named
    assert interning.named(second) is not named
    assert named.among({("t", 3): "held", ("u", 3): "not named"}) == ["held"]
