"""State transitions of partitions and replicas, many at once, with their writes to ZooKeeper and requests to brokers.

The compiled tables decide which transitions are allowed, the pure rules of `statemachines` elect the leaders, and the
request batch notifies the brokers. A partition or replica whose transition is not allowed, and a partition for which no
leader can be elected, stays as it is and is named in the log.

This is the only place where the controller creates or sets /brokers/topics/T/partitions/P/state. Writes are fenced and
in bulk, and the context follows what ZooKeeper acknowledged. A row that another client changed meanwhile is read into
the context and decided again on that basis.

An election rule also decides which replicas are notified of the outcome. Only one decision reads ZooKeeper: whether
unclean election is allowed. It is read at the time of the election, and only for partitions that otherwise get no
leader. The topic's own config has precedence, then the dynamic config of the controller's broker, then the cluster's,
then the broker's setting, as in a 2.8 controller (`by_topic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from controller.clock import Coro
from controller.core.context import NO_BROKER, NO_STATE, Bools, Int32s, Replicas, Rows, all_members, members, padded
from controller.core.events import ReassignmentIsrChange
from controller.core.leadership import Term
from controller.core.loading import (
    describe_damage,
    quarantine,
    quarantine_state,
    quarantine_unwritable_state,
    release_from_quarantine,
)
from controller.core.request_batch import RequestBatch
from controller.trace import PartitionMoved, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_config
from controller.zookeeper.codecs_columns import encode_partition_states, sound_partition_state
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
from controller.zookeeper.row_writes import RowsWritten, StateSets
from statemachines.leader_election_columns import (
    ElectedColumns,
    elect_controlled_shutdown_columns,
    elect_offline_columns,
    elect_reassigned_columns,
    initial_leader_columns,
    is_member,
    live_mask,
)
from statemachines.partition import PartitionState
from statemachines.replica import ReplicaState

FENCE_ATTEMPTS = 10
REWRITTEN_MS = 1_000.0
"""How long after another client's write of a state the controller notifies the leader."""


class NewStates(msgspec.Struct, frozen=True, eq=False):
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
    writes = StateSets(term.context.partitions.state_paths(states.rows), data, table.zk_version[states.rows])
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
    return msgspec.structs.replace(states, isr=isr)


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
            quarantine(term, path, f"partitions of topic {gone} are left out: {why}")
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
    names = term.context.partitions.state_paths(states.rows)
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
    reading = await term.zookeeper.read(term.context.partitions.state_paths(rows))
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
        quarantine_state(term, topic, partition, f"partition {table.name_of(row)}: its state is gone", "warning")
        term.context.drop_states(rows)
        return False
    try:
        state = sound_partition_state(found.path, found.data)
    except DamagedZnode as damaged:
        report = quarantine_unwritable_state if found.data == NOT_WRITABLE else quarantine_state
        report(term, topic, partition, f"partition {table.name_of(row)} is left out: {describe_damage(damaged)}")
        term.context.drop_states(rows)
        return False
    release_from_quarantine(term, found.path)
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


def names_of(term: Term, rows: Rows | Sequence[int], limit: int = 10) -> str:
    """The first few partitions' names, for the log."""
    shown = [term.context.partitions.name_of(int(row)) for row in rows[:limit]]
    return ", ".join(shown) + (f" and {len(rows) - limit} more" if len(rows) > limit else "")


T = TypeVar("T")


async def by_topic(
    term: Term, rows: Rows, said: Callable[[Term, Znode | None], T | None], fallback: T
) -> tuple[list[T], Rows]:
    """Return the value for each topic of `rows`, and for each row its place in that.

    `said` returns the value in one config, None if it has none.
    """
    table = term.context.partitions
    numbers, places = np.unique(table.topic[rows], return_inverse=True)
    defaults = [paths.config_broker(term.broker_id), paths.CONFIG_BROKER_DEFAULT]
    names = [table.topics[number].name for number in numbers.tolist()]
    reading = await term.zookeeper.read([*defaults, *(paths.config_topic(name) for name in names)])
    own, cluster, *topics = (said(term, row) for row in reading.rows)
    default = next((one for one in (own, cluster) if one is not None), fallback)
    return [default if one is None else one for one in topics], places


UNCLEAN = "unclean.leader.election.enable"


class Decision(msgspec.Struct, frozen=True, eq=False):
    """The outcome of an election.

    `receivers`: the replicas to notify, bool of the assignments' shape. `live`: the brokers considered eligible.
    """

    elected: ElectedColumns
    receivers: Bools
    live: tuple[int, ...]


class ElectionRule(msgspec.Struct, frozen=True):
    why: str
    decide: Callable[[Term, Rows], Coro[Decision]]


async def _decide_offline(term: Term, rows: Rows) -> Decision:
    context, table = term.context, term.context.partitions
    live = context.eligible(rows)
    isr = table.isr[rows]
    isr_live = context.eligible_in_isr(rows)
    in_isr = is_member(table.assignment[rows], isr)
    hopeless = ~(live & in_isr).any(axis=1) & live.any(axis=1)
    unclean = np.zeros(len(rows), dtype=np.bool_)
    if hopeless.any():
        unclean[hopeless] = await unclean_allowed(term, rows[hopeless])
    elected = elect_offline_columns(table.assignment[rows], isr, live, unclean, isr_live=isr_live)
    return Decision(elected, live, context.eligible_ids)


async def _decide_controlled_shutdown(term: Term, rows: Rows) -> Decision:
    context, table = term.context, term.context.partitions
    alive = context.alive(rows)
    elected = elect_controlled_shutdown_columns(table.assignment[rows], table.isr[rows], alive, context.shutting_down)
    # The broker that shuts down is notified too, or it would continue to lead (KAFKA-7482).
    return Decision(elected, alive, context.eligible_ids)


async def _decide_reassigned(term: Term, rows: Rows) -> Decision:
    """Elect from the target once it alone is the assignment, and notify all of it, also brokers that shut down."""
    context, table = term.context, term.context.partitions
    elected = elect_reassigned_columns(table.assignment[rows], table.isr[rows], context.eligible(rows))
    return Decision(elected, context.alive(rows), context.eligible_ids)


OFFLINE = ElectionRule("offline", _decide_offline)
CONTROLLED_SHUTDOWN = ElectionRule("controlled shutdown", _decide_controlled_shutdown)
REASSIGNED = ElectionRule("reassigned", _decide_reassigned)


async def unclean_allowed(term: Term, rows: Rows) -> Bools:
    """bool beside `rows`. A topic's own config decides, then the dynamic config of this broker, then the cluster's,
    then the setting, as a 2.8 controller reads it."""
    allowed, places = await by_topic(term, rows, _unclean_in, term.settings.unclean_leader_election)
    result: Bools = np.array(allowed, dtype=np.bool_)[places]
    return result


def _unclean_in(term: Term, row: Znode | None) -> bool | None:
    """Return the value in one config, None if it has none. An unreadable value does not allow unclean election."""
    if row is None:
        return None
    try:
        said = decode_config(row.path, row.data).config.get(UNCLEAN)
    except DamagedZnode as damaged:
        term.note("error", f"no unclean election by this config: {damaged}")
        return False
    return None if said is None else said.strip().lower() == "true"


_PARTITION_STATES = {int(state): state.name for state in PartitionState}
ELECTION_ROUNDS = 5
"""How often a partition's election is decided anew because its state had moved. Only leaders of an older inter-broker
protocol write states beside the controller, and no faster than once in some seconds each."""


def move_partitions(term: Term, rows: Rows, target: PartitionState) -> None:
    """Moves partitions where that asks nothing of ZooKeeper or the brokers."""
    context, table = term.context, term.context.partitions
    sources = table.partition_state[rows] if term.trace.enabled else None
    refused = context.move_partitions(rows, target)
    for error in context.partition_refusals(refused, target):
        term.note("error", str(error))
    if sources is None:
        return
    moved = ~np.isin(rows, refused)
    epoch, emit, now = term.epoch, term.trace.emit, target.name
    keys = table.topics_and_partitions(rows[moved])
    for (topic, partition), source in zip(keys, sources[moved].tolist(), strict=True):
        emit(PartitionMoved(epoch, topic, partition, -1, _PARTITION_STATES[source], now))


async def bring_partitions_online(
    term: Term, rows: Rows, batch: RequestBatch, election: ElectionRule = OFFLINE
) -> Rows:
    """Write the first state of new partitions, and elect a leader by `election` for the others.

    Partitions that have a leader now are Online, and their replicas are notified. Returns the rows that got a leader.
    """
    states = term.context.partitions.partition_state[rows]
    begun = await _initialise(term, rows[states == PartitionState.New], batch)
    led = await _elect(term, rows[states != PartitionState.New], batch, election)
    return np.concatenate((begun, led))


async def elect_offline_and_new(term: Term, batch: RequestBatch) -> Rows:
    """All that wait for a leader: a broker came, or unclean election was allowed."""
    return await bring_partitions_online(
        term, term.context.rows_to_elect(PartitionState.Offline, PartitionState.New), batch
    )


async def _initialise(term: Term, rows: Rows, batch: RequestBatch) -> Rows:
    """Creates the state of new partitions that have a live replica; the others stay New until one comes."""
    context, table = term.context, term.context.partitions
    live = context.eligible(rows)
    first = initial_leader_columns(table.assignment[rows], live)
    if not first.elected.all():
        waiting = rows[~first.elected]
        term.note("warning", f"no live replica, so no leader yet: {names_of(term, waiting)}")
    rows, live = rows[first.elected], live[first.elected]
    if not len(rows):
        return rows
    states = NewStates(
        rows=rows,
        leader=first.leader[first.elected],
        leader_epoch=np.zeros(len(rows), dtype=np.int32),
        isr=first.isr[first.elected],
        unclean=np.zeros(len(rows), dtype=np.bool_),
        why="initial",
        live=context.eligible_ids,
    )
    found = await create_states(term, states)
    led = (table.zk_version[rows] != NO_STATE) & _led_by_eligible(term, rows)
    batch.leader_and_isr(Replicas.where(rows[led], live[led]), is_new=True)
    move_partitions(term, rows[led], PartitionState.Online)
    orphaned = found[(table.zk_version[found] != NO_STATE) & ~_led_by_eligible(term, found)]
    move_partitions(term, orphaned, PartitionState.Offline)
    return np.concatenate((rows[led], await _elect(term, orphaned, batch, OFFLINE)))


def _led_by_eligible(term: Term, rows: Rows) -> Bools:
    return term.context.led(rows)


async def _elect(term: Term, rows: Rows, batch: RequestBatch, election: ElectionRule) -> Rows:
    """Decides, writes, and decides again for what had moved meanwhile, from what is there now."""
    table = term.context.partitions
    led: list[Rows] = []
    unled = rows[table.zk_version[rows] == NO_STATE]
    left = rows[table.zk_version[rows] != NO_STATE]
    for _ in range(ELECTION_ROUNDS):
        if not len(left):
            break
        decision = await election.decide(term, left)
        elected = decision.elected
        unelected = left[~elected.elected]
        changed = await _changed_by_leaders(term, unelected)
        unled = np.concatenate((unled, unelected[~np.isin(unelected, changed)]))
        chosen, receivers = left[elected.elected], decision.receivers[elected.elected]
        if not len(chosen):
            left = changed
            continue
        states = NewStates(
            rows=chosen,
            leader=elected.leader[elected.elected],
            leader_epoch=table.leader_epoch[chosen] + 1,
            isr=elected.isr[elected.elected],
            unclean=elected.unclean[elected.elected],
            why=election.why,
            live=decision.live,
        )
        left = await set_states(term, states)
        done = ~np.isin(chosen, left)
        batch.leader_and_isr(Replicas.where(chosen[done], receivers[done]))
        move_partitions(term, chosen[done], PartitionState.Online)
        led.append(chosen[done])
        known = table.zk_version[left] != NO_STATE  # what moved may be a state that is gone, or can't be used
        unled, left = np.concatenate((unled, left[~known])), np.concatenate((left[known], changed))
        _look_at_targets(term, chosen[done & states.unclean])
    unled = np.concatenate((unled, left))
    if len(unled):
        term.note("warning", f"no leader elected ({election.why}): {names_of(term, unled)}")
    return np.concatenate(led) if led else rows[:0]


async def _changed_by_leaders(term: Term, rows: Rows) -> Rows:
    """Read the states of partitions for which no leader can be elected, and return those that have changed since.

    Below inter-broker protocol 2.7 leaders write ISRs themselves. A leader that died before it notified the controller
    may have added the replica that can be elected. The states of all other partitions are read, and so compared, when
    their new states are written.
    """
    if not len(rows) or term.settings.versions.alter_isr is not None:
        return rows[:0]
    versions = term.context.partitions.zk_version
    known = versions[rows].copy()
    await read_states(term, rows)
    changed: Rows = rows[(versions[rows] != known) & (versions[rows] != NO_STATE)]
    return changed


def _look_at_targets(term: Term, rows: Rows) -> None:
    """Check the reassignments of partitions that had an unclean election.

    An unclean election makes a replica in-sync that was not, possibly the last one that a reassignment waits for. In
    any other case the leader reports the new ISR member.
    """
    moving = frozenset(term.context.partitions.moving_rows()) if len(rows) else frozenset()
    for row in rows.tolist():
        if row in moving:
            term.put(ReassignmentIsrChange(*term.context.partitions.topic_and_partition(row)))


_REPLICA_STATES = {int(state): state.name for state in ReplicaState}
SHRINK_ROUNDS = 5
"""How often the removal from an ISR is decided anew because the state had moved."""


def move_replicas(term: Term, replicas: Replicas, target: ReplicaState) -> Replicas:
    """Move replicas in the context only, and return those that moved."""
    table = term.context.partitions
    sources = table.replica_state[replicas.rows, replicas.slots]
    refused = term.context.move_replicas(replicas, target)
    if not len(refused):
        moved = replicas
    else:
        for error in term.context.replica_refusals(refused, target):
            term.note("error", str(error))
        stayed = np.isin(replicas.rows * table.width + replicas.slots, refused.rows * table.width + refused.slots)
        moved, sources = pick_replicas(replicas, ~stayed), sources[~stayed]
    if term.trace.enabled:
        brokers = table.assignment[moved.rows, moved.slots].tolist()
        keys = table.topics_and_partitions(moved.rows)
        epoch, emit, now = term.epoch, term.trace.emit, target.name
        for (topic, partition), broker, source in zip(keys, brokers, sources.tolist(), strict=True):
            emit(PartitionMoved(epoch, topic, partition, broker, _REPLICA_STATES[source], now))
    return moved


def make_replicas_new(term: Term, replicas: Replicas) -> None:
    """Move replicas of partitions that are being created to New; they are notified only when there is a leader."""
    move_replicas(term, replicas, ReplicaState.New)


def bring_replicas_online(term: Term, replicas: Replicas, batch: RequestBatch) -> None:
    """Move replicas on live brokers to Online.

    A replica that was New has already been sent its partition's first state; any other is sent its partition's current
    state.
    """
    table = term.context.partitions
    new = table.replica_state[replicas.rows, replicas.slots] == ReplicaState.New
    move_replicas(term, pick_replicas(replicas, new), ReplicaState.Online)
    moved = move_replicas(term, pick_replicas(replicas, ~new), ReplicaState.Online)
    batch.leader_and_isr(pick_replicas(moved, table.zk_version[moved.rows] != NO_STATE))


def pick_replicas(replicas: Replicas, chosen: Bools) -> Replicas:
    return Replicas(replicas.rows[chosen], replicas.slots[chosen])


async def take_replicas_offline(
    term: Term, replicas: Replicas, batch: RequestBatch, leaderless: Rows | None = None
) -> Rows:
    """Move replicas on dead brokers, or ones that their broker stops, to Offline.

    They are sent StopReplica and removed from their ISRs, and the partitions' other replicas are notified, unless the
    topic is queued for deletion.

    A removed leader is replaced by -1, and the last member of an ISR stays in it (KAFKA-708). If all members of an ISR
    are removed at once they all stay, since each of them has all acknowledged records. A partition that needs no change
    is not written, but its replicas are notified again, as a 2.8 controller does; those of `leaderless` rows are
    notified once they have a leader.

    Returns the rows whose state had changed in ZooKeeper, as `shrink`.
    """
    table = term.context.partitions
    replicas = move_replicas(term, replicas, ReplicaState.Offline)
    if not len(replicas):
        return replicas.rows
    batch.stop_replicas(replicas)
    rows, places = np.unique(replicas.rows, return_inverse=True)
    _update_metadata(term, rows, batch)
    leaving = np.full((len(rows), table.width), NO_BROKER, dtype=np.int32)
    leaving[places, replicas.slots] = table.assignment[replicas.rows, replicas.slots]
    known = table.zk_version[rows] != NO_STATE
    rows, leaving = rows[known], leaving[known]
    changed = await shrink(term, rows, leaving)
    # A leader that the assignment does not name, as after a reassignment was replaced by another, has left the ISR too.
    online = (table.partition_state[rows] == PartitionState.Online) & (table.zk_version[rows] != NO_STATE)
    led_by_none = rows[online & (table.leader[rows] == NO_BROKER)]
    if len(led_by_none):
        move_partitions(term, led_by_none, PartitionState.Offline)
        await bring_partitions_online(term, led_by_none, batch)
    others = table.assignment[rows]
    others_mask = live_mask(others, term.context.broker_ids) & ~is_member(others, leaving)
    notified = (table.zk_version[rows] != NO_STATE) & ~term.context.deleting(rows)
    if leaderless is not None:
        notified &= ~np.isin(rows, leaderless)
    batch.leader_and_isr(Replicas.where(rows[notified], others_mask[notified]))
    return changed


def _update_metadata(term: Term, rows: Rows, batch: RequestBatch) -> None:
    """Send the partitions' metadata to all brokers, without partitions of topics that are being deleted.

    Brokers have already been notified of these topics. Like a 2.8 controller, this one sends them again only for a
    partition without a state.
    """
    notified = rows[~(term.context.deleting(rows) & (term.context.partitions.zk_version[rows] != NO_STATE))]
    if len(notified):
        batch.update_metadata(notified)


def stop_for_deletion(term: Term, replicas: Replicas, batch: RequestBatch) -> None:
    """Send StopReplica with delete to replicas of a topic that is being deleted; they are already Offline."""
    batch.stop_replicas(move_replicas(term, replicas, ReplicaState.DeletionStarted), delete=True)


async def shrink(term: Term, rows: Rows, leaving: Int32s, *, every_leader: bool = False) -> Rows:
    """Remove the `leaving` brokers from each row's ISR, and retry from the current state where the ISR had changed.

    `every_leader`: a row whose ISR has none of them gets a new leader epoch too, if it has a leader.

    Returns the rows whose state had changed and is known.
    """
    table = term.context.partitions
    changed = rows[:0]
    for _ in range(SHRINK_ROUNDS):
        states, writing = _shrunk(term, rows, leaving, every_leader)
        if not len(states.rows):
            return changed
        moved = await set_states(term, states)
        moved = moved[table.zk_version[moved] != NO_STATE]
        changed = np.union1d(changed, moved)
        again = np.isin(rows, moved) & writing
        rows, leaving = rows[again], leaving[again]
        if not len(rows):
            return changed
    term.note("error", f"the ISR moved {SHRINK_ROUNDS} times under its change: {names_of(term, rows)}")
    return changed


def _shrunk(term: Term, rows: Rows, leaving: Int32s, every_leader: bool) -> tuple[NewStates, Bools]:
    """Return the states of the rows that change, and which of `rows` they are (bool).

    Members that the assignment does not name are removed too, so that the last remaining one can be elected. A leader
    that it does not name stays, with its ISR, where no other member would.
    """
    table = term.context.partitions
    isr, leader = table.isr[rows], table.leader[rows]
    led_by_leaving = is_member(leader[:, None], leaving)[:, 0]
    assigned = np.where(is_member(isr, table.assignment[rows]), isr, NO_BROKER).astype(np.int32)
    kept = np.where(is_member(assigned, leaving), NO_BROKER, assigned).astype(np.int32)
    stays = (leader != NO_BROKER) & ~led_by_leaving & ~is_member(leader[:, None], assigned)[:, 0]
    for fallback in (np.where(stays[:, None], isr, assigned), isr):
        emptied = (kept == NO_BROKER).all(axis=1)
        kept[emptied] = fallback[emptied]
    led = is_member(leader[:, None], kept)[:, 0] & ~led_by_leaving
    new_leader = np.where(led, leader, NO_BROKER).astype(np.int32)
    writing = led_by_leaving | (kept != isr).any(axis=1) | (every_leader & (leader != NO_BROKER))
    packed = np.take_along_axis(kept, np.argsort(kept == NO_BROKER, axis=1, kind="stable"), axis=1)
    states = NewStates(
        rows=rows[writing],
        leader=new_leader[writing],
        leader_epoch=table.leader_epoch[rows[writing]] + 1,
        isr=packed[writing],
        unclean=np.zeros(int(np.count_nonzero(writing)), dtype=np.bool_),
        why="replica offline",
        live=term.context.eligible_ids,
    )
    return states, writing
