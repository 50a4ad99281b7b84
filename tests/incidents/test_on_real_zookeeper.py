"""Incidents whose fault is ZooKeeper's, kazoo's or a thread's: whole nodes with their threads on a real server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from controller.core.leadership import Lost, Won, elect
from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.operations import Create, Znode
from tests.incidents.real_node import RealStack, real_stack
from tests.zookeeper.kazoo_bench import DEADLINE_S, RealNode, real_node, run, until, wait

PARTITIONS = 2_000
SHORT_MS = 1_500
_numbers = itertools.count(1)


@pytest.fixture
def server(real_server: EmbeddedZooKeeper) -> str:
    return real_server.hosts[0]


@pytest.fixture
def chroot() -> str:
    return f"/incidents-{next(_numbers)}"


@pytest.fixture
def other(server: str, chroot: str) -> Iterator[RealNode]:
    """Someone else, whose link is left alone."""
    with real_node(server, chroot) as other:
        yield other


def row_of(other: RealNode, path: str) -> Znode | None:
    return wait(other.client.read([path]), DEADLINE_S).rows[0]


def leads(stack: RealStack) -> bool:
    return stack.node.controller.active and bool(stack.terms())


def make_topic(other: RealNode) -> None:
    assignment = TopicAssignment("AAAAAAAAQACAAAAAAAAAAQ", dict.fromkeys(range(PARTITIONS), (1,)))
    wait(other.client.commit_election([Create(paths.topic("t"), encode_topic_assignment(assignment))]), DEADLINE_S)


def states_there(other: RealNode) -> int:
    rows = wait(other.client.read(paths.partition_states("t", list(range(PARTITIONS)))), DEADLINE_S).rows
    return sum(row is not None for row in rows)


def assert_leads_again(stack: RealStack, other: RealNode, former: int) -> None:
    """In a session of its own, registered in it, in a later term, and with the work done that was begun."""
    until(lambda: leads(stack) and stack.terms()[-1] > 1, "leads again")
    until(lambda: states_there(other) == PARTITIONS, "every partition has a state")
    session = stack.node.client.session()
    assert session not in (0, former)
    for path in (paths.broker(1), paths.CONTROLLER):
        row = row_of(other, path)
        assert row is not None
        assert row.stat.ephemeral_owner == session, path
    assert stack.resigned() == stack.terms()[:-1]
    assert stack.trace.notes("error") == []


@pytest.mark.parametrize("number", [1, 3, 6])
def test_s13_a_session_ends_while_writes_are_in_flight(server: str, chroot: str, other: RealNode, number: int) -> None:
    """KAFKA-6517: the replies are held back, the session ends on the server, and nobody waits for anybody."""
    with real_stack(server, chroot) as stack:
        until(lambda: leads(stack), "leads")
        former = stack.node.client.session()
        link = stack.wired.link
        stack.before("multi", number, lambda: link.cut(to_server=False))
        make_topic(other)
        until(lambda: link._cut["to client"], "writes in flight")
        link.expire()
        link.heal()
        assert_leads_again(stack, other, former)


@pytest.mark.parametrize("request_kind", ["children", "read_columns"])
def test_s15_a_session_ends_while_the_event_thread_waits_for_a_read(
    server: str, chroot: str, other: RealNode, request_kind: str
) -> None:
    """The listener that hears of it waits for no thread, so the read fails and the thread goes on."""
    with real_stack(server, chroot) as stack:
        until(lambda: leads(stack), "leads")
        former = stack.node.client.session()
        link = stack.wired.link
        stack.before(request_kind, 1, link.cut)
        make_topic(other)
        until(lambda: link._cut["to client"], "a read in flight")
        link.expire()
        link.heal()
        assert_leads_again(stack, other, former)


def test_s09_zookeeper_goes_away_with_the_session_and_comes_back(chroot: str) -> None:
    """KAFKA-5473: nothing gives up while it is gone; the broker registers and leads when it is back."""
    with (
        EmbeddedZooKeeper(kind="java", tick_ms=500, fsync=False) as zookeeper,
        real_node(zookeeper.hosts[0], chroot) as other,
        real_stack(zookeeper.hosts[0], chroot, SHORT_MS) as stack,
    ):
        until(lambda: leads(stack), "leads")
        make_topic(other)
        until(lambda: states_there(other) == PARTITIONS, "every partition has a state")
        former = stack.node.client.session()
        stack.wired.link.cut()
        stack.wired.link.expire()
        zookeeper.kill()
        until(lambda: stack.resigned() == [1], "resigned though nobody said anything")
        stack.wired.link.heal()
        zookeeper.start()
        assert_leads_again(stack, other, former)


def test_s07_ones_own_id_in_an_older_sessions_znode_is_no_victory(server: str, chroot: str) -> None:
    """CURATOR-696: the process was killed and is back before its former session has ended."""
    with (
        real_node(server, chroot, session_timeout_ms=SHORT_MS) as former,
        real_node(server, chroot) as now,
    ):
        first = run(elect(former.client, 1, ThreadClock()), DEADLINE_S)
        assert isinstance(first, Won)
        former.wired.link.cut()
        assert run(elect(now.client, 1, ThreadClock()), DEADLINE_S) == Lost(1, first.leadership.session)
        until(lambda: row_of(now, paths.CONTROLLER) is None, "the former session has ended")
        second = run(elect(now.client, 1, ThreadClock()), DEADLINE_S)
        assert isinstance(second, Won)
        assert second.leadership.epoch == 2
        row = row_of(now, paths.CONTROLLER)
        assert row is not None
        assert row.stat.ephemeral_owner == now.client.session() == second.leadership.session
        former.wired.link.heal()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_s08_an_election_whose_reply_is_lost_is_won_once(server: str, chroot: str, applied: bool, number: int) -> None:
    """Whether the write was made or not, and whichever of the two it was: the epoch's creation, or the claim."""
    with real_node(server, chroot) as node, real_node(server, chroot) as other:
        if number == 2:
            wait(other.client.commit_election([Create(paths.CONTROLLER_EPOCH, b"0")]), DEADLINE_S)
        node.wired.link.lose_reply(applied=applied)
        outcome = run(elect(node.client, 1, ThreadClock()), DEADLINE_S)
        assert isinstance(outcome, Won)
        assert (outcome.leadership.epoch, outcome.leadership.epoch_zk_version) == (1, 1)
        assert run(elect(other.client, 2, ThreadClock()), DEADLINE_S) == Lost(1, node.client.session())
        epoch = row_of(other, paths.CONTROLLER_EPOCH)
        assert epoch is not None
        assert (epoch.data, epoch.stat.version) == (b"1", 1)
