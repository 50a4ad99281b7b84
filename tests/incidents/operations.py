"""The operations of several steps: election, failover, topic creation, controlled shutdown."""

from __future__ import annotations

from typing import Any

from controller.core.events import ControlledShutdownRequested, CreateTopicsRequested
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from controller.protocol.control import ControlledShutdownResponse
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerElected
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_config, decode_controller_epoch
from tests.core.driving import Cluster, Host
from tests.core.test_failover import assert_failed_over, failover_scene
from tests.incidents.interruption import Operation, standby

ATTEMPTS = 5
"""A broker asks so often at most."""


def starts(cluster: Cluster, host: Host) -> None:
    """Nobody waits for an answer."""
    host.start()


def nothing(cluster: Cluster) -> None:
    pass


# -- election: nothing there yet, not even /controller_epoch


def unled() -> tuple[Cluster, Host]:
    cluster = Cluster()
    return cluster, cluster.new_host(1)


def assert_one_term_each(cluster: Cluster) -> None:
    """One controller, and no epoch was won twice or left out: an epoch is a term."""
    row = cluster.server.row(paths.CONTROLLER_EPOCH)
    assert row is not None
    won = sorted(event.controller_epoch for host in cluster.hosts for event in host.trace.of(ControllerElected))
    now = decode_controller_epoch(row.path, row.data)
    assert len(won) == len(set(won)), won
    assert now == row.stat.version == cluster.leader().controller.controller_epoch == won[-1]
    controller = cluster.server.row(paths.CONTROLLER)
    assert controller is not None
    assert controller.stat.ephemeral_owner == cluster.leader().client.session()
    cluster.check()


ELECTION = Operation("election", unled, starts, nothing, assert_one_term_each)


# -- failover


def dead_leader() -> tuple[Cluster, Host]:
    cluster = failover_scene()
    return cluster, cluster.new_host(1)


FAILOVER = Operation("failover", dead_leader, starts, nothing, assert_failed_over)


# -- topic creation


def three_brokers() -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.register(2, 3, 4)
    host = cluster.host(1)
    standby(cluster)
    return cluster, host


TOPIC = CreatableTopic(
    "t",
    -1,
    -1,
    (
        CreatableReplicaAssignment(0, (2, 3, 4)),
        CreatableReplicaAssignment(1, (3, 4, 2)),
        CreatableReplicaAssignment(2, (4, 2, 3)),
    ),
    (CreatableTopicConfig("retention.ms", "1000"),),
)


def put_creation(host: Host) -> list[Any]:
    answers: list[Any] = []
    host.events.put(CreateTopicsRequested(CreateTopicsRequest((TOPIC,)), 5, answers.append))
    return answers


def creates(cluster: Cluster, host: Host) -> list[Any]:
    return put_creation(host)


def asks_again(cluster: Cluster) -> None:
    """The client has no answer that it trusts, and asks whoever is controller now: made, or there already."""
    answers = put_creation(cluster.leader())
    cluster.settle()
    (answer,) = answers
    assert answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), answer


def assert_created_once(cluster: Cluster) -> None:
    states = cluster.states()
    assert {name: (state[0], state[1], state[2]) for name, state in states.items()} == {
        "t-0": (2, 0, (2, 3, 4)),
        "t-1": (3, 0, (3, 4, 2)),
        "t-2": (4, 0, (4, 2, 3)),
    }
    assert {state[3] for state in states.values()} == {0}, "a state was written twice"
    config = cluster.server.row(paths.config_topic("t"))
    assert config is not None
    assert decode_config(config.path, config.data).config == {"retention.ms": "1000"}
    cluster.check()


CREATION = Operation("topic creation", three_brokers, creates, asks_again, assert_created_once)


# -- controlled shutdown


def led_by_two() -> tuple[Cluster, Host]:
    cluster, host = three_brokers()
    cluster.topic("t", {0: (2, 3, 4), 1: (3, 2, 4), 2: (2, 4, 3), 3: (4, 3)})
    cluster.settle()
    return cluster, host


def put_shutdown(cluster: Cluster, host: Host) -> list[ControlledShutdownResponse]:
    row = cluster.server.row(paths.broker(2))
    assert row is not None
    answers: list[ControlledShutdownResponse] = []
    host.events.put(ControlledShutdownRequested(2, row.stat.czxid, answers.append))
    return answers


def shuts_down(cluster: Cluster, host: Host) -> list[ControlledShutdownResponse]:
    return put_shutdown(cluster, host)


def asks_until_it_may_go(cluster: Cluster) -> None:
    for _ in range(ATTEMPTS):
        answers = put_shutdown(cluster, cluster.leader())
        cluster.settle()
        (answer,) = answers
        if (answer.error_code, answer.remaining_partitions) == (ErrorCode.NONE, ()):
            break
    else:
        raise AssertionError(f"broker 2 may not go: {answer}")
    assert all(state[0] != 2 and 2 not in state[2] for state in cluster.states().values()), cluster.states()
    cluster.unregister(2)
    cluster.settle()


def assert_moved(cluster: Cluster) -> None:
    """Led by the first that stays, in the assignment's order; nobody who stays has left an ISR."""
    assert {name: (state[0], state[2]) for name, state in cluster.states().items()} == {
        "t-0": (3, (3, 4)),
        "t-1": (3, (3, 4)),
        "t-2": (4, (4, 3)),
        "t-3": (4, (4, 3)),
    }
    cluster.check()


SHUTDOWN = Operation("controlled shutdown", led_by_two, shuts_down, asks_until_it_may_go, assert_moved)


# -- controlled shutdown of a broker that can't be spared everywhere


def cannot_spare_two() -> tuple[Cluster, Host]:
    """Of "t" every replica has to be in sync but one, of "u" all."""
    cluster, host = three_brokers()
    cluster.topic_config("t", min_insync_replicas="2")
    cluster.topic("t", {0: (2, 3, 4), 1: (3, 2, 4)})
    cluster.topic_config("u", min_insync_replicas="2")
    cluster.topic("u", {0: (2, 3), 1: (4, 2)})
    cluster.settle()
    return cluster, host


def asks_until_it_is_held_and_is_forced(cluster: Cluster) -> None:
    held = {("u", 0), ("u", 1)}
    for _ in range(ATTEMPTS):
        answers = put_shutdown(cluster, cluster.leader())
        cluster.settle()
        (answer,) = answers
        left = {(one.topic_name, one.partition_index) for one in answer.remaining_partitions}
        if (answer.error_code, left) == (ErrorCode.NONE, held):
            break
    else:
        raise AssertionError(f"broker 2 is held back by something else: {answer}")
    states = cluster.states()
    assert {name: (state[0], state[2]) for name, state in states.items() if name.startswith("u")} == {
        "u-0": (2, (2, 3)),
        "u-1": (4, (4, 2)),
    }
    row = cluster.server.row(paths.broker(2))
    assert row is not None
    forced: list[ControlledShutdownResponse] = []
    cluster.leader().events.put(ControlledShutdownRequested(2, row.stat.czxid, forced.append, forced=True))
    cluster.settle()
    assert [one.remaining_partitions for one in forced] == [()]
    cluster.unregister(2)
    cluster.settle()


def assert_moved_by_force(cluster: Cluster) -> None:
    assert {name: (state[0], state[2]) for name, state in cluster.states().items()} == {
        "t-0": (3, (3, 4)),
        "t-1": (3, (3, 4)),
        "u-0": (3, (3,)),
        "u-1": (4, (4,)),
    }
    cluster.check()


HELD_SHUTDOWN = Operation(
    "controlled shutdown that is held back",
    cannot_spare_two,
    shuts_down,
    asks_until_it_is_held_and_is_forced,
    assert_moved_by_force,
)

OPERATIONS = (ELECTION, FAILOVER, CREATION, SHUTDOWN)
