"""What may not move stays as it is and is named in the log; the others move, and the trace has each move once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from transitions import Machine

from controller.clock import spawn
from controller.core import context, reassignment, state_changes
from controller.core.context import Replicas
from controller.core.leadership import ControllerSettings, Term
from controller.core.reassignment import Removed
from controller.trace import PartitionMoved
from statemachines.machine import CompiledMachine, InvalidTransition, compile_machine
from statemachines.partition import PartitionState
from statemachines.reassignment import REASSIGNMENT, ReassignmentState
from statemachines.replica import ReplicaState
from tests.core.driving import Cluster, Host
from tests.core.reassigning import ask_by_znode, put_in_sync, two_of_three

Move = tuple[str, int, int, str, str]
"""Topic, partition, broker (-1: the partition's own), from and to."""


def scene() -> tuple[Cluster, Host, Term]:
    """Topic a with partitions 0 and 1 on three and two brokers, and twelve partitions of topic b on broker 1."""
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.topic("a", {0: (2, 1, 3), 1: (3, 2)})
    cluster.topic("b", dict.fromkeys(range(12), (1,)))
    host = cluster.host(1)
    term = host.controller.term
    assert term is not None
    del host.trace.events[:]
    return cluster, host, term


def moves(host: Host) -> list[Move]:
    found = host.trace.of(PartitionMoved)
    assert {one.controller_epoch for one in found} <= {host.controller.controller_epoch}
    return [(one.topic, one.partition, one.replica, one.source, one.target) for one in found]


def replicas(term: Term, *some: tuple[str, int, int]) -> Replicas:
    """Replicas by topic, partition and slot."""
    rows = [term.context.partitions.row_of(topic, partition) for topic, partition, _ in some]
    return Replicas(np.array(rows, dtype=np.int64), np.array([slot for *_, slot in some], dtype=np.int64))


def named(pairs: Replicas) -> list[tuple[int, int]]:
    return list(zip(pairs.rows.tolist(), pairs.slots.tolist(), strict=True))


def test_replicas_that_may_not_move_stay_and_are_named() -> None:
    _, host, term = scene()
    table = term.context.partitions
    first = replicas(term, ("a", 1, 0))
    assert named(state_changes.move_replicas(term, first, ReplicaState.Offline)) == named(first)
    asked = replicas(term, ("a", 0, 2), ("a", 1, 0), ("a", 1, 1), ("b", 5, 0))
    moved = state_changes.move_replicas(term, asked, ReplicaState.DeletionStarted)
    assert named(moved) == named(first)
    assert moves(host) == [
        ("a", 1, 3, "Online", "Offline"),
        ("a", 1, 3, "Offline", "DeletionStarted"),
    ]
    assert [note.rpartition("] ")[2] for note in host.notes("error")] == [
        "replica a-0 on broker 3: event DeletionStarted is not allowed in state Online",
        "replica a-1 on broker 2: event DeletionStarted is not allowed in state Online",
        "replica b-5 on broker 1: event DeletionStarted is not allowed in state Online",
    ]
    states = [[ReplicaState(one).name for one in table.replica_state[row].tolist()] for row in (0, 1)]
    assert states[0] == ["Online"] * 3
    assert states[1][:2] == ["DeletionStarted", "Online"]


def test_in_a_table_of_single_replicas_each_is_in_its_own_row() -> None:
    cluster = Cluster()
    cluster.topic("b", dict.fromkeys(range(3), (1,)))
    term = cluster.host(1).controller.term
    assert term is not None
    context = term.context
    assert context.partitions.width == 1
    context.move_replicas(replicas(term, ("b", 0, 0)), ReplicaState.Offline)
    every = replicas(term, *(("b", partition, 0) for partition in range(3)))
    assert named(context.move_replicas(every, ReplicaState.DeletionStarted)) == [(1, 0), (2, 0)]


def test_of_many_that_may_not_move_ten_are_named() -> None:
    _, host, term = scene()
    every = replicas(term, *(("b", partition, 0) for partition in range(12)))
    assert len(state_changes.move_replicas(term, every, ReplicaState.New)) == 0
    rows = every.rows
    state_changes.move_partitions(term, rows, PartitionState.New)
    notes = [note.rpartition("] ")[2] for note in host.notes("error")]
    assert notes == [f"replica b-{one} on broker 1: event New is not allowed in state Online" for one in range(10)] + [
        f"partition b-{one}: event New is not allowed in state Online" for one in range(10)
    ]
    assert moves(host) == []


def test_partitions_that_may_not_move_stay_and_are_named() -> None:
    _, host, term = scene()
    table = term.context.partitions
    rows = np.array([table.row_of("a", 1), table.row_of("b", 0)], dtype=np.int64)
    state_changes.move_partitions(term, rows[:1], PartitionState.Offline)
    state_changes.move_partitions(term, rows, PartitionState.NonExistent)
    assert [PartitionState(one).name for one in table.partition_state[rows].tolist()] == ["NonExistent", "Online"]
    assert moves(host) == [("a", 1, -1, "Online", "Offline"), ("a", 1, -1, "Offline", "NonExistent")]
    (note,) = host.notes("error")
    assert note.endswith("] partition b-0: event NonExistent is not allowed in state Online")


@pytest.mark.parametrize("traced", [True, False])
def test_removed_replicas_go_to_their_end_and_those_that_may_not_are_named(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, host, term = scene()
    monkeypatch.setattr(host.trace, "enabled", traced, raising=False)
    row = term.context.partitions.row_of("a", 0)
    assert row is not None
    states = {4: ReplicaState.Online, 5: ReplicaState.NonExistent, 6: ReplicaState.New}
    spawn(reassignment.stop(term, Removed.of({row: {broker: int(state) for broker, state in states.items()}})))
    rest = ["Offline", "DeletionStarted", "DeletionSuccessful", "NonExistent"]

    def steps(broker: int, path: Sequence[str]) -> list[Move]:
        return [("a", 0, broker, one, other) for one, other in pairwise(path)]

    four, six = steps(4, ["Online", *rest]), steps(6, ["New", *rest])
    assert moves(host) == ([one for pair in zip(four, six, strict=True) for one in pair] if traced else [])
    assert [note.rpartition("] ")[2] for note in host.notes("error")] == [
        f"replica a-0 on broker 5: event {target} is not allowed in state NonExistent" for target in rest[:3]
    ] + ["replica a-0 on broker 5: event NonExistent is not allowed in state NonExistent"]


def without(source: ReassignmentState, event: ReassignmentState) -> CompiledMachine[ReassignmentState]:
    """The reassignment machine without one of its transitions."""
    allowed = {
        (one.name, other.name)
        for one in ReassignmentState
        for other in ReassignmentState
        if REASSIGNMENT.allowed[one, other] and (one, other) != (source, event)
    }
    declaration = Machine(None, states=ReassignmentState, initial=ReassignmentState.Settled, auto_transitions=False)
    for one, other in sorted(allowed):
        declaration.add_transition(other, one, other)
    return compile_machine("reassignment", ReassignmentState, declaration)


@pytest.mark.parametrize(
    ("source", "event"),
    [
        (ReassignmentState.Settled, ReassignmentState.Adding),
        (ReassignmentState.Adding, ReassignmentState.Adding),
        (ReassignmentState.Adding, ReassignmentState.Completing),
        (ReassignmentState.Completing, ReassignmentState.Settled),
    ],
)
def test_the_machine_decides_each_step_of_a_reassignment(
    source: ReassignmentState, event: ReassignmentState, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, host = two_of_three()
    monkeypatch.setattr(context, "REASSIGNMENT", without(source, event))
    ask_by_znode(cluster, {0: (3, 4)})
    if cluster.states()["t-0"][1] == 1:  # it has begun: the rest is up to the ISR
        put_in_sync(cluster, host, 0, 2, 3, 4)
        cluster.settle()
    said = f"reassignment t-0: event {event.name} is not allowed in state {source.name}"
    assert any(said in str(note) for note in host.notes("error")), host.notes("error")


def test_the_machine_decides_whether_a_reassignment_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, host = two_of_three(ControllerSettings(reassignments_in_cluster=1))
    monkeypatch.setattr(context, "REASSIGNMENT", without(ReassignmentState.Settled, ReassignmentState.Waiting))
    ask_by_znode(cluster, {0: (3, 4), 1: (3, 4)})
    said = "reassignment t-1: event Waiting is not allowed in state Settled"
    assert any(said in str(note) for note in host.notes("error")), host.notes("error")


def test_states_are_entered_once() -> None:
    _, _, term = scene()
    row = term.context.partitions.row_of("a", 0)
    with pytest.raises(InvalidTransition, match=r"^partition a-0: event New is not allowed in state Online$"):
        term.context.move_all_partitions(np.array([row]), PartitionState.New)
    with pytest.raises(InvalidTransition, match=r"^replica a-0 on broker 1: event New is not allowed in state Online$"):
        term.context.move_all_replicas(replicas(term, ("a", 0, 1)), ReplicaState.New)
