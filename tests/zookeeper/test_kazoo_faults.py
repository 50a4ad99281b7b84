"""The whole client on a real server: lost replies, cut links, a server that is killed, paused or replaced, and the
incidents that this must survive."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest

from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock
from controller.zookeeper.embedded import KINDS, EmbeddedZooKeeper, ZooKeeperKind
from controller.zookeeper.operations import (
    ANY_VERSION,
    ControllerMoved,
    Create,
    Delete,
    LeaseExpired,
    MultiFailed,
    SessionGone,
    SessionState,
    SetData,
    UnknownOutcome,
    Write,
)
from controller.zookeeper.row_writes import SetResults, StatePaths, StateSets
from tests.zookeeper.kazoo_bench import DEADLINE_S, RealNode, real_node, run, until, wait

_numbers = itertools.count(1)


@pytest.fixture
def server(real_server: EmbeddedZooKeeper) -> str:
    return real_server.hosts[0]


@pytest.fixture
def chroot() -> str:
    return f"/faults-{next(_numbers)}"


@pytest.fixture
def node(server: str, chroot: str) -> Iterator[RealNode]:
    with real_node(server, chroot) as node:
        yield node


@pytest.fixture
def other(server: str, chroot: str, node: RealNode) -> Iterator[RealNode]:
    """Someone else, whose link is left alone."""
    with real_node(server, chroot) as other:
        yield other


def make(node: RealNode, count: int) -> list[str]:
    names = [f"/r{number}" for number in range(count)]
    for start in range(0, count, 500):
        wait(node.client.commit_election([Create(name, b"") for name in names[start : start + 500]]), DEADLINE_S)
    return names


def told(node: RealNode, state: SessionState) -> int:
    return [event[0] for event in node.events.put_ if isinstance(event, tuple)].count(state)


# -- rows


@pytest.mark.parametrize("applied", [True, False])
def test_rows_whose_reply_is_lost_are_written_exactly_once(node: RealNode, applied: bool) -> None:
    names = make(node, 1_500)
    leadership = node.win()
    node.wired.link.lose_reply(applied=applied)
    written = run(node.client.commit_rows(leadership, [SetData(name, b"new", 0) for name in names]), DEADLINE_S)
    assert written.versions.tolist() == [1] * len(names)
    assert written.moved == ()
    rows = wait(node.client.read(names), DEADLINE_S).rows
    assert all(row is not None and (row.data, row.stat.version) == (b"new", 1) for row in rows)


def test_a_thousand_stale_rows_of_ten_thousand_are_handed_back(node: RealNode, other: RealNode) -> None:
    names = make(node, 10_000)
    leadership = node.win()
    stale = names[::10]
    for start in range(0, len(stale), 500):
        wait(
            other.client.commit_election([SetData(name, b"theirs", 0) for name in stale[start : start + 500]]),
            DEADLINE_S,
        )
    written = run(node.client.commit_rows(leadership, [SetData(name, b"new", 0) for name in names]), DEADLINE_S)
    assert written.versions.tolist() == [-1 if number % 10 == 0 else 1 for number in range(10_000)]
    assert [index for index, _ in written.moved] == list(range(0, 10_000, 10))
    assert all(row is not None and row.data == b"theirs" for _, row in written.moved)


def test_states_as_columns_are_written_in_one_multi_and_fail_as_one(node: RealNode, other: RealNode) -> None:
    names = StatePaths([("a", [0, 9, 10, 999, 1_000]), ("b", [0])])
    tree = {path for name in names for path in _with_parents(name)} - {"/brokers/topics", "/brokers"}
    made = wait(other.client.read(["/brokers/topics"]), DEADLINE_S).rows[0] is not None
    above = [] if made else ["/brokers", "/brokers/topics"]
    wait(other.client.commit_election([Create(path, b"") for path in [*above, *sorted(tree)]]), DEADLINE_S)
    leadership = node.win()
    sets = StateSets(names, [b"one", b"another"] * 3, np.zeros(6, dtype=np.int32))
    results = wait(node.client.commit(leadership, sets), DEADLINE_S)
    rows = wait(other.client.read(list(names)), DEADLINE_S).rows
    assert [row.data for row in rows if row is not None] == sets.data
    assert list(results) == [row.stat for row in rows if row is not None]
    assert isinstance(results, SetResults)
    assert results.versions.tolist() == [1] * 6
    wait(other.client.commit_election([SetData(names[3], b"theirs", 1)]), DEADLINE_S)
    again = StateSets(names, [b"two"] * 6, results.versions)
    with pytest.raises(MultiFailed) as failed:
        wait(node.client.commit(leadership, again), DEADLINE_S)
    assert failed.value.index == 3
    written = run(node.client.commit_rows(leadership, again), DEADLINE_S)
    assert written.versions.tolist() == [2, 2, 2, -1, 2, 2]
    assert [place for place, _ in written.moved] == [3]


def _with_parents(path: str) -> list[str]:
    words = path[1:].split("/")
    return ["/" + "/".join(words[:depth]) for depth in range(1, len(words) + 1)]


# -- the term


def test_a_deposed_controller_writes_nothing(node: RealNode, other: RealNode) -> None:
    """S03."""
    make(node, 1)
    leadership = node.win()
    depose: list[Write] = [Delete(paths.CONTROLLER, ANY_VERSION), SetData(paths.CONTROLLER_EPOCH, b"2", 1)]
    wait(other.client.commit_election(depose), DEADLINE_S)
    with pytest.raises(ControllerMoved):
        wait(node.client.commit(leadership, [SetData("/r0", b"stale", 0)]), DEADLINE_S)
    row = wait(other.client.read(["/r0"]), DEADLINE_S).rows[0]
    assert row is not None
    assert row.data == b""


def test_a_controller_cut_off_stops_before_another_can_be_elected(server: str, chroot: str) -> None:
    """S12: kazoo stays SUSPENDED for ever; the lease does not."""
    with real_node(server, chroot, session_timeout_ms=4_000) as node, real_node(server, chroot) as other:
        make(node, 1)
        leadership = node.win()
        node.wired.link.cut()
        until(lambda: node.client.lease_until_ms() <= ThreadClock().now_ms(), "the lease run out")
        assert wait(other.client.read([paths.CONTROLLER]), DEADLINE_S).rows[0] is not None
        with pytest.raises(LeaseExpired):
            wait(node.client.commit(leadership, [SetData("/r0", b"stale", 0)]), DEADLINE_S)
        until(lambda: wait(other.client.read([paths.CONTROLLER]), DEADLINE_S).rows == (None,), "its session ended")
        assert told(node, SessionState.EXPIRED) == 0
        assert node.client.session() == leadership.session
        node.wired.link.heal()
        until(lambda: told(node, SessionState.EXPIRED) == 1, "expired")
        until(lambda: node.client.session() not in (0, leadership.session), "a new session")
        with pytest.raises(SessionGone):
            wait(node.client.commit(leadership, [SetData("/r0", b"stale", 0)]), DEADLINE_S)


@pytest.mark.parametrize("applied", [True, False])
def test_an_election_whose_reply_is_lost_can_be_looked_up(node: RealNode, other: RealNode, applied: bool) -> None:
    """S08: what to look at is there; judging it is the election's."""
    node.wired.link.lose_reply(applied=applied)
    with pytest.raises(UnknownOutcome):
        wait(node.client.commit_election([Create(paths.CONTROLLER, b"me", ephemeral=True)]), DEADLINE_S)
    row = wait(node.client.read([paths.CONTROLLER]), DEADLINE_S).rows[0]
    assert (row is not None) is applied
    assert row is None or row.stat.ephemeral_owner == node.client.session()


def test_a_registration_lingers_and_is_replaced_by_the_next_session(node: RealNode, other: RealNode) -> None:
    """S06, KAFKA-7165, S09."""
    run(node.writes.ensure_persistent_paths(), DEADLINE_S)
    first = run(node.writes.register_broker(1, b"first"), DEADLINE_S)
    old = node.client.session()
    node.wired.link.expire()
    until(lambda: node.client.session() not in (0, old), "a new session")
    second = run(node.writes.register_broker(1, b"second"), DEADLINE_S)
    assert second > first
    row = wait(other.client.read([paths.broker(1)]), DEADLINE_S).rows[0]
    assert row is not None
    assert (row.data, row.stat.ephemeral_owner) == (b"second", node.client.session())


# -- watches


def test_a_change_in_the_gap_between_two_connections_is_told(node: RealNode, other: RealNode) -> None:
    """S27, kazoo #151: kazoo itself sets no watch again."""
    make(node, 4)
    wait(node.client.watch_children("/", "children"), DEADLINE_S)
    wait(node.client.watch_node("/r0", "r0"), DEADLINE_S)
    zxid = wait(node.client.read(["/r1"]), DEADLINE_S).zxid
    wait(node.client.watch_many(["/r1", "/r2", "/r3"], lambda path: path, zxid), DEADLINE_S)
    node.wired.link.cut()
    node.wired.link.reset()
    until(lambda: told(node, SessionState.SUSPENDED) == 1, "suspended")
    wait(other.client.commit_election([SetData("/r1", b"x", 0), Delete("/r2", 0)]), DEADLINE_S)
    node.wired.link.heal()
    until(lambda: {"children", "r0", "/r1", "/r2"} <= set(node.events.put_), "told")
    assert "/r3" not in node.events.put_
    # What was told is armed again by a request that may still be under way; a handler's read comes behind it.
    wait(node.client.read(["/r0", "/r1", "/r2", "/r3"]), DEADLINE_S)
    for path, write in (
        ("/r1", SetData("/r1", b"y", 1)),
        ("/r2", Create("/r2", b"")),
        ("/r3", Delete("/r3", 0)),
        ("r0", SetData("/r0", b"", 0)),
    ):
        node.events.put_.clear()
        wait(other.client.commit_election([write]), DEADLINE_S)
        until(lambda path=path: path in node.events.put_, "told after it, too")  # type: ignore[misc]


def test_a_new_session_watches_again_and_looks_at_everything(node: RealNode, other: RealNode) -> None:
    """S25."""
    make(node, 1)
    wait(node.client.watch_children("/", "children"), DEADLINE_S)
    old = node.client.session()
    node.wired.link.expire()
    until(lambda: "children" in node.events.put_, "put with the new session")
    assert node.client.session() not in (0, old)
    wait(node.client.read(["/"]), DEADLINE_S)  # behind the request that watches again
    node.events.put_.clear()
    wait(other.client.commit_election([Create("/later", b"")]), DEADLINE_S)
    until(lambda: "children" in node.events.put_, "told")


def test_a_handlers_read_for_an_event_is_behind_the_new_watch(node: RealNode, other: RealNode) -> None:
    """No change falls between: 200 changes as fast as they come, the last one is always seen."""
    make(node, 1)
    wait(node.client.watch_node("/r0", "r0"), DEADLINE_S)
    changes = [other.client.commit_election([SetData("/r0", b"%d" % number, number)]) for number in range(200)]
    seen = b""
    deadline = time.monotonic() + DEADLINE_S
    while seen != b"199":
        assert time.monotonic() < deadline, f"last seen: {seen!r}"
        if node.events.put_:
            node.events.put_.clear()
            row = wait(node.client.read(["/r0"]), DEADLINE_S).rows[0]
            assert row is not None
            seen = row.data or b""
    for change in changes:
        wait(change, DEADLINE_S)


# -- servers that fail


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_paused_killed_and_started_again_keeps_the_session(kind: ZooKeeperKind, chroot: str) -> None:
    with EmbeddedZooKeeper(kind=kind, fsync=False) as zookeeper, real_node(zookeeper.hosts[0], chroot) as node:
        make(node, 1)
        leadership = node.win()
        wait(node.client.watch_node("/r0", "r0"), DEADLINE_S)
        for count, (fail, mend) in enumerate([(zookeeper.pause, zookeeper.resume), (zookeeper.kill, zookeeper.start)]):
            node.events.put_.clear()
            fail()
            until(lambda: told(node, SessionState.SUSPENDED) == 1, "suspended")
            reading = node.client.read(["/r0"])
            mend()
            assert wait(reading, DEADLINE_S).rows[0] is not None
            until(lambda: "r0" in node.events.put_, "looked at again")
            assert node.client.session() == leadership.session
            wait(node.client.commit(leadership, [SetData("/r0", b"", count)]), DEADLINE_S)
            until(lambda: node.events.put_.count("r0") == 2, "told of the change")


def test_an_ensemble_that_loses_its_leader_keeps_the_session_and_tells_of_every_change(chroot: str) -> None:
    with EmbeddedZooKeeper(servers=3, fsync=False) as zookeeper:
        with real_node(zookeeper.connect_string, chroot, session_timeout_ms=20_000) as node:
            names = make(node, 600)
            leadership = node.win()
            wait(node.client.watch_node("/r0", "r0"), DEADLINE_S)
            # One look with patience: a busy server has more than the tenth of a second that `leader` gives it.
            leader = [server.mode(5.0) for server in zookeeper.servers].index("leader")
            zookeeper.servers[leader].kill()
            written = run(node.client.commit_rows(leadership, [SetData(name, b"new", 0) for name in names]), DEADLINE_S)
            assert written.versions.tolist() == [1] * len(names)
            assert node.client.session() == leadership.session
            until(lambda: "r0" in node.events.put_, "told")
