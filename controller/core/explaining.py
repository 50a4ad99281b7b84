"""Explanations of the state of a partition, topic, broker or controller: the rule that applies, and what to change.

Pure: the input is a cluster's znodes, the output findings. No broker is asked, so findings name facts that only brokers
know (how far a replica lags) as theirs.

The rules are those of the controller (`statemachines.leader_election` and the machines of reassignment and deletion),
applied to the state in ZooKeeper. They hold for any cluster that keeps its state there. A topic, a broker and the
cluster are explained by the findings about their partitions; a missing or suspect controller by the election's rules,
applied to /controller, /controller_epoch and /cluster/id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from controller.core.leadership import HIGHEST_EPOCH, SHELL, Obstacle, epoch_in, in_controller, in_epoch, named_in
from controller.core.shutdown_safety import falls_short
from controller.zookeeper import paths
from controller.zookeeper.cluster_state import ClusterPartition, ClusterState, Tree
from controller.zookeeper.codecs import decode_config, decode_pause
from controller.zookeeper.operations import DamagedZnode
from statemachines.leader_election import elect_offline, elect_preferred

UNCLEAN = "unclean.leader.election.enable"
MIN_INSYNC = "min.insync.replicas"
IMBALANCE_PERCENTAGE = 10
"""The default of leader.imbalance.per.broker.percentage; a broker's settings are not in ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`what` is the case of `subject`, `why`: the facts; `rule`: what decides; `changes`: each would change it."""

    subject: str
    what: str
    why: str
    rule: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as the rules need it. `paused`: the stored reason, None if the controller is not paused."""

    state: ClusterState
    tree: Tree
    live: frozenset[int]
    controller: int | None
    paused: str | None
    moving: frozenset[tuple[str, int]]
    imbalances: Mapping[int, tuple[int, int]]
    """By broker: the number of partitions that prefer it and that it does not lead, and the number that prefer it."""

    def setting(self, topic: str, name: str) -> str | None:
        """A topic's own, else the cluster's; None if neither says anything that can be read."""
        for path in (paths.config_topic(topic), paths.CONFIG_BROKER_DEFAULT):
            row = self.tree.get(path)
            if row is None:
                continue
            try:
                said = decode_config(path, row.data).config.get(name)
            except DamagedZnode:
                continue
            if said is not None:
                return said
        return None


def view_of(tree: Tree, state: ClusterState) -> ClusterView:
    live = frozenset(broker.broker_id for broker in state.brokers)
    controller = state.controller.broker_id if state.controller else None
    table = state.partitions
    moving = frozenset((one.topic, one.partition) for one in map(table.partition, table.reassigning()))
    row = tree.get(paths.CONTROLLER_PAUSE)
    paused = None
    if row is not None:
        try:
            paused = decode_pause(row.path, row.data).reason
        except DamagedZnode:
            paused = "a reason that can't be read"
    return ClusterView(
        state, tree, live, controller if controller in live else None, paused, moving, _imbalances(state)
    )


def _imbalances(state: ClusterState) -> dict[int, tuple[int, int]]:
    table = state.partitions
    if not table.assignments.assignment.shape[1]:
        return {}
    preferred = table.assignments.assignment[:, 0]
    deleting = [place for place, name in enumerate(table.assignments.names) if name in state.deletions]
    not_deleting = ~np.isin(table.assignments.topic_index, deleting) & (preferred >= 0)
    missed = not_deleting & table.states.present & (table.states.leader != preferred)
    found, wanted = np.unique(preferred[not_deleting], return_counts=True)
    short = dict(zip(*(one.tolist() for one in np.unique(preferred[missed], return_counts=True)), strict=True))
    return {
        broker: (short.get(broker, 0), count) for broker, count in zip(found.tolist(), wanted.tolist(), strict=True)
    }


def name_of(partition: ClusterPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def ids(some: Collection[int]) -> str:
    return ", ".join(map(str, some)) or "none"


def verb(some: Collection[int], one: str, more: str) -> str:
    return one if len(some) == 1 else more


def brokers(some: Collection[int]) -> str:
    return f"broker{'' if len(some) == 1 else 's'} {ids(some)}"


def any_of(some: Collection[int]) -> str:
    return brokers(some) if len(some) == 1 else f"one of {brokers(some)}"


def explain_partition(view: ClusterView, row: int) -> Iterator[Diagnosis]:
    """Worst first; nothing for a partition that is as it should be."""
    table = view.state.partitions
    partition = table.partition(row)
    if table.unreadable[row]:
        yield _damaged(name_of(partition), paths.partition_state(partition.topic, partition.partition))
        return
    if partition.topic in view.state.deletions:
        yield explain_deletion(view, partition.topic)
        return
    if partition.zk_version < 0:
        yield _without_state(view, partition)
    elif table.offline[row]:
        yield _offline(view, partition)
    if table.leader_outside_isr[row] or table.isr_outside_assignment[row]:
        yield _contradiction(partition)
    if table.under_replicated[row]:
        yield _under_replicated(view, partition)
    too_few = _below_min_insync(view, partition)
    if too_few is not None:
        yield too_few
    if table.off_preferred[row]:
        yield _off_preferred(view, row, partition)
    if (partition.topic, partition.partition) in view.moving:
        yield _moving(view, partition)
    asked = view.state.reassignments.get((partition.topic, partition.partition))
    if asked is not None:
        yield _not_begun(view, partition, asked)
    if (partition.topic, partition.partition) in view.state.preferred_elections:
        yield _election_asked(view, partition)


def _damaged(subject: str, path: str) -> Diagnosis:
    return Diagnosis(
        subject,
        "damaged",
        f"{path} can't be read",
        "what can't be read is left out by the controller and never overwritten",
        (f"repair {path}",),
    )


def no_controller(view: ClusterView) -> str | None:
    """Return why there is no controller, or None if there is one."""
    if view.controller is not None:
        return None
    if view.state.controller is None:
        damaged = view.tree.get(paths.CONTROLLER) is not None
        return f"there is no controller: /controller {'names no broker' if damaged else 'is not there'}"
    return f"/controller names broker {view.state.controller.broker_id}, which is not registered"


def _without_state(view: ClusterView, partition: ClusterPartition) -> Diagnosis:
    live = [broker for broker in partition.assignment if broker in view.live]
    rule = "a new partition's first live replica leads, all live ones are its ISR"
    reason = no_controller(view)
    if not live:
        why = f"it was never led: none of its replicas {ids(partition.assignment)} is registered"
        return Diagnosis(name_of(partition), "offline", why, rule, (f"{any_of(partition.assignment)} registers",))
    if reason is not None:
        return Diagnosis(
            name_of(partition), "offline", f"it was never led, and {reason}", rule, ("a broker is elected",)
        )
    why = f"it has no state yet; broker {live[0]} is to lead it"
    return Diagnosis(
        name_of(partition), "offline", why, rule, (f"controller {view.controller} takes up the topic's change",)
    )


def _offline(view: ClusterView, partition: ClusterPartition) -> Diagnosis:
    assignment, isr = partition.assignment, partition.isr
    gone = "it has no leader" if partition.leader < 0 else f"its leader {partition.leader} is not registered"
    rule = (
        "the first replica of the assignment that is live and in the ISR leads; without one there is no leader, unless"
        " unclean election is enabled"
    )
    elected = elect_offline(assignment, isr, view.live)
    if elected is not None:
        reason = no_controller(view)
        why = f"{gone}; broker {elected.leader} is live and in the ISR ({ids(isr)})"
        if reason is not None:
            return Diagnosis(name_of(partition), "offline", f"{why}, but {reason}", rule, ("a broker is elected",))
        soon = f"controller {view.controller} elects {elected.leader}, unless that broker is shutting down"
        return Diagnosis(name_of(partition), "offline", f"{why}, and may lead at once", rule, (soon,))
    why = f"{gone}, and of its ISR ({ids(isr)}) none is registered"
    in_sync = [broker for broker in assignment if broker in isr]
    changes: list[str] = [f"{any_of(in_sync)} registers: nothing is lost"]
    outside = [broker for broker in assignment if broker in view.live]
    if outside:
        allowed = view.setting(partition.topic, UNCLEAN)
        said = "is not set in ZooKeeper (by default false)" if allowed is None else f"is {allowed}"
        why += f"; {brokers(outside)} outside of it {verb(outside, 'lives', 'live')}, and {UNCLEAN} {said}"
        changes.append(
            f"{UNCLEAN}=true for the topic, or an unclean election by request:"
            f" broker {outside[0]} leads, and records that it lacks are lost"
        )
    return Diagnosis(name_of(partition), "offline", why, rule, tuple(changes))


def _contradiction(partition: ClusterPartition) -> Diagnosis:
    return Diagnosis(
        name_of(partition),
        "contradictory",
        f"leader {partition.leader}, ISR {ids(partition.isr)}, assignment {ids(partition.assignment)}",
        "a leader is in its ISR, and an ISR within the assignment",
        ("no controller writes such a state: find out who did",),
    )


def _under_replicated(view: ClusterView, partition: ClusterPartition) -> Diagnosis:
    wanted = [broker for broker in partition.assignment if broker not in partition.adding]
    dead = [broker for broker in wanted if broker not in view.live]
    lagging = [broker for broker in wanted if broker in view.live and broker not in partition.isr]
    facts, changes = [], []
    if dead:
        facts.append(f"{brokers(dead)} {verb(dead, 'is', 'are')} not registered")
        changes.append(f"{brokers(dead)} {verb(dead, 'registers and catches', 'register and catch')} up")
    if lagging:
        facts.append(
            f"{brokers(lagging)} {verb(lagging, 'lives and is', 'live and are')} not in the ISR ({ids(partition.isr)})"
        )
        if partition.leader in view.live:
            changes.append(
                f"{brokers(lagging)} {verb(lagging, 'catches', 'catch')} up with leader {partition.leader}, which then"
                " asks for it"
            )
        else:
            changes.append("a leader is elected: without one no replica can catch up")
    return Diagnosis(
        name_of(partition),
        "under-replicated",
        "; ".join(facts) or "its ISR names brokers that are not registered",
        "the leader takes a replica into the ISR once it has what the leader has, and out of it after"
        " replica.lag.time.max.ms without; the controller takes out those whose broker is gone",
        tuple(changes),
    )


def least_in_sync(view: ClusterView, topic: str) -> int:
    """min.insync.replicas of a topic, as far as ZooKeeper has it."""
    text = view.setting(topic, MIN_INSYNC)
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 1


def _below_min_insync(view: ClusterView, partition: ClusterPartition) -> Diagnosis | None:
    least = least_in_sync(view, partition.topic)
    in_sync = [broker for broker in partition.isr if broker in view.live]
    if partition.zk_version < 0 or len(in_sync) >= least or partition.leader not in view.live:
        return None
    return Diagnosis(
        name_of(partition),
        "not writable with acks=all",
        f"{len(in_sync)} of its ISR are registered, {MIN_INSYNC} is {least}",
        f"a record sent with acks=all is taken while the ISR has {MIN_INSYNC} members",
        (f"{least - len(in_sync)} more replicas come into sync", f"{MIN_INSYNC} of the topic is lowered"),
    )


def _off_preferred(view: ClusterView, row: int, partition: ClusterPartition) -> Diagnosis:
    preferred = partition.assignment[0]
    rule = "the assignment's first replica is given the leadership back if it is live and in the ISR"
    leads = f"broker {partition.leader} leads, {preferred} is preferred"
    if preferred not in view.live:
        return Diagnosis(
            name_of(partition),
            "off its preferred leader",
            f"{leads} and is not registered",
            rule,
            (f"broker {preferred} registers and comes into sync",),
        )
    if elect_preferred(partition.assignment, partition.isr, view.live) is None:
        return Diagnosis(
            name_of(partition),
            "off its preferred leader",
            f"{leads} and is not in the ISR ({ids(partition.isr)})",
            rule,
            (f"broker {preferred} catches up with leader {partition.leader}",),
        )
    missed, wanted = view.imbalances[preferred]
    why = f"{leads} and could lead now; it misses {missed} of the {wanted} partitions that it should lead"
    over = missed * 100 > wanted * IMBALANCE_PERCENTAGE
    changes = ["a preferred election by request (ElectLeaders, or /admin/preferred_replica_election)"]
    if view.moving:
        why += f"; nothing goes back by itself while {len(view.moving)} partitions are being reassigned"
        changes.append("the reassignments end")
    elif view.paused is not None:
        why += f"; the controller is paused ({view.paused})"
        changes = ["the controller is resumed"]
    elif over:
        changes.append("the next check of the balance, if auto.leader.rebalance.enable")
    else:
        why += f", not more than {IMBALANCE_PERCENTAGE}% (leader.imbalance.per.broker.percentage, by default)"
    return Diagnosis(name_of(partition), "off its preferred leader", why, rule, tuple(changes))


def _moving(view: ClusterView, partition: ClusterPartition) -> Diagnosis:
    target = [broker for broker in partition.assignment if broker not in partition.removing]
    waiting = [broker for broker in target if broker not in partition.isr]
    facts = f"adding {ids(partition.adding)}, removing {ids(partition.removing)}, ISR {ids(partition.isr)}"
    rule = "a reassignment ends once every replica of its target is in the ISR"
    dead = [broker for broker in waiting if broker not in view.live]
    changes: list[str] = []
    if dead:
        facts += f"; {brokers(dead)} of the target {verb(dead, 'is', 'are')} not registered"
        changes.append(f"{brokers(dead)} {verb(dead, 'registers', 'register')}: it waits, and does not fail")
    lagging = [broker for broker in waiting if broker in view.live]
    if lagging and partition.leader in view.live:
        facts += f"; {brokers(lagging)} of the target {verb(lagging, 'is', 'are')} not in the ISR"
        changes.append(f"{brokers(lagging)} {verb(lagging, 'catches', 'catch')} up with leader {partition.leader}")
    elif lagging:
        facts += "; without a leader no replica can catch up"
        changes.append("a leader is elected")
    if not waiting:
        facts += "; the whole target is in sync"
        changes.append(no_controller(view) or f"controller {view.controller} ends it")
    changes.append("it is cancelled or overridden")
    return Diagnosis(name_of(partition), "being reassigned", facts, rule, tuple(changes))


def _not_begun(view: ClusterView, partition: ClusterPartition, asked: Sequence[int]) -> Diagnosis:
    why = f"{paths.REASSIGN_PARTITIONS} asks for replicas {ids(asked)}"
    changes = (no_controller(view) and "a broker is elected", view.paused is not None and "the controller is resumed")
    if view.paused is not None:
        why += f"; the controller is paused ({view.paused})"
    return Diagnosis(
        name_of(partition),
        "to be reassigned",
        why + (f"; {reason}" if (reason := no_controller(view)) else ""),
        "the controller takes up what the znode asks for, and deletes it when all of it is done",
        tuple(one for one in changes if one) or (f"controller {view.controller} takes it up",),
    )


def _election_asked(view: ClusterView, partition: ClusterPartition) -> Diagnosis:
    reason = no_controller(view)
    why = f"{paths.PREFERRED_ELECTION} names it and was not taken up"
    if view.paused is not None:
        why += f"; the controller is paused ({view.paused})"
    changes = "a broker is elected" if reason else f"controller {view.controller} takes it up"
    return Diagnosis(
        name_of(partition),
        "to be given its preferred leader",
        why + (f"; {reason}" if reason else ""),
        "the controller elects what the znode names and deletes it, unless it is paused",
        ("the controller is resumed",) if view.paused is not None else (changes,),
    )


def explain_deletion(view: ClusterView, topic: str) -> Diagnosis:
    """Explain why a topic that is to be deleted still exists."""
    rule = "a topic goes once every replica's broker has deleted it and every live broker has forgotten it"
    rows = rows_of(view, topic)
    if not rows:
        return Diagnosis(
            topic,
            "being deleted",
            "only the request is left",
            rule,
            (f"controller {view.controller} removes it" if view.controller is not None else "a broker is elected",),
        )
    partitions = [view.state.partitions.partition(row) for row in rows]
    dead = sorted({broker for one in partitions for broker in one.assignment} - view.live)
    moving = [one for one in partitions if (one.topic, one.partition) in view.moving]
    facts, changes = [f"{paths.delete_topic(topic)} asks for it"], []
    if dead:
        facts.append(
            f"{brokers(dead)} {verb(dead, 'has', 'have')} replicas of it and {verb(dead, 'is', 'are')} not registered"
        )
        changes.append(f"{brokers(dead)} {verb(dead, 'registers', 'register')}")
    if moving:
        facts.append(f"{len(moving)} of its partitions are being reassigned")
        changes.append("the reassignment ends")
    if reason := no_controller(view):
        facts.append(reason)
        changes.append("a broker is elected")
    if not changes:
        facts.append("nothing that ZooKeeper shows holds it up")
        changes.append(
            "the brokers answer; one that could not delete a replica is asked again every 30 s, when it registers"
            " anew, or by the next controller; with delete.topic.enable=false the request is taken out"
        )
    return Diagnosis(topic, "being deleted", "; ".join(facts), rule, tuple(changes))


def rows_of(view: ClusterView, topic: str) -> range:
    """The rows of a topic's partitions, () if there is none of that name."""
    held = view.state.partitions.assignments
    if topic not in held.names:
        return range(0)
    place = list(held.names).index(topic)
    return range(int(held.starts[place]), int(held.starts[place + 1]))


SUBJECT = "controller"


def explain_controller(view: ClusterView) -> Iterator[Diagnosis]:
    """Worst first; nothing where a registered broker leads and its znodes are sound."""
    for obstacle in obstacles(view):
        yield Diagnosis(
            SUBJECT,
            f"blocked ({obstacle.reason.value})",
            obstacle.why,
            "a broker becomes controller by creating /controller and raising /controller_epoch in one transaction;"
            " while something is in the way, every broker tries again with a back-off",
            (obstacle.change,),
        )
    if reason := no_controller(view):
        yield Diagnosis(
            SUBJECT,
            "missing",
            reason,
            "whichever broker creates /controller leads",
            ("a broker that lives stands for election: look at its log, and at its session",),
        )
    yield from _of_another_session(view)
    yield from _epoch(view)
    if view.tree.get(paths.CLUSTER_ID) is None:
        yield Diagnosis(
            "the cluster's id",
            "missing",
            f"{paths.CLUSTER_ID} is not there",
            "a broker reads the cluster's id when it starts, and makes a new one if there is none; brokers of different"
            " ids do not belong together",
            (f"create {paths.CLUSTER_ID} with the id in the brokers' logs and meta.properties",),
        )
    if view.paused is not None:
        yield Diagnosis(
            SUBJECT,
            "paused",
            f"{paths.CONTROLLER_PAUSE} says: {view.paused}",
            "while it is there leaders are elected for failures, and nothing is moved by choice",
            ("camerlengo pause --resume",),
        )


def obstacles(view: ClusterView) -> list[Obstacle]:
    found = (in_controller(view.tree.get(paths.CONTROLLER)), in_epoch(view.tree.get(paths.CONTROLLER_EPOCH)))
    return [obstacle for obstacle in found if obstacle is not None]


def _of_another_session(view: ClusterView) -> Iterator[Diagnosis]:
    row = view.tree.get(paths.CONTROLLER)
    if row is None or not row.stat.ephemeral_owner:
        return
    named = named_in(row)
    sessions = {broker.broker_id: broker.session for broker in view.state.brokers}
    if named not in sessions or sessions[named] == row.stat.ephemeral_owner:
        return
    yield Diagnosis(
        SUBJECT,
        "in doubt",
        f"{paths.CONTROLLER} names broker {named} and belongs to session 0x{row.stat.ephemeral_owner:x}; that broker is"
        f" registered in session 0x{sessions[named]:x}",
        "only the session that owns /controller decides who leads: it is an earlier session of that broker, which will"
        " expire, or somebody has rewritten the znode",
        (f"if it lasts longer than a session timeout, delete it ({SHELL} delete {paths.CONTROLLER})",),
    )


def _epoch(view: ClusterView) -> Iterator[Diagnosis]:
    """/controller_epoch is only unusual, never in the way: the next election corrects it."""
    row, states = view.tree.get(paths.CONTROLLER_EPOCH), view.state.partitions.states
    known = int(states.controller_epoch[states.present].max(initial=0))
    rule = (
        "each term's epoch is above all earlier ones: brokers refuse requests of a lower epoch. The controller notices"
        " a change of /controller_epoch at its next write, and the next election corrects it"
    )
    change = f"delete {paths.CONTROLLER} ({SHELL} delete {paths.CONTROLLER}): a controller is elected at once"
    if row is None:
        if known or view.state.controller is not None:
            why = f"{paths.CONTROLLER_EPOCH} is not there, and epoch {known} is in use"
            yield Diagnosis("the controller epoch", "missing", why, rule, (change,))
        return
    epoch = epoch_in(row)
    if epoch is None:
        return
    if epoch > HIGHEST_EPOCH:
        why = f"{paths.CONTROLLER_EPOCH} holds {epoch}, above {HIGHEST_EPOCH}; the highest epoch in use is {known}"
        yield Diagnosis("the controller epoch", "too high", why, rule, (change,))
    elif epoch < known:
        why = f"{paths.CONTROLLER_EPOCH} holds {epoch}, and a partition's state has epoch {known}"
        yield Diagnosis("the controller epoch", "too low", why, rule, (change,))


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
    is_number = number.isascii() and number.isdigit()
    if is_number and (_row(view, topic, int(number)) is not None or _is_damaged(view, topic)):
        yield Kind.PARTITION, Subject(Kind.PARTITION, topic, int(number))


def _row(view: ClusterView, topic: str, partition: int) -> int | None:
    held = view.state.partitions.assignments
    return next((row for row in rows_of(view, topic) if held.partition[row] == partition), None)


def explain(view: ClusterView, subject: Subject) -> tuple[Diagnosis, ...]:
    """Nothing where all is as it should be."""
    match subject.kind:
        case Kind.PARTITION:
            row = _row(view, subject.name, subject.partition)
            return tuple(_explain_topic(view, subject.name) if row is None else explain_partition(view, row))
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
    if _is_damaged(view, topic):
        why = next((damage.why for damage in view.state.damaged if damage.path == paths.topic(topic)), "")
        yield Diagnosis(
            topic,
            "damaged",
            f"{paths.topic(topic)} can't be read{why and f': {why}'}",
            "what can't be read is left out by the controller and never overwritten",
            (f"repair {paths.topic(topic)}",),
        )
    for row in rows_of(view, topic):
        yield from explain_partition(view, row)


def _is_damaged(view: ClusterView, topic: str) -> bool:
    """Return whether the topic's znode is there and can't be used, so that its partitions are not known."""
    held = view.state.partitions.assignments
    return topic in held.names and not held.present[list(held.names).index(topic)]


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
