"""Many rows under one leadership: stale ones handed back, lost replies settled by looking, nothing written twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from controller.clock import Future, VirtualClock
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.operations import (
    ANY_VERSION,
    ControllerMoved,
    Create,
    Delete,
    LeaseExpired,
    MultiFailed,
    NoNode,
    SessionGone,
    SetData,
    UnknownOutcome,
    Write,
    WriteResults,
    Znode,
)
from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH
from controller.zookeeper.row_writes import ROWS_A_BATCH, UNKNOWN_OUTCOMES, RowsWritten
from tests.zookeeper.client_bench import Bench, Node


@pytest.fixture
def bench() -> Bench:
    return Bench()


def make_rows(bench: Bench, count: int) -> list[str]:
    paths = [f"/r{number}" for number in range(count)]
    for start in range(0, count, 500):
        bench.create(*paths[start : start + 500])
    return paths


def sets(paths: Sequence[str], version: int = 0) -> list[SetData]:
    return [SetData(path, b"new", version) for path in paths]


def moved_rows(written: RowsWritten) -> dict[int, Znode | None]:
    return dict(written.moved)


class Counting(ZooKeeperClient):
    """Counts the multis and reads that rows take."""

    commits = 0

    def commit(self, leadership: Leadership, operations: Sequence[Write]) -> Future[WriteResults]:
        self.commits += 1
        return super().commit(leadership, operations)


def test_a_thousand_stale_rows_of_ten_thousand_are_handed_back_and_the_rest_written(bench: Bench) -> None:
    paths = make_rows(bench, 10_000)
    stale = paths[::10]
    for start in range(0, len(stale), 500):
        bench.change(*(SetData(path, b"theirs", 0) for path in stale[start : start + 500]))
    node = bench.node(Counting)
    leadership = node.win()
    written = bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert written.versions.dtype == np.int32
    assert written.versions.tolist() == [-1 if number % 10 == 0 else 1 for number in range(10_000)]
    assert [index for index, _ in written.moved] == list(range(0, 10_000, 10))
    assert all(row is not None and row.data == b"theirs" and row.stat.version == 1 for _, row in written.moved)
    assert bench.data(paths) == [b"theirs" if number % 10 == 0 else b"new" for number in range(10_000)]
    batches = -(-10_000 // ROWS_A_BATCH)
    assert isinstance(node.client, Counting)
    assert node.client.commits == 2 * batches, "each failed batch is sent once more, whole"


@pytest.mark.parametrize("count", [0, 1, ROWS_A_BATCH, ROWS_A_BATCH + 1])
def test_any_number_of_rows_is_written(bench: Bench, count: int) -> None:
    paths = make_rows(bench, count)
    node = bench.node()
    written = bench.run(node.client.commit_rows(node.win(), sets(paths)))
    assert written.versions.tolist() == [1] * count
    assert written.moved == ()


def test_a_row_that_is_gone_is_handed_back_as_nothing(bench: Bench) -> None:
    paths = make_rows(bench, 3)
    bench.change(Delete(paths[1], 0))
    node = bench.node()
    written = bench.run(node.client.commit_rows(node.win(), sets(paths)))
    assert written.versions.tolist() == [1, -1, 1]
    assert written.moved == ((1, None),)


def test_rows_that_have_all_moved_end_it(bench: Bench) -> None:
    paths = make_rows(bench, 3)
    node = bench.node()
    written = bench.run(node.client.commit_rows(node.win(), sets(paths, version=5)))
    assert sorted(moved_rows(written)) == [0, 1, 2]


@pytest.mark.parametrize("applied", [True, False])
def test_rows_whose_replies_are_lost_are_written_exactly_once(bench: Bench, applied: bool) -> None:
    """All batches in flight lose their connection; some of them were applied."""
    paths = make_rows(bench, 3 * ROWS_A_BATCH)
    node = bench.node()
    leadership = node.win()
    node.connection.lose_reply(applied=applied)
    written = bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert written.versions.tolist() == [1] * len(paths)
    assert written.moved == ()
    assert all(row is not None and row.stat.version == 1 for row in map(bench.row, paths))


@pytest.mark.parametrize("latency_ms", [1.0, 7.0, 25.0])
def test_rows_survive_connections_that_keep_breaking(bench: Bench, latency_ms: float) -> None:
    paths = make_rows(bench, 5 * ROWS_A_BATCH)
    node = bench.node(latency=lambda: latency_ms)
    leadership = node.win()
    for breaks in range(1, 5):
        bench.clock.call_later(breaks * 130.0, node.connection.reset)
    written = bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert written.versions.tolist() == [1] * len(paths)
    assert all(row is not None and row.stat.version == 1 for row in map(bench.row, paths))


def test_after_an_unknown_outcome_other_bytes_at_the_next_version_are_not_taken_for_ours(bench: Bench) -> None:
    paths = make_rows(bench, 2)
    node = bench.node()
    leadership = node.win()
    node.connection.lose_reply(applied=False)

    def change() -> None:
        bench.other.multi([SetData(paths[0], b"theirs", 0)])

    bench.clock.call_later(50.0, change)
    written = bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert written.versions.tolist() == [-1, 1]
    theirs = moved_rows(written)[0]
    assert theirs is not None
    assert theirs.data == b"theirs"


def test_without_an_unknown_outcome_equal_bytes_are_somebody_elses(bench: Bench) -> None:
    paths = make_rows(bench, 1)
    bench.change(SetData(paths[0], b"new", 0))
    node = bench.node()
    written = bench.run(node.client.commit_rows(node.win(), sets(paths)))
    assert written.versions.tolist() == [-1]


def test_a_request_that_breaks_every_connection_is_given_up(bench: Bench) -> None:
    paths = make_rows(bench, 1)
    node = bench.node()
    leadership = node.win()
    losses = 0

    class Losing(ZooKeeperClient):
        def commit(self, leadership: Leadership, operations: Sequence[Write]) -> Future[WriteResults]:
            nonlocal losses
            losses += 1
            return Future.failed(UnknownOutcome("planted"))

    node.client.__class__ = Losing
    with pytest.raises(UnknownOutcome):
        bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert losses == UNKNOWN_OUTCOMES


def depose(bench: Bench, node: Node) -> None:
    bench.change(Delete(CONTROLLER, ANY_VERSION), SetData(CONTROLLER_EPOCH, b"9", ANY_VERSION))


def end_the_session(bench: Bench, node: Node) -> None:
    old = node.client.session()
    bench.server.expire(old)
    bench.until(lambda: node.client.session() != old)


def cut_off(bench: Bench, node: Node) -> None:
    node.connection.cut()
    bench.settle(node.connection.session_timeout_ms)


@pytest.mark.parametrize(
    ("fault", "error"), [(depose, ControllerMoved), (end_the_session, SessionGone), (cut_off, LeaseExpired)]
)
def test_rows_end_with_the_term(bench: Bench, fault: Callable[[Bench, Node], None], error: type[Exception]) -> None:
    paths = make_rows(bench, 3)
    node = bench.node()
    leadership = node.win()
    fault(bench, node)
    with pytest.raises(error):
        bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert bench.data(paths) == [b""] * 3


def test_rows_at_any_version_and_sequential_rows_are_refused(bench: Bench) -> None:
    node = bench.node()
    leadership = node.win()
    with pytest.raises(ValueError, match="/r0"):
        bench.run(node.client.commit_rows(leadership, sets(["/r0"], version=ANY_VERSION)))
    with pytest.raises(ValueError, match="/s-"):
        bench.run(node.client.create_rows(leadership, [Create("/s-", b"", sequential=True)]))


# -- creating


def topic_rows(partitions: int) -> list[Create]:
    rows = [Create("/t/partitions", None)]
    for number in range(partitions):
        rows += [Create(f"/t/partitions/{number}", None), Create(f"/t/partitions/{number}/state", b"state")]
    return rows


@pytest.mark.parametrize("partitions", [1, 400])
def test_rows_are_created_parents_first(bench: Bench, partitions: int) -> None:
    bench.create("/t")
    node = bench.node()
    rows = topic_rows(partitions)
    written = bench.run(node.client.create_rows(node.win(), rows))
    assert written.versions.tolist() == [0] * len(rows)
    assert written.moved == ()
    assert bench.data([row.path for row in rows]) == [row.data for row in rows]


@pytest.mark.parametrize("partitions", [3, 600])
def test_parents_that_are_there_count_as_written_and_other_rows_are_handed_back(bench: Bench, partitions: int) -> None:
    bench.create("/t", "/t/partitions", "/t/partitions/1", "/t/partitions/1/state")
    bench.set("/t/partitions")
    node = bench.node()
    rows = topic_rows(partitions)
    written = bench.run(node.client.create_rows(node.win(), rows))
    expected = [0] * len(rows)
    expected[0] = 1
    expected[4] = -1
    assert written.versions.tolist() == expected
    there = moved_rows(written)
    assert list(there) == [4]
    assert there[4] is not None
    assert there[4].data == b""


def test_batches_sent_behind_a_failing_one_are_sent_again(bench: Bench) -> None:
    """The first batch fails for a parent that is there, and takes the parents of the next batches with it."""
    bench.create("/t", "/t/partitions")
    node = bench.node(latency=lambda: 5.0)
    rows = [Create("/t/partitions", None)]
    rows += [Create(f"/t/partitions/{number}", None) for number in range(ROWS_A_BATCH)]
    rows += [Create(f"/t/partitions/{number}/state", b"state") for number in range(ROWS_A_BATCH)]
    written = bench.run(node.client.create_rows(node.win(), rows))
    assert written.versions.tolist() == [0] * len(rows)


@pytest.mark.parametrize("applied", [True, False])
def test_creations_whose_replies_are_lost_are_made_exactly_once(bench: Bench, applied: bool) -> None:
    bench.create("/t")
    node = bench.node()
    leadership = node.win()
    node.connection.lose_reply(applied=applied)
    rows = topic_rows(600)
    written = bench.run(node.client.create_rows(leadership, rows))
    assert written.versions.tolist() == [0] * len(rows)
    assert written.moved == ()


def test_a_row_without_its_parent_is_named(bench: Bench) -> None:
    node = bench.node()
    rows = [Create("/top", b""), Create("/nowhere/child", b"")]
    with pytest.raises(MultiFailed) as failed:
        bench.run(node.client.create_rows(node.win(), rows))
    assert failed.value.index == 1
    assert isinstance(failed.value.error, NoNode)


def test_rows_take_no_time_of_their_own(bench: Bench) -> None:
    assert isinstance(bench.clock, VirtualClock)
    paths = make_rows(bench, 2_000)
    node = bench.node()
    leadership = node.win()
    before_ms = bench.clock.now_ms()
    bench.run(node.client.commit_rows(leadership, sets(paths)))
    assert bench.clock.now_ms() == before_ms
