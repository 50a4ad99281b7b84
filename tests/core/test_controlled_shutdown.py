"""A broker that asks to go."""

from __future__ import annotations

import pytest

from controller.core.events import ControlledShutdownRequested
from controller.protocol.codec import ApiKey
from controller.protocol.control import AlterIsrPartition, ControlledShutdownResponse, RemainingPartition
from controller.protocol.errors import ErrorCode
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from tests.core.driving import Cluster, Host
from tests.core.test_broker_changes import cluster_of
from tests.core.test_isr_changes import ask as alter_isr
from tests.core.test_isr_changes import broker_epoch


def ask(cluster: Cluster, host: Host, broker: int, epoch: int) -> ControlledShutdownResponse:
    answers: list[ControlledShutdownResponse] = []
    host.events.put(ControlledShutdownRequested(broker, epoch, answers.append))
    cluster.settle()
    (answer,) = answers
    return answer


def scene() -> tuple[Cluster, Host]:
    """Broker 2 leads t-0, follows in t-1, has t-2 alone, and is all that is in sync of t-3."""
    cluster = Cluster()
    cluster.topic("t", {0: (2, 3, 1), 1: (1, 2), 2: (2,), 3: (2, 1)})
    for partition, isr in ((0, (3, 2, 1)), (1, (2, 1)), (2, (2,)), (3, (2,))):
        cluster.state("t", partition, 1 if partition == 1 else 2, isr)
    cluster.register(2, 3)
    return cluster, cluster.host(1)


def test_what_it_leads_is_led_elsewhere_and_what_it_must_keep_is_answered() -> None:
    cluster, host = scene()
    mark = len(host.sent)
    answer = ask(cluster, host, 2, broker_epoch(cluster, 2))
    reason = "1 partition would be left under min.insync.replicas: t-3 (0 of 1)"
    assert answer == ControlledShutdownResponse(0, (RemainingPartition("t", 3),), reason)
    assert cluster.states() == {
        "t-0": (3, 1, (3, 1), 1),
        "t-1": (1, 1, (1,), 1),
        "t-2": (2, 0, (2,), 0),
        "t-3": (2, 0, (2,), 0),
    }
    assert [event.why for event in host.trace.of(PartitionStateWritten)] == ["controlled shutdown", "replica offline"]
    stops = [sent.states() for sent in host.sent[mark:] if sent.api is ApiKey.STOP_REPLICA]
    assert [(sent.broker) for sent in host.sent[mark:] if sent.api is ApiKey.STOP_REPLICA] == [2, 2]
    assert {name for states in stops for name in states} == {"t-1"}
    assert not any(state.delete_partition for states in stops for state in states.values())
    cluster.check()


def test_s46_the_broker_that_goes_is_told_that_it_leads_no_more() -> None:
    """KAFKA-7482."""
    cluster, host = scene()
    mark = len(host.sent)
    ask(cluster, host, 2, broker_epoch(cluster, 2))
    told = [sent for sent in host.sent[mark:] if sent.broker == 2 and sent.api is ApiKey.LEADER_AND_ISR]
    assert told[0].states()["t-0"].leader == 3


def test_a_state_that_was_repaired_a_moment_ago_is_led_elsewhere_too() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 3, 1)})
    cluster.state("t", 0, 2, (3, 2, 1))
    cluster.register(2, 3)
    row = cluster.server.row(paths.partition_state("t", 0))
    assert row is not None
    assert row.data is not None
    cluster.put(row.path, b"damaged")
    host = cluster.host(1)
    assert host.controller.measures.figures.quarantined == 1
    answered: list[tuple[ControlledShutdownResponse, int]] = []

    def respond(answer: ControlledShutdownResponse) -> None:
        answered.append((answer, cluster.states()["t-0"][0]))

    host.events.put(ControlledShutdownRequested(2, broker_epoch(cluster, 2), respond))
    cluster.put(row.path, row.data)  # its event waits behind the request
    cluster.settle()
    assert answered == [(ControlledShutdownResponse(0, (), ""), 3)]
    cluster.check(errors=True)


def test_it_can_ask_again_and_is_elected_nowhere_until_it_is_back() -> None:
    cluster, host = scene()
    epoch = broker_epoch(cluster, 2)
    ask(cluster, host, 2, epoch)
    # Broker 1 catches up in t-3, whose leader says so although it is shutting down; then that one can be moved, too.
    caught_up = alter_isr(cluster, host, 2, "t", AlterIsrPartition(3, 0, (2, 1), 0))
    assert caught_up.topics[0].partitions[0].error_code == 0
    term = host.controller.term
    assert term is not None
    answer = ask(cluster, host, 2, epoch)
    assert answer.remaining_partitions == ()
    assert cluster.states()["t-3"] == (1, 1, (1,), 2)
    assert term.context.shutting_down == {2}
    cluster.unregister(3)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 1
    cluster.unregister(2)
    cluster.register(2)
    cluster.settle()
    assert term.context.shutting_down == frozenset()
    cluster.check()


@pytest.mark.parametrize(
    ("broker", "epoch_less", "error"),
    [(2, 1, ErrorCode.STALE_BROKER_EPOCH), (9, 0, ErrorCode.BROKER_NOT_AVAILABLE)],
)
def test_an_older_life_and_a_stranger_are_refused(broker: int, epoch_less: int, error: ErrorCode) -> None:
    cluster, host = scene()
    before = cluster.states()
    epoch = broker_epoch(cluster, 2) - epoch_less
    assert ask(cluster, host, broker, epoch) == ControlledShutdownResponse(error)
    assert cluster.states() == before


def test_a_request_without_an_epoch_is_taken() -> None:
    """Below ControlledShutdown 2 there is none."""
    cluster, host = scene()
    assert ask(cluster, host, 2, -1).error_code == 0


def test_two_that_go_at_once_are_not_handed_each_others_partitions() -> None:
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (2, 3, 1), 1: (3, 2, 1)})
    cluster.settle()
    for broker in (2, 3):
        assert ask(cluster, host, broker, broker_epoch(cluster, broker)).remaining_partitions == ()
    assert {name: state[0] for name, state in cluster.states().items()} == {"t-0": 1, "t-1": 1}
    cluster.check()
