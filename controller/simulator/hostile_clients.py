"""Hostile clients: connections from outside the cluster that ask for what makes no sense, or that only take up room.

Their topics have names of their own, so that what they create, change and delete are never a plan's topics. They forge
no orders of brokers. In the simulated network a frame arrives whole or not at all: a client that announces a frame and
sends part of it is a connection here on which nothing arrives; how much memory such a one takes is tested on the real
host (`tests/hosts`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from controller.machine.process import Process, ProcessClock
from controller.protocol import SUPPORTED, ApiKey, decode_request
from controller.protocol.admin import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    OPERATION_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ReassignablePartition,
    ReassignableTopic,
)
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.codec import RequestHeader, encode_request
from controller.protocol.errors import ProtocolError
from controller.scenarios.faults import HostileClient, Undo
from controller.simulator.broker_process import World
from controller.simulator.network import Address, Socket
from controller.simulator.observer import controller_named
from controller.simulator.senseless_requests import BAD_NAMES, INT_MAX, OF_BROKERS, OF_CLIENTS, ValueGenerator
from controller.trace_records import OBSERVER

TOPICS = ("hostile-0", "hostile-1", "hostile-2")
NO_BROKERS = (-1, 0, 99, INT_MAX)
CONFIGS = (
    ("min.insync.replicas", ("1", "2", "99", "0", "-1", "x")),
    ("unclean.leader.election.enable", ("true", "false", "perhaps")),
    ("retention.ms", ("-1", "1000", "-2", "9" * 30)),
    ("cleanup.policy", ("delete", "compact", "", "delete,delete")),
    ("no.such.config", ("1",)),
)
TIMEOUTS_MS = (-1, 0, 1, 1_000)
WRONG = 0.15
"""The chance of each part of an operation to make no sense."""


class Operations:
    """Draws operations with `rng` for a cluster of these brokers."""

    def __init__(self, rng: Random, brokers: Sequence[int]) -> None:
        self._rng = rng
        self._brokers = brokers

    def request(self) -> bytes:
        """A frame, without its size."""
        rng = self._rng
        key, request = rng.choice(
            (self._create, self._create, self._add, self._delete, self._move, self._elect, self._set)
        )()
        return encode_request(RequestHeader(key, SUPPORTED[key].last, rng.randrange(1 << 31), "hostile"), request)

    def _create(self) -> tuple[ApiKey, Any]:
        rng = self._rng
        configs = tuple(CreatableTopicConfig(*self._config()) for _ in range(rng.choice((0, 0, 1))))
        topics = []
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.5:
                numbers = range(rng.randint(1, 3)) if not self._is_wrong() else (0, 0)
                placed = tuple(CreatableReplicaAssignment(number, self._replicas()) for number in numbers)
                topics.append(CreatableTopic(self._name(), -1, -1, placed, configs))
            else:
                partitions, factor = rng.randint(1, 3), rng.randint(1, min(3, len(self._brokers)))
                if self._is_wrong():
                    partitions, factor = rng.choice(((0, 1), (1, 99), (INT_MAX, 1), (-2, -2), (10_001, 3)))
                topics.append(CreatableTopic(self._name(), partitions, factor, (), configs))
        return ApiKey.CREATE_TOPICS, CreateTopicsRequest(tuple(topics), self._timeout(), rng.random() < 0.2)

    def _add(self) -> tuple[ApiKey, Any]:
        rng = self._rng
        count = rng.randint(1, 5) if not self._is_wrong() else rng.choice((-1, 0, 10_001, INT_MAX))
        placed = None
        if rng.random() < 0.4:
            placed = tuple(CreatePartitionsAssignment(self._replicas()) for _ in range(rng.randint(0, 3)))
        topics = (CreatePartitionsTopic(self._name(), count, placed),) * rng.choice((1, 1, 1, 2))
        return ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics, self._timeout(), rng.random() < 0.2)

    def _delete(self) -> tuple[ApiKey, Any]:
        topics = (DeleteTopicState(self._name()),) * self._rng.choice((1, 1, 2))
        return ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics, self._timeout())

    def _move(self) -> tuple[ApiKey, Any]:
        wanted = tuple(
            ReassignablePartition(self._partition(), None if self._rng.random() < 0.2 else self._replicas())
            for _ in range(self._rng.choice((1, 1, 2, 4)))
        )
        topics = (ReassignableTopic(self._name(), wanted),)
        return ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics, self._timeout())

    def _elect(self) -> tuple[ApiKey, Any]:
        kind = self._rng.choice((ELECTION_PREFERRED, ELECTION_UNCLEAN)) if not self._is_wrong() else 9
        partitions = tuple(self._partition() for _ in range(self._rng.choice((1, 2, 3))))
        request = ElectLeadersRequest((ElectLeadersTopic(self._name(), partitions),), self._timeout(), kind)
        return ApiKey.ELECT_LEADERS, request

    def _set(self) -> tuple[ApiKey, Any]:
        name, value = self._config()
        operation = OPERATION_SET if not self._is_wrong() else self._rng.choice((1, 2, 3, 99))
        changes = (AlterableConfig(name, operation, value),) * self._rng.choice((1, 1, 2))
        resource = IncrementalAlterConfigsResource(RESOURCE_TOPIC, self._name(), changes)
        return ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest((resource,))

    # -- parts

    def _is_wrong(self) -> bool:
        return self._rng.random() < WRONG

    def _name(self) -> str:
        return self._rng.choice(BAD_NAMES if self._is_wrong() else TOPICS)

    def _partition(self) -> int:
        return self._rng.choice((-1, 99, INT_MAX)) if self._is_wrong() else self._rng.randrange(3)

    def _replicas(self) -> tuple[int, ...]:
        rng = self._rng
        replicas = rng.sample(list(self._brokers), rng.randint(1, min(3, len(self._brokers))))
        if self._is_wrong():
            wrong = rng.randrange(3)
            replicas = [] if wrong == 0 else [*replicas, replicas[0] if wrong == 1 else rng.choice(NO_BROKERS)]
        return tuple(replicas)

    def _config(self) -> tuple[str, str]:
        name, values = self._rng.choice(CONFIGS)
        return name, self._rng.choice(values)

    def _timeout(self) -> int:
        return self._rng.choice(TIMEOUTS_MS)


NAMES = (*TOPICS, *TOPICS, "1", "2", "compression.type", "cleanup.policy")
TOPIC_NAMES = frozenset({*NAMES, *BAD_NAMES})
"""Every name that a hostile client may give a topic."""
CONNECTIONS = 4
"""How many a client keeps that sends one request after the other."""
CONNECTIONS_MAX = 300
"""How many a client opens that sends nothing on them."""
UNSENT_MAX = 64
"""How many frames wait for a connection to be accepted; the client draws no more for it."""
PIPELINED = (5, 40)
AT_CONTROLLER = 0.5
"""The chance that pipelined requests go to the controller, and then of each to be an operation."""
DROPPED_MS = (0.0, 30.0)
"""How long after its requests were sent a connection is closed."""
EXTREMES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff", b"\xff\xff\xff\xff\x0f")


class HostileClients:
    """Those of one simulated cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begun: dict[_Client, None] = {}

    def begin(self, fault: HostileClient) -> Undo:
        client = _Client(self._world, fault)
        self._begun[client] = None
        return partial(self._end, client)

    def end_all(self) -> None:
        """Ends every client; its machine closes its connections."""
        for client in list(self._begun):
            self._end(client)

    def _end(self, client: _Client) -> None:
        self._begun.pop(client, None)
        client.end()


class _Client:
    """One hostile client: a process of its own, which acts `rate` times a second on average until it is ended."""

    def __init__(self, world: World, fault: HostileClient) -> None:
        self._world = world
        self._fault = fault
        name = f"hostile-client/{fault.kind}/{fault.node}/{fault.at_ms:g}"
        self._rng = world.streams.stream(name)
        self._drawing = ValueGenerator(self._rng, NAMES)
        self._operations = Operations(self._rng, sorted(world.addresses))
        self._process = Process(name)
        self._clock = ProcessClock(world.clock, self._process)
        self._kept: dict[tuple[int, int], _Connection] = {}
        self._opened = 0
        self._act: Callable[[], None] = {
            "requests": self._ask,
            "operations": self._operate,
            "frames": self._send_malformed,
            "connections": self._connect_only,
            "drops": self._ask_and_drop,
        }[fault.kind]
        self._next()

    def end(self) -> None:
        self._process.die()

    def _next(self) -> None:
        self._clock.call_later(self._rng.expovariate(self._fault.rate) * 1_000.0, self._step)

    def _step(self) -> None:
        self._act()
        self._next()

    # -- the kinds

    def _ask(self) -> None:
        """Any request that a client may make, without waiting for the answers to earlier ones."""
        self._send(self._fault.broker, senseless_request(self._drawing, self._rng.choice(OF_CLIENTS)))

    def _operate(self) -> None:
        """An operation, asked of the controller if there is one."""
        self._send(self._controller(), self._operations.request())

    def _send_malformed(self) -> None:
        frame = senseless_request(self._drawing, self._rng.choice(OF_CLIENTS))
        self._send(self._fault.broker, malformed(self._rng, frame))

    def _connect_only(self) -> None:
        if self._opened < CONNECTIONS_MAX:
            self._opened += 1
            self._connection(self._fault.broker)

    def _ask_and_drop(self) -> None:
        """Many requests at once over a connection that is closed while they are handled."""
        to_controller = self._rng.random() < AT_CONTROLLER
        connection = self._connection(self._controller() if to_controller else self._fault.broker)
        for _ in range(self._rng.randint(*PIPELINED)):
            if to_controller and self._rng.random() < AT_CONTROLLER:
                connection.send(self._operations.request())
            else:
                connection.send(senseless_request(self._drawing, self._rng.choice(OF_CLIENTS)))
        connection.on_sent = lambda: self._clock.call_later(self._rng.uniform(*DROPPED_MS), connection.close)

    def _controller(self) -> int:
        named = controller_named(self._world.zookeeper)
        return named if named in self._world.addresses else self._fault.broker

    # -- connections

    def _send(self, node: int, frame: bytes) -> None:
        place = (node, self._rng.randrange(CONNECTIONS))
        connection = self._kept.get(place)
        if connection is None or connection.closed:
            connection = self._kept[place] = self._connection(node)
        connection.send(frame)

    def _connection(self, node: int) -> _Connection:
        return _Connection(self._world, self._process, self._world.addresses[node])


class _Connection:
    """Sends what it is given once it is accepted, and ignores what comes back."""

    def __init__(self, world: World, process: Process, address: Address) -> None:
        self.closed = False
        self.on_sent: Callable[[], Any] = lambda: None
        self._unsent: deque[bytes] | None = deque()
        self._socket: Socket = world.network.open(OBSERVER, process, address, self)

    def send(self, frame: bytes) -> None:
        if self._unsent is None:
            self._socket.send(frame)
        elif len(self._unsent) < UNSENT_MAX:
            self._unsent.append(frame)

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def answered(self, accepted: bool) -> None:
        if not accepted:
            self.closed = True
            return
        unsent, self._unsent = self._unsent or (), None
        for frame in unsent:
            self._socket.send(frame)
        self.on_sent()

    def arrived(self, frame: bytes) -> None:
        """Answers are of no interest to it."""


def senseless_request(drawing: ValueGenerator, key: ApiKey) -> bytes:
    """A frame with a request of that API. No election of every partition's leader from outside the ISR: that one would
    make sense, and lose the records of a plan's topics."""
    while True:
        frame = drawing.request(key)
        if key is not ApiKey.ELECT_LEADERS:
            return frame
        value: Any = decode_request(frame, SUPPORTED).value
        if value.topic_partitions is not None:
            return frame


def malformed(rng: Random, sound: bytes) -> bytes:
    """The frame with a few places changed, so that no broker can read it, or noise."""
    while True:
        data = bytearray(sound if rng.random() < 0.9 else rng.randbytes(rng.randrange(64)))
        for _ in range(rng.choice((1, 1, 2, 4))):
            _WOUNDS[rng.randrange(len(_WOUNDS))](rng, data)
        frame = bytes(data)
        if int.from_bytes(frame[:2], "big") not in OF_BROKERS and not _is_readable(frame):
            return frame


def _is_readable(frame: bytes) -> bool:
    try:
        decode_request(frame, SUPPORTED)
    except ProtocolError:
        return False
    return True


def _cut_off(rng: Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _change_a_byte(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _put_an_extreme_number(rng: Random, data: bytearray) -> None:
    at, number = rng.randrange(len(data) + 1), rng.choice(EXTREMES)
    data[at : at + len(number)] = number


def _take_out(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + 1 + rng.randrange(16)]


_WOUNDS: tuple[Callable[[Random, bytearray], None], ...] = (_cut_off, _change_a_byte, _put_an_extreme_number, _take_out)
