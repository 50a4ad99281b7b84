"""A client of raw frames, for a ZooKeeper server over TCP and for the Python server's core in this process.

`RawClient(address)` or `RawClient(core)`: the same calls, so that what one server answers can be compared with the
other. A `ZooKeeperCore` in virtual time answers within the call that sends; where it has nothing to send,
`SilentServer` is raised at once instead of after a deadline.
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol

from controller.clock import VirtualClock
from controller.zookeeper.jute import INT, buffer
from controller.zookeeper.server import wire
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.core import ZooKeeperCore
from controller.zookeeper.server.wire import OpCode, RecordReader

PING_XID, EVENT_XID, AUTH_XID, SET_WATCHES_XID = -2, -1, -4, -8
LONG_TIMEOUT_MS = 60_000
DEADLINE_S, SHORT_DEADLINE_S = 30.0, 3.0
_SPECIAL_XIDS: dict[int, int] = {OpCode.PING: PING_XID, OpCode.AUTH: AUTH_XID}
_SPECIAL_XIDS |= dict.fromkeys((OpCode.SET_WATCHES, OpCode.SET_WATCHES2), SET_WATCHES_XID)
_CONNECT = struct.Struct("!iqiq")


class SilentServer(AssertionError):
    """A server sends nothing where something was expected."""


class Link(Protocol):
    """A connection to a server."""

    def write(self, data: bytes) -> None: ...

    def read(self) -> bytes:
        """Return what has come, at least one byte, or nothing at the connection's end. Raises SilentServer."""

    def hurry(self) -> None:
        """Wait less long for what a server sends at once."""

    def close(self) -> None: ...


class TcpLink:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except ConnectionResetError:
            return b""
        except TimeoutError:
            raise SilentServer(f"nothing was received for {self._socket.gettimeout()} s") from None

    def hurry(self) -> None:
        self._socket.settimeout(SHORT_DEADLINE_S)

    def close(self) -> None:
        self._socket.close()


class CoreLink:
    """A connection to a core whose clock is virtual and does not pass by itself."""

    def __init__(self, core: ZooKeeperCore) -> None:
        assert isinstance(core.clock, VirtualClock)
        self._clock = core.clock
        self._received = bytearray()
        self._ended = False
        self._served = ServedConnection(core)
        self._served.opened(_Transport(self), ("127.0.0.1", 1))

    def write(self, data: bytes) -> None:
        if self._ended:
            raise BrokenPipeError
        self._served.data_received(data)

    def read(self) -> bytes:
        self._clock.advance_to(self._clock.now_ms())
        if not self._received and not self._ended:
            raise SilentServer("nothing was sent")
        data = bytes(self._received)
        self._received.clear()
        return data

    def hurry(self) -> None:
        """Nothing to do: a core answers at once."""

    def arrived(self, data: bytes) -> None:
        self._received += data

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._clock.call_later(0.0, lambda: self._served.connection_lost(None))
            self._clock.advance_to(self._clock.now_ms())

    def ended(self) -> None:
        if not self._ended:
            self._ended = True
            self._clock.call_later(0.0, lambda: self._served.connection_lost(None))


class _Transport:
    """The server's end of a `CoreLink`."""

    def __init__(self, link: CoreLink) -> None:
        self.write = link.arrived
        self.close = self.abort = link.ended


class RawClient:
    """One session on one server, and the frames of its connection."""

    def __init__(self, server: str | ZooKeeperCore) -> None:
        self._server = server
        self.session, self.password = 0, bytes(16)
        self._xid = 0
        self._link: Link | None = None
        self._received = b""

    def connect(self, timeout_ms: int = LONG_TIMEOUT_MS) -> bool:
        """Return whether the session, which is a new one at first, is served over a new connection."""
        self.begin_connect(timeout_ms)
        return self.end_connect()

    def begin_connect(self, timeout_ms: int = LONG_TIMEOUT_MS) -> None:
        """Send the handshake over a new connection."""
        self.disconnect()
        self._link = TcpLink(self._server) if isinstance(self._server, str) else CoreLink(self._server)
        self.write(wire.frame(_CONNECT.pack(0, 0, timeout_ms, self.session), buffer(self.password), b"\0"))

    def end_connect(self) -> bool:
        """Take the answer to the handshake, as `connect` does."""
        answer = self.frame()
        assert answer is not None, "no answer to a connect request"
        record = RecordReader(answer)
        record.integer(), record.integer()
        self.session, self.password = record.long(), record.buffer() or b""
        return self.session != 0

    def disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._received = None, b""

    def leave(self) -> RawClient:
        """Return a client that has the connection; this one keeps the session, without one."""
        former = RawClient(self._server)
        former._link, former._received = self._link, self._received
        if self._link is not None:
            self._link.hurry()
        self._link, self._received = None, b""
        return former

    def forget(self) -> None:
        """Ask for a new session next time."""
        self.session, self.password = 0, bytes(16)

    def renew(self) -> None:
        self.forget()
        self.connect()

    def request(self, operation: int, body: bytes) -> bytes:
        """Return the frame of a request with the next xid."""
        self._xid += 1
        return wire.frame(INT.pack(_SPECIAL_XIDS.get(operation, self._xid)), INT.pack(operation), body)

    def write(self, data: bytes) -> None:
        assert self._link is not None
        self._link.write(data)

    def send(self, operation: int, body: bytes) -> None:
        self.write(self.request(operation, body))

    def frame(self) -> bytes | None:
        """Return the next frame, or None at the connection's end. Raises SilentServer."""
        assert self._link is not None
        while True:
            if len(self._received) >= 4 and len(self._received) >= (end := 4 + INT.unpack_from(self._received)[0]):
                frame, self._received = self._received[4:end], self._received[end:]
                return frame
            data = self._link.read()
            if not data:
                return None
            self._received += data
