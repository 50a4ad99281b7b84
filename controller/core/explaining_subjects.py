"""Explanations of a topic, a broker or the cluster, from the findings of `explaining` about partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from controller.core.explaining import (
    IMBALANCE_PERCENTAGE,
    MIN_INSYNC,
    ClusterView,
    Diagnosis,
    explain_deletion,
    explain_partition,
    ids,
    least_in_sync,
    rows_of,
)
from controller.core.explaining_controller import SUBJECT, explain_controller, obstacles
from controller.core.shutdown_safety import falls_short
from controller.zookeeper import paths


class Kind(Enum):
    CLUSTER = "cluster"
    CONTROLLER = "controller"
    BROKER = "broker"
    TOPIC = "topic"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Subject:
    """`partition` of a partition alone, `name` of all but the cluster and the controller (a broker's is its id)."""

    kind: Kind
    name: str = ""
    partition: int = -1

    def __str__(self) -> str:
        if self.kind in (Kind.CLUSTER, Kind.CONTROLLER):
            return f"the {self.kind.value}"
        return f"{self.kind.value} {self.name}" + (f"-{self.partition}" if self.kind is Kind.PARTITION else "")


class UnknownSubject(ValueError):
    """Nothing of this cluster is called so, or more than one thing is; says what was expected."""


def subject_named(view: ClusterView, text: str) -> Subject:
    """`broker:1`, `topic:t`, `partition:t-0` and `controller:controller` say what they name; without a kind, the one
    thing that is called so."""
    kind, colon, rest = text.partition(":")
    found = dict(_candidates(view, rest if colon else text))
    if colon:
        wanted = next((one for one in found if one.value == kind), None)
        if wanted is None:
            raise UnknownSubject(
                f"{text}: no such {kind}; expected PARTITION, TOPIC or BROKER of this cluster, or controller"
            )
        return found[wanted]
    if len(found) != 1:
        kinds = ", ".join(f"{one.value}:{text}" for one in found)
        raise UnknownSubject(
            f"{text}: could be {kinds}" if found else f"{text}: no partition, topic or broker is called so"
        )
    return next(iter(found.values()))


def _candidates(view: ClusterView, name: str) -> Iterator[tuple[Kind, Subject]]:
    state = view.state
    if name == SUBJECT:
        yield Kind.CONTROLLER, Subject(Kind.CONTROLLER)
    known = view.live | set(state.absent_brokers)
    if name.isascii() and name.isdigit() and int(name) in known:
        yield Kind.BROKER, Subject(Kind.BROKER, name)
    if name in state.partitions.assignments.names or name in state.deletions:
        yield Kind.TOPIC, Subject(Kind.TOPIC, name)
    topic, _, number = name.rpartition("-")
    if number.isascii() and number.isdigit() and _row(view, topic, int(number)) is not None:
        yield Kind.PARTITION, Subject(Kind.PARTITION, topic, int(number))


def _row(view: ClusterView, topic: str, partition: int) -> int | None:
    held = view.state.partitions.assignments
    return next((row for row in rows_of(view, topic) if held.partition[row] == partition), None)


def explain(view: ClusterView, subject: Subject) -> tuple[Diagnosis, ...]:
    """Nothing where all is as it should be."""
    match subject.kind:
        case Kind.PARTITION:
            row = _row(view, subject.name, subject.partition)
            assert row is not None
            return tuple(explain_partition(view, row))
        case Kind.TOPIC:
            return tuple(_explain_topic(view, subject.name))
        case Kind.BROKER:
            return tuple(_explain_broker(view, int(subject.name)))
        case Kind.CLUSTER:
            return tuple(_explain_cluster(view))
        case Kind.CONTROLLER:
            return tuple(explain_controller(view))


def _explain_cluster(view: ClusterView) -> Iterator[Diagnosis]:
    yield from explain_controller(view)
    explained = {obstacle.path for obstacle in obstacles(view)}
    for damage in view.state.damaged:
        if damage.path in explained:
            continue
        yield Diagnosis(
            damage.path,
            "damaged",
            damage.why,
            "what can't be read is left out by the controller and never overwritten",
            (f"repair {damage.path}",),
        )
    for topic in view.state.deletions:
        yield explain_deletion(view, topic)
    for row in _worth_a_look(view):
        yield from explain_partition(view, row)


def _worth_a_look(view: ClusterView) -> list[int]:
    """Return the rows of partitions to explain, without topics in deletion and damaged znodes, which have findings."""
    table, held = view.state.partitions, view.state.partitions.assignments
    wrong = table.offline | table.under_replicated | table.off_preferred
    wrong |= table.leader_outside_isr | table.isr_outside_assignment
    wrong[table.reassigning()] = True
    for topic, partition in (*view.state.reassignments, *view.state.preferred_elections):
        row = _row(view, topic, partition)
        if row is not None:
            wrong[row] = True
    deleting = [place for place, name in enumerate(held.names) if name in view.state.deletions]
    found: list[int] = np.flatnonzero(wrong & ~table.unreadable & ~np.isin(held.topic_index, deleting)).tolist()
    return found


def _explain_topic(view: ClusterView, topic: str) -> Iterator[Diagnosis]:
    if topic in view.state.deletions:
        yield explain_deletion(view, topic)
        return
    held = view.state.partitions.assignments
    if not held.present[list(held.names).index(topic)]:
        yield Diagnosis(
            topic,
            "damaged",
            f"{paths.topic(topic)} can't be read",
            "what can't be read is left out by the controller and never overwritten",
            (f"repair {paths.topic(topic)}",),
        )
    for row in rows_of(view, topic):
        yield from explain_partition(view, row)


def _explain_broker(view: ClusterView, broker: int) -> Iterator[Diagnosis]:
    table, name = view.state.partitions, f"broker {broker}"
    replicas = (table.assignments.assignment == broker).any(axis=1)
    in_isr = (table.states.isr == broker).any(axis=1)
    if broker not in view.live:
        waiting = np.flatnonzero(table.offline & in_isr).tolist()
        names = [f"{one.topic}-{one.partition}" for one in map(table.partition, waiting[:5])]
        more = f", {', '.join(names)}{' and more' if len(waiting) > 5 else ''}" if waiting else ""
        yield Diagnosis(
            name,
            "not registered",
            f"it has {int(replicas.sum())} replicas; {len(waiting)} partitions without a leader wait for it{more}",
            f"a broker lives while {paths.broker(broker)} is there: an ephemeral of its session",
            ("it is started, or reaches ZooKeeper again",),
        )
        for topic in view.state.deletions:
            if any(broker in table.partition(row).assignment for row in rows_of(view, topic)):
                yield explain_deletion(view, topic)
        return
    lagging = replicas & table.states.present & ~in_isr
    for adding in (row for row, added in table.assignments.adding.items() if broker in added):
        lagging[adding] = False
    if lagging.any():
        yield Diagnosis(
            name,
            "behind",
            f"{int(lagging.sum())} of its {int(replicas.sum())} replicas are not in their ISR",
            "a leader takes a replica into the ISR once it has what the leader has",
            (f"it catches up with leaders {ids(_leaders_of(view, lagging))}",),
        )
    yield from _kept_by(view, broker)
    missed, wanted = view.imbalances.get(broker, (0, 0))
    if missed:
        over = missed * 100 > wanted * IMBALANCE_PERCENTAGE
        yield Diagnosis(
            name,
            "leads less than it should",
            f"of {wanted} partitions that prefer it {missed} are led by others or have no leader",
            f"above leader.imbalance.per.broker.percentage ({IMBALANCE_PERCENTAGE} by default) they are given back",
            ("the next check of the balance" if over else "a preferred election by request",),
        )


def _kept_by(view: ClusterView, broker: int) -> Iterator[Diagnosis]:
    """Yield what would prevent the controlled shutdown of a live broker now, as far as ZooKeeper shows it.

    ZooKeeper does not show which other brokers are shutting down.
    """
    table, held = view.state.partitions, view.state.partitions.assignments
    deleting = [place for place, name in enumerate(held.names) if name in view.state.deletions]
    in_sync = (table.states.isr == broker).any(axis=1) & table.states.present & ~np.isin(held.topic_index, deleting)
    rows = np.flatnonzero(in_sync)
    if not len(rows):
        return
    isr = table.states.isr[rows]
    left = (np.isin(isr, list(view.live)) & (isr != broker)).sum(axis=1).astype(np.int32)
    numbers, places = np.unique(held.topic_index[rows], return_inverse=True)
    least = np.array([least_in_sync(view, held.names[one]) for one in numbers.tolist()], dtype=np.int32)[places]
    short = falls_short(left, least, (held.assignment[rows] >= 0).sum(axis=1).astype(np.int32))
    if not short.any():
        return
    named = [table.partition(row) for row in rows[short][:5].tolist()]
    counts = zip(named, left[short].tolist(), least[short].tolist(), strict=False)
    names = [f"{one.topic}-{one.partition} ({kept} of {wanted})" for one, kept, wanted in counts]
    more = " and more" if short.sum() > len(names) else ""
    yield Diagnosis(
        f"broker {broker}",
        "can't be spared",
        f"{int(short.sum())} partitions would be left under {MIN_INSYNC} without it: {', '.join(names)}{more}",
        "a broker that asks to go keeps such partitions until others are in sync, or its attempts are used up",
        ("more replicas come into sync", "camerlengo.controlled.shutdown.check=false: it goes as Kafka's does"),
    )


def _leaders_of(view: ClusterView, rows: np.typing.NDArray[np.bool_]) -> list[int]:
    return [int(leader) for leader in np.unique(view.state.partitions.states.leader[rows]) if leader >= 0]


def totals(findings: tuple[Diagnosis, ...]) -> Mapping[str, int]:
    """Count the findings of each kind, in the order of their first occurrence."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.what] = counts.get(finding.what, 0) + 1
    return counts
