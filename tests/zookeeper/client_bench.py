"""A client over the in-memory ZooKeeper under a virtual clock, and someone else who changes things behind its back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from controller.clock import Coro, Future, VirtualClock, spawn
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, SessionState, SetData, Stat, Write, WriteResults, Znode
from controller.zookeeper.paths import CONTROLLER, CONTROLLER_EPOCH

T = TypeVar("T")

SESSION_TIMEOUT_MS = 6_000
_LIMIT_MS = 600_000.0


class Events:
    """Takes events as an event queue does, without coalescing."""

    def __init__(self) -> None:
        self.put_: list[Any] = []

    def put(self, event: Any) -> None:
        self.put_.append(event)

    def take(self) -> list[Any]:
        """What was put since the last look."""
        taken, self.put_ = self.put_, []
        return taken


def state_event(state: SessionState, session: int) -> Any:
    return (state, session)


class Node:
    """One client with its connection and its events."""

    def __init__(self, bench: Bench, client_type: type[ZooKeeperClient], **options: Any) -> None:
        self.connection: InMemoryConnection = bench.server.connect(SESSION_TIMEOUT_MS, **options)
        self.events = Events()
        self.client = client_type(self.connection, bench.clock, self.events, session_event=state_event, seed=1)
        self.bench = bench
        bench.wait(self.client.start())
        bench.settle()
        self.events.take()

    def win(self) -> Leadership:
        """Elects itself: /controller and the next epoch in one multi."""
        row = self.bench.row(CONTROLLER_EPOCH)
        epoch = 1 if row is None else int(row.data or b"0") + 1
        if row is None:
            self.bench.wait(self.client.commit_election([Create(CONTROLLER_EPOCH, b"0")]))
        version = 0 if row is None else row.stat.version
        seized = self.bench.wait(
            self.client.commit_election(
                [Create(CONTROLLER, b"me", ephemeral=True), SetData(CONTROLLER_EPOCH, b"%d" % epoch, version)]
            )
        )
        stat = seized[1]
        assert isinstance(stat, Stat)
        return Leadership(self.client.session(), epoch, stat.version)


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = InMemoryZooKeeper(self.clock)
        self.other = self.server.connect(60_000)
        self.wait(self.other.start())

    def node(self, client_type: type[ZooKeeperClient] = ZooKeeperClient, **options: Any) -> Node:
        return Node(self, client_type, **options)

    def wait(self, pending: Future[T]) -> T:
        assert self.clock.run_until(lambda: pending.done, self.clock.now_ms() + _LIMIT_MS), (
            "not answered in ten minutes"
        )
        return pending.result()

    def run(self, task: Coro[T]) -> T:
        return self.wait(spawn(task))

    def settle(self, for_ms: float = 1.0) -> None:
        """Lets everything arrive that is on its way."""
        self.clock.advance_to(self.clock.now_ms() + for_ms)

    def until(self, condition: Any) -> None:
        assert self.clock.run_until(condition, self.clock.now_ms() + _LIMIT_MS), "did not come about in ten minutes"

    # Someone else's doing.

    def change(self, *operations: Write) -> WriteResults:
        """Done by another client, and told to whoever watches."""
        results = self.wait(self.other.multi(operations))
        self.settle()
        return results

    def create(self, *paths: str) -> None:
        self.change(*(Create(path, b"") for path in paths))

    def set(self, path: str, data: bytes = b"changed") -> None:
        self.change(SetData(path, data, ANY_VERSION))

    def row(self, path: str) -> Znode | None:
        return self.server.row(path)

    def data(self, paths: Sequence[str]) -> list[bytes | None]:
        rows = [self.row(path) for path in paths]
        return [None if row is None else row.data for row in rows]
