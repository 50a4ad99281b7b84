"""Files that were removed are let go on a thread: with the last descriptor of a file the system gives its blocks back,
which takes a large one's time (about a quarter of a second for a gigabyte), and a broker would stand still.

One thread, begun with the first removal, that ends with the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Closing:
    """`close` closes a descriptor. Descriptors are closed in the order in which they were handed over."""

    def __init__(self, close: Callable[[int], None]) -> None:
        self._close = close
        # Unlike a lock, its put may come in the middle of another put: files are let go by the collector, too.
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """From here on descriptors are closed on the thread. Safe to call twice."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="disk-closing", daemon=True)
            self._thread.start()

    def close(self, fd: int) -> None:
        """Soon; at once, as long as nothing was removed. May be called by a finalizer."""
        if self._thread is None:
            self._close(fd)
        else:
            self._waiting.put(fd)

    def _work(self) -> None:
        while True:
            self._close(self._waiting.get())
