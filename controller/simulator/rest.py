"""What must hold once faults have stopped and the core of a cluster has come to rest; and whether it has.

Each check gives what is still missing, in words: a cluster at rest misses nothing, one that may still settle is looked
at again, and one that does not in its bounded time has violated the first check that still misses something. Looks into
the nodes themselves and into ZooKeeper's memory, which costs no request and disturbs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.broker.node import Node
from controller.broker.partition import Role
from controller.core.handlers.failover import WATCHED_NODES, WATCHED_PARENTS, is_watched_in_term
from controller.core.obstacles import epoch_in
from controller.core.partition_table import NO_STATE
from controller.protocol.versions import control_versions
from controller.scenarios.host import PartitionView
from controller.simulator.administrator import Administrator
from controller.simulator.broker_process import BrokerProcess
from controller.simulator.hand_edits import controller_named
from controller.simulator.host import SimulatedHost
from controller.simulator.observer import partitions
from controller.simulator.safety_checker import NOBODY, SafetyChecker
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    decode_broker_registration,
    decode_reassignments,
    decode_topic_assignment,
)
from controller.zookeeper.memory.server import InMemoryZooKeeper

ANSWER_LIMIT_MS = 12_000.0
"""How long any answer may take when nothing is wrong: every request of these runs says 5 s or less, but for the
controlled shutdown's, whose broker is gone by then."""


@dataclass(frozen=True, slots=True)
class Missing:
    invariant: str
    nodes: tuple[int, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class Rest:
    """What is looked at. `core`: the brokers that must come to rest, with each other and nobody else."""

    host: SimulatedHost
    core: Sequence[int]
    safety_checker: SafetyChecker
    administrator: Administrator
    _held: dict[int, dict[tuple[str, int], PartitionView]] = field(default_factory=dict)

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """As ZooKeeper has them; read once for each of its states, by zxid."""
        zxid = self.zookeeper.zxid
        if zxid not in self._held:
            self._held.clear()
            self._held[zxid] = partitions(self.zookeeper)
        return self._held[zxid]

    @property
    def zookeeper(self) -> InMemoryZooKeeper:
        return self.host.world.zookeeper

    def process(self, node: int) -> BrokerProcess | None:
        return self.host.processes.get(node)

    def node(self, node: int) -> Node | None:
        process = self.process(node)
        return process.node if process is not None and process.alive else None

    def registered(self) -> dict[int, int]:
        """Broker to session, as /brokers/ids has it."""
        found = {}
        for name in self.zookeeper.children(paths.BROKER_IDS) or ():
            row = self.zookeeper.row(paths.broker(int(name)))
            if row is not None:
                found[int(name)] = row.stat.ephemeral_owner
        return found

    def racks(self) -> dict[int, str | None]:
        """Broker to rack, as /brokers/ids has it; None where there is none."""
        found = {}
        for broker in self.registered():
            row = self.zookeeper.row(paths.broker(broker))
            assert row is not None
            found[broker] = decode_broker_registration(row.path, row.data).rack
        return found

    def serves(self, node: int, topic: str, partition: int) -> bool:
        """Whether it is of the core, and its replica lies in no log directory that is offline, as far as it knows."""
        inside = self.node(node) if node in self.core else None
        replica = None if inside is None else inside.broker.replicas.partition(topic, partition)
        return inside is not None and (replica is None or not replica.offline)

    def controller(self) -> int:
        return controller_named(self.zookeeper)


def missing(rest: Rest) -> Missing | None:
    """The first thing that a cluster at rest would not miss; None: it is at rest."""
    for check in CHECKS:
        found = next(check(rest), None)
        if found is not None:
            return found
    return None


def _registered(rest: Rest) -> Iterator[Missing]:
    """(8) The core's brokers are registered, each in the session of the life that it lives; nobody else is."""
    registered = rest.registered()
    for node in rest.core:
        process = rest.process(node)
        if process is None or not process.alive:
            yield Missing("converged", (node,), "its process does not run")
        elif registered.get(node, 0) == 0 or registered[node] != process.connection.session():
            yield Missing("converged", (node,), "it is not registered in its session")
    for node in registered:
        if node not in rest.core:
            yield Missing("converged", (node,), "it is outside the core, and registered still")


def _one_controller(rest: Rest) -> Iterator[Missing]:
    """(1), (8) /controller names one of the core, who leads in the latest epoch; nobody else of the core leads."""
    controller = rest.controller()
    if controller not in rest.core:
        yield Missing("converged", (), f"/controller names {controller}")
        return
    row = rest.zookeeper.row(paths.CONTROLLER_EPOCH)
    epoch = 0 if row is None else epoch_in(row)
    for node in rest.core:
        inside = rest.node(node)
        assert inside is not None
        if inside.controller.active != (node == controller):
            yield Missing("converged", (node,), f"it {'leads' if inside.controller.active else 'does not lead'}")
        elif inside.controller.active and inside.controller.controller_epoch != epoch:
            yield Missing("converged", (node,), f"it leads in epoch {inside.controller.controller_epoch}, not {epoch}")
        elif inside.controller.active_controller_id != controller:
            yield Missing(
                "converged", (node,), f"it takes {inside.controller.active_controller_id} for controller (S10)"
            )
    for node, open_epoch in rest.safety_checker.open_terms():
        if node in rest.core:
            yield Missing("old-terms-resigned", (node,), f"epoch {open_epoch} was never resigned")


def _led(rest: Rest) -> Iterator[Missing]:
    """(8) Every partition has a state if anybody of it lives, a leader if anybody of its ISR does, and an ISR of all
    that live."""
    for name in rest.zookeeper.children(paths.BROKER_TOPICS) or ():
        if rest.zookeeper.row(paths.delete_topic(name)) is not None:
            continue
        row = rest.zookeeper.row(paths.topic(name))
        assert row is not None
        for partition, replicas in decode_topic_assignment(row.path, row.data).partitions.items():
            there = any(rest.serves(replica, name, partition) for replica in replicas)
            if there and rest.zookeeper.row(paths.partition_state(name, partition)) is None:
                yield Missing("converged", (), f"{name}-{partition} has no state")
    for (name, partition), state in rest.partitions().items():
        if rest.zookeeper.row(paths.delete_topic(name)) is not None:
            continue
        live = [replica for replica in state.assignment if rest.serves(replica, name, partition)]
        where = f"{name}-{partition}: leader {state.leader}, ISR {list(state.isr)}, live {live}"
        if any(replica in state.isr for replica in live) and state.leader not in live:
            yield Missing("converged", (), f"{where}: it could be led")
        elif state.leader in live and any(replica not in state.isr for replica in live):
            yield Missing("converged", (state.leader,), f"{where}: its ISR could be larger")


def _deletions(rest: Rest) -> Iterator[Missing]:
    """(8) A topic is deleted once all of its replicas live. What was answered is so (S19, S56)."""
    topics = rest.zookeeper.children(paths.BROKER_TOPICS) or ()
    for name in rest.zookeeper.children(paths.DELETE_TOPICS) or ():
        row = rest.zookeeper.row(paths.topic(name))
        there = {} if row is None else decode_topic_assignment(row.path, row.data).partitions
        if all(rest.serves(replica, name, one) for one, replicas in there.items() for replica in replicas):
            yield Missing("converged", (), f"{name} is still to be deleted")
    for name, count in rest.administrator.must_exist().items():
        row = rest.zookeeper.row(paths.topic(name))
        held = 0 if row is None else len(decode_topic_assignment(row.path, row.data).partitions)
        if held < count:
            yield Missing("acknowledged-operations", (), f"{name} has {held} partitions, {count} were acknowledged")
    for name in rest.administrator.must_be_gone():
        if name in topics and rest.zookeeper.row(paths.delete_topic(name)) is None:
            yield Missing("acknowledged-operations", (), f"{name} is there, and its deletion was acknowledged")


def _reassignments(rest: Rest) -> Iterator[Missing]:
    """(8) A partition arrives once it is led and all of its target lives; what waited for its turn has had it then,
    unless the controller is paused: so has what was asked for by the znode of preferred elections."""
    for name in rest.zookeeper.children(paths.BROKER_TOPICS) or ():
        row = rest.zookeeper.row(paths.topic(name))
        assert row is not None
        found = decode_topic_assignment(row.path, row.data)
        for partition in sorted(found.adding.keys() | found.removing.keys()):
            removing = found.removing.get(partition, ())
            target = [replica for replica in found.partitions[partition] if replica not in removing]
            state = rest.partitions().get((name, partition))
            there = all(rest.serves(replica, name, partition) for replica in target)
            if there and state is not None and state.leader in rest.core:
                yield Missing("converged", (), f"{name}-{partition} is still on its way to {target}")
    yield from _arrived(rest)
    if rest.zookeeper.row(paths.CONTROLLER_PAUSE) is not None:
        return
    if rest.zookeeper.row(paths.PREFERRED_ELECTION) is not None:
        yield Missing("converged", (), "preferred leaders are asked for still")
    asked = rest.zookeeper.row(paths.REASSIGN_PARTITIONS)
    if asked is not None:
        for (name, partition), target_asked in decode_reassignments(asked.path, asked.data).replicas.items():
            if all(rest.serves(replica, name, partition) for replica in target_asked) and not _is_any_moving(rest):
                yield Missing("converged", (), f"{name}-{partition} waits to go to {list(target_asked)}")


def _arrived(rest: Rest) -> Iterator[Missing]:
    """Whoever was told that a partition is on its way finds it there, if it is on no way any more."""
    asked = rest.zookeeper.row(paths.REASSIGN_PARTITIONS)
    waiting = () if asked is None else decode_reassignments(asked.path, asked.data).replicas
    for (name, partition), target in rest.administrator.must_be_on().items():
        row = rest.zookeeper.row(paths.topic(name))
        found = None if row is None else decode_topic_assignment(row.path, row.data)
        if found is None or partition not in found.partitions or (name, partition) in waiting:
            continue
        is_moving = partition in found.adding or partition in found.removing
        if not is_moving and found.partitions[partition] != target:
            where = f"{name}-{partition} is on {list(found.partitions[partition])}"
            yield Missing("acknowledged-operations", (), f"{where}, it was sent to {list(target)}")


def _is_any_moving(rest: Rest) -> bool:
    """Whether a target that is dead holds up those that wait."""
    inside = rest.node(rest.controller())
    term = None if inside is None else inside.controller.term
    return term is not None and bool(term.context.partitions.moving_rows())


def _context_agrees(rest: Rest) -> Iterator[Missing]:
    """(7) The controller's context is what ZooKeeper holds."""
    controller = rest.controller()
    inside = rest.node(controller)
    assert inside is not None
    term = inside.controller.term
    assert term is not None
    table, held = term.context.partitions, rest.partitions()
    known: dict[tuple[str, int], PartitionView] = {}
    for row in range(len(table)):
        if table.zk_version[row] != NO_STATE:
            known[table.topic_and_partition(row)] = PartitionView(
                int(table.leader[row]),
                table.isr_of(row),
                table.assignment_of(row),
                int(table.leader_epoch[row]),
                int(table.controller_epoch[row]),
            )
    for key in sorted(known.keys() | held.keys()):
        if known.get(key) != held.get(key):
            yield Missing(
                "context-agrees",
                (controller,),
                f"{key[0]}-{key[1]}: the controller has {known.get(key)}, ZooKeeper {held.get(key)}",
            )
    if term.context.broker_ids != tuple(rest.core):
        yield Missing("context-agrees", (controller,), f"brokers {list(term.context.broker_ids)} live in its context")
    if inside.events.__len__():
        yield Missing("converged", (controller,), f"{len(inside.events)} events wait")


def _metadata_agrees(rest: Rest) -> Iterator[Missing]:
    """(7) What each broker would answer a client is what ZooKeeper holds; and what it does itself is that too. A topic
    whose deletion waits for a dead broker is left out: a new controller tells nobody of it, as Kafka's does not."""
    going = rest.zookeeper.children(paths.DELETE_TOPICS) or ()
    held = {key: state for key, state in rest.partitions().items() if key[0] not in going}
    for node in rest.core:
        inside = rest.node(node)
        assert inside is not None
        snapshot = inside.broker.metadata.snapshot
        if sorted(snapshot.brokers) != sorted(rest.core) or snapshot.controller_id != rest.controller():
            yield Missing(
                "metadata-agrees",
                (node,),
                f"it knows brokers {sorted(snapshot.brokers)} and controller {snapshot.controller_id}",
            )
        for broker, known in snapshot.brokers.items():
            rack = rest.racks().get(broker)
            if known.rack != rack:
                yield Missing("metadata-agrees", (node,), f"it shows broker {broker} in {known.rack}, not in {rack}")
        shown = {
            (topic, number): (state.leader, tuple(state.isr), state.leader_epoch)
            for topic, states in snapshot.topics.items()
            if topic not in going
            for number, state in states.items()
        }
        for key in sorted(shown.keys() | held.keys()):
            state = held.get(key)
            expected = None if state is None else (state.leader, state.isr, state.leader_epoch)
            if shown.get(key) != expected:
                yield Missing(
                    "metadata-agrees", (node,), f"{key[0]}-{key[1]}: it shows {shown.get(key)}, ZooKeeper {expected}"
                )
        yield from _roles_agree(rest, node, inside, held)


def _roles_agree(
    rest: Rest, node: int, inside: Node, held: Mapping[tuple[str, int], PartitionView]
) -> Iterator[Missing]:
    """Whoever ZooKeeper says leads does, in that epoch, and nobody else."""
    for partition in inside.broker.replicas.partitions():
        state = held.get((partition.topic, partition.index))
        leads = partition.role is Role.LEADER and not partition.offline
        leads = leads and rest.zookeeper.row(paths.delete_topic(partition.topic)) is None
        if leads and (state is None or state.leader != node):
            yield Missing("roles-agree", (node,), f"it leads {partition.topic}-{partition.index}: {state}")
    for (topic, index), state in held.items():
        if node in state.assignment and state.leader != NOBODY:
            mine = inside.broker.replicas.partition(topic, index)
            if mine is not None and mine.offline:
                continue
            known = None if mine is None else (mine.leader, mine.leader_epoch)
            if known != (state.leader, state.leader_epoch):
                yield Missing("roles-agree", (node,), f"{topic}-{index}: it goes by {known}, ZooKeeper has {state}")


def _watches(rest: Rest) -> Iterator[Missing]:
    """(6) The watches are what the role needs: no fewer at the server, no more in the node's table."""
    for node in rest.core:
        process, inside = rest.process(node), rest.node(node)
        assert process is not None
        assert inside is not None
        needed = {("node", paths.CONTROLLER)}
        if inside.controller.active:
            needed |= {("children", parent) for parent, _ in WATCHED_PARENTS}
            needed |= {("node", path) for path, _ in WATCHED_NODES}
            needed |= {("node", paths.broker(broker)) for broker in rest.core}
            topics = rest.zookeeper.children(paths.BROKER_TOPICS) or ()
            needed |= {("node", paths.topic(name)) for name in topics}
            if control_versions(inside.settings.inter_broker_protocol).alter_isr is None:
                needed |= {("node", path) for name in topics for path in _moving_states(rest, name)}
        armed = rest.zookeeper.watched(process.connection.session())
        table = inside.client.watched()
        fewer = sorted(needed - armed)
        more = sorted(one for one in table - needed if is_watched_in_term(one[1]))
        if fewer or more:
            yield Missing("watches-fit-the-role", (node,), f"watches missing: {fewer}, too many: {more}")


def _moving_states(rest: Rest, topic: str) -> Iterator[str]:
    """The states of a topic's partitions that are being reassigned: below inter-broker protocol 2.7 nothing else says
    that a replica has come into sync."""
    row = rest.zookeeper.row(paths.topic(topic))
    if row is not None:
        found = decode_topic_assignment(row.path, row.data)
        for partition in sorted({*found.adding, *found.removing}):
            if rest.zookeeper.row(paths.partition_state(topic, partition)) is not None:
                yield paths.partition_state(topic, partition)


def _answered(rest: Rest) -> Iterator[Missing]:
    """(4) Nothing has waited for its answer for longer than any may."""
    for node in rest.core:
        process = rest.process(node)
        assert process is not None
        for waiting in process.unanswered():
            if waiting.waiting_ms > ANSWER_LIMIT_MS:
                yield Missing("answered-once", (node,), f"{waiting.api} unanswered for {waiting.waiting_ms:.0f} ms")


CHECKS: tuple[Callable[[Rest], Iterator[Missing]], ...] = (
    _registered,
    _one_controller,
    _led,
    _deletions,
    _reassignments,
    _context_agrees,
    _metadata_agrees,
    _watches,
    _answered,
)
