"""The controller's failover: the first steps of a term load the cluster and repair its state, in Kafka's order.

    feature znode, watches, old notifications deleted, context loaded, pending deletions queued, UpdateMetadata to
    all, replica machine, partition machine, reassignments and deletions continued, preferred elections held

Watches are set before the watched znodes are read. UpdateMetadata is sent before any LeaderAndIsr, or brokers would be
sent leaders whose address they don't know (KAFKA-4443). Replicas on dead brokers are removed from their ISRs here too
(KAFKA-3096), before leaders are elected: the state of a dead leader's partition is written twice. The same is done
with replicas on brokers that bounced before this term began (`broker_bounces`).

Kafka notifies the brokers three times: of the states that it found, of ISRs without dead replicas, and of elected
leaders. Here one batch follows the last of these writes, so that each broker handles each partition once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from controller.core import broker_bounces, state_changes, topic_deletion
from controller.core.context import Replicas
from controller.core.events import (
    BrokerChange,
    Event,
    IsrChangeNotification,
    LogDirEventNotification,
    PauseChanged,
    PreferredElectionAsked,
    ReassignmentAsked,
    TopicChange,
    TopicConfigChange,
    TopicDeletion,
)
from controller.core.handlers import elections, pause, reassignment
from controller.core.leadership import HIGHEST_EPOCH, EpochTooLow, Term
from controller.core.loading import load
from controller.core.request_batch import RequestBatch
from controller.core.znode_changes import NeverStill, change_znode, delete_children, list_children
from controller.trace import FailoverCompleted, FailoverPhase
from controller.zookeeper import paths
from controller.zookeeper.codecs import FeatureZnode, decode_feature, encode_feature
from controller.zookeeper.operations import DamagedZnode, Znode
from statemachines.replica import ReplicaState

WATCHED_PARENTS: tuple[tuple[str, Event], ...] = (
    (paths.BROKER_IDS, BrokerChange()),
    (paths.BROKER_TOPICS, TopicChange()),
    (paths.ISR_CHANGE_NOTIFICATION, IsrChangeNotification()),
    (paths.LOG_DIR_EVENT_NOTIFICATION, LogDirEventNotification()),
    (paths.DELETE_TOPICS, TopicDeletion()),
    (paths.CONFIG_CHANGES, TopicConfigChange(None)),
)
"""Parents whose children a controller watches, with the event each puts."""

WATCHED_NODES: tuple[tuple[str, Event], ...] = (
    (paths.REASSIGN_PARTITIONS, ReassignmentAsked()),
    (paths.PREFERRED_ELECTION, PreferredElectionAsked()),
    (paths.CONTROLLER_PAUSE, PauseChanged()),
)
"""Znodes that a controller watches whether they are there or not, with the event each puts."""

_WATCHED = frozenset(path for path, _ in (*WATCHED_PARENTS, *WATCHED_NODES))


def is_watched_in_term(path: str) -> bool:
    """Return whether a watch belongs to a controller.

    These are the watches set here, those of registrations and topics below two of the parents, and those of the states
    of partitions that are being reassigned.
    """
    below = path.rpartition("/")[0] in (paths.BROKER_IDS, paths.BROKER_TOPICS)
    return path in _WATCHED or below or paths.partition_of(path) is not None


FEATURES_DISABLED, FEATURES_ENABLED = 0, 1


class PhaseTime(msgspec.Struct):
    name: str
    items: int = 0
    duration_ms: float = 0.0


class PhaseTimes:
    """Measure each phase by the clock, and report it when it ends."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.done: list[PhaseTime] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[PhaseTime]:
        """Measure one phase; the caller sets `items`. A phase that fails is not reported: it ends the term."""
        phase = PhaseTime(name)
        began_ms = self._term.clock.now_ms()
        yield phase
        phase.duration_ms = self._term.clock.now_ms() - began_ms
        self.done.append(phase)
        self._term.trace.emit(FailoverPhase(self._term.epoch, name, phase.duration_ms, phase.items))

    def table(self) -> str:
        width = max(len(phase.name) for phase in self.done)
        lines = [f"  {phase.name:<{width}} {phase.duration_ms:10.1f} ms {phase.items:9d}" for phase in self.done]
        return "\n".join(lines)


async def fail_over(term: Term) -> PhaseTimes:
    began_ms = term.clock.now_ms()
    phases = PhaseTimes(term)
    context = term.context
    with phases.phase("feature znode") as phase:
        phase.items = await _set_up_features(term)
    with phases.phase("watches") as phase:
        # All on their way at once: one after another they were most of a small cluster's failover.
        arming = [term.zookeeper.watch_children(parent, event) for parent, event in WATCHED_PARENTS]
        arming += [term.zookeeper.watch_node(path, event) for path, event in WATCHED_NODES]
        for armed in arming:
            await armed
        phase.items = len(WATCHED_PARENTS) + len(WATCHED_NODES)
    with phases.phase("old notifications") as phase:
        for parent in (paths.LOG_DIR_EVENT_NOTIFICATION, paths.ISR_CHANGE_NOTIFICATION):
            names = await list_children(term, parent)
            await delete_children(term, parent, names)
            phase.items += len(names)
    with phases.phase("load context") as phase:
        loaded = await load(term)
        phase.items = loaded.partitions
        _refuse_lowered_epoch(term)
    with phases.phase("pending deletions") as phase:
        phase.items = await topic_deletion.take_up(term)
    with phases.phase("update metadata") as phase:
        batch = RequestBatch(term)
        # A broker that has just started would report to clients that there are no topics until it receives them.
        partitions_follow = bool(context.eligible(context.rows_with_state()).any())
        batch.send_live_brokers(partitions_follow=partitions_follow)
        if not partitions_follow:
            batch.name_all_topics()
        batch.send()
        phase.items = loaded.brokers
    batch = RequestBatch(term)
    with phases.phase("replica machine") as phase:
        bounced = broker_bounces.demote_bounced(term, loaded.mzxids)
        if partitions_follow:
            batch.name_all_topics()
        phase.items = await _start_replica_machine(term, bounced, batch)
    with phases.phase("partition machine") as phase:
        phase.items = len(await state_changes.elect_offline_and_new(term, batch))
        batch.send()
        await broker_bounces.readmit_bounced(term, bounced)
    with phases.phase("pause") as phase:
        await pause.look(term)
        phase.items = int(context.paused is not None)
    with phases.phase("reassignments") as phase:
        phase.items = await reassignment.take_up(term)
    with phases.phase("topic deletions") as phase:
        phase.items = await topic_deletion.resume(term)
    with phases.phase("preferred elections") as phase:
        phase.items = await elections.take_up(term)
    elections.look_later(term, elections.FIRST_LOOK_MS)
    whole_ms = term.clock.now_ms() - began_ms
    term.trace.emit(FailoverCompleted(term.epoch, whole_ms, len(context.partitions)))
    term.note("info", f"failover took {whole_ms:.1f} ms: phase, time, items\n{phases.table()}")
    return phases


def _refuse_lowered_epoch(term: Term) -> None:
    """Raises EpochTooLow if a state has a higher epoch: brokers know that one and would refuse this term's requests."""
    table = term.context.partitions
    highest = int(table.controller_epoch[term.context.rows_with_state()].max(initial=0))
    if term.epoch < highest < HIGHEST_EPOCH:
        raise EpochTooLow(term.epoch, highest)


async def _start_replica_machine(term: Term, bounced: broker_bounces.Bounced, batch: RequestBatch) -> int:
    """Notify live replicas of their partitions' states and remove dead ones from their ISRs; return the number of all.

    Replicas of partitions whose leader is in `bounced` are notified once a leader has been elected anew.
    """
    context, table = term.context, term.context.partitions
    rows = table.all_rows()
    live = context.eligible(rows)
    online = Replicas.where(rows, live)
    offline = Replicas.where(rows, ~live & (table.assignment >= 0))
    context.move_all_replicas(online, ReplicaState.New)
    context.move_all_replicas(online, ReplicaState.Online)
    # As Kafka starts them: were their topic being deleted, they could not be.
    context.move_all_replicas(offline, ReplicaState.New)
    context.move_all_replicas(offline, ReplicaState.Offline)
    context.move_all_replicas(offline, ReplicaState.DeletionIneligible)
    state_changes.bring_replicas_online(term, bounced.led(online), batch)
    if len(bounced.leaderless):
        batch.update_metadata(bounced.leaderless)
    await state_changes.take_replicas_offline(term, offline, batch, bounced.leaderless)
    return len(online) + len(offline)


async def _set_up_features(term: Term) -> int:
    """Write /feature as a 2.8 controller does, and return how many features are finalized.

    It is created if it is missing, and disabled below inter-broker protocol 2.7.
    """
    wanted = FEATURES_ENABLED if term.settings.versions.feature_znode else FEATURES_DISABLED
    finalized = 0

    def decide(row: Znode | None) -> bytes | None:
        nonlocal finalized
        if row is None:
            return encode_feature(FeatureZnode(status=wanted))
        feature = decode_feature(row.path, row.data)
        if wanted == FEATURES_ENABLED or feature.status == FEATURES_DISABLED:
            finalized = len(feature.features)
            return None
        return encode_feature(replace(feature, status=FEATURES_DISABLED, features={}))

    try:
        await change_znode(term, paths.FEATURE, decide)
    except (DamagedZnode, NeverStill) as error:
        term.note("error", str(error))
    return finalized
