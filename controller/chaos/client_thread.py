"""The thread of a client of a chaos run, which does not die without a word: the verdict counts on each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.log import logger


class ClientThread(threading.Thread):
    """A thread that starts on construction and runs `work`. `error`: the error that ended it early, or None."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name.replace(" ", "-"), daemon=True)
        self.error: str | None = None
        self._work = work
        self._client = name
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as raised:  # noqa: BLE001 - a client of the C library raises what no signature names
            logger.opt(exception=raised).error("{} ended early", self._client)
            self.error = f"{self._client} ended early: {type(raised).__name__}: {raised}"
