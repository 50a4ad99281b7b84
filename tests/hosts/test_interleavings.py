"""Races of the real host, forced: one thread is held between two steps, the others go on, and it is let go.

Sessions, requests and sockets are real; only the moment is chosen. Each test is a race that has ended badly somewhere,
and what must come of it however it falls out.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from controller.core.events import LeaderAndIsrResponseReceived
from controller.protocol.control import LeaderAndIsrRequest
from controller.trace import ControllerElected, ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.operations import (
    ANY_VERSION,
    ControllerMoved,
    Create,
    Delete,
    SessionGone,
    SessionState,
    SetData,
    Write,
    ZooKeeperError,
)
from tests.hosts.one_node import DEADLINE_S, EVENT_THREAD, OUTSIDER, OneNode, Outsider, one_node
from tests.processes import eventually
from tests.sync_points import Script, installed
from tests.zookeeper.kazoo_bench import RealNode, Wired, real_node, sessions_on, wait

TOPIC, PARTITIONS = "orders", 1_500
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with EmbeddedZooKeeper(fsync=False, tick_ms=500) as zookeeper:
        yield zookeeper.hosts[0]


@pytest.fixture
def chroot() -> str:
    return f"/interleavings-{next(_numbers)}"


@pytest.fixture
def pair(server: str, chroot: str) -> Iterator[tuple[OneNode, Outsider]]:
    with one_node(server, chroot) as pair:
        yield pair


@pytest.fixture
def script() -> Iterator[Script]:
    with installed(Script(DEADLINE_S)) as script:
        yield script


def on_thread(action: Callable[[], Any], name: str) -> Future[Any]:
    """What `action` gives or raises on a thread of that name."""
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:  # noqa: BLE001 - raised again where the outcome is asked for
            outcome.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return outcome


def resigned(node: OneNode) -> list[int]:
    return [event.controller_epoch for event in node.trace.events if isinstance(event, ControllerResigned)]


def elected(node: OneNode) -> list[int]:
    return [event.controller_epoch for event in node.trace.events if isinstance(event, ControllerElected)]


# -- S13, S15: expiry, with requests in flight


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_s13_a_term_ends_while_the_requests_in_flight_have_no_answer_yet(
    pair: tuple[OneNode, Outsider], script: Script, nth: int
) -> None:
    """KAFKA-6517: the thread that will answer them stands still, and nobody needs it to end the term."""
    node, outsider = pair
    old = node.session
    waiting = script.hold("event loop: waits", nth=nth, thread=EVENT_THREAD)
    outsider.create_topic(TOPIC, PARTITIONS)
    with waiting:
        node.link.cut(to_server=False)  # from here on no request of this handler's is answered
    failing = script.hold("zookeeper: requests fail", nth=2)  # the first time is the broken connection's
    node.link.expire()
    node.link.heal()
    node.link.reset()
    with failing:
        eventually(lambda: resigned(node) == [1], "the term has ended")
        made_meanwhile = node.node.client.read(["/"])
        assert isinstance(made_meanwhile.error, SessionGone), "no lock is held there"
    eventually(lambda: node.session not in (0, old), "a new session")
    eventually(lambda: len(outsider.states(TOPIC, PARTITIONS)) == PARTITIONS, "the next term makes the topic")
    assert elected(node) == [1, 2]


def test_s15_the_listener_needs_no_controller_thread(pair: tuple[OneNode, Outsider], script: Script) -> None:
    """The controller's thread waits for a reply and stands still; expiry, the next session and its watches come by."""
    node, outsider = pair
    old = node.session
    waiting = script.hold("event loop: waits", thread=EVENT_THREAD)
    outsider.create_topic(TOPIC, 1)
    with waiting:
        node.link.cut(to_server=False)
        node.link.expire()
        node.link.heal()
        node.link.reset()
        eventually(lambda: node.session not in (0, old), "a new session while the thread is held")
        assert node.node.controller.active, "the thread that would resign is held"
        assert node.node.controller.void_reason() is not None
    eventually(lambda: resigned(node) == [1], "the term has ended")
    eventually(lambda: len(outsider.states(TOPIC, 1)) == 1, "the next term makes the topic")
    assert elected(node) == [1, 2]


# -- S14: faults in callbacks, and who waits meanwhile


def divide_by_zero() -> None:
    raise ZeroDivisionError("planted in a callback")


@pytest.mark.parametrize("point", ["zookeeper: state changes", "zookeeper: requests fail", "zookeeper: connected"])
def test_s14_no_lock_is_held_where_the_connection_stands_and_no_fault_of_a_callback_ends_it(
    server: str, script: Script, point: str
) -> None:
    """KAFKA-6879: who asks anything of the connection meanwhile is not held up with it."""
    it = Wired(server)
    try:
        old = wait(it.connection.start(), DEADLINE_S)
        told: list[SessionState] = []

        def fail(state: SessionState) -> None:
            told.append(state)
            raise ZeroDivisionError(f"planted in {state}")

        it.listener.on_state = fail
        it.link.cut(to_server=False)
        it.connection.read(["/"]).on_done(divide_by_zero)
        hold = script.hold(point)
        it.link.expire()
        it.link.heal()
        it.link.reset()
        with hold:
            ask = on_thread(lambda: (it.connection.read(["/"]), it.connection.session(), it.connection.last_zxid()), "")
            made_meanwhile = ask.result(DEADLINE_S)[0]
        eventually(lambda: it.connection.session() not in (0, old), "a new session")
        assert wait(it.connection.read(["/"]), DEADLINE_S).rows[0] is not None
        assert SessionState.EXPIRED in told
        eventually(lambda: bool(made_meanwhile.done), "what was asked meanwhile is answered")
        assert made_meanwhile.error is None or isinstance(made_meanwhile.error, ZooKeeperError)
    finally:
        it.close()


# -- S16: close, as the session ends


@pytest.mark.parametrize("late", [False, True], ids=["in time", "after close was given up"])
@pytest.mark.parametrize(
    "point",
    ["state changes", "requests fail", "dialling", "connecting", "connected"],
)
def test_s16_no_session_is_there_after_a_close_that_met_an_expiry(
    server: str, script: Script, point: str, late: bool
) -> None:
    """KAFKA-8121: wherever the connection stands as it makes the next session."""
    before = sessions_on(server)
    it = Wired(server, session_timeout_ms=3_000)
    wait(it.connection.start(), DEADLINE_S)
    # The first to dial finds the session gone, the second asks for a new one.
    hold = script.hold(f"zookeeper: {point}", nth=2 if point in ("dialling", "connecting") else 1)
    it.link.expire()
    with hold:
        granted = it.link.granted
        pending = it.connection.read(["/"])
        closed = on_thread(it.connection.close, "closer").result(DEADLINE_S)
        eventually(lambda: pending.done, "answered at once")
        with pytest.raises(SessionGone):
            pending.result()
        if late:
            wait(closed, DEADLINE_S)
            assert hold.held
    wait(closed, DEADLINE_S)
    states = list(it.listener.states)
    assert it.connection.session() == 0
    eventually(lambda: sessions_on(server) <= before, "no session of its own is left")
    if point != "connecting":  # there the handshake was under way; elsewhere none is begun once it is closing
        assert it.link.granted == granted, "a session was made after close"
    assert states.count(SessionState.CLOSED) == 1
    assert it.listener.states == states, "nobody is told of anything after it"
    it.close()


# -- the paused writer


def deposed(node: RealNode, other: RealNode) -> int:
    """Somebody else has won; the epoch's version now."""
    epoch = wait(other.client.read([paths.CONTROLLER_EPOCH]), DEADLINE_S).rows[0]
    assert epoch is not None
    election: list[Write] = [
        Create(paths.CONTROLLER, b"other", ephemeral=True),
        SetData(paths.CONTROLLER_EPOCH, b"2", epoch.stat.version),
    ]
    wait(other.client.commit_election(election), DEADLINE_S)
    return epoch.stat.version + 1


@pytest.mark.parametrize("reconnected", [True, False], ids=["woken in a new session", "woken with no session"])
def test_s03_a_writer_paused_between_the_check_and_the_send_writes_nothing(
    server: str, chroot: str, script: Script, reconnected: bool
) -> None:
    with real_node(server, chroot) as node, real_node(server, chroot) as other:
        leadership = node.win()
        wait(other.client.commit_election([Create("/row", b"before")]), DEADLINE_S)
        hold = script.hold("zookeeper: request made", thread="writer")
        writing = on_thread(
            lambda: wait(node.client.commit(leadership, [SetData("/row", b"stale", 0)]), DEADLINE_S), "writer"
        )
        with hold:
            if not reconnected:
                kept_out = script.hold("zookeeper: connecting", nth=2)
            node.wired.link.expire()
            if reconnected:
                eventually(lambda: node.client.session() not in (0, leadership.session), "a new session")
            else:
                kept_out.wait()
                assert node.client.session() == 0
            deposed(node, other)
        with pytest.raises(ControllerMoved if reconnected else SessionGone):
            writing.result(DEADLINE_S)
        if not reconnected:
            kept_out.release()
        row = wait(other.client.read(["/row"]), DEADLINE_S).rows[0]
        assert row is not None
        assert (row.data, row.stat.version) == (b"before", 0)


@pytest.mark.parametrize("point", ["event loop: before the check", "event loop: before resume"])
@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_handler_paused_beyond_its_session_writes_nothing_beside_its_successor(
    pair: tuple[OneNode, Outsider], script: Script, point: str, nth: int
) -> None:
    """S01, S03 at each step of a topic's creation: woken just before or just after the look at its term."""
    node, outsider = pair
    old = node.session
    hold = script.hold(point, nth=nth, thread=EVENT_THREAD)
    outsider.create_topic(TOPIC, PARTITIONS)
    with hold:
        node.link.expire()
        leadership = outsider.win()
        eventually(lambda: node.session not in (0, old), "a new session")
        before = {row.path: row.stat.mzxid for row in outsider.states(TOPIC, PARTITIONS)}
        sent_before = len(control_requests(node))
    eventually(lambda: resigned(node) == [1], "it resigns")
    eventually(lambda: node.node.controller.active_controller_id == OUTSIDER, "it knows its successor")
    after = {row.path: row.stat.mzxid for row in outsider.states(TOPIC, PARTITIONS)}
    assert after == before, "states written beside the successor"
    assert len(control_requests(node)) == sent_before, "requests sent beside the successor"
    row = outsider.row(paths.CONTROLLER)
    assert row is not None
    assert decode_controller(row.path, row.data).broker_id == OUTSIDER
    assert leadership.epoch == 2


def control_requests(node: OneNode) -> list[Any]:
    return [value for value in node.received if isinstance(value, LeaderAndIsrRequest)]


# -- channels


def test_s12_a_request_that_is_queued_when_the_lease_runs_out_does_not_go_out(
    server: str, chroot: str, script: Script
) -> None:
    """The channel has taken it and stands still; the link to ZooKeeper is cut; the channel goes on, too late."""
    with one_node(server, chroot, session_timeout_ms=4_000) as (node, outsider):
        eventually(node.quiet, "quiet")
        hold = script.hold("channel: request taken")
        outsider.create_topic(TOPIC, 1)
        with hold:
            sent = len(node.received)
            node.link.cut()
            eventually(lambda: resigned(node) == [1], "the lease has run out, and the term with it")
        settled(node)
        assert len(node.received) == sent, f"sent after the term: {node.received[sent:]}"


def test_s12_a_channel_looks_at_the_lease_itself_while_the_event_thread_stands_still(
    server: str, chroot: str, script: Script
) -> None:
    """A process that was stopped and goes on: the network's thread may come first."""
    with one_node(server, chroot, session_timeout_ms=4_000) as (node, outsider):
        eventually(node.quiet, "quiet")
        channel = script.hold("channel: request taken")
        outsider.create_topic(TOPIC, 1)
        with channel:
            events = script.hold("event loop: before the check", thread=EVENT_THREAD)
            outsider.create_topic("another", 1)
            with events:
                sent = len(node.received)
                node.link.cut()
                eventually(lambda: node.node.controller.void_reason() is not None, "the lease has run out")
                channel.release()
                settled(node)
                assert node.node.controller.active
                assert len(node.received) == sent, f"sent after the term: {node.received[sent:]}"
        eventually(lambda: resigned(node) == [1], "it resigns once it can")


def settled(node: OneNode) -> None:
    """What the network's loop could do by now is done: a request that it had sent would have been received."""

    async def turn() -> None:
        for _ in range(50):
            await asyncio.sleep(0.002)

    node.network.run(turn(), DEADLINE_S)


def test_s04_a_response_that_arrives_after_the_resignation_becomes_no_event(
    pair: tuple[OneNode, Outsider], script: Script
) -> None:
    node, outsider = pair
    eventually(node.quiet, "quiet")
    hold = script.hold("channel: answered")
    outsider.create_topic(TOPIC, 1)
    with hold:
        seen = len(node.responses.seen)
        node.link.expire()
        eventually(lambda: resigned(node) == [1], "it resigns with the answer at the door")
    eventually(lambda: elected(node) == [1, 2], "the next term")
    eventually(
        lambda: any(isinstance(e, LeaderAndIsrResponseReceived) for e in node.responses.seen[seen:]), "its answers"
    )
    epochs = [event.controller_epoch for event in node.responses.seen[seen:]]
    assert 1 not in epochs, "an answer of the term before"


# -- watches


def test_a_change_between_the_read_and_the_arming_is_told(server: str, chroot: str, script: Script) -> None:
    """S23, S27: armed with the zxid from before the read; with one from after the change it would be missed."""
    with real_node(server, chroot) as node, real_node(server, chroot) as other:
        wait(other.client.commit_election([Create("/row", b"0"), Create("/missed", b"0")]), DEADLINE_S)
        zxid = wait(node.client.read(["/row", "/missed"]), DEADLINE_S).zxid
        hold = script.hold("zookeeper: request made", thread="reader")
        arming = on_thread(
            lambda: wait(node.client.watch_many(["/row"], lambda path: path, zxid), DEADLINE_S), "reader"
        )
        with hold:
            changed = [SetData("/row", b"1", 0), SetData("/missed", b"1", 0)]
            wait(other.client.commit_election(changed), DEADLINE_S)
            seen_too_late = wait(node.client.read(["/row"]), DEADLINE_S).zxid
        arming.result(DEADLINE_S)
        wait(node.client.watch_many(["/missed"], lambda path: path, seen_too_late), DEADLINE_S)
        eventually(lambda: "/row" in node.events.put_, "told")
        assert "/missed" not in node.events.put_, "this test could not fail"


def test_a_change_between_a_watch_that_fired_and_the_next_is_seen_by_the_handler(
    server: str, chroot: str, script: Script
) -> None:
    with real_node(server, chroot) as node, real_node(server, chroot) as other:
        wait(other.client.commit_election([Create("/row", b"0")]), DEADLINE_S)
        wait(node.client.watch_node("/row", "row"), DEADLINE_S)
        hold = script.hold("zookeeper: watch fired")
        changing = other.client.commit_election([SetData("/row", b"1", 0)])
        with hold:
            wait(changing, DEADLINE_S)
            wait(other.client.commit_election([SetData("/row", b"2", 1)]), DEADLINE_S)
            assert node.events.put_.count("row") == 0
        eventually(lambda: "row" in node.events.put_, "told")
        row = wait(node.client.read(["/row"]), DEADLINE_S).rows[0]
        assert row is not None
        assert row.data == b"2"
        wait(other.client.commit_election([Delete("/row", ANY_VERSION)]), DEADLINE_S)
        eventually(lambda: node.events.put_.count("row") == 2, "the next change is told too")
