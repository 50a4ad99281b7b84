"""One connection to a broker, as those use it who ask: one request at a time, its answer, a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.protocol import ApiKey, RequestHeader, frame_size, framed, request_head, response_body

CONNECT_S = 5.0

AddressMap = Mapping[tuple[str, int], tuple[str, int]]
"""Where to dial instead: how links are cut without root (`camerlengo.address.map`)."""


class BrokerConnection:
    """Opened by `open`. Any error (OSError, a frame that makes no sense, a wrong correlation id, the deadline)
    means that the connection is of no use any more: close it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, addresses: AddressMap) -> BrokerConnection:
        dialled = addresses.get((host, port), (host, port))
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*dialled), CONNECT_S)
        return cls(reader, writer, client_id)

    async def ask(self, api_key: int, version: int, body: bytes, timeout_s: float) -> bytes:
        """The response's body. TimeoutError if it takes longer than `timeout_s`."""
        return await asyncio.wait_for(self._ask(ApiKey(api_key), version, body), timeout_s)

    async def _ask(self, api_key: ApiKey, version: int, body: bytes) -> bytes:
        correlation_id, self._correlation_id = self._correlation_id, self._correlation_id + 1
        head = request_head(RequestHeader(api_key, version, correlation_id, self._client_id))
        self._writer.write(framed(head + body))
        await self._writer.drain()
        size = frame_size(await self._reader.readexactly(4))
        answered_id, answer = response_body(api_key, version, await self._reader.readexactly(size))
        if answered_id != correlation_id:
            raise ConnectionError(f"response {answered_id} to request {correlation_id}")
        return answer

    def close(self) -> None:
        self._writer.transport.abort()
