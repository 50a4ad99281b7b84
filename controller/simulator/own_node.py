"""A node of the user's own in a simulated world: a process with a clock, messages, ZooKeeper and an event loop.

It lives by the world's rules. It can be killed (everything volatile goes, its sockets are closed, its sessions linger),
paused and resumed; messages take time and arrive in order; links to and from it can be cut, slowed and broken by its
id as a broker's can. Nothing here knows Kafka but `ask`, which speaks to brokers.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from controller.core.event_loop import EventLoop
from controller.core.events import Event
from controller.pending import Pending
from controller.protocol import SUPPORTED, ApiKey, decode_response_body, encode_request_body
from controller.simulator.broker_process import NodeTrace
from controller.simulator.host import SimulatedHost
from controller.simulator.network import Address, Socket
from controller.simulator.process import MachineClock, PacedExecutor, Process, ProcessClock, ProcessState
from controller.simulator.requests import BrokerConnection
from controller.trace import Noted
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.drive import drive
from controller.zookeeper.memory.connection import InMemoryConnection
from controller.zookeeper.watches import EventSink

_SENDER_BYTES = 8
ASK_TIMEOUT_MS = 5_000.0

Received = Callable[[int, bytes], None]
"""Told of a message: the id of the node that sent it, and what it sent."""


def _dropped(_sender: int, _message: bytes) -> None:
    pass


class OwnNode:
    """One life of it, from its making to `kill`; `Simulation.add_node` with the same id makes the next. `on_message`
    is to be set by whoever wants messages: what comes before is dropped."""

    def __init__(self, host: SimulatedHost, node_id: int, name: str, life: int, address_of: Callable[[int], Address]):
        self.id = node_id
        self.name = name
        self.on_message: Received = _dropped
        self._host = host
        self._address_of = address_of
        self._process = Process(f"{name}/{life}")
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
        """Over a connection that is opened by the first message and kept: in order, each after its latency. Lost, as
        with TCP, if the receiver is not there or the connection breaks; who must know asks for an answer."""
        if not self.alive:
            return
        way = self._ways.get(node)
        if way is None or way.closed:
            way = self._ways[node] = _Way()
            way.dial(self, self._address_of(node))
        way.send(self.id.to_bytes(_SENDER_BYTES, "big") + message)

    def dial(self, address: Address, answered: Callable[[bool], None]) -> Socket:
        """A connection of its own, for who wants more than `send`."""
        return self._host.world.network.dial(self.id, self._process, address, answered)

    def _accept(self, socket: Socket) -> None:
        socket.on_frame = self._received

    def _received(self, frame: bytes) -> None:
        self.on_message(int.from_bytes(frame[:_SENDER_BYTES], "big"), frame[_SENDER_BYTES:])

    def ask(self, broker: int, api_key: ApiKey, request: Any, timeout_ms: float = ASK_TIMEOUT_MS) -> Pending[Any]:
        """One Kafka request to a broker, in the latest version that is spoken here; answered with the response's value.
        Fails with a `PeerError` when refused, broken off or not answered in time."""
        return drive(self._ask(broker, api_key, request, timeout_ms))

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
        """To the world's ZooKeeper: killed, paused and resumed with this node. `start` it, or give it to a client."""
        connection = self._host.world.zookeeper.connect(
            session_timeout_ms, latency=self._paces.to_zookeeper_ms, clock=self._machine
        )
        self._connections.append(connection)
        return connection

    def zookeeper(self, events: EventSink, session_timeout_ms: int = 2_000, **options: Any) -> ZooKeeperClient:
        """A client over such a connection, with the rules of every client here: standing watches, the lease, the fence.
        `options` are the client's own."""
        seed = self.rng.getrandbits(32)
        return ZooKeeperClient(self.connection(session_timeout_ms), self.clock, events, seed=seed, **options)

    def event_loop(self) -> EventLoop:
        """What takes events one at a time and drives their handlers, as an event thread does on the real host. An
        error that a handler lets out is noted in the trace as an error, which is a defect (`no-defects`)."""
        loop = EventLoop(PacedExecutor(self.clock, self._paces.step_ms), self._defect)
        self._event_loops.append(loop)
        return loop

    def note(self, message: str, level: str = "info") -> None:
        """Into the world's trace."""
        self.trace.emit(Noted(level, message))

    def _defect(self, event: Event, error: BaseException) -> None:
        where = "".join(traceback.format_exception(error))
        self.note(f"{self.name}: the event {event} was not handled to its end\n{where}", "error")

    # -- what can befall it

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
        """Which of its threads comes first, those that hear ZooKeeper or the others, is chance."""
        if self._process.state is not ProcessState.PAUSED:
            return
        steps = [*(connection.resume for connection in self._connections), self._process.resume]
        if self._coin.random() < 0.5:
            steps.reverse()
        for step in steps:
            step()

    def cut_zookeeper(self) -> None:
        """Nothing passes between it and ZooKeeper, without a word."""
        for connection in self._connections:
            connection.cut()

    def heal_zookeeper(self) -> None:
        for connection in self._connections:
            connection.heal()


class _Way:
    """A connection to another node, and what waits for it to be accepted."""

    def __init__(self) -> None:
        self.closed = False
        self._socket: Socket | None = None
        self._waiting: deque[bytes] = deque()
        self._accepted = False

    def dial(self, node: OwnNode, address: Address) -> None:
        self._socket = node.dial(address, self._answered)

    def send(self, frame: bytes) -> None:
        if self._accepted and self._socket is not None:
            self._socket.send(frame)
        else:
            self._waiting.append(frame)

    def _answered(self, accepted: bool) -> None:
        """Told of a refusal too, and once more of a break later: `on_closed` is the same call."""
        self._accepted = accepted
        self.closed = not accepted
        assert self._socket is not None
        while self._waiting and accepted:
            self._socket.send(self._waiting.popleft())
        self._waiting.clear()
