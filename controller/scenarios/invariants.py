"""Invariants of every run under any faults, judged from the trace and the last snapshot of the cluster.

Each function receives the `Evidence` and returns a `Finding`: the invariant held, it was violated (with the first
violation), or the evidence is insufficient (`held` None). The rules that the simulator checks while a run goes on are
in `checkers.py`, which this module feeds with the merged trace. The numbers in docstrings are those of the list in
`docs/scenarios.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from controller.scenarios.checkers import (
    Checker,
    ElectionOrder,
    EpochWriters,
    Key,
    RequestOrder,
    StateSoundness,
    TermEnds,
    Violated,
    feed,
    histories,
    leaderless,
    metadata_differences,
)
from controller.scenarios.failovers import Failover
from controller.scenarios.host import PartitionView, Snapshot, TopicSpec
from controller.trace import ControllerElected, PartitionStateWritten
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


Invariant = Callable[[Evidence], Finding]


def _finding(violations: Iterator[str], held: str) -> Finding:
    first = next(violations, None)
    return Finding(True, held) if first is None else Finding(False, first)


def one_writer_an_epoch(evidence: Evidence) -> Finding:
    """(1) An epoch is won once, epochs only grow, and only the node that won one writes in it."""
    return _finding(_writers(evidence), "each controller epoch had one writer")


def _writers(evidence: Evidence) -> Iterator[str]:
    writers = EpochWriters(complete=True)
    for record in evidence.records:
        if isinstance(record.event, ControllerElected):
            yield from (problem for _, problem in writers.elected(record.node, record.event.controller_epoch))
    for record in evidence.records:
        event = record.event
        if isinstance(event, PartitionStateWritten):
            problem = writers.wrote(record.node, event.controller_epoch)
            if problem is not None:
                yield f"{event.topic}-{event.partition} {problem}"
    yield from _late_writes(evidence)


def _late_writes(evidence: Evidence) -> Iterator[str]:
    """Yield writes of an older epoch after a newer one, by the znode's versions: they passed the fence."""
    for states in histories(evidence.records):
        for (_, earlier), (_, later) in pairwise(states):
            if later.controller_epoch < earlier.controller_epoch:
                yield (
                    f"{later.topic}-{later.partition}: version {later.zk_version} written in epoch"
                    f" {later.controller_epoch}, after version {earlier.zk_version} in epoch {earlier.controller_epoch}"
                )


def checked_by(kind: Callable[[Violated], Checker], invariant: str, held: str) -> Invariant:
    """Return the judgement of a checker that is fed with the trace. `held`: the text if nothing is violated."""

    def judge(evidence: Evidence) -> Finding:
        found: list[str] = []
        feed(kind(lambda name, _nodes, detail: found.append(detail) if name == invariant else None), evidence.records)
        return _finding(iter(found), held)

    return judge


def metadata_agrees(evidence: Evidence) -> Finding:
    """(7) When quiet, what every live broker answers to a metadata request is what ZooKeeper holds."""
    if evidence.snapshot is None:
        return Finding(None, "the run did not come to its last look at the cluster")
    return _finding(_disagreeing(evidence.snapshot), "every broker's metadata was ZooKeeper's")


def _disagreeing(snapshot: Snapshot) -> Iterator[str]:
    for node in snapshot.registered:
        if node not in snapshot.metadata:
            yield f"broker {node} is registered and gave no metadata"
    held = _comparable(snapshot.partitions)
    for node, views in sorted(snapshot.metadata.items()):
        yield from (f"broker {node}: {one}" for one in metadata_differences(_comparable(views), held))


def disagreement(snapshot: Snapshot) -> str | None:
    """The first place where a broker's metadata is not ZooKeeper's; None if there is none."""
    return next(_disagreeing(snapshot), None)


def _comparable(views: Mapping[Key, PartitionView]) -> dict[Key, str]:
    """What a metadata response says of a partition; the order of its ISR and of its replicas means nothing."""
    return {
        key: f"leader {view.leader}, ISR {sorted(view.isr)}, replicas {sorted(view.assignment)}"
        for key, view in views.items()
    }


def converged(evidence: Evidence) -> Finding:
    """(8) When faults have stopped there is one controller among the brokers, every topic asked for is there, and
    no partition is without a leader that has a live replica in its ISR."""
    if evidence.snapshot is None:
        return Finding(None, "the run did not come to its last look at the cluster")
    snapshot, held = evidence.snapshot, "one controller, and every partition led that can be"
    lost = sum(not any(one in snapshot.registered for one in state.isr) for state in snapshot.partitions.values())
    return _finding(_unconverged(evidence, snapshot), f"{held}; {lost} have no live replica in sync" if lost else held)


def _unconverged(evidence: Evidence, snapshot: Snapshot) -> Iterator[str]:
    live = frozenset(snapshot.registered)
    if snapshot.controller not in live:
        yield f"the controller is {snapshot.controller}, registered are {sorted(live)}"
    for topic in evidence.topics:
        for partition in range(topic.partitions):
            if (topic.name, partition) not in snapshot.partitions:
                yield f"{topic.name}-{partition} was created and has no state"
    yield from leaderless(snapshot.partitions, lambda broker, _topic, _partition: broker in live)


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


INVARIANTS: dict[str, Invariant] = {
    "one-writer-an-epoch": one_writer_an_epoch,
    "no-write-after-resignation": checked_by(
        TermEnds, "no-write-after-resignation", "no term wrote after it was resigned"
    ),
    "old-terms-resigned": checked_by(
        TermEnds, "old-terms-resigned", "every term that another followed was resigned, and said why"
    ),
    "partition-states-sound": checked_by(
        StateSoundness, "partition-states-sound", "every partition state written was sound"
    ),
    "leaders-in-assignment-order": checked_by(
        ElectionOrder,
        "leaders-in-assignment-order",
        "every leader elected was the first eligible one in assignment order",
    ),
    "requests-in-order": checked_by(RequestOrder, "requests-in-order", "every broker got its requests in order"),
    "metadata-agrees": metadata_agrees,
    "converged": converged,
    "recovered": recovered,
}
