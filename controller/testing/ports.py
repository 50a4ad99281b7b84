"""The port of a broker, which it keeps over all of its incarnations."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

from controller.system import allow_reuse

HOST = "127.0.0.1"
SHARES_PORTS = sys.platform == "linux"
"""Linux lets a second socket be bound to a port and listen, as long as the first does not listen."""


class ReservedPort:
    """A port of the loopback interface: a socket is bound to it and does not listen, so that clients are refused while
    the broker is down, and no other program gets the port.

    The broker's listener takes the port beside that socket on Linux, and in its place elsewhere.
    """

    def __init__(self) -> None:
        self.number = 0
        self._socket: socket.socket | None = None
        self._bind()

    def _bind(self) -> None:
        reserving = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            allow_reuse(reserving)
            reserving.bind((HOST, self.number))
        except OSError:
            reserving.close()
            raise
        self.number = reserving.getsockname()[1]
        self._socket = reserving

    def lend(self) -> None:
        """Let a listener be bound to the port."""
        if not SHARES_PORTS:
            self.close()

    def keep(self) -> None:
        """Reserve the port again after `lend`. If another program has it now, the broker's next start fails."""
        if self._socket is None:
            with suppress(OSError):
                self._bind()

    def close(self) -> None:
        """Give the port up. Safe to call twice."""
        reserving, self._socket = self._socket, None
        if reserving is not None:
            reserving.close()
