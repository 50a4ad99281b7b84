"""The persistent state of a ZooKeeper server: its log, its snapshots, and the replies that wait for them.

A reply or event that is made while a transaction is not durable yet waits until it is, also if it answers a read of
another client: no client sees a change that a crash could undo. ZooKeeper's SyncRequestProcessor does the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from controller.zookeeper.memory.database import Change, DataTree, StoredZnode
from controller.zookeeper.server.files import DataDirectory
from controller.zookeeper.server.log import SNAPSHOT_MAGIC, TransactionLog, frame, header, log_name, new_salt, zxid_of
from controller.zookeeper.server.recovery import SNAPSHOT_PREFIX, TEMPORARY, recover, snapshot_name
from controller.zookeeper.server.transactions import (
    PACK,
    LoggedTransaction,
    SessionRecord,
    SnapshotEnd,
    SnapshotHead,
    SnapshotNodes,
    state_of,
    transaction_of,
)

if TYPE_CHECKING:
    from controller.zookeeper.server.connection import ServedConnection

SNAPSHOT_TRANSACTIONS: Final = 100_000
"""Transactions from one snapshot to the next (ZooKeeper's snapCount)."""
SNAPSHOT_BYTES: Final = 64 << 20
"""Bytes of transactions after which a snapshot is taken too, or the size of the last one if that is more."""
SNAPSHOTS_KEPT: Final = 3
"""As ZooKeeper's autopurge.snapRetainCount."""
_NODES_PER_FRAME: Final = 500
"""Znodes of a snapshot that are encoded between two requests: about a millisecond."""


class Storage:
    """The files of one server. All methods are called on the server's thread, `close` when that has ended.

    Opening recovers the state. Raises OSError, DataDirectoryInUse, or DamagedDataFile.

    Args:
        directory: the data directory; `close` closes it.
        fsync: put each transaction on the disk before it is answered; else a crash of the machine may lose some.
        snapshot_transactions: how many transactions there are from one snapshot to the next.
        post: does work on the server's thread, soon; may be called from any thread. Work after its end is dropped.
        on_failure: called on the server's thread with the first error of the log. Nothing is released after it.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        fsync: bool,
        snapshot_transactions: int,
        post: Callable[[Callable[[], None]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._directory = directory
        self._log = TransactionLog(
            directory,
            fsync=fsync,
            on_durable=lambda zxid: post(lambda: self._release(zxid)),
            on_failure=lambda error: post(lambda: on_failure(error)),
        )
        try:
            recovered = recover(directory)
            self._log.open(recovered.zxid, recovered.salt, recovered.log)
        except BaseException:
            directory.close()
            raise
        self.tree: DataTree = recovered.tree
        """The znodes; the server changes them, and says so to `write`."""
        self.sessions: dict[int, SessionRecord] = recovered.sessions
        self.last_session: int = recovered.last_session
        self.warnings: list[str] = recovered.warnings
        self.zxid: int = recovered.zxid
        """The last transaction that was logged."""
        self.durable: int = recovered.zxid
        """The last transaction that is on the disk."""
        self._post = post
        self._fsync = fsync
        self._snapshot_transactions = snapshot_transactions
        self._since_snapshot = recovered.replayed
        self._bytes_since_snapshot = recovered.replayed_bytes
        self._snapshot_bytes = recovered.snapshot_bytes
        self._held: deque[tuple[int, ServedConnection, bytes]] = deque()
        self._snapshot: threading.Thread | None = None
        self._durable_changed = threading.Condition()
        self._closing = False

    @property
    def groups(self) -> int:
        """The number of groups of transactions that were written and synced together."""
        return self._log.groups

    def begin_session(self, zxid: int, session: SessionRecord) -> None:
        """Log a new session, which is transaction `zxid`."""
        self.sessions[session.id] = session
        self.last_session = max(self.last_session, session.id)
        self._append(LoggedTransaction(zxid, now_ms(), session.id, begun=session))

    def end_session(self, zxid: int, session: int, changes: Iterable[Change]) -> None:
        """Log the end of a session, which has deleted its ephemerals from the tree."""
        self.sessions.pop(session, None)
        self._append(transaction_of(zxid, now_ms(), session, changes, self.tree, ended=True))

    def write(self, zxid: int, session: int, changes: Iterable[Change]) -> None:
        """Log a transaction that has just made these changes in the tree, or none if it failed."""
        self._append(transaction_of(zxid, now_ms(), session, changes, self.tree))

    def hold(self, connection: ServedConnection, data: bytes) -> None:
        """Keep what is to be sent until all transactions so far are durable, then give it to `connection.release`."""
        self._held.append((self.zxid, connection, data))

    def close(self) -> None:
        """Write and sync what is pending, abandon a snapshot that is being written, and release the directory."""
        with self._durable_changed:
            self._closing = True
            self._durable_changed.notify_all()
        if self._snapshot is not None:
            self._snapshot.join()
        self._log.close()
        self._directory.close()

    def _append(self, transaction: LoggedTransaction) -> None:
        packed = PACK.encode(transaction)
        self.zxid = transaction.zxid
        if self._log.append(packed):
            self.durable = transaction.zxid
        self._since_snapshot += 1
        self._bytes_since_snapshot += len(packed)
        if self._snapshot is None and (
            self._since_snapshot >= self._snapshot_transactions
            or self._bytes_since_snapshot >= max(SNAPSHOT_BYTES, self._snapshot_bytes)
        ):
            self._begin_snapshot()

    def _release(self, zxid: int) -> None:
        held = self._held
        while held and held[0][0] <= zxid:
            _, connection, data = held.popleft()
            connection.release(data)
        with self._durable_changed:
            self.durable = zxid
            self._durable_changed.notify_all()

    # Snapshots. A thread writes them; the znodes are encoded on the server's thread, some between two requests.

    def _begin_snapshot(self) -> None:
        self._since_snapshot = self._bytes_since_snapshot = 0
        self._log.roll(self.zxid + 1)
        head = SnapshotHead(self.zxid, self.last_session, tuple(self.sessions.values()))
        nodes = list(self.tree.nodes.values())
        self._snapshot = threading.Thread(
            target=self._take_snapshot, args=(head, nodes), name="zookeeper-snapshot", daemon=True
        )
        self._snapshot.start()

    def _take_snapshot(self, head: SnapshotHead, nodes: list[StoredZnode]) -> None:
        name = snapshot_name(head.zxid)
        try:
            size = self._write_snapshot(name + TEMPORARY, head, nodes)
            if size is not None:
                self._directory.rename(name + TEMPORARY, name)
                self._directory.sync_names()
                self._snapshot_bytes = size
                self._remove_old()
        except OSError as error:
            # The log has everything: it is tried again with the next transactions.
            self.warnings.append(f"{self._directory.path / name}: the snapshot failed: {error.strerror}")
        finally:
            self._snapshot = None

    def _write_snapshot(self, name: str, head: SnapshotHead, nodes: list[StoredZnode]) -> int | None:
        """Write all of a snapshot and return its size; None if the server ends meanwhile."""
        salt = new_salt()
        self._directory.remove(name)
        file = self._directory.open(name)
        try:
            file.append(header(SNAPSHOT_MAGIC, head.zxid, salt))
            file.append(frame(PACK.encode(head), salt))
            for at in range(0, len(nodes), _NODES_PER_FRAME):
                payload = self._on_server(partial(_encode, nodes[at : at + _NODES_PER_FRAME]))
                if payload is None:
                    return None
                file.append(frame(payload, salt))
            through = self.zxid
            file.append(frame(PACK.encode(SnapshotEnd(len(nodes), through)), salt))
            file.sync()
            size = file.size()
        finally:
            file.close()
        if not self._fsync:
            self._log.sync()
        # A snapshot that outlasted transactions of which it has effects would have half of them.
        return size if self._wait_durable(through) else None

    def _wait_durable(self, zxid: int) -> bool:
        """Wait until a transaction is on the disk; False if the server ends before."""
        with self._durable_changed:
            self._durable_changed.wait_for(lambda: self.durable >= zxid or self._closing)
            return not self._closing

    def _on_server(self, work: Callable[[], bytes]) -> bytes | None:
        """Do work on the server's thread and return its result; None if the server ends."""
        done: list[bytes] = []

        def do() -> None:
            result = work()
            with self._durable_changed:
                done.append(result)
                self._durable_changed.notify_all()

        self._post(do)
        with self._durable_changed:
            self._durable_changed.wait_for(lambda: done or self._closing)
        return done[0] if done else None

    def _remove_old(self) -> None:
        """Remove all but the newest snapshots, and the logs whose transactions all of these have."""
        names = self._directory.names()
        snapshots = [name for name in names if zxid_of(name, SNAPSHOT_PREFIX) is not None]
        removed = snapshots[:-SNAPSHOTS_KEPT]
        oldest = zxid_of(snapshots[len(removed)], SNAPSHOT_PREFIX)
        assert oldest is not None
        before = [name for name in names if zxid_of(name) is not None and name <= log_name(oldest + 1)]
        for name in (*removed, *before[:-1]):
            self._directory.remove(name)
        self._directory.sync_names()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode(nodes: Sequence[StoredZnode]) -> bytes:
    return PACK.encode(SnapshotNodes(tuple(map(state_of, nodes))))
