"""One connection to another broker, as a client: requests out, answers in, one at a time. On the network's loop."""

from __future__ import annotations

import asyncio

from controller.broker.setting_types import Address
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import request_head, response_body
from controller.protocol.errors import MalformedFrame
from controller.protocol.framing import SIZE_BYTES, frame_size
from controller.protocol.headers import RequestHeader, read_response_header

PIECE_BYTES = 256 * 1024
"""Written at once; what the socket does not take is copied by the transport."""
_HEADER_BYTES = 64
"""More than the header of any response takes that is known here."""


class Wire:
    """`client_id` is the sender's broker id, as Kafka's own channels name themselves. Any failure leaves the wire
    of no more use: close it."""

    def __init__(self, client_id: str, link: _Link) -> None:
        self._client_id = client_id
        self._link = link
        self._correlation_id = 0

    @classmethod
    async def connect(cls, address: Address, client_id: str) -> Wire:
        """OSError if there is no connection to be had."""
        _, link = await asyncio.get_running_loop().create_connection(_Link, *address)
        return cls(client_id, link)

    async def exchange(self, api_key: int, api_version: int, *body: bytes) -> bytes:
        """Sends a body, in its parts, and gives the response's. Of what the other end does not take yet only a little
        is copied: the same part may be on its way to a thousand brokers. OSError or EOFError when the connection
        breaks, MalformedFrame for an answer that is none, or another request's."""
        correlation_id, self._correlation_id = self._correlation_id, self._correlation_id + 1
        key = ApiKey(api_key)
        head = request_head(RequestHeader(key, api_version, correlation_id, self._client_id))
        size = len(head) + sum(map(len, body))
        answer = self._link.expect()
        self._link.write(size.to_bytes(SIZE_BYTES, "big") + head)
        for part in body:
            for start in range(0, len(part), PIECE_BYTES):
                self._link.write(memoryview(part)[start : start + PIECE_BYTES])
                await self._link.drain()
        answered, response = _response(key, api_version, await answer)
        if answered != correlation_id:
            raise MalformedFrame(f"the answer is to request {answered}, not to {correlation_id}")
        return response

    def close(self) -> None:
        self._link.close()


def _response(key: ApiKey, version: int, pieces: list[memoryview]) -> tuple[int, bytes]:
    """A response's correlation id and body, of which each byte is copied once: a follower gets megabytes so."""
    first = bytes(pieces[0][:_HEADER_BYTES])
    if len(first) < _HEADER_BYTES:
        return response_body(key, version, b"".join(pieces))
    correlation_id, start = read_response_header(key, version, first)
    return correlation_id, b"".join([pieces[0][start:], *pieces[1:]])


class _Link(asyncio.Protocol):
    """The socket: what is written waits for it, and what comes is kept in the pieces that it came in."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._prefix = b""
        self._missing: int | None = None
        """Bytes to come of the frame that `_pieces` begins; None while its size is not known."""
        self._pieces: list[memoryview] = []
        self._answer: asyncio.Future[list[memoryview]] | None = None
        self._broken: Exception | None = None

    # -- for the wire

    def expect(self) -> asyncio.Future[list[memoryview]]:
        """The next frame, in pieces. The error that broke the connection if it breaks before."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._broken is not None:
            answer.set_exception(self._broken)
        return answer

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or EOFError("the connection was closed at the other end"))

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        if self._missing is None:
            wanted = SIZE_BYTES - len(self._prefix)
            self._prefix += bytes(rest[:wanted])
            rest = rest[wanted:]
            if len(self._prefix) < SIZE_BYTES:
                return
            try:
                self._missing = frame_size(self._prefix)
            except MalformedFrame as error:
                self._refuse(error)
                return
        if len(rest) > self._missing or self._answer is None or self._answer.done():
            self._refuse(MalformedFrame("bytes came that nobody asked for"))
            return
        self._missing -= len(rest)
        self._pieces.append(rest)
        if not self._missing:
            pieces, self._pieces, self._prefix, self._missing = self._pieces, [], b"", None
            self._answer.set_result(pieces)

    def _refuse(self, error: MalformedFrame) -> None:
        self._break(error)
        self.close()

    def _break(self, error: Exception) -> None:
        if self._broken is None:
            self._broken = error
        self._writable.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            # Whoever still writes learns of it from `drain`, and never looks at the answer.
            self._answer.exception()
