"""The bulk codecs say of every row what the codec for one znode says, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper.codecs import (
    PartitionStateZnode,
    TopicAssignment,
    decode_partition_state,
    decode_topic_assignment,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.codecs_columns import (
    PartitionStateColumns,
    decode_partition_states,
    decode_topic_assignments,
    encode_partition_states,
)
from controller.zookeeper.operations import Columns, DamagedZnode

INT32_MAX = 2**31 - 1
ids = st.integers(0, INT32_MAX)
replicas = st.lists(ids, max_size=5, unique=True).map(tuple)
states = st.builds(PartitionStateZnode, st.integers(-1, INT32_MAX), ids, replicas, ids)
assignments = st.dictionaries(ids, replicas, max_size=8)
topics = st.builds(TopicAssignment, st.none() | st.just("JUNfP4VSTOWZ_6Tfc-zTPA"), assignments, assignments)

GOOD = b'{"controller_epoch":2,"leader":3,"version":1,"leader_epoch":2,"isr":[3,2]}'
NEWER = b'{"leader_recovery_state":1,"controller_epoch":2,"leader":3,"version":1,"leader_epoch":2,"isr":[3,2]}'
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "cut short": GOOD[:30],
    "the end alone": b'"leader_epoch":1,"isr":[]}',
    "two in one": GOOD + b"," + GOOD,
    "closing the array": GOOD + b"]",
    "null": b"null",
    "no object": b"[1]",
    "no ISR": b'{"controller_epoch":2,"leader":3,"version":1,"leader_epoch":2}',
    "a negative epoch": GOOD.replace(b'_epoch":2', b'_epoch":-2'),
    "a negative member": GOOD.replace(b"[3,2]", b"[3,-2]"),
    "leader -2": GOOD.replace(b'leader":3', b'leader":-2'),
    "too large": GOOD.replace(b'leader":3', b'leader":4294967296'),
    "text for a number": GOOD.replace(b'leader":3', b'leader":"3"'),
    "a fraction": GOOD.replace(b'leader":3', b'leader":3.5'),
    "no UTF-8": b'{"x":"\xff",' + GOOD[1:],
    "nested too deep": b'{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "NUL bytes": b"\0" * 10,
}


def columns(datas: Sequence[bytes | None]) -> Columns:
    versions = np.array([-1 if data is None else index for index, data in enumerate(datas)], dtype=np.int32)
    return Columns.of(datas, versions, versions.astype(np.int64), zxid=1)


def row_of(found: PartitionStateColumns, row: int) -> PartitionStateZnode:
    isr = tuple(int(member) for member in found.isr[row] if member >= 0)
    return PartitionStateZnode(
        int(found.leader[row]), int(found.leader_epoch[row]), isr, int(found.controller_epoch[row])
    )


@given(st.lists(states | st.none(), max_size=12), st.integers(0, 3))
def test_states_survive_columns_and_are_written_with_the_same_bytes(
    rows: list[PartitionStateZnode | None], width: int
) -> None:
    datas = [None if row is None else encode_partition_state(row) for row in rows]
    found = decode_partition_states([columns(datas[:5]), columns(datas[5:])], width)
    assert found.isr.shape[1] >= width
    assert found.present.tolist() == [row is not None for row in rows]
    assert not found.damaged
    assert not found.extra
    encoded = encode_partition_states(found.leader, found.leader_epoch, found.controller_epoch, found.isr)
    for index, (row, data) in enumerate(zip(rows, datas, strict=True)):
        if row is not None:
            assert row_of(found, index) == row
            assert encoded[index] == data


@pytest.mark.parametrize("what", DAMAGED)
@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_damaged_state_costs_only_itself(what: str, position: int) -> None:
    datas: list[bytes | None] = [GOOD, NEWER, None]
    datas.insert(position, DAMAGED[what])
    with pytest.raises(DamagedZnode):
        decode_partition_state("/x", DAMAGED[what])
    found = decode_partition_states(columns(datas), 2)
    assert [row for row, _ in found.damaged] == [position]
    assert found.damaged[0][1] == (b"" if DAMAGED[what] == b"null" else DAMAGED[what])
    assert found.present.tolist() == [data in (GOOD, NEWER) for data in datas]
    for row, data in enumerate(datas):
        if data in (GOOD, NEWER):
            assert row_of(found, row) == decode_partition_state("/x", data)


def test_broken_rows_that_join_into_whole_ones_shift_no_neighbour() -> None:
    """The array parses, and has as many elements as there are rows; each would be taken for another's."""
    head, tail = GOOD.split(b",", 1)
    datas = [head, tail, GOOD + b"," + GOOD, GOOD.replace(b"3", b"7")]
    found = decode_partition_states(columns(datas), 2)
    assert [row for row, _ in found.damaged] == [0, 1, 2]
    assert found.leader.tolist() == [-1, -1, -1, 7]


@given(st.lists(st.sampled_from([GOOD, NEWER, *DAMAGED.values()]) | st.none() | st.binary(max_size=6), max_size=8))
def test_columns_and_the_codec_for_one_agree(datas: list[bytes | None]) -> None:
    found = decode_partition_states(columns(datas), 0)
    damaged = {row for row, _ in found.damaged}
    for row, data in enumerate(datas):
        if data is None:
            assert not found.present[row]
            assert row not in damaged
            continue
        try:
            expected = decode_partition_state("/x", data)
        except DamagedZnode:
            assert row in damaged
            assert not found.present[row]
        else:
            assert row_of(found, row) == expected
            assert (row in found.extra) == bool(expected.kept.unknown())


def test_fields_that_are_not_known_survive_a_rewrite_in_bulk() -> None:
    found = decode_partition_states(columns([GOOD, NEWER]), 2)
    assert found.extra == {1: NEWER}
    leader = np.array([2, 2], dtype=np.int32)
    written = encode_partition_states(leader, found.leader_epoch + 1, 5, found.isr, found.extra)
    assert written == [
        b'{"controller_epoch":5,"leader":2,"version":1,"leader_epoch":3,"isr":[3,2]}',
        b'{"leader_recovery_state":1,"controller_epoch":5,"leader":2,"version":1,"leader_epoch":3,"isr":[3,2]}',
    ]


@given(
    st.lists(
        st.builds(PartitionStateZnode, st.integers(-1, 2) | ids, ids, st.just((1, 2)) | replicas, ids), max_size=4
    ),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_rows_that_are_alike_are_written_as_each_alone(kinds: list[PartitionStateZnode], chosen: list[int]) -> None:
    """Few kinds among many rows, and numbers that do and don't fit into one."""
    rows = [kinds[number % len(kinds)] for number in chosen] if kinds else []
    found = decode_partition_states(columns([encode_partition_state(row) for row in rows]), 2)
    written = encode_partition_states(found.leader, found.leader_epoch, found.controller_epoch, found.isr)
    assert written == [encode_partition_state(row) for row in rows]


def test_gaps_in_an_isr_are_not_written() -> None:
    isr = np.array([[4, -1, 2], [-1, -1, -1], [-1, -1, 9]], dtype=np.int32)
    zero = np.zeros(3, dtype=np.int32)
    written = encode_partition_states(zero, zero, zero, isr)
    assert [data[data.index(b"[") : -1] for data in written] == [b"[4,2]", b"[]", b"[9]"]


def topic_rows(found: Any, topic: int) -> dict[int, tuple[int, ...]]:
    rows = range(found.starts[topic], found.starts[topic + 1])
    assert all(found.topic_index[row] == topic for row in rows)
    return {int(found.partition[row]): tuple(int(r) for r in found.assignment[row] if r >= 0) for row in rows}


@given(st.lists(topics | st.none() | st.just(b'{"partitions":') | st.just(b""), max_size=6))
def test_assignments_survive_columns_by_topic_and_partition(values: list[TopicAssignment | bytes | None]) -> None:
    datas = [encode_topic_assignment(value) if isinstance(value, TopicAssignment) else value for value in values]
    names = [f"topic-{index}" for index in range(len(datas))]
    found = decode_topic_assignments(columns(datas), names)
    assert found.names == tuple(names)
    assert [row for row, _ in found.damaged] == [row for row, value in enumerate(values) if isinstance(value, bytes)]
    for index, value in enumerate(values):
        rows = topic_rows(found, index)
        assert list(rows) == sorted(rows)
        if not isinstance(value, TopicAssignment):
            assert not rows
            assert not found.present[index]
            continue
        assert rows == value.partitions
        assert found.topic_ids[index] == value.topic_id
        adding = {int(found.partition[row]): r for row, r in found.adding.items() if found.topic_index[row] == index}
        assert adding == {p: r for p, r in value.adding.items() if r and p in value.partitions}


def test_unknown_fields_of_a_topic_are_noted_and_its_rows_read() -> None:
    newer = b'{"partitions":{"1":[2],"0":[1]},"version":4,"observers":{}}'
    older = b'{"version":1,"partitions":{"0":[5]}}'
    found = decode_topic_assignments([columns([newer]), columns([older])], ["newer", "older"])
    assert found.extra == {0: newer}
    assert topic_rows(found, 0) == {0: (1,), 1: (2,)} == decode_topic_assignment("/x", newer).partitions
    assert topic_rows(found, 1) == {0: (5,)}


def test_names_must_match_the_znodes() -> None:
    with pytest.raises(ValueError, match="2 topic names for 1"):
        decode_topic_assignments(columns([None]), ["a", "b"])


def test_nothing_at_all() -> None:
    assert decode_partition_states([], 3).isr.shape == (0, 3)
    assert decode_topic_assignments([], []).assignment.shape[0] == 0
    empty = np.empty(0, dtype=np.int32)
    assert encode_partition_states(empty, empty, empty, empty.reshape(0, 3)) == []
