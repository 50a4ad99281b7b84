"""One znode changed by the controller: whatever comes between the look and the write, what is written was decided on
what is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.clock import spawn
from controller.core.znode_changes import LOOKS, NeverStill, change_znode
from controller.zookeeper import paths
from controller.zookeeper.operations import (
    ANY_VERSION,
    Create,
    Delete,
    MultiFailed,
    NoChildrenForEphemerals,
    SetData,
    Write,
    Znode,
)
from tests.core.driving import Cluster

PATH = "/feature_of_a_test"
BETWEEN: dict[str, tuple[bytes | None, Write]] = {
    "it is created": (None, Create(PATH, b"theirs")),
    "it is changed": (b"old", SetData(PATH, b"theirs", ANY_VERSION)),
    "it is deleted": (b"old", Delete(PATH, ANY_VERSION)),
}


def changed(cluster: Cluster, decide: Callable[[Znode | None], bytes | None], path: str = PATH) -> None:
    term = cluster.leader().controller.term
    assert term is not None
    cluster.wait(spawn(change_znode(term, path, decide)))


def held(cluster: Cluster) -> bytes | None:
    row = cluster.server.row(PATH)
    return None if row is None else row.data


@pytest.mark.parametrize("between", BETWEEN)
def test_it_is_decided_anew_where_somebody_came_between(between: str) -> None:
    before, write = BETWEEN[between]
    cluster = Cluster()
    cluster.host(1)
    if before is not None:
        cluster.put(PATH, before)
    seen: list[bytes | None] = []

    def decide(row: Znode | None) -> bytes:
        if not seen:
            cluster._admin.multi([write])
        seen.append(None if row is None else row.data)
        return b"ours, over " + (seen[-1] or b"nothing")

    changed(cluster, decide)
    after = None if isinstance(write, Delete) else b"theirs"
    assert seen == [before, after]
    assert held(cluster) == b"ours, over " + (after or b"nothing")


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("before", [None, b"old"])
def test_it_looks_again_where_the_reply_was_lost(applied: bool, before: bytes | None) -> None:
    cluster = Cluster()
    host = cluster.host(1)
    if before is not None:
        cluster.put(PATH, before)
    host.connection.lose_reply(applied=applied)
    seen: list[bytes | None] = []

    def decide(row: Znode | None) -> bytes | None:
        seen.append(None if row is None else row.data)
        return None if seen[-1] == b"ours" else b"ours"

    changed(cluster, decide)
    assert (seen, held(cluster)) == ([before, b"ours" if applied else before], b"ours")


def test_what_nobody_decides_is_not_written() -> None:
    cluster = Cluster()
    cluster.host(1)
    changed(cluster, lambda row: None)
    assert held(cluster) is None


def test_a_znode_that_is_another_each_time_is_left_as_it_is() -> None:
    cluster = Cluster()
    cluster.host(1)
    looks: list[Znode | None] = []

    def decide(row: Znode | None) -> bytes:
        looks.append(row)
        cluster._admin.multi([Create(PATH, b"") if row is None else SetData(PATH, b"theirs", ANY_VERSION)])
        return b"ours"

    with pytest.raises(NeverStill, match=PATH):
        changed(cluster, decide)
    assert len(looks) == LOOKS
    assert held(cluster) == b"theirs"


def test_any_other_refusal_is_raised() -> None:
    cluster = Cluster()
    cluster.host(1)
    with pytest.raises(MultiFailed) as raised:
        changed(cluster, lambda row: b"ours", paths.child(paths.broker(1), "child"))
    assert isinstance(raised.value.error, NoChildrenForEphemerals)
