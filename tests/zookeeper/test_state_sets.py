"""Writes of states as columns are the operations that they stand for, one by one and as a request's bytes; their
results are those that a reply has, one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper import jute, paths
from controller.zookeeper.codecs import PartitionStateZnode, encode_partition_state
from controller.zookeeper.operations import (
    ANY_VERSION,
    OPEN_ACL,
    BadVersion,
    Check,
    ControllerMoved,
    MultiFailed,
    SetData,
    Stat,
)
from controller.zookeeper.row_writes import STATES_A_BATCH, FencedSets, SetResults, StatePaths, StateSets
from tests.zookeeper.client_bench import Bench
from tests.zookeeper.test_state_paths import TOPICS, spelled_out

LONGEST_TOPIC_NAME = 249
FENCE = Check(paths.CONTROLLER_EPOCH, 7)
SETS = st.builds(
    lambda topics, datas, versions: sets_of(topics, datas, versions),
    TOPICS,
    st.lists(st.sampled_from([b"", b"{}", b'{"leader":1}']) | st.binary(max_size=9), min_size=1, max_size=7),
    st.lists(st.sampled_from([0, 1]) | st.integers(0, 2**31 - 1), min_size=1, max_size=7),
)


def sets_of(topics: list[tuple[str, list[int]]], datas: list[bytes], versions: list[int]) -> StateSets:
    """Datas and versions are dealt out in turn."""
    names = StatePaths(topics)
    places = range(len(names))
    numbers = np.array([versions[place % len(versions)] for place in places], dtype=np.int32)
    return StateSets(names, [datas[place % len(datas)] for place in places], numbers)


def operations_of(sets: StateSets) -> list[SetData]:
    names = spelled_out(list(sets.paths.topics))
    return [SetData(*one) for one in zip(names, sets.data, sets.versions.tolist(), strict=True)]


@given(sets=SETS, chroot=st.sampled_from(["", "/kafka", "/a/b"]))
def test_a_requests_bytes_are_those_of_its_operations(sets: StateSets, chroot: str) -> None:
    ours = jute.multi_set_states(FENCE, sets, chroot)
    assert ours == jute.multi([FENCE, *operations_of(sets)], OPEN_ACL, chroot)


@given(sets=SETS, first=st.integers(-5, 40), last=st.integers(-5, 40))
def test_they_are_a_sequence_of_operations_and_so_is_each_run_of_them(sets: StateSets, first: int, last: int) -> None:
    written = operations_of(sets)
    assert list(sets) == written
    assert [sets[place] for place in range(-len(written), len(written))] == written + written
    run = sets[first:last]
    assert isinstance(run, StateSets)
    assert list(run) == written[first:last]
    assert list(sets[first:last:2]) == written[first:last:2]
    fenced = FencedSets(FENCE, sets)
    assert list(fenced) == [FENCE, *written]
    assert [fenced[place] for place in range(len(fenced))] == [FENCE, *written]
    assert fenced[-len(fenced)] == FENCE
    assert list(fenced[:2]) == [FENCE, *written[:1]]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 paths, 1 states and 2 versions"):
        StateSets(StatePaths([("t", [0, 1])]), [b""], np.zeros(2, dtype=np.int32))


STATS = [Stat(*(1_000 * row + field for field in range(11))) for row in range(3)]


def reply(checks: int) -> bytes:
    heads = struct.pack("!iBi", jute.CHECK, 0, 0) * checks
    sets = b"".join(struct.pack("!iBi", jute.SET_DATA, 0, 0) + struct.pack("!qqqqiiiqiiq", *stat) for stat in STATS)
    return b"reply" + heads + sets + struct.pack("!iBi", -1, 1, -1)


@pytest.mark.parametrize("checks", [0, 1])
def test_results_are_stats_made_when_looked_at(checks: int) -> None:
    results, index, code = jute.read_multi(reply(checks), 5, checks + 3)
    assert (index, code) == (-1, 0)
    assert isinstance(results, SetResults)
    assert list(results) == [None] * checks + STATS
    assert results[-1] == STATS[-1]
    assert results.versions.tolist() == [4, 1_004, 2_004]
    behind = results[checks:]
    assert isinstance(behind, SetResults)
    assert list(behind) == STATS
    assert list(results[checks + 1 :]) == STATS[1:]
    for beyond in (checks + 3, -checks - 4):
        with pytest.raises(IndexError):
            results[beyond]


def test_a_batch_of_the_longest_states_is_below_the_servers_limit() -> None:
    """jute.maxbuffer, as a server has it that nobody has told another."""
    replicas = tuple(range(2**31 - 30, 2**31))
    state = encode_partition_state(PartitionStateZnode(replicas[0], 2**31 - 1, replicas, 2**31 - 1))
    numbers = list(range(2**31 - STATES_A_BATCH, 2**31))
    sets = sets_of([("x" * LONGEST_TOPIC_NAME, numbers)], [state], [0])
    assert len(jute.multi_set_states(FENCE, sets, "/kafka")) < 0xFFFFF


# -- through the client, in memory; `test_kazoo_faults` has them on a real server


def states(bench: Bench, count: int) -> StateSets:
    """Of two topics, there at version 0."""
    topics = [("a", list(range(count // 2))), ("b", list(range(count // 2, count)))]
    tree = ["/brokers", paths.BROKER_TOPICS]
    for name, numbers in topics:
        tree += [paths.topic(name), paths.partitions(name)]
        tree += [paths.partition(name, number) for number in numbers] + paths.partition_states(name, numbers)
    for start in range(0, len(tree), 500):
        bench.create(*tree[start : start + 500])
    return sets_of(topics, [b"new", b"other"], [0])


def test_states_are_written_and_those_that_moved_handed_back(bench: Bench) -> None:
    sets = states(bench, 3 * STATES_A_BATCH)
    node = bench.node()
    leadership = node.win()
    moved = [1, STATES_A_BATCH, len(sets) - 1]
    bench.change(*(SetData(sets.paths[place], b"theirs", 0) for place in moved))
    written = bench.run(node.client.commit_rows(leadership, sets))
    assert np.flatnonzero(written.versions != 1).tolist() == moved
    assert [place for place, _ in written.moved] == moved
    expected = [b"theirs" if place in moved else data for place, data in enumerate(sets.data)]
    assert bench.data(list(sets.paths)) == expected


@pytest.mark.parametrize("applied", [True, False])
def test_states_whose_replies_are_lost_are_written_exactly_once(bench: Bench, applied: bool) -> None:
    sets = states(bench, 2 * STATES_A_BATCH)
    node = bench.node()
    leadership = node.win()
    node.connection.lose_reply(applied=applied)
    assert bench.run(node.client.commit_rows(leadership, sets)).versions.tolist() == [1] * len(sets)
    assert bench.data(list(sets.paths)) == sets.data


def test_states_are_fenced(bench: Bench) -> None:
    sets = states(bench, 10)
    node = bench.node()
    leadership = node.win()
    bench.change(SetData(paths.CONTROLLER_EPOCH, b"9", ANY_VERSION))
    with pytest.raises(ControllerMoved):
        bench.run(node.client.commit_rows(leadership, sets))
    assert bench.data(list(sets.paths)) == [b""] * 10


def test_a_state_that_fails_is_named_by_its_place_behind_the_fence(bench: Bench) -> None:
    sets = states(bench, 10)
    node = bench.node()
    leadership = node.win()
    bench.change(SetData(sets.paths[4], b"theirs", 0))
    with pytest.raises(MultiFailed) as failed:
        bench.wait(node.client.commit(leadership, sets))
    assert failed.value.index == 4
    assert isinstance(failed.value.error, BadVersion)


def test_a_state_of_any_version_is_refused(bench: Bench) -> None:
    sets = sets_of([("a", [0, 1])], [b"new"], [0, ANY_VERSION])
    node = bench.node()
    with pytest.raises(ValueError, match="a/partitions/1/state: rows are written at the version"):
        bench.run(node.client.commit_rows(node.win(), sets))


@pytest.fixture
def bench() -> Bench:
    return Bench()
