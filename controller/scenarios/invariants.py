"""Invariants of every run under any faults: checkers over the trace and the final snapshot of the cluster.

Each checker receives the `Evidence` and returns a `Finding`: the invariant held, it was violated (with the first
violation), or the evidence is insufficient (`held` None). The numbers in their docstrings are those of the list in
`docs/scenarios.md`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controller.scenarios.failovers import Failover
from controller.scenarios.host import PartitionView, Snapshot, TopicSpec
from controller.trace import (
    ControllerElected,
    ControllerResigned,
    FaultInjected,
    PartitionStateWritten,
    RequestAnswered,
    RequestSent,
)
from controller.trace_records import TraceRecord


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict rests on. `records` by time; `snapshot` None if the run did not get that far."""

    records: Sequence[TraceRecord]
    topics: Sequence[TopicSpec]
    snapshot: Snapshot | None
    failovers: Sequence[Failover]
    recovery_bound_ms: float


@dataclass(frozen=True, slots=True)
class Finding:
    held: bool | None
    detail: str


Checker = Callable[[Evidence], Finding]


def _finding(violations: Iterator[str], held: str) -> Finding:
    first = next(violations, None)
    return Finding(True, held) if first is None else Finding(False, first)


def one_writer_an_epoch(evidence: Evidence) -> Finding:
    """(1) An epoch is won once, epochs only grow, and only the node that won one writes in it."""
    return _finding(_writers(evidence), "each controller epoch had one writer")


def _writers(evidence: Evidence) -> Iterator[str]:
    winners: dict[int, int] = {}
    for record in evidence.records:
        event = record.event
        if isinstance(event, ControllerElected):
            if event.controller_epoch in winners:
                yield f"epoch {event.controller_epoch} won by {winners[event.controller_epoch]} and by {record.node}"
            if winners and event.controller_epoch < max(winners):
                yield f"epoch {event.controller_epoch} won after epoch {max(winners)}"
            winners[event.controller_epoch] = record.node
    for record in evidence.records:
        event = record.event
        if isinstance(event, PartitionStateWritten) and winners.get(event.controller_epoch) != record.node:
            yield (
                f"{event.topic}-{event.partition} written by {record.node} in epoch {event.controller_epoch},"
                f" which was won by {winners.get(event.controller_epoch, 'no controller')}"
            )
    yield from _late_writes(evidence)


def _late_writes(evidence: Evidence) -> Iterator[str]:
    """Yield writes of an older epoch after a newer one, by the znode's versions: they passed the fence."""
    for (topic, partition), states in _histories(evidence).items():
        for earlier, later in pairwise(states):
            if later.controller_epoch < earlier.controller_epoch:
                yield (
                    f"{topic}-{partition}: version {later.zk_version} written in epoch {later.controller_epoch},"
                    f" after version {earlier.zk_version} in epoch {earlier.controller_epoch}"
                )


def _histories(evidence: Evidence) -> dict[tuple[str, int], list[PartitionStateWritten]]:
    """Each partition's states, by the znode's version."""
    histories: dict[tuple[str, int], list[PartitionStateWritten]] = defaultdict(list)
    for record in evidence.records:
        if isinstance(record.event, PartitionStateWritten):
            histories[record.event.topic, record.event.partition].append(record.event)
    for states in histories.values():
        states.sort(key=lambda state: state.zk_version)
    return histories


def no_write_after_resignation(evidence: Evidence) -> Finding:
    """(1) A term that was resigned writes no more. By one node's own clock, so that it holds between processes."""
    return _finding(_after_resignation(evidence), "no term wrote after it was resigned")


def _after_resignation(evidence: Evidence) -> Iterator[str]:
    resigned: dict[tuple[int, int], float] = {}
    for record in evidence.records:
        event = record.event
        if isinstance(event, ControllerResigned):
            resigned[record.node, event.controller_epoch] = record.at_ms
        elif isinstance(event, PartitionStateWritten | RequestSent):
            at_ms = resigned.get((record.node, event.controller_epoch))
            if at_ms is not None and record.at_ms > at_ms:
                yield (
                    f"{record.node}: {type(event).__name__} in epoch {event.controller_epoch} at"
                    f" {record.at_ms:.1f} ms, resigned at {at_ms:.1f} ms"
                )


def old_terms_resigned(evidence: Evidence) -> Finding:
    """(1) A term that another followed was resigned, with a reason, unless its broker was killed in it or stands
    still."""
    return _finding(_unresigned(evidence), "every term that another followed was resigned, and said why")


def _unresigned(evidence: Evidence) -> Iterator[str]:
    terms: dict[tuple[int, int], float] = {}
    excused: set[tuple[int, int]] = set()
    paused: set[int] = set()
    for record in evidence.records:
        event = record.event
        if isinstance(event, ControllerElected):
            terms[record.node, event.controller_epoch] = record.at_ms
        elif isinstance(event, ControllerResigned) and event.reason:
            excused.add((record.node, event.controller_epoch))
        elif isinstance(event, FaultInjected) and event.target.isdigit():
            node = int(event.target)
            if event.fault in ("kill", "restart"):
                excused.update(term for term in terms if term[0] == node)
            paused = paused | {node} if event.fault == "pause" else paused - {node}
    for (node, epoch), at_ms in list(terms.items())[:-1]:
        if (node, epoch) not in excused and node not in paused:
            yield f"epoch {epoch}, won by {node} at {at_ms:.0f} ms, was never resigned"


def partition_states_sound(evidence: Evidence) -> Finding:
    """(2) Leader epochs only grow; a leader is in the ISR, or -1 with an ISR that is not empty; the ISR is within
    the assignment."""
    return _finding(_unsound(evidence), "every partition state written was sound")


def _unsound(evidence: Evidence) -> Iterator[str]:
    for (topic, partition), states in _histories(evidence).items():
        for state in states:
            where = f"{topic}-{partition} version {state.zk_version}"
            if not state.isr:
                yield f"{where}: the ISR is empty"
            if state.leader != -1 and state.leader not in state.isr:
                yield f"{where}: leader {state.leader} is not in the ISR {list(state.isr)}"
            if not set(state.isr) <= set(state.assignment):
                yield f"{where}: ISR {list(state.isr)} is not within the assignment {list(state.assignment)}"
        for earlier, later in pairwise(states):
            grown = later.leader_epoch - earlier.leader_epoch
            if grown < 0 or (grown == 0 and later.why != "alter isr"):
                yield (
                    f"{topic}-{partition} version {later.zk_version} ({later.why}): leader epoch {later.leader_epoch}"
                    f" after {earlier.leader_epoch}"
                )


ELECTIONS_FROM_ISR = ("offline", "controlled shutdown", "reassigned", "preferred")


def leaders_in_assignment_order(evidence: Evidence) -> Finding:
    """(2) The elected leader is the first replica of the assignment that is live and in the ISR before the election
    (a new partition: the first live one; an unclean election: the first live one, when no live replica is in the ISR).
    """
    return _finding(_misordered(evidence), "every leader elected was the first eligible one in assignment order")


def _misordered(evidence: Evidence) -> Iterator[str]:
    for states in _histories(evidence).values():
        for state in states:
            yield from election_troubles(state)


def election_troubles(state: PartitionStateWritten) -> Iterator[str]:
    """Yield the errors of one write: in the choice of the leader, and in the ISR."""
    expected = _rightful(state)
    if expected is not None and state.leader != expected:
        yield (
            f"{state.topic}-{state.partition} ({state.why}): elected {state.leader}, expected {expected}: assignment"
            f" {list(state.assignment)}, ISR {list(state.previous_isr)}, live {list(state.live)}"
        )
    in_sync = [replica for replica in state.assignment if replica in state.live and replica in state.previous_isr]
    if state.unclean and in_sync:
        yield f"{state.topic}-{state.partition} ({state.why}): an unclean election, and {in_sync} live and are in sync"
    yield from _isr_reordered(state)


def _rightful(state: PartitionStateWritten) -> int | None:
    """Return the broker that must lead after this write, or None if the write was not an election."""
    if state.why not in (*ELECTIONS_FROM_ISR, "initial"):
        return None
    live = [replica for replica in state.assignment if replica in state.live]
    if state.why == "initial" or state.unclean:
        return live[0] if live else -1
    return next((replica for replica in live if replica in state.previous_isr), -1)


def _isr_reordered(state: PartitionStateWritten) -> Iterator[str]:
    """A filtered ISR keeps its order."""
    if state.why in (*ELECTIONS_FROM_ISR, "replica offline") and not state.unclean:
        kept = [member for member in state.previous_isr if member in state.isr]
        if kept != list(state.isr):
            yield (
                f"{state.topic}-{state.partition} ({state.why}): ISR {list(state.isr)} from"
                f" {list(state.previous_isr)}: expected its order kept"
            )


def requests_in_order(evidence: Evidence) -> Finding:
    """(5) A broker answers a term's requests in the order in which they were put in the queue to it."""
    return _finding(_disordered(evidence), "every broker got its requests in order")


def _disordered(evidence: Evidence) -> Iterator[str]:
    last: dict[tuple[str, int, int, int], int] = {}
    for record in evidence.records:
        event = record.event
        if isinstance(event, RequestSent | RequestAnswered):
            key = (type(event).__name__, record.node, event.controller_epoch, event.to_broker)
            if event.sequence <= last.get(key, -1):
                yield (
                    f"epoch {event.controller_epoch}, broker {event.to_broker}: {key[0]} {event.api}"
                    f" number {event.sequence} after {last[key]}"
                )
            last[key] = event.sequence


def metadata_agrees(evidence: Evidence) -> Finding:
    """(7) When quiet, what every live broker answers to a metadata request is what ZooKeeper holds."""
    if evidence.snapshot is None:
        return Finding(None, "the run did not come to its last look at the cluster")
    return _finding(_disagreeing(evidence.snapshot), "every broker's metadata was ZooKeeper's")


def _disagreeing(snapshot: Snapshot) -> Iterator[str]:
    for node in snapshot.registered:
        if node not in snapshot.metadata:
            yield f"broker {node} is registered and gave no metadata"
    for node, views in sorted(snapshot.metadata.items()):
        for key, state in sorted(snapshot.partitions.items()):
            view = views.get(key)
            if view is None or _comparable(view) != _comparable(state):
                shown = "nothing" if view is None else f"leader {view.leader}, ISR {list(view.isr)}"
                yield (
                    f"{key[0]}-{key[1]}: broker {node} shows {shown}; ZooKeeper leader {state.leader},"
                    f" ISR {list(state.isr)}"
                )
        for topic, partition in sorted(views.keys() - snapshot.partitions.keys()):
            yield f"{topic}-{partition}: broker {node} shows it, ZooKeeper does not have it"


def disagreement(snapshot: Snapshot) -> str | None:
    """The first place where a broker's metadata is not ZooKeeper's; None if there is none."""
    return next(_disagreeing(snapshot), None)


def _comparable(view: PartitionView) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return view.leader, tuple(sorted(view.isr)), tuple(sorted(view.assignment))


def converged(evidence: Evidence) -> Finding:
    """(8) When faults have stopped there is one controller among the brokers, every topic asked for is there, and
    no partition is without a leader that has a live replica in its ISR."""
    if evidence.snapshot is None:
        return Finding(None, "the run did not come to its last look at the cluster")
    return _finding(_unconverged(evidence, evidence.snapshot), "one controller, and every partition led that can be")


def _unconverged(evidence: Evidence, snapshot: Snapshot) -> Iterator[str]:
    live = frozenset(snapshot.registered)
    if snapshot.controller not in live:
        yield f"the controller is {snapshot.controller}, registered are {sorted(live)}"
    for topic in evidence.topics:
        for partition in range(topic.partitions):
            if (topic.name, partition) not in snapshot.partitions:
                yield f"{topic.name}-{partition} was created and has no state"
    for (name, partition), state in sorted(snapshot.partitions.items()):
        candidates = [replica for replica in state.assignment if replica in live and replica in state.isr]
        if candidates and state.leader not in live:
            yield (
                f"{name}-{partition}: leader {state.leader}, though {candidates[0]} is live and in the ISR"
                f" {list(state.isr)}"
            )


def recovered(evidence: Evidence) -> Finding:
    """(8) Every failover ended, as a client sees it, within the scenario's bound from the session's end."""
    return _finding(_unrecovered(evidence), f"every failover ended within {evidence.recovery_bound_ms:g} ms")


def _unrecovered(evidence: Evidence) -> Iterator[str]:
    for failover in evidence.failovers:
        what = f"{failover.kind} {failover.node}, fault at {failover.fault_at_ms:.0f} ms"
        if failover.detected_at_ms is None:
            yield f"{what}: its ephemeral was not seen to go"
        elif failover.recovery_ms is None:
            yield f"{what}: no complete metadata reached the client"
        elif failover.recovery_ms > evidence.recovery_bound_ms:
            yield f"{what}: {failover.recovery_ms:.0f} ms to the client's complete metadata"


INVARIANTS: dict[str, Checker] = {
    "one-writer-an-epoch": one_writer_an_epoch,
    "no-write-after-resignation": no_write_after_resignation,
    "old-terms-resigned": old_terms_resigned,
    "partition-states-sound": partition_states_sound,
    "leaders-in-assignment-order": leaders_in_assignment_order,
    "requests-in-order": requests_in_order,
    "metadata-agrees": metadata_agrees,
    "converged": converged,
    "recovered": recovered,
}
