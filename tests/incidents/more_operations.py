"""What a controller is about when it is interrupted, in its everyday work: brokers that go and come, partitions that
are added, ISRs that change.
"""

from __future__ import annotations

from typing import Any

from controller.clock import spawn
from controller.core.event_loop import EventQueue
from controller.core.events import AlterIsrRequested, CreatePartitionsRequested
from controller.protocol.client import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from controller.protocol.control import AlterIsrPartition, AlterIsrRequest, AlterIsrTopic
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from tests.core.driving import TIMEOUT_MS, Cluster, Host, registration
from tests.core.test_isr_changes import broker_epoch
from tests.incidents.interruption import Operation
from tests.incidents.operations import led_by_two, nothing, three_brokers

# -- a broker goes


def goes(cluster: Cluster, host: Host) -> None:
    """Its session ends; nobody waits for it."""
    cluster.brokers.pop(2).close()


def assert_led_without_two(cluster: Cluster) -> None:
    assert {name: (state[0], state[2]) for name, state in cluster.states().items()} == {
        "t-0": (3, (3, 4)),
        "t-1": (3, (3, 4)),
        "t-2": (4, (4, 3)),
        "t-3": (4, (4, 3)),
    }
    cluster.check()


FAILURE = Operation("broker failure", led_by_two, goes, nothing, assert_led_without_two)


# -- a broker comes back, in whose absence partitions were led by nobody


def without_two() -> tuple[Cluster, Host]:
    cluster, host = three_brokers()
    cluster.topic("t", {0: (2,), 1: (2, 3), 2: (3, 2)})
    cluster.settle()
    cluster.unregister(2)
    cluster.settle()
    cluster.topic("new", {0: (2,)})
    cluster.settle()
    return cluster, host


def comes(cluster: Cluster, host: Host) -> None:
    connection = cluster.server.connect(TIMEOUT_MS, latency=lambda: 1.0)
    client = ZooKeeperClient(connection, cluster.clock, EventQueue(10), seed=2)
    started = client.start()

    async def register() -> None:
        await started
        await BrokerWrites(client).register_broker(2, registration(2))

    spawn(register())


def assert_led_by_two_again(cluster: Cluster) -> None:
    assert {name: (state[0], state[2]) for name, state in cluster.states().items()} == {
        "t-0": (2, (2,)),
        "t-1": (3, (3,)),
        "t-2": (3, (3,)),
        "new-0": (2, (2,)),
    }
    cluster.check()


START = Operation("broker start-up", without_two, comes, nothing, assert_led_by_two_again)


# -- partitions are added


def one_partition() -> tuple[Cluster, Host]:
    cluster, host = three_brokers()
    cluster.topic("t", {0: (2, 3)})
    cluster.settle()
    return cluster, host


ADDED = CreatePartitionsTopic("t", 3, (CreatePartitionsAssignment((3, 4)), CreatePartitionsAssignment((4, 2))))


def put_expansion(host: Host) -> list[Any]:
    answers: list[Any] = []
    host.events.put(CreatePartitionsRequested(CreatePartitionsRequest((ADDED,), 1_000), answers.append))
    return answers


def expands(cluster: Cluster, host: Host) -> list[Any]:
    return put_expansion(host)


def expands_again(cluster: Cluster) -> None:
    answers = put_expansion(cluster.leader())
    cluster.settle()
    (answer,) = answers
    assert answer.results[0].error_code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS), answer


def assert_expanded_once(cluster: Cluster) -> None:
    assert cluster.states() == {"t-0": (2, 0, (2, 3), 0), "t-1": (3, 0, (3, 4), 0), "t-2": (4, 0, (4, 2), 0)}
    cluster.check()


EXPANSION = Operation("expansion", one_partition, expands, expands_again, assert_expanded_once)


# -- a leader asks for a change of ISRs


def out_of_sync() -> tuple[Cluster, Host]:
    cluster, host = three_brokers()
    cluster.topic("t", {0: (2, 3, 4), 1: (2, 4)})
    for partition in (0, 1):
        cluster.state("t", partition, 2, (2,), 3)
    cluster.settle()
    return cluster, host


def put_change(cluster: Cluster, host: Host) -> list[Any]:
    """From what the leader knows: the version of the state as it was."""
    wanted = (AlterIsrPartition(0, 3, (2, 3, 4), 0), AlterIsrPartition(1, 3, (2, 4), 0))
    request = AlterIsrRequest(2, (AlterIsrTopic("t", wanted),), broker_epoch(cluster, 2))
    answers: list[Any] = []
    host.events.put(AlterIsrRequested(request, answers.append))
    return answers


def asks(cluster: Cluster, host: Host) -> list[Any]:
    return put_change(cluster, host)


def asks_as_before(cluster: Cluster) -> None:
    """A proposal whose answer was lost is sent again as it was, and granted if it was made."""
    answers = put_change(cluster, cluster.leader())
    cluster.settle()
    (answer,) = answers
    assert answer.error_code == ErrorCode.NONE, answer
    assert [one.error_code for one in answer.topics[0].partitions] == [ErrorCode.NONE] * 2, answer


def assert_in_sync(cluster: Cluster) -> None:
    assert cluster.states() == {"t-0": (2, 3, (2, 3, 4), 1), "t-1": (2, 3, (2, 4), 1)}
    assert cluster.server.row(paths.CONTROLLER) is not None
    cluster.check()


ISR_CHANGE = Operation("ISR change", out_of_sync, asks, asks_as_before, assert_in_sync)

MORE_OPERATIONS = (FAILURE, START, EXPANSION, ISR_CHANGE)
