"""A TCP link between a ZooKeeper client and a real server that a test can cut, heal, break, or make lose one reply.

It reads the frames that pass (length, xid, opcode) so that it can tell which reply to lose, and remembers the last
session it saw granted so that a test can end that session behind its client's back.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

_LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16
_MULTI, _CLOSE_SESSION = 14, -11
_IO_DEADLINE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GrantedSession:
    id: int
    password: bytes
    timeout_ms: int


class TcpLink:
    """Listens on `address` and passes everything on to `target`, until `close`."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server((_LOOPBACK, 0))
        self.address = f"{_LOOPBACK}:{self._listener.getsockname()[1]}"
        self.granted: GrantedSession | None = None
        self._changed = threading.Condition()
        self._cut = {"to server": False, "to client": False}
        self._losing: bool | None = None
        self._lost_xid: int | None = None
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Holds back what passes, silently. Connections stay open."""
        with self._changed:
            self._cut["to server"] |= to_server
            self._cut["to client"] |= to_client

    def heal(self) -> None:
        with self._changed:
            self._cut = {"to server": False, "to client": False}
            self._changed.notify_all()

    def reset(self) -> None:
        """Breaks the connections that there are. New ones may come."""
        with self._changed:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            _shut(each)

    def lose_reply(self, *, applied: bool) -> None:
        """The next multi breaks the connection: when its reply comes (`applied`), or before it gets to the server."""
        self._losing = applied

    def expire(self) -> None:
        """Ends the granted session on the server: takes it over on another connection, and closes it."""
        assert self.granted is not None
        session = self.granted
        connect = struct.pack("!iqiqi", 0, 0, session.timeout_ms, session.id, len(session.password)) + session.password
        close = struct.pack("!ii", 1, _CLOSE_SESSION)
        with socket.create_connection(self._target, timeout=_IO_DEADLINE_SECONDS) as end:
            end.sendall(b"".join(struct.pack("!i", len(frame)) + frame for frame in (connect, close)))
            while end.recv(_CHUNK):
                pass  # the server closes once the session is over

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _shut(self._listener)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(_IO_DEADLINE_SECONDS)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(self._target, timeout=_IO_DEADLINE_SECONDS)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._changed:
                self._sockets += (client, server)
            try:
                head = client.recv(4, socket.MSG_PEEK)
            except OSError:
                head = b""  # gone already: the pumps find out
            if head.isalpha():  # a four-letter word, and an answer that is no frame either
                self._start(self._pass_on, client, server, "to server")
                self._start(self._pass_on, server, client, "to client")
                continue
            self._start(self._pump, client, server, "to server")
            self._start(self._pump, server, client, "to client")

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        try:
            while data := source.recv(_CHUNK):
                self._wait_while_cut(way)
                sink.sendall(data)
        except OSError:
            pass  # broken from outside
        finally:
            if way == "to client":
                for end in (source, sink):
                    _shut(end)
                    end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        buffer = b""
        first = True
        try:
            while data := source.recv(_CHUNK):
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= (size := 4 + struct.unpack_from("!i", buffer)[0]):
                    frame, buffer = buffer[:size], buffer[size:]
                    self._wait_while_cut(way)
                    if not self._passes(frame, way, first):
                        return
                    first = False
                    sink.sendall(frame)
        except OSError:
            pass  # broken from outside: the other pump is told below
        finally:
            self._wait_while_cut(way)
            for end in (source, sink):
                _shut(end)
            if way == "to client":
                source.close()
                sink.close()

    def _wait_while_cut(self, way: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._cut[way])

    def _passes(self, frame: bytes, way: str, first: bool) -> bool:
        """False: the connection is to break here."""
        if first:
            if way == "to client":
                timeout_ms, session = struct.unpack_from("!iq", frame, 8)
                if timeout_ms > 0:
                    self.granted = GrantedSession(session, frame[24:40], timeout_ms)
            return True
        xid, opcode = struct.unpack_from("!ii", frame, 4)
        if way == "to server":
            if opcode == _MULTI and self._losing is not None:
                applied, self._losing = self._losing, None
                if not applied:
                    return False
                self._lost_xid = xid
        elif xid == self._lost_xid:
            self._lost_xid = None
            return False
        return True


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # not connected any more
