"""Wake those that wait for a state of an in-process cluster, whenever the state may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Used on the cluster's thread. Several changes of one iteration of the loop wake the waiters once, after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self.looks = 0
        """How often a condition was evaluated."""

    def signal(self) -> None:
        """The state has changed, or is about to before the loop goes on."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            self._loop.call_soon(_wake, waiters)

    async def next(self) -> None:
        """Wait for the next change."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is evaluated now and after each change."""
        self.looks += 1
        while not condition():
            await self.next()
            self.looks += 1


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
