"""The in-memory ZooKeeper, the server in Python and a real server, given the same random history, answer the same:
every result and error, every watch event in its place, every stat that is left.

Session ids become the client's number, zxids count from the history's start, times are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.memory.database import DataTree
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    PERM_ALL,
    PERM_CREATE,
    PERM_READ,
    Check,
    Create,
    Delete,
    MultiFailed,
    PathError,
    SetData,
    Stat,
    WatchEvent,
    Write,
    Znode,
    ZooKeeperError,
)
from controller.zookeeper.server.server import ZooKeeperServer
from tests.zookeeper.conftest import open_backend
from tests.zookeeper.contract import Backend, Client

EXAMPLES = 40
CLIENTS = 3
AUTH = {1: (("digest", "one:secret"),)}
PATHS = ["", "/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep"]
ACLS = [
    None,
    OPEN_ACL,
    (ACL(PERM_READ, "world", "anyone"),),
    (ACL(PERM_ALL, "auth", ""),),
    (ACL(PERM_READ | PERM_CREATE, "world", "anyone"), ACL(PERM_ALL, "auth", "")),
    (),
]

paths = st.sampled_from(PATHS)
below = st.sampled_from(PATHS[1:])
versions = st.sampled_from([-1, 0, 0, 1, 2])
data = st.sampled_from([None, b"", b"1", b"two"])
writes = st.one_of(
    st.builds(Create, below, data, st.booleans(), st.sampled_from([False, False, True]), st.sampled_from(ACLS)),
    st.builds(Create, below, data),
    st.builds(SetData, paths, data, versions),
    st.builds(Delete, below, versions),
    st.builds(Check, paths, versions),
)


@dataclass(frozen=True, slots=True)
class Multi:
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Read:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Children:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    nodes: tuple[str, ...]
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetWatches:
    """`ago`: how many transactions before the latest."""

    ago: int
    data: tuple[str, ...]
    exists: tuple[str, ...]
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restart:
    """The client closes its session and another takes its place."""


Step = Multi | Read | Columns | Children | Watch | SetWatches | Restart
some = st.lists(paths, max_size=3).map(tuple)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Multi, st.lists(writes, min_size=1, max_size=4).map(tuple)),
    st.builds(Multi, writes.map(lambda write: (write,))),
    st.builds(Read, some),
    st.builds(Columns, some),
    st.builds(Children, some),
    st.builds(Watch, some, some),
    st.builds(SetWatches, st.integers(0, 4), some, some, some),
    st.just(Restart()),
)
histories = st.lists(st.tuples(st.integers(0, CLIENTS - 1), steps), min_size=1, max_size=25)


class Replay:
    """A history on one backend, and everything that it said."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.base_zxid = 0
        self.sessions: dict[int, str] = {0: "nobody"}
        self.clients = [self.open(number, 0) for number in range(CLIENTS)]
        self.base_zxid = self.clients[0].there(backend.root).stat.czxid
        self.clients[0].multi(Create(f"{backend.root}/a", b""), Create(f"{backend.root}/b", None))

    def open(self, number: int, life: int) -> Client:
        client = self.backend.client(auth=AUTH.get(number, ()))
        self.sessions[client.connection.session()] = f"client {number}, life {life}"
        return client

    def run(self, history: list[tuple[int, Step]]) -> list[Any]:
        said: list[Any] = []
        for life, (number, step) in enumerate(history, 1):
            client = self.clients[number]
            if isinstance(step, Restart):
                self.backend.wait(client.connection.close())
                self.clients[number] = self.open(number, life)
            else:
                said.append(self.answer(client, step))
            said.append([self.told(each) for each in self.clients])
        said.append(self.left())
        return said

    def answer(self, client: Client, step: Step) -> Any:
        connection, wait = client.connection, self.backend.wait
        try:
            if isinstance(step, Multi):
                return self.plain(wait(connection.multi([self.rooted(write) for write in step.writes])))
            if isinstance(step, Read):
                return self.plain(wait(connection.read(self.full(step.paths))).rows)
            if isinstance(step, Columns):
                columns = wait(connection.read_columns(self.full(step.paths)))
                return columns.json, columns.versions.tolist(), columns.ends.tolist()
            if isinstance(step, Children):
                return wait(connection.children(self.full(step.paths))).children
            if isinstance(step, Watch):
                return wait(connection.watch(self.full(step.nodes), self.full(step.children)))
            assert isinstance(step, SetWatches)
            since = wait(connection.read([])).zxid - step.ago
            lists = [self.full(each) for each in (step.data, step.exists, step.children)]
            return wait(connection.set_watches(since, *lists))
        except MultiFailed as failed:
            return "failed at", failed.index, self.plain(failed.error)
        except ZooKeeperError as error:
            return self.plain(error)

    def told(self, client: Client) -> Any:
        events, client.log[:] = client.heard(), []
        return self.plain(events)

    def left(self) -> Any:
        """Every row that the tree's owner may read, from the root down."""
        rows: list[Any] = []
        names = [self.backend.root]
        for path in names:
            try:
                rows.append(self.plain(self.clients[1].row(path)))
                names += [f"{path}/{name}" for name in self.clients[1].children(path) or ()]
            except ZooKeeperError as error:
                rows.append(self.plain(error))
        return rows

    def full(self, names: tuple[str, ...]) -> list[str]:
        return [self.backend.root + name for name in names]

    def rooted(self, write: Write) -> Write:
        return replace(write, path=self.backend.root + write.path)

    def plain(self, value: Any) -> Any:
        """Without what differs between two servers that do the same."""
        if isinstance(value, Stat):
            zxids = [zxid - self.base_zxid for zxid in (value.czxid, value.mzxid, value.pzxid)]
            counts = (value.version, value.cversion, value.aversion, value.data_length, value.num_children)
            return *zxids, *counts, self.sessions[value.ephemeral_owner]
        if isinstance(value, tuple | list):
            return [self.plain(each) for each in value]
        if isinstance(value, str):
            return value.removeprefix(self.backend.root)
        if isinstance(value, PathError):
            return type(value).__name__, self.plain(value.path)
        if isinstance(value, ZooKeeperError):
            return type(value).__name__
        if isinstance(value, WatchEvent):
            return value.kind, self.plain(value.path)
        if isinstance(value, Znode):
            return self.plain(value.path), value.data, self.plain(value.stat)
        return value


@pytest.fixture(scope="module")
def replay(
    real_server: EmbeddedZooKeeper, python_server: ZooKeeperServer
) -> Callable[[str, list[tuple[int, Step]]], list[Any]]:
    servers = {"real server": real_server.connect_string, "server in Python": python_server.connect_string}

    def run(name: str, history: list[tuple[int, Step]]) -> list[Any]:
        backend = open_backend(name, lambda: servers[name])
        try:
            return Replay(backend).run(history)
        finally:
            backend.close()

    return run


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(history=histories)
def test_the_same_history_has_the_same_answers(
    replay: Callable[[str, list[tuple[int, Step]]], list[Any]], history: list[tuple[int, Step]]
) -> None:
    right = replay("real server", history)
    assert replay("in-memory", history) == right
    assert replay("server in Python", history) == right


def test_the_comparison_sees_a_fault_in_the_model(
    replay: Callable[[str, list[tuple[int, Step]]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    history: list[tuple[int, Step]] = [
        (1, Watch(("/a",), ("",))),
        (0, Multi((Create("/a/x", b""), Delete("/a/x", 0)))),
        (0, Multi((Delete("/a", 0),))),
    ]
    right = replay("real server", history)
    assert replay("in-memory", history) == right
    remove = DataTree._remove
    faults: list[Callable[..., None]] = [
        lambda tree, node, zxid, changes: remove(tree, node, zxid, []),  # tells no watch
        lambda tree, node, zxid, changes: remove(tree, node, zxid - 1, changes),  # pzxid of another transaction
    ]
    for fault in faults:
        monkeypatch.setattr(DataTree, "_remove", fault)
        assert replay("in-memory", history) != right
