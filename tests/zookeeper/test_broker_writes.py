"""A broker's own writes: their lost replies, their races, and what Kafka 2.8 leaves behind with the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.clock import Coro, spawn
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import (
    OTHER_SESSION_TIMEOUTS,
    RESERVED_BROKER_MAX_ID,
    BrokerIdInUse,
    BrokerWrites,
    TopicWrites,
)
from controller.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    ControllerMoved,
    Create,
    DamagedZnode,
    Delete,
    NodeExists,
    NoNode,
    SessionGone,
    SetData,
)
from tests.zookeeper.client_bench import SESSION_TIMEOUT_MS, Bench, Node

DATA = b'{"version":5}'


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def node(bench: Bench) -> Node:
    return bench.node()


@pytest.fixture
def writes(bench: Bench, node: Node) -> BrokerWrites:
    writes = BrokerWrites(node.client)
    bench.run(writes.ensure_persistent_paths())
    return writes


# -- the tree


def test_the_tree_is_made_in_kafkas_order_each_node_empty(bench: Bench, writes: BrokerWrites) -> None:
    made = [row for row in bench.server.rows() if row.path in paths.PERSISTENT_PATHS]
    assert [row.path for row in sorted(made, key=lambda row: row.stat.czxid)] == list(paths.PERSISTENT_PATHS)
    assert {row.data for row in made} == {None}


def test_what_is_there_of_the_tree_is_left_alone(bench: Bench, node: Node, writes: BrokerWrites) -> None:
    bench.change(Delete(paths.CONFIG_IPS, ANY_VERSION))
    before = bench.server.zxid
    bench.run(writes.ensure_persistent_paths())
    assert bench.server.zxid == before + 1
    assert bench.row(paths.CONFIG_IPS) is not None


def test_two_brokers_that_start_at_once_both_find_the_tree(bench: Bench) -> None:
    nodes = [bench.node(latency=lambda: 5.0) for _ in range(2)]
    both = [BrokerWrites(node.client).ensure_persistent_paths() for node in nodes]
    for pending in [spawn(task) for task in both]:
        bench.wait(pending)
    assert all(bench.row(path) is not None for path in paths.PERSISTENT_PATHS)


def test_the_first_proposed_cluster_id_stands(bench: Bench, writes: BrokerWrites) -> None:
    assert bench.run(writes.cluster_id("QhpdYtSjQZCx4lNcGYNXLw")) == "QhpdYtSjQZCx4lNcGYNXLw"
    assert bench.data([paths.CLUSTER_ID]) == [b'{"version":"1","id":"QhpdYtSjQZCx4lNcGYNXLw"}']
    assert bench.run(BrokerWrites(bench.node().client).cluster_id("another")) == "QhpdYtSjQZCx4lNcGYNXLw"


def test_a_damaged_cluster_id_is_not_overwritten(bench: Bench, writes: BrokerWrites) -> None:
    bench.create(paths.CLUSTER)
    bench.change(Create(paths.CLUSTER_ID, b"?"))
    with pytest.raises(DamagedZnode):
        bench.run(writes.cluster_id("mine"))
    assert bench.data([paths.CLUSTER_ID]) == [b"?"]


def test_generated_broker_ids_are_above_the_reserved_ones_and_differ(bench: Bench, writes: BrokerWrites) -> None:
    ids = [bench.run(writes.generate_broker_id()) for _ in range(3)]
    assert ids == [RESERVED_BROKER_MAX_ID + number for number in (1, 2, 3)]


# -- registration


def test_a_registration_is_kafkas_and_its_epoch_the_czxid(bench: Bench, node: Node, writes: BrokerWrites) -> None:
    epoch = bench.run(writes.register_broker(7, DATA))
    row = bench.row(paths.broker(7))
    assert row is not None
    assert row.data == DATA
    assert row.stat.czxid == row.stat.mzxid == epoch == bench.server.zxid
    assert row.stat.version == 1, "created empty and set, in one multi"
    assert row.stat.ephemeral_owner == node.client.session()


@pytest.mark.parametrize("applied", [True, False])
def test_a_registration_whose_reply_is_lost_is_settled(
    bench: Bench, node: Node, writes: BrokerWrites, applied: bool
) -> None:
    node.connection.lose_reply(applied=applied)
    epoch = bench.run(writes.register_broker(7, DATA))
    row = bench.row(paths.broker(7))
    assert row is not None
    assert (row.stat.czxid, row.data) == (epoch, DATA)


def test_registering_again_in_the_same_session_keeps_the_epoch(bench: Bench, writes: BrokerWrites) -> None:
    epoch = bench.run(writes.register_broker(7, DATA))
    assert bench.run(writes.register_broker(7, b"other")) == epoch
    assert bench.data([paths.broker(7)]) == [b"other"]


def test_a_former_sessions_registration_is_replaced_at_once(bench: Bench, node: Node, writes: BrokerWrites) -> None:
    """S06, KAFKA-7165: the old session's node lingers (ZOOKEEPER-2985) when the new session registers."""
    old = node.client.session()
    bench.server.expire(old)
    bench.until(lambda: node.client.session() not in (0, old))
    impostor = bench.server.connect()
    bench.wait(impostor.start())
    bench.wait(impostor.multi([Create(paths.broker(7), b"lingering", ephemeral=True)]))
    node.client._former_sessions.append(impostor.session())
    before_ms = bench.clock.now_ms()
    epoch = bench.run(writes.register_broker(7, DATA))
    row = bench.row(paths.broker(7))
    assert row is not None
    assert (row.stat.czxid, row.stat.ephemeral_owner, row.data) == (epoch, node.client.session(), DATA)
    assert bench.clock.now_ms() - before_ms < 1.0


def test_another_sessions_registration_is_waited_for(bench: Bench, node: Node, writes: BrokerWrites) -> None:
    """A broker that was killed and started again: its old session ends by itself."""
    dead = bench.node()
    bench.run(BrokerWrites(dead.client).register_broker(7, b"old life"))
    dead.connection.kill()
    epoch = bench.run(writes.register_broker(7, DATA))
    row = bench.row(paths.broker(7))
    assert row is not None
    assert (row.stat.czxid, row.data) == (epoch, DATA)


def test_a_broker_id_in_use_is_refused_after_a_session_must_have_ended(
    bench: Bench, node: Node, writes: BrokerWrites
) -> None:
    living = bench.node()
    bench.run(BrokerWrites(living.client).register_broker(7, b"alive"))
    before_ms = bench.clock.now_ms()
    with pytest.raises(BrokerIdInUse) as in_use:
        bench.run(writes.register_broker(7, DATA))
    assert in_use.value.owner == living.client.session()
    waited_ms = bench.clock.now_ms() - before_ms
    assert (
        SESSION_TIMEOUT_MS * OTHER_SESSION_TIMEOUTS <= waited_ms <= SESSION_TIMEOUT_MS * (OTHER_SESSION_TIMEOUTS + 0.2)
    )
    assert bench.data([paths.broker(7)]) == [b"alive"]


def test_a_dead_brokers_session_that_zookeepers_election_prolongs_is_waited_for(
    bench: Bench, node: Node, writes: BrokerWrites
) -> None:
    """S06: a new leader of the ensemble gives every session its whole timeout again. Found by the swarm."""
    dead = bench.node()
    bench.run(BrokerWrites(dead.client).register_broker(7, b"old life"))
    dead.connection.kill()
    registering = spawn(writes.register_broker(7, DATA))
    bench.settle(0.5 * SESSION_TIMEOUT_MS)
    bench.server.stop()
    bench.settle(0.8 * SESSION_TIMEOUT_MS)
    bench.server.start()
    epoch = bench.wait(registering)
    row = bench.row(paths.broker(7))
    assert row is not None
    assert (row.stat.czxid, row.data) == (epoch, DATA)


def test_a_registration_ends_with_its_session(bench: Bench, node: Node, writes: BrokerWrites) -> None:
    """S09: the next CONNECTED brings the event that registers again; this attempt must not hang or go on."""
    living = bench.node()
    bench.run(BrokerWrites(living.client).register_broker(7, b"alive"))
    registering = spawn(writes.register_broker(7, DATA))
    bench.server.stop()
    bench.settle(10 * SESSION_TIMEOUT_MS)
    assert not registering.done
    old = node.client.session()
    bench.server.start()
    bench.server.expire(old)
    with pytest.raises(SessionGone):
        bench.wait(registering)


# -- topics


TOPIC, CONFIG = b'{"partitions":{"0":[1]}}', b'{"version":1,"config":{}}'


@pytest.fixture
def topics(node: Node, writes: BrokerWrites) -> TopicWrites:
    return TopicWrites(node.client, node.win())


def create(writes: TopicWrites) -> Coro[None]:
    return writes.create_topic("t", TOPIC, CONFIG)


def expand(writes: TopicWrites) -> Coro[None]:
    return writes.add_partitions("t", b"more", 0)


def test_a_topics_config_is_there_before_its_znode(bench: Bench, topics: TopicWrites) -> None:
    bench.run(create(topics))
    topic, config = bench.row(paths.topic("t")), bench.row(paths.config_topic("t"))
    assert topic is not None
    assert config is not None
    assert (topic.data, config.data) == (TOPIC, CONFIG)
    assert config.stat.czxid < topic.stat.czxid


def test_a_left_over_config_is_replaced(bench: Bench, topics: TopicWrites) -> None:
    bench.change(Create(paths.config_topic("t"), b"left over"))
    bench.run(create(topics))
    assert bench.data([paths.config_topic("t")]) == [CONFIG]


def test_a_topic_that_is_there_keeps_its_config(bench: Bench, topics: TopicWrites) -> None:
    bench.run(create(topics))
    with pytest.raises(NodeExists):
        bench.run(topics.create_topic("t", TOPIC, b"other"))
    assert bench.data([paths.config_topic("t")]) == [CONFIG]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_topic_whose_reply_is_lost_is_created_once(
    bench: Bench, node: Node, topics: TopicWrites, applied: bool, lost: int
) -> None:
    """`lost`: the reply to the first write (the config) or the second (the topic)."""
    if lost == 1:
        node.connection.lose_reply(applied=applied)
    else:
        bench.change(Create(paths.config_topic("t"), CONFIG))
        node.connection.lose_reply(applied=applied)
    bench.run(create(topics))
    row = bench.row(paths.topic("t"))
    assert row is not None
    assert (row.data, row.stat.version) == (TOPIC, 0)


def test_partitions_are_added_at_the_version_that_was_read(bench: Bench, topics: TopicWrites) -> None:
    bench.run(create(topics))
    bench.run(expand(topics))
    assert bench.data([paths.topic("t")]) == [b"more"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_expansion_whose_reply_is_lost_is_made_once(
    bench: Bench, node: Node, topics: TopicWrites, applied: bool
) -> None:
    bench.run(create(topics))
    node.connection.lose_reply(applied=applied)
    bench.run(expand(topics))
    row = bench.row(paths.topic("t"))
    assert row is not None
    assert (row.data, row.stat.version) == (b"more", 1)


def change_it(bench: Bench) -> None:
    bench.change(SetData(paths.topic("t"), b"theirs", ANY_VERSION))


def delete_it(bench: Bench) -> None:
    bench.change(Delete(paths.topic("t"), ANY_VERSION))


@pytest.mark.parametrize(("meanwhile", "error"), [(change_it, BadVersion), (delete_it, NoNode)])
def test_partitions_are_not_added_to_a_topic_that_has_changed(
    bench: Bench, topics: TopicWrites, meanwhile: Callable[[Bench], None], error: type[Exception]
) -> None:
    bench.run(create(topics))
    meanwhile(bench)
    with pytest.raises(error):
        bench.run(expand(topics))


def test_a_parent_that_is_missing_is_named(bench: Bench) -> None:
    node = bench.node()
    topics = TopicWrites(node.client, node.win())
    with pytest.raises(NoNode, match="/config/topics/t"):
        bench.run(create(topics))


@pytest.mark.parametrize("write", [create, expand])
def test_a_controller_that_was_deposed_changes_no_topic(
    bench: Bench, topics: TopicWrites, write: Callable[[TopicWrites], Coro[None]]
) -> None:
    """It stood still while the topic was deleted and created again, at the version that it has read."""
    bench.change(SetData(paths.CONTROLLER_EPOCH, b"2", ANY_VERSION))
    if write is expand:
        bench.change(Create(paths.topic("t"), TOPIC))
    with pytest.raises(ControllerMoved):
        bench.run(write(topics))
    assert bench.data([paths.topic("t"), paths.config_topic("t")]) == [TOPIC if write is expand else None, None]


def test_a_request_to_delete_is_left_empty_for_a_topic_that_is_there(bench: Bench, topics: TopicWrites) -> None:
    bench.run(create(topics))
    bench.run(topics.ask_to_delete_topic("t"))
    assert bench.data([paths.delete_topic("t")]) == [None]
    with pytest.raises(NodeExists):
        bench.run(topics.ask_to_delete_topic("t"))
    with pytest.raises(NoNode):
        bench.run(topics.ask_to_delete_topic("none"))
    assert bench.row(paths.delete_topic("none")) is None


def test_a_request_to_delete_whose_reply_is_lost_is_there(bench: Bench, node: Node, topics: TopicWrites) -> None:
    bench.run(create(topics))
    node.connection.lose_reply(applied=True)
    with pytest.raises(NodeExists):
        bench.run(topics.ask_to_delete_topic("t"))
    assert bench.row(paths.delete_topic("t")) is not None


def test_a_request_to_delete_that_is_lost_is_made_again(bench: Bench, node: Node, topics: TopicWrites) -> None:
    bench.run(create(topics))
    node.connection.lose_reply(applied=False)
    bench.run(topics.ask_to_delete_topic("t"))
    assert bench.row(paths.delete_topic("t")) is not None
