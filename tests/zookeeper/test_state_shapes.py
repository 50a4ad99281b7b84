"""Reading states by their shape says of every row what decoding it as JSON says, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper import codecs_columns
from controller.zookeeper.codecs_columns import decode_partition_states
from controller.zookeeper.operations import Columns

GOOD = b'{"controller_epoch":2,"leader":3,"version":1,"leader_epoch":2,"isr":[3,2]}'
ROWS = [
    GOOD,
    GOOD.replace(b"2", b"7"),
    GOOD.replace(b"[3,2]", b"[3,9]"),
    GOOD.replace(b"[3,2]", b"[]"),
    GOOD.replace(b"[3,2]", b"[10]"),
    GOOD.replace(b"[3,2]", b"[3 ]"),
    GOOD.replace(b"3", b"12"),
    GOOD.replace(b"3", b"02"),  # no JSON
    GOOD.replace(b'leader":3', b'leader":-1'),
    GOOD.replace(b'leader":3', b'leader":-0'),
    GOOD.replace(b'leader":3', b'leader":-2'),  # not nobody's number
    GOOD.replace(b'version":1', b'version":2'),
    GOOD.replace(b'version":1', b'version": 1'),
    GOOD.replace(b'"version":1,', b""),
    GOOD.replace(b'leader":3', b'leader":2147483647'),
    GOOD.replace(b'leader":3', b'leader":4294967296'),
    GOOD.replace(b'leader":3', b'leader":3.0'),
    GOOD.replace(b'leader":3', b'leader":3e0'),
    GOOD.replace(b'"leader"', b'"le\\u0061der"'),
    GOOD.replace(b'"isr":[3,2]', b'"isr":[3],"isr":[]'),
    GOOD.replace(b'"isr":[3,2]', b'"isr":[],"isr":[3]'),
    GOOD.replace(b'"leader":3', b'"leader":3,"leader":4'),
    GOOD.replace(b"]}", b'],"leader_recovery_state":1}'),
    GOOD.replace(b"[3,2]", b"[3,:]"),
    GOOD.replace(b"[3,2]", b"[3,/]"),
    GOOD.replace(b'"leader":3', b'"leader":x'),
]


def columns(datas: list[bytes | None]) -> Columns:
    versions = np.array([-1 if data is None else 5 for data in datas], dtype=np.int32)
    return Columns.of(datas, versions, versions.astype(np.int64), zxid=1)


def said_of(found: codecs_columns.PartitionStateColumns, row: int) -> tuple[object, ...]:
    isr = [member for member in found.isr[row].tolist() if member >= 0]
    numbers = (found.leader[row], found.leader_epoch[row], found.controller_epoch[row])
    damaged = dict(found.damaged).get(row)
    return *map(int, numbers), isr, bool(found.present[row]), int(found.versions[row]), damaged, found.extra.get(row)


def assert_both_agree(datas: list[bytes | None], width: int = 2) -> None:
    batch = columns(datas)
    shaped = decode_partition_states(batch, width)
    decoded = codecs_columns._decoded_states([batch], width)
    for row in range(len(datas)):
        assert said_of(shaped, row) == said_of(decoded, row), datas[row]


@pytest.mark.parametrize("odd", ROWS)
@pytest.mark.parametrize("place", [0, 4, 20])
def test_one_odd_row_among_many_alike(odd: bytes, place: int) -> None:
    datas: list[bytes | None] = [GOOD] * 20
    datas.insert(place, odd)
    assert_both_agree(datas)


@pytest.mark.parametrize("row", ROWS)
def test_many_of_the_odd_row_itself(row: bytes) -> None:
    assert_both_agree([row] * 20)


@given(st.lists(st.sampled_from(ROWS) | st.none() | st.binary(max_size=8), max_size=60), st.integers(0, 4))
def test_any_mixture(datas: list[bytes | None], width: int) -> None:
    assert_both_agree(datas, width)


_number = st.integers(0, 2_000_000_000)


@given(st.lists(st.tuples(_number, st.integers(-1, 200), _number, st.lists(st.integers(0, 200), max_size=4))))
def test_numbers_of_any_length(rows: list[tuple[int, int, int, list[int]]]) -> None:
    said = '{{"controller_epoch":{},"leader":{},"version":1,"leader_epoch":{},"isr":{}}}'
    assert_both_agree([said.format(*numbers, str(isr).replace(" ", "")).encode() for *numbers, isr in rows])


def test_rows_alike_are_not_decoded_one_by_one() -> None:
    decoded: list[bytes] = []

    def decode(row: bytes) -> object:
        decoded.append(row)
        return codecs_columns._STATE.decode(row)

    batch = columns([GOOD.replace(b"2", str(number % 10).encode()) for number in range(500)])
    shaped = codecs_columns.read_by_shape(batch.json, batch.ends, 2, decode)
    assert shaped is not None
    assert shaped.read.all()
    assert len(decoded) == 1
