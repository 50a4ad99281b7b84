"""One broker with its controller on its real threads, in this process, over ZooKeeper behind a link that can be
cut; and an outsider beside it, who looks, changes things, and can be elected in its place."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from controller.broker.node import Node
from controller.broker.request_context import Respond
from controller.broker.security.principal import Requester
from controller.broker.settings import Listener, parse_settings
from controller.core.channels import ControllerChannels
from controller.core.leadership import Won, elect
from controller.hosts.event_thread import ControllerEventThread
from controller.hosts.network import NetworkThread
from controller.hosts.peers import SocketPeers, socket_channels
from controller.hosts.process import term_holds
from controller.hosts.server import ServerLimits, SocketServer
from controller.protocol.codec import decode_request
from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock, run, wait
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Create, Znode
from tests.hosts.harness import KeptTrace
from tests.processes import eventually
from tests.zookeeper.tcp_link import TcpLink

DEADLINE_S = 30.0
BROKER, OUTSIDER = 1, 2
EVENT_THREAD = "controller-event"


class PassedOn:
    """The node's queue as its channels see it, with what they put noted."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.put_on: Callable[[Any], None] = lambda _event: None

    def put(self, event: Any) -> None:
        self.seen.append(event)
        self.put_on(event)


class OneNode:
    """`received` are the frames that the broker got, decoded, in order: the controller sends to its own broker too."""

    def __init__(self, server: str, chroot: str, session_timeout_ms: int) -> None:
        self.network = NetworkThread()
        self.network.start()
        self.clock = self.network.clock
        self.trace = KeptTrace()
        self.faults: list[BaseException] = []
        self.link = TcpLink(server)
        self.responses = PassedOn()
        self.received: list[Any] = []
        self._server = SocketServer(self.network, ServerLimits(1 << 20), self.trace)
        port = self._server.bind([Listener("PLAINTEXT", "127.0.0.1", 0)])["PLAINTEXT"]
        self.settings = parse_settings(
            {
                "broker.id": str(BROKER),
                "zookeeper.connect": self.link.address + chroot,
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            }
        )
        self.peers = SocketPeers(self.network, str(BROKER), self.settings.dial)
        self.thread = ControllerEventThread(self.clock, self.trace, self.faults.append)
        self.node = Node(
            self.settings,
            KazooConnection(self.link.address + chroot, self.clock, session_timeout_ms, create_chroot=True),
            self._channels,
            self.peers,
            self.clock,
            self.trace,
            random.Random(1),
            lock=threading.Lock(),
            wake=self.thread.wake,
        )
        self.responses.put_on = self.node.events.put
        self._server.serve(self._receive)
        self.thread.start(self.node)
        self.node.start()
        eventually(lambda: self.node.controller.active and not len(self.node.events), "the node leads")

    def _channels(self) -> ControllerChannels:
        return socket_channels(
            self.peers,
            self.clock,
            self.responses,
            self.trace,
            request_timeout_ms=30_000.0,
            may_send=lambda: term_holds(self.node.controller),
        )

    def _receive(self, frame: bytes, respond: Respond, client: Requester) -> None:
        self.received.append(decode_request(frame).value)
        self.node.broker.receive(frame, respond, client)

    @property
    def session(self) -> int:
        return self.node.client.session()

    def quiet(self) -> bool:
        """Nothing to do: the events that there were have been handled and the requests answered."""
        return not len(self.node.events)

    def close(self) -> None:
        self.link.heal()
        ended = self.thread.stop(DEADLINE_S)
        wait(self.node.client.close(), DEADLINE_S)
        self._server.close()
        self.network.stop()
        self.link.close()
        assert ended
        assert self.faults == []


class Outsider:
    """Another broker's client, on a connection of its own that nothing is done to."""

    def __init__(self, server: str, chroot: str) -> None:
        self.client = ZooKeeperClient(KazooConnection(server + chroot, ThreadClock(), 10_000), ThreadClock(), self)
        wait(self.client.start(), DEADLINE_S)

    def put(self, event: Any) -> None:
        """It watches nothing."""

    def create_topic(self, name: str, partitions: int) -> None:
        assignment = TopicAssignment(None, dict.fromkeys(range(partitions), (BROKER,)))
        topic = Create(paths.topic(name), encode_topic_assignment(assignment))
        wait(self.client.commit_election([Create(paths.config_topic(name), b"{}"), topic]), DEADLINE_S)

    def row(self, path: str) -> Znode | None:
        return wait(self.client.read([path]), DEADLINE_S).rows[0]

    def states(self, topic: str, partitions: int) -> list[Znode]:
        """Those that there are."""
        wanted = [paths.partition_state(topic, number) for number in range(partitions)]
        return [row for row in wait(self.client.read(wanted), DEADLINE_S).rows if row is not None]

    def win(self) -> Leadership:
        """Elected, as soon as nobody else is."""
        won: list[Won] = []

        def elected() -> bool:
            outcome = run(elect(self.client, OUTSIDER, ThreadClock()), DEADLINE_S)
            won.extend([outcome] if isinstance(outcome, Won) else [])
            return bool(won)

        eventually(elected, "the outsider is elected")
        return won[0].leadership

    def close(self) -> None:
        wait(self.client.close(), DEADLINE_S)


@contextmanager
def one_node(server: str, chroot: str, session_timeout_ms: int = 6_000) -> Iterator[tuple[OneNode, Outsider]]:
    """A node that leads its cluster, and the outsider."""
    node = OneNode(server, chroot, session_timeout_ms)
    try:
        outsider = Outsider(server, chroot)
        try:
            yield node, outsider
        finally:
            outsider.close()
    finally:
        node.close()
