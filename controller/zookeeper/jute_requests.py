"""The bytes of ZooKeeper's requests, as far as the kazoo connection makes them itself.

Written for batches: a request of 500 paths is one join. Paths are given as the client knows them, and put behind the
chroot here, where a function takes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby, repeat
from struct import Struct

import numpy as np

from controller.zookeeper.jute import (
    CHECK,
    CREATE,
    DELETE,
    END,
    GET_DATA,
    INT,
    MULTI_HEADER,
    SET_DATA,
    prefixed,
)
from controller.zookeeper.operations import ACL, Check, Create, Delete, SetData, Write
from controller.zookeeper.paths import partitions as parent_of_partitions
from controller.zookeeper.state_sets import StateSets

_EPHEMERAL, _SEQUENTIAL = 1, 2
_long = Struct("!q")
_LEAVES = [b"%d/state" % number for number in range(1_000)]
"""Of the partitions that nearly all topics have."""
_SET_DATA = MULTI_HEADER.pack(SET_DATA, 0, -1)


def string(text: str) -> bytes:
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def _buffer(data: bytes | None) -> bytes:
    return INT.pack(-1) if data is None else INT.pack(len(data)) + data


def _strings(texts: Sequence[str]) -> bytes:
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
    states = {state: _buffer(state) for state in set(sets.data)}
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
    return _long.pack(since_zxid) + _strings(data) + _strings(exists) + _strings(children)


def multi(operations: Iterable[Write], default_acl: Sequence[ACL], chroot: str) -> bytes:
    """The body of a multi; `chroot` is put before each operation's path."""
    open_acl = _acl(default_acl)
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
            acl = open_acl if operation.acl is None else _acl(operation.acl)
            pieces += (MULTI_HEADER.pack(CREATE, 0, -1), named, _buffer(operation.data), acl, INT.pack(flags))
        else:
            assert isinstance(operation, Delete)
            pieces += (MULTI_HEADER.pack(DELETE, 0, -1), named, INT.pack(operation.version))
    pieces.append(END)
    return b"".join(pieces)


def _check(operation: Check, chroot: str) -> bytes:
    return MULTI_HEADER.pack(CHECK, 0, -1) + string(prefixed(chroot, operation.path)) + INT.pack(operation.version)


def _acl(acl: Sequence[ACL]) -> bytes:
    entries = [INT.pack(entry.permissions) + string(entry.scheme) + string(entry.id) for entry in acl]
    return INT.pack(len(entries)) + b"".join(entries)
