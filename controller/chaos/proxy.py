"""One TCP proxy for each directed link, so that a link can be cut without root.

A cut link is a black hole, not a closed door: connections stay open, bytes wait, new connections are taken and get
no answer. When it heals, what waited goes on, as it would over a network that came back. All links of a run share
one event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CHUNK = 64 * 1024
_HOST = "127.0.0.1"


class LinkProxy:
    """A listening port that stands for `target`. Made by `ProxyNetwork.link`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            writer.transport.abort()
            return  # the end of the run; asyncio's server takes a task that ends as cancelled for a fault
        try:
            far_reader, far_writer = await asyncio.open_connection(_HOST, self._target_port)
        except OSError:
            writer.transport.abort()  # the target's own refusal, passed on
            return
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer)),
            asyncio.create_task(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, far_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            await self._open.wait()
        except ConnectionError:
            await self._open.wait()  # a broken end is news too, and news does not pass a cut link


class ProxyNetwork:
    """Every proxy of a run. `close` ends them all; safe to call twice."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link-proxies", daemon=True)
        self._thread.start()
        self._links: dict[tuple[int, int], LinkProxy] = {}

    def link(self, source: int, target: int, target_port: int) -> int:
        """The port that `source` dials to reach `target`, which listens on `target_port`. One proxy a link."""
        proxy = self._links.get((source, target))
        if proxy is None:
            proxy = self._links[source, target] = LinkProxy(target_port)
            self._run(proxy.listen())
        return proxy.port

    def cut(self, source: int, target: int) -> None:
        self._loop.call_soon_threadsafe(self._links[source, target].cut)

    def heal(self, source: int, target: int) -> None:
        self._loop.call_soon_threadsafe(self._links[source, target].heal)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        for proxy in self._links.values():
            self._run(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10.0)
