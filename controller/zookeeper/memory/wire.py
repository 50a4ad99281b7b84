"""ZooKeeper's client protocol in front of the in-memory ZooKeeper: bytes in, bytes out.

A `WireConnection` is the server's end of one byte stream. It parses frames (ZooKeeper's zookeeper.jute), gives them to
an `InMemoryZooKeeper` as requests, and encodes the answers, watch events and the session's end in the order in which
the server sends them. It knows no thread and no socket: the caller serialises all calls to one server.

The requests of ZooKeeper 3.9 that are missing (containers, TTL, persistent watches, SASL) end the connection, as a
server ends it on a request that it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from struct import error as StructError
from typing import Any

from controller.zookeeper import jute
from controller.zookeeper.jute import INT, MULTI_HEADER, STAT, read_data, read_string
from controller.zookeeper.memory.database import (
    CLOSE,
    CONNECT,
    END,
    MULTI,
    PING,
    SET_WATCHES,
    SYNC,
    ClientIdentity,
    ClientLink,
    LinkRequest,
)
from controller.zookeeper.memory.followers import Follower
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.memory.single_requests import (
    AUTHENTICATE,
    EXISTS,
    GET_ACL,
    GET_CHILDREN,
    GET_DATA,
    MULTI_READ,
    SET_ACL,
    WRITE,
)
from controller.zookeeper.operations import (
    ACL,
    Check,
    Create,
    Delete,
    MultiFailed,
    PathError,
    SetData,
    Stat,
    WatchEvent,
    WatchKind,
    Write,
)
from controller.zookeeper.paths import validate_new_path

VERSION = "3.9.3"
"""What the four-letter commands report: the version whose rules the in-memory ZooKeeper follows."""

_PING, _GET_CHILDREN_WITH_STAT, _CREATE_WITH_STAT, _RECONFIG, _AUTH, _CLOSE = 11, 12, 15, 16, 100, -11
_GET_ACL, _SET_ACL = 6, 7
_WATCH_XID = -1
_RECONFIG_DISABLED, _RUNTIME_INCONSISTENCY, _AUTH_FAILED = -123, -2, -115
_EPHEMERAL, _SEQUENTIAL, _LAST_FLAGS = 1, 2, 3
_SYNC_CONNECTED = 3
_EVENT_TYPES = {WatchKind.CREATED: 1, WatchKind.DELETED: 2, WatchKind.DATA: 3, WatchKind.CHILDREN: 4}


class _WireRequest(LinkRequest):
    """A request with what its reply needs: xid and opcode."""

    __slots__ = ("opcode", "xid")

    def __init__(self, operation: int, arguments: Any, xid: int, opcode: int) -> None:
        super().__init__(operation, arguments, None)
        self.xid = xid
        self.opcode = opcode


class _UnknownRequestError(Exception):
    """A frame that a server does not understand: it closes the connection."""


class WireConnection:
    """The server's end of one byte stream.

    Args:
        server: The in-memory ZooKeeper that answers.
        send: Called with the bytes for the client.
        closed: Called once, when the server closes the connection.
        max_frame_bytes: A longer frame closes the connection (jute.maxbuffer).
    """

    def __init__(
        self,
        server: InMemoryZooKeeper,
        send: Callable[[bytes], None],
        closed: Callable[[], None],
        max_frame_bytes: int,
    ) -> None:
        self._server = server
        self._send = send
        self._on_closed = closed
        self._max_frame_bytes = max_frame_bytes
        self._received = bytearray()
        self._connecting = True
        self._closed = False
        self.follower: Follower | None = None
        self.link: ClientLink = server.open_link(self, None, ClientIdentity())

    @property
    def session(self) -> int:
        """The session that this connection carries; 0 before its handshake."""
        return self.link.session

    def received(self, data: bytes) -> None:
        """Take bytes from the client, in any pieces."""
        self._received += data
        while not self._closed and len(self._received) >= INT.size:
            if self._connecting and bytes(self._received[:4]) in _COMMANDS:
                self._send(_COMMANDS[bytes(self._received[:4])](self._server).encode())
                self._close()
                return
            length = INT.unpack_from(self._received)[0]
            if not 0 <= length <= self._max_frame_bytes:
                self._close()
                return
            if len(self._received) < INT.size + length:
                return
            frame = bytes(self._received[INT.size : INT.size + length])
            del self._received[: INT.size + length]
            try:
                self.link.to_server.send(self._connect(frame) if self._connecting else _decoded(frame))
            except (_UnknownRequestError, LookupError, ValueError, StructError):
                self._close()

    def broken(self) -> None:
        """The client has closed its end, or it is broken."""
        if not self._closed:
            self._closed = True
            self.link.to_client.close()
            self.link.to_server.send(END)

    def reset(self) -> None:
        """Break the connection: what is under way is lost, and both ends know at once."""
        self.link.to_server.close()
        self.link.to_client.close()
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.link_broken(self.link)
            self._on_closed()

    def _connect(self, frame: bytes) -> LinkRequest:
        self._connecting = False
        _protocol, last_zxid, timeout_ms, session = jute.CONNECT_REQUEST.unpack_from(frame)
        password, _ = read_data(frame, jute.CONNECT_REQUEST.size)
        if last_zxid > self._server.zxid:
            raise ValueError(f"the client has seen zxid {last_zxid}, the server is at {self._server.zxid}")
        if session and password != session_password(session):
            session = -1  # which no session has: the server answers that it has expired
        return _WireRequest(CONNECT, (session, timeout_ms), 0, 0)

    # What the server sends.

    def receive(self, message: LinkRequest | WatchEvent | object) -> None:
        if self._closed:
            return
        if isinstance(message, WatchEvent):
            body = INT.pack(_EVENT_TYPES[message.kind]) + INT.pack(_SYNC_CONNECTED) + jute.string(message.path)
            self._reply(_WATCH_XID, -1, 0, body)
        elif not isinstance(message, _WireRequest):
            self._close()
        elif message.operation == CONNECT:
            session, timeout_ms = message.result
            password = session_password(session) if session else bytes(16)
            body = jute.CONNECT_RESPONSE.pack(0, timeout_ms, session) + jute.buffer(password) + b"\0"
            self._send(INT.pack(len(body)) + body)
        else:
            self._answered(message)

    def _answered(self, request: _WireRequest) -> None:
        error = request.error
        if request.opcode == _RECONFIG:
            self._reply(request.xid, request.zxid, _RECONFIG_DISABLED, b"")
        elif isinstance(error, PathError):
            self._reply(request.xid, request.zxid, jute.ERROR_CODES[type(error)], b"")
        elif isinstance(error, MultiFailed):
            self._reply(request.xid, request.zxid, 0, _failed_multi(error, len(request.arguments)))
        elif request.operation == AUTHENTICATE and not request.result:
            self._reply(request.xid, request.zxid, _AUTH_FAILED, b"")
            self._close()
        else:
            self._reply(request.xid, request.zxid, 0, _encoded(request))

    def _reply(self, xid: int, zxid: int, error: int, body: bytes) -> None:
        self._send(INT.pack(jute.REPLY_HEADER.size + len(body)) + jute.REPLY_HEADER.pack(xid, zxid, error) + body)


def session_password(session: int) -> bytes:
    """The password that a client must show to come back to its session."""
    return hashlib.sha1(b"session %d" % session).digest()[:16]


# Requests.


def _decoded(frame: bytes) -> _WireRequest:
    xid, opcode = jute.REQUEST_HEADER.unpack_from(frame)
    decode = _DECODERS.get(opcode)
    if decode is None:
        raise _UnknownRequestError(opcode)
    operation, arguments = decode(frame, jute.REQUEST_HEADER.size)
    return _WireRequest(operation, arguments, xid, opcode)


def _acl(frame: bytes, offset: int) -> tuple[tuple[ACL, ...], int]:
    count = INT.unpack_from(frame, offset)[0]
    offset += INT.size
    entries = []
    for _ in range(count):
        permissions = INT.unpack_from(frame, offset)[0]
        scheme, offset = read_string(frame, offset + INT.size)
        id, offset = read_string(frame, offset)
        entries.append(ACL(permissions, scheme, id))
    return tuple(entries), offset


def _create(frame: bytes, offset: int) -> tuple[Write, int]:
    path, offset = read_string(frame, offset)
    data, offset = read_data(frame, offset)
    acl, offset = _acl(frame, offset)
    flags = INT.unpack_from(frame, offset)[0]
    if not 0 <= flags <= _LAST_FLAGS:
        raise _UnknownRequestError(f"create with flags {flags}")
    return Create(path, data, bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL), acl), offset + INT.size


def _delete(frame: bytes, offset: int) -> tuple[Write, int]:
    path, offset = read_string(frame, offset)
    return Delete(path, INT.unpack_from(frame, offset)[0]), offset + INT.size


def _set_data(frame: bytes, offset: int) -> tuple[Write, int]:
    path, offset = read_string(frame, offset)
    data, offset = read_data(frame, offset)
    return SetData(path, data, INT.unpack_from(frame, offset)[0]), offset + INT.size


def _check(frame: bytes, offset: int) -> tuple[Write, int]:
    path, offset = read_string(frame, offset)
    return Check(path, INT.unpack_from(frame, offset)[0]), offset + INT.size


_WRITES: Mapping[int, Callable[[bytes, int], tuple[Write, int]]] = {
    jute.CREATE: _create,
    _CREATE_WITH_STAT: _create,
    jute.DELETE: _delete,
    jute.SET_DATA: _set_data,
    jute.CHECK: _check,
}


def _one_write(decode: Callable[[bytes, int], tuple[Write, int]]) -> Callable[[bytes, int], tuple[int, Any]]:
    return lambda frame, offset: (WRITE, (decode(frame, offset)[0],))


def _multi(frame: bytes, offset: int) -> tuple[int, tuple[Write, ...]]:
    operations: list[Write] = []
    while True:
        opcode, done, _ = MULTI_HEADER.unpack_from(frame, offset)
        offset += MULTI_HEADER.size
        if done:
            return MULTI, tuple(operations)
        operation, offset = _WRITES[opcode](frame, offset)
        if isinstance(operation, Create):
            validate_new_path(operation.path, operation.sequential)
        operations.append(operation)


def _multi_read(frame: bytes, offset: int) -> tuple[int, list[tuple[int, str]]]:
    reads: list[tuple[int, str]] = []
    while True:
        opcode, done, _ = MULTI_HEADER.unpack_from(frame, offset)
        offset += MULTI_HEADER.size
        if done:
            return MULTI_READ, reads
        path, offset = read_string(frame, offset)
        reads.append(({jute.GET_DATA: GET_DATA, jute.GET_CHILDREN: GET_CHILDREN}[opcode], path))
        offset += 1  # the watch flag, which a server ignores here


def _strings(frame: bytes, offset: int) -> tuple[tuple[str, ...], int]:
    count = INT.unpack_from(frame, offset)[0]
    offset += INT.size
    texts = []
    for _ in range(count):
        text, offset = read_string(frame, offset)
        texts.append(text)
    return tuple(texts), offset


def _set_watches(frame: bytes, offset: int) -> tuple[int, Any]:
    since_zxid = jute.LONG.unpack_from(frame, offset)[0]
    data, offset = _strings(frame, offset + jute.LONG.size)
    exists, offset = _strings(frame, offset)
    children, offset = _strings(frame, offset)
    return SET_WATCHES, (since_zxid, data, exists, children)


def _path_and_watch(operation: int) -> Callable[[bytes, int], tuple[int, Any]]:
    def decode(frame: bytes, offset: int) -> tuple[int, Any]:
        path, offset = read_string(frame, offset)
        return operation, (path, bool(frame[offset]))

    return decode


def _set_acl(frame: bytes, offset: int) -> tuple[int, Any]:
    path, offset = read_string(frame, offset)
    acl, offset = _acl(frame, offset)
    return SET_ACL, (path, acl, INT.unpack_from(frame, offset)[0])


def _auth(frame: bytes, offset: int) -> tuple[int, Any]:
    scheme, offset = read_string(frame, offset + INT.size)
    return AUTHENTICATE, (scheme, (read_data(frame, offset)[0] or b"").decode())


_DECODERS: Mapping[int, Callable[[bytes, int], tuple[int, Any]]] = {
    **{opcode: _one_write(decode) for opcode, decode in _WRITES.items() if opcode != jute.CHECK},
    jute.EXISTS: _path_and_watch(EXISTS),
    jute.GET_DATA: _path_and_watch(GET_DATA),
    jute.GET_CHILDREN: _path_and_watch(GET_CHILDREN),
    _GET_CHILDREN_WITH_STAT: _path_and_watch(GET_CHILDREN),
    _GET_ACL: lambda frame, offset: (GET_ACL, read_string(frame, offset)[0]),
    _SET_ACL: _set_acl,
    jute.SYNC: lambda frame, offset: (SYNC, read_string(frame, offset)[0]),
    _PING: lambda _frame, _offset: (PING, None),
    jute.MULTI: _multi,
    jute.MULTI_READ: _multi_read,
    jute.SET_WATCHES: _set_watches,
    _RECONFIG: lambda _frame, _offset: (PING, None),
    _AUTH: _auth,
    _CLOSE: lambda _frame, _offset: (CLOSE, None),
}


# Replies.


def _stat(stat: Stat) -> bytes:
    return STAT.pack(*stat)


def _encoded(request: _WireRequest) -> bytes:
    encode = _ENCODERS.get(request.operation)
    return b"" if encode is None else encode(request)


def _write_reply(request: _WireRequest) -> bytes:
    result, stat = request.result
    if request.opcode == jute.CREATE:
        return jute.string(result)
    if request.opcode == _CREATE_WITH_STAT:
        return jute.string(result) + _stat(stat)
    return b"" if stat is None else _stat(stat)


def _children_reply(request: _WireRequest) -> bytes:
    names, stat = request.result
    return jute.strings(names) + (_stat(stat) if request.opcode == _GET_CHILDREN_WITH_STAT else b"")


def _multi_reply(request: _WireRequest) -> bytes:
    pieces: list[bytes] = []
    for operation, result in zip(request.arguments, request.result, strict=True):
        if isinstance(operation, Create):
            pieces += (MULTI_HEADER.pack(jute.CREATE, 0, 0), jute.string(result))
        elif isinstance(operation, SetData):
            pieces += (MULTI_HEADER.pack(jute.SET_DATA, 0, 0), _stat(result))
        else:
            pieces.append(MULTI_HEADER.pack(jute.CHECK if isinstance(operation, Check) else jute.DELETE, 0, 0))
    return b"".join((*pieces, jute.END))


def _failed_multi(failed: MultiFailed, count: int) -> bytes:
    """0 for the operations before the failed one, and an error that says nothing for those after it."""
    assert isinstance(failed.error, PathError)
    codes = [0] * failed.index + [jute.ERROR_CODES[type(failed.error)]]
    codes += [_RUNTIME_INCONSISTENCY] * (count - len(codes))
    return b"".join(map(_error_result, codes)) + jute.END


def _multi_read_reply(request: _WireRequest) -> bytes:
    pieces: list[bytes] = []
    for (operation, _), result in zip(request.arguments, request.result, strict=True):
        if isinstance(result, PathError):
            pieces.append(_error_result(jute.ERROR_CODES[type(result)]))
        elif operation == GET_DATA:
            pieces += (MULTI_HEADER.pack(jute.GET_DATA, 0, 0), jute.buffer(result[0]), _stat(result[1]))
        else:
            pieces += (MULTI_HEADER.pack(jute.GET_CHILDREN, 0, 0), jute.strings(result[0]))
    return b"".join((*pieces, jute.END))


def _error_result(code: int) -> bytes:
    return MULTI_HEADER.pack(jute.ERROR_RESULT, 0, code) + INT.pack(code)


_ENCODERS: Mapping[int, Callable[[_WireRequest], bytes]] = {
    WRITE: _write_reply,
    EXISTS: lambda request: _stat(request.result),
    GET_DATA: lambda request: jute.buffer(request.result[0]) + _stat(request.result[1]),
    GET_CHILDREN: _children_reply,
    GET_ACL: lambda request: jute.acl_entries(request.result[0]) + _stat(request.result[1]),
    SET_ACL: lambda request: _stat(request.result),
    SYNC: lambda request: jute.string(request.arguments),
    MULTI: _multi_reply,
    MULTI_READ: _multi_read_reply,
}


# Four-letter commands.


def _srvr(server: InMemoryZooKeeper) -> str:
    return (
        f"Zookeeper version: {VERSION}-in-memory, built on 01/01/1970 00:00 UTC\n"
        f"Zxid: {server.zxid:#x}\nMode: standalone\nNode count: {len(server.rows())}\n"
    )


_COMMANDS: Mapping[bytes, Callable[[InMemoryZooKeeper], str]] = {
    b"ruok": lambda _server: "imok",
    b"isro": lambda _server: "rw",
    b"srvr": _srvr,
    b"stat": _srvr,
    b"envi": lambda _server: f"Environment:\nzookeeper.version={VERSION}-in-memory, built on 01/01/1970 00:00 UTC\n",
}
