"""Reads that are made again, the lease, and the fence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from controller.zookeeper.client import LEASE_FRACTION, READS_IN_FLIGHT, Leadership, ZooKeeperClient
from controller.zookeeper.operations import (
    ANY_VERSION,
    BATCH,
    BadVersion,
    Check,
    ControllerMoved,
    Create,
    Delete,
    LeaseExpired,
    MultiFailed,
    NodeExists,
    SessionGone,
    SetData,
    Stat,
    UnknownOutcome,
    Write,
    ZooKeeperError,
)
from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH
from tests.zookeeper.client_bench import SESSION_TIMEOUT_MS, Bench, Node


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.create("/a", "/b")
    return bench


# -- reads


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1, (READS_IN_FLIGHT + 2) * BATCH + 3])
def test_any_number_of_paths_is_read_in_order(bench: Bench, count: int) -> None:
    node = bench.node()
    paths = [f"/n{number}" for number in range(count)]
    for start in range(0, count, 500):
        bench.change(*(Create(path, b'"%s"' % path.encode()) for path in paths[start : start + 500]))
    asked = [path for real in paths for path in (real, real + "-not-there")][: 2 * count]
    rows = bench.wait(node.client.read(asked)).rows
    assert [row and row.data for row in rows] == [d for p in paths for d in (b'"%s"' % p.encode(), None)]
    listing = bench.wait(node.client.children(asked))
    assert listing.children == ((), None) * count
    columns = bench.wait(node.client.read_columns(asked))
    assert len(columns) == math.ceil(len(asked) / BATCH)
    assert [version for batch in columns for version in batch.versions.tolist()] == [0, -1] * count


def test_the_zxid_of_a_reading_is_its_oldest_batchs(bench: Bench) -> None:
    """A watch armed with it misses nothing of what any batch read."""
    node = bench.node(latency=lambda: 5.0)
    reading = node.client.read(["/a"] * (BATCH + 1))
    before = bench.server.zxid
    bench.settle(6.0)
    bench.set("/a")
    assert bench.wait(reading).zxid == before


def test_a_read_is_made_again_over_broken_connections(bench: Bench) -> None:
    node = bench.node(latency=lambda: 5.0)
    reading = node.client.read(["/a", "/not-there"])
    for _ in range(3):
        bench.settle(2.0)
        node.connection.reset()
        bench.settle(120.0)
    rows = bench.wait(reading).rows
    assert rows[0] is not None
    assert rows[1] is None


def test_a_read_belongs_to_the_session_in_which_it_was_asked(bench: Bench) -> None:
    node = bench.node(latency=lambda: 5.0)
    old = node.client.session()
    reading = node.client.read(["/a"])
    node.connection.reset()
    bench.server.expire(old)
    with pytest.raises(SessionGone) as gone:
        bench.wait(reading)
    assert gone.value.session == old


def test_without_a_session_every_request_says_so(bench: Bench) -> None:
    node = bench.node()
    bench.wait(node.client.close())
    leadership = Leadership(1, 1, 1)
    for pending in (node.client.commit_election([Delete("/a", 0)]), node.client.commit(leadership, [])):
        with pytest.raises(SessionGone):
            bench.wait(pending)
    with pytest.raises(SessionGone):
        bench.wait(node.client.read(["/a"]))
    assert node.client.lease_until_ms() == -math.inf


# -- the fence


def succeed(bench: Bench) -> None:
    """Someone else becomes controller."""
    bench.change(Delete(CONTROLLER, ANY_VERSION), SetData(CONTROLLER_EPOCH, b"2", 1))


def check_a_deposed_controller_writes_nothing(bench: Bench, node: Node) -> None:
    """The check of S03, for the client and for the planted fault."""
    leadership = node.win()
    bench.wait(node.client.commit(leadership, [SetData("/a", b"mine", 0)]))
    succeed(bench)
    with pytest.raises(ControllerMoved):
        bench.wait(node.client.commit(leadership, [SetData("/a", b"stale", 1)]))
    row = bench.row("/a")
    assert row is not None
    assert row.data == b"mine"


def test_a_deposed_controller_writes_nothing(bench: Bench) -> None:
    check_a_deposed_controller_writes_nothing(bench, bench.node())


class NoFence(ZooKeeperClient):
    """Planted fault: the check of /controller_epoch is removed."""

    def _with_fence(self, leadership: Leadership, operations: Sequence[Write]) -> Sequence[Write]:
        return (Check("/", ANY_VERSION), *operations)


def test_a_removed_fence_is_caught(bench: Bench) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_a_deposed_controller_writes_nothing(bench, bench.node(NoFence))


def test_a_commit_gives_the_results_of_its_own_operations(bench: Bench) -> None:
    node = bench.node()
    leadership = node.win()
    results = bench.wait(
        node.client.commit(leadership, [Create("/c", b""), SetData("/a", b"1", 0), Delete("/b", 0), Check("/a", 1)])
    )
    assert results[0] == "/c"
    assert isinstance(results[1], Stat)
    assert results[2:] == (None, None)


@pytest.mark.parametrize(
    ("operations", "index", "error"),
    [
        ([SetData("/a", b"", 7)], 0, BadVersion),
        ([SetData("/a", b"", 0), Create("/b", b"")], 1, NodeExists),
        ([Create("/x", b""), Create("/y", b""), Delete("/a", 3)], 2, BadVersion),
    ],
)
def test_a_failed_commit_names_the_callers_operation_and_applies_nothing(
    bench: Bench, operations: list[Write], index: int, error: type[ZooKeeperError]
) -> None:
    node = bench.node()
    leadership = node.win()
    zxid = bench.server.rows()
    with pytest.raises(MultiFailed) as failed:
        bench.wait(node.client.commit(leadership, operations))
    assert failed.value.index == index
    assert isinstance(failed.value.error, error)
    assert bench.server.rows() == zxid


def test_a_missing_epoch_is_a_lost_term_too(bench: Bench) -> None:
    node = bench.node()
    leadership = node.win()
    bench.change(Delete(CONTROLLER_EPOCH, ANY_VERSION))
    with pytest.raises(ControllerMoved):
        bench.wait(node.client.commit(leadership, [SetData("/a", b"", 0)]))


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_whose_reply_is_lost_has_an_unknown_outcome_and_is_not_made_again(bench: Bench, applied: bool) -> None:
    node = bench.node()
    leadership = node.win()
    node.connection.lose_reply(applied=applied)
    with pytest.raises(UnknownOutcome):
        bench.wait(node.client.commit(leadership, [SetData("/a", b"1", 0)]))
    bench.settle(1_000.0)
    row = bench.row("/a")
    assert row is not None
    assert row.stat.version == (1 if applied else 0)


def test_a_term_ends_with_its_session_even_if_the_epoch_stands(bench: Bench) -> None:
    node = bench.node()
    leadership = node.win()
    bench.server.expire(leadership.session)
    bench.until(lambda: node.client.session() not in (0, leadership.session))
    sent = bench.server.zxid
    with pytest.raises(SessionGone):
        bench.wait(node.client.commit(leadership, [SetData("/a", b"", 0)]))
    assert bench.server.zxid == sent


# -- the lease


def check_a_controller_that_is_cut_off_stops_by_itself(bench: Bench, node: Node) -> None:
    """S12, for the client and for the planted fault. No server says anything; the write must not be sent at all."""
    leadership = node.win()
    node.connection.cut(to_server=False)
    bench.settle(LEASE_FRACTION * SESSION_TIMEOUT_MS + 1.0)
    with pytest.raises(LeaseExpired):
        bench.wait(node.client.commit(leadership, [SetData("/a", b"stale", 0)]))


def test_a_controller_that_is_cut_off_stops_by_itself(bench: Bench) -> None:
    check_a_controller_that_is_cut_off_stops_by_itself(bench, bench.node())


class NoLease(ZooKeeperClient):
    """Planted fault: the lease never runs out."""

    def lease_until_ms(self) -> float:
        return math.inf


def test_a_lease_that_never_runs_out_is_caught(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="not answered"):
        check_a_controller_that_is_cut_off_stops_by_itself(bench, bench.node(NoLease))


def test_the_lease_ends_before_any_successor_can_be_elected(bench: Bench) -> None:
    node = bench.node()
    node.win()
    node.connection.cut()
    bench.until(lambda: bench.row(CONTROLLER) is None)
    assert node.client.lease_until_ms() <= bench.clock.now_ms() - SESSION_TIMEOUT_MS * (1.0 - LEASE_FRACTION)


def test_the_lease_counts_from_when_the_acknowledged_request_was_sent(bench: Bench) -> None:
    node = bench.node(latency=lambda: 40.0)
    sent_ms = bench.clock.now_ms()
    bench.wait(node.client.read(["/a"]))
    assert bench.clock.now_ms() == sent_ms + 80.0
    assert node.client.lease_until_ms() == sent_ms + LEASE_FRACTION * SESSION_TIMEOUT_MS


def test_an_idle_clients_lease_is_kept_up_by_its_pings(bench: Bench) -> None:
    node = bench.node()
    for _ in range(100):
        bench.settle(500.0)
        assert node.client.lease_until_ms() > bench.clock.now_ms()
