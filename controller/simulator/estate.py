"""A large cluster in one process: a thousand brokers, some hundred thousand partitions, and the loss of some brokers.

The cluster is not created topic by topic: ZooKeeper starts with the znodes of a cluster that has run, as from a
snapshot, with a controller that cannot be reached, so that every broker registers before any becomes controller. Then
that controller goes away, one of the brokers is elected, loads everything and sends it to all brokers, by the usual
code. Brokers have no logs unless requested; with logs each follower's fetch waits at its leader until there are
records.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from controller.broker.data_plane import DataPlane
from controller.core.placement import assign_replicas
from controller.scenarios.host import ClusterSpec, Workload
from controller.simulator.estate_wholeness import Estate, missing
from controller.simulator.host import SimulatedHost
from controller.simulator.safety_checker import SafetyChecker
from controller.trace import FaultInjected
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    ControllerZnode,
    PartitionState,
    TopicAssignment,
    encode_controller,
    encode_controller_epoch,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.drive import drive
from controller.zookeeper.memory.connection import InMemoryConnection
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, Write

NEVER_MS = 1e12
"""Nobody asks for metadata: an answer would name every partition of the estate."""
AT_ONCE = 10_000
"""Znodes a transaction while ZooKeeper's are restored."""
LOOK_MS = 100.0
PARKED_MS = 600_000
"""How long an idle fetch waits at its leader: longer than anything here lasts, so that it costs memory alone."""
FORMER_CONTROLLER = 0
"""Whom /controller names until everybody is registered. No broker of the estate has that id."""
FORMER_EPOCH = 1
FORMER_SESSION_MS = 30_000


class NotWhole(Exception):
    """The estate did not come to rest in time; says what was still missing."""


@dataclass(frozen=True, slots=True)
class EstateSpec:
    """`partitions` in topics of `a_topic` each (the last one may have fewer), placed as Kafka places them."""

    brokers: int
    partitions: int
    a_topic: int = 100
    replication_factor: int = 3
    session_timeout_ms: int = 18_000
    logs: bool = False
    """Whether brokers hold logs, which are empty; 3 kilobytes for each replica, and 5 for each broker that follows
    another in some partition."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        waits = ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "replica.lag.time.max.ms")
        parked = tuple((name, str(PARKED_MS * times)) for times, name in enumerate(waits, start=1))
        return (("log.dirs", "/logs"), *parked) if self.logs else ()

    def topics(self, rng: Random) -> dict[str, dict[int, tuple[int, ...]]]:
        """Each topic's assignment."""
        brokers = [(broker, None) for broker in range(1, self.brokers + 1)]
        topics = {}
        for number, start in enumerate(range(0, self.partitions, self.a_topic)):
            count = min(self.a_topic, self.partitions - start)
            topics[f"t{number:05d}"] = assign_replicas(brokers, count, self.replication_factor, rng=rng)
        return topics


class EstateWorld:
    """Built and whole once `build` has returned. `clock` and the rest of the host may be looked at and stepped."""

    def __init__(self, spec: EstateSpec, seed: int = 1) -> None:
        self.spec = spec
        self.safety_checker = SafetyChecker(clean=True)
        self.host = SimulatedHost(seed, self.safety_checker)
        cluster = ClusterSpec(spec.brokers, 1, spec.session_timeout_ms, settings=spec.settings)
        booted = drive(self.host.boot(cluster, Workload(NEVER_MS)))
        self.clock = self.host.clock
        self.clock.run_until(lambda: booted.done, 10_000.0)
        booted.result()
        self.zookeeper = self.host.world.zookeeper
        self.safety_checker.attach(self.zookeeper, self.clock.now_ms)
        self.estate = Estate(self.host, spec.topics(Random(f"{seed}/estate")))

    def build(self, limit_ms: float = 600_000.0) -> None:
        """What goes on in it is not recorded: a line for each replica would be more than all the rest. NotWhole."""
        self.safety_checker.enabled = False
        for operations in _batches(_znodes(self.estate.topics)):
            self.zookeeper.restore(operations)
        former = self._hold_controller()
        brokers = range(1, self.spec.brokers + 1)
        for node in brokers:
            drive(self.host.start(node)).result()
        registered = self.clock.run_until(
            lambda: len(self.zookeeper.children(paths.BROKER_IDS) or ()) == len(brokers), self._until(limit_ms)
        )
        if not registered:
            raise NotWhole("not every broker is registered")
        self.clock.advance_to(self.clock.now_ms() + LOOK_MS)
        self.zookeeper.restore([Delete(paths.CONTROLLER, ANY_VERSION)])
        former.close()
        self.until_whole(tuple(brokers), limit_ms)
        if self.spec.logs:
            self._until_parked(limit_ms)
        self.safety_checker.records.clear()
        self.safety_checker.enabled = True

    def _hold_controller(self) -> InMemoryConnection:
        """A former controller's session, which owns /controller until every broker is registered."""
        former = self.zookeeper.connect(FORMER_SESSION_MS)
        started = former.start()
        self.clock.run_until(lambda: started.done, self._until(FORMER_SESSION_MS))
        znode = encode_controller(ControllerZnode(FORMER_CONTROLLER, 0))
        held = former.multi([Create(paths.CONTROLLER, znode, ephemeral=True)])
        self.clock.run_until(lambda: held.done, self._until(FORMER_SESSION_MS))
        held.result()
        return former

    def _until_parked(self, limit_ms: float) -> None:
        """Every fetcher has asked its leader, which has nothing for it."""
        until_ms = self._until(limit_ms)
        while self.parked < self.fetchers:
            if self.clock.now_ms() >= until_ms:
                raise NotWhole(f"{self.parked} fetches are parked, of {self.fetchers} fetchers")
            self.clock.advance_to(self.clock.now_ms() + LOOK_MS)

    @property
    def parked(self) -> int:
        """Count the requests that wait at brokers: fetches of followers where no client produces."""
        return sum(process.waiting for process in self.host.processes.values() if process.alive)

    @property
    def fetchers(self) -> int:
        """Of all brokers: one for each whose partitions it follows."""
        data = (self._data(broker) for broker in self.host.processes)
        return sum(len(one.fetchers) for one in data if one is not None)

    def _data(self, broker: int) -> DataPlane | None:
        node = self.estate.node(broker)
        return None if node is None else node.broker.data

    def lose(self, nodes: Sequence[int]) -> None:
        """Their processes are killed, all at this moment."""
        for node in nodes:
            self.host.take(FaultInjected("kill", str(node)))
            drive(self.host.kill(node)).result()
            self.safety_checker.died(node)

    def until_whole(self, live: Sequence[int], limit_ms: float) -> float:
        """Runs until the brokers of `live` are whole without the others: the virtual time that took. NotWhole, also for
        an invariant that did not hold."""
        began_ms, until_ms = self.clock.now_ms(), self._until(limit_ms)
        while True:
            if self.safety_checker.violation is not None:
                raise NotWhole(str(self.safety_checker.violation))
            found = missing(self.estate, live)
            if found is None:
                return self.clock.now_ms() - began_ms
            if self.clock.now_ms() >= until_ms:
                raise NotWhole(found)
            self.clock.advance_to(self.clock.now_ms() + LOOK_MS)

    def close(self) -> None:
        drive(self.host.shut_down()).result()

    def _until(self, limit_ms: float) -> float:
        return self.clock.now_ms() + limit_ms


def _znodes(topics: Mapping[str, Mapping[int, tuple[int, ...]]]) -> Iterator[Create]:
    """Of a cluster that has run: each partition led by the first of its replicas, with all of them in sync."""
    yield Create(paths.CONTROLLER_EPOCH, encode_controller_epoch(FORMER_EPOCH))
    for number, (name, assignment) in enumerate(topics.items()):
        topic_id = base64.urlsafe_b64encode((number + 1).to_bytes(16, "big")).rstrip(b"=").decode()
        yield Create(paths.topic(name), encode_topic_assignment(TopicAssignment(topic_id, assignment)))
        yield Create(paths.partitions(name), None)
        for partition, replicas in assignment.items():
            state = PartitionState(replicas[0], 0, replicas, FORMER_EPOCH)
            yield Create(paths.partition(name, partition), None)
            yield Create(paths.partition_state(name, partition), encode_partition_state(state))


def _batches(operations: Iterator[Create]) -> Iterator[list[Write]]:
    batch: list[Write] = []
    for operation in operations:
        batch.append(operation)
        if len(batch) == AT_ONCE:
            yield batch
            batch = []
    yield batch
