"""The log of a broker's process on standard error, and its level, which may change while it runs."""

from __future__ import annotations

import sys

from loguru import logger

LOG_FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} {level: <7} {message}"
_KAFKAS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_LOGURUS = {kafkas: loguru for loguru, kafkas in _KAFKAS.items()}


class LogOutput:
    """`level` as loguru names it; any output of the process before this one ends."""

    def __init__(self, level: str) -> None:
        logger.remove()
        self.level = _KAFKAS.get(level, level)
        self._handler = self._add(level)

    def _add(self, level: str) -> int:
        return logger.add(sys.stderr, level=level, format=LOG_FORMAT, backtrace=False, diagnose=False)

    def set_level(self, level: str) -> None:
        """`level` as Kafka names it."""
        before, self.level = self._handler, level
        self._handler = self._add(_LOGURUS.get(level, level))
        logger.remove(before)
