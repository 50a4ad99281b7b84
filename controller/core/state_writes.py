"""Writes of partition states: the only place where the controller creates or sets /brokers/topics/T/partitions/P/state.

Writes are fenced and in bulk, and the context follows what ZooKeeper acknowledged. A row that another client changed
meanwhile is read into the context and returned; the caller decides again on that basis. No elections here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.core import quarantine
from controller.core.events import ReassignmentIsrChange
from controller.core.partition_table import NO_BROKER, NO_STATE, Bools, Int32s, Rows, all_members, members, padded
from controller.core.term import Term
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs_columns import encode_partition_states
from controller.zookeeper.operations import (
    NOT_WRITABLE,
    Create,
    DamagedZnode,
    MultiFailed,
    NoAuth,
    NoNode,
    UnknownOutcome,
    Znode,
)
from controller.zookeeper.row_writes import RowsWritten, StatePaths, StateSets
from controller.zookeeper.znode_sense import sound_partition_state
from statemachines.leader_election_columns import is_member

FENCE_ATTEMPTS = 10
REWRITTEN_MS = 1_000.0
"""How long after another client's write of a state the controller notifies the leader."""


@dataclass(frozen=True, slots=True, eq=False)
class NewStates:
    """The states to write for `rows`, by place.

    `leader` and `leader_epoch` are int32[n], `isr` int32[n, width], `unclean` bool[n]. `why` and `live` (the brokers
    that the decision considered eligible) are for the trace.
    """

    rows: Rows
    leader: Int32s
    leader_epoch: Int32s
    isr: Int32s
    unclean: Bools
    why: str
    live: tuple[int, ...]

    def pick(self, chosen: Bools) -> NewStates:
        return NewStates(
            self.rows[chosen],
            self.leader[chosen],
            self.leader_epoch[chosen],
            self.isr[chosen],
            self.unclean[chosen],
            self.why,
            self.live,
        )


async def set_states(term: Term, states: NewStates) -> Rows:
    """Writes states over those that the context has; gives the rows that had moved. The context then has what
    ZooKeeper has, for both. Raises what `ZooKeeperClient.commit_rows` raises, and ControllerMoved if a later controller
    has written a row (S01)."""
    table, states = term.context.partitions, _within_assignment(term, states)
    data = encode_partition_states(states.leader, states.leader_epoch, term.epoch, states.isr, _extra(term, states))
    writes = StateSets(state_paths(term, states.rows), data, table.zk_version[states.rows])
    result = await term.zookeeper.commit_rows(term.leadership, writes)
    moved = [place for place, _ in result.moved]
    _record(term, states, result.versions)
    await take_in_all(term, [(int(states.rows[place]), found) for place, found in result.moved])
    return states.rows[moved]


def _within_assignment(term: Term, states: NewStates) -> NewStates:
    """`states` without ISR members that the assignment does not name, such as an older controller may have left there.
    Replicas that a reassignment is about to remove are named by the topic's znode still. An ISR stays as it is where
    none of it, or not its leader, would remain."""
    table = term.context.partitions
    outside = (states.isr != NO_BROKER) & ~is_member(states.isr, table.assignment[states.rows])
    places = np.flatnonzero(outside.any(axis=1)).tolist()
    if not places:
        return states
    isr = states.isr.copy()
    for place in places:
        row = int(states.rows[place])
        named = (*table.assignment_of(row), *table.leaving.get(row, ()))
        kept = [member for member in members(isr[place]) if member in named]
        leader = int(states.leader[place])
        if kept and (leader == NO_BROKER or leader in kept):
            isr[place] = padded([kept], isr.shape[1])[0]
    return replace(states, isr=isr)


def _extra(term: Term, states: NewStates) -> dict[int, bytes]:
    """By place, what has unknown fields."""
    extra = term.context.partitions.extra
    return {place: extra[row] for place, row in enumerate(states.rows.tolist()) if row in extra} if extra else {}


async def create_states(term: Term, states: NewStates) -> Rows:
    """Creates the states of partitions that have none, with their parents; gives the rows that turned out to have one
    (a creation that another controller began), which the context then has. A topic that is gone meanwhile is passed
    over: its rows stay as they are, for the change of topics that is on its way."""
    while len(states.rows):
        parents, creates = _creations(term, states)
        gone: str | None = None
        try:
            result = await term.zookeeper.create_rows(term.leadership, [*parents, *creates])
        except MultiFailed as failed:
            closed = isinstance(failed.error, NoAuth) and paths.is_one_of_many(failed.error.path)
            if not closed and not isinstance(failed.error, NoNode):
                raise
            path = [*parents, *creates][failed.index].path
            gone, why = paths.topic_of(path), str(failed.error)
        else:
            return await _created(term, states, result, len(parents))
        if closed:
            quarantine.report(term, path, f"partitions of topic {gone} are left out: {why}")
        else:
            term.note("warning", f"topic {gone} went away while its partitions were being created")
        table = term.context.partitions
        states = states.pick(np.array([table.topics[number].name != gone for number in table.topic[states.rows]]))
    return states.rows


def _creations(term: Term, states: NewStates) -> tuple[list[Create], list[Create]]:
    """Parents, outermost first, and states: in this order each finds its parent there."""
    table = term.context.partitions
    data = encode_partition_states(states.leader, states.leader_epoch, term.epoch, states.isr)
    topics = [table.topics[number] for number in np.unique(table.topic[states.rows]).tolist()]
    # A topic that has a state has the first parent too: asking for it again would fail the whole batch.
    first = [topic.name for topic in topics if not (table.zk_version[topic.rows] != NO_STATE).any()]
    parents = [Create(paths.partitions(name), None) for name in first]
    parents += [Create(paths.partition(*table.topic_and_partition(row)), None) for row in states.rows.tolist()]
    names = state_paths(term, states.rows)
    return parents, [Create(path, one) for path, one in zip(names, data, strict=True)]


async def _created(term: Term, states: NewStates, result: RowsWritten, parents: int) -> Rows:
    _record(term, states, result.versions[parents:])
    moved = [(place - parents, found) for place, found in result.moved if place >= parents]
    await take_in_all(term, [(int(states.rows[place]), found) for place, found in moved])
    return states.rows[[place for place, _ in moved]]


def _record(term: Term, states: NewStates, versions: Int32s) -> None:
    """Record written states in the context and in the trace."""
    if not (written := versions != NO_STATE).all():
        states, versions = states.pick(written), versions[written]
    table = term.context.partitions
    term.context.unclean_elections += int(np.count_nonzero(states.unclean))
    before = table.isr[states.rows]
    term.context.put_states(states.rows, states.leader, states.leader_epoch, term.epoch, states.isr, versions)
    if not term.trace.enabled:
        return
    columns = zip(
        states.rows.tolist(),
        table.topics_and_partitions(states.rows),
        states.leader.tolist(),
        states.leader_epoch.tolist(),
        all_members(states.isr),
        versions.tolist(),
        all_members(table.assignment[states.rows]),
        all_members(before),
        states.unclean.tolist(),
        strict=True,
    )
    epoch, why, emit, live_for = term.epoch, states.why, term.trace.emit, term.context.failed.among
    for row, key, leader, leader_epoch, isr, version, assignment, previous_isr, unclean in columns:
        emit(
            PartitionStateWritten(
                controller_epoch=epoch,
                topic=key[0],
                partition=key[1],
                why=why,
                leader=leader,
                leader_epoch=leader_epoch,
                isr=isr,
                zk_version=version,
                assignment=assignment + table.leaving[row] if row in table.leaving else assignment,
                previous_isr=previous_isr,
                live=live_for(states.live, key),
                unclean=unclean,
            )
        )


async def read_states(term: Term, rows: Rows) -> None:
    """Read the states of partitions again; the context then has what ZooKeeper has. Raises as `take_in_all`."""
    reading = await term.zookeeper.read(state_paths(term, rows))
    await take_in_all(term, list(zip(rows.tolist(), reading.rows, strict=True)))


async def take_in_all(term: Term, found: Sequence[tuple[int, Znode | None]]) -> None:
    """As `take_in`, of each row. Raises ControllerMoved if a later controller has written one (S01)."""
    later = [take_in(term, row, state) for row, state in found]
    if any(later):
        await _require_fence(term)


async def _require_fence(term: Term) -> None:
    """Raise ControllerMoved if this term is over.

    A controller epoch above this term's does not prove that: an administrator may have written the state, or deleted
    /controller_epoch. The fence decides.
    """
    for _ in range(FENCE_ATTEMPTS):
        try:
            await term.zookeeper.commit(term.leadership, [])
        except UnknownOutcome:
            continue
        return


def take_in(term: Term, row: int, found: Znode | None) -> bool:
    """The context takes what was found of one partition's state. A state that is gone or can't be used counts as none,
    is reported, and is watched. True if its controller epoch is above this term's."""
    table, rows = term.context.partitions, np.array([row])
    topic, partition = table.topic_and_partition(row)
    table.extra.pop(row, None)
    if found is None:
        quarantine.report_state(term, topic, partition, f"partition {table.name_of(row)}: its state is gone", "warning")
        term.context.drop_states(rows)
        return False
    try:
        state = sound_partition_state(found.path, found.data)
    except DamagedZnode as damaged:
        report = quarantine.report_unwritable_state if found.data == NOT_WRITABLE else quarantine.report_state
        report(term, topic, partition, f"partition {table.name_of(row)} is left out: {quarantine.describe(damaged)}")
        term.context.drop_states(rows)
        return False
    quarantine.released(term, found.path)
    known = int(table.zk_version[row])
    if term.settings.versions.alter_isr is not None and known not in (NO_STATE, found.stat.version):
        _notify_leader_later(term, topic, partition, found.stat.version)
    if state.kept.unknown() and found.data is not None:
        table.extra[row] = found.data
    term.context.put_states(
        rows,
        np.array([state.leader], dtype=np.int32),
        np.array([state.leader_epoch], dtype=np.int32),
        state.controller_epoch,
        padded([state.isr], table.width),
        np.array([found.stat.version], dtype=np.int32),
    )
    return state.controller_epoch > term.epoch


def _notify_leader_later(term: Term, topic: str, partition: int, version: int) -> None:
    """Set a timer to notify a partition's leader of a state that another client wrote.

    Leaders do not write states themselves, so this one was written by hand. The leader still uses an old version and
    could never change the ISR again. Unless another write comes first, it is notified in a new leader epoch.
    """
    term.context.rewritten[topic, partition] = version
    event = ReassignmentIsrChange(topic, partition)
    term.timers.set(f"rewritten {topic}-{partition}", term.clock, REWRITTEN_MS, lambda: term.put(event))


def state_paths(term: Term, rows: Rows) -> StatePaths:
    """The state znodes' paths, in the order of the rows; fewest parts for rows that are grouped by topic."""
    table = term.context.partitions
    topics, partitions = table.topic[rows], table.partition[rows].tolist()
    firsts = np.flatnonzero(np.diff(topics, prepend=-1))
    ends = [*firsts[1:].tolist(), len(rows)]
    spans = zip(topics[firsts].tolist(), firsts.tolist(), ends, strict=True) if len(rows) else ()
    return StatePaths([(table.topics[topic].name, partitions[first:end]) for topic, first, end in spans])


def names_of(term: Term, rows: Rows | Sequence[int], limit: int = 10) -> str:
    """The first few partitions' names, for the log."""
    shown = [term.context.partitions.name_of(int(row)) for row in rows[:limit]]
    return ", ".join(shown) + (f" and {len(rows) - limit} more" if len(rows) > limit else "")
