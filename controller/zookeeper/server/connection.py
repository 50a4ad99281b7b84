"""One client's connection at the Python ZooKeeper server: frames, the handshake, four-letter words, faults."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, Protocol

from controller.zookeeper.digest_md5 import DigestFailed, DigestServer
from controller.zookeeper.jute import INT
from controller.zookeeper.operations import ACL, PERM_READ, WatchKind, ZooKeeperError
from controller.zookeeper.server import wire
from controller.zookeeper.server.identity import ConnectionIdentity
from controller.zookeeper.server.watches import EVENT_CODES
from controller.zookeeper.server.wire import MalformedRecord, OpCode, RecordReader, ReplyCode, code_of
from controller.zookeeper.server.words import WORDS

if TYPE_CHECKING:
    from controller.zookeeper.server.core import ServerSession, ZooKeeperCore

_HEADER_SIZE = 4
_SESSION_IN_HANDSHAKE = 16
_KNOWN = frozenset(int(code) for code in OpCode if code != OpCode.CHECK)
"""A check is known in a multi alone."""
_HELD_MAX: Final = 1000
"""Replies of a connection that may wait for the log; then its requests wait too (globalOutstandingLimit)."""


_WRITES: Final = frozenset(
    {
        OpCode.CREATE,
        OpCode.CREATE2,
        OpCode.CREATE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.DELETE,
        OpCode.SET_DATA,
        OpCode.SET_ACL,
        OpCode.MULTI,
    }
)


class ByteTransport(Protocol):
    """The host's side of a connection, as asyncio.WriteTransport: each call returns at once."""

    def write(self, data: bytes, /) -> None: ...

    def close(self) -> None:
        """Close after what was written before. The host then calls `connection_lost`."""

    def abort(self) -> None:
        """Close now. The host then calls `connection_lost`, not within this call."""


class ServedConnection:
    """Serves requests in their order. Replies and events leave in the order in which they were made.

    The host calls `opened` first, `data_received` with what arrives, in any pieces, and `connection_lost` last.
    """

    def __init__(self, core: ZooKeeperCore) -> None:
        self.core = core
        self.session: ServerSession | None = None
        self.identity = ConnectionIdentity("127.0.0.1")
        self.peer = ("", 0)
        self.received = self.sent = 0
        self.losing: bool | None = None
        """The reply to the next write is lost with the connection, after it was applied (True) or before (False)."""
        self.closing = False
        self.waits_for_healing = False
        """A partition holds back the handshake."""
        self._login: DigestServer | None = None
        self._transport: ByteTransport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._held = 0
        self._aborted = False
        self._flush_planned = False
        self._full = False
        self._greeted = False

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    def opened(self, transport: ByteTransport, peer: tuple[str, int]) -> None:
        """A client has connected, from `peer`: an IP address and a port."""
        self._transport = transport
        self.peer = peer
        self.identity = ConnectionIdentity(peer[0].removeprefix("::ffff:"))
        if not self.core.opened(self):
            self.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closing = True
        self._transport = None
        self.core.connection_ended(self)

    def pause_writing(self) -> None:
        """Serve no further request before `resume_writing`: the client does not read its replies."""
        self._full = True
        self.throttle()

    def resume_writing(self) -> None:
        self._full = False
        self.throttle()
        self.work()

    @property
    def throttled(self) -> bool:
        """Whether requests wait, since too many replies do: for the client, or for the log."""
        return self._full or self._held >= _HELD_MAX

    def throttle(self) -> None:
        """Do what the host does when `throttled` has changed: read on, or read no further."""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.work()

    def work(self) -> None:
        """Serve the frames that have arrived, unless a fault or a client that does not read holds them back."""
        buffer = self._buffer
        while not self.closing and not self.throttled and len(buffer) >= _HEADER_SIZE and not self.core.holds(self):
            if not self._greeted and (word := WORDS.get(bytes(buffer[:_HEADER_SIZE]))) is not None:
                self._send(word(self.core).encode())
                self.close()
                return
            size = INT.unpack_from(buffer)[0]
            if not 0 <= size <= self.core.max_request_bytes:
                self.close()
                return
            if len(buffer) < _HEADER_SIZE + size:
                return
            frame = bytes(buffer[_HEADER_SIZE : _HEADER_SIZE + size])
            if not self._greeted:
                session = int.from_bytes(frame[_SESSION_IN_HANDSHAKE:][:8], signed=True)
                self.waits_for_healing = self.core.holds_handshake(session)
                if self.waits_for_healing:
                    return
            del buffer[: _HEADER_SIZE + size]
            self.received += 1
            try:
                if self._greeted:
                    self._request(RecordReader(frame))
                else:
                    self._handshake(RecordReader(frame))
            except MalformedRecord:
                self.close()

    def _handshake(self, record: RecordReader) -> None:
        record.integer()
        last_zxid, timeout_ms, session_id, password = record.long(), record.integer(), record.long(), record.buffer()
        read_only = False if record.left else None
        if last_zxid > self.core.zxid:  # this client has seen what this server has not
            self.close()
            return
        self._greeted = True
        session = self.core.attach(self, session_id, password or b"", timeout_ms)
        if session is None:
            self._send(wire.connect_response(0, 0, bytes(16), read_only))
            self.close()
        else:
            self._send(wire.connect_response(session.timeout_ms, session.id, session.password, read_only))

    def _request(self, record: RecordReader) -> None:
        xid, operation = record.integer(), record.integer()
        session = self.session
        assert session is not None
        self.core.touch(session)
        if operation == OpCode.SASL:
            self._sasl(xid, record)
        elif operation == OpCode.AUTH:
            self._authenticate(xid, record)
        elif operation == OpCode.CLOSE:
            self.core.end_session(session, closed=True)
            self._reply(xid, 0)
            self.close()
        elif operation not in _KNOWN:
            self._send(wire.reply(xid, -1, ReplyCode.UNIMPLEMENTED))
            self.close()
        else:
            self._answer(xid, operation, record)

    def _answer(self, xid: int, operation: int, record: RecordReader) -> None:
        losing: bool | None = None
        if operation in _WRITES:
            losing, self.losing = self.losing, None
        if losing is False:
            self.abort()
            return
        error, body = 0, b""
        try:
            body = self.core.processor.answer(self, operation, record)
        except ZooKeeperError as refused:
            error = code_of(refused)
        if losing:
            self.abort()
        else:
            self._reply(xid, error, body)

    def _authenticate(self, xid: int, record: RecordReader) -> None:
        record.integer()
        scheme, credential = record.text(), record.buffer() or b""
        if self.identity.add(scheme, credential):
            self._send(wire.reply(xid, 0, ReplyCode.OK))
            return
        self._send(wire.reply(xid, 0, ReplyCode.AUTH_FAILED))
        self.close()

    def _sasl(self, xid: int, record: RecordReader) -> None:
        """DIGEST-MD5. Who fails is answered AUTH_FAILED, and the connection closed. Without users the answer is empty,
        as Apache's without a login of its own."""
        message = record.buffer() or b""
        if not self.core.sasl_users:
            self._send(wire.reply(xid, 0, ReplyCode.OK, INT.pack(-1)))
            return
        if self._login is None:
            self._login = DigestServer(self.core.sasl_users, secrets.token_hex(16))
        try:
            answer = self._login.answer(message)
        except DigestFailed:
            self._send(wire.reply(xid, 0, ReplyCode.AUTH_FAILED))
            self.close()
            return
        self.identity.sasl_user = self._login.user
        self._send(wire.reply(xid, 0, ReplyCode.OK, INT.pack(len(answer)) + answer))

    def watch_fired(self, kind: WatchKind, path: str, zxid: int, acl: tuple[ACL, ...]) -> None:
        """Send the event, unless this client may not read a node with this ACL."""
        if self.identity.may(acl, PERM_READ):
            self._send(wire.event(EVENT_CODES[kind], path, zxid))

    def _reply(self, xid: int, error: int, body: bytes = b"") -> None:
        self._send(wire.reply(xid, self.core.zxid, error, body))

    def _send(self, frame: bytes) -> None:
        if self._transport is None or self.closing:
            return
        self.sent += 1
        storage = self.core.processor.storage
        if storage is not None and storage.zxid != storage.durable:
            storage.hold(self, frame)
            self._held += 1
            if self._held == _HELD_MAX:
                self.throttle()
            return
        self._queue(frame)

    def release(self, frame: bytes) -> None:
        """Send what the log has held: all transactions before it are durable now."""
        self._held -= 1
        if self._transport is None or self._aborted:
            return
        self._queue(frame)
        if self._held == _HELD_MAX - 1:
            self.throttle()
            self.work()

    def _queue(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._flush_planned:
            self._flush_planned = True
            self.core.clock.call_later(self.core.delay_ms, self.flush)

    def flush(self) -> None:
        """Write what is to be sent, unless a partition holds it back."""
        self._flush_planned = False
        if self._transport is None or self.core.cuts_off(self):
            return
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()
        if self.closing and not self._held:
            self._transport.close()

    def close(self) -> None:
        """Close the connection after what was sent before."""
        if not self.closing:
            self.closing = True
            self.core.watches.forget(self)
            if not self.core.delay_ms:
                self.flush()
            elif not self._flush_planned:
                self.core.clock.call_later(0.0, self.flush)

    def abort(self) -> None:
        """Break the connection: what was not written yet is lost."""
        self.closing = self._aborted = True
        self._out.clear()
        self.core.watches.forget(self)
        if self._transport is not None:
            self._transport.abort()
