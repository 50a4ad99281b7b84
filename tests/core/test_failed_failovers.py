"""A failover that fails ends its term, at whichever request it fails and whichever event runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import Future
from controller.core.events import ControllerChange as ControllerChanged
from controller.core.events import Reelect, RegisterBrokerAndReelect, Startup
from controller.trace import ControllerElected, ControllerResigned, FailoverCompleted
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Delete, MultiFailed, NoAuth
from tests.core.driving import Cluster, Host, check_figures

REQUESTS = ("read", "read_columns", "children", "multi", "set_watches", "watch", "sync")
"""What a client can ask of ZooKeeper."""
BACK_MS = 2_000.0
"""Longer than some back-offs and a failover."""


class Planted(Exception):
    """An error that no code expects."""


def refused(kind: str, arguments: tuple[Any, ...]) -> Exception:
    """Return what ZooKeeper answers to a request on a znode whose ACL excludes the broker."""
    refusal = NoAuth("/planted")
    return MultiFailed(len(arguments[0]) - 1, refusal) if kind == "multi" else refusal


def unexpected(kind: str, arguments: tuple[Any, ...]) -> Exception:
    return Planted(kind)


def fail_request(host: Host, at: int, failure: Callable[[str, tuple[Any, ...]], Exception]) -> list[int]:
    """Make the `at`-th request from now fail; return a list that holds how many requests there were."""
    count = [0]

    def wrap(kind: str, request: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        def counted(*arguments: Any, **named: Any) -> Future[Any]:
            count[0] += 1
            if count[0] != at:
                return request(*arguments, **named)
            failed: Future[Any] = Future()
            host.cluster.clock.call_later(1.0, lambda: failed.fail(failure(kind, arguments)))
            return failed

        return counted

    for kind in REQUESTS:
        setattr(host.connection, kind, wrap(kind, getattr(host.connection, kind)))
    return count


def started(cluster: Cluster, host: Host) -> None:
    host.start()


def session_expires(cluster: Cluster, host: Host) -> None:
    cluster.server.expire(host.client.session())


def resigned(cluster: Cluster, host: Host) -> None:
    host.controller.resign("for the test")
    host.events.put(Reelect())


def controller_deleted(cluster: Cluster, host: Host) -> None:
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))


CARRIERS: dict[type, Callable[[Cluster, Host], None]] = {
    Startup: started,
    RegisterBrokerAndReelect: session_expires,
    Reelect: resigned,
    ControllerChanged: controller_deleted,
}
"""By event: what makes the event run a failover."""


def prepared(carrier: type, *, with_another: bool) -> tuple[Cluster, Host]:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("t", {0: (3, 1), 1: (1, 2)})
    cluster.topic("bare", {0: (2, 3)}, topic_id=None)
    cluster.state("t", 0, 7, (7, 3), 4)
    host = cluster.new_host(1)
    if carrier is not Startup:
        host.start()
        cluster.settle()
        assert host.controller.active
    if with_another:
        cluster.host(5)
    return cluster, host


def check_recovered(cluster: Cluster, host: Host) -> None:
    """Every term but the last was resigned once, and the last one has the whole cluster in its context."""
    leader = cluster.leader()
    for one in cluster.hosts:
        elected = [event.controller_epoch for event in one.trace.of(ControllerElected)]
        over = [event.controller_epoch for event in one.trace.of(ControllerResigned)]
        assert over == (elected[:-1] if one is leader else elected)
        assert one.controller.active_controller_id == leader.broker_id
    term = leader.controller.term
    assert term is not None
    assert term.epoch == leader.trace.of(FailoverCompleted)[-1].controller_epoch
    assert leader.context_states() == cluster.states()
    assert set(cluster.states()) == {"t-0", "t-1", "bare-0"}
    assert term.context.broker_ids == tuple(sorted({2, 3, *(one.broker_id for one in cluster.hosts)}))
    check_figures(leader)


@pytest.mark.parametrize(
    ("failure", "with_another"),
    [(refused, False), (unexpected, False), (refused, True)],
    ids=["refused", "unexpected", "refused, with another broker"],
)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_failover_that_fails_at_any_request_ends_its_term(
    carrier: type, failure: Callable[[str, tuple[Any, ...]], Exception], with_another: bool
) -> None:
    for at in range(1, 200):
        cluster, host = prepared(carrier, with_another=with_another)
        requests = fail_request(host, at, failure)
        CARRIERS[carrier](cluster, host)
        cluster.pass_ms(BACK_MS)
        check_recovered(cluster, host)
        if requests[0] < at:
            return
    raise AssertionError("the failover made more requests than expected")
