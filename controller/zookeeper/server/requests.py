"""What a ZooKeeper server does for each request: the tree, the watches, and the body of the reply.

The order of checks, and which error is reported where several apply, are those of ZooKeeper 3.9's
PrepRequestProcessor and FinalRequestProcessor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from controller.clock import Clock
from controller.zookeeper.jute import END, ERROR_RESULT, INT, MULTI_HEADER, acl_entries, buffer, string, strings
from controller.zookeeper.memory.database import Change, DataTree, StoredZnode
from controller.zookeeper.operations import (
    ACL,
    OPEN_ACL,
    PERM_ADMIN,
    PERM_CREATE,
    PERM_READ,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NoChildrenForEphemerals,
    NoNode,
    SetData,
    Stat,
    WatchKind,
    Write,
    WriteResult,
    ZooKeeperError,
)
from controller.zookeeper.paths import validate_new_path, validate_path
from controller.zookeeper.server import wire
from controller.zookeeper.server.identity import ConnectionIdentity
from controller.zookeeper.server.watches import ServerWatches, WatcherType
from controller.zookeeper.server.wire import MalformedRecord, OpCode, RecordReader, Refused, ReplyCode, code_of

if TYPE_CHECKING:
    from controller.zookeeper.server.connection import ServedConnection
    from controller.zookeeper.server.storage import Storage

CONTAINER_OWNER: Final = -(1 << 63)
"""What a server stores for a container in the place of an ephemeral owner."""
_TTL_MASK: Final = 0xFF << 56
MAX_TTL_MS: Final = (1 << 40) - 1
_EPHEMERAL, _CONTAINER, _TTL = (1, 3), 4, (5, 6)
_SEQUENTIAL = (2, 3, 6)
_LAST_FLAG = 6
_NO_NAME: Final = "\N{REPLACEMENT CHARACTER}"
"""The name of a probe, which is never applied."""
_WITH_STAT = (OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL)


def ttl_of(node: StoredZnode) -> int | None:
    """Return the milliseconds after its last change that a TTL node without children is deleted, or None."""
    owner = node.extended & ((1 << 64) - 1)
    return owner & MAX_TTL_MS if owner >> 56 == 0xFF else None


class _NoSuchFlags(BadArguments):
    """The flags of a create name no CreateMode: an error in a request, and a multi that can't be read."""


class _BadPath(BadArguments):
    """No znode can have the path of a create; an error at its parent comes before this one."""

    def __init__(self, asked: Create) -> None:
        super().__init__(asked.path)
        parent = asked.path.rpartition("/")[0]
        self.probe = Create(f"{parent}/{_NO_NAME}", None, acl=asked.acl)
        """A create that fails where the parent or the ACL is at fault."""


class RequestProcessor:
    """The znodes and watches of a server. `zxid` is the last transaction's; each write, failed or not, is one."""

    def __init__(self, clock: Clock, extended_types: bool) -> None:
        self.tree = DataTree()
        self.watches = ServerWatches()
        self.zxid = 0
        self.extended: dict[str, None] = {}
        """Paths of container and TTL nodes; some may have been deleted since."""
        self.storage: Storage | None = None
        """Where each transaction is logged, if the server keeps its data."""
        self._clock = clock
        self._extended_types = extended_types
        self._now_ms = 0
        self._reads: dict[int, Callable[[ServedConnection, RecordReader], bytes]] = {
            OpCode.EXISTS: self._exists,
            OpCode.GET_DATA: self._get_data,
            OpCode.GET_ACL: self._get_acl,
            OpCode.GET_CHILDREN: self._get_children,
            OpCode.GET_CHILDREN2: self._get_children2,
            OpCode.SYNC: lambda _requester, record: string(record.text()),
            OpCode.PING: lambda _requester, _record: b"",
            OpCode.CHECK_WATCHES: self._check_watches,
            OpCode.REMOVE_WATCHES: self._remove_watches,
            OpCode.MULTI_READ: self._multi_read,
            OpCode.SET_WATCHES: lambda requester, record: self._set_watches(requester, record, False),
            OpCode.SET_WATCHES2: lambda requester, record: self._set_watches(requester, record, True),
            OpCode.GET_EPHEMERALS: self._get_ephemerals,
            OpCode.GET_ALL_CHILDREN_NUMBER: self._get_all_children_number,
            OpCode.ADD_WATCH: self._add_watch,
            OpCode.WHO_AM_I: self._who_am_i,
        }

    def answer(self, requester: ServedConnection, operation: int, record: RecordReader) -> bytes:
        """Carry out one request and return the body of its reply. Raises ZooKeeperError for an error reply."""
        try:
            if (read := self._reads.get(operation)) is not None:
                return read(requester, record)
            if operation == OpCode.MULTI:
                return self._multi(requester, record)
            if operation == OpCode.SET_ACL:
                return self._set_acl(requester, record)
            if operation == OpCode.RECONFIG:
                self.zxid += 1
                raise Refused(ReplyCode.RECONFIG_DISABLED)
            try:
                write, extended = self._write_of(requester, operation, record)
            finally:
                if not record.broken:
                    self.zxid += 1
            return self._result_body(requester, operation, write, self._apply(requester, [write], [extended])[0])
        except MultiFailed as failed:
            raise failed.error from None
        except MalformedRecord:
            raise Refused(ReplyCode.MARSHALLING_ERROR) from None
        finally:
            if self.storage is not None and self.storage.zxid < self.zxid:  # the write has failed
                self.storage.write(self.zxid, requester.session_id, ())

    def restore(self, storage: Storage) -> None:
        """Go on with the znodes that `storage` has read, and log to it."""
        self.storage, self.tree, self.zxid = storage, storage.tree, storage.zxid
        self.extended = {path: None for path, node in storage.tree.nodes.items() if node.extended}

    def end_session(self, session: int) -> None:
        """Delete the ephemerals of a session; one transaction."""
        self.zxid += 1
        changes = self.tree.end_session(session, self.zxid)
        if self.storage is not None:
            self.storage.end_session(self.zxid, session, changes)
        self.watches.fire(changes, self.zxid)

    def delete_if_abandoned(self, path: str, now_ms: int) -> bool:
        """Delete a container that has lost its last child, or a TTL node past its time; return whether it was due.

        A container is one only after it had a child (ContainerManager).
        """
        node = self.tree.nodes.get(path)
        if node is None or not node.extended:
            self.extended.pop(path, None)
            return False
        ttl_ms = ttl_of(node)
        due = node.creations > 0 if ttl_ms is None else now_ms - node.mtime_ms > ttl_ms
        if len(node.children) or not due:
            return False
        self.zxid += 1
        del self.extended[path]
        _, changes = self.tree.apply([Delete(path, -1)], 0, _ServerIdentity("127.0.0.1"), self.zxid, now_ms)
        self._commit(0, changes)
        return True

    # Writes.

    def _apply(
        self, requester: ServedConnection, writes: Sequence[Write], extended: Sequence[int]
    ) -> tuple[WriteResult, ...]:
        now_ms = self._now_ms = self._clock.wall_ms()
        results, changes = self.tree.apply(writes, requester.session_id, requester.identity, self.zxid, now_ms)
        for result, owner in zip(results, extended, strict=True):
            if owner and isinstance(result, str) and (node := self.tree.nodes.get(result)) is not None:
                node.extended = owner
                self.extended[result] = None
        self._commit(requester.session_id, changes)
        return results

    def _commit(self, session: int, changes: Sequence[Change]) -> None:
        """Log a transaction and send its watch events. These wait for the log, so the log comes first."""
        if self.storage is not None:
            self.storage.write(self.zxid, session, changes)
        self.watches.fire(changes, self.zxid)

    def _result_body(self, requester: ServedConnection, operation: int, write: Write, result: WriteResult) -> bytes:
        """Encode the result of one write as of that write: a later one of its multi may have changed the node."""
        if isinstance(result, Stat):
            return wire.stat(result)
        if not isinstance(result, str):
            return b""
        if operation == OpCode.CREATE:
            return string(result)
        assert isinstance(write, Create)
        zxid, now_ms = self.zxid, self._now_ms
        owner, size = requester.session_id if write.ephemeral else 0, len(write.data or b"")
        return string(result) + wire.stat(Stat(zxid, zxid, now_ms, now_ms, 0, 0, 0, owner, size, 0, zxid))

    def _write_of(
        self, requester: ServedConnection, operation: int, record: RecordReader, *, in_multi: bool = False
    ) -> tuple[Write, int]:
        """Decode one write: the operation, and the owner of a container or TTL node.

        A multi ignores the TTL of a create whose flags are not those of a TTL node; alone it is refused.
        """
        path = record.text()
        if operation in (OpCode.CREATE, *_WITH_STAT):
            data, acl, flags = record.buffer(), record.acl(), record.integer()
            ttl_ms = record.long() if operation == OpCode.CREATE_TTL else -1
            if in_multi and flags not in _TTL:
                ttl_ms = -1
            if in_multi and flags in _TTL and operation != OpCode.CREATE_TTL:
                raise _NoSuchFlags(path)
            is_container = flags == _CONTAINER if in_multi else operation == OpCode.CREATE_CONTAINER
            asked = Create(path, data, acl=acl)
            return self._create(requester, asked, flags, ttl_ms, is_container=is_container, in_multi=in_multi)
        if operation == OpCode.DELETE:
            version = record.integer()
            if "/" not in path or "\0" in path:
                raise BadArguments(path)
            return Delete(path, version), 0
        if operation == OpCode.SET_DATA:
            data, version = record.buffer(), record.integer()
            return SetData(_valid(path), data, version), 0
        if operation == OpCode.CHECK:
            version = record.integer()
            return Check(_valid(path), version), 0
        raise MalformedRecord(f"operation {operation}")

    def _create(
        self, requester: ServedConnection, asked: Create, flags: int, ttl_ms: int, *, is_container: bool, in_multi: bool
    ) -> tuple[Write, int]:
        path = asked.path
        if not 0 <= flags <= _LAST_FLAG:
            raise _NoSuchFlags(path)
        extended = CONTAINER_OWNER if is_container else 0
        if flags in _TTL:
            if not self._extended_types:
                raise Refused(ReplyCode.UNIMPLEMENTED)
            if not 0 < ttl_ms <= MAX_TTL_MS:
                raise BadArguments(path)
            extended = (_TTL_MASK | ttl_ms) - (1 << 64)
        elif ttl_ms >= 0:
            raise BadArguments(path)
        if "/" not in path or "\0" in path:
            raise BadArguments(path)
        sequential = flags in _SEQUENTIAL
        try:
            validate_new_path(path, sequential)
        except ValueError:
            if in_multi:
                raise _BadPath(asked) from None
            requester.identity.resolve(asked.acl, path)
            parent = self._node(path.rpartition("/")[0] or "/")
            requester.identity.demand(parent.acl, PERM_CREATE, path)
            raise BadArguments(path) from None
        return Create(path, asked.data, flags in _EPHEMERAL, sequential, asked.acl), extended

    def _multi(self, requester: ServedConnection, record: RecordReader) -> bytes:
        self.zxid += 1
        kinds: list[int] = []
        writes: list[Write] = []
        extended: list[int] = []
        refused: tuple[int, int] | None = None
        probes: list[Create] = []
        while True:
            operation, done, _ = record.integer(), record.boolean(), record.integer()
            if done:
                break
            kinds.append(operation)
            if operation not in (OpCode.CREATE, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK, *_WITH_STAT):
                raise MalformedRecord(f"operation {operation} in a multi")
            try:
                write, owner = self._write_of(requester, operation, record, in_multi=True)
                if owner or operation in (OpCode.CREATE_TTL, OpCode.CREATE_CONTAINER):
                    kinds[-1] = OpCode.CREATE2 if owner else OpCode.CREATE
            except _NoSuchFlags as error:
                raise MalformedRecord("flags of a create") from error
            except ZooKeeperError as error:
                if refused is None:
                    refused = len(writes), code_of(error)
                    probes = [error.probe] if isinstance(error, _BadPath) else []
                continue
            if refused is None:
                writes.append(write)
                extended.append(owner)
        try:
            if refused is not None:
                self._rehearse(requester, writes, probes)
                return _failed_multi(len(kinds), *refused)
            results = self._apply(requester, writes, extended)
        except MultiFailed as failed:
            return _failed_multi(len(kinds), failed.index, code_of(failed.error))
        pieces: list[bytes] = []
        for operation, write, result in zip(kinds, writes, results, strict=True):
            pieces += (MULTI_HEADER.pack(operation, 0, 0), self._result_body(requester, operation, write, result))
        return b"".join((*pieces, END))

    def _rehearse(self, requester: ServedConnection, writes: Sequence[Write], probes: Sequence[Create]) -> None:
        """Raise MultiFailed if one of the operations before a bad one fails, or a probe of it; apply nothing."""
        impossible = Check("/zookeeper", 1 << 40)
        asked = [*writes, *probes, impossible]
        try:
            self.tree.apply(asked, requester.session_id, requester.identity, self.zxid, 0)
        except MultiFailed as failed:
            at_ephemeral = failed.index == len(writes) and isinstance(failed.error, NoChildrenForEphemerals)
            if failed.index < len(asked) - 1 and not at_ephemeral:
                raise

    def _set_acl(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, acl, version = record.text(), record.acl(), record.integer()
        self.zxid += 1
        _valid(path)
        resolved = requester.identity.resolve(acl, path)
        node = self._node(path)
        requester.identity.demand(node.acl, PERM_ADMIN, path)
        if version not in (-1, node.acl_version):
            raise BadVersion(path)
        node.acl = resolved
        node.acl_version += 1
        node.stat = node.row = None
        if self.storage is not None:
            self.storage.write(self.zxid, requester.session_id, ((WatchKind.DATA, path, resolved),))
        return wire.stat(node.read_stat())

    # Reads.

    def _node(self, path: str) -> StoredZnode:
        node = self.tree.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def _readable(self, requester: ServedConnection, path: str) -> StoredZnode:
        node = self._node(path)
        requester.identity.demand(node.acl, PERM_READ, path)
        return node

    def _exists(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, watch = record.text(), record.boolean()
        if path in self.tree.nodes:
            self._readable(requester, path)  # ZOOKEEPER-2590
        if watch:
            self.watches.add_data(path, requester)
        return wire.stat(self._node(path).read_stat())

    def _get_data(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, watch = record.text(), record.boolean()
        node = self._readable(requester, path)
        if watch:
            self.watches.add_data(path, requester)
        return buffer(node.data) + wire.stat(node.read_stat())

    def _get_acl(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path = record.text()
        node = self._node(path)
        requester.identity.demand(node.acl, PERM_READ | PERM_ADMIN, path)
        shown = node.acl
        if not requester.identity.may(node.acl, PERM_ADMIN):
            shown = tuple(map(_without_secret, node.acl))
        return acl_entries(shown) + wire.stat(node.read_stat())

    def _listed(self, requester: ServedConnection, record: RecordReader) -> StoredZnode:
        path, watch = record.text(), record.boolean()
        node = self._readable(requester, path)
        if watch:
            self.watches.add_children(path, requester)
        return node

    def _get_children(self, requester: ServedConnection, record: RecordReader) -> bytes:
        return strings(list(self._listed(requester, record).children))

    def _get_children2(self, requester: ServedConnection, record: RecordReader) -> bytes:
        node = self._listed(requester, record)
        return strings(list(node.children)) + wire.stat(node.read_stat())

    def _multi_read(self, requester: ServedConnection, record: RecordReader) -> bytes:
        pieces: list[bytes] = []
        while True:
            operation, done, _ = record.integer(), record.boolean(), record.integer()
            if done:
                return b"".join((*pieces, END))
            if operation not in (OpCode.GET_DATA, OpCode.GET_CHILDREN):
                raise MalformedRecord(f"operation {operation} in a multi-read")
            path, _ = record.text(), record.boolean()
            try:
                node = self._readable(requester, path)
            except ZooKeeperError as error:
                code = code_of(error)
                pieces += (MULTI_HEADER.pack(ERROR_RESULT, 0, code), INT.pack(code))
                continue
            pieces.append(MULTI_HEADER.pack(operation, 0, 0))
            if operation == OpCode.GET_DATA:
                pieces += (buffer(node.data), wire.stat(node.read_stat()))
            else:
                pieces.append(strings(list(node.children)))

    def _get_ephemerals(self, requester: ServedConnection, record: RecordReader) -> bytes:
        prefix = record.text()
        return strings([path for path in self.tree.ephemerals(requester.session_id) if path.startswith(prefix)])

    def _get_all_children_number(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path = record.text()
        self._readable(requester, path)
        below = path if path == "/" else f"{path}/"
        return INT.pack(sum(each.startswith(below) for each in self.tree.nodes) - (path == "/"))

    def _who_am_i(self, requester: ServedConnection, _record: RecordReader) -> bytes:
        clients = requester.identity.described()
        return INT.pack(len(clients)) + b"".join(string(text) for client in clients for text in client)

    # Watches.

    def _add_watch(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, mode = record.text(), record.integer()
        if mode not in (0, 1):
            raise Refused(ReplyCode.MARSHALLING_ERROR)
        self.watches.add_persistent(path, requester, recursive=mode == 1)
        return INT.pack(ReplyCode.OK)

    def _watch_meant(self, record: RecordReader) -> tuple[str, WatcherType]:
        path, kind = record.text(), record.integer()
        try:
            return path, WatcherType(kind)
        except ValueError:
            raise Refused(ReplyCode.MARSHALLING_ERROR) from None

    def _check_watches(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, kind = self._watch_meant(record)
        if not self.watches.holds(path, requester, kind):
            raise Refused(ReplyCode.NO_WATCHER)
        return b""

    def _remove_watches(self, requester: ServedConnection, record: RecordReader) -> bytes:
        path, kind = self._watch_meant(record)
        if not self.watches.remove(path, requester, kind):
            raise Refused(ReplyCode.NO_WATCHER)
        return b""

    def _set_watches(self, requester: ServedConnection, record: RecordReader, persistent: bool) -> bytes:
        since_zxid, data, exists, children = record.long(), record.texts(), record.texts(), record.texts()
        watches = self.watches
        for path, of_children, missed in self.tree.missed(since_zxid, data, exists, children):
            if missed is not None:
                requester.watch_fired(missed, path, -1, OPEN_ACL)
            elif of_children:
                watches.add_children(path, requester)
            else:
                watches.add_data(path, requester)
        if persistent:
            for recursive in (False, True):
                for path in record.texts():
                    watches.add_persistent(path, requester, recursive=recursive)
        return b""


class _ServerIdentity(ConnectionIdentity):
    """The server itself, which may do everything."""

    __slots__ = ()

    def may(self, acl: tuple[ACL, ...], permission: int) -> bool:
        return True


def _without_secret(entry: ACL) -> ACL:
    if entry.scheme != "digest":
        return entry
    return ACL(entry.permissions, entry.scheme, entry.id.partition(":")[0] + ":x")


def _valid(path: str) -> str:
    try:
        validate_path(path)
    except ValueError:
        raise BadArguments(path) from None
    return path


def _failed_multi(count: int, index: int, code: int) -> bytes:
    """Return the results of a multi of which nothing was applied: the operations after the failed one are undecided."""
    codes = [ReplyCode.OK] * index + [code] + [ReplyCode.RUNTIME_INCONSISTENCY] * (count - index - 1)
    rows = [MULTI_HEADER.pack(ERROR_RESULT, 0, each) + INT.pack(each) for each in codes]
    return b"".join((*rows, END))
