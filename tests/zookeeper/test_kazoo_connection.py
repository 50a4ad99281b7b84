"""What the contract does not ask of every connection: connect strings, old servers, refused credentials, faults of
listeners, closing at the worst moment, and sessions that must not be mixed up."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.exceptions import EXCEPTIONS

from controller.zookeeper import jute, kazoo_connection, kazoo_session
from controller.zookeeper.blocking import ThreadClock
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.kazoo_connection import REQUESTS_IN_FLIGHT, KazooConnection, KazooLink
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    BATCH,
    PERM_READ,
    AuthenticationFailed,
    ConnectionLost,
    Create,
    NoAuth,
    SessionGone,
    SessionState,
    SetData,
    WatchEvent,
    WatchKind,
    ZooKeeperError,
)
from tests.zookeeper.kazoo_bench import DEADLINE_S, Wired, sessions_on, until, wait, wired

CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED
EXPIRED, CLOSED = SessionState.EXPIRED, SessionState.CLOSED

_numbers = itertools.count(1)


@pytest.fixture
def server(real_server: EmbeddedZooKeeper) -> str:
    return real_server.hosts[0]


@pytest.fixture
def root(server: str) -> str:
    path = f"/kazoo-{next(_numbers)}"
    with wired(server) as it:
        wait(it.connection.multi([Create(path, b"")]), DEADLINE_S)
    return path


# -- connect strings


@pytest.mark.parametrize("hosts", ["", ":2181", "host:port", "host:1/a//b", "host:1/../x"])
def test_a_connect_string_that_is_none_is_refused(hosts: str) -> None:
    with pytest.raises(ValueError):
        KazooConnection(hosts, ThreadClock())


def test_below_a_chroot_paths_and_events_are_relative_to_it(server: str, root: str) -> None:
    with wired(server) as whole, wired(server, suffix=root) as below:
        created = wait(below.connection.multi([Create("/n-", b"x", sequential=True)]), DEADLINE_S)[0]
        assert created == "/n-0000000000"
        assert wait(whole.connection.read([f"{root}{created}"]), DEADLINE_S).rows[0] is not None
        assert wait(below.connection.children(["/"]), DEADLINE_S).children == (("n-0000000000",),)
        wait(below.connection.watch([str(created)], ["/"]), DEADLINE_S)
        wait(whole.connection.multi([Create(f"{root}/b", b""), SetData(f"{root}{created}", b"y", 0)]), DEADLINE_S)
        until(lambda: len(below.listener.events) == 2, "both told")
        assert below.listener.events == [
            WatchEvent(WatchKind.CHILDREN, "/"),
            WatchEvent(WatchKind.DATA, "/n-0000000000"),
        ]
        wait(below.connection.set_watches(0, ["/b"], [], []), DEADLINE_S)
        until(lambda: below.listener.events[2:] == [WatchEvent(WatchKind.DATA, "/b")], "told")


def test_a_chroot_is_made_only_when_asked_for(server: str, root: str) -> None:
    with wired(server, suffix=f"{root}/a/b") as it:
        assert wait(it.connection.read(["/"]), DEADLINE_S).rows == (None,)
    for _ in range(2):
        with wired(server, suffix=f"{root}/a/b", create_chroot=True) as it:
            assert wait(it.connection.read(["/"]), DEADLINE_S).rows[0] is not None


def test_a_chroot_that_may_not_be_made_fails_the_start(server: str, root: str) -> None:
    with wired(server) as it:
        closed = Create(f"{root}/closed", b"", acl=(ACL(PERM_READ, "world", "anyone"),))
        wait(it.connection.multi([closed]), DEADLINE_S)
    refused = Wired(server, suffix=f"{root}/closed/in", create_chroot=True)
    with pytest.raises(NoAuth, match="closed/in"):
        wait(refused.connection.start(), DEADLINE_S)
    refused.close()


# -- servers


UNKNOWN_OPCODE = 20_022
"""To a server older than 3.6 opcode 22 is what this one is to every server."""


def read_everything(connection: KazooConnection, names: list[str]) -> list[object]:
    columns = wait(connection.read_columns(names), DEADLINE_S)
    return [
        wait(connection.read(names), DEADLINE_S).rows,
        wait(connection.children(names), DEADLINE_S).children,
        (columns.json, columns.versions.tolist(), columns.ends.tolist()),
    ]


@pytest.mark.parametrize("count", [0, 1, BATCH])
def test_a_server_that_tells_an_old_version_is_read_one_by_one(
    server: str, root: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    names = [f"{root}/{number}" for number in range(count)]
    with wired(server) as new:
        if names:
            wait(new.connection.multi([Create(name, b"[%d]" % len(name)) for name in names]), DEADLINE_S)
        asked = names[: BATCH // 2] + [f"{root}/not-there"] * min(count, 3)
        by_multi_read = read_everything(new.connection, asked)
    monkeypatch.setattr(jute, "MULTI_READ", UNKNOWN_OPCODE)
    monkeypatch.setattr(kazoo_session, "ask_version", lambda *_: (3, 5))
    with wired(server) as old:
        assert read_everything(old.connection, asked) == by_multi_read
        assert old.listener.states == [CONNECTED]


def test_an_old_server_that_does_not_tell_its_version_is_found_out_once(
    server: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks the connection on which it was asked for what it does not know; reads are made again by the client."""
    monkeypatch.setattr(jute, "MULTI_READ", UNKNOWN_OPCODE)
    monkeypatch.setattr(kazoo_session, "ask_version", lambda *_: None)
    with wired(server) as it:
        with pytest.raises(ConnectionLost):
            wait(it.connection.read([root]), DEADLINE_S)
        until(lambda: it.listener.states == [CONNECTED, SUSPENDED, CONNECTED], "connected again")
        for times in (2, 3):
            assert wait(it.connection.read([root]), DEADLINE_S).rows[0] is not None
            it.link.reset()
            told = [CONNECTED] + [SUSPENDED, CONNECTED] * times
            until(lambda told=told: it.listener.states == told, "connected again")  # type: ignore[misc]
        assert wait(it.connection.read([root]), DEADLINE_S).rows[0] is not None


def test_a_server_is_asked_for_its_version_in_bounded_time(server: str) -> None:
    host, port = server.rsplit(":", 1)
    version = kazoo_session.ask_version(host, int(port))
    assert version is not None
    assert version >= kazoo_session.MULTI_READ_SINCE
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert kazoo_session.ask_version("127.0.0.1", silent.getsockname()[1], 0.05) is None
        unused = silent.getsockname()[1]
    assert kazoo_session.ask_version("127.0.0.1", unused, 0.05) is None


def test_a_server_that_accepts_and_says_nothing_is_left_for_another(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},{server}"
        for _ in range(2):
            connection = KazooConnection(hosts, ThreadClock(), 60_000)
            wait(connection.start(), DEADLINE_S)
            wait(connection.close(), DEADLINE_S)


def test_refused_credentials_fail_the_start_and_every_request(server: str) -> None:
    it = Wired(server, auth=[("no-such-scheme", "x")])
    with pytest.raises(AuthenticationFailed):
        wait(it.connection.start(), DEADLINE_S)
    until(lambda: it.listener.states[-1:] == [CLOSED], "told")
    with pytest.raises(AuthenticationFailed):
        wait(it.connection.read(["/"]), DEADLINE_S)
    it.close()


# -- requests


def test_more_requests_than_fit_in_flight_are_answered_in_order(server: str, root: str) -> None:
    count = 4 * REQUESTS_IN_FLIGHT
    answered: list[int] = []
    with wired(server) as it:
        pendings = []
        for number in range(count):
            pending = it.connection.multi([SetData(root, b"%d" % number, number)])
            pending.on_done(partial(answered.append, number))
            pendings.append(pending)
        for pending in pendings:
            wait(pending, DEADLINE_S)
    assert answered == list(range(count))


def test_a_reply_that_cant_be_read_fails_its_request_only(
    server: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise IndexError("planted")

    with wired(server) as it:
        with monkeypatch.context() as patched:
            patched.setattr(jute, "read_rows", broken)
            with pytest.raises(ZooKeeperError, match="planted"):
                wait(it.connection.read([root]), DEADLINE_S)
        assert wait(it.connection.read([root]), DEADLINE_S).rows[0] is not None
        assert it.listener.states == [CONNECTED]


def test_no_error_code_of_a_server_ends_the_connection_thread() -> None:
    for code in range(-130, 0):
        assert isinstance(EXCEPTIONS[code](), Exception), code


def test_kazoo_formats_no_request_even_at_debug(server: str, root: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    logging.getLogger("kazoo").setLevel(1)
    with wired(server) as it:
        wait(it.connection.read([root] * BATCH), DEADLINE_S)
        wait(it.connection.multi([SetData(root, b"", ANY_VERSION)]), DEADLINE_S)
    assert [record for record in caplog.records if "equest" in record.getMessage()] == []


def test_faults_of_those_called_back_do_not_end_the_connection(server: str, root: str) -> None:
    """S14: a reconnect goes on whatever a callback raises."""

    def fault(*_: object) -> None:
        raise RuntimeError("planted")

    with wired(server) as it:
        it.listener.on_state = fault
        it.listener.watch_fired = fault  # type: ignore[method-assign,assignment]
        wait(it.connection.watch([root], []), DEADLINE_S)
        it.connection.read([root]).on_done(fault)
        wait(it.connection.multi([SetData(root, b"", ANY_VERSION)]), DEADLINE_S)
        it.link.reset()
        until(lambda: it.listener.states == [CONNECTED, SUSPENDED, CONNECTED], "connected again")
        assert wait(it.connection.read([root]), DEADLINE_S).rows[0] is not None


# -- sessions


def test_a_thread_that_waits_for_a_reply_is_freed_by_the_sessions_end(server: str, root: str) -> None:
    """S15: the listener returns at once, so what is pending fails, and whoever waited for it goes on."""
    with wired(server) as it:
        session = it.connection.session()
        outcome: list[SessionGone] = []

        def work() -> None:
            while not outcome:
                try:
                    wait(it.connection.read([root]), DEADLINE_S)
                except SessionGone as gone:
                    outcome.append(gone)
                except ConnectionLost:
                    continue

        worker = threading.Thread(target=work)
        worker.start()
        it.link.expire()
        worker.join(DEADLINE_S)
        assert [gone.session for gone in outcome] == [session]
        until(lambda: it.connection.session() not in (0, session), "the next session")


def check_no_request_goes_out_in_a_later_session_than_its_own(server: str, root: str) -> None:
    """Ephemerals are named after the session in which they were asked for, while sessions keep ending."""
    with wired(server) as it:
        stop = threading.Event()
        numbers = itertools.count(1)
        unclear: set[str] = set()

        def hammer() -> None:
            while not stop.is_set():
                session = it.connection.session()
                name = f"{session & (1 << 64) - 1:x}-{next(numbers)}"
                pending = it.connection.multi([Create(f"{root}/{name}", b"", ephemeral=True)])
                if it.connection.session() != session:
                    unclear.add(name)  # in which of the two it was made can't be told from here
                answered = threading.Event()
                pending.on_done(answered.set)
                answered.wait(DEADLINE_S)

        workers = [threading.Thread(target=hammer) for _ in range(4)]
        for worker in workers:
            worker.start()
        for _ in range(4):
            before = it.connection.session()
            it.link.expire()
            until(lambda before=before: it.connection.session() not in (0, before), "a new session")  # type: ignore[misc]
        until(
            lambda: wait(it.connection.children([root]), DEADLINE_S).children[0] != (), "an ephemeral of the last one"
        )
        stop.set()
        for worker in workers:
            worker.join(DEADLINE_S)
        session = it.connection.session()
        names = wait(it.connection.children([root]), DEADLINE_S).children[0]
        assert names
        assert [name for name in names if name not in unclear and not name.startswith(f"{session:x}-")] == []


def test_no_request_goes_out_in_a_later_session_than_its_own(server: str, root: str) -> None:
    check_no_request_goes_out_in_a_later_session_than_its_own(server, root)


def test_requests_that_outlive_their_session_are_caught(
    server: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: what waits for a session that has ended is kept for the next one, as kazoo alone would."""
    monkeypatch.setattr(KazooLink, "entered", lambda *_: None)
    with pytest.raises(AssertionError, match="assert"):
        check_no_request_goes_out_in_a_later_session_than_its_own(server, root)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)}


def test_close_leaves_no_thread_behind(server: str) -> None:
    it = Wired(server)
    before = threads()
    wait(it.connection.start(), DEADLINE_S)
    assert [thread.name for thread in threads() - before if "zk_loop" in thread.name], "kazoo's thread"
    wait(it.connection.close(), DEADLINE_S)
    it.link.close()
    until(lambda: threads() <= before, "its thread ended")


def connected(it: Wired) -> None:
    pass


def reconnecting(it: Wired) -> None:
    it.link.reset()


def ending(it: Wired) -> None:
    it.link.expire()


def ended_and_suspended(it: Wired) -> None:
    it.link.expire()
    until(lambda: SUSPENDED in it.listener.states, "suspended")


def expired(it: Wired) -> None:
    it.link.expire()
    until(lambda: EXPIRED in it.listener.states, "expired")


@pytest.mark.parametrize("moment", [connected, reconnecting, ending, ended_and_suspended, expired])
@pytest.mark.parametrize("round_number", range(4))
def test_close_makes_no_session_whenever_it_comes(
    server: str, moment: Callable[[Wired], None], round_number: int
) -> None:
    """S16, KAFKA-8121: closing races with expiry and with reconnecting. The session timeout is far longer than the
    test waits, so a session that is gone was closed; only one whose connection was down lives on until its timeout."""
    it = Wired(server, session_timeout_ms=20_000)
    wait(it.connection.start(), DEADLINE_S)
    first = it.link.granted
    moment(it)
    wait(it.connection.close(), DEADLINE_S)
    told = list(it.listener.states)
    assert told[-1] is CLOSED
    assert it.connection.session() == 0
    until(lambda: not [thread for thread in threading.enumerate() if "zk_loop" in thread.name], "its thread ended")
    granted = it.link.granted
    assert granted is not None
    if moment is reconnecting:
        assert granted == first, "the same session, if it came back at all"
    else:
        until(lambda: granted.id not in sessions_on(server), "the last session granted has ended")
    assert it.listener.states == told
    it.link.close()


def test_close_as_it_starts_makes_no_session(server: str) -> None:
    for _ in range(20):
        it = Wired(server, session_timeout_ms=20_000)
        started = it.connection.start()
        closed = it.connection.close()
        wait(closed, DEADLINE_S)
        with pytest.raises(SessionGone):
            wait(started, DEADLINE_S)
        until(lambda it=it: it.link.granted is None or it.link.granted.id not in sessions_on(server), "no session")  # type: ignore[misc]
        assert it.listener.states == [CLOSED]
        it.link.close()


def test_close_is_bounded_though_the_server_is_silent(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_connection, "CLOSE_LIMIT_MS", 200.0)
    it = Wired(server, session_timeout_ms=60_000)
    wait(it.connection.start(), DEADLINE_S)
    it.link.cut()
    waiting = it.connection.read(["/"])
    closed = it.connection.close()
    with pytest.raises(SessionGone):
        wait(waiting, 0.0)
    wait(closed, DEADLINE_S)
    assert it.listener.states == [CONNECTED, CLOSED]
    it.link.close()
