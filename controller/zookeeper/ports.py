"""Loopback ports for servers that are about to start, and to restart on the same port.

After a port was bound with number 0 and released, another process may get it at once: as another test's server, or as
the local end of a connection. Linux lets a socket that does not listen share its port with a listener if both set
SO_REUSEADDR, as Java's server sockets do, and assigns such a port to no other socket. So on Linux the port is held for
as long as the servers may restart. Elsewhere it is released, and code that starts a server on it retries with another.
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
