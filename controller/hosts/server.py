"""The socket server: frames in, frames out, each connection's requests answered one after the other.

As in Kafka, the next request of a connection is read only when the one before was answered, which keeps the order of
answers and lets TCP hold back a client that asks faster than it is served. A frame that is over the limit, or torn,
costs its connection and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from loguru import logger

from controller.hosts.network import NetworkThread
from controller.protocol import MalformedFrame, frame_size, framed

Respond = Callable[[bytes | None], None]


class Receiver(Protocol):
    """Who answers: called on the network thread; may answer later, on any thread, once. None closes."""

    def receive(self, frame: bytes, respond: Respond) -> None: ...


class BrokerServer:
    """One listener. `open` binds; the frames go to the receiver that `serve` names, and until then wait."""

    def __init__(self, network: NetworkThread, frame_bytes_max: int) -> None:
        self._network = network
        self._frame_bytes_max = frame_bytes_max
        self._server: asyncio.Server | None = None
        self._receiver: asyncio.Future[Receiver] = network.loop.create_future()
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Binds and listens. The port that it got (for 0: a free one). OSError if it can't be had."""
        self._server = await asyncio.start_server(self._connected, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def serve(self, receiver: Receiver) -> None:
        """On the network thread."""
        self._receiver.set_result(receiver)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._answer_all(await asyncio.shield(self._receiver), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the other end has gone, which is its right
        except MalformedFrame as error:
            logger.warning("closing {}: {}", writer.get_extra_info("peername"), error)
        finally:
            writer.transport.abort()

    async def _answer_all(self, receiver: Receiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = frame_size(await reader.readexactly(4), self._frame_bytes_max)
            answer = await self._answer(receiver, await reader.readexactly(size))
            if answer is None:
                return
            writer.write(framed(answer))
            await writer.drain()

    async def _answer(self, receiver: Receiver, frame: bytes) -> bytes | None:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes | None] = loop.create_future()

        def settle(answer: bytes | None) -> None:
            if not answered.done():  # cancelled: the connection is gone, and nobody waits
                answered.set_result(answer)

        def respond(answer: bytes | None) -> None:
            if self._network.here():
                settle(answer)
            else:
                self._network.call(settle, answer)

        receiver.receive(frame, respond)
        return await answered
