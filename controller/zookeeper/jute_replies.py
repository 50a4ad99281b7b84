"""The values in ZooKeeper's replies, as far as the kazoo connection takes them apart itself. Each function is given the
message and where its body starts.

Written for batches: a reply of 500 znodes is walked once, or taken as a table. Paths come as the server knows them,
chroot included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

import numpy as np

from controller.zookeeper.jute import (
    CHECK,
    CREATE,
    END,
    ERROR_RESULT,
    GET_DATA,
    INT,
    MULTI_HEADER,
    NO_NODE,
    SET_DATA,
    STAT,
)
from controller.zookeeper.operations import Columns, Stat, WriteResult, WriteResults, Znode
from controller.zookeeper.state_sets import SetResults

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
