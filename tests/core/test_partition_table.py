"""The columns: against a plain model, through random additions and removals."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.context import NO_STATE, ControllerContext, PartitionTable, Replicas, Rows, members, padded
from statemachines.partition import PartitionState
from statemachines.replica import ReplicaState

NAMES = ("a", "b", "c", "d")
PARTITIONS = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(st.sampled_from(NAMES), PARTITIONS), min_size=1, max_size=3)),
        st.tuples(st.just("remove"), st.lists(st.sampled_from(NAMES), max_size=2)),
    ),
    max_size=8,
)


def add(table: PartitionTable, topics: list[tuple[str, dict[int, tuple[int, ...]]]]) -> Rows:
    flat = [(index, partition) for index, (_, found) in enumerate(topics) for partition in sorted(found)]
    return table.add(
        [(name, name.encode().ljust(16)) for name, _ in topics],
        np.array([index for index, _ in flat], dtype=np.int32),
        np.array([partition for _, partition in flat], dtype=np.int32),
        padded([topics[index][1][partition] for index, partition in flat]),
        {place: (99,) for place, (_, partition) in enumerate(flat) if partition == 3},
        {},
    )


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_table_is_what_a_dictionary_would_be(steps: list[tuple[str, list[Any]]]) -> None:
    table = PartitionTable()
    model: dict[str, dict[int, tuple[int, ...]]] = {}
    for kind, what in steps:
        if kind == "remove":
            table.remove_topics(what)
            for name in what:
                model.pop(name, None)
        else:
            topics: dict[str, dict[int, tuple[int, ...]]] = {}
            for name, partitions in what:
                known = model.get(name, {})
                topics[name] = {one: tuple(ids) for one, ids in partitions.items() if one not in known}
            add(table, list(topics.items()))
            for name, added in topics.items():
                model.setdefault(name, {}).update(added)
        check(table, model)


def check(table: PartitionTable, model: dict[str, dict[int, tuple[int, ...]]]) -> None:
    assert {topic.name for topic in table.topics} == set(model)
    assert len(table) == sum(map(len, model.values()))
    for name, partitions in model.items():
        topic = table.topic_named(name)
        assert topic is not None
        assert topic.id == name.encode().ljust(16)
        assert table.partition[topic.rows].tolist() == sorted(partitions)
        for partition in range(11):
            row = table.row_of(name, partition)
            assert (row is not None) == (partition in partitions)
            if row is not None:
                assert table.topic_and_partition(row) == (name, partition)
                assert table.name_of(row) == f"{name}-{partition}"
                assert table.assignment_of(row) == partitions[partition]
                assert table.zk_version[row] == NO_STATE
                assert (row in table.adding) == (partition == 3)
    assert table.row_of("nowhere", 0) is None


def test_states_are_kept_through_growth_and_removal() -> None:
    context = ControllerContext()
    table = context.partitions
    rows = add(table, [("a", {0: (1, 2)}), ("b", {0: (2, 3), 1: (3,)})])
    states = [np.array(column, dtype=np.int32) for column in ([2, 3, 3], [5, 6, 7], [1, 1, 1])]
    context.put_states(rows, states[0], states[1], 4, padded([(2, 1), (3, 2), (3,)]), states[2])
    table.extra[2] = b"kept"
    add(table, [("c", {0: (1, 2, 3, 4)})])
    context.forget_topics(["a"])
    row = table.row_of("b", 1)
    assert row is not None
    assert (table.leader[row], table.leader_epoch[row], members(table.isr[row])) == (3, 7, (3,))
    assert table.extra == {row: b"kept"}
    # A narrower ISR over a wider one leaves nothing of it behind.
    context.put_states(
        np.array([row]), np.array([9], dtype=np.int32), np.array([8], dtype=np.int32), 5, padded([(9,)]), states[2][:1]
    )
    assert members(table.isr[row]) == (9,)


MOVES = st.lists(
    st.tuples(st.lists(st.integers(0, 19), max_size=8, unique=True), st.sampled_from(list(PartitionState)))
)


@settings(max_examples=60, deadline=None)
@given(MOVES)
def test_the_offline_count_is_kept_as_states_change(moves: list[tuple[list[int], PartitionState]]) -> None:
    context = ControllerContext()
    add(context.partitions, [("t", dict.fromkeys(range(20), (1,)))])
    for rows, target in moves:
        context.move_partitions(np.array(rows, dtype=np.int64), target)
        counted = np.count_nonzero(context.partitions.partition_state == PartitionState.Offline)
        assert context.offline_partitions == counted
    context.forget_topics(["t"])
    assert context.offline_partitions == 0


def test_replicas_move_in_their_own_slots() -> None:
    context = ControllerContext()
    add(context.partitions, [("t", {0: (1, 2, 3), 1: (3, 1, 2)})])
    of_one = context.replicas_on([1])
    assert (of_one.rows.tolist(), of_one.slots.tolist()) == ([0, 1], [0, 1])
    assert len(context.move_replicas(of_one, ReplicaState.New)) == 0
    assert len(context.move_replicas(of_one, ReplicaState.Online)) == 0
    refused = context.move_replicas(context.replicas_on([1, 2]), ReplicaState.New)
    assert (refused.rows.tolist(), refused.slots.tolist()) == ([0, 1], [0, 1])
    assert context.partitions.replica_state.tolist() == [[2, 1, 0], [0, 2, 1]]
    assert len(context.move_replicas(Replicas(of_one.rows[:0], of_one.slots[:0]), ReplicaState.New)) == 0
