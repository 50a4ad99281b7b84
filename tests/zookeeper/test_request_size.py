"""How large a request is reckoned to be, beside the bytes that are sent; and that none above the limit is sent."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.zookeeper import jute, paths
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.jute import GET_DATA
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import (
    ACL,
    ANY_VERSION,
    OPEN_ACL,
    Check,
    Create,
    Delete,
    RequestTooLarge,
    SetData,
    Write,
)
from controller.zookeeper.row_writes import (
    BATCH_BYTES,
    REQUEST_BYTES_MAX,
    REQUEST_HEAD_BYTES,
    SENT_BYTES_MAX,
    ZNODE_BYTES_MAX,
    FencedSets,
    StatePaths,
    StateSets,
    multi_bytes,
    path_batches,
    paths_bytes,
    spans,
)
from tests.zookeeper.client_bench import Bench

names = st.text("ab\u00e9\u3042", min_size=1, max_size=5).map(lambda name: f"/{name}")
data = st.none() | st.binary(max_size=40)
acls = st.none() | st.just(OPEN_ACL) | st.just((ACL(1, "digest", "u:\u00e9"), ACL(31, "world", "anyone")))
writes = st.one_of(
    st.builds(Create, names, data, acl=acls),
    st.builds(SetData, names, data, st.integers(-1, 9)),
    st.builds(Delete, names, st.integers(-1, 9)),
    st.builds(Check, names, st.integers(-1, 9)),
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


FENCE = Check(paths.CONTROLLER_EPOCH, 3)


@given(st.lists(writes, max_size=8))
def test_a_multi_has_the_bytes_that_it_is_reckoned_to_have(operations: list[Write]) -> None:
    body = jute.multi(operations, OPEN_ACL, "")
    assert multi_bytes(operations) == REQUEST_HEAD_BYTES + len(body)


@given(st.lists(names, max_size=8))
def test_a_read_has_no_more_bytes_than_it_is_reckoned_to_have(asked: list[str]) -> None:
    body = jute.multi_read(GET_DATA, asked)
    assert 0 <= paths_bytes(asked) - len(body) - REQUEST_HEAD_BYTES <= 9


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=9), st.integers(1, 9)), min_size=1, max_size=5))
def test_states_have_no_more_bytes_than_they_are_reckoned_to_have(topics: list[tuple[str, int]]) -> None:
    states = StatePaths([(name, list(range(count))) for name, count in topics])
    sets = StateSets(states, [b"state"] * len(states), np.zeros(len(states), dtype=np.int32))
    body = jute.multi_set_states(FENCE, sets, "")
    assert 0 <= multi_bytes(FencedSets(FENCE, sets)) - len(body) - REQUEST_HEAD_BYTES <= 10 * len(states)
    assert [end - start for start, end in spans(sets, 4)] == [end - start for start, end in spans(list(sets), 4)]


def test_batches_are_split_by_count_and_by_bytes() -> None:
    small = [SetData(f"/{n}", b"", 0) for n in range(10)]
    assert list(spans(small, 4)) == [(0, 4), (4, 8), (8, 10)]
    large = [SetData(f"/{n}", b"x" * 200_000, 0) for n in range(5)]
    assert list(spans(large, 4)) == [(0, 2), (2, 4), (4, 5)]
    assert list(spans([SetData("/a", b"x" * BATCH_BYTES, 0)] * 2, 4)) == [(0, 1), (1, 2)]
    assert list(spans([], 4)) == []
    long = [f"/{'x' * 30_000}{n}" for n in range(40)]
    batches = list(path_batches(long, 500))
    assert [path for batch in batches for path in batch] == long
    assert all(paths_bytes(batch) <= BATCH_BYTES for batch in batches)


def test_wide_states_are_split_by_bytes(bench: Bench) -> None:
    """126 replicas of ten digits: 999 of them would be 1.5 MB."""
    assert REQUEST_BYTES_MAX < 999 * 1_500
    numbers = list(range(2_000))
    bench.create("/brokers", paths.BROKER_TOPICS, paths.topic("t"), paths.partitions("t"))
    for start in range(0, len(numbers), 200):
        some = numbers[start : start + 200]
        bench.create(*(paths.partition("t", n) for n in some), *paths.partition_states("t", some))
    node = bench.node()
    leadership = node.win()
    sets = StateSets(StatePaths([("t", numbers)]), [b"s" * 1_500] * 2_000, np.zeros(2_000, dtype=np.int32))
    written = bench.run(node.client.commit_rows(leadership, sets))
    assert written.versions.tolist() == [1] * 2_000


def test_what_no_server_takes_is_refused_and_nothing_is_sent(bench: Bench) -> None:
    bench.create("/a")
    node = bench.node()
    leadership = node.win()
    zxid = bench.server.zxid
    fits = SetData("/a", b"x" * ZNODE_BYTES_MAX, ANY_VERSION)
    for operations in ([SetData("/a", b"x" * SENT_BYTES_MAX, ANY_VERSION)], [fits, SetData("/a", b"x" * 20_000, -1)]):
        with pytest.raises(RequestTooLarge, match=f"expected {SENT_BYTES_MAX} at most .*nothing was sent"):
            bench.wait(node.client.commit(leadership, operations))
        with pytest.raises(RequestTooLarge):
            bench.wait(node.client.commit_election(operations))
    assert bench.server.zxid == zxid
    assert node.client.session() == leadership.session
    bench.wait(node.client.commit(leadership, [fits]))


def test_servers_have_the_limit_of_production() -> None:
    assert default_of(EmbeddedZooKeeper) == default_of(InMemoryZooKeeper) == REQUEST_BYTES_MAX == 0xFFFFF


def default_of(server: type) -> object:
    return inspect.signature(server).parameters["max_request_bytes"].default
