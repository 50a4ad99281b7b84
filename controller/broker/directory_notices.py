"""Notifies the controller of failed log directories of this broker, through the same znode as Kafka.

The write is retried until the notice exists or the session ends: after a new registration, the controller queries all
replicas of the broker anyway. One notice covers all directories that had failed when it was written, because it names
no directory. Runs on the broker's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.clock import Clock
from controller.pending import Pending
from controller.trace import Noted, Trace
from controller.zookeeper.errors import SessionGone, ZooKeeperError

AGAIN_MS = 1_000.0


class DirectoryNotices:
    """`leave` writes the notice; it may be answered on another thread."""

    def __init__(self, leave: Callable[[], Pending[None]], clock: Clock, trace: Trace) -> None:
        self._leave = leave
        self._clock = clock
        self._trace = trace
        self._leaving = False
        self._owed = False

    def failed(self) -> None:
        """A directory failed just now."""
        self._owed = True
        if not self._leaving:
            self._next()

    def _next(self) -> None:
        self._owed, self._leaving = False, True
        notice = self._leave()
        notice.on_done(lambda: self._hop(notice))

    def _hop(self, notice: Pending[None]) -> None:
        self._clock.call_later(0.0, lambda: self._left(notice))

    def _left(self, notice: Pending[None]) -> None:
        self._leaving = False
        try:
            notice.result()
        except SessionGone:
            return
        except ZooKeeperError as error:
            self._trace.emit(Noted("warning", f"the controller is not notified of a failed log directory yet: {error}"))
            self._clock.call_later(AGAIN_MS, self.failed)
            return
        if self._owed:
            self._next()
