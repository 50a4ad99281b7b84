"""Planted faults in the in-memory ZooKeeper that the simulator runs on, as in `tests.simulator.planted`, which collects
them: each is a promise of ZooKeeper's that the brokers and the controller rely on, broken in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from controller.zookeeper.memory.database import Change, Database, DataTree
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Check, MultiFailed, Write, ZooKeeperError

Patch = pytest.MonkeyPatch
EVENT_DELAY_MS = 50.0
OUTLIVED_MS = 120_000.0


def event_after_its_reply(patch: Patch) -> None:
    """Watches fire a while after the change, behind replies that show it."""
    fire = Database._fire

    def later(self: Database, changes: Sequence[Change]) -> None:
        self._clock.call_later(EVENT_DELAY_MS, lambda: fire(self, changes))

    patch.setattr(Database, "_fire", later)


def multi_half_applied(patch: Patch) -> None:
    """A multi that fails keeps the operations before the one that failed."""
    apply = DataTree.apply

    def applied(self: DataTree, operations: Sequence[Write], *rest: Any) -> Any:
        try:
            return apply(self, operations, *rest)
        except MultiFailed as failed:
            apply(self, operations[: failed.index], *rest)
            raise

    patch.setattr(DataTree, "apply", applied)


def checks_not_made(patch: Patch) -> None:
    """A multi applies what it can, whatever its checks find: the controller's fence does not hold."""
    apply = DataTree.apply

    def applied(self: DataTree, operations: Sequence[Write], *rest: Any) -> Any:
        try:
            return apply(self, operations, *rest)
        except MultiFailed as failed:
            left = [operation for operation in operations if not isinstance(operation, Check)]
            if len(left) == len(operations):
                raise
            try:
                results, changes = apply(self, left, *rest)
            except ZooKeeperError:
                raise failed from None
            found = iter(results)
            return tuple(None if isinstance(each, Check) else next(found) for each in operations), changes

    patch.setattr(DataTree, "apply", applied)


def session_outlives_its_timeout(patch: Patch) -> None:
    """A session ends two minutes late."""
    touch = InMemoryZooKeeper._touch

    def touched(self: InMemoryZooKeeper, session: Any) -> None:
        touch(self, session)
        session.expires_ms += OUTLIVED_MS

    patch.setattr(InMemoryZooKeeper, "_touch", touched)


def ephemerals_outlive_their_session(patch: Patch) -> None:
    patch.setattr(DataTree, "end_session", lambda self, session, zxid: [])


def watches_lost_on_reconnect(patch: Patch) -> None:
    """SetWatches is answered and sets none."""
    patch.setattr(Database, "set_watches", lambda self, link, arguments: None)


def missed_events_not_sent(patch: Patch) -> None:
    """SetWatches sets every watch, and says nothing of what changed while the client was away."""

    def set_watches(self: Database, link: Any, arguments: Any) -> None:
        _, data, exists, children = arguments
        for path in (*data, *exists):
            self.data_watches.add(path, link)
        for path in children:
            self.child_watches.add(path, link)

    patch.setattr(Database, "set_watches", set_watches)


ZOOKEEPER_FAULTS: Mapping[str, Callable[[Patch], None]] = {
    "zookeeper-event-after-its-reply": event_after_its_reply,
    "zookeeper-multi-half-applied": multi_half_applied,
    "zookeeper-checks-not-made": checks_not_made,
    "zookeeper-session-outlives-its-timeout": session_outlives_its_timeout,
    "zookeeper-ephemerals-outlive-their-session": ephemerals_outlive_their_session,
    "zookeeper-watches-lost-on-reconnect": watches_lost_on_reconnect,
    "zookeeper-missed-events-not-sent": missed_events_not_sent,
}
