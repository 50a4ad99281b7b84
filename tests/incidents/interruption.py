"""Operations of several steps, interrupted after every step and every write, and what must be true in the end.

An `Operation` sets a cluster up, begins something on its controller, and says how whoever asked goes on when another
controller has taken over. A `Strike` befalls that controller at its n-th await or its n-th write. Nothing here knows
what is right in between: only the end is judged, by the operation, and what a controller that was deposed wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.clock import Future
from controller.trace import ControllerElected, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_partition_state
from controller.zookeeper.operations import ANY_VERSION, Delete, Write
from tests.core.driving import Cluster, Host, check_written

TAKEOVER_MS = 8_000.0
"""Far more than a session timeout and an election."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`prepare` gives a quiet cluster and the controller that will be struck (for an election: one not started yet).
    `begin` only starts it, and gives the answers as they come (None where nobody waits for one). `go_on` is what
    whoever waits for it does once there is a controller again."""

    name: str
    prepare: Callable[[], tuple[Cluster, Host]]
    begin: Callable[[Cluster, Host], list[Any] | None]
    go_on: Callable[[Cluster], None]
    check: Callable[[Cluster], None]


Struck = Callable[[Cluster, Host], None]


@dataclass(frozen=True, slots=True)
class Strike:
    """`arm` makes `struck` happen at the `at`-th step from now. `afterwards` is what else must be true of the one that
    was struck."""

    name: str
    arm: Callable[[Host, int, Callable[[], None]], None]
    struck: Struck
    recover: Struck


def standby(cluster: Cluster) -> Host:
    """Another broker that stands whenever /controller goes."""
    there = next((host for host in cluster.hosts if host.broker_id == 5), None)
    return cluster.host(5) if there is None else there


def at_await(host: Host, at: int, happens: Callable[[], None]) -> None:
    """`happens` as the handler has asked for something, for the `at`-th time from now, and waits."""
    resume, target = host._resume, host.awaits + at

    def watched() -> None:
        before = host.awaits
        resume()
        if before < target <= host.awaits:
            happens()

    host._resume = watched  # type: ignore[method-assign]


def at_write(host: Host, at: int, happens: Callable[[], None]) -> None:
    """`happens` just before the `at`-th multi from now is sent."""
    multi, count = host.connection.multi, 0

    def counted(operations: Sequence[Write]) -> Future[Any]:
        nonlocal count
        count += 1
        if count == at:
            happens()
        return multi(operations)

    host.connection.multi = counted  # type: ignore[method-assign]


# -- what befalls it


def dies(cluster: Cluster, host: Host) -> None:
    host.kill()


def taken_over(cluster: Cluster, host: Host) -> None:
    standby(cluster)
    cluster.pass_ms(TAKEOVER_MS)


def reply_lost(applied: bool) -> Struck:
    def struck(cluster: Cluster, host: Host) -> None:
        host.connection.lose_reply(applied=applied)

    return struck


def reply_lost_and_dies(applied: bool) -> Struck:
    """The write is the last thing that it ever did; nobody knows whether it was made."""

    def struck(cluster: Cluster, host: Host) -> None:
        host.connection.lose_reply(applied=applied)
        cluster.clock.call_later(1.5, host.kill)  # the write has arrived, its answer has not

    return struck


def connection_breaks(cluster: Cluster, host: Host) -> None:
    cluster.clock.call_later(0.0, host.connection.reset)


def session_ends(cluster: Cluster, host: Host) -> None:
    if host.client.session():
        cluster.server.expire(host.client.session())


def goes_on(cluster: Cluster, host: Host) -> None:
    cluster.settle()
    cluster.pass_ms(TAKEOVER_MS)


def writers_since(cluster: Cluster, zxid: int) -> set[int]:
    """The controller epochs in the states that were written after `zxid`."""
    found = set()
    for row in cluster.server.rows():
        if paths.partition_of(row.path) is not None and row.stat.mzxid > zxid:
            found.add(decode_partition_state(row.path, row.data).controller_epoch)
    return found


def sleeps(cluster: Cluster, host: Host) -> None:
    """The whole process stands still (SIGSTOP)."""
    cluster.hosts.remove(host)
    host._scheduled = True
    host.connection.pause()


def sleeps_alone(cluster: Cluster, host: Host) -> None:
    """Its event thread alone stands still, and somebody deletes /controller: session and lease live on."""
    cluster.hosts.remove(host)
    host._scheduled = True

    def depose() -> None:
        cluster._admin.multi([Delete(paths.CONTROLLER, ANY_VERSION)])

    cluster.clock.call_later(0.0, depose)


def wakes(cluster: Cluster, host: Host) -> None:
    """Beside its successor, which has done all there was to do. Writes nothing in the term that it was struck in."""
    standby(cluster)
    cluster.pass_ms(TAKEOVER_MS)
    zxid, sent = cluster.server.zxid, len(host.sent)
    terms = {event.controller_epoch for event in host.trace.of(ControllerElected)}
    host.connection.resume()
    host._scheduled = False
    cluster.hosts.append(host)
    host._wake()
    cluster.settle()
    cluster.pass_ms(TAKEOVER_MS)
    assert not writers_since(cluster, zxid) & terms, "a controller that was deposed wrote"
    assert {one.value.controller_epoch for one in host.sent[sent:]} <= {
        *terms,
        *(event.controller_epoch for event in host.trace.of(ControllerElected)),
    }, "a request with an epoch that this controller never won"


STRIKES = (
    Strike("dies", at_await, dies, taken_over),
    Strike("its connection breaks", at_await, connection_breaks, goes_on),
    Strike("its session ends", at_await, session_ends, goes_on),
    Strike("sleeps beyond its session", at_await, sleeps, wakes),
    Strike("is deposed inside its session", at_await, sleeps_alone, wakes),
    Strike("a write is made, its reply lost", at_write, reply_lost(applied=True), goes_on),
    Strike("a write and its reply are lost", at_write, reply_lost(applied=False), goes_on),
    Strike("a write is made, and it dies", at_write, reply_lost_and_dies(applied=True), taken_over),
    Strike("a write is lost, and it dies", at_write, reply_lost_and_dies(applied=False), taken_over),
)


def assert_one_history(cluster: Cluster) -> None:
    """Over all controllers: an epoch has one writer, and in the order of a state's versions no epoch goes back."""
    writers: dict[int, int] = {}
    histories: dict[tuple[str, int], dict[int, PartitionStateWritten]] = {}
    for host in cluster.hosts:
        for event in host.trace.of(PartitionStateWritten):
            check_written(event)
            writer = writers.setdefault(event.controller_epoch, host.broker_id)
            assert writer == host.broker_id, f"epoch {event.controller_epoch}: {writer} and {host.broker_id} wrote"
            history = histories.setdefault((event.topic, event.partition), {})
            assert event.zk_version not in history, f"written twice: {event}"
            history[event.zk_version] = event
    for history in histories.values():
        for earlier, later in itertools.pairwise(history[version] for version in sorted(history)):
            assert later.controller_epoch >= earlier.controller_epoch, (earlier, later)
            assert later.leader_epoch >= earlier.leader_epoch, (earlier, later)


def interrupted(operation: Operation, strike: Strike, at: int) -> bool:
    """Runs it to its end with the strike at its `at`-th place. False if it was over before."""
    cluster, host = operation.prepare()
    over = happened = False

    def happens() -> None:
        nonlocal happened
        if not over:
            happened = True
            strike.struck(cluster, host)

    strike.arm(host, at, happens)
    answers = operation.begin(cluster, host)
    cluster.settle()
    over = True
    if happened:
        strike.recover(cluster, host)
    operation.go_on(cluster)
    operation.check(cluster)
    assert_one_history(cluster)
    if answers is not None and not host.dead:
        assert len(answers) == 1, f"answered {len(answers)} times"
    return happened


def every_place(operation: Operation, strike: Strike, limit: int = 200) -> int:
    """At how many places it was interrupted. AssertionError names the one at which it went wrong."""
    for at in range(1, limit):
        try:
            if not interrupted(operation, strike, at):
                return at - 1
        except AssertionError as error:
            raise AssertionError(f"{operation.name}, {strike.name} at {at}: {error}") from error
    raise AssertionError(f"{operation.name} never came to its end")
