"""The simulated host of scenarios: brokers, their network, ZooKeeper and a client in one thread and virtual time.

Everything that chance decides comes from the seed, by purpose: how fast each node, link and session is in this run
and how long each single message and step takes. An ensemble of several ZooKeeper servers has one mind (`ensemble.py`):
a server that lags behind the others is not modelled here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from controller.broker.settings import BadSettings
from controller.clock import VirtualClock, spawn
from controller.machine.process import Process, ProcessClock
from controller.scenarios.faults import (
    ZOOKEEPER,
    AskIsr,
    ElectLeaders,
    Fault,
    HostFailure,
    Link,
    OnNode,
    Operation,
    Reassign,
    Stop,
    describe,
)
from controller.scenarios.host import Observation, PartitionView, Snapshot, TopicSpec, Workload
from controller.scenarios.language import ClusterSpec
from controller.scenarios.records.history import History
from controller.scenarios.records.workload import PartitionName, RecordWorkload, TransactionStage
from controller.simulator.administrator import DONE, STRAY_ISRS, Administrator, stray_isr_request
from controller.simulator.broker_process import Paces, SimulatedBroker, World
from controller.simulator.client import SimulatedClient
from controller.simulator.ensemble import Ensemble
from controller.simulator.faults import Faults
from controller.simulator.group_members import SimulatedMember
from controller.simulator.network import Address, Network
from controller.simulator.observer import MembershipObserver, controller_epoch, partitions
from controller.simulator.randomness import Streams
from controller.simulator.record_clients import SimulatedRecordClients
from controller.simulator.requests import BrokerConnection
from controller.simulator.routes import Pipeline
from controller.simulator.transactional_client import SimulatedWriter, Stages
from controller.trace import EphemeralSeen, MetadataSeen, Noted, TraceEvent
from controller.trace_records import OBSERVER, Recorder, TraceRecord
from controller.zookeeper.memory.followers import Follower
from controller.zookeeper.memory.server import InMemoryZooKeeper

PORT = 9092
STOP_GRACE_MS = 30_000.0
OBSERVER_SESSION_MS = 30_000
PACE_RANGE = (-2.0, 4.0)
"""Each part of a run is between a quarter of its usual pace's delay and sixteen times that (powers of two): some seeds
have a slow controller, others a slow network."""

_STEP_MS = (0.005, 0.06)
_NETWORK_MS = (0.05, 0.25)
_ZOOKEEPER_MS = (0.1, 0.35)
_BOOT_MS = (100.0, 250.0)


class SimulatedHost:
    name = "simulated"

    def __init__(
        self, seed: int, recorder: Recorder | None = None, *, kills_forget: bool = True, zookeeper_lag_ms: float = 0.0
    ) -> None:
        """`kills_forget`: whether every end of a process takes along what was not synced to its disk.

        `zookeeper_lag_ms`: each broker is at a ZooKeeper follower of its own, which applies each transaction after up
        to so long; 0: all are at the leader.
        """
        self._kills_forget = kills_forget
        self._zookeeper_lag_ms = zookeeper_lag_ms
        self.seed: int | None = seed
        self.clock = VirtualClock()
        self.recorder = Recorder() if recorder is None else recorder
        self._streams = Streams(seed)
        self._processes: dict[int, SimulatedBroker] = {}
        self._lives: dict[int, int] = {}
        self._cut_off: set[int] = set()  # from ZooKeeper; asked whether it holds a node, never walked
        self._metadata: tuple[MetadataSeen | None, float] = (None, 0.0)
        self._client: SimulatedClient | None = None
        self._record_clients: SimulatedRecordClients | None = None
        self._observer: MembershipObserver | None = None
        self._outside = Process("outside")
        self._places: dict[Address, int] = {}
        self._faults: Faults | None = None
        self._administrator: Administrator | None = None

    # -- what the rest of this room may reach, once it is booted

    @property
    def streams(self) -> Streams:
        return self._streams

    @property
    def world(self) -> World:
        return self._world

    @property
    def ensemble(self) -> Ensemble:
        return self._ensemble

    @property
    def processes(self) -> Mapping[int, SimulatedBroker]:
        """By broker, the life that it is in or was in last."""
        return self._processes

    def connection(self, address: Address) -> BrokerConnection:
        """From outside the cluster, as clients have."""
        return self._connect(self._world.network, ProcessClock(self.clock, self._outside), address)

    async def is_answered_by(self, node: int) -> bool:
        """Whether this broker answers a client's request for metadata over a new connection."""
        assert self._client is not None
        return await self._client.metadata_of(node) is not None

    def place(self, address: Address, node: int) -> None:
        """One node more in the network, which is no broker."""
        self._places[address] = node

    def paces(self, name: str) -> Paces:
        """How fast a node of that name is in this run."""
        return Paces(
            self._delays(f"boot/{name}", _BOOT_MS),
            self._delays(f"step/{name}", _STEP_MS),
            self._delays(f"zookeeper/{name}", _ZOOKEEPER_MS),
        )

    # -- the scenario's host

    def take(self, event: TraceEvent) -> None:
        self.recorder.take(self.clock.now_ms(), OBSERVER, event)

    async def boot(self, cluster: ClusterSpec, workload: Workload) -> None:
        tick_ms = max(50, min(500, cluster.session_timeout_ms // 4))
        zookeeper = InMemoryZooKeeper(
            self.clock, tick_ms=tick_ms, max_session_timeout_ms=max(OBSERVER_SESSION_MS, 20 * tick_ms)
        )
        followers = self._followers(zookeeper, cluster)
        addresses = {node: (f"broker-{node}", PORT) for node in cluster.nodes}
        self._places = {address: node for node, address in addresses.items()}
        delays = self._delays("network", _NETWORK_MS)
        network = Network(
            self.clock,
            lambda source, target: delays(),
            lambda address: self._places.get(address, OBSERVER),
            self._streams.stream("loss"),
        )
        self._cluster = cluster
        self._workload = workload
        self._ensemble = Ensemble(
            zookeeper,
            cluster.zookeeper_servers,
            self.clock,
            self._streams.stream("ensemble"),
            lambda: [process.connection for _, process in sorted(self._processes.items()) if process.alive],
        )
        self._world = World(
            self.clock,
            self._streams,
            network,
            zookeeper,
            self.recorder,
            addresses,
            kills_forget=self._kills_forget,
            followers=followers,
        )
        self._paces = {node: self.paces(str(node)) for node in cluster.nodes}
        outside_clock = ProcessClock(self.clock, self._outside)
        self._client = SimulatedClient(
            lambda address: self._connect(network, outside_clock, address),
            outside_clock,
            self._streams.stream("client"),
            addresses,
            workload.metadata_interval_ms,
            self._see_metadata,
        )
        connection = zookeeper.connect(OBSERVER_SESSION_MS)  # at no distance: what it sees is when it happened
        self._observer = MembershipObserver(connection, outside_clock, self.seed or 0, self._see_ephemeral)
        await self._observer.start()

    def _followers(self, zookeeper: InMemoryZooKeeper, cluster: ClusterSpec) -> dict[int, Follower]:
        if not self._zookeeper_lag_ms:
            return {}
        return {
            node: zookeeper.add_follower(
                partial(self._streams.stream(f"zookeeper-lag/{node}").uniform, 0.0, self._zookeeper_lag_ms)
            )
            for node in cluster.nodes
        }

    def _delays(self, purpose: str, usual_ms: tuple[float, float]) -> Callable[[], float]:
        scale = 2.0 ** self._streams.stream(f"pace/{purpose}").uniform(*PACE_RANGE)
        return self._streams.delays(purpose, usual_ms[0] * scale, usual_ms[1] * scale)

    def _connect(self, network: Network, clock: ProcessClock, address: Address) -> BrokerConnection:
        return BrokerConnection(network, OBSERVER, self._outside, clock, address, "camerlengo-simulate")

    def _see_ephemeral(self, event: EphemeralSeen) -> None:
        self.take(event)

    def _see_metadata(self, seen: MetadataSeen) -> None:
        self._metadata = (seen, self.clock.now_ms())
        self.take(seen)

    # -- brokers

    async def start(self, node: int) -> None:
        if node in self.running():
            raise HostFailure(f"broker {node} is running already")
        life = self._lives[node] = self._lives.get(node, 0) + 1
        try:
            process = SimulatedBroker(self._world, node, life, self._settings(node), self._paces[node])
        except BadSettings as error:
            raise HostFailure(f"broker {node} did not start: {error}") from error
        if node in self._cut_off:
            process.connection.cut()
        self._processes[node] = process
        assert self._client is not None
        self._client.begin()

    def _settings(self, node: int) -> dict[str, str]:
        host, port = self._world.addresses[node]
        settings = {
            "broker.id": str(node),
            "listeners": f"PLAINTEXT://{host}:{port}",
            "zookeeper.connect": "zookeeper:2181",
            "zookeeper.session.timeout.ms": str(self._cluster.session_timeout_ms),
        }
        if self._cluster.racks:
            settings["broker.rack"] = self._cluster.racks[(node - 1) % len(self._cluster.racks)]
        if self._workload.records:
            settings["log.dirs"] = "/logs"
        return settings | self._cluster.properties

    async def _until_stopped(self, node: int) -> None:
        process = self._processes[node]
        limit_ms = self.clock.now_ms() + STOP_GRACE_MS
        while process.alive:
            if self.clock.now_ms() >= limit_ms:
                raise HostFailure(f"broker {node} did not stop within {STOP_GRACE_MS / 1000:g} s")
            await self.clock.sleep(1.0)
        del self._processes[node]

    async def resume(self, node: int) -> None:
        self._process(node).resume()

    def _process(self, node: int) -> SimulatedBroker:
        process = self._processes.get(node)
        if process is None or not process.alive:
            raise HostFailure(f"broker {node} is not running")
        return process

    def running(self) -> tuple[int, ...]:
        """Raises HostFailure for a broker that ended of itself: nothing that follows would mean anything."""
        for _, process in sorted(self._processes.items()):
            if process.failure is not None:
                raise HostFailure(process.failure)
        return tuple(node for node, process in sorted(self._processes.items()) if process.alive)

    # -- links and sessions

    async def cut(self, link: Link) -> None:
        if link.target != ZOOKEEPER:
            self._world.network.cut(link.source, link.target)
            return
        self._cut_off.add(link.source)
        if link.source in self._processes:
            self._processes[link.source].connection.cut()

    async def heal(self, link: Link) -> None:
        if link.target != ZOOKEEPER:
            self._world.network.heal(link.source, link.target)
            return
        self._cut_off.discard(link.source)
        if link.source in self._processes:
            self._processes[link.source].connection.heal()

    # -- faults and operations

    async def inject(self, step: Fault | Operation) -> None:
        if isinstance(step, Operation | AskIsr):
            await self._ask(step)
            return
        undo = self._the_faults().begin(msgspec.structs.replace(step, at_ms=self.clock.now_ms()))
        if undo is None:
            if isinstance(step, OnNode):
                self._process(step.broker)
            raise HostFailure(f"{describe(step)}: impossible now")
        if step.lasts_ms:
            self.clock.call_later(step.lasts_ms, undo)
        elif isinstance(step, Stop):
            await self._until_stopped(step.broker)

    async def _ask(self, step: Operation | AskIsr) -> None:
        if self._administrator is None:
            self._administrator = Administrator(
                self.connection, self.clock, self._streams.stream("administrator"), self._world.addresses
            )
        if isinstance(step, AskIsr):
            request = stray_isr_request(self._world.zookeeper, step)
            if request is None:
                raise HostFailure(f"{describe(step)}: impossible now")
            wrong = await self._administrator.ask_isr(step, request)
            if wrong is not None:
                self.take(Noted("error", f"{STRAY_ISRS}: {wrong}"))
        elif isinstance(step, Reassign | ElectLeaders) and step.znode:
            self._the_faults().ask(step)
        else:
            outcome = await self._administrator.carry_out(step)
            if outcome != DONE:
                raise HostFailure(f"{describe(step)}: {outcome}")

    async def heal_all(self) -> None:
        self._the_faults().heal_all()

    def _the_faults(self) -> Faults:
        """Made with the first: they have a session of their own."""
        if self._faults is None:
            self._faults = Faults(self, self._cluster.brokers, self._start_again)
        return self._faults

    def _start_again(self, node: int) -> None:
        if node not in self.running():
            spawn(self.start(node))

    # -- ZooKeeper's servers

    async def zookeeper_leader(self) -> int:
        leader = self._ensemble.leader
        if leader is None:
            raise HostFailure("no ZooKeeper server leads at the moment")
        return leader

    def zookeepers_running(self) -> tuple[int, ...]:
        return self._ensemble.running

    async def start_zookeeper(self, server: int) -> None:
        await self._ensemble.start(server)

    # -- what is seen of it

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        assert self._client is not None
        await self._client.create_topics(topics)
        self._client.expect(topics)

    async def produce(self, workload: RecordWorkload, partitions: Sequence[PartitionName]) -> None:
        clock = ProcessClock(self.clock, self._outside)
        self._record_clients = SimulatedRecordClients(
            lambda process, its_clock, address, name: Pipeline(self._world.network, process, its_clock, address, name),
            self._outside,
            clock,
            self._streams,
            self._world.addresses,
            workload,
            partitions,
        )

    def _stages(self, client: int) -> Stages:
        stages = None if self._record_clients is None else self._record_clients.stages(client)
        if stages is None:
            raise HostFailure(
                f"there is no transactional client {client}: expected the step produce before, and one of it"
            )
        return stages

    async def hold_transaction(self, client: int, stage: TransactionStage, deadline_ms: float) -> bool:
        stages = self._stages(client)
        reached = stages.hold(stage)

        def give_up() -> None:
            if not reached.done:
                reached.fail(TimeoutError())

        timer = self.clock.call_later(deadline_ms, give_up)
        try:
            await reached
        except TimeoutError:
            stages.release()
            return False
        finally:
            timer.cancel()
        return True

    def release_transaction(self, client: int) -> None:
        self._stages(client).release()

    @property
    def writers(self) -> Mapping[int, SimulatedWriter]:
        """The transactional producers, by number; none before records are produced."""
        return {} if self._record_clients is None else self._record_clients.writers

    async def quiesce(self, deadline_ms: float, among: Collection[int] | None = None) -> None:
        """`among`: the brokers that the final reader knows; None: all."""
        assert self._record_clients is not None
        await self._record_clients.quiesce(deadline_ms, among)

    def history(self) -> History | None:
        return None if self._record_clients is None else self._record_clients.history()

    @property
    def members(self) -> Mapping[int, SimulatedMember]:
        """The clients of the workload's group, by number; none before records are produced."""
        return {} if self._record_clients is None else self._record_clients.members

    def acknowledged(self) -> list[int]:
        """For each partition written to the offset after the last one that was acknowledged so far."""
        return [] if self._record_clients is None else self._record_clients.acknowledged()

    def observe(self) -> Observation:
        assert self._observer is not None
        registered, controller = self._observer.now()
        return Observation(registered, controller, *self._metadata)

    async def leaders(self) -> Mapping[tuple[str, int], PartitionView]:
        return partitions(self._world.zookeeper)

    async def snapshot(self) -> Snapshot:
        assert self._client is not None
        seen = self.observe()
        metadata = {}
        for node in sorted(seen.registered):
            views = await self._client.metadata_of(node)
            if views is not None:  # the checker also receives a registered broker without metadata
                metadata[node] = views
        server = self._world.zookeeper
        registered = tuple(sorted(seen.registered))
        return Snapshot(partitions(server), registered, seen.controller, controller_epoch(server), metadata)

    async def shut_down(self) -> None:
        for _, process in sorted(self._processes.items()):
            process.kill()
        if self._client is not None:
            self._client.close()
        if self._record_clients is not None:
            self._record_clients.close()
        self._outside.die()

    def records(self) -> Sequence[TraceRecord]:
        return self.recorder.records
