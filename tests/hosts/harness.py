"""What the tests of this room share: a network thread that ends with its test, a trace that keeps its events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controller.hosts.network import NetworkThread
from controller.trace import Noted


class KeptTrace:
    enabled = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        with self._lock:
            self.events.append(event)

    def notes(self, level: str) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Noted) and event.level == level]


@contextmanager
def running_network() -> Iterator[NetworkThread]:
    network = NetworkThread()
    network.start()
    try:
        yield network
    finally:
        network.stop()
