"""How a topic's deletes are put together into multis, and which failures of one are nobody's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.clock import Future, spawn
from controller.core import topic_deletion
from controller.core.topic_deletion import _batches, _settle, _trees
from controller.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Delete,
    MultiFailed,
    NoNode,
    NotEmpty,
    UnknownOutcome,
)
from controller.zookeeper.row_writes import operation_bytes
from tests.core.driving import Cluster

LENGTHS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=12)
SMALLEST = operation_bytes(Delete("/a", ANY_VERSION))


@example(lengths=[[1], [1], [1], [1]], most=4, room=0)
@given(lengths=LENGTHS, most=st.integers(2, 6), room=st.integers(0, 12))
def test_each_batch_is_as_large_as_it_may_be_and_splits_no_unit(lengths: list[list[int]], most: int, room: int) -> None:
    units = [tuple(Delete("/" + "a" * length, ANY_VERSION) for length in unit) for unit in lengths]
    limit = 2 * SMALLEST + room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_deletion, "BATCH", most)
        patch.setattr(topic_deletion, "BATCH_BYTES", limit)
        batches = list(_batches(units))

    def fits(deletes: list[Delete]) -> bool:
        return len(deletes) <= most - 1 and sum(map(operation_bytes, deletes)) <= limit

    expected: list[list[Delete]] = []
    for unit in units:
        if expected and fits([*expected[-1], *unit]):
            expected[-1] += unit
        else:
            expected.append(list(unit))
    assert batches == expected


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (UnknownOutcome("lost"), True),
        (MultiFailed(0, NoNode("/a")), True),
        (MultiFailed(0, NotEmpty("/a")), True),
        (MultiFailed(0, BadVersion("/a")), False),
    ],
)
def test_a_multi_that_fails_for_what_is_gone_or_there_again_is_looked_at_anew(error: Exception, passes: bool) -> None:
    sent: Future[object] = Future()
    sent.fail(error)
    settled = spawn(_settle(sent, {}))  # type: ignore[arg-type]
    assert settled.done
    if passes:
        settled.result()
    else:
        with pytest.raises(MultiFailed):
            settled.result()


def test_a_topic_that_went_by_itself_has_nothing_below() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    cluster.topic("t", {0: (1,)})
    cluster.settle()
    term = host.controller.term
    assert term is not None
    found = cluster.wait(spawn(_trees(term, ["nowhere", "t"])))
    assert found == {
        "/brokers/topics/nowhere": (),
        "/brokers/topics/t": ("/brokers/topics/t/partitions",),
        "/brokers/topics/t/partitions": ("/brokers/topics/t/partitions/0",),
        "/brokers/topics/t/partitions/0": ("/brokers/topics/t/partitions/0/state",),
        "/brokers/topics/t/partitions/0/state": (),
    }
