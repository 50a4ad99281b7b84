"""The bytes of ZooKeeper requests and the values in its replies, as far as the kazoo connection handles them itself.

Bytes in, values out; no kazoo and no I/O. The formats are those of ZooKeeper's zookeeper.jute (MultiHeader,
ReplyHeader, Stat, SetWatches) and MultiOperationRecord.

Written for batches: a request of 500 paths is one join, a reply of 500 znodes is walked once, or taken as a table.
Paths of requests are given as the client knows them, and put behind the chroot here, where a function takes one; paths
in replies come as the server knows them, chroot included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby, repeat
from struct import Struct

import numpy as np

from controller.zookeeper.operations import (
    ACL,
    BadArguments,
    BadVersion,
    Check,
    Columns,
    Create,
    Delete,
    InvalidACL,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    PathError,
    SetData,
    Stat,
    Write,
    WriteResult,
    WriteResults,
    Znode,
)
from controller.zookeeper.paths import partitions as parent_of_partitions
from controller.zookeeper.row_writes import SetResults, StateSets

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, GET_CHILDREN, SYNC, CHECK, MULTI = 1, 2, 3, 4, 5, 6, 8, 9, 13, 14
MULTI_READ, SET_WATCHES = 22, 101
ERROR_RESULT = -1
NO_NODE = -101
ERROR_CODES: dict[type[PathError], int] = {
    BadArguments: -8,
    NoNode: NO_NODE,
    NoAuth: -102,
    BadVersion: -103,
    NoChildrenForEphemerals: -108,
    NodeExists: -110,
    NotEmpty: -111,
    InvalidACL: -114,
}
"""The codes of KeeperException.Code for the errors about one path."""

INT = Struct("!i")
MULTI_HEADER = Struct("!iBi")
STAT = Struct("!qqqqiiiqiiq")
LONG = Struct("!q")
REPLY_HEADER = Struct("!iqi")
END = MULTI_HEADER.pack(-1, 1, -1)
"""Behind the last operation of a multi, and behind the last of its results."""


def prefixed(chroot: str, path: str) -> str:
    """A path as the server knows it. `chroot` is "" or starts with a slash and ends without one."""
    if not chroot:
        return path
    return chroot if path == "/" else chroot + path


def stripped(chroot: str, path: str) -> str:
    """A server's path as a client below `chroot` knows it."""
    if not chroot:
        return path
    return path[len(chroot) :] or "/"


_EPHEMERAL, _SEQUENTIAL = 1, 2
_LEAVES = [b"%d/state" % number for number in range(1_000)]
"""Of the partitions that nearly all topics have."""
_SET_DATA = MULTI_HEADER.pack(SET_DATA, 0, -1)


def string(text: str) -> bytes:
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def buffer(data: bytes | None) -> bytes:
    return INT.pack(-1) if data is None else INT.pack(len(data)) + data


def strings(texts: Sequence[str]) -> bytes:
    return INT.pack(len(texts)) + b"".join(map(string, texts))


def path_and_watch(path: str, watch: bool) -> bytes:
    """The body of exists, getData and getChildren."""
    return string(path) + (b"\1" if watch else b"\0")


def multi_read(opcode: int, paths: Sequence[str]) -> bytes:
    """The body of a multi-read of `GET_DATA` or `GET_CHILDREN`; the server ignores a watch flag in it."""
    # A null is in no path, and one join and one split cost less than as many encodings.
    encoded = "\0".join(paths).encode().split(b"\0") if paths else []
    head = MULTI_HEADER.pack(opcode, 0, -1)
    heads = {length: head + INT.pack(length) for length in set(map(len, encoded))}
    pieces = zip(map(heads.__getitem__, map(len, encoded)), encoded, repeat(b"\0"), strict=False)
    return b"".join(chain(chain.from_iterable(pieces), (END,)))


def multi_read_states(topics: Iterable[tuple[str, Sequence[int]]], chroot: str) -> bytes:
    """The body of a multi-read of `GET_DATA` of state znodes, by topic: the bytes that `multi_read` makes of their
    paths. What precedes a number is the same for all of a topic whose numbers have as many digits."""
    head = MULTI_HEADER.pack(GET_DATA, 0, -1)
    pieces: list[bytes] = []
    for name, partitions in topics:
        parent = _parent(name, chroot)
        for length, run in groupby(_leaves(partitions), len):
            before = head + INT.pack(len(parent) + length) + parent
            pieces += (before, (b"\0" + before).join(run), b"\0")
    pieces.append(END)
    return b"".join(pieces)


def multi_set_states(fence: Check, sets: StateSets, chroot: str) -> bytes:
    """The body of a multi that sets states behind a check: the bytes that `multi` makes of their operations. Few states
    and fewer versions differ among so many, and each is laid out once."""
    states = {state: buffer(state) for state in set(sets.data)}
    versions = {version: INT.pack(version) for version in np.unique(sets.versions).tolist()}
    rest = zip(map(states.__getitem__, sets.data), map(versions.__getitem__, sets.versions.tolist()), strict=True)
    pieces: list[bytes] = [_check(fence, chroot)]
    for name, partitions in sets.paths.topics:
        parent = _parent(name, chroot)
        for length, run in groupby(_leaves(partitions), len):
            before = _SET_DATA + INT.pack(len(parent) + length) + parent
            for leaf in run:
                pieces += (before, leaf, *next(rest))
    pieces.append(END)
    return b"".join(pieces)


def _parent(topic: str, chroot: str) -> bytes:
    return f"{prefixed(chroot, parent_of_partitions(topic))}/".encode()


def _leaves(partitions: Sequence[int]) -> list[bytes]:
    return [_LEAVES[number] if number < len(_LEAVES) else b"%d/state" % number for number in partitions]


def set_watches(since_zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]) -> bytes:
    return LONG.pack(since_zxid) + strings(data) + strings(exists) + strings(children)


def multi(operations: Iterable[Write], default_acl: Sequence[ACL], chroot: str) -> bytes:
    """The body of a multi; `chroot` is put before each operation's path."""
    open_acl = acl_entries(default_acl)
    pieces: list[bytes] = []
    integer = INT.pack
    for operation in operations:
        if isinstance(operation, SetData):  # the hot path of writing states: no call that is not needed
            path = prefixed(chroot, operation.path).encode() if chroot else operation.path.encode()
            data = operation.data
            size = -1 if data is None else len(data)
            pieces += (_SET_DATA, integer(len(path)), path, integer(size), data or b"", integer(operation.version))
            continue
        if isinstance(operation, Check):
            pieces.append(_check(operation, chroot))
            continue
        named = string(prefixed(chroot, operation.path))
        if isinstance(operation, Create):
            flags = _EPHEMERAL * operation.ephemeral + _SEQUENTIAL * operation.sequential
            acl = open_acl if operation.acl is None else acl_entries(operation.acl)
            pieces += (MULTI_HEADER.pack(CREATE, 0, -1), named, buffer(operation.data), acl, INT.pack(flags))
        else:
            assert isinstance(operation, Delete)
            pieces += (MULTI_HEADER.pack(DELETE, 0, -1), named, INT.pack(operation.version))
    pieces.append(END)
    return b"".join(pieces)


def _check(operation: Check, chroot: str) -> bytes:
    return MULTI_HEADER.pack(CHECK, 0, -1) + string(prefixed(chroot, operation.path)) + INT.pack(operation.version)


def acl_entries(acl: Sequence[ACL]) -> bytes:
    entries = [INT.pack(entry.permissions) + string(entry.scheme) + string(entry.id) for entry in acl]
    return INT.pack(len(entries)) + b"".join(entries)


_row_head = Struct("!iBii")
_writing_and_row_head = Struct("!8xq16xi32xiBii")
_MZXID_IN_STAT, _VERSION_IN_STAT = 8, 32
_SET_RESULT = MULTI_HEADER.pack(SET_DATA, 0, 0)
_CHECK_RESULT = MULTI_HEADER.pack(CHECK, 0, 0)


def read_string(message: bytes, offset: int) -> tuple[str, int]:
    start = offset + 4
    end = start + max(INT.unpack_from(message, offset)[0], 0)
    return message[start:end].decode(), end


def read_data(message: bytes, offset: int) -> tuple[bytes | None, int]:
    length = INT.unpack_from(message, offset)[0]
    start = offset + 4
    if length < 0:
        return None, start
    return message[start : start + length], start + length


def read_stat(message: bytes, offset: int) -> Stat:
    return Stat._make(STAT.unpack_from(message, offset))


def read_names(message: bytes, offset: int) -> tuple[tuple[str, ...], int]:
    """Children's names, sorted, and where they end."""
    count = INT.unpack_from(message, offset)[0]
    offset += 4
    names = []
    for _ in range(count):
        name, offset = read_string(message, offset)
        names.append(name)
    names.sort()
    return tuple(names), offset


ErrorOf = Callable[[int, str], BaseException]
"""(ZooKeeper's error code, path) -> the error to raise."""


def read_rows(message: bytes, offset: int, paths: Sequence[str], error_of: ErrorOf) -> tuple[Znode | None, ...]:
    """A multi-read of data: a row a path, None where there is no node. Raises another error that one of them has."""
    rows: list[Znode | None] = []
    for path in paths:
        kind, _, _ = MULTI_HEADER.unpack_from(message, offset)
        offset += MULTI_HEADER.size
        if kind == ERROR_RESULT:
            offset = _no_node(message, offset, path, error_of)
            rows.append(None)
            continue
        data, offset = read_data(message, offset)
        rows.append(Znode(path, data, read_stat(message, offset)))
        offset += STAT.size
    return tuple(rows)


def read_listings(
    message: bytes, offset: int, paths: Sequence[str], error_of: ErrorOf
) -> tuple[tuple[str, ...] | None, ...]:
    """As `read_rows`, of children."""
    listings: list[tuple[str, ...] | None] = []
    for path in paths:
        kind, _, _ = MULTI_HEADER.unpack_from(message, offset)
        offset += MULTI_HEADER.size
        if kind == ERROR_RESULT:
            offset = _no_node(message, offset, path, error_of)
            listings.append(None)
            continue
        names, offset = read_names(message, offset)
        listings.append(names)
    return tuple(listings)


def read_columns(message: bytes, offset: int, paths: Sequence[str], zxid: int, error_of: ErrorOf) -> Columns:
    """A multi-read of data as columns. This is the hot path of loading a cluster: a reply whose rows are all of one
    length is taken as a table, another is walked with one look-up and one slice a row."""
    return _table(message, offset, len(paths), zxid) or _walked(message, offset, paths, zxid, error_of)


def _table(message: bytes, offset: int, count: int, zxid: int) -> Columns | None:
    """None unless every row has a node, and each as much data as the first."""
    if not count or len(message) < offset + _row_head.size:
        return None
    length = _row_head.unpack_from(message, offset)[3]
    size = _row_head.size + length + STAT.size
    if length <= 0 or len(message) < offset + count * size:
        return None
    rows = np.frombuffer(message, dtype=np.uint8, count=count * size, offset=offset).reshape(count, size)
    head = np.frombuffer(_row_head.pack(GET_DATA, 0, 0, length), dtype=np.uint8)
    if not (rows[:, : _row_head.size] == head).all():
        return None
    elements = np.full((count, length + 1), ord(","), dtype=np.uint8)
    elements[:, :length] = rows[:, _row_head.size : _row_head.size + length]
    elements[-1, length] = ord("]")
    stat = _row_head.size + length
    version, mzxid = stat + _VERSION_IN_STAT, stat + _MZXID_IN_STAT
    versions = np.ascontiguousarray(rows[:, version : version + 4]).view(">i4").astype(np.int32).reshape(count)
    mzxids = np.ascontiguousarray(rows[:, mzxid : mzxid + 8]).view(">i8").astype(np.int64).reshape(count)
    ends = np.arange(1, count + 1, dtype=np.int64) * (length + 1)
    return Columns(b"[" + elements.tobytes(), versions, mzxids, zxid, ends)


def _walked(message: bytes, offset: int, paths: Sequence[str], zxid: int, error_of: ErrorOf) -> Columns:
    """Each look-up takes a row's mzxid and version together with the next row's head."""
    datas: list[bytes | None] = []
    versions: list[int] = []
    mzxids: list[int] = []
    keep, keep_version, keep_mzxid = datas.append, versions.append, mzxids.append
    writing_and_head = _writing_and_row_head.unpack_from
    message += b"\0\0\0\0"  # the end's header is shorter than a row's by the data's length
    kind, _, _, length = _row_head.unpack_from(message, offset)
    offset += _row_head.size
    for path in paths:
        if kind == ERROR_RESULT:
            if length != NO_NODE:  # an error's code is where the data's length would be
                raise error_of(length, path)
            keep(None)
            keep_version(-1)
            keep_mzxid(-1)
            kind, _, _, length = _row_head.unpack_from(message, offset)
            offset += _row_head.size
            continue
        if length > 0:
            start, offset = offset, offset + length
            keep(message[start:offset])
        else:
            keep(None)
        mzxid, version, kind, _, _, length = writing_and_head(message, offset)
        keep_version(version)
        keep_mzxid(mzxid)
        offset += _writing_and_row_head.size
    return Columns.of(datas, np.array(versions, dtype=np.int32), np.array(mzxids, dtype=np.int64), zxid)


def columns_of(rows: Sequence[Znode | None], zxid: int) -> Columns:
    """The columns of rows that were read one by one."""
    return Columns.of_rows(rows, zxid)


def _no_node(message: bytes, offset: int, path: str, error_of: ErrorOf) -> int:
    code = INT.unpack_from(message, offset)[0]
    if code != NO_NODE:
        raise error_of(code, path)
    return offset + 4


def read_acl(message: bytes, offset: int) -> tuple[ACL, ...]:
    """The reply to `GET_ACL`, without the stat behind it."""
    (count,) = INT.unpack_from(message, offset)
    offset += INT.size
    found = []
    for _ in range(count):
        (permissions,) = INT.unpack_from(message, offset)
        scheme, offset = read_string(message, offset + INT.size)
        name, offset = read_string(message, offset)
        found.append(ACL(permissions, scheme, name))
    return tuple(found)


def read_multi(message: bytes, offset: int, count: int) -> tuple[WriteResults, int, int]:
    """A write multi: (results, -1, 0), or ([], index, code) of the operation that failed. In a failed one the server
    gives 0 to the operations before it and another code than its own to those after."""
    if (sets := _sets(message, offset, count)) is not None:
        return sets, -1, 0
    results: list[WriteResult] = []
    for index in range(count):
        kind, _, _ = MULTI_HEADER.unpack_from(message, offset)
        offset += MULTI_HEADER.size
        if kind == ERROR_RESULT:
            code = INT.unpack_from(message, offset)[0]
            offset += 4
            if code:
                return [], index, code
        elif kind == SET_DATA:
            results.append(read_stat(message, offset))
            offset += STAT.size
        elif kind == CREATE:
            path, offset = read_string(message, offset)
            results.append(path)
        else:
            results.append(None)
    return results, -1, 0


def _sets(message: bytes, offset: int, count: int) -> SetResults | None:
    """A stat a set, one after the other and perhaps behind one check, as a batch of states is answered; None unless
    that is all there is."""
    checks = int(message.startswith(_CHECK_RESULT, offset))
    first, sets, size = offset + checks * len(_CHECK_RESULT), count - checks, len(_SET_RESULT) + STAT.size
    if sets < 1 or len(message) != first + sets * size + len(END):
        return None
    rows = np.frombuffer(message, dtype=np.uint8, count=sets * size, offset=first).reshape(sets, size)
    if not (rows[:, : len(_SET_RESULT)] == np.frombuffer(_SET_RESULT, dtype=np.uint8)).all():
        return None
    version = len(_SET_RESULT) + _VERSION_IN_STAT
    versions = np.ascontiguousarray(rows[:, version : version + 4]).view(">i4").astype(np.int32).reshape(sets)
    return SetResults(checks, versions, lambda place: read_stat(message, first + place * size + len(_SET_RESULT)))
