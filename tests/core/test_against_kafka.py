"""Request for request what a real Kafka 2.8.2 controller sent: a recorded cluster's steps, taken by ours.

Compared for each broker, in order: which API, to which partitions, with every field of their states, who is said to be
alive or to lead. Hosts, ports and broker epochs are this cluster's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from controller.core.events import AlterIsrRequested, ControlledShutdownRequested
from controller.core.loading import topic_id_text
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import decode_request, decode_response
from controller.protocol.control_values import AlterIsrRequest, ControlledShutdownResponse
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Create, SetData
from tests.core.driving import Cluster, Host

WIRE = Path(__file__).parent.parent / "data" / "kafka-2.8.2" / "wire.jsonl"
CONTROL = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)

# Lines of the recording, by number from 0.
Lines = Sequence[int]
FIRST_BROKERS: tuple[tuple[int, Lines], ...] = ((1, (0,)), (3, (1, 2)), (2, (3, 4, 5)))
NEW_TOPICS: tuple[tuple[str, Lines], ...] = (
    ("pay", (11, 12, 13, 14, 18, 25)),
    ("orders", (16, 19, 21, 26, 29, 31)),
    ("__consumer_offsets", range(74, 80)),
)
MORE_PARTITIONS = range(105, 111)
SHUTDOWN_OF_2 = range(152, 166)
DEATH_OF_2 = range(166, 170)
RETURN_OF_2 = (*range(170, 178), 192, 195, 196)
ALTER_ISR_1, ALTER_ISR_2 = 181, 183
AFTER_ALTER_ISR_1, AFTER_ALTER_ISR_2 = (184, 185, 197), (187, 188, 198)
FAILOVER = (*range(217, 230), 231)
SHUTDOWNS = ((3, 247, range(249, 258)), (2, 248, ()), (3, 258, (259, *range(261, 265))), (2, 260, ()))
"""Which broker asked, on which line, and what was sent then."""

Request = tuple[str, tuple[int, int], tuple[int, ...], dict[str, Any]]


@cache
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in WIRE.read_text().splitlines()]


def value_of(line: int) -> Any:
    return decode_request(bytes.fromhex(lines()[line]["request"])).value


def response_of(line: int) -> Any:
    request = decode_request(bytes.fromhex(lines()[line]["request"])).header
    frame = bytes.fromhex(lines()[line]["response"])
    return decode_response(request.api_key, request.api_version, frame)[1]


def seen(api: ApiKey, value: Any) -> Request:
    """A request without what belongs to one cluster alone."""
    if api is ApiKey.STOP_REPLICA:
        named: tuple[int, ...] = ()
    elif api is ApiKey.LEADER_AND_ISR:
        assert value.type == 0
        named = tuple(sorted(leader.broker_id for leader in value.live_leaders))
    else:
        named = tuple(sorted(broker.id for broker in value.live_brokers))
    states = {
        f"{topic.topic_name}-{state.partition_index}": (getattr(topic, "topic_id", None), state)
        for topic in value.topic_states
        for state in topic.partition_states
    }
    return api.name, (value.controller_id, value.controller_epoch), named, states


def recorded(chosen: Any) -> dict[int, list[Request]]:
    """What each broker got in these lines of the recording."""
    by_broker: dict[int, list[Request]] = {}
    for number in chosen:
        line = lines()[number]
        api = ApiKey(line["api_key"])
        if api not in CONTROL:
            continue  # a client's, between them
        by_broker.setdefault(line["to_broker"], []).append(seen(api, value_of(number)))
    return by_broker


def ours(cluster: Cluster, host: Host, mark: int) -> dict[int, list[Request]]:
    by_broker: dict[int, list[Request]] = {}
    for sent in host.sent[mark:]:
        row = cluster.server.row(paths.broker(sent.broker))
        assert row is not None
        assert sent.value.broker_epoch == row.stat.czxid
        by_broker.setdefault(sent.broker, []).append(seen(sent.api, sent.value))
    return by_broker


def recorded_states(chosen: Any) -> dict[tuple[str, int], tuple[bytes, Any]]:
    """Topic id and state of each partition that these UpdateMetadata or LeaderAndIsr requests name."""
    return {
        (topic.topic_name, state.partition_index): (topic.topic_id, state)
        for line in chosen
        for topic in value_of(line).topic_states
        for state in topic.partition_states
    }


def put_states(cluster: Cluster, states: dict[tuple[str, int], tuple[bytes, Any]]) -> None:
    """Topics and states as they were, versions and controller epochs included."""
    topics: dict[str, tuple[bytes, dict[int, tuple[int, ...]]]] = {}
    for (topic, partition), (topic_id, state) in states.items():
        topics.setdefault(topic, (topic_id, {}))[1][partition] = state.replicas
    for topic, (topic_id, assignment) in topics.items():
        cluster.topic(topic, dict(sorted(assignment.items())), topic_id=topic_id_text(topic_id))
    for (topic, partition), (_, state) in states.items():
        for _ in range(state.zk_version + 1):
            cluster.state(
                topic, partition, state.leader, state.isr, state.leader_epoch, controller_epoch=state.controller_epoch
            )


def epochs(cluster: Cluster, last: int) -> None:
    """As if so many terms had been."""
    cluster.write(Create(paths.CONTROLLER_EPOCH, b"0"))
    for epoch in range(1, last + 1):
        cluster.write(SetData(paths.CONTROLLER_EPOCH, b"%d" % epoch, ANY_VERSION))


def test_a_cluster_begins_and_topics_are_created_and_expanded_as_kafka_does() -> None:
    cluster = Cluster()
    host = cluster.new_host(1)
    for broker, told in FIRST_BROKERS:
        mark = len(host.sent)
        if broker == 1:
            host.start()
        else:
            cluster.register(broker)
        cluster.settle()
        assert ours(cluster, host, mark) == recorded(told), broker
    for topic, told in (*NEW_TOPICS, ("pay", MORE_PARTITIONS)):
        mark = len(host.sent)
        states = recorded_states((14, *told) if told is MORE_PARTITIONS else told)
        topic_id = next(iter(states.values()))[0]
        assignment = {partition: state.replicas for (_, partition), (_, state) in sorted(states.items())}
        cluster.topic(topic, assignment, topic_id_text(topic_id))
        cluster.settle()
        assert ours(cluster, host, mark) == recorded(told), topic
    cluster.check()


def before_the_failover() -> dict[tuple[str, int], tuple[bytes, Any]]:
    """What lines 219 and 220 tell, as it was stored; and two partitions with no live replica, of which no LeaderAndIsr
    tells."""
    states = recorded_states((172,))
    return {
        **{key: found for key, found in states.items() if key[0] == "__consumer_offsets"},
        **recorded_states((219, 220)),
    }


def test_a_failover_sends_what_kafka_sent() -> None:
    cluster = Cluster()
    epochs(cluster, 1)
    put_states(cluster, before_the_failover())
    cluster.register(2)
    host = cluster.host(3)
    assert ours(cluster, host, 0) == recorded(FAILOVER)
    cluster.check()


def before_the_shutdown() -> dict[tuple[str, int], tuple[bytes, Any]]:
    """As the topics had been created, and one partition as its reassignment had left it."""
    states = recorded_states((11, 12, 13, 16, 74, 75, 76, 105, 106, 107))
    states.update(recorded_states((137, 139)))
    return states


def test_a_broker_that_shuts_down_dies_and_returns_is_treated_as_kafka_treats_it() -> None:
    cluster = Cluster()
    epochs(cluster, 0)
    put_states(cluster, before_the_shutdown())
    cluster.register(2, 3)
    host = cluster.host(1)

    mark = len(host.sent)
    answers: list[ControlledShutdownResponse] = []
    known = cluster.leader().controller.term
    assert known is not None
    broker = known.context.broker(2)
    assert broker is not None
    host.events.put(ControlledShutdownRequested(2, broker.epoch, answers.append))
    cluster.settle()
    assert ours(cluster, host, mark) == recorded(SHUTDOWN_OF_2)
    assert answers == [ControlledShutdownResponse(0)]

    mark = len(host.sent)
    cluster.unregister(2)
    cluster.settle()
    assert ours(cluster, host, mark) == recorded(DEATH_OF_2)

    mark = len(host.sent)
    cluster.register(2)
    cluster.settle()
    assert ours(cluster, host, mark) == recorded(RETURN_OF_2)

    for asked, told in ((ALTER_ISR_1, AFTER_ALTER_ISR_1), (ALTER_ISR_2, AFTER_ALTER_ISR_2)):
        mark = len(host.sent)
        alter_isr(cluster, host, value_of(asked))
        assert ours(cluster, host, mark) == recorded(told)
    cluster.check()


def alter_isr(cluster: Cluster, host: Host, request: AlterIsrRequest) -> None:
    row = cluster.server.row(paths.broker(request.broker_id))
    assert row is not None
    answers: list[Any] = []
    own = AlterIsrRequest(request.broker_id, request.topics, row.stat.czxid)
    host.events.put(AlterIsrRequested(own, answers.append))
    cluster.settle()
    assert [partition.error_code for topic in answers[0].topics for partition in topic.partitions] == [0]


def test_two_brokers_that_shut_down_at_once_are_treated_as_kafka_treats_them() -> None:
    """Both ask, then both ask again. Neither can be relieved of what only they could lead."""
    cluster = Cluster()
    epochs(cluster, 1)
    put_states(cluster, before_the_failover())
    cluster.register(2)
    host = cluster.host(3)
    # In between, the recorded cluster had elected a preferred leader.
    preferred = recorded_states((237,))
    for (topic, partition), (_, state) in preferred.items():
        cluster.state(topic, partition, state.leader, state.isr, state.leader_epoch, controller_epoch=2)
    refresh(cluster, host)

    term = host.controller.term
    assert term is not None
    answers: dict[int, list[ControlledShutdownResponse]] = {2: [], 3: []}

    def ask(broker: int) -> None:
        live = term.context.broker(broker)
        assert live is not None
        host.events.put(ControlledShutdownRequested(broker, live.epoch, answers[broker].append))
        cluster.settle()

    for broker, asked, told in SHUTDOWNS:
        mark = len(host.sent)
        ask(broker)
        assert ours(cluster, host, mark) == recorded(told), asked
        answer = answers[broker][-1]
        assert answer.error_code == 0
        assert set(answer.remaining_partitions) == set(response_of(asked).remaining_partitions), asked


def refresh(cluster: Cluster, host: Host) -> None:
    """The controller reads states again that were written past it: a notification makes it."""
    names = [{"topic": "pay", "partition": 3}]
    data = json.dumps({"version": 1, "partitions": names}).encode()
    cluster.write(Create(f"{paths.ISR_CHANGE_NOTIFICATION}/isr_change_", data, sequential=True))
    cluster.settle()


@pytest.mark.parametrize("wrong", ["one partition less", "another leader", "another order"])
def test_the_comparison_can_fail(wrong: str) -> None:
    """Planted differences, so that equality above says something."""
    expected, told = recorded(FAILOVER), recorded(FAILOVER)
    if wrong == "one partition less":
        told[2][1][3].popitem()
    elif wrong == "another leader":
        told[2][0] = (told[2][0][0], told[2][0][1], (), told[2][0][3])
    else:
        told[2][0], told[2][1] = told[2][1], told[2][0]
    assert told != expected
