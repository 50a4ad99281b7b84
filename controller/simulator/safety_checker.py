"""Safety checks of a simulated run: what must hold at every moment, checked as it happens.

The checker watches two places. It checks each write as ZooKeeper applies it, in transaction order and whichever session
sent it, so that it knows what a term wrote even if the response never arrived. And it checks each event of the trace.
Conditions that must hold only when the cluster is quiescent are in `liveness_checker.py`. The numbers in docstrings are
those of the list in `docs/scenarios.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller.core.leadership import HIGHEST_EPOCH
from controller.scenarios.checkers import (
    KEPT_ALIKE,
    Checker,
    ElectionOrder,
    OnEvent,
    RequestOrder,
    StateSoundness,
    StateWrite,
    TermEnds,
    Violated,
)
from controller.scenarios.faults import expected_errors, kind_of
from controller.scenarios.language import Happening
from controller.simulator.fencing import Fencing
from controller.trace import (
    BrokerRegistered,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    Noted,
    PartitionMoved,
    PartitionStateWritten,
    ReplicaRoleApplied,
    RequestSent,
    SessionStarted,
    TraceEvent,
)
from controller.trace_records import Recorder, TraceRecord
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    NOTHING_KEPT,
    PartitionStateZnode,
    TopicAssignment,
    decode_controller_epoch,
    decode_partition_state,
    decode_topic_assignment,
    id_in_digits,
)
from controller.zookeeper.codecs_columns import sound_partition_state, state_fault
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Check, Create, DamagedZnode, Delete, SetData, Write
from statemachines.replica import ReplicaState

INVARIANT = "moves-by-choice"
ELECTIONS = frozenset({"initial", "offline", "controlled shutdown", "reassigned", "preferred"})
GIVEN_BACK = "partitions go back to their preferred leaders"
SHUTTING_DOWN = re.compile(r"\[controller \d+, epoch (\d+)\] broker (\d+) is shutting down.*")
ALL_MOVED = "controlled shutdown: everything was moved"


class ByChoice:
    """`violated`: the invariant, whose doing it was, in words."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._paused_in: int | None = None
        self._moving: dict[str, frozenset[int]] = {}
        self._going: dict[int, tuple[int, int]] = {}
        """Brokers that shut down, with the controller that was asked and its epoch; another controller may come to have
        the same epoch, if an administrator lowers it."""
        self._unnotified: dict[int, str] = {}
        self._replicas: dict[str, dict[int, tuple[int, ...]]] = {}
        self._known: dict[int, tuple[int, int]] = {}  # in which epoch it was sent something, and its incarnation
        self._stopped: dict[int, tuple[int, int]] = {}  # the same of StopReplica

    # -- ZooKeeper's writes; `epoch` and `winner`: the present controller's

    def committed(self, operation: Write, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None = None) -> None:
        path = operation.path
        if path == paths.CONTROLLER_PAUSE:
            if isinstance(operation, Create):
                self._paused_in = epoch
            elif isinstance(operation, Delete):
                self._paused_in = None
        elif path.startswith(paths.BROKER_TOPICS) and path.count("/") == 3:
            if isinstance(operation, Create | SetData):
                self._topic_written(operation, epoch, winner, zookeeper)
            elif isinstance(operation, Delete):
                self._moving.pop(path, None)
                self._replicas.pop(path, None)

    def _topic_written(
        self, operation: Create | SetData, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None
    ) -> None:
        topic = decode_topic_assignment(operation.path, operation.data)
        moving = moving_of(topic)
        before, self._replicas[operation.path] = self._replicas.get(operation.path, {}), dict(topic.partitions)
        for partition, replicas in before.items():
            for broker in replicas:
                if broker not in topic.partitions.get(partition, (broker,)):
                    self._removed(broker, operation.path, epoch, winner, zookeeper)
                    self._left_in_isr(broker, operation.path, partition, winner, zookeeper)
        begun = moving - self._moving.get(operation.path, frozenset())
        self._moving[operation.path] = moving
        if begun and self._is_paused_before(epoch):
            where = operation.path.rpartition("/")[2]
            self._violated(
                INVARIANT, [winner], f"a reassignment of {where} {sorted(begun)} begins, though it is paused"
            )

    def _removed(self, broker: int, path: str, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None) -> None:
        row = None if zookeeper is None else zookeeper.row(paths.broker(broker))
        if row is None or self._known.get(broker) != (epoch, row.stat.czxid):
            return
        if self._stopped.get(broker) != self._known[broker]:
            where = path.rpartition("/")[2]
            self._violated(INVARIANT, [winner], f"{where} leaves broker {broker}, which was never sent StopReplica")

    def _left_in_isr(
        self, broker: int, path: str, partition: int, winner: int, zookeeper: InMemoryZooKeeper | None
    ) -> None:
        topic = path.rpartition("/")[2]
        row = None if zookeeper is None else zookeeper.row(paths.partition_state(topic, partition))
        if row is None:
            return
        try:
            state = sound_partition_state(row.path, row.data)
        except DamagedZnode:
            return  # the state makes no sense: no controller may change it
        if broker in state.isr:
            detail = f"{topic}-{partition} leaves broker {broker}, which is in the ISR {list(state.isr)} still"
            self._violated("partition-states-sound", [winner], detail)

    def _is_paused_before(self, epoch: int) -> bool:
        """Whether the term of that epoch began after the pause, which is there still."""
        return self._paused_in is not None and epoch > self._paused_in

    # -- the trace

    def state_written(self, node: int, event: PartitionStateWritten) -> None:
        if event.why == "preferred" and self._is_paused_before(event.controller_epoch):
            name = f"{event.topic}-{event.partition}"
            self._violated(INVARIANT, [node], f"{name} goes back to its preferred leader, though it is paused")
        if self._going:
            self._written_while_going(node, event)

    def _written_while_going(self, node: int, event: PartitionStateWritten) -> None:
        name = f"{event.topic}-{event.partition}"
        for going, asked in self._going.items():
            if asked != (node, event.controller_epoch):
                continue
            if event.why in ELECTIONS and event.leader == going:
                self._violated(INVARIANT, [node], f"{name}: {going} is elected ({event.why}), and is shutting down")
            elif event.why == "alter isr" and going in event.isr and going not in event.previous_isr:
                # AlterIsr 0, where it may, is no version of simulated brokers among themselves.
                self._violated(INVARIANT, [node], f"{name}: {going} joins the ISR, and is shutting down")
            elif event.why == "controlled shutdown" and going in event.previous_isr and event.leader >= 0:
                self._unnotified[going] = name

    def sent(self, event: RequestSent) -> None:
        known = (event.controller_epoch, event.to_broker_epoch)
        self._known[event.to_broker] = known
        if event.api == "StopReplica":
            self._stopped[event.to_broker] = known
        elif event.api == "LeaderAndIsr":
            self._unnotified.pop(event.to_broker, None)

    def registered(self, node: int) -> None:
        """What was said of its life before says nothing of this one."""
        self._going.pop(node, None)
        self._unnotified.pop(node, None)

    def noted(self, node: int, event: Noted, epoch: int, winner: int, zookeeper: InMemoryZooKeeper) -> None:
        going = SHUTTING_DOWN.fullmatch(event.message)
        if going is not None:
            self._going[int(going[2])] = node, int(going[1])
            self._unnotified.pop(int(going[2]), None)
        elif node == winner and event.message.endswith(GIVEN_BACK):
            moving = [path for path, partitions in self._moving.items() if partitions]
            if moving:
                self._violated(INVARIANT, [node], f"leaders are given back while partitions move: {sorted(moving)}")
        elif event.message == ALL_MOVED and self._going.get(node) == (winner, epoch):
            if node in self._unnotified:
                detail = f"it was not notified that it no longer leads {self._unnotified[node]}"
                self._violated(INVARIANT, [node, winner], f"everything was moved, and {detail}")
            led = _led_by(zookeeper, node)
            if led:
                self._violated(INVARIANT, [node, winner], f"everything was moved, it was notified, and it leads {led}")


def moving_of(topic: TopicAssignment) -> frozenset[int]:
    return frozenset(one for one in topic.adding.keys() | topic.removing.keys())


def _led_by(zookeeper: InMemoryZooKeeper, node: int) -> list[str]:
    """What it leads that others hold too, of topics that stay. A replica that is being added, and is not in sync, may
    have come since the controller's answer."""
    found = []
    for name in zookeeper.children(paths.BROKER_TOPICS) or ():
        row = zookeeper.row(paths.topic(name))
        if row is None or zookeeper.row(paths.delete_topic(name)) is not None:
            continue
        topic = decode_topic_assignment(row.path, row.data)
        for partition, replicas in topic.partitions.items():
            state = zookeeper.row(paths.partition_state(name, partition))
            if len(replicas) < 2 or state is None:
                continue
            known = decode_partition_state(state.path, state.data)
            coming = set(topic.adding.get(partition, ())).difference(known.isr)
            others = set(replicas) - coming - {node}
            if others and known.leader == node and state_fault(known) is None:  # a state without sense is not moved
                found.append(f"{name}-{partition}")
    return found


class AssignedReplicas:
    """Every replica that a written state's assignment names has a state in the replica machine of the term that wrote.

    What a partition's first write of a term names is taken for granted: a new term begins with the replicas that it
    reads, and records no moves of them.
    """

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._term: tuple[int, int] | None = None
        self._known: dict[tuple[str, int], set[int]] = {}  # asked whether it has a replica, never walked

    def elected(self, node: int, event: ControllerElected) -> None:
        self._term = (node, event.controller_epoch)
        self._known.clear()

    def moved(self, node: int, event: PartitionMoved) -> None:
        known = self._known.get((event.topic, event.partition))
        if known is None or (node, event.controller_epoch) != self._term:
            return
        if event.target == ReplicaState.NonExistent.name:
            known.discard(event.replica)
        else:
            known.add(event.replica)

    def written(self, node: int, event: PartitionStateWritten) -> None:
        if (node, event.controller_epoch) != self._term:
            return
        known = self._known.setdefault((event.topic, event.partition), set(event.assignment))
        for broker in event.assignment:
            if broker not in known:
                where = f"{event.topic}-{event.partition} ({event.why})"
                detail = (
                    f"{where}: assignment {list(event.assignment)}, and the replica on broker {broker} has no state"
                )
                self._violated("replicas-have-states", [node], detail)


class DataLossModel:
    """The state of the model; partitions are named by the paths of their state znodes.

    `broken`: partitions whose records may be lost. `members`: for each partition, the brokers that may have lost
    records; empty as long as there are none.
    """

    def __init__(self) -> None:
        self.broken: set[str] = set()  # asked whether it holds a partition, or how many there are; never walked
        self._isrs: dict[str, tuple[int, ...]] = {}
        self.members: dict[str, tuple[int, ...]] = {}

    def state_written(self, path: str, isr: Sequence[int]) -> None:
        self._isrs[path] = tuple(isr)
        suspects = self.members.get(path, ())
        if suspects:
            self.members[path] = tuple(node for node in suspects if node in isr)

    def lost_power(self, node: int) -> None:
        """Record a loss of power. Replicas outside the ISR count too: their leader may have proposed to add them."""
        for path in self._isrs:
            known = self.members.get(path, ())
            if node not in known:
                self.members[path] = (*known, node)

    def may_have_lost_records(self, node: int, path: str) -> bool:
        return node in self.members.get(path, ())

    def became_leader(self, node: int, path: str) -> None:
        if node in self.members.get(path, ()):
            self.broken.add(path)


_record = tuple.__new__  # as TraceRecord's own, without a call between: one for each event of a run
_STATE = "/state"
_TOPICS = paths.BROKER_TOPICS + "/"
_WRITES = (SetData, Create)
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant. `nodes`: the nodes that caused or show it; empty if there are none in particular."""

    invariant: str
    at_ms: float
    nodes: tuple[int, ...]
    detail: str

    def __str__(self) -> str:
        whose = f", broker{'s' if len(self.nodes) > 1 else ''} {', '.join(map(str, self.nodes))}" if self.nodes else ""
        return f"{self.invariant} at {self.at_ms:.1f} ms{whose}: {self.detail}"


class SafetyChecker(Recorder):
    """The recorder of a run, which checks safety as the run goes on.

    `violation` is the first violation, None so far. After `attach` the checker also sees ZooKeeper's writes.
    `subscribers` are called with each event after its check. `expected_errors`: texts of errors that a node may record
    without a defect of its own. `clean`: leaders may come only from their ISRs, except for `unclean_topics`.
    `leaders_write`: leaders change ISRs in ZooKeeper (inter-broker protocol below 2.7).
    """

    def __init__(self, *, clean: bool, leaders_write: bool = False) -> None:
        super().__init__()
        self.violation: Violation | None = None
        self.clean = clean
        self._leaders_write = leaders_write
        self._now_ms: Callable[[], float] = lambda: 0.0
        self._zookeeper: InMemoryZooKeeper | None = None
        self._fencing = Fencing()
        self._nodes: dict[int, int] = {}
        self._epoch = 0
        self._winner = 0
        self._states: dict[str, PartitionStateZnode] = {}
        self._created: dict[str, int] = {}
        self._alike: dict[bytes | None, PartitionStateZnode] = {}
        self._named: dict[str, tuple[str, int]] = {}
        self._rows: dict[str, Mapping[int, tuple[int, ...]]] = {}  # what was looked up in the present transaction
        self._assignments: dict[str, tuple[bytes | None, Mapping[int, tuple[int, ...]]]] = {}
        self._ended: dict[int, float] = {}
        self._excused: set[int] = set()  # asked whether it holds a session, never walked
        self.is_paused: Callable[[int], bool] = lambda _node: False
        self._roles: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._begun: dict[str, tuple[int, int, int]] = {}  # leader epoch, the zxid that began it, version
        self._incarnations: dict[int, int] = {}  # the broker epoch that each node knows of itself
        self.data_loss = DataLossModel()
        self.subscribers: list[Callable[[TraceRecord], None]] = []
        self._by_choice = ByChoice(self.violated)
        self._assigned = AssignedReplicas(self.violated)
        self._term_ends = TermEnds(self.violated)
        self._soundness = StateSoundness(self.violated)
        self.checkers: tuple[Checker, ...] = (
            self._term_ends,
            self._soundness,
            RequestOrder(self.violated),
            ElectionOrder(self.violated),
        )
        self._handlers = self._handlers_by_event()
        self.expected_errors: tuple[str, ...] = ()
        self.is_by_hand: Callable[[int], bool] = lambda _session: False
        """Whether a session's writes are an administrator's."""
        self._edited = self._lowered = False
        self.terms_last = False
        """Whether nothing that happens may end a controller's term."""
        self.unclean_topics: frozenset[str] = frozenset()

    def expect_errors_of(self, happening: Happening) -> None:
        """Errors that this happening explains are no defects."""
        words = expected_errors(kind_of(happening))
        self.expected_errors += tuple(one for one in words if one not in self.expected_errors)

    def is_clean(self, topic: str) -> bool:
        return self.clean and topic not in self.unclean_topics

    def attach(self, zookeeper: InMemoryZooKeeper, now_ms: Callable[[], float]) -> None:
        self._zookeeper = zookeeper
        self._fencing = Fencing(leaders_write=self._leaders_write)
        self._now_ms = now_ms
        zookeeper.on_commit(self._committed)

    def violated(self, invariant: str, nodes: Sequence[int], detail: str) -> None:
        """The first stands; what comes of it afterwards says nothing."""
        if self.violation is None:
            self.violation = Violation(invariant, self._now_ms(), tuple(nodes), detail)

    def expires(self, session: int) -> None:
        """That session, or its hold of /controller, is ended from outside: no lease could foresee it."""
        self._excused.add(session)

    def died(self, node: int) -> None:
        """The broker's process has ended: its terms with it, and what it applied."""
        for checker in self.checkers:
            checker.died(node)
        for key in [key for key in self._roles if key[0] == node]:
            del self._roles[key]
        self._incarnations.pop(node, None)

    def unresigned(self, nodes: Sequence[int]) -> Iterator[tuple[int, str]]:
        """Yield the nodes of terms before the latest that have not ended, with a description."""
        return self._term_ends.unresigned(nodes, self._epoch)

    # -- ZooKeeper's writes, in the order of its transactions

    def _committed(self, session: int, operations: Sequence[Write]) -> None:
        self._rows.clear()
        self._judge_fence(session, operations)
        created = isinstance(operations[0], Create) and operations[0].path == paths.CONTROLLER_EPOCH
        for operation in operations:
            path = operation.path
            if path.startswith(_TOPICS) and path.endswith(_STATE):
                if isinstance(operation, _WRITES):
                    self._state_written(session, operation)
                elif isinstance(operation, Delete):
                    self._states.pop(path, None)
                    self._begun.pop(path, None)
                continue
            self._by_choice.committed(operation, self._epoch, self._node_of(self._winner), self._zookeeper)
            if path == paths.CONTROLLER_EPOCH and not isinstance(operation, Check):
                if self.is_by_hand(session):
                    self._edited = True
                    by_hand = None if isinstance(operation, Delete) else id_in_digits(operation.data or b"")
                    self._lowered = self._lowered or (by_hand is not None and by_hand < HIGHEST_EPOCH)
                elif isinstance(operation, _WRITES) and not (created and isinstance(operation, SetData)):
                    self._epoch_written(session, operation)
            elif isinstance(operation, Create) and path.startswith(_TOPICS) and path.count("/") == 3:
                self._created[path[len(_TOPICS) :]] = self._created.get(path[len(_TOPICS) :], 0) + 1

    def _judge_fence(self, session: int, operations: Sequence[Write]) -> None:
        """(1) What a broker writes is fenced with the epoch that its session won, or is a broker's own."""
        node = self._nodes.get(session)
        if node is None:
            self._fencing.followed(session, operations)
            return
        wrong = self._fencing.unfenced(session, operations)
        if wrong is not None:
            self.violated("writes-are-fenced", [node], wrong)

    def _epoch_written(self, session: int, operation: SetData | Create) -> None:
        """(1) Epochs only increase, whatever an administrator wrote meanwhile, and who raises one owns /controller."""
        epoch = decode_controller_epoch(operation.path, operation.data)
        node, winner = self._node_of(session), session
        if isinstance(operation, SetData):
            assert self._zookeeper is not None
            # A broker that knows of no earlier term can't tell that the epoch was lowered by hand. The fence goes by
            # the version; other brokers refuse such a term's requests, and the next one is above what they know.
            if epoch <= self._epoch and not self._lowered:
                self.violated("one-writer-an-epoch", [node], f"controller epoch {epoch} after {self._epoch}")
            row = self._zookeeper.row(paths.CONTROLLER)
            if row is not None and row.stat.ephemeral_owner == 0:
                # Made by hand. A broker whose own it replaced can't see that before it writes, since it has the same
                # version: it raised the epoch, and may not lead in it.
                winner = 0
            elif row is None or row.stat.ephemeral_owner != session:
                self.violated("one-writer-an-epoch", [node], f"epoch {epoch} raised without owning /controller")
        elif epoch < self._epoch:
            self.violated("one-writer-an-epoch", [node], f"controller epoch {epoch} created after {self._epoch}")
        self._epoch, self._winner, self._edited, self._lowered = epoch, winner, False, False

    def _state_written(self, session: int, operation: SetData | Create) -> None:
        """(1) By the session that won the present epoch, under that epoch; (2) sound in itself and after the last."""
        path = operation.path
        state = self._decoded(path, operation.data)
        last = self._states.get(path) if isinstance(operation, SetData) else None
        self._states[path] = state
        self._note_begun(path, state.leader_epoch)
        self.data_loss.state_written(path, state.isr)
        node = self._nodes.get(session, NOBODY)
        is_winners = session == self._winner and state.controller_epoch == self._epoch and not self._edited
        if not is_winners and not (self._leaders_write and last is not None and _is_leaders_change(node, state, last)):
            self.violated(
                "one-writer-an-epoch",
                [node, self._node_of(self._winner)],
                f"{_where(path)} written by broker {node} in epoch {state.controller_epoch}; epoch {self._epoch} is"
                f" broker {self._node_of(self._winner)}'s{', edited by hand since' if self._edited else ''}",
            )
        named = self._named.get(path)
        if named is None:
            named = paths.partition_of(path)
            assert named is not None
            self._named[path] = named
        assignment = self._assignment_of(named[0]).get(named[1], ())
        self._soundness.on_commit(
            StateWrite(_where(path), node, state, last, assignment, clean=self.is_clean(named[0]))
        )

    def _note_begun(self, path: str, leader_epoch: int) -> None:
        """After a write past all sessions (spoil-znode) the zxid of the leader epoch's first write is not known."""
        row = None if self._zookeeper is None else self._zookeeper.row(path)
        if row is not None:
            epoch, zxid, version = self._begun.get(path, (NOBODY, 0, NOBODY))
            is_known = epoch == leader_epoch and row.stat.version == version + 1
            self._begun[path] = (leader_epoch, zxid if is_known else row.stat.mzxid, row.stat.version)

    def _decoded(self, path: str, data: bytes | None) -> PartitionStateZnode:
        """Many partitions' states are the same bytes, and their paths alone tell them apart."""
        state = self._alike.get(data)
        if state is None:
            if len(self._alike) >= KEPT_ALIKE:
                self._alike.clear()
            state = self._alike[data] = replace(decode_partition_state(path, data), kept=NOTHING_KEPT)
        return state

    def _assignment_of(self, topic: str) -> Mapping[int, tuple[int, ...]]:
        """As the topic's znode has it once the present transaction is over."""
        partitions = self._rows.get(topic)
        if partitions is None:
            partitions = self._rows[topic] = self._read_assignment(paths.topic(topic))
        return partitions

    def _read_assignment(self, topic: str) -> Mapping[int, tuple[int, ...]]:
        assert self._zookeeper is not None
        row = self._zookeeper.row(topic)
        if row is None:
            return {}
        known = self._assignments.get(topic)
        if known is None or known[0] is not row.data:  # decoded once for each of the znode's states
            known = self._assignments[topic] = (row.data, decode_topic_assignment(topic, row.data).partitions)
        return known[1]

    def _node_of(self, session: int) -> int:
        return self._nodes.get(session, NOBODY)

    # -- the trace

    def take(self, at_ms: float, node: int, event: TraceEvent) -> None:
        record = _record(TraceRecord, (at_ms, node, event))
        self.records.append(record)
        for handler in self._handlers.get(type(event), ()):
            handler(at_ms, node, event)
        if self.subscribers:
            for subscriber in tuple(self.subscribers):
                subscriber(record)

    def _handlers_by_event(self) -> dict[type, tuple[OnEvent, ...]]:
        """Return the methods by type of event: those of the checkers, then those of this class."""
        own: dict[type, OnEvent] = {kind: partial(check, self) for kind, check in _CHECKS.items()}
        handlers: dict[type, tuple[OnEvent, ...]] = {}
        for table in (*(checker.on_event() for checker in self.checkers), own):
            for kind, handler in table.items():
                handlers[kind] = (*handlers.get(kind, ()), handler)
        return handlers

    def _session_started(self, at_ms: float, node: int, event: SessionStarted) -> None:
        self._nodes[event.session] = node

    def _elected(self, at_ms: float, node: int, event: ControllerElected) -> None:
        self._assigned.elected(node, event)
        if event.session != self._winner and event.controller_epoch == self._epoch:
            self.violated("one-writer-an-epoch", [node], f"takes epoch {self._epoch} for its own, which it did not win")

    def _resigned(self, at_ms: float, node: int, event: ControllerResigned) -> None:
        if self.terms_last:
            self.violated("terms-last", [node], f"epoch {event.controller_epoch} ended without a fault: {event.reason}")

    def _ephemeral(self, at_ms: float, node: int, event: EphemeralSeen) -> None:
        if event.path != paths.CONTROLLER:
            self._by_choice.registered(event.broker)
        if event.present:
            self._ended.pop(event.session, None)  # it gave /controller up, and has won it again
            return
        self._ended[event.session] = at_ms
        if self._zookeeper is None or event.session in self._zookeeper.sessions():
            return  # it lives, and somebody deleted the znode
        for (holder, epoch), session in self._term_ends.open_terms():
            if session != event.session or session in self._excused:
                continue
            if epoch == self._epoch and not self.is_paused(holder):
                self.violated("stops-before-its-session", [holder], f"its session ends, and it leads in epoch {epoch}")

    def _noted(self, at_ms: float, node: int, event: Noted) -> None:
        if event.level == "error" and not any(words in event.message for words in self.expected_errors):
            self.violated("no-defects", [node], event.message)
        if event.level == "info" and self._zookeeper is not None:
            self._by_choice.noted(node, event, self._epoch, self._node_of(self._winner), self._zookeeper)

    def _registered(self, at_ms: float, node: int, event: BrokerRegistered) -> None:
        self._by_choice.registered(node)
        self._incarnations[node] = event.broker_epoch

    def _written(self, at_ms: float, node: int, event: PartitionStateWritten) -> None:
        self._by_choice.state_written(node, event)
        self._assigned.written(node, event)

    def _moved(self, at_ms: float, node: int, event: PartitionMoved) -> None:
        self._assigned.moved(node, event)

    def _sent(self, at_ms: float, node: int, event: RequestSent) -> None:
        """(1) Nothing is sent in a term whose session had to be given up for lost."""
        session = self._term_ends.session((node, event.controller_epoch))
        ended_ms = self._ended.get(session)
        if ended_ms is not None and at_ms > ended_ms and session not in self._excused:
            self.violated(
                "stops-before-its-session",
                [node],
                f"{event.api} in epoch {event.controller_epoch}, its session over at {ended_ms:.1f}",
            )
        self._by_choice.sent(event)

    def _role(self, at_ms: float, node: int, event: ReplicaRoleApplied) -> None:
        """(2) While a broker lives, what it takes for a partition's leader epoch only grows, within one incarnation of
        the topic (S29, S30)."""
        key, incarnation = (node, event.topic, event.partition), self._created.get(event.topic, 0)
        known, epoch = self._roles.get(key, (incarnation, NOBODY))
        if known == incarnation and event.leader_epoch < epoch:
            self.violated(
                "broker-epochs-grow",
                [node],
                f"{event.topic}-{event.partition}: leader epoch {event.leader_epoch} applied after {epoch}",
            )
        self._roles[key] = (incarnation, event.leader_epoch)
        if event.leader == node:
            path = paths.partition_state(event.topic, event.partition)
            self._leads(node, path, event)
            if self.data_loss.members:
                self.data_loss.became_leader(node, path)

    def _leads(self, node: int, path: str, event: ReplicaRoleApplied) -> None:
        """(2) A broker incarnation leads in no leader epoch that is older than its registration: it may have lost the
        end of its log, and what it appends there is not what its followers have of that epoch. A topic that is being
        deleted takes no records."""
        epoch, begun, version = self._begun.get(path, (NOBODY, 0, NOBODY))
        registered = self._incarnations.get(node, 0)
        row = None if self._zookeeper is None else self._zookeeper.row(path)
        if event.leader_epoch > epoch or registered <= begun or row is None or row.stat.version != version:
            return
        assert self._zookeeper is not None
        if self._zookeeper.row(paths.delete_topic(event.topic)) is None:
            self.violated(
                "new-incarnation-new-epoch",
                [node],
                f"{_where(path)}: broker epoch {registered} leads in leader epoch {event.leader_epoch}, which began"
                f" at {begun} or before",
            )


def _is_leaders_change(node: int, state: PartitionStateZnode, last: PartitionStateZnode) -> bool:
    """Of its ISR alone, by the partition's leader, in its leader epoch."""
    return node == last.leader == state.leader and state.leader_epoch == last.leader_epoch


def _where(path: str) -> str:
    """Topic and partition, of the path of a state."""
    return path[len(_TOPICS) :].removesuffix(_STATE).replace("/partitions/", "-")


_CHECKS: dict[type, Callable[..., None]] = {
    SessionStarted: SafetyChecker._session_started,
    ControllerElected: SafetyChecker._elected,
    ControllerResigned: SafetyChecker._resigned,
    EphemeralSeen: SafetyChecker._ephemeral,
    Noted: SafetyChecker._noted,
    BrokerRegistered: SafetyChecker._registered,
    PartitionMoved: SafetyChecker._moved,
    PartitionStateWritten: SafetyChecker._written,
    RequestSent: SafetyChecker._sent,
    ReplicaRoleApplied: SafetyChecker._role,
}
