"""One client's connection at the Python ZooKeeper server: frames, the handshake, four-letter words, faults."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from controller.zookeeper.jute import INT
from controller.zookeeper.operations import ACL, PERM_READ, WatchKind, ZooKeeperError
from controller.zookeeper.server import wire
from controller.zookeeper.server.identity import ConnectionIdentity
from controller.zookeeper.server.watches import EVENT_CODES
from controller.zookeeper.server.wire import MalformedRecord, OpCode, RecordReader, ReplyCode, code_of
from controller.zookeeper.server.words import WORDS

if TYPE_CHECKING:
    from controller.zookeeper.server.server import ServerSession, ZooKeeperServer

_HEADER_SIZE = 4
_KNOWN = frozenset(int(code) for code in OpCode if code != OpCode.CHECK)
"""A check is known in a multi alone."""


class ServedConnection(asyncio.Protocol):
    """Serves requests in their order. Replies and events leave in the order in which they were made."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.server = server
        self.session: ServerSession | None = None
        self.identity = ConnectionIdentity("127.0.0.1")
        self.peer = ("", 0)
        self.received = self.sent = 0
        self.since_ms = time.time_ns() // 1_000_000
        self.losing: bool | None = None
        self.closing = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._flush_planned = False
        self._full = False
        self._greeted = False

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = transport.get_extra_info("peername")[:2]
        self.identity = ConnectionIdentity(self.peer[0].removeprefix("::ffff:"))
        self.server.connections[self] = None

    def connection_lost(self, _error: Exception | None) -> None:
        self.closing = True
        self._transport = None
        self.server.connection_ended(self)

    def pause_writing(self) -> None:
        self._full = True
        if self._transport is not None:
            self._transport.pause_reading()  # what a client sends that reads no replies stays in its socket

    def resume_writing(self) -> None:
        self._full = False
        if self._transport is not None:
            self._transport.resume_reading()
        self.work()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self.work()

    def work(self) -> None:
        """Serve the frames that have arrived, unless a fault or a client that does not read holds them back."""
        buffer = self._buffer
        while not self.closing and not self._full and len(buffer) >= _HEADER_SIZE and not self.server.holds(self):
            if not self._greeted and (word := WORDS.get(bytes(buffer[:_HEADER_SIZE]))) is not None:
                self._send(word(self.server).encode())
                self.close()
                return
            size = INT.unpack_from(buffer)[0]
            if not 0 <= size <= self.server.max_request_bytes:
                self.close()
                return
            if len(buffer) < _HEADER_SIZE + size:
                return
            frame = bytes(buffer[_HEADER_SIZE : _HEADER_SIZE + size])
            if not self._greeted and self.server.holds_handshake(frame):
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
        if last_zxid > self.server.zxid:  # this client has seen what this server has not
            self.close()
            return
        self._greeted = True
        session = self.server.attach(self, session_id, password or b"", timeout_ms)
        if session is None:
            self._send(wire.connect_response(0, 0, bytes(16), read_only))
            self.close()
        else:
            self._send(wire.connect_response(session.timeout_ms, session.id, session.password, read_only))

    def _request(self, record: RecordReader) -> None:
        xid, operation = record.integer(), record.integer()
        session = self.session
        assert session is not None
        self.server.touch(session)
        if operation == OpCode.AUTH:
            self._authenticate(xid, record)
        elif operation == OpCode.CLOSE:
            self.server.end_session(session, closed=True)
            self._reply(xid, 0)
            self.close()
        elif operation not in _KNOWN:
            self._send(wire.reply(xid, -1, ReplyCode.UNIMPLEMENTED))
            self.close()
        else:
            self._answer(xid, operation, record)

    def _answer(self, xid: int, operation: int, record: RecordReader) -> None:
        losing: bool | None = None
        if operation == OpCode.MULTI:
            losing, self.losing = self.losing, None
        if losing is False:
            self.abort()
            return
        try:
            body = self.server.processor.answer(self, operation, record)
        except ZooKeeperError as error:
            self._reply(xid, code_of(error))
            return
        if losing:
            self.abort()
            return
        self._reply(xid, 0, body)

    def _authenticate(self, xid: int, record: RecordReader) -> None:
        record.integer()
        scheme, credential = record.text(), record.buffer() or b""
        if self.identity.add(scheme, credential):
            self._send(wire.reply(xid, 0, ReplyCode.OK))
            return
        self._send(wire.reply(xid, 0, ReplyCode.AUTH_FAILED))
        self.close()

    def watch_fired(self, kind: WatchKind, path: str, zxid: int, acl: tuple[ACL, ...]) -> None:
        if self.identity.may(acl, PERM_READ):
            self._send(wire.event(EVENT_CODES[kind], path, zxid))

    def _reply(self, xid: int, error: int, body: bytes = b"") -> None:
        self._send(wire.reply(xid, self.server.zxid, error, body))

    def _send(self, frame: bytes) -> None:
        if self._transport is None or self.closing:
            return
        self.sent += 1
        self._out.append(frame)
        if not self._flush_planned:
            self._flush_planned = True
            loop = asyncio.get_running_loop()
            if delay_ms := self.server.delay_ms:
                loop.call_later(delay_ms / 1000, self.flush)
            else:
                loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is to be sent, unless a partition holds it back."""
        self._flush_planned = False
        if self._transport is None or self.server.cuts_off(self):
            return
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()
        if self.closing:
            self._transport.close()

    def close(self) -> None:
        """Close the connection after what was sent before."""
        if not self.closing:
            self.closing = True
            self.server.watches.forget(self)
            if not self.server.delay_ms:
                self.flush()
            elif not self._flush_planned:
                asyncio.get_running_loop().call_soon(self.flush)

    def abort(self) -> None:
        """Break the connection: what was not written yet is lost."""
        self.closing = True
        self._out.clear()
        self.server.watches.forget(self)
        if self._transport is not None:
            self._transport.abort()
