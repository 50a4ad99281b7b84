"""Requests decoded and replies encoded as a ZooKeeper server does it: jute, big-endian, no padding.

The formats are those of ZooKeeper's zookeeper.jute. The client's side, and the constants that both share, are in
`controller/zookeeper/jute.py`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from controller.zookeeper.jute import ERROR_CODES, INT, LONG, REPLY_HEADER, STAT, buffer, string
from controller.zookeeper.operations import ACL, Stat, ZooKeeperError

_EVENT = Struct("!iqiii")
_CONNECTED_STATE = 3


class OpCode(IntEnum):
    """The type of a request (ZooDefs.OpCode)."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE = -11


class ReplyCode(IntEnum):
    """The error of a reply (KeeperException.Code)."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123


class Refused(ZooKeeperError):
    """A request that is answered with an error code for which the model has no exception."""

    def __init__(self, code: ReplyCode) -> None:
        super().__init__(f"refused with {code.name}")
        self.code = code


def code_of(error: ZooKeeperError) -> int:
    """Return the code that a reply names for this error."""
    if isinstance(error, Refused):
        return error.code
    return next(ERROR_CODES[kind] for kind in type(error).__mro__ if kind in ERROR_CODES)


class MalformedRecord(Exception):
    """The bytes are not the record that was expected."""


class RecordReader:
    """Reads the fields of one frame, in order. Raises MalformedRecord, and is `broken`, where a field is not there."""

    __slots__ = ("at", "broken", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.broken = False

    def _malformed(self, what: str) -> MalformedRecord:
        self.broken = True
        return MalformedRecord(what)

    def _take(self, size: int) -> int:
        start = self.at
        if start + size > len(self.data):
            raise self._malformed(f"{size} bytes expected at {start} of a frame of {len(self.data)}")
        self.at = start + size
        return start

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def integer(self) -> int:
        value: int = INT.unpack_from(self.data, self._take(4))[0]
        return value

    def long(self) -> int:
        value: int = LONG.unpack_from(self.data, self._take(8))[0]
        return value

    def boolean(self) -> bool:
        return self.data[self._take(1)] != 0

    def buffer(self) -> bytes | None:
        length = self.integer()
        if length == -1:
            return None
        if length < 0:
            raise self._malformed(f"a buffer of {length} bytes")
        start = self._take(length)
        return self.data[start : start + length]

    def text(self) -> str:
        """Read a string; a null one is taken as empty."""
        try:
            return (self.buffer() or b"").decode()
        except UnicodeDecodeError as error:
            raise self._malformed(str(error)) from error

    def _count(self) -> int:
        count = self.integer()
        if count > self.left // 4:
            raise self._malformed(f"a vector of {count} in {self.left} bytes")
        return max(count, 0)

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self._count())]

    def acl(self) -> tuple[ACL, ...]:
        return tuple(ACL(self.integer(), self.text(), self.text()) for _ in range(self._count()))


def frame(*pieces: bytes) -> bytes:
    body = b"".join(pieces)
    return INT.pack(len(body)) + body


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    """Return the frame of a reply. A failed request's has no body."""
    return INT.pack(REPLY_HEADER.size + len(body)) + REPLY_HEADER.pack(xid, zxid, error) + body


def event(kind: int, path: str, zxid: int) -> bytes:
    """Return the frame of a watch event; `zxid` is the transaction that caused it, or -1."""
    return frame(_EVENT.pack(-1, zxid, 0, kind, _CONNECTED_STATE), string(path))


def stat(value: Stat) -> bytes:
    return STAT.pack(*value)


def connect_response(timeout_ms: int, session: int, password: bytes, read_only: bool | None) -> bytes:
    """Return the frame that answers a connect request. `read_only` is None for a client that does not know the flag."""
    flag = b"" if read_only is None else bytes([read_only])
    return frame(INT.pack(0), INT.pack(timeout_ms), LONG.pack(session), buffer(password), flag)
