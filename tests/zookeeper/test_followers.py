"""Followers of the in-memory server: a read may be stale until `sync`, and in no other way than in ZooKeeper."""

from __future__ import annotations

from typing import TypeVar

from controller.clock import Future, VirtualClock
from controller.zookeeper.memory.followers import Follower
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import Create, Delete, SessionState, SetData, WatchEvent, WatchKind

T = TypeVar("T")
LAG_MS = 500.0


class Scene:
    """A writer at the leader and a reader at a follower that lags by LAG_MS."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock)
        self.follower: Follower = self.server.add_follower(lambda: LAG_MS)
        self.events: list[WatchEvent] = []
        self.writer = self.server.connect()
        self.reader = self.server.connect(follower=self.follower)
        for connection in (self.writer, self.reader):
            self.wait(connection.start())
        self.reader.listen(self)
        self.wait(self.writer.multi([Create("/a", b"0")]))
        self.wait(self.reader.sync("/a"))

    def session_state(self, state: SessionState) -> None:
        pass

    def watch_fired(self, event: WatchEvent) -> None:
        self.events.append(event)

    def wait(self, pending: Future[T]) -> T:
        assert self.clock.run_until(lambda: pending.done, self.clock.now_ms() + 10_000)
        return pending.result()

    def data(self, connection: InMemoryConnection, path: str = "/a") -> bytes | None:
        row = self.wait(connection.read([path])).rows[0]
        return None if row is None else row.data


def test_a_read_is_stale_until_sync_or_until_the_follower_has_applied_the_write() -> None:
    scene = Scene()
    scene.wait(scene.writer.multi([SetData("/a", b"1", 0)]))
    assert (scene.data(scene.writer), scene.data(scene.reader)) == (b"1", b"0")
    scene.wait(scene.reader.sync("/a"))
    assert scene.data(scene.reader) == b"1"
    scene.wait(scene.writer.multi([SetData("/a", b"2", 1)]))
    scene.clock.advance_to(scene.clock.now_ms() + LAG_MS)
    assert scene.data(scene.reader) == b"2"


def test_a_client_sees_its_own_writes_and_its_watches_before_them() -> None:
    scene = Scene()
    scene.wait(scene.reader.watch(["/a", "/b"], []))
    scene.wait(scene.writer.multi([Create("/b", b"")]))
    assert scene.events == []
    scene.wait(scene.reader.multi([SetData("/a", b"mine", 0)]))
    assert [event.path for event in scene.events] == ["/b", "/a"]
    assert scene.data(scene.reader) == b"mine"


def test_a_watch_fires_when_the_follower_applies_the_change() -> None:
    scene = Scene()
    scene.wait(scene.reader.watch(["/a"], ["/"]))
    scene.wait(scene.writer.multi([Delete("/a", 0)]))
    scene.clock.advance_to(scene.clock.now_ms() + LAG_MS - 1)
    assert scene.events == []
    scene.clock.advance_to(scene.clock.now_ms() + 1)
    assert scene.events == [WatchEvent(WatchKind.DELETED, "/a"), WatchEvent(WatchKind.CHILDREN, "/")]


def test_a_client_that_comes_back_sees_no_less_than_before_but_not_all() -> None:
    scene = Scene()
    scene.reader.lose_reply(applied=True)
    unknown = scene.reader.multi([SetData("/a", b"1", 0)])
    assert scene.clock.run_until(lambda: unknown.done, scene.clock.now_ms() + 1_000)
    assert scene.data(scene.writer) == b"1"
    assert (
        scene.data(scene.reader) == b"0"
    )  # in its session, on a new connection: the outcome of the write is not known
    scene.wait(scene.reader.sync("/a"))
    assert scene.data(scene.reader) == b"1"


def test_a_session_that_ends_takes_its_ephemerals_from_the_follower_too() -> None:
    scene = Scene()
    scene.wait(scene.writer.multi([Create("/mine", b"", ephemeral=True)]))
    scene.wait(scene.reader.sync("/"))
    scene.server.expire(scene.writer.session())
    assert scene.data(scene.reader, "/mine") == b""
    scene.wait(scene.reader.sync("/"))
    assert scene.wait(scene.reader.read(["/mine"])).rows == (None,)
    assert scene.follower.database.zxid == scene.server.zxid
    assert [row.path for row in scene.follower.database.tree.walk()] == [row.path for row in scene.server.rows()]
