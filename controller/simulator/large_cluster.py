"""A large cluster in one process: a thousand brokers, some hundred thousand partitions, and the loss of some brokers.

The cluster is not created topic by topic: ZooKeeper starts with the znodes of a cluster that has run, as from a
snapshot, with a controller that cannot be reached, so that every broker registers before any becomes controller. Then
that controller goes away, one of the brokers is elected, loads everything and sends it to all brokers, by the usual
code. Brokers have no logs unless requested; with logs each follower's fetch waits at its leader until there are
records.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

import numpy as np

from controller.broker.broker import DataPlane
from controller.broker.metadata import Partitions
from controller.broker.node import Node
from controller.clock import spawn
from controller.core.context import NO_BROKER, Bools, Int32s, padded
from controller.core.leadership import Term
from controller.core.placement import assign_replicas
from controller.scenarios.host import Workload
from controller.scenarios.language import ClusterSpec
from controller.simulator.host import SimulatedHost
from controller.simulator.observer import controller_named
from controller.simulator.safety_checker import SafetyChecker
from controller.trace import FaultInjected
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    ControllerZnode,
    PartitionStateZnode,
    TopicAssignment,
    encode_controller,
    encode_controller_epoch,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.codecs_columns import PartitionStateColumns, decode_partition_states
from controller.zookeeper.memory.server import InMemoryConnection
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, Write
from statemachines.leader_election_columns import live_mask

NEVER_MS = 1e12
"""Nobody asks for metadata: an answer would name every partition of the cluster."""
AT_ONCE = 10_000
"""Znodes a transaction while ZooKeeper's are restored."""
LOOK_MS = 100.0
PARKED_MS = 600_000
"""How long an idle fetch waits at its leader: longer than anything here lasts, so that it costs memory alone."""
FORMER_CONTROLLER = 0
"""Whom /controller names until everybody is registered. No broker of the cluster has that id."""
FORMER_EPOCH = 1
FORMER_SESSION_MS = 30_000


class NotConverged(Exception):
    """The cluster did not come to rest in time; says what was still missing."""


@dataclass(frozen=True, slots=True)
class LargeClusterSpec:
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
    def settings(self) -> dict[str, str]:
        waits = ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "replica.lag.time.max.ms")
        parked = {name: str(PARKED_MS * times) for times, name in enumerate(waits, start=1)}
        return {"log.dirs": "/logs"} | parked if self.logs else {}

    def topics(self, rng: Random) -> dict[str, dict[int, tuple[int, ...]]]:
        """Each topic's assignment."""
        brokers = [(broker, None) for broker in range(1, self.brokers + 1)]
        topics = {}
        for number, start in enumerate(range(0, self.partitions, self.a_topic)):
            count = min(self.a_topic, self.partitions - start)
            topics[f"t{number:05d}"] = assign_replicas(brokers, count, self.replication_factor, rng=rng)
        return topics


class LargeClusterWorld:
    """Built and converged once `build` has returned. `clock` and the rest of the host may be looked at and stepped."""

    def __init__(self, spec: LargeClusterSpec, seed: int = 1) -> None:
        self.spec = spec
        self.safety_checker = SafetyChecker(clean=True)
        self.host = SimulatedHost(seed, self.safety_checker)
        cluster = ClusterSpec(brokers=spec.brokers, session_timeout_ms=spec.session_timeout_ms, settings=spec.settings)
        booted = spawn(self.host.boot(cluster, Workload(NEVER_MS)))
        self.clock = self.host.clock
        self.clock.run_until(lambda: booted.done, 10_000.0)
        booted.result()
        self.zookeeper = self.host.world.zookeeper
        self.safety_checker.attach(self.zookeeper, self.clock.now_ms)
        self.cluster = LargeCluster(self.host, spec.topics(Random(f"{seed}/cluster")))

    def build(self, limit_ms: float = 600_000.0) -> None:
        """What goes on in it is not recorded: a line for each replica would be more than all the rest. NotConverged."""
        self.safety_checker.enabled = False
        for operations in _batches(_znodes(self.cluster.topics)):
            self.zookeeper.restore(operations)
        former = self._hold_controller()
        brokers = range(1, self.spec.brokers + 1)
        for node in brokers:
            spawn(self.host.start(node)).result()
        registered = self.clock.run_until(
            lambda: len(self.zookeeper.children(paths.BROKER_IDS) or ()) == len(brokers), self._until(limit_ms)
        )
        if not registered:
            raise NotConverged("not every broker is registered")
        self.clock.advance_to(self.clock.now_ms() + LOOK_MS)
        self.zookeeper.restore([Delete(paths.CONTROLLER, ANY_VERSION)])
        former.close()
        self.until_converged(tuple(brokers), limit_ms)
        if self.spec.logs:
            self.until_parked(limit_ms)
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

    def until_parked(self, limit_ms: float) -> None:
        """Every fetcher has asked its leader, which has nothing for it."""
        until_ms = self._until(limit_ms)
        while self.parked < self.fetchers:
            if self.clock.now_ms() >= until_ms:
                raise NotConverged(f"{self.parked} fetches are parked, of {self.fetchers} fetchers")
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
        node = self.cluster.node(broker)
        return None if node is None else node.broker.data

    def lose(self, nodes: Sequence[int]) -> None:
        """Their processes are killed, all at this moment."""
        for node in nodes:
            self.host.take(FaultInjected("kill", str(node)))
            self.host.processes[node].kill()
            self.safety_checker.died(node)

    def until_converged(self, live: Sequence[int], limit_ms: float) -> float:
        """Run until the brokers of `live` have converged without the others, and return the virtual time that took.

        Raises:
            NotConverged: it took longer, or an invariant was violated.
        """
        began_ms, until_ms = self.clock.now_ms(), self._until(limit_ms)
        while True:
            if self.safety_checker.violation is not None:
                raise NotConverged(str(self.safety_checker.violation))
            found = missing(self.cluster, live)
            if found is None:
                return self.clock.now_ms() - began_ms
            if self.clock.now_ms() >= until_ms:
                raise NotConverged(found)
            self.clock.advance_to(self.clock.now_ms() + LOOK_MS)

    def close(self) -> None:
        spawn(self.host.shut_down()).result()

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
            state = PartitionStateZnode(replicas[0], 0, replicas, FORMER_EPOCH)
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


Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class LargeCluster:
    """`topics`: each one's assignment. The partitions are numbered in that order: `keys`, `rows`, `assignment`
    (int32[n, width], -1 behind). What ZooKeeper holds is decoded once for each of its states."""

    host: SimulatedHost
    topics: Mapping[str, Mapping[int, tuple[int, ...]]]
    keys: list[Key] = field(init=False)
    rows: dict[Key, int] = field(init=False)
    assignment: Int32s = field(init=False)
    _paths: list[str] = field(init=False)
    _held: tuple[int, PartitionStateColumns] | None = None

    def __post_init__(self) -> None:
        self.keys = [(name, partition) for name, assignment in self.topics.items() for partition in assignment]
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.assignment = padded([self.topics[name][partition] for name, partition in self.keys])
        self._paths = [paths.partition_state(name, partition) for name, partition in self.keys]

    def states(self) -> PartitionStateColumns:
        zookeeper = self.host.world.zookeeper
        if self._held is None or self._held[0] != zookeeper.zxid:
            states = decode_partition_states(zookeeper.columns(self._paths), self.assignment.shape[1])
            self._held = (zookeeper.zxid, states)
        return self._held[1]

    def node(self, broker: int) -> Node | None:
        process = self.host.processes.get(broker)
        return process.node if process is not None and process.alive else None

    def name(self, row: int) -> str:
        return f"{self.keys[row][0]}-{self.keys[row][1]}"


Check: TypeAlias = Callable[[LargeCluster, tuple[int, ...]], str | None]


def missing(cluster: LargeCluster, live: Sequence[int]) -> str | None:
    """What the brokers `live`, and no others, still lack to have converged, in words; None: nothing."""
    among = tuple(sorted(live))
    for check in CHECKS:
        found = check(cluster, among)
        if found is not None:
            return found
    return None


def _registered(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    names = cluster.host.world.zookeeper.children(paths.BROKER_IDS) or ()
    registered = sorted(int(name) for name in names)
    return None if registered == list(live) else f"{len(registered)} brokers are registered, {len(live)} live"


def _term(cluster: LargeCluster) -> Term | None:
    controller = controller_named(cluster.host.world.zookeeper)
    node = None if controller < 0 else cluster.node(controller)
    return None if node is None else node.controller.term


def _controller(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    """It knows who lives, has nothing left to do, and every request that it sent was answered."""
    term = _term(cluster)
    if term is None:
        return "no active controller"
    node = cluster.node(term.broker_id)
    assert node is not None
    if term.context.broker_ids != live:
        return f"controller {term.broker_id} knows {len(term.context.broker_ids)} brokers"
    if len(node.events) or term.requests.unanswered:
        return f"controller {term.broker_id}: {len(node.events)} events, {term.requests.unanswered} requests unanswered"
    others = [broker for broker in live if _takes_for_controller(cluster, broker) != term.broker_id]
    return f"brokers {others[:10]} take another than {term.broker_id} for controller" if others else None


def _takes_for_controller(cluster: LargeCluster, broker: int) -> int | None:
    node = cluster.node(broker)
    return None if node is None else node.controller.active_controller_id


def _led(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    """Every partition of which a replica lives is led, and its ISR is all of its replicas that live."""
    states = cluster.states()
    alive = live_mask(cluster.assignment, live)
    if not states.present.all():
        return f"{cluster.name(int(np.flatnonzero(~states.present)[0]))} has no state"
    unled = alive.any(axis=1) & ~live_mask(states.leader, live)
    if unled.any():
        row = int(np.flatnonzero(unled)[0])
        return f"{np.count_nonzero(unled)} partitions are not led, {cluster.name(row)} by {states.leader[row]}"
    wanted = np.sort(np.where(alive, cluster.assignment, NO_BROKER), axis=1)
    narrow: Bools = (np.sort(states.isr, axis=1) != wanted).any(axis=1)
    if narrow.any():
        row = int(np.flatnonzero(narrow)[0])
        isr = states.isr[row].tolist()
        return f"{np.count_nonzero(narrow)} ISRs are not all that live, {cluster.name(row)}'s is {isr}"
    return None


def _context_agrees(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    """The controller's context is what ZooKeeper holds."""
    term, states = _term(cluster), cluster.states()
    assert term is not None
    table = term.context.partitions
    if len(table) != len(cluster.keys) or term.context.offline_partitions:
        return f"the controller knows {len(table)} partitions, {term.context.offline_partitions} of them offline"
    order = np.array([cluster.rows[table.topic_and_partition(row)] for row in range(len(table))], np.int64)
    pairs = (
        (table.leader, states.leader),
        (table.leader_epoch, states.leader_epoch),
        (table.zk_version, states.versions),
        (table.isr, states.isr),
    )
    for mine, held in pairs:
        other = mine != held[order]
        if other.any():
            where = cluster.name(int(order[int(np.flatnonzero(other.reshape(len(table), -1).any(axis=1))[0])]))
            return f"{where} is another in the controller's context than in ZooKeeper"
    return None


def _metadata_agrees(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    """What each broker would tell a client is what ZooKeeper holds."""
    term = _term(cluster)
    assert term is not None
    seen: dict[int, Mapping[str, Partitions]] = {}
    for broker in live:
        node = cluster.node(broker)
        assert node is not None
        snapshot = node.broker.metadata.snapshot
        if id(snapshot.brokers) not in seen and tuple(sorted(snapshot.brokers)) != live:
            return f"broker {broker} knows {len(snapshot.brokers)} brokers"
        if snapshot.controller_id != term.broker_id:
            return f"broker {broker} reports controller {snapshot.controller_id}"
        if id(snapshot.topics) not in seen:
            seen[id(snapshot.topics)] = snapshot.topics
            found = _shows_another(cluster, snapshot.topics)
            if found is not None:
                return f"broker {broker} {found}"
    return None


def _shows_another(cluster: LargeCluster, topics: Mapping[str, Partitions]) -> str | None:
    states = cluster.states()
    leaders, epochs, versions = states.leader.tolist(), states.leader_epoch.tolist(), states.versions.tolist()
    isrs = states.isr.tolist()
    count = 0
    for name, partitions in topics.items():
        for partition, shown in partitions.items():
            row = cluster.rows.get((name, partition))
            if row is None:
                return f"shows {name}-{partition}, which there is not"
            isr = [member for member in isrs[row] if member != NO_BROKER]
            metadata = (shown.leader, shown.leader_epoch, shown.zk_version, list(shown.isr))
            if metadata != (leaders[row], epochs[row], versions[row], isr):
                return f"shows {name}-{partition} as {metadata}, ZooKeeper has leader {leaders[row]}, ISR {isr}"
            count += 1
    return None if count == len(cluster.keys) else f"shows {count} partitions of {len(cluster.keys)}"


def _roles_agree(cluster: LargeCluster, live: tuple[int, ...]) -> str | None:
    """Each replica goes by the leader and the epoch that ZooKeeper has, and every live one is there."""
    states = cluster.states()
    leaders, epochs = states.leader.tolist(), states.leader_epoch.tolist()
    count = 0
    for broker in live:
        node = cluster.node(broker)
        assert node is not None
        for partition in node.broker.replicas.partitions():
            row = cluster.rows[partition.topic, partition.index]
            if partition.leader != leaders[row] or partition.leader_epoch != epochs[row]:
                return f"broker {broker} has leader {partition.leader} for {cluster.name(row)}, not {leaders[row]}"
            count += 1
    replicas = int(np.count_nonzero(live_mask(cluster.assignment, live)))
    return None if count == replicas else f"{count} replicas have a role, {replicas} live"


CHECKS: tuple[Check, ...] = (_registered, _controller, _led, _context_agrees, _metadata_agrees, _roles_agree)
"""By their cost."""
