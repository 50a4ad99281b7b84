"""Metrics over HTTP, on the network's loop: GET /metrics, one request a connection. For a monitoring system, so little
is understood and all of it is bounded: the length of a request, its time, and how many there may be at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from controller.broker.settings import Address, address_text
from controller.hosts.listening import CannotListen
from controller.hosts.network import NetworkThread

REQUEST_BYTES = 8_192
TIME_LIMIT_S = 5.0
AT_ONCE = 16
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """`bind` takes the address, `serve` begins to answer with what `text` gives, `close` ends it."""

    def __init__(self, network: NetworkThread) -> None:
        self._network = network
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._answering = 0
        self._text: Callable[[], str] = str

    def bind(self, address: Address) -> Address:
        """The address that was had. CannotListen."""
        host, port = address
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise CannotListen(f"metrics at {address_text(address)}: {error.strerror or error}") from error
        return host, int(self._socket.getsockname()[1])

    def serve(self, text: Callable[[], str]) -> None:
        """`text` is called on the network's loop."""
        self._text = text
        self._network.run(self._serve(), timeout_s=10.0)

    async def _serve(self) -> None:
        assert self._socket is not None
        self._server = await asyncio.start_server(self._answer, sock=self._socket, limit=REQUEST_BYTES)

    def close(self) -> None:
        if self._server is not None:
            self._network.call(self._server.close)
        elif self._socket is not None:
            self._socket.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answering += 1
        try:
            async with asyncio.timeout(TIME_LIMIT_S):
                if self._answering <= AT_ONCE:
                    writer.write(self._response(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # such a client gets no response; the next one does
        finally:
            self._answering -= 1
            writer.close()

    def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
        path = rest.split(b" ")[0].split(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _head(405, "Method Not Allowed", 0)
        if path not in (b"/metrics", b"/"):
            return _head(404, "Not Found", 0)
        body = self._text().encode()
        return _head(200, "OK", len(body)) + (body if method == b"GET" else b"")


def _head(status: int, reason: str, length: int) -> bytes:
    return (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
