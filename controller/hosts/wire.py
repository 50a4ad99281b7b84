"""One connection to another broker, as a client: requests out, answers in, one at a time. On the network's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from controller.broker.configs.setting_types import Address
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import request_head, response_body
from controller.protocol.errors import MalformedFrame
from controller.protocol.framing import SIZE_BYTES, frame_size
from controller.protocol.headers import RequestHeader, read_response_header

PIECE_BYTES = 256 * 1024
"""Written at once; what the socket does not take is copied by the transport."""
SMALL_BYTES = 16 * 1024
"""A body of so much goes out with its head, in one write: each is a call of the system, and a packet."""
_HEADER_BYTES = 64
"""More than the header of any response takes that is known here."""

Frame: TypeAlias = list[memoryview]
"""In the pieces that it came in."""
Outcome: TypeAlias = Frame | Exception


class Wire:
    """`client_id` is the sender's broker id, as Kafka's own channels name themselves. Any failure leaves the wire
    of no more use: close it."""

    def __init__(self, client_id: str, link: Link) -> None:
        self._client_id = client_id
        self._link = link
        self._correlation_id = 0

    @classmethod
    async def connect(cls, address: Address, client_id: str) -> Wire:
        """OSError if there is no connection to be had."""
        return cls(client_id, await Link.connect(address))

    async def exchange(self, api_key: int, api_version: int, *body: bytes) -> bytes:
        """Sends a body, in its parts, and gives the response's. Of what the other end does not take yet only a little
        is copied: the same part may be on its way to a thousand brokers. OSError or EOFError when the connection
        breaks, MalformedFrame for an answer that is none, or another request's."""
        header = RequestHeader(ApiKey(api_key), api_version, self._correlation_id, self._client_id)
        self._correlation_id += 1
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._link.expect(lambda outcome: None if answer.done() else answer.set_result(outcome))
        size = sum(map(len, body))
        if size <= SMALL_BYTES:
            self._link.write(framed_head(header, size) + b"".join(body))
        else:
            await self._write(framed_head(header, size), *body)
        outcome = await answer
        if isinstance(outcome, Exception):
            raise outcome
        return body_of(header, outcome)

    async def _write(self, *parts: bytes) -> None:
        for part in parts:
            for start in range(0, len(part), PIECE_BYTES):
                self._link.write(memoryview(part)[start : start + PIECE_BYTES])
                await self._link.drain()

    def close(self) -> None:
        self._link.close()


def framed_head(header: RequestHeader, body_bytes: int) -> bytes:
    """What goes before a request's body of so many bytes: the frame's size and the header."""
    head = request_head(header)
    return (len(head) + body_bytes).to_bytes(SIZE_BYTES, "big") + head


def body_of(header: RequestHeader, frame: Frame) -> bytes:
    """The body of the response to a request, of which each byte is copied once: a follower gets megabytes so.
    MalformedFrame, also for one to another request."""
    key, version = header.api_key, header.api_version
    first = bytes(frame[0][:_HEADER_BYTES])
    if len(first) < _HEADER_BYTES:
        answered, body = response_body(key, version, b"".join(frame))
    else:
        answered, start = read_response_header(key, version, first)
        body = b"".join([frame[0][start:], *frame[1:]])
    if answered != header.correlation_id:
        raise MalformedFrame(f"the answer is to request {answered}, not to {header.correlation_id}")
    return body


class Link(asyncio.Protocol):
    """The socket: what is written waits for it, and what comes is handed over when it is a whole frame."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._prefix = b""
        self._missing: int | None = None
        """Bytes to come of the frame that `_pieces` begins; None while its size is not known."""
        self._pieces: Frame = []
        self._expected: Callable[[Outcome], None] | None = None
        self._broken: Exception | None = None

    @classmethod
    async def connect(cls, address: Address) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(cls, *address)
        return link

    # -- for whoever asks

    def expect(self, expected: Callable[[Outcome], None]) -> None:
        """Called with the next frame, or with what broke the connection: at once, if it is broken."""
        self._expected = expected
        if self._broken is not None:
            self._hand_over(self._broken)

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
        if len(rest) > self._missing or self._expected is None:
            self._refuse(MalformedFrame("bytes came that nobody asked for"))
            return
        self._missing -= len(rest)
        self._pieces.append(rest)
        if not self._missing:
            frame, self._pieces, self._prefix, self._missing = self._pieces, [], b"", None
            self._hand_over(frame)

    def _refuse(self, error: MalformedFrame) -> None:
        self._break(error)
        self.close()

    def _break(self, error: Exception) -> None:
        if self._broken is None:
            self._broken = error
        self._writable.set()
        self._hand_over(self._broken)

    def _hand_over(self, outcome: Outcome) -> None:
        expected, self._expected = self._expected, None
        if expected is not None:
            expected(outcome)
