"""One asyncio loop on a thread of its own: everything that touches a socket of Kafka's protocol runs there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class NetworkThread:
    """Runs from `start` to `stop`. `call` and `run` may be used by any other thread; the loop's own uses asyncio."""

    def __init__(self, name: str = "network") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_loop(self) -> bool:
        return threading.current_thread() is self._thread

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop: at once if called from the loop's thread, otherwise as soon as the loop is free.

        After `stop` the action is dropped: no connection is left to respond to.
        """
        if self.on_loop():
            action()
            return
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, task: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """The result of an asyncio coroutine, waited for on the calling thread. TimeoutError."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(task, self.loop)
        return future.result(timeout_s)

    def stop(self, limit_s: float = 2.0) -> bool:
        """Cancels every task, runs what that takes, and ends the loop; whether it did in time. Safe to call twice."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
