"""The state of a cluster as text for a person: the summary, then brokers, problems and topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from controller.cli.state_document import PROBLEMS, problems_of
from controller.zookeeper.cluster_state import ClusterState, LiveBroker, PartitionTable

PARTITIONS_SHOWN = 500
"""In a cluster with more, the topics are listed without their partitions; --json has them all."""
PROBLEMS_SHOWN = 40

_WORDS = {
    "unreadable": "damaged",
    "offline": "offline",
    "leader_outside_isr": "leader not in the ISR",
    "isr_outside_assignment": "ISR not within the assignment",
    "under_replicated": "under-replicated",
    "off_preferred": "off preferred leader",
}


def lines(state: ClusterState) -> Iterator[str]:
    yield from _summary(state)
    yield from _section("brokers", _brokers(state))
    yield from _section("damaged znodes", (f"{damage.path}: {damage.why}" for damage in state.damaged))
    yield from _section("partitions with problems", _problems(state.partitions))
    yield from _section("pending", _pending(state))
    yield from _section("topics", _topics(state.partitions))


def _section(title: str, body: Iterable[str]) -> Iterator[str]:
    """Nothing at all of a section that has nothing to say."""
    for number, line in enumerate(body):
        if number == 0:
            yield ""
            yield title
        yield f"  {line}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest word; the last one runs on."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "-"


def _summary(state: ClusterState) -> Iterator[str]:
    table = state.partitions
    topics = len(table.assignments.names)
    known = len(state.brokers) + len(state.absent_brokers)
    moved, could_move = int(table.off_preferred.sum()), int(table.could_move.sum())
    absent = f" (not registered: {_ids(state.absent_brokers)})" if state.absent_brokers else ""
    rows = [
        ("cluster", state.cluster_id or "no id"),
        ("controller", _controller(state)),
        ("brokers", f"{len(state.brokers)} of {known} live{absent}"),
        ("partitions", f"{len(table)} in {topics} topic{'' if topics == 1 else 's'}"),
        ("offline", str(int(table.offline.sum()))),
        ("under-replicated", str(int(table.under_replicated.sum()))),
        ("off preferred leader", f"{moved} ({could_move} could move back now)" if moved else "0"),
        ("reassigning", str(len(table.reassigning()))),
        ("topics being deleted", str(len(state.deletions))),
        ("damaged znodes", str(len(state.damaged))),
    ]
    yield from _table(rows)


def _controller(state: ClusterState) -> str:
    epoch = "no epoch" if state.controller_epoch is None else f"epoch {state.controller_epoch}"
    if state.controller is None:
        return f"none ({epoch})"
    broker_id = state.controller.broker_id
    live = any(broker.broker_id == broker_id for broker in state.brokers)
    return f"broker {broker_id}, {epoch}{'' if live else ' (not registered)'}"


def _brokers(state: ClusterState) -> Iterator[str]:
    if not state.brokers and not state.absent_brokers:
        return
    rows = [("id", "epoch", "rack", "leads", "in ISR of", "endpoints")]
    controller = state.controller.broker_id if state.controller else None
    for broker in state.brokers:
        rows.append(_broker(broker, state.partitions, broker.broker_id == controller))
    for broker_id in state.absent_brokers:
        leads, in_sync = _shares(state.partitions, broker_id)
        rows.append((str(broker_id), "-", "-", leads, in_sync, "not registered"))
    yield from _table(rows)


def _broker(broker: LiveBroker, table: PartitionTable, is_controller: bool) -> tuple[str, str, str, str, str, str]:
    known = broker.registration
    rack, endpoints = "?", "damaged registration"
    if known is not None:
        rack = known.rack or "-"
        endpoints = " ".join(endpoint.connection_string() for endpoint in known.endpoints)
    if is_controller:
        endpoints += "  (controller)"
    return (str(broker.broker_id), str(broker.broker_epoch), rack, *_shares(table, broker.broker_id), endpoints)


def _shares(table: PartitionTable, broker_id: int) -> tuple[str, str]:
    leads = int((table.states.leader == broker_id).sum())
    return str(leads), str(int((table.states.isr == broker_id).any(axis=1).sum()))


def _problems(table: PartitionTable) -> Iterator[str]:
    """The worst first."""
    order: list[int] = []
    seen = np.zeros(len(table), dtype=np.bool_)
    for mask in PROBLEMS:
        rows = np.flatnonzero(getattr(table, mask) & ~seen)
        seen[rows] = True
        order += rows.tolist()
    if order:
        yield from _table([_HEADER, *(_row(table, row, with_topic=True) for row in order[:PROBLEMS_SHOWN])])
    if len(order) > PROBLEMS_SHOWN:
        yield f"... and {len(order) - PROBLEMS_SHOWN} more (--json lists them all)"


_HEADER = ("partition", "leader", "epoch", "ISR", "assignment", "")


def _row(table: PartitionTable, row: int, *, with_topic: bool) -> tuple[str, str, str, str, str, str]:
    partition = table.partition(row)
    there = bool(table.states.present[row])
    leader = "none" if partition.leader < 0 else str(partition.leader)
    notes = [_WORDS[mask] for mask in problems_of(table, row)]
    if not there and not table.unreadable[row]:
        notes.append("no state yet")
    notes += [f"adding {_ids(partition.adding)}"] if partition.adding else []
    notes += [f"removing {_ids(partition.removing)}"] if partition.removing else []
    return (
        f"{partition.topic}-{partition.partition}" if with_topic else str(partition.partition),
        leader if there else "?",
        str(partition.leader_epoch) if there else "?",
        _ids(partition.isr) if there else "?",
        _ids(partition.assignment),
        ", ".join(notes),
    )


def _pending(state: ClusterState) -> Iterator[str]:
    table = state.partitions
    for topic in state.deletions:
        yield f"delete topic {topic}"
    for row in table.reassigning():
        partition = table.partition(row)
        name = f"{partition.topic}-{partition.partition}"
        yield f"reassign {name}: adding {_ids(partition.adding)}, removing {_ids(partition.removing)}"
    for (name, number), replicas in state.reassignments.items():
        yield f"asked for: reassign {name}-{number} to {_ids(replicas)}"
    for name, number in state.preferred_elections:
        yield f"asked for: elect the preferred leader of {name}-{number}"
    if state.isr_changes:
        yield f"{state.isr_changes} ISR change notification(s) not yet taken up"


def _topics(table: PartitionTable) -> Iterator[str]:
    held = table.assignments
    show_partitions = len(table) <= PARTITIONS_SHOWN
    for index, name in enumerate(held.names):
        rows = range(int(held.starts[index]), int(held.starts[index + 1]))
        if not held.present[index]:
            yield f"{name}: damaged"
            continue
        yield f"{name}: {_topic(table, rows)}"
        if show_partitions and rows:
            listed = [_HEADER, *(_row(table, row, with_topic=False) for row in rows)]
            yield from (f"  {line}" for line in _table(listed))


def _topic(table: PartitionTable, rows: range) -> str:
    at = slice(rows.start, rows.stop)
    factors = sorted(set((table.assignments.assignment[at] >= 0).sum(axis=1).tolist()))
    words = [f"{len(rows)} partitions" if len(rows) != 1 else "1 partition"]
    if factors:
        words.append(f"{'-'.join(map(str, factors[:: max(1, len(factors) - 1)]))} replicas each")
    counts = ((_WORDS[mask], int(getattr(table, mask)[at].sum())) for mask in PROBLEMS)
    return ", ".join([*words, *(f"{count} {word}" for word, count in counts if count)])
