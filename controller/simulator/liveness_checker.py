"""Liveness checks: the conditions that must hold once faults have ended and the core brokers are quiescent.

Each check yields the conditions that do not hold yet, in words. A quiescent cluster has none. A cluster that may still
settle is checked again; if it does not become quiescent within its bound, the first check with an unmet condition is
the violated invariant. The checks read the nodes and ZooKeeper's memory directly, so they send no requests and disturb
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.broker.node import Node
from controller.broker.partition import Role
from controller.core.context import NO_STATE
from controller.core.handlers.failover import WATCHED_NODES, WATCHED_PARENTS, is_watched_in_term
from controller.core.leadership import epoch_in
from controller.protocol.codec import control_versions
from controller.scenarios.checkers import leaderless, metadata_differences
from controller.scenarios.host import PartitionView
from controller.simulator.administrator import Administrator
from controller.simulator.broker_process import SimulatedBroker
from controller.simulator.host import SimulatedHost
from controller.simulator.observer import controller_named, partitions
from controller.simulator.safety_checker import NOBODY, SafetyChecker
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_broker_registration, decode_reassignments, decode_topic_assignment
from controller.zookeeper.memory.server import InMemoryZooKeeper

ANSWER_LIMIT_MS = 12_000.0
"""The longest response time in a healthy cluster. Every request of these runs has a timeout of 5 s or less, except the
controlled shutdown's, whose broker has ended by then."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A condition of a quiescent cluster that does not hold."""

    invariant: str
    nodes: tuple[int, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class LivenessChecker:
    """Liveness checks of one host. `core`: the brokers that must become quiescent, without any other broker."""

    host: SimulatedHost
    core: Sequence[int]
    safety_checker: SafetyChecker
    administrator: Administrator
    _held: dict[int, dict[tuple[str, int], PartitionView]] = field(default_factory=dict)

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """Return the partitions in ZooKeeper, cached by zxid."""
        zxid = self.zookeeper.zxid
        if zxid not in self._held:
            self._held.clear()
            self._held[zxid] = partitions(self.zookeeper)
        return self._held[zxid]

    @property
    def zookeeper(self) -> InMemoryZooKeeper:
        return self.host.world.zookeeper

    def process(self, node: int) -> SimulatedBroker | None:
        return self.host.processes.get(node)

    def node(self, node: int) -> Node | None:
        process = self.process(node)
        return process.node if process is not None and process.alive else None

    def registered(self) -> dict[int, int]:
        """Return the session of each broker in /brokers/ids."""
        found = {}
        for name in self.zookeeper.children(paths.BROKER_IDS) or ():
            row = self.zookeeper.row(paths.broker(int(name)))
            if row is not None:
                found[int(name)] = row.stat.ephemeral_owner
        return found

    def racks(self) -> dict[int, str | None]:
        """Return the rack of each broker in /brokers/ids; None where it has none."""
        found = {}
        for broker in self.registered():
            row = self.zookeeper.row(paths.broker(broker))
            assert row is not None
            found[broker] = decode_broker_registration(row.path, row.data).rack
        return found

    def serves(self, node: int, topic: str, partition: int) -> bool:
        """Return True if the broker is in the core and knows of no offline log directory that holds its replica."""
        inside = self.node(node) if node in self.core else None
        replica = None if inside is None else inside.broker.replicas.partition(topic, partition)
        return inside is not None and (replica is None or not replica.offline)

    def controller(self) -> int:
        return controller_named(self.zookeeper)

    def first_unmet(self) -> Unmet | None:
        """Return the first condition of a quiescent cluster that does not hold; None if the cluster is quiescent."""
        for check in CHECKS:
            found = next(check(self), None)
            if found is not None:
                return found
        return None


def _registered(checker: LivenessChecker) -> Iterator[Unmet]:
    """(8) The core brokers are registered, each in the session of its current incarnation; no other broker is."""
    registered = checker.registered()
    for node in checker.core:
        process = checker.process(node)
        if process is None or not process.alive:
            yield Unmet("converged", (node,), "its process does not run")
        elif process.stopping:
            yield Unmet("converged", (node,), "it was asked to shut down before the calm, and has not ended")
        elif registered.get(node, 0) == 0 or registered[node] != process.connection.session():
            yield Unmet("converged", (node,), "it is not registered in its session")
    for node in registered:
        if node not in checker.core:
            yield Unmet("converged", (node,), "it is outside the core, and registered still")


def _one_controller(checker: LivenessChecker) -> Iterator[Unmet]:
    """(1), (8) /controller names a core broker that is active in the latest epoch; no other core broker is active."""
    controller = checker.controller()
    if controller not in checker.core:
        yield Unmet("converged", (), f"/controller names {controller}")
        return
    row = checker.zookeeper.row(paths.CONTROLLER_EPOCH)
    epoch = 0 if row is None else epoch_in(row)
    for node in checker.core:
        inside = checker.node(node)
        assert inside is not None
        if inside.controller.active != (node == controller):
            yield Unmet("converged", (node,), f"it {'leads' if inside.controller.active else 'does not lead'}")
        elif inside.controller.active and inside.controller.controller_epoch != epoch:
            yield Unmet("converged", (node,), f"it leads in epoch {inside.controller.controller_epoch}, not {epoch}")
        elif inside.controller.active_controller_id != controller:
            yield Unmet("converged", (node,), f"it takes {inside.controller.active_controller_id} for controller (S10)")
    for node, problem in checker.safety_checker.unresigned(checker.core):
        yield Unmet("old-terms-resigned", (node,), problem)


def _led(checker: LivenessChecker) -> Iterator[Unmet]:
    """(8) A partition with a live replica has a state, one with a live ISR member has a leader, and each ISR contains
    all live replicas."""
    for name in checker.zookeeper.children(paths.BROKER_TOPICS) or ():
        if checker.zookeeper.row(paths.delete_topic(name)) is not None:
            continue
        row = checker.zookeeper.row(paths.topic(name))
        assert row is not None
        for partition, replicas in decode_topic_assignment(row.path, row.data).partitions.items():
            there = any(checker.serves(replica, name, partition) for replica in replicas)
            if there and checker.zookeeper.row(paths.partition_state(name, partition)) is None:
                yield Unmet("converged", (), f"{name}-{partition} has no state")
    staying = {
        key: state
        for key, state in checker.partitions().items()
        if checker.zookeeper.row(paths.delete_topic(key[0])) is None
    }
    for problem in leaderless(staying, checker.serves):
        yield Unmet("converged", (), problem)
    for (name, partition), state in staying.items():
        live = [replica for replica in state.assignment if checker.serves(replica, name, partition)]
        if state.leader in live and any(replica not in state.isr for replica in live):
            where = f"{name}-{partition}: leader {state.leader}, ISR {list(state.isr)}, live {live}"
            yield Unmet("converged", (state.leader,), f"{where}: its ISR could be larger")


def _deletions(checker: LivenessChecker) -> Iterator[Unmet]:
    """(8) A topic is deleted once all of its replicas are live. Acknowledged operations took effect (S19, S56)."""
    topics = checker.zookeeper.children(paths.BROKER_TOPICS) or ()
    for name in checker.zookeeper.children(paths.DELETE_TOPICS) or ():
        row = checker.zookeeper.row(paths.topic(name))
        there = {} if row is None else decode_topic_assignment(row.path, row.data).partitions
        if all(checker.serves(replica, name, one) for one, replicas in there.items() for replica in replicas):
            yield Unmet("converged", (), f"{name} is still to be deleted")
    for name, count in checker.administrator.must_exist().items():
        row = checker.zookeeper.row(paths.topic(name))
        held = 0 if row is None else len(decode_topic_assignment(row.path, row.data).partitions)
        if held < count:
            yield Unmet("acknowledged-operations", (), f"{name} has {held} partitions, {count} were acknowledged")
    for name in checker.administrator.must_be_gone():
        if name in topics and checker.zookeeper.row(paths.delete_topic(name)) is None:
            yield Unmet("acknowledged-operations", (), f"{name} is there, and its deletion was acknowledged")


def _reassignments(checker: LivenessChecker) -> Iterator[Unmet]:
    """(8) A reassignment completes once the partition has a leader and all target replicas are live. Queued requests
    have been carried out by then, unless the controller is paused; so have those of the preferred election znode."""
    for name in checker.zookeeper.children(paths.BROKER_TOPICS) or ():
        row = checker.zookeeper.row(paths.topic(name))
        assert row is not None
        found = decode_topic_assignment(row.path, row.data)
        for partition in sorted(found.adding.keys() | found.removing.keys()):
            removing = found.removing.get(partition, ())
            target = [replica for replica in found.partitions[partition] if replica not in removing]
            state = checker.partitions().get((name, partition))
            there = all(checker.serves(replica, name, partition) for replica in target)
            if there and state is not None and state.leader in checker.core:
                yield Unmet("converged", (), f"{name}-{partition} is still on its way to {target}")
    yield from _arrived(checker)
    if checker.zookeeper.row(paths.CONTROLLER_PAUSE) is not None:
        return
    if checker.zookeeper.row(paths.PREFERRED_ELECTION) is not None:
        yield Unmet("converged", (), "preferred leaders are asked for still")
    asked = checker.zookeeper.row(paths.REASSIGN_PARTITIONS)
    if asked is not None:
        for (name, partition), target_asked in decode_reassignments(asked.path, asked.data).replicas.items():
            if all(checker.serves(replica, name, partition) for replica in target_asked) and not _is_any_moving(
                checker
            ):
                yield Unmet("converged", (), f"{name}-{partition} waits to go to {list(target_asked)}")


def _arrived(checker: LivenessChecker) -> Iterator[Unmet]:
    """A partition whose reassignment was acknowledged is on its target, unless it is still being reassigned."""
    asked = checker.zookeeper.row(paths.REASSIGN_PARTITIONS)
    waiting = () if asked is None else decode_reassignments(asked.path, asked.data).replicas
    for (name, partition), target in checker.administrator.must_be_on().items():
        row = checker.zookeeper.row(paths.topic(name))
        found = None if row is None else decode_topic_assignment(row.path, row.data)
        if found is None or partition not in found.partitions or (name, partition) in waiting:
            continue
        is_moving = partition in found.adding or partition in found.removing
        if not is_moving and found.partitions[partition] != target:
            where = f"{name}-{partition} is on {list(found.partitions[partition])}"
            yield Unmet("acknowledged-operations", (), f"{where}, it was sent to {list(target)}")


def _is_any_moving(checker: LivenessChecker) -> bool:
    """Return True if a reassignment with a dead target replica blocks the queued ones."""
    inside = checker.node(checker.controller())
    term = None if inside is None else inside.controller.term
    return term is not None and bool(term.context.partitions.moving_rows())


def _context_agrees(checker: LivenessChecker) -> Iterator[Unmet]:
    """(7) The controller's context agrees with ZooKeeper."""
    controller = checker.controller()
    inside = checker.node(controller)
    assert inside is not None
    term = inside.controller.term
    assert term is not None
    table, held = term.context.partitions, checker.partitions()
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
            yield Unmet(
                "context-agrees",
                (controller,),
                f"{key[0]}-{key[1]}: the controller has {known.get(key)}, ZooKeeper {held.get(key)}",
            )
    if term.context.broker_ids != tuple(checker.core):
        yield Unmet("context-agrees", (controller,), f"brokers {list(term.context.broker_ids)} live in its context")
    if inside.events.__len__():
        yield Unmet("converged", (controller,), f"{len(inside.events)} events wait")


def _metadata_agrees(checker: LivenessChecker) -> Iterator[Unmet]:
    """(7) Each broker's metadata and its own replica roles agree with ZooKeeper. A topic whose deletion waits for a
    dead broker is not compared: a new controller sends no broker its state, and neither does Kafka's."""
    going = checker.zookeeper.children(paths.DELETE_TOPICS) or ()
    held = {key: state for key, state in checker.partitions().items() if key[0] not in going}
    expected = {key: (state.leader, state.isr, state.leader_epoch) for key, state in held.items()}
    for node in checker.core:
        inside = checker.node(node)
        assert inside is not None
        snapshot = inside.broker.metadata.snapshot
        if sorted(snapshot.brokers) != sorted(checker.core) or snapshot.controller_id != checker.controller():
            yield Unmet(
                "metadata-agrees",
                (node,),
                f"it knows brokers {sorted(snapshot.brokers)} and controller {snapshot.controller_id}",
            )
        for broker, known in snapshot.brokers.items():
            rack = checker.racks().get(broker)
            if known.rack != rack:
                yield Unmet("metadata-agrees", (node,), f"it shows broker {broker} in {known.rack}, not in {rack}")
        shown = {
            (topic, number): (state.leader, tuple(state.isr), state.leader_epoch)
            for topic, states in snapshot.topics.items()
            if topic not in going
            for number, state in states.items()
        }
        for problem in metadata_differences(shown, expected):
            yield Unmet("metadata-agrees", (node,), problem)
        yield from _roles_agree(checker, node, inside, held)


def _roles_agree(
    checker: LivenessChecker, node: int, inside: Node, held: Mapping[tuple[str, int], PartitionView]
) -> Iterator[Unmet]:
    """The leader in ZooKeeper leads in that leader epoch, and no other replica leads."""
    for partition in inside.broker.replicas.partitions():
        state = held.get((partition.topic, partition.index))
        leads = partition.role is Role.LEADER and not partition.offline
        leads = leads and checker.zookeeper.row(paths.delete_topic(partition.topic)) is None
        if leads and (state is None or state.leader != node):
            yield Unmet("roles-agree", (node,), f"it leads {partition.topic}-{partition.index}: {state}")
    for (topic, index), state in held.items():
        if node in state.assignment and state.leader != NOBODY:
            mine = inside.broker.replicas.partition(topic, index)
            if mine is not None and mine.offline:
                continue
            known = None if mine is None else (mine.leader, mine.leader_epoch)
            if known != (state.leader, state.leader_epoch):
                yield Unmet("roles-agree", (node,), f"{topic}-{index}: it goes by {known}, ZooKeeper has {state}")


def _watches(checker: LivenessChecker) -> Iterator[Unmet]:
    """(6) The watches fit the role: none is missing at the server, and none is superfluous in the node's table."""
    for node in checker.core:
        process, inside = checker.process(node), checker.node(node)
        assert process is not None
        assert inside is not None
        needed = {("node", paths.CONTROLLER)}
        if inside.controller.active:
            needed |= {("children", parent) for parent, _ in WATCHED_PARENTS}
            needed |= {("node", path) for path, _ in WATCHED_NODES}
            needed |= {("node", paths.broker(broker)) for broker in checker.core}
            topics = checker.zookeeper.children(paths.BROKER_TOPICS) or ()
            needed |= {("node", paths.topic(name)) for name in topics}
            if control_versions(inside.settings.inter_broker_protocol).alter_isr is None:
                needed |= {("node", path) for name in topics for path in _moving_states(checker, name)}
        armed = checker.zookeeper.watched(process.connection.session())
        table = inside.client.watched()
        fewer = sorted(needed - armed)
        more = sorted(one for one in table - needed if is_watched_in_term(one[1]))
        if fewer or more:
            yield Unmet("watches-fit-the-role", (node,), f"watches missing: {fewer}, too many: {more}")


def _moving_states(checker: LivenessChecker, topic: str) -> Iterator[str]:
    """Yield the state znodes of a topic's partitions that are being reassigned. Below inter-broker protocol 2.7 they
    are the only notice that a replica has joined the ISR."""
    row = checker.zookeeper.row(paths.topic(topic))
    if row is not None:
        found = decode_topic_assignment(row.path, row.data)
        for partition in sorted({*found.adding, *found.removing}):
            if checker.zookeeper.row(paths.partition_state(topic, partition)) is not None:
                yield paths.partition_state(topic, partition)


def _answered(checker: LivenessChecker) -> Iterator[Unmet]:
    """(4) No request has waited for its response longer than `ANSWER_LIMIT_MS`."""
    for node in checker.core:
        process = checker.process(node)
        assert process is not None
        for waiting in process.unanswered():
            if waiting.waiting_ms > ANSWER_LIMIT_MS:
                yield Unmet("answered-once", (node,), f"{waiting.api} unanswered for {waiting.waiting_ms:.0f} ms")


CHECKS: tuple[Callable[[LivenessChecker], Iterator[Unmet]], ...] = (
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
