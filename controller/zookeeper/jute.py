"""The common parts of ZooKeeper requests and replies: opcodes, strings, the head of an operation in a multi.

Pure, as `jute_requests` and `jute_replies` are: bytes in, values out, no kazoo and no I/O. The formats are those of
ZooKeeper's zookeeper.jute (MultiHeader, ReplyHeader, Stat, SetWatches) and MultiOperationRecord.
"""

from __future__ import annotations

from struct import Struct

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC, CHECK, MULTI = 1, 2, 3, 4, 5, 8, 9, 13, 14
MULTI_READ, SET_WATCHES = 22, 101
ERROR_RESULT = -1
NO_NODE = -101

INT = Struct("!i")
MULTI_HEADER = Struct("!iBi")
STAT = Struct("!qqqqiiiqiiq")
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
