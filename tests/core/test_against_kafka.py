"""Request for request what a real Kafka 2.8.2 controller sent: a recorded cluster's steps, taken by ours.

Compared for each broker, in order: which API, to which partitions, with every field of their states, who is said to be
alive or to lead. Hosts, ports and broker epochs are this cluster's own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.core.events import (
    AlterIsrRequested,
    AlterReassignmentsRequested,
    ControlledShutdownRequested,
    ListReassignmentsRequested,
)
from controller.core.loading import topic_id_text
from controller.protocol.control import AlterIsrRequest, ControlledShutdownResponse
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Create, SetData
from tests.core.driving import Cluster, Host
from tests.kafka_recording import (
    ALTER_ISRS,
    DEATH_OF_2,
    FAILOVER,
    FIRST_BROKERS,
    MORE_PARTITIONS,
    NEW_TOPICS,
    PREFERRED_ELECTION,
    REASSIGNMENT_ASKED,
    REASSIGNMENT_BEGUN,
    REASSIGNMENT_DONE,
    REASSIGNMENT_IN_SYNC,
    REASSIGNMENT_LISTED,
    RETURN_OF_2,
    SHUTDOWN_OF_2,
    SHUTDOWNS,
    Request,
    before_the_reassignment,
    before_the_shutdown,
    recorded,
    recorded_failover,
    recorded_states,
    response_of,
    seen,
    value_of,
    writes_of,
)


def ours(cluster: Cluster, host: Host, mark: int) -> dict[int, list[Request]]:
    by_broker: dict[int, list[Request]] = {}
    for sent in host.sent[mark:]:
        row = cluster.server.row(paths.broker(sent.broker))
        assert row is not None
        assert sent.value.broker_epoch == row.stat.czxid
        by_broker.setdefault(sent.broker, []).append(seen(sent.api, sent.value))
    return by_broker


def put_states(cluster: Cluster, states: dict[tuple[str, int], tuple[bytes, Any]]) -> None:
    for write in writes_of(states):
        cluster.write(write)


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


def test_a_failover_sends_in_one_batch_what_kafka_sent_in_three() -> None:
    cluster = Cluster()
    epochs(cluster, 1)
    put_states(cluster, before_the_failover())
    cluster.register(2)
    host = cluster.host(3)
    failed_over = len(host.sent)
    assert {len(requests) for requests in recorded(FAILOVER).values()} == {7}
    assert ours(cluster, host, 0) == recorded_failover()
    cluster.until(lambda: len(host.sent) > failed_over)
    cluster.settle()
    assert ours(cluster, host, failed_over) == recorded(PREFERRED_ELECTION), "what goes back by itself"
    cluster.check()


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

    for asked, told in ALTER_ISRS:
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


def test_a_reassignment_is_asked_for_answered_and_carried_out_as_kafka_does() -> None:
    """All that the tool asked and was told, and all that the brokers were, until what was removed was deleted."""
    cluster = Cluster()
    epochs(cluster, 0)
    put_states(cluster, before_the_reassignment())
    cluster.register(2, 3)
    host = cluster.host(1)

    listed: list[Any] = []
    host.events.put(ListReassignmentsRequested(value_of(REASSIGNMENT_LISTED), listed.append))
    cluster.settle()
    assert listed == [response_of(REASSIGNMENT_LISTED)]

    mark = len(host.sent)
    answers: list[Any] = []
    host.events.put(AlterReassignmentsRequested(value_of(REASSIGNMENT_ASKED), answers.append))
    cluster.settle()
    assert answers == [response_of(REASSIGNMENT_ASKED)]
    assert ours(cluster, host, mark) == recorded(REASSIGNMENT_BEGUN)

    mark = len(host.sent)
    asked, told = REASSIGNMENT_IN_SYNC
    alter_isr(cluster, host, value_of(asked))
    everything = {broker: [*first, *recorded(REASSIGNMENT_DONE)[broker]] for broker, first in recorded(told).items()}
    assert ours(cluster, host, mark) == everything
    cluster.check()


def test_two_brokers_that_shut_down_at_once_are_treated_as_kafka_treats_them() -> None:
    """Both ask, then both ask again. Neither can be relieved of what only they could lead."""
    cluster = Cluster()
    epochs(cluster, 1)
    put_states(cluster, before_the_failover())
    cluster.register(2)
    host = cluster.host(3)
    # In between, the recorded cluster had elected a preferred leader.
    preferred = recorded_states(PREFERRED_ELECTION)
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
