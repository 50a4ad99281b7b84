"""A whole node with its real threads (network, event thread, kazoo's) on a real ZooKeeper, behind a link that a test
can cut. Its requests to brokers go nowhere.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from controller.broker.node import Node
from controller.broker.settings import parse_settings
from controller.clock import Future
from controller.core.channels import ControlRequest, Endpoint
from controller.hosts.event_thread import ControllerEventThread
from controller.hosts.network import NetworkThread
from controller.hosts.peers import SocketPeers
from controller.trace import ControllerElected, ControllerResigned
from controller.zookeeper.operations import Write
from tests.hosts.harness import KeptTrace, running_network
from tests.zookeeper.kazoo_bench import Wired

THREAD_LIMIT_S = 30.0


class NoChannels:
    """To nobody: nothing sent is answered."""

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        pass

    def send(self, broker: int, request: ControlRequest) -> None:
        pass

    def close(self) -> None:
        pass


class RealStack:
    def __init__(self, network: NetworkThread, server: str, chroot: str, session_timeout_ms: int, broker: int) -> None:
        self.wired = Wired(server, suffix=chroot, session_timeout_ms=session_timeout_ms, create_chroot=True)
        self.trace = KeptTrace()
        self.faults: list[BaseException] = []
        clock = network.clock
        self.thread = ControllerEventThread(clock, self.trace, self.faults.append)
        settings = parse_settings(
            {
                "broker.id": str(broker),
                "listeners": "PLAINTEXT://127.0.0.1:9092",
                "zookeeper.connect": server + chroot,
                "zookeeper.session.timeout.ms": str(session_timeout_ms),
            }
        )
        self.node = Node(
            settings,
            self.wired.connection,
            NoChannels,
            SocketPeers(network, str(broker), settings.dial),
            clock,
            self.trace,
            random.Random(broker),
            lock=threading.Lock(),
            wake=self.thread.wake,
        )

    def start(self) -> None:
        self.thread.start(self.node)
        self.node.start()

    def terms(self) -> list[int]:
        """The epochs that it has won."""
        return [event.controller_epoch for event in self.trace.events if isinstance(event, ControllerElected)]

    def resigned(self) -> list[int]:
        return [event.controller_epoch for event in self.trace.events if isinstance(event, ControllerResigned)]

    def before(self, request: str, number: int, happens: Callable[[], None]) -> None:
        """`happens` on the event thread, just before the `number`-th request of this kind (a method of the
        connection) from now is made."""
        made: Callable[[Sequence[Write]], Future[Any]] = getattr(self.wired.connection, request)
        count = 0

        def counted(asked: Sequence[Any]) -> Future[Any]:
            nonlocal count
            count += 1
            if count == number:
                happens()
            return made(asked)

        setattr(self.wired.connection, request, counted)


@contextmanager
def real_stack(server: str, chroot: str, session_timeout_ms: int = 6_000, broker: int = 1) -> Iterator[RealStack]:
    """Started on entry; on exit its threads have ended, and none of them by a fault."""
    with running_network() as network:
        stack = RealStack(network, server, chroot, session_timeout_ms, broker)
        stack.start()
        try:
            yield stack
        finally:
            assert stack.thread.stop(THREAD_LIMIT_S), "the event thread hangs"
            stack.wired.close()
        assert stack.faults == []
