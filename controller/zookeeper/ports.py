"""Loopback ports for servers that are about to start, and to start again on the same port.

A port that was bound to 0 and let go may be anyone's a moment later: another test's server, or just the near end of
somebody's connection. Linux lets a socket that does not listen share its port with a listener if both set
SO_REUSEADDR, as Java's server sockets do, and gives such a port to nobody else; so there the port is held for as long
as the servers may come back. Elsewhere it is let go, and whoever starts a server on it tries again with another.
"""

from __future__ import annotations

import socket
import sys

LOOPBACK = "127.0.0.1"
CAN_HOLD = sys.platform == "linux"


class HeldPorts:
    """`count` distinct free ports of the loopback address."""

    def __init__(self, count: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._sockets.append(held)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((LOOPBACK, 0))
            self.numbers: tuple[int, ...] = tuple(held.getsockname()[1] for held in self._sockets)
        except OSError:
            self.release()
            raise
        if not CAN_HOLD:
            self.release()

    def release(self) -> None:
        """Lets go. Safe to call twice."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()
