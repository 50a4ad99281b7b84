"""Replaces small files on a background thread: a sync takes tens of milliseconds, which would block the broker.

The one thread starts with the first file and ends with the process. If a file is to be replaced again before its turn,
only the latest content is written. If descriptors or memory run short, the write is retried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from controller.storage.health import is_shortage

AGAIN_S = 0.5


Content = TypeVar("Content")


class Later(Generic[Content]):
    """`write` replaces a file, durably; called on a thread of its own, one file at a time. An OSError of its is raised
    to the next who asks for that file."""

    def __init__(self, write: Callable[[str, Content], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._waiting: dict[str, Content] = {}
        self._writing: str | None = None
        self._errors: dict[str, OSError] = {}
        self._thread: threading.Thread | None = None

    def put(self, path: str, data: Content) -> None:
        """It will be written. OSError: the last time it failed."""
        with self._changed:
            self._raise_for(path)
            self._waiting[path] = data
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="disk-later", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, path: str) -> None:
        """Nothing that was put is written to this file once this returned: what waits is dropped, what is being written
        is waited for. OSError: the last time it failed."""
        with self._changed:
            self._waiting.pop(path, None)
            while self._writing == path:
                self._changed.wait()
            self._waiting.pop(path, None)  # what was being written, and was put back for want of descriptors
            self._raise_for(path)

    def settle_below(self, directory: str) -> None:
        """`settle` for each file in a directory; what failed is not raised."""
        inside = directory + "/"
        with self._changed:
            while self._writing is not None and self._writing.startswith(inside):
                self._changed.wait()
            for path in [one for one in self._waiting if one.startswith(inside)]:
                del self._waiting[path]

    def _raise_for(self, path: str) -> None:
        error = self._errors.pop(path, None)
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                path = self._writing = next(iter(self._waiting))
                data = self._waiting.pop(path)
            error: OSError | None = None
            try:
                self._write(path, data)
            except OSError as raised:
                error = raised
            with self._changed:
                self._writing = None
                self._changed.notify_all()
                if error is not None and is_shortage(error):
                    self._waiting.setdefault(path, data)
                    self._changed.wait(AGAIN_S)
                elif error is not None:
                    self._errors[path] = error
