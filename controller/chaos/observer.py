"""Somebody outside the cluster who watches its ZooKeeper: which brokers are registered, who is controller, and since
when. The moments that a failover is measured from are this observer's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from controller.clock import Clock, Coro, spawn
from controller.scenarios.host import PartitionView
from controller.scenarios.membership import Membership, changes, look
from controller.trace import EphemeralSeen
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_controller_epoch, decode_partition_state, decode_topic_assignment
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Znode

T = TypeVar("T")

SESSION_TIMEOUT_MS = 30_000
"""The observer's own session timeout. It is long because a fault that ends this session cannot be measured."""
ANSWER_S = 30.0

_LOOK = "look"
_END = "end"


class Observer:
    """A thread that reads ZooKeeper's ephemeral nodes whenever a watch fires, and passes the changes to `seen`."""

    def __init__(self, connect: str, clock: Clock, seen: Callable[[EphemeralSeen], None]) -> None:
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen = seen
        self._client = ZooKeeperClient(
            KazooConnection(connect, clock, session_timeout_ms=SESSION_TIMEOUT_MS), clock, self._events
        )
        self._lock = threading.Lock()
        self._last = Membership()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self) -> None:
        """Returns when the first look has been taken."""
        wait(self._start())
        self._look()
        self._thread.start()

    async def _start(self) -> None:
        await self._client.start()
        # Children of a node that is not there can't be watched, and the first broker is yet to come.
        await BrokerWrites(self._client).ensure_persistent_paths()
        await self._client.watch_node(paths.CONTROLLER, _LOOK)
        await self._client.watch_children(paths.BROKER_IDS, _LOOK)

    def close(self) -> None:
        self._events.put(_END)
        if self._thread.is_alive():
            self._thread.join(timeout=ANSWER_S)
        self._client.close()

    def now(self) -> tuple[Mapping[int, int], int]:
        """Return the registered brokers with their sessions, and the controller's id (-1: none)."""
        with self._lock:
            return self._last.registered, self._last.controller

    def _run(self) -> None:
        while self._events.get() != _END:
            while not self._events.empty():
                if self._events.get() == _END:
                    return
            self._look()

    def _look(self) -> None:
        now = wait(look(self._client))
        with self._lock:
            was, self._last = self._last, now
        for change in changes(was, now):
            self._seen(change)

    def controller_epoch(self) -> int:
        return wait(self._controller_epoch())

    async def _controller_epoch(self) -> int:
        row = (await self._client.read([paths.CONTROLLER_EPOCH])).rows[0]
        return 0 if row is None else decode_controller_epoch(row.path, row.data)

    def partitions(self) -> dict[tuple[str, int], PartitionView]:
        """Every partition that has a state, as ZooKeeper has it now."""
        return wait(self._partitions())

    async def _partitions(self) -> dict[tuple[str, int], PartitionView]:
        topics = (await self._client.children([paths.BROKER_TOPICS])).children[0] or ()
        assignments = (await self._client.read([paths.topic(topic) for topic in topics])).rows
        keys = [
            ((topic, partition), replicas)
            for topic, row in zip(topics, assignments, strict=True)
            if row is not None
            for partition, replicas in decode_topic_assignment(row.path, row.data).partitions.items()
        ]
        rows = (await self._client.read([paths.partition_state(*key) for key, _ in keys])).rows
        return _views(keys, rows)


def _views(
    keys: Sequence[tuple[tuple[str, int], tuple[int, ...]]], rows: Sequence[Znode | None]
) -> dict[tuple[str, int], PartitionView]:
    views = {}
    for (key, replicas), row in zip(keys, rows, strict=True):
        if row is not None:
            state = decode_partition_state(row.path, row.data)
            views[key] = PartitionView(state.leader, state.isr, replicas, state.leader_epoch, state.controller_epoch)
    return views


def wait(task: Coro[T]) -> T:
    """Blocks this thread until the coroutine has ended. TimeoutError if no answer comes for ANSWER_S."""
    pending = spawn(task)
    answered = threading.Event()
    pending.on_done(answered.set)
    if not answered.wait(ANSWER_S):
        raise TimeoutError(f"no answer from ZooKeeper in {ANSWER_S:g} s")
    return pending.result()
