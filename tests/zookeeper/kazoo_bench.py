"""A kazoo connection to a real server behind a link that can be cut, with everything it was told."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from controller.zookeeper.blocking import ThreadClock, run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Create, SessionState, SetData, Stat, WatchEvent, Write
from tests.zookeeper.tcp_link import TcpLink

DEADLINE_S = 30.0
SESSION_TIMEOUT_MS = 20_000


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.002)


class Listener:
    def __init__(self) -> None:
        self.states: list[SessionState] = []
        self.events: list[WatchEvent] = []
        self.on_state: Callable[[SessionState], None] = lambda _state: None

    def session_state(self, state: SessionState) -> None:
        self.states.append(state)
        self.on_state(state)

    def watch_fired(self, event: WatchEvent) -> None:
        self.events.append(event)


class Wired:
    """A connection behind its own link to the first of `server`'s hosts, or to all of them without one."""

    def __init__(self, server: str, *, suffix: str = "", session_timeout_ms: int = SESSION_TIMEOUT_MS, **options: Any):
        self.link = TcpLink(server.partition(",")[0])
        self.listener = Listener()
        hosts = server if "," in server else self.link.address
        self.connection = KazooConnection(hosts + suffix, ThreadClock(), session_timeout_ms, **options)
        self.connection.listen(self.listener)

    def close(self) -> None:
        wait(self.connection.close(), DEADLINE_S)
        self.link.close()


@contextmanager
def wired(server: str, **options: Any) -> Iterator[Wired]:
    """Connected on entry, closed on exit."""
    it = Wired(server, **options)
    try:
        wait(it.connection.start(), DEADLINE_S)
        yield it
    finally:
        it.close()


class Events:
    def __init__(self) -> None:
        self.put_: list[Any] = []

    def put(self, event: Any) -> None:
        self.put_.append(event)


class RealNode:
    """A `ZooKeeperClient` on such a connection, below a chroot of its own."""

    def __init__(self, it: Wired) -> None:
        self.wired = it
        self.events = Events()
        self.client = ZooKeeperClient(
            it.connection, ThreadClock(), self.events, session_event=lambda state, session: (state, session), seed=1
        )
        self.writes = BrokerWrites(self.client)

    def win(self) -> Leadership:
        wait(self.client.commit_election([Create("/controller_epoch", b"0")]), DEADLINE_S)
        election: list[Write] = [Create("/controller", b"me", ephemeral=True), SetData("/controller_epoch", b"1", 0)]
        stat = wait(self.client.commit_election(election), DEADLINE_S)[1]
        assert isinstance(stat, Stat)
        return Leadership(self.client.session(), 1, stat.version)


@contextmanager
def real_node(server: str, chroot: str, **options: Any) -> Iterator[RealNode]:
    it = Wired(server, suffix=chroot, create_chroot=True, **options)
    node = RealNode(it)
    try:
        wait(node.client.start(), DEADLINE_S)
        yield node
    finally:
        it.close()


def sessions_on(server: str) -> set[int]:
    """The sessions that a server knows, by its `dump` command."""
    host, port = server.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as command:
        command.sendall(b"dump")
        text = b"".join(iter(lambda: command.recv(1 << 16), b"")).decode()
    return {int(word, 16) for word in text.replace(":", " ").split() if word.startswith("0x")}


__all__ = ["DEADLINE_S", "Listener", "RealNode", "Wired", "real_node", "run", "sessions_on", "until", "wait", "wired"]
