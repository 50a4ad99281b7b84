"""A user-defined node in a simulated world: a process with a clock, messages, ZooKeeper and an event loop.

The node is subject to the same faults as a broker. It can be killed (its volatile state is lost, its sockets close, its
sessions stay until they expire), paused and resumed. Messages take time and arrive in order. Links to and from it can
be cut, slowed and broken by its id. Only `ask`, which sends requests to brokers, is specific to Kafka.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from controller.clock import Future, spawn
from controller.core.event_loop import EventLoop
from controller.core.events import Event
from controller.machine.process import MachineClock, PacedExecutor, Process, ProcessClock, ProcessState
from controller.protocol import SUPPORTED, ApiKey, decode_response_body, encode_request_body
from controller.simulator.broker_process import NodeTrace
from controller.simulator.host import SimulatedHost
from controller.simulator.network import Address, Socket
from controller.simulator.requests import BrokerConnection
from controller.trace import Noted
from controller.zookeeper.client import EventSink, ZooKeeperClient
from controller.zookeeper.memory.server import InMemoryConnection

_SENDER_BYTES = 8
ASK_TIMEOUT_MS = 5_000.0

Received = Callable[[int, bytes], None]
"""Callback for a message: the sender's node id, and the message."""


def _dropped(_sender: int, _message: bytes) -> None:
    pass


class CustomNode:
    """One incarnation of a node, until `kill`. `Simulation.add_node` with the same id makes the next.

    Set `on_message` to receive messages; messages that arrive before that are dropped.
    """

    def __init__(
        self, host: SimulatedHost, node_id: int, name: str, incarnation: int, address_of: Callable[[int], Address]
    ):
        self.id = node_id
        self.name = name
        self.on_message: Received = _dropped
        self._host = host
        self._address_of = address_of
        self._process = Process(f"{name}/{incarnation}")
        world = host.world
        machine = world.machines.setdefault(node_id, MachineClock(world.clock))
        self.clock = ProcessClock(machine, self._process)
        self.trace = NodeTrace(world, self._process, node_id)
        self.rng = world.streams.stream(f"{self._process.name}/own")
        self._coin = world.streams.stream(f"{self._process.name}/resume")
        self._paces = host.paces(self._process.name)
        self._machine = machine
        self._connections: list[InMemoryConnection] = []
        self._event_loops: list[EventLoop] = []
        self._ways: dict[int, _Way] = {}
        world.network.listen(self._process, address_of(node_id), self._accept)

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def state(self) -> ProcessState:
        return self._process.state

    # -- messages

    def send(self, node: int, message: bytes) -> None:
        """Send a message; messages to one node arrive in order, each after its latency.

        The first message opens a connection, which later ones reuse. As with TCP, messages are lost if the receiver
        does not run or the connection breaks; a sender that must know needs an acknowledgement.
        """
        if not self.alive:
            return
        way = self._ways.get(node)
        if way is None or way.closed:
            way = self._ways[node] = _Way()
            way.dial(self, self._address_of(node))
        way.send(self.id.to_bytes(_SENDER_BYTES, "big") + message)

    def dial(self, address: Address, answered: Callable[[bool], None]) -> Socket:
        """Open a separate connection, for protocols that need more than `send`."""
        return self._host.world.network.dial(self.id, self._process, address, answered)

    def _accept(self, socket: Socket) -> None:
        socket.on_frame = self._received

    def _received(self, frame: bytes) -> None:
        self.on_message(int.from_bytes(frame[:_SENDER_BYTES], "big"), frame[_SENDER_BYTES:])

    def ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float = ASK_TIMEOUT_MS) -> Future[Any]:
        """Send a Kafka request to a broker in the latest supported version; the result is the response.

        Fails with a `PeerError` if the connection is refused or breaks, or if the response does not arrive in time.
        """
        return spawn(self._ask(broker, api_key, request, timeout_ms))

    async def _ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float) -> Any:
        version = SUPPORTED[api_key].last
        address = self._address_of(broker)
        connection = BrokerConnection(
            self._host.world.network, self.id, self._process, self.clock, address, self._process.name
        )
        await connection.open(timeout_ms)
        answer = connection.ask(api_key, version, encode_request_body(api_key, version, request), timeout_ms)
        answer.on_done(connection.close)
        return decode_response_body(api_key, version, await answer)

    # -- ZooKeeper and events

    def connection(self, session_timeout_ms: int = 2_000) -> InMemoryConnection:
        """Connect to the world's ZooKeeper. The connection is killed, paused and resumed with this node.

        Call `start` on it, or pass it to a client.
        """
        connection = self._host.world.zookeeper.connect(
            session_timeout_ms, latency=self._paces.to_zookeeper_ms, clock=self._machine
        )
        self._connections.append(connection)
        return connection

    def zookeeper(self, events: EventSink, session_timeout_ms: int = 2_000, **options: Any) -> ZooKeeperClient:
        """Return a ZooKeeper client over a new connection, with re-armed watches, the lease and fenced writes.

        `options` are passed to `ZooKeeperClient`.
        """
        seed = self.rng.getrandbits(32)
        return ZooKeeperClient(self.connection(session_timeout_ms), self.clock, events, seed=seed, **options)

    def event_loop(self) -> EventLoop:
        """Return an event loop that runs one handler at a time, as an event thread does on the real host.

        An error that a handler raises is recorded in the trace as an error, which violates `no-defects`.
        """
        loop = EventLoop(PacedExecutor(self.clock, self._paces.step_ms), self._defect)
        self._event_loops.append(loop)
        return loop

    def note(self, message: str, level: str = "info") -> None:
        """Record a message in the world's trace."""
        self.trace.emit(Noted(level, message))

    def _defect(self, event: Event, error: BaseException) -> None:
        where = "".join(traceback.format_exception(error))
        self.note(f"{self.name}: the event {event} was not handled to its end\n{where}", "error")

    # -- fault injection

    def kill(self) -> None:
        self._process.die()
        for connection in self._connections:
            connection.kill()
        for loop in self._event_loops:
            loop.stop()

    def pause(self) -> None:
        if self._process.state is ProcessState.RUNNING:
            self._process.pause()
            for connection in self._connections:
                connection.pause()

    def resume(self) -> None:
        """Resume the node. Whether its ZooKeeper threads or its other threads run first is random."""
        if self._process.state is not ProcessState.PAUSED:
            return
        steps = [*(connection.resume for connection in self._connections), self._process.resume]
        if self._coin.random() < 0.5:
            steps.reverse()
        for step in steps:
            step()

    def cut_zookeeper(self) -> None:
        """Drop all traffic between this node and ZooKeeper silently."""
        for connection in self._connections:
            connection.cut()

    def heal_zookeeper(self) -> None:
        for connection in self._connections:
            connection.heal()


class _Way:
    """A connection to another node, and the messages that wait until it is accepted."""

    def __init__(self) -> None:
        self.closed = False
        self._socket: Socket | None = None
        self._waiting: deque[bytes] = deque()
        self._accepted = False

    def dial(self, node: CustomNode, address: Address) -> None:
        self._socket = node.dial(address, self._answered)

    def send(self, frame: bytes) -> None:
        if self._accepted and self._socket is not None:
            self._socket.send(frame)
        else:
            self._waiting.append(frame)

    def _answered(self, accepted: bool) -> None:
        """Handle acceptance, refusal, and a later break, for which `on_closed` makes the same call."""
        self._accepted = accepted
        self.closed = not accepted
        assert self._socket is not None
        while self._waiting and accepted:
            self._socket.send(self._waiting.popleft())
        self._waiting.clear()
