"""The storage of a ZooKeeper server without the server: random transactions, and the crash of a machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

from controller.zookeeper.memory.database import ClientIdentity, DataTree
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, MultiFailed, SetData, Write
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.files import AppendedFile, DataDirectory
from controller.zookeeper.server.recovery import recover
from controller.zookeeper.server.storage import SNAPSHOT_TRANSACTIONS, Storage
from controller.zookeeper.server.transactions import SessionRecord, state_of

IDENTITY = ClientIdentity()
Dump = tuple[dict[str, Any], dict[int, SessionRecord]]


def dump(tree: DataTree, sessions: dict[int, SessionRecord]) -> Dump:
    """Return all that a client could see."""
    nodes = {path: (state_of(node), sorted(node.children)) for path, node in tree.nodes.items()}
    owned = {session: tree.ephemerals(session) for session in sessions}
    return {**nodes, "ephemerals": owned}, dict(sessions)


def recovered(path: Path) -> tuple[int, Dump, list[str]]:
    """Return the last zxid of a data directory, its state, and the warnings."""
    directory = DataDirectory(path)
    try:
        found = recover(directory)
    finally:
        directory.close()
    return found.zxid, dump(found.tree, found.sessions), found.warnings


class Desk:
    """Applies random transactions to a storage as a server does. `acknowledged`: the last one that was answered."""

    def __init__(
        self, directory: DataDirectory, *, fsync: bool = True, snapshot_transactions: int = SNAPSHOT_TRANSACTIONS
    ) -> None:
        self.failures: list[Exception] = []
        self.acknowledged = 0
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.storage = Storage(
            directory,
            fsync=fsync,
            snapshot_transactions=snapshot_transactions,
            post=self._work.put,
            on_failure=self.failures.append,
        )

    def release(self, data: bytes) -> None:
        self.acknowledged = int.from_bytes(data)

    def pump(self, timeout_s: float | None = None) -> None:
        """Do what was posted; with a timeout, wait that long for the first."""
        try:
            while True:
                self._work.get(timeout_s is not None, timeout_s)()
                timeout_s = None
        except queue.Empty:
            pass

    def settle(self) -> None:
        """Wait until all is durable and no snapshot is being written."""
        while not self.failures and (self.storage.durable != self.storage.zxid or self.storage._snapshot is not None):
            self.pump(0.01)

    def dump(self) -> Dump:
        return dump(self.storage.tree, self.storage.sessions)

    def write(self, operations: list[Write], session: int = 0) -> None:
        storage, zxid = self.storage, self.storage.zxid + 1
        try:
            _, changes = storage.tree.apply(operations, session, IDENTITY, zxid, zxid)
        except MultiFailed:
            changes = []
        storage.write(zxid, session, changes)
        self._answer(zxid)

    def begin(self) -> int:
        storage, zxid = self.storage, self.storage.zxid + 1
        session = storage.last_session + 1
        storage.begin_session(zxid, SessionRecord(session, b"secret", 6000 + session))
        self._answer(zxid)
        return session

    def end(self, session: int) -> None:
        storage, zxid = self.storage, self.storage.zxid + 1
        storage.end_session(zxid, session, storage.tree.end_session(session, zxid))
        self._answer(zxid)

    def _answer(self, zxid: int) -> None:
        if self.storage.zxid == self.storage.durable:
            self.acknowledged = zxid
        else:
            self.storage.hold(cast(ServedConnection, self), zxid.to_bytes(8))

    def step(self, random: Random) -> None:
        """Do one random transaction; some fail."""
        sessions = list(self.storage.sessions)
        drawn = random.random()
        name = f"/{random.choice('abc')}"
        below = f"{name}/{random.choice('xyz')}"
        value = random.randbytes(random.randrange(6))
        if drawn < 0.1 or not sessions:
            self.begin()
            return
        session = random.choice(sessions)
        if drawn < 0.17:
            self.end(session)
        elif drawn < 0.4:
            self.write([Create(random.choice([name, below]), value, ephemeral=random.random() < 0.3)], session)
        elif drawn < 0.55:
            self.write([Create(f"{name}/s-", value, random.random() < 0.5, sequential=True)], session)
        elif drawn < 0.7:
            self.write([SetData(random.choice([name, below]), value, ANY_VERSION)], session)
        elif drawn < 0.85:
            self.write([Delete(random.choice([name, below]), ANY_VERSION)], session)
        else:
            # Deleted and created again in one multi, and two values that always agree.
            writes: list[Write] = [Create("/left", value), Create("/right", value)]
            if "/left" in self.storage.tree.nodes:
                writes[:0] = [Delete("/left", ANY_VERSION), Delete("/right", ANY_VERSION)]
            self.write(writes, session)


class _OnDisk:
    """How much of a file is on the disk."""

    def __init__(self, synced: int) -> None:
        self.synced = synced


class LossyFile(AppendedFile):
    """A file that knows how much of it is on the disk."""

    def __init__(self, path: Path, directory: LossyDirectory) -> None:
        self._lock = directory.lock
        super().__init__(path)
        with self._lock:
            self._state = directory.names_now.setdefault(path.name, _OnDisk(0))

    def sync(self) -> None:
        size = self.size()
        super().sync()
        with self._lock:
            self._state.synced = size


class LossyDirectory(DataDirectory):
    """A directory whose state after a crash of the machine can be had at any time: see `crash`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = threading.RLock()
        sizes = {each.name: each.stat().st_size for each in path.iterdir() if each.name != "lock"}
        self.names_now = {name: _OnDisk(size) for name, size in sizes.items()}
        self._names_synced = dict(self.names_now)

    def open(self, name: str) -> AppendedFile:
        return LossyFile(self.path / name, self)

    def rename(self, name: str, new_name: str) -> None:
        with self.lock:
            super().rename(name, new_name)
            self.names_now[new_name] = self.names_now.pop(name)

    def remove(self, name: str) -> None:
        with self.lock:
            if name in self.names_now:
                del self.names_now[name]
                (self.path / name).rename(self._removed(name))  # kept, since the removal is not durable yet

    def truncate(self, name: str, size: int) -> None:
        with self.lock:
            super().truncate(name, size)
            self.names_now[name].synced = size

    def sync_names(self) -> None:
        with self.lock:
            super().sync_names()
            self._names_synced = dict(self.names_now)

    def crash(self, target: Path, random: Random) -> None:
        """Write to `target` what a crash now could leave: of each file the synced part and some of what follows."""
        with self.lock:
            target.mkdir()
            for name, state in random.choice([self.names_now, self._names_synced]).items():
                now = next((each for each, other in self.names_now.items() if other is state), None)
                source = self._removed(name) if now is None else self.path / now
                content = source.read_bytes()
                kept = random.randint(state.synced, len(content))
                lost = len(content) - kept
                (target / name).write_bytes(content[:kept] + random.choice([b"", bytes(lost), random.randbytes(lost)]))

    def _removed(self, name: str) -> Path:
        return self.path.parent / f"{self.path.name}-removed-{name}"
