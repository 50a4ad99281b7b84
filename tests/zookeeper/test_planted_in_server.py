"""Faults planted once each in the ZooKeeper server in Python, and in the in-memory model.

Histories that are compared with a real server find those of the server, the contract suite those of the model.

    python -m tests.zookeeper.test_planted_in_server

searches from seed 1 on and prints the table of docs/zookeeper-server.md. The tests replay the seeds that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.zookeeper.operations import ACL, WatchKind
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.core import ServerSession, ZooKeeperCore
from controller.zookeeper.server.identity import ConnectionIdentity
from controller.zookeeper.server.requests import RequestProcessor
from controller.zookeeper.server.watches import ServerWatches, WatchMode
from controller.zookeeper.server.wire import OpCode, RecordReader
from tests.simulator import planted_zookeeper
from tests.simulator.planted_zookeeper import ephemerals_outlive_their_session, multi_half_applied
from tests.zookeeper import test_contract_nodes as nodes
from tests.zookeeper import test_contract_sessions as sessions
from tests.zookeeper import test_contract_watches as watches
from tests.zookeeper import wire_fuzz
from tests.zookeeper.conftest import open_backend
from tests.zookeeper.contract import Backend, Client
from tests.zookeeper.wire_fuzz import Pair, pair

Patch = pytest.MonkeyPatch
SEEDS = 2_000
OUTLIVED_MS = 60_000.0
DEADLINE_S = 1.0
"""How long a test waits for a transaction of the real server that a planted fault keeps from happening."""


def event_after_its_reply(patch: Patch) -> None:
    """An event waits until the replies of the same turn have left."""
    fired = ServedConnection.watch_fired

    def later(self: ServedConnection, kind: WatchKind, path: str, zxid: int, acl: tuple[ACL, ...]) -> None:
        self.core.clock.call_later(0.0, lambda: fired(self, kind, path, zxid, acl))

    patch.setattr(ServedConnection, "watch_fired", later)


def event_to_a_stranger(patch: Patch) -> None:
    """An event is sent to a client that may not read the node (CVE-2024-23944)."""
    fired = ServedConnection.watch_fired

    def to_all(self: ServedConnection, kind: WatchKind, path: str, zxid: int, _acl: tuple[ACL, ...]) -> None:
        identity, self.identity = self.identity, _Anyone("127.0.0.1")
        fired(self, kind, path, zxid, ())
        self.identity = identity

    patch.setattr(ServedConnection, "watch_fired", to_all)


class _Anyone(ConnectionIdentity):
    __slots__ = ()

    def may(self, acl: tuple[ACL, ...], permission: int) -> bool:
        return True


def persistent_watches_lost_on_reconnect(patch: Patch) -> None:
    """SetWatches2 sets the standard watches alone."""
    set_watches = RequestProcessor._set_watches

    def standard(self: RequestProcessor, requester: ServedConnection, record: RecordReader, _persistent: bool) -> bytes:
        return set_watches(self, requester, record, False)

    patch.setattr(RequestProcessor, "_set_watches", standard)


def recursive_watch_fires_once(patch: Patch) -> None:
    """A persistent recursive watch is removed by its first event at its own path."""
    fire = ServerWatches.fire

    def once(self: ServerWatches, changes: Any, zxid: int) -> None:
        fire(self, changes, zxid)
        for _kind, path, _acl in changes:
            for watcher in list(self._data.by_path.get(path, ())):
                self._data.take(path, watcher, WatchMode.RECURSIVE)

    patch.setattr(ServerWatches, "fire", once)


def session_outlives_its_timeout(patch: Patch) -> None:
    """A session ends a minute late."""
    touch = ZooKeeperCore.touch

    def touched(self: ZooKeeperCore, session: ServerSession) -> None:
        touch(self, session)
        session.expires_ms += OUTLIVED_MS

    patch.setattr(ZooKeeperCore, "touch", touched)


def moved_session_keeps_its_connection(patch: Patch) -> None:
    """A client that comes back over another connection leaves the first one open."""
    attach = ZooKeeperCore.attach

    def attached(self: ZooKeeperCore, connection: ServedConnection, session: int, *rest: Any) -> ServerSession | None:
        if (known := self.sessions.get(session)) is not None:
            known.connection = None
        return attach(self, connection, session, *rest)

    patch.setattr(ZooKeeperCore, "attach", attached)


def identity_outlives_its_connection(patch: Patch) -> None:
    """A session's credentials hold over its next connection, too."""
    attach = ZooKeeperCore.attach
    proven: dict[int, tuple[str, ...]] = {}

    def attached(self: ZooKeeperCore, connection: ServedConnection, session: int, *rest: Any) -> ServerSession | None:
        known = self.sessions.get(session)
        if known is not None and known.connection is not None:
            proven[session] = known.connection.identity.ids
        connection.identity.ids = proven.get(session, ())
        return attach(self, connection, session, *rest)

    patch.setattr(ZooKeeperCore, "attach", attached)


def failed_write_takes_no_zxid(patch: Patch) -> None:
    """A multi that fails is no transaction."""
    multi = RequestProcessor._multi

    def uncounted(self: RequestProcessor, requester: ServedConnection, record: RecordReader) -> bytes:
        zxid, nodes = self.zxid, len(self.tree.nodes)
        body = multi(self, requester, record)
        if body[:4] == b"\xff\xff\xff\xff" and len(body) > 9 and len(self.tree.nodes) == nodes:
            self.zxid = zxid
        return body

    patch.setattr(RequestProcessor, "_multi", uncounted)


def exists_needs_no_right(patch: Patch) -> None:
    """`exists` answers a client that may not read the node (ZOOKEEPER-2590), as this server did."""
    answer = RequestProcessor.answer

    def lenient(self: RequestProcessor, requester: ServedConnection, operation: int, record: RecordReader) -> bytes:
        identity = requester.identity
        if operation == OpCode.EXISTS:
            requester.identity = _Anyone("127.0.0.1")
        try:
            return answer(self, requester, operation, record)
        finally:
            requester.identity = identity

    patch.setattr(RequestProcessor, "answer", lenient)


def container_by_its_flags(patch: Patch) -> None:
    """A create whose flags are those of a container makes one, whatever its request type, as this server did."""
    create: Any = RequestProcessor._create

    def created(self: RequestProcessor, requester: Any, asked: Any, flags: int, *rest: Any, **kind: bool) -> Any:
        return create(self, requester, asked, flags, *rest, **{**kind, "is_container": flags == 4})

    patch.setattr(RequestProcessor, "_create", created)


def container_deleted_before_its_first_child(patch: Patch) -> None:
    """A container without children is deleted, though it never had one."""
    delete = RequestProcessor.delete_if_abandoned

    def deleted(self: RequestProcessor, path: str, now_ms: int) -> bool:
        node = self.tree.nodes.get(path)
        if node is not None and not node.creations and not len(node.children):
            node.creations = 1
        return delete(self, path, now_ms)

    patch.setattr(RequestProcessor, "delete_if_abandoned", deleted)


FAULTS: dict[Callable[[Patch], None], tuple[bool, int]] = {
    event_after_its_reply: (False, 1),
    multi_half_applied: (False, 34),
    session_outlives_its_timeout: (True, 2),
    persistent_watches_lost_on_reconnect: (False, 13),
    ephemerals_outlive_their_session: (False, 36),
    recursive_watch_fires_once: (False, 342),
    event_to_a_stranger: (False, 31),
    moved_session_keeps_its_connection: (False, 7),
    identity_outlives_its_connection: (False, 236),
    failed_write_takes_no_zxid: (False, 3),
    exists_needs_no_right: (False, 152),
    container_by_its_flags: (True, 1),
    container_deleted_before_its_first_child: (True, 4),
}
"""Whether a history must be a timed one, and the first seed that finds the fault."""


def search(servers: Pair, plant: Callable[[Patch], None], seeds: range) -> tuple[int, str] | None:
    """Return the first seed whose history finds the fault, and where."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = servers.difference(seed)
        if found is not None:
            return seed, found
    return None


@pytest.fixture(scope="module")
def untimed() -> Iterator[Pair]:
    with pair() as servers:
        yield servers


@pytest.fixture(scope="module")
def timed() -> Iterator[Pair]:
    with pair(timed=True) as servers:
        yield servers


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(
    plant: Callable[[Patch], None], request: pytest.FixtureRequest, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(wire_fuzz, "DEADLINE_S", DEADLINE_S)
    needs_time, seed = FAULTS[plant]
    servers: Pair = request.getfixturevalue("timed" if needs_time else "untimed")
    assert search(servers, plant, range(seed, seed + 1)) is not None


CONTRACT: dict[Callable[[Patch], None], Callable[[Backend, Client], None]] = {
    planted_zookeeper.event_after_its_reply: watches.test_a_client_hears_of_its_own_change_before_its_reply,
    multi_half_applied: lambda backend, client: nodes.test_a_multi_is_all_or_nothing_and_names_the_first_that_failed(
        backend, client, 1
    ),
    planted_zookeeper.checks_not_made: (
        lambda backend, client: nodes.test_a_multi_is_all_or_nothing_and_names_the_first_that_failed(backend, client, 0)
    ),
    planted_zookeeper.session_outlives_its_timeout: (
        sessions.test_a_client_that_is_cut_off_stays_suspended_while_its_session_ends
    ),
    ephemerals_outlive_their_session: sessions.test_close_ends_the_session_and_its_ephemerals_at_once,
    planted_zookeeper.watches_lost_on_reconnect: lambda backend, client: (
        watches.test_set_watches_tells_at_once_what_has_changed_since_and_watches_the_rest(
            backend, client, backend.client()
        )
    ),
    planted_zookeeper.missed_events_not_sent: lambda backend, client: (
        watches.test_set_watches_tells_at_once_what_has_changed_since_and_watches_the_rest(
            backend, client, backend.client()
        )
    ),
}
"""A fault of the in-memory model, and a test of the contract suite that fails with it."""


@pytest.mark.parametrize("plant", CONTRACT, ids=lambda plant: plant.__name__)
def test_the_contract_suite_finds_a_fault_of_the_model(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    backend = open_backend("in-memory", str)
    CONTRACT[plant](backend, backend.client())
    plant(monkeypatch)
    broken = open_backend("in-memory", str)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        CONTRACT[plant](broken, broken.client())


def main() -> None:
    print("| fault | histories | first difference |\n| --- | --- | --- |")
    for plant, (needs_time, _) in FAULTS.items():
        with pair(timed=needs_time) as servers:
            found = search(servers, plant, range(1, SEEDS + 1))
        where = "not found" if found is None else found[1].splitlines()[0]
        print(f"| `{plant.__name__}` | {found and found[0]} | {where} |", flush=True)


if __name__ == "__main__":
    main()
