"""The in-memory tree and its watch table by themselves."""

from __future__ import annotations

import random

import pytest

from controller.clock import VirtualClock
from controller.zookeeper.memory.database import (
    ClientIdentity,
    ClientLink,
    Database,
    DataTree,
    WatchTable,
    java_hash_order,
)
from controller.zookeeper.operations import Check, Create, Delete, MultiFailed, SetData, Write, Znode

ANYONE = ClientIdentity()


def test_a_multi_that_fails_leaves_no_trace_wherever_it_fails() -> None:
    tree = DataTree()
    tree.apply([Create("/a", b"1"), Create("/a/x", None), Create("/e", b"", ephemeral=True)], 7, ANYONE, 1, 1_000)
    whole: list[Write] = [
        SetData("/a", b"2", 0),
        Create("/a/s-", b"", sequential=True),
        Create("/b", b"", ephemeral=True),
        SetData("/b", None, 0),
        Delete("/e", 0),
        Delete("/a/x", 0),
        Create("/a/x", b"again"),
        SetData("/a", b"3", 1),
    ]
    before = (list(tree.walk()), tree.ephemerals(7), list(tree.nodes["/"].children))
    for stop in range(len(whole) + 1):
        with pytest.raises(MultiFailed) as caught:
            tree.apply([*whole[:stop], Check("/missing", 0), *whole[stop:]], 7, ANYONE, 2 + stop, 2_000)
        assert caught.value.index == stop
        assert (list(tree.walk()), tree.ephemerals(7), sorted(tree.nodes["/"].children)) == (
            *before[:2],
            sorted(before[2]),
        )
    results, _ = tree.apply(whole, 7, ANYONE, 100, 3_000)
    assert results[1] == "/a/s-0000000001"


def test_what_was_read_before_a_change_stays_as_it_was() -> None:
    tree = DataTree()
    tree.apply([Create("/a", b"1")], 0, ANYONE, 1, 0)
    before: Znode = tree.nodes["/a"].read_row()
    parent: Znode = tree.nodes["/"].read_row()
    tree.apply([SetData("/a", b"22", 0), Create("/b", b"")], 0, ANYONE, 2, 5)
    assert (before.data, before.stat.version, before.stat.data_length) == (b"1", 0, 1)
    assert parent.stat.num_children == 2
    assert tree.nodes["/a"].read_row().stat.version == 1
    assert tree.nodes["/"].read_row().stat.num_children == 3


def test_a_sessions_end_takes_its_ephemerals_and_nobody_elses() -> None:
    tree = DataTree()
    tree.apply([Create("/one", b"", ephemeral=True), Create("/kept", b"")], 1, ANYONE, 1, 0)
    tree.apply([Create("/two", b"", ephemeral=True)], 2, ANYONE, 2, 0)
    assert [path for _, path, _ in tree.end_session(1, 3)] == ["/one", "/"]
    assert (tree.ephemerals(1), tree.ephemerals(2)) == ((), ("/two",))
    assert tree.nodes["/"].read_row().stat.pzxid == 3
    assert tree.end_session(1, 4) == []


def test_a_link_that_has_ended_leaves_no_watch_behind() -> None:
    database = Database(VirtualClock())
    link = ClientLink(VirtualClock(), None, lambda _link, _message: None, lambda _message: None, ANYONE)
    database.watch(link, (["/", "/missing"], ["/", "/missing"]))
    database.set_watches(link, (0, ["/zookeeper"], ["/absent"], ["/zookeeper"]))
    nodes, children = ("/", "/missing", "/zookeeper", "/absent"), ("/", "/zookeeper")
    assert database.watched(link) == {*(("node", path) for path in nodes), *(("children", path) for path in children)}
    database.forget_watches(link)
    assert database.watched(link) == frozenset()


@pytest.mark.parametrize(
    ("strings", "ordered"),
    [
        # "Aa" and "BB" have one hash in Java: they stay as they were added.
        (["BB", "Aa"], ["BB", "Aa"]),
        (["Aa", "BB"], ["Aa", "BB"]),
        (["b", "a", "d", "c"], ["a", "b", "c", "d"]),
        ([], []),
        (["/only"], ["/only"]),
    ],
)
def test_javas_order_of_a_set(strings: list[str], ordered: list[str]) -> None:
    assert java_hash_order(strings) == ordered


def test_the_watch_table_holds_what_was_added_and_not_yet_fired_or_forgotten() -> None:
    rng = random.Random(3)
    table: WatchTable[str] = WatchTable()
    model: set[tuple[str, str]] = set()
    for _ in range(3_000):
        path, watcher = rng.choice("abcdef"), rng.choice("XYZ")
        action = rng.random()
        if action < 0.7:
            table.add(path, watcher)
            model.add((path, watcher))
        elif action < 0.9:
            assert set(table.trigger(path)) == {who for where, who in model if where == path}
            model = {each for each in model if each[0] != path}
        else:
            table.forget(watcher)
            model = {each for each in model if each[1] != watcher}
        assert len(table) == len(model)
        for each in "XYZ":
            assert table.paths_of(each) == {where for where, who in model if who == each}
