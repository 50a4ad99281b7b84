"""Reassignment as an operation of several steps: it begins, ends, is taken back, goes elsewhere, and waits its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.core.leadership import ControllerSettings
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.operations import Create
from statemachines.reassignment import Assignment
from tests.core.deleting import word_of
from tests.core.driving import Cluster, Host
from tests.core.reassigning import ask, asked, assignment, led, listed, put_in_sync, put_request, two_of_three
from tests.incidents.interruption import Operation, standby

TARGET = {0: (3, 4), 1: (4, 2)}
ALL_IN_SYNC = {0: (2, 3, 4), 1: (3, 2, 4)}


def three_brokers_of_four(settings: ControllerSettings | None = None) -> tuple[Cluster, Host]:
    cluster, host = two_of_three(settings)
    if settings is not None:
        cluster.host(5, settings)
    standby(cluster)
    return cluster, host


def catch_up(cluster: Cluster) -> None:
    """Leaders let in whoever has caught up, for as long as something is on its way."""
    for partition in (0, 1, 0, 1):
        if not assignment(cluster, partition).is_moving:
            continue
        leader, _, isr, _ = cluster.states()[f"t-{partition}"]
        if leader >= 0:
            joining = [one for one in assignment(cluster, partition).replicas if one not in isr]
            put_in_sync(cluster, cluster.leader(), partition, *isr, *joining)
            cluster.settle()


def deleted_on(cluster: Cluster, partition: int) -> set[int]:
    """Which brokers any controller told to delete it."""
    word = f"t-{partition}"
    sent = [one for host in cluster.hosts for one in host.sent]
    return {one.broker for one in sent if word_of(one).startswith("delete ") and word in one.states()}


def assert_arrived(cluster: Cluster) -> None:
    assert [assignment(cluster, partition) for partition in (0, 1)] == [Assignment((3, 4)), Assignment((4, 2))]
    assert led(cluster) == {"t-0": (3, (3, 4)), "t-1": (4, (2, 4))}
    assert asked(cluster) is None
    assert listed(cluster, cluster.leader()) == {}
    assert deleted_on(cluster, 0) >= {2}
    assert deleted_on(cluster, 1) >= {3}
    cluster.check()


# -- it is asked for by a client, who asks again


def asks(cluster: Cluster, host: Host) -> list[Any]:
    return put_request(host, TARGET)


def asks_again(cluster: Cluster) -> None:
    assert ask(cluster, cluster.leader(), TARGET) == {0: 0, 1: 0}
    catch_up(cluster)


BEGINNING = Operation("reassignment", three_brokers_of_four, asks, asks_again, assert_arrived)


# -- it is asked for in ZooKeeper, where it stands until it is done


def asks_by_znode(cluster: Cluster, host: Host) -> None:
    data = (
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,4]},'
        b'{"topic":"t","partition":1,"replicas":[4,2]}]}'
    )
    cluster._admin.multi([Create(paths.REASSIGN_PARTITIONS, data)])


BY_ZNODE = Operation("reassignment by znode", three_brokers_of_four, asks_by_znode, catch_up, assert_arrived)


# -- replicas come into sync


def on_its_way() -> tuple[Cluster, Host]:
    cluster, host = three_brokers_of_four()
    assert ask(cluster, host, TARGET) == {0: 0, 1: 0}
    return cluster, host


def catches_up(cluster: Cluster, host: Host) -> list[Any]:
    return put_in_sync(cluster, host, 0, *ALL_IN_SYNC[0])


ENDING = Operation("end of a reassignment", on_its_way, catches_up, catch_up, assert_arrived)


# -- it is taken back, or sent elsewhere


def in_sync_but_for_one() -> tuple[Cluster, Host]:
    """t-0 on its way to 4 and 6, of which 4 is in sync."""
    cluster, host = three_brokers_of_four()
    cluster.register(6)
    cluster.settle()
    assert ask(cluster, host, {0: (4, 6)}) == {0: 0}
    put_in_sync(cluster, host, 0, 2, 3, 4)
    cluster.settle()
    return cluster, host


def puts(target: tuple[int, ...] | None) -> Callable[[Cluster, Host], list[Any]]:
    return lambda _cluster, host: put_request(host, {0: target})


def takes_back_again(cluster: Cluster) -> None:
    errors = ask(cluster, cluster.leader(), {0: None})
    assert errors in ({0: 0}, {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}), errors


def assert_back(cluster: Cluster) -> None:
    found = assignment(cluster, 0)
    assert not found.is_moving
    assert set(found.replicas) == {2, 3}
    assert led(cluster)["t-0"] == (2, (2, 3))
    assert deleted_on(cluster, 0) >= {4, 6}
    cluster.check()


CANCELLATION = Operation(
    "cancellation of a reassignment", in_sync_but_for_one, puts(None), takes_back_again, assert_back
)


def sends_elsewhere_again(cluster: Cluster) -> None:
    assert ask(cluster, cluster.leader(), {0: (3, 6)}) == {0: 0}
    catch_up(cluster)


def assert_elsewhere(cluster: Cluster) -> None:
    assert assignment(cluster, 0) == Assignment((3, 6))
    leader, isr = led(cluster)["t-0"]
    assert (leader, set(isr)) == (3, {3, 6})
    assert deleted_on(cluster, 0) >= {2, 4}
    cluster.check()


OVERRIDE = Operation(
    "override of a reassignment", in_sync_but_for_one, puts((3, 6)), sends_elsewhere_again, assert_elsewhere
)


# -- one at a time


def one_at_a_time() -> tuple[Cluster, Host]:
    return three_brokers_of_four(ControllerSettings(reassignments_in_cluster=1))


LIMITED = Operation("reassignments, one at a time", one_at_a_time, asks, asks_again, assert_arrived)

REASSIGNMENTS = (BEGINNING, BY_ZNODE, ENDING, CANCELLATION, OVERRIDE, LIMITED)
