"""S23 with changes that go on: what comes while earlier notifications are handled is read before it is deleted."""

from __future__ import annotations

from controller.core.events import IsrChangeNotification
from controller.zookeeper import paths
from tests.core.driving import Cluster
from tests.core.test_broker_changes import cluster_of
from tests.core.test_isr_changes import notify
from tests.incidents.interruption import at_await

PLACES = 4
"""Awaits of the handler: the listing, the notifications, the states, the deletion."""


def changed_at(at: int) -> Cluster:
    """One change of an ISR starts the handler, another comes at its `at`-th await."""
    cluster, host = cluster_of(1, 2, 3)
    cluster.topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.settle()

    def another() -> None:
        cluster.clock.call_later(0.0, another_now)

    def another_now() -> None:
        cluster.hosts.remove(host)
        cluster.state("t", 1, 2, (2,), 0)
        notify(cluster, ("t", 1))
        cluster.hosts.append(host)

    at_await(host, at, another)
    cluster.state("t", 0, 1, (1,), 0)
    notify(cluster, ("t", 0))
    cluster.settle()
    assert IsrChangeNotification() in host.handled
    return cluster


def nothing_is_deleted_unread() -> None:
    """KAFKA-5879: what is read is what is deleted, no more."""
    for at in range(1, PLACES + 1):
        cluster = changed_at(at)
        assert {name: state[2] for name, state in cluster.states().items()} == {"t-0": (1,), "t-1": (2,)}, at
        assert cluster.server.children(paths.ISR_CHANGE_NOTIFICATION) == ()
        cluster.check()


def test_s23_what_comes_while_others_are_handled_is_read_before_it_is_deleted() -> None:
    nothing_is_deleted_unread()
