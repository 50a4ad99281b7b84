"""Three brokers' cores that hold one partition, over the network in memory, and a controller that is a model: leaders,
followers, ISRs and high watermarks are the real ones, and what befalls them is drawn from a seed.

The model keeps what was acknowledged to a producer with acks=all, and looks for it at each election and at the end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from controller.broker.broker import Broker
from controller.broker.log_manager import LogManager
from controller.broker.metadata import BrokerIdentity
from controller.broker.request_context import Respond
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.machine.process import Process, ProcessClock
from controller.protocol import ApiKey, decode_request, encode_request, encode_response
from controller.protocol.client import ApiVersion, ApiVersionsResponse
from controller.protocol.codec import SUPPORTED, decode_response
from controller.protocol.control import (
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopicResult,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import joined
from controller.protocol.produce import ACKS_ALL, ProducePartition, ProduceRequest, ProduceTopic
from controller.protocol.schema import RequestValue
from controller.simulator.network import Address, Network
from controller.simulator.requests import BrokerConnection, SimulatedPeers
from controller.simulator.server import Server
from controller.storage import LogSettings, PartitionLog, headers_of
from controller.storage.batches import HEADER_BYTES, decode_records
from tests.broker.harness import TOPIC_ID, Events, KeptTrace, ReadConfigs, header, live, settings
from tests.broker.leading import as_version_0
from tests.storage.batches import batch

REPLICAS = (1, 2, 3)
CONTROLLER = 4
NOBODY = -1
KEY = ("t", 0)
LOG = LogSettings(segment_bytes=3_000, index_interval_bytes=200, retention_ms=-1)
CALM_MS = 5_000.0
IN_HASTE = {
    "replica_lag_time_max_ms": "300",
    "replica_fetch_wait_max_ms": "100",
    "replica_fetch_backoff_ms": "50",
    "replica_socket_timeout_ms": "400",
    "controller_socket_timeout_ms": "400",
}
STEPS = (*["produce"] * 8, *["send"] * 6, *["elect", "restart"] * 2, "wait", "die", "cut", "heal", "keep")


class Machine:
    """A broker's disk and trace, and the process that runs on it now."""

    def __init__(self, world: World, broker: int) -> None:
        self.world = world
        self.id = broker
        self.disk = MemoryDisk()
        self.trace = KeptTrace()
        self.boot()

    def boot(self) -> None:
        world = self.world
        self.process = process = Process(f"broker {self.id}")
        self.clock = clock = ProcessClock(world.clock, process)

        def connect(to: Address) -> BrokerConnection:
            return BrokerConnection(world.network, self.id, process, clock, to, str(self.id))

        self.logs = LogManager(self.disk, ["logs"], lambda _topic: LOG, clock.wall_ms)
        given = settings(broker_id=str(self.id), log_dirs="logs", **world.settings)
        self.broker = Broker(
            given,
            BrokerIdentity(-1, "a-cluster"),
            Events(),
            lambda: False,
            clock,
            self.trace,
            SimulatedPeers(connect),
            self.logs,
            configs=ReadConfigs(given, self.trace),
        )
        world.network.listen(process, address(self.id), Server(self.broker, clock, lambda: 0.1).accept)

    @property
    def log(self) -> PartitionLog | None:
        return self.logs.get(*KEY)

    @property
    def leads(self) -> bool:
        """It believes so."""
        partition = self.broker.replicas.partition(*KEY)
        return self.process.alive and partition is not None and partition.leading is not None

    def die(self, draw: random.Random | None) -> None:
        """With `draw` the machine loses power, and what was not synced may go with it."""
        self.process.die()
        for directory in self.logs.directories:
            directory.unlock()
        if draw is not None:
            self.disk.crash(draw)

    def checkpoint(self) -> None:
        self.logs.write_high_watermarks(self.broker.replicas.high_watermarks())
        for directory in self.logs.directories:
            directory.logs[KEY].flush()
            directory.checkpoint_recovery_points()

    def ask(self, key: ApiKey, value: RequestValue, answered: Any = lambda _value: None) -> None:
        def respond(parts: Any) -> None:
            assert parts is not None, f"{key.name} closed its connection"
            answered(decode_response(key, SUPPORTED[key].last, joined(parts))[1])

        self.broker.receive(encode_request(header(key, SUPPORTED[key].last), value), respond)


def address(broker: int) -> Address:
    return "127.0.0.1", 9090 + broker


class World:
    """Broker 1 leads to begin with, and all are in the ISR. A message takes up to 1.5 ms. `settings`: the brokers',
    with underscores for dots."""

    def __init__(self, seed: int, settings: Mapping[str, str] = IN_HASTE) -> None:
        self.settings = settings
        self.draw = random.Random(seed)
        self.newest = seed % (SUPPORTED[ApiKey.ALTER_ISR].last + 1)
        """The controller's, of AlterIsr."""
        self.clock = VirtualClock()
        self.network = Network(
            self.clock, lambda source, target: self.draw.uniform(0.1, 1.5), lambda address: address[1] - 9090
        )
        self.leader, self.leader_epoch, self.zk_version = 1, 0, 0
        self.isr: tuple[int, ...] = REPLICAS
        self.unnotified: set[int] = set()
        self.sent = 0
        self.acknowledged: dict[int, bytes] = {}
        """Offset to value."""
        self.machines = {broker: Machine(self, broker) for broker in REPLICAS}
        process = Process("controller")
        clock = ProcessClock(self.clock, process)
        self.network.listen(process, address(CONTROLLER), Server(self, clock, lambda: 0.1).accept)
        for broker in REPLICAS:
            self.send_leader_and_isr(broker)

    # -- the controller

    def receive(self, frame: bytes, respond: Respond) -> None:
        request = decode_request(frame)
        if request.header.api_key is ApiKey.API_VERSIONS:
            offered = ApiVersion(ApiKey.ALTER_ISR, 0, self.newest)
            respond([encode_response(request.header, ApiVersionsResponse(0, (offered,)))])
            return
        assert isinstance(request.value, AlterIsrRequest)
        assert request.header.api_version == self.newest
        ((asked,),) = (topic.partitions for topic in as_version_0(request.value).topics)
        result = AlterIsrPartitionResult(0, int(ErrorCode.FENCED_LEADER_EPOCH))
        if (request.value.broker_id, asked.leader_epoch) == (self.leader, self.leader_epoch):
            if asked.current_isr_version != self.zk_version:
                result = AlterIsrPartitionResult(0, int(ErrorCode.INVALID_UPDATE_VERSION))
            elif not all(self.machines[broker].process.alive for broker in asked.new_isr):
                result = AlterIsrPartitionResult(0, int(ErrorCode.OPERATION_NOT_ATTEMPTED))
            else:
                self.isr, self.zk_version = asked.new_isr, self.zk_version + 1
                result = AlterIsrPartitionResult(0, 0, self.leader, self.leader_epoch, self.isr, self.zk_version)
                for broker in REPLICAS:
                    self.send_metadata(broker)
        topic = AlterIsrTopicResult("t", (result,)) if self.newest < 2 else AlterIsrTopicResult("", (result,), TOPIC_ID)
        respond([encode_response(request.header, AlterIsrResponse(0, (topic,)))])

    def send_metadata(self, broker: int) -> None:
        machine = self.machines[broker]
        if machine.process.alive:
            state = UpdateMetadataPartitionState(
                0, 1, self.leader, self.leader_epoch, self.isr, self.zk_version, REPLICAS, ()
            )
            topic = UpdateMetadataTopicState("t", (state,), TOPIC_ID)
            machine.ask(
                ApiKey.UPDATE_METADATA, UpdateMetadataRequest(CONTROLLER, 1, (topic,), live(*REPLICAS, CONTROLLER))
            )

    def send_leader_and_isr(self, broker: int) -> None:
        """What it is now; nothing new, if it knows."""
        self.unnotified.discard(broker)
        machine = self.machines[broker]
        self.send_metadata(broker)
        if machine.process.alive:
            state = LeaderAndIsrPartitionState(
                0, 1, self.leader, self.leader_epoch, self.isr, self.zk_version, REPLICAS
            )
            topic = LeaderAndIsrTopicState("t", (state,), TOPIC_ID)
            machine.ask(ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest(CONTROLLER, 1, (topic,), ()))

    def change(self, leader: int, isr: tuple[int, ...]) -> None:
        self.leader, self.isr = leader, isr
        self.leader_epoch, self.zk_version = self.leader_epoch + 1, self.zk_version + 1
        self.unnotified = set(REPLICAS)
        if leader != NOBODY:
            self.holds_what_was_acknowledged(leader)

    def elect(self, first: int | None = None) -> None:
        able = tuple(broker for broker in self.isr if self.machines[broker].process.alive)
        leader = first if first in able else able[0] if able else NOBODY
        self.change(NOBODY if leader is None else leader, able or self.isr[:1])

    # -- the producer

    def produce(self, machine: Machine) -> None:
        self.sent += 1
        count, value = self.draw.randint(1, 4), b"%d" % self.sent
        request = ProduceRequest(
            ACKS_ALL, 1_000, (ProduceTopic("t", (ProducePartition(0, batch(count, value=value)),)),)
        )

        def answered(response: Any) -> None:
            ((result,),) = (topic.partition_responses for topic in response.responses)
            if result.error_code == 0:
                for offset in range(result.base_offset, result.base_offset + count):
                    assert offset not in self.acknowledged, f"offset {offset} was acknowledged twice"
                    self.acknowledged[offset] = value

        machine.ask(ApiKey.PRODUCE, request, answered)

    # -- what must hold

    def holds_what_was_acknowledged(self, broker: int) -> None:
        held = values(self.machines[broker].log)
        lost = {offset for offset, value in self.acknowledged.items() if held.get(offset) != value}
        assert not lost, f"broker {broker} may lead and lacks {sorted(lost)[:5]} of what was acknowledged"

    # -- what befalls

    def step(self) -> None:
        names = (
            ["produce"] * 8 + ["send"] * 6 + ["elect"] * 2 + ["restart"] * 2 + ["wait", "die", "cut", "heal", "keep"]
        )
        name, machine = self.draw.choice(names), self.machines[self.draw.choice(REPLICAS)]
        match name:
            case "produce" if machine.leads:
                self.produce(machine)
            case "send" if machine.id in self.unnotified:
                self.send_leader_and_isr(machine.id)
            case "elect" if machine.id in self.isr and machine.process.alive:
                self.elect(machine.id)
            case "wait":
                self.pass_ms(self.draw.choice((2.0, 20.0, 150.0, 700.0)))
            case "die" if machine.process.alive:
                self.die(machine)
            case "restart" if not machine.process.alive:
                self.restart(machine)
            case "cut":
                self.network.cut(machine.id, self.draw.choice((*REPLICAS, CONTROLLER)))
            case "heal":
                self.heal_all()
            case "keep" if machine.process.alive:
                machine.checkpoint()
        self.pass_ms(self.draw.choice((0.0, 0.5, 1.0, 3.0)))

    def die(self, machine: Machine) -> None:
        """A broker in the ISR that is not alone there may lose its power too: its leader epoch ends with it. Otherwise
        a leader may take it, when it is back, for one that still has what it had (KIP-903)."""
        survives = machine.id in self.isr and len(self.isr) > 1 and not self.is_asked_for()
        machine.die(self.draw if survives and self.draw.random() < 0.4 else None)
        if machine.id == self.leader:
            self.elect()
        elif machine.id in self.isr:
            self.change(self.leader, tuple(broker for broker in self.isr if broker != machine.id) or self.isr)

    def is_asked_for(self) -> bool:
        return any(
            machine.process.alive and machine.broker.isr_manager.proposal(*KEY) is not None
            for machine in self.machines.values()
        )

    def restart(self, machine: Machine) -> None:
        machine.boot()
        if self.leader == NOBODY:
            self.elect()
        self.send_leader_and_isr(machine.id)

    def heal_all(self) -> None:
        for source in REPLICAS:
            for target in (*REPLICAS, CONTROLLER):
                self.network.heal(source, target)

    def pass_ms(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)

    def calm(self) -> None:
        """All run, all know, no link is cut: the logs become the same, and the ISR whole."""
        self.heal_all()
        for machine in self.machines.values():
            if not machine.process.alive:
                self.restart(machine)
        self.elect(self.leader)
        for broker in REPLICAS:
            self.send_leader_and_isr(broker)
        self.pass_ms(CALM_MS)
        before = len(self.acknowledged)
        self.produce(self.machines[self.leader])
        self.pass_ms(CALM_MS)
        assert len(self.acknowledged) > before, "nothing is acknowledged any more"
        assert sorted(self.isr) == [*REPLICAS], f"the ISR is {self.isr}"
        self.holds_what_was_acknowledged(self.leader)
        wanted = contents(self.machines[self.leader].log)
        for machine in self.machines.values():
            assert contents(machine.log) == wanted, f"broker {machine.id} has another log than its leader"
            partition = machine.broker.replicas.partition(*KEY)
            assert partition is not None
            assert partition.high_watermark == wanted[1]
            assert machine.trace.notes("error") == []


def values(log: PartitionLog | None) -> dict[int, bytes | None]:
    """Offset to value."""
    data = contents(log)[0]
    found: dict[int, bytes | None] = {}
    position = 0
    for one in headers_of(data):
        for record in decode_records(one, data[position + HEADER_BYTES : position + one.size_bytes]):
            found[record.offset] = record.value
        position += one.size_bytes
    return found


def contents(log: PartitionLog | None) -> tuple[bytes, int]:
    """All batches, none of which was ever deleted, and the log's end."""
    if log is None:
        return b"", 0
    data, offset = b"", 0
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20).read()
        data, offset = data + found, headers_of(found)[-1].next_offset
    return data, log.log_end_offset


def run(seed: int, steps: int = 60) -> World:
    world = World(seed)
    world.pass_ms(10.0)
    for _ in range(steps):
        world.step()
    world.calm()
    return world
