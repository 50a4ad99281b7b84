"""The thread that all of a broker's sockets live on, and the only one that touches the broker's core.

One asyncio loop: the server, the channels to other brokers and the timers run there. Other threads hand work in
with `call`; nothing on the loop may block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from loguru import logger

T = TypeVar("T")

STOP_S = 10.0


class NetworkThread:
    """Runs from `start` to `close`. A callback that raises is a defect: it is logged, and the loop goes on."""

    def __init__(self, name: str = "network") -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_log)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Runs `callback` on the loop, soon; from any thread. Dropped once the loop is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def here(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = STOP_S) -> T:
        """Runs a coroutine on the loop and waits for it, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        """Cancels what runs, and ends the thread. Safe to call twice."""
        if self.loop.is_closed():
            return
        self.run(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self.loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=STOP_S) if others else None


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    logger.opt(exception=error).error("network: {}", context.get("message", "unhandled"))
