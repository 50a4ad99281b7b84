"""One connection to another broker, as a client: requests out, answers in, one at a time. On the network's loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from controller.broker.setting_types import Address
from controller.protocol.api_keys import ApiKey
from controller.protocol.codec import request_head, response_body
from controller.protocol.errors import MalformedFrame
from controller.protocol.framing import SIZE_BYTES, frame_size
from controller.protocol.headers import RequestHeader

PIECE_BYTES = 256 * 1024
"""Written at once; what the socket does not take is copied by the transport."""


@dataclass(slots=True)
class Wire:
    """`client_id` is the sender's broker id, as Kafka's own channels name themselves. Any failure leaves the wire
    of no more use: close it."""

    client_id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    correlation_id: int = 0

    @classmethod
    async def connect(cls, address: Address, client_id: str) -> Wire:
        """OSError if there is no connection to be had."""
        reader, writer = await asyncio.open_connection(*address)
        return cls(client_id, reader, writer)

    async def exchange(self, api_key: int, api_version: int, *body: bytes) -> bytes:
        """Sends a body, in its parts, and gives the response's. Of what the other end does not take yet only a little
        is copied: the same part may be on its way to a thousand brokers. OSError or EOFError when the connection
        breaks, MalformedFrame for an answer that is none, or another request's."""
        correlation_id, self.correlation_id = self.correlation_id, self.correlation_id + 1
        key = ApiKey(api_key)
        head = request_head(RequestHeader(key, api_version, correlation_id, self.client_id))
        size = len(head) + sum(map(len, body))
        self.writer.write(size.to_bytes(SIZE_BYTES, "big") + head)
        for part in body:
            for start in range(0, len(part), PIECE_BYTES):
                self.writer.write(memoryview(part)[start : start + PIECE_BYTES])
                await self.writer.drain()
        size = frame_size(await self.reader.readexactly(SIZE_BYTES))
        answered, answer = response_body(key, api_version, await self.reader.readexactly(size))
        if answered != correlation_id:
            raise MalformedFrame(f"the answer is to request {answered}, not to {correlation_id}")
        return answer

    def close(self) -> None:
        self.writer.close()
