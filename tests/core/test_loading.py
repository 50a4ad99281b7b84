"""Loading: everything that ZooKeeper holds, with no change lost between the reading and the watch."""

from __future__ import annotations

import pytest

from controller.core.events import PartitionModifications, TopicChange
from controller.zookeeper import paths
from controller.zookeeper.codecs import BrokerEndpoint, BrokerRegistration, encode_broker_registration
from controller.zookeeper.operations import ANY_VERSION, Delete, SetData
from statemachines.partition import PartitionState
from tests.core.driving import Cluster, registration


def test_several_batches_are_taken_in_whole() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    for topic in range(3):
        cluster.topic(
            f"t{topic}", {partition: (1 + partition % 3, 1 + (partition + 1) % 3) for partition in range(600)}
        )
    first = cluster.host(1)
    assert len(cluster.states()) == 1_800
    cluster.check()
    first.kill()
    cluster.host(4)
    cluster.pass_ms(8_000)
    cluster.check()
    assert cluster.leader().broker_id == 4


def test_a_change_at_any_moment_of_the_loading_is_not_lost() -> None:
    """S25, S27: a topic made, expanded or deleted after whatever was read by then."""
    for at in range(1, 60):
        cluster = Cluster()
        cluster.topic("grows", {0: (1,)})
        cluster.topic("goes", {0: (1,)})
        cluster.topic("stays", {0: (1,)})
        host = cluster.new_host(1)
        host.start()
        cluster.until(lambda host=host, at=at: host.awaits >= at or host.idle)  # type: ignore[misc]
        done = host.idle
        cluster.topic("grows", {0: (1,), 1: (1,)})
        cluster.topic("made", {0: (1,)})
        for row in reversed([row for row in cluster.server.rows() if row.path.startswith(paths.topic("goes"))]):
            cluster.write(Delete(row.path, ANY_VERSION))
        cluster.settle()
        leftovers = {name for name in cluster.states() if name.startswith("goes")}
        assert set(cluster.states()) - leftovers == {"grows-0", "grows-1", "made-0", "stays-0"}, at
        cluster.check()
        if done:
            return
    raise AssertionError("it never came to its end")


def test_an_endpoint_that_changes_at_any_moment_of_the_loading_is_not_lost() -> None:
    """Registrations are read first and watched then, with the zxid from before the reading."""
    for at in range(1, 60):
        for lag_ms in (0.0, 0.8, 1.6):
            cluster = Cluster()
            cluster.register(2)
            host = cluster.new_host(1)
            host.start()
            cluster.until(lambda host=host, at=at: host.awaits >= at or host.idle)  # type: ignore[misc]
            done = host.idle
            cluster.pass_ms(lag_ms)
            cluster.write(SetData(paths.broker(2), registration(2, port=7777), ANY_VERSION))
            cluster.settle()
            live = {broker.id: broker.endpoints[0].port for broker in host.sent[-1].value.live_brokers}
            assert live == {1: 9001, 2: 7777}, (at, lag_ms)
            cluster.check()
        if done:
            return
    raise AssertionError("it never came to its end")


def test_what_was_there_before_puts_no_events() -> None:
    cluster = Cluster()
    for name in "abc":
        cluster.topic(name, {0: (1,)})
    host = cluster.host(1)
    looks = [event for event in host.handled if isinstance(event, PartitionModifications | TopicChange)]
    assert looks == []


def test_partition_states_at_the_start_are_what_the_leaders_lives_say() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (1,), 1: (9,), 2: (9, 1), 3: (9,)})
    cluster.state("t", 0, 1, (1,))
    cluster.state("t", 1, 9, (9,))
    cluster.put(paths.partition("t", 3), b"")
    host = cluster.host(1)
    term = host.controller.term
    assert term is not None
    states = [PartitionState(state).name for state in term.context.partitions.partition_state.tolist()]
    assert states == ["Online", "Offline", "Online", "New"]
    cluster.check()


def test_s27_what_came_while_the_connection_was_broken_is_found_after_it() -> None:
    """kazoo #151: the same session, another connection, a topic made in between."""
    cluster = Cluster()
    host = cluster.host(1)
    cluster.topic("old", {0: (1,)})
    cluster.settle()
    host.connection.reset()
    cluster.topic("made", {0: (1,)})
    cluster.topic("old", {0: (1,), 1: (1,)})
    cluster.pass_ms(1_000)
    assert set(cluster.states()) == {"made-0", "old-0", "old-1"}
    assert host.controller.controller_epoch == 1
    cluster.check()


@pytest.mark.parametrize(("port", "reached"), [(-1, False), (0, False), (1, True), (65_535, True), (65_536, False)])
@pytest.mark.parametrize("host_name", ["host-4", ""])
def test_a_broker_is_reached_at_a_host_and_a_port(host_name: str, port: int, reached: bool) -> None:
    cluster = Cluster()
    endpoint = BrokerEndpoint("PLAINTEXT", "PLAINTEXT", host_name, port)
    cluster.put(paths.broker(4), encode_broker_registration(BrokerRegistration(4, (endpoint,))))
    host = cluster.host(1)
    assert host.controller.term is not None
    found = host.controller.term.context.broker(4)
    assert (found is not None) == (reached and bool(host_name))
    if found is not None:
        assert (found.endpoint.host, found.endpoint.port) == (host_name, port)
        assert [(one.host, one.port) for one in found.advertised.endpoints] == [(host_name, port)]


@pytest.mark.parametrize("text", ["xx", "*" * 22, "A" * 21, "A" * 23, "A" * 24])
def test_a_topic_whose_id_is_none_is_served_without_one(text: str) -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (1,)}, text)
    host = cluster.host(1)
    assert cluster.states() == {"t-0": (1, 0, (1,), 0)}
    assert any(note.endswith(f"topic t: {text!r} is no topic id") for note in host.notes("error"))
    term = host.controller.term
    assert term is not None
    assert [topic.id for topic in term.context.partitions.topics] == [bytes(16)]
