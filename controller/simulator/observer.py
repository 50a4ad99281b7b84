"""Somebody outside the cluster who watches its ZooKeeper: which brokers are registered, who is controller, since when.

A client like any other, with a session that outlives every fault, and so near to the server that no time passes
between what happens and its being seen: no broker can act on a session's end before it is in the trace. `partitions`
is the other way to look: into the in-memory server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.clock import Clock, spawn
from controller.core.leadership import named_in
from controller.scenarios.host import PartitionView
from controller.scenarios.membership import Membership, changes, look
from controller.trace import EphemeralSeen
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.codecs import decode_controller_epoch, decode_partition_state, decode_topic_assignment
from controller.zookeeper.memory.server import InMemoryConnection, InMemoryZooKeeper

_LOOK = "look"


class MembershipObserver:
    """Reports to `seen` which brokers and controllers came and went."""

    def __init__(
        self, connection: InMemoryConnection, clock: Clock, seed: int, seen: Callable[[EphemeralSeen], None]
    ) -> None:
        self._client = ZooKeeperClient(connection, clock, self, seed=seed)
        self._seen = seen
        self._last = Membership()
        self._looking = False
        self._look_again = False

    async def start(self) -> None:
        """Returns when the first look has been taken."""
        await self._client.start()
        # Children of a node that is not there can't be watched, and the first broker is yet to come.
        await BrokerWrites(self._client).ensure_persistent_paths()
        await self._client.watch_node(paths.CONTROLLER, _LOOK)
        await self._client.watch_children(paths.BROKER_IDS, _LOOK)
        await self._look()

    def put(self, event: Any) -> None:
        """A watch says that there is something to look at."""
        if self._looking:
            self._look_again = True
        else:
            spawn(self._look())

    def now(self) -> tuple[Mapping[int, int], int]:
        """Return the registered brokers with their sessions, and the controller (-1: none)."""
        return self._last.registered, self._last.controller

    async def _look(self) -> None:
        self._looking = self._look_again = True
        while self._look_again:
            self._look_again = False
            was, self._last = self._last, await look(self._client)
            for change in changes(was, self._last):
                self._seen(change)
        self._looking = False


def controller_epoch(server: InMemoryZooKeeper) -> int:
    """What /controller_epoch holds; 0 where there is none."""
    row = server.row(paths.CONTROLLER_EPOCH)
    return 0 if row is None else decode_controller_epoch(row.path, row.data)


def controller_named(server: InMemoryZooKeeper) -> int:
    """Return the broker that /controller names, -1 if it names none."""
    row = server.row(paths.CONTROLLER)
    named = None if row is None else named_in(row)
    return -1 if named is None else named


def partitions(server: InMemoryZooKeeper) -> dict[tuple[str, int], PartitionView]:
    """Every partition that has a state, as the server holds it now."""
    views = {}
    for topic in server.children(paths.BROKER_TOPICS) or ():
        assignment = server.row(paths.topic(topic))
        if assignment is None:
            continue
        for partition, replicas in decode_topic_assignment(assignment.path, assignment.data).partitions.items():
            row = server.row(paths.partition_state(topic, partition))
            if row is not None:
                state = decode_partition_state(row.path, row.data)
                views[topic, partition] = PartitionView(
                    state.leader, state.isr, replicas, state.leader_epoch, state.controller_epoch
                )
    return views
