"""Contract: which watch fires for what, once, and in which order with the replies. In memory and on a real server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from controller.zookeeper.memory.database import java_hash_order
from controller.zookeeper.operations import (
    Check,
    Create,
    Delete,
    MultiFailed,
    SessionState,
    SetData,
    WatchEvent,
    WatchKind,
    Write,
)
from tests.zookeeper.contract import Backend, Client

CREATED, DELETED, DATA, CHILDREN = WatchKind.CREATED, WatchKind.DELETED, WatchKind.DATA, WatchKind.CHILDREN


@pytest.fixture
def watcher(backend: Backend) -> Client:
    """Another client than the one that changes things."""
    return backend.client()


def told(watcher: Client, backend: Backend) -> list[tuple[WatchKind, str]]:
    """What the watches have said, paths without the root ("" is the root itself)."""
    return [(event.kind, event.path.removeprefix(backend.root).removeprefix("/")) for event in watcher.heard()]


WATCHED = [
    # (made before, node watches, children watches, what is done, what is told)
    ("data", ["a"], ["a"], [], lambda p: [SetData(p("a"), b"1", 0)], [(DATA, "a")]),
    ("the same data", ["a"], ["a"], [], lambda p: [SetData(p("a"), b"", 0)], [(DATA, "a")]),
    ("a deletion", ["a"], ["a"], [], lambda p: [Delete(p("a"), 0)], [(DELETED, "a")]),
    ("a creation", [], ["a"], [], lambda p: [Create(p("a"), b"")], [(CREATED, "a")]),
    ("a child's coming, to the parent's data", ["a"], ["a"], [], lambda p: [Create(p("a/b"), b"")], []),
    ("a child's coming", ["a"], [], ["a"], lambda p: [Create(p("a/b"), b"")], [(CHILDREN, "a")]),
    ("a child's going", ["a", "a/b"], [], ["a"], lambda p: [Delete(p("a/b"), 0)], [(CHILDREN, "a")]),
    ("a child's data", ["a", "a/b"], [], ["a"], lambda p: [SetData(p("a/b"), b"1", 0)], []),
    ("a grandchild's coming", ["a", "a/b"], [], ["a"], lambda p: [Create(p("a/b/c"), b"")], []),
    ("own data, to a watch on children", ["a"], [], ["a"], lambda p: [SetData(p("a"), b"1", 0)], []),
    ("the end of a parent", ["a"], [], ["a"], lambda p: [Delete(p("a"), 0)], [(DELETED, "a")]),
    ("the end of what is watched both ways", ["a"], ["a"], ["a"], lambda p: [Delete(p("a"), 0)], [(DELETED, "a")]),
    ("children of what is not there", [], [], ["a"], lambda p: [Create(p("a"), b""), Create(p("a/b"), b"")], []),
    (
        "each operation of a multi, in order, the node before its parent",
        ["z", "a", "p", "p/c"],
        ["z", "a", "b", "p/c", "p/d"],
        ["p", ""],
        lambda p: [
            SetData(p("z"), b"1", 0),
            Create(p("b"), b""),
            Check(p("a"), 0),
            Delete(p("a"), 0),
            Create(p("p/d"), b""),
            Delete(p("p/c"), 0),
            SetData(p("z"), b"2", 1),
        ],
        [
            (DATA, "z"),
            (CREATED, "b"),
            (CHILDREN, ""),
            (DELETED, "a"),
            (CREATED, "p/d"),
            (CHILDREN, "p"),
            (DELETED, "p/c"),
        ],
    ),
    (
        "creation once, though it was written at once again",
        [],
        ["a"],
        [],
        lambda p: [Create(p("a"), b""), SetData(p("a"), b"1", 0), Delete(p("a"), 1)],
        [(CREATED, "a")],
    ),
]


@pytest.mark.parametrize(
    ("made", "nodes", "children", "done", "expected"), [case[1:] for case in WATCHED], ids=[case[0] for case in WATCHED]
)
def test_watches_tell_of(
    backend: Backend,
    client: Client,
    watcher: Client,
    made: Sequence[str],
    nodes: Sequence[str],
    children: Sequence[str],
    done: Callable[[Callable[[str], str]], Sequence[Write]],
    expected: list[tuple[WatchKind, str]],
) -> None:
    def path(name: str) -> str:
        return backend.path(name) if name else backend.root

    client.multi(*[Create(path(name), b"") for name in made])
    watcher.watch([path(name) for name in nodes], [path(name) for name in children])
    client.multi(*done(path))
    assert told(watcher, backend) == expected


def test_a_watch_fires_once_until_it_is_set_again(backend: Backend, client: Client, watcher: Client) -> None:
    path = backend.path("once")
    client.create(path)
    watcher.watch([path])
    for version in range(3):
        client.multi(SetData(path, b"", version))
    assert told(watcher, backend) == [(DATA, "once")]
    watcher.watch([path])
    client.multi(Delete(path, 3))
    client.create(path)
    assert told(watcher, backend) == [(DATA, "once"), (DELETED, "once")]


def test_a_watch_set_twice_is_one(backend: Backend, client: Client, watcher: Client) -> None:
    path = backend.path("twice")
    client.create(path)
    watcher.watch([path, path], [path])
    watcher.watch([path], [path, path])
    client.multi(SetData(path, b"", 0), Create(f"{path}/child", b""))
    assert told(watcher, backend) == [(DATA, "twice"), (CHILDREN, "twice")]


def test_every_watcher_is_told(backend: Backend, client: Client) -> None:
    path = backend.path("many")
    client.create(path)
    watchers = [backend.client() for _ in range(3)]
    for watcher in watchers:
        watcher.watch([path], [path])
    client.multi(Create(f"{path}/child", b""), SetData(path, b"", 0))
    for watcher in watchers:
        assert told(watcher, backend) == [(CHILDREN, "many"), (DATA, "many")]


def test_a_failed_multi_fires_nothing(backend: Backend, client: Client, watcher: Client) -> None:
    path = backend.path("quiet")
    client.create(path)
    watcher.watch([path, backend.path("new")], [backend.root])
    with pytest.raises(MultiFailed):
        client.multi(SetData(path, b"", 0), Create(backend.path("new"), b""), Check(path, 0))
    assert told(watcher, backend) == []
    client.multi(SetData(path, b"", 0))
    assert told(watcher, backend) == [(DATA, "quiet")]


def test_a_client_hears_of_its_own_change_before_its_reply(backend: Backend, client: Client) -> None:
    path = backend.path("own")
    client.create(path)
    client.watch([path], [backend.root])
    client.log.clear()
    written = client.note(client.connection.multi([SetData(path, b"", 0), Delete(path, 1)]), "written")
    read = client.note(client.connection.read([path]), "read")
    backend.wait(written)
    backend.wait(read)
    assert client.log == [WatchEvent(DATA, path), WatchEvent(CHILDREN, backend.root), "written", "read"]


def test_a_watch_comes_before_the_data_that_it_announces(backend: Backend, client: Client, watcher: Client) -> None:
    path = backend.path("announced")
    client.create(path, b"0")
    for version in range(20):
        watcher.watch([path])
        watcher.log.clear()
        written = client.connection.multi([SetData(path, b"new", version)])
        seen: bytes | None = b""
        reads = 0
        while seen != b"new":
            pending = watcher.note(watcher.connection.read([path]), f"read {reads}")
            row = backend.wait(pending).rows[0]
            assert row is not None
            seen = row.data if row.stat.version == version + 1 else b"0"
            reads += 1
        backend.wait(written)
        assert watcher.log == [*[f"read {n}" for n in range(reads - 1)], WatchEvent(DATA, path), f"read {reads - 1}"]


def test_set_watches_tells_at_once_what_has_changed_since_and_watches_the_rest(
    backend: Backend, client: Client, watcher: Client
) -> None:
    names = ["same", "set", "gone", "replaced", "same parent", "new child", "lost child", "gone parent", "child set"]
    paths = {name: backend.path(name) for name in [*names, "absent", "appeared"]}
    client.multi(*[Create(paths[name], b"") for name in names])
    client.multi(Create(f"{paths['lost child']}/c", b""), Create(f"{paths['child set']}/c", b""))
    since = backend.wait(watcher.connection.read([backend.root])).zxid
    client.multi(SetData(paths["set"], b"", 0))
    client.multi(Delete(paths["gone"], 0), Delete(paths["gone parent"], 0))
    client.multi(Delete(paths["replaced"], 0), Create(paths["replaced"], b""))
    client.multi(Create(f"{paths['new child']}/c", b""), Delete(f"{paths['lost child']}/c", 0))
    client.multi(SetData(f"{paths['child set']}/c", b"", 0), SetData(paths["child set"], b"", 0))
    client.multi(Create(paths["appeared"], b""))
    data = ["same", "set", "gone", "replaced"]
    exists = ["absent", "appeared"]
    children = ["same parent", "new child", "lost child", "gone parent", "child set"]
    armed = watcher.connection.set_watches(
        since, [paths[name] for name in data], [paths[name] for name in exists], [paths[name] for name in children]
    )
    backend.wait(watcher.note(armed, "armed"))
    at_once = [
        WatchEvent(DATA, paths["set"]),
        WatchEvent(DELETED, paths["gone"]),
        WatchEvent(DATA, paths["replaced"]),
        WatchEvent(CREATED, paths["appeared"]),
        WatchEvent(CHILDREN, paths["new child"]),
        WatchEvent(CHILDREN, paths["lost child"]),
        WatchEvent(DELETED, paths["gone parent"]),
    ]
    assert watcher.log == [SessionState.CONNECTED, *at_once, "armed"]
    watcher.log.clear()
    client.multi(
        SetData(paths["same"], b"", 0),
        SetData(paths["set"], b"", 1),
        Create(paths["absent"], b""),
        Delete(paths["appeared"], 0),
        Create(f"{paths['same parent']}/c", b""),
        Delete(f"{paths['child set']}/c", 1),
        Delete(f"{paths['new child']}/c", 0),
    )
    assert told(watcher, backend) == [
        (DATA, "same"),
        (CREATED, "absent"),
        (CHILDREN, "same parent"),
        (CHILDREN, "child set"),
    ]


def test_set_watches_in_bulk_misses_nothing(backend: Backend, client: Client, watcher: Client) -> None:
    paths = [backend.path(f"n{number:04}") for number in range(500)]
    client.multi(*[Create(path, b"") for path in paths])
    since = backend.wait(watcher.connection.read(paths)).zxid
    client.multi(*[SetData(path, b"", 0) for path in paths[:250]])
    backend.wait(watcher.connection.set_watches(since, paths, [], []))
    assert watcher.events == [WatchEvent(DATA, path) for path in paths[:250]]
    client.multi(*[SetData(path, b"", 1 if index < 250 else 0) for index, path in enumerate(paths)])
    assert watcher.heard()[250:] == [WatchEvent(DATA, path) for path in paths[250:]]


@pytest.mark.parametrize("names", [["a"], ["x", "y"], ["alpha", "b", "zeta/one", "gamma-11"], [*"qwert"]], ids=len)
def test_a_sessions_end_is_told_ephemeral_by_ephemeral_in_the_servers_order(
    backend: Backend, watcher: Client, names: list[str]
) -> None:
    watcher.create(backend.path("zeta"))
    paths = [backend.path(name) for name in names]
    for _ in range(3):
        client = backend.client()
        for path in paths:
            client.create(path, ephemeral=True)
        watcher.watch(paths, [backend.root, backend.path("zeta")])
        watcher.log.clear()
        backend.wait(client.connection.close())
        assert backend.wait(watcher.connection.read(paths)).rows == (None,) * len(paths)
        expected: list[WatchEvent] = []
        for path in java_hash_order(paths):
            expected.append(WatchEvent(DELETED, path))
            parent = WatchEvent(CHILDREN, path.rpartition("/")[0])
            if parent not in expected:
                expected.append(parent)
        assert watcher.events == expected
        paths.reverse()


def test_a_broken_connection_takes_its_watches_with_it(backend: Backend, client: Client, watcher: Client) -> None:
    path = backend.path("lost")
    client.create(path)
    watcher.watch([path], [backend.root])
    watcher.reset()
    backend.until(lambda: watcher.states[1:] == [SessionState.SUSPENDED, SessionState.CONNECTED], "reconnected")
    client.multi(SetData(path, b"", 0), Delete(path, 1))
    assert told(watcher, backend) == []
    since = watcher.there(backend.root).stat.czxid
    backend.wait(watcher.connection.set_watches(since, [path], [], [backend.root]))
    assert told(watcher, backend) == [(DELETED, "lost"), (CHILDREN, "")]
