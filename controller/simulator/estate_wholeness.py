"""Convergence checks of a large cluster: every partition has a leader, every ISR is full, all agree with ZooKeeper.

The checks are those of `liveness_checker.py`, made fast enough for a thousand brokers and some hundred thousand
partitions: they compare states in columns, and examine a metadata image that several brokers share only once. Cheap
checks come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from controller.broker.metadata.metadata_cache import Partitions
from controller.broker.node import Node
from controller.core.partition_table import NO_BROKER, Bools, Int32s, padded
from controller.core.term import Term
from controller.simulator.hand_edits import controller_named
from controller.simulator.host import SimulatedHost
from controller.zookeeper import paths
from controller.zookeeper.codecs_columns import PartitionStateColumns, decode_partition_states
from statemachines.leader_election_columns import live_mask

Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class Estate:
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


Check: TypeAlias = Callable[[Estate, tuple[int, ...]], str | None]


def missing(estate: Estate, live: Sequence[int]) -> str | None:
    """What the brokers `live`, and no others, still lack to be whole, in words; None: nothing."""
    among = tuple(sorted(live))
    for check in CHECKS:
        found = check(estate, among)
        if found is not None:
            return found
    return None


def _registered(estate: Estate, live: tuple[int, ...]) -> str | None:
    names = estate.host.world.zookeeper.children(paths.BROKER_IDS) or ()
    registered = sorted(int(name) for name in names)
    return None if registered == list(live) else f"{len(registered)} brokers are registered, {len(live)} live"


def _term(estate: Estate) -> Term | None:
    controller = controller_named(estate.host.world.zookeeper)
    node = None if controller < 0 else estate.node(controller)
    return None if node is None else node.controller.term


def _controller(estate: Estate, live: tuple[int, ...]) -> str | None:
    """It knows who lives, has nothing left to do, and every request that it sent was answered."""
    term = _term(estate)
    if term is None:
        return "no active controller"
    node = estate.node(term.broker_id)
    assert node is not None
    if term.context.broker_ids != live:
        return f"controller {term.broker_id} knows {len(term.context.broker_ids)} brokers"
    if len(node.events) or term.requests.unanswered:
        return f"controller {term.broker_id}: {len(node.events)} events, {term.requests.unanswered} requests unanswered"
    others = [broker for broker in live if _takes_for_controller(estate, broker) != term.broker_id]
    return f"brokers {others[:10]} take another than {term.broker_id} for controller" if others else None


def _takes_for_controller(estate: Estate, broker: int) -> int | None:
    node = estate.node(broker)
    return None if node is None else node.controller.active_controller_id


def _led(estate: Estate, live: tuple[int, ...]) -> str | None:
    """Every partition of which a replica lives is led, and its ISR is all of its replicas that live."""
    states = estate.states()
    alive = live_mask(estate.assignment, live)
    if not states.present.all():
        return f"{estate.name(int(np.flatnonzero(~states.present)[0]))} has no state"
    unled = alive.any(axis=1) & ~live_mask(states.leader, live)
    if unled.any():
        row = int(np.flatnonzero(unled)[0])
        return f"{np.count_nonzero(unled)} partitions are not led, {estate.name(row)} by {states.leader[row]}"
    wanted = np.sort(np.where(alive, estate.assignment, NO_BROKER), axis=1)
    narrow: Bools = (np.sort(states.isr, axis=1) != wanted).any(axis=1)
    if narrow.any():
        row = int(np.flatnonzero(narrow)[0])
        isr = states.isr[row].tolist()
        return f"{np.count_nonzero(narrow)} ISRs are not all that live, {estate.name(row)}'s is {isr}"
    return None


def _context_agrees(estate: Estate, live: tuple[int, ...]) -> str | None:
    """The controller's context is what ZooKeeper holds."""
    term, states = _term(estate), estate.states()
    assert term is not None
    table = term.context.partitions
    if len(table) != len(estate.keys) or term.context.offline_partitions:
        return f"the controller knows {len(table)} partitions, {term.context.offline_partitions} of them offline"
    order = np.array([estate.rows[table.topic_and_partition(row)] for row in range(len(table))], np.int64)
    pairs = (
        (table.leader, states.leader),
        (table.leader_epoch, states.leader_epoch),
        (table.zk_version, states.versions),
        (table.isr, states.isr),
    )
    for mine, held in pairs:
        other = mine != held[order]
        if other.any():
            where = estate.name(int(order[int(np.flatnonzero(other.reshape(len(table), -1).any(axis=1))[0])]))
            return f"{where} is another in the controller's context than in ZooKeeper"
    return None


def _metadata_agrees(estate: Estate, live: tuple[int, ...]) -> str | None:
    """What each broker would tell a client is what ZooKeeper holds."""
    term = _term(estate)
    assert term is not None
    seen: dict[int, Mapping[str, Partitions]] = {}
    for broker in live:
        node = estate.node(broker)
        assert node is not None
        snapshot = node.broker.metadata.snapshot
        if id(snapshot.brokers) not in seen and tuple(sorted(snapshot.brokers)) != live:
            return f"broker {broker} knows {len(snapshot.brokers)} brokers"
        if snapshot.controller_id != term.broker_id:
            return f"broker {broker} reports controller {snapshot.controller_id}"
        if id(snapshot.topics) not in seen:
            seen[id(snapshot.topics)] = snapshot.topics
            found = _shows_another(estate, snapshot.topics)
            if found is not None:
                return f"broker {broker} {found}"
    return None


def _shows_another(estate: Estate, topics: Mapping[str, Partitions]) -> str | None:
    states = estate.states()
    leaders, epochs, versions = states.leader.tolist(), states.leader_epoch.tolist(), states.versions.tolist()
    isrs = states.isr.tolist()
    count = 0
    for name, partitions in topics.items():
        for partition, shown in partitions.items():
            row = estate.rows.get((name, partition))
            if row is None:
                return f"shows {name}-{partition}, which there is not"
            isr = [member for member in isrs[row] if member != NO_BROKER]
            metadata = (shown.leader, shown.leader_epoch, shown.zk_version, list(shown.isr))
            if metadata != (leaders[row], epochs[row], versions[row], isr):
                return f"shows {name}-{partition} as {metadata}, ZooKeeper has leader {leaders[row]}, ISR {isr}"
            count += 1
    return None if count == len(estate.keys) else f"shows {count} partitions of {len(estate.keys)}"


def _roles_agree(estate: Estate, live: tuple[int, ...]) -> str | None:
    """Each replica goes by the leader and the epoch that ZooKeeper has, and every live one is there."""
    states = estate.states()
    leaders, epochs = states.leader.tolist(), states.leader_epoch.tolist()
    count = 0
    for broker in live:
        node = estate.node(broker)
        assert node is not None
        for partition in node.broker.replicas.partitions():
            row = estate.rows[partition.topic, partition.index]
            if partition.leader != leaders[row] or partition.leader_epoch != epochs[row]:
                return f"broker {broker} has leader {partition.leader} for {estate.name(row)}, not {leaders[row]}"
            count += 1
    replicas = int(np.count_nonzero(live_mask(estate.assignment, live)))
    return None if count == replicas else f"{count} replicas have a role, {replicas} live"


CHECKS: tuple[Check, ...] = (
    _registered,
    _controller,
    _led,
    _context_agrees,
    _metadata_agrees,
    _roles_agree,
)
"""By their cost."""
