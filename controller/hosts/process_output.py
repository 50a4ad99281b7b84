"""What a broker's process writes: its log on standard error, and its trace.

The log's level may change while the process runs. Trace events are lines of a file, and the important ones are lines of
the log too. Times are milliseconds of the machine's monotonic clock, so that the processes of one machine share an
axis. Each line is written at once and as a whole: what a process had done when it was killed can be read.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import IO

from controller.log import logger
from controller.trace import (
    BrokerRegistered,
    ControllerElected,
    ControllerResigned,
    Noted,
    RequestRefused,
    SessionEnded,
    SessionStarted,
    TraceEvent,
)
from controller.trace_records import TraceRecord, encode_record

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


class ProcessTrace:
    """`path` None: the log alone. `node` is the broker id. Any thread may emit."""

    def __init__(self, path: Path | None, node: int) -> None:
        self.node = node
        self.enabled = path is not None
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None if path is None else path.open("ab", buffering=0)

    def emit(self, event: TraceEvent) -> None:
        if self._file is not None:
            with self._lock:
                line = encode_record(TraceRecord(time.monotonic() * 1_000.0, self.node, event))
                self._file.write(line)
        _log(event)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _log(event: TraceEvent) -> None:
    if isinstance(event, Noted):
        logger.log(event.level.upper(), "{}", event.message)
        return
    sentence = _sentence(event)
    if sentence is not None:
        logger.log("WARNING" if isinstance(event, RequestRefused) else "INFO", "{}", sentence)


def _sentence(event: TraceEvent) -> str | None:
    """Return the log line of an event, or None for events that are only traced or also noted in words."""
    match event:
        case SessionStarted():
            return f"ZooKeeper session 0x{event.session:x} began"
        case SessionEnded():
            return f"ZooKeeper session 0x{event.session:x} ended"
        case BrokerRegistered():
            return f"broker {event.broker} registered with epoch {event.broker_epoch} in session 0x{event.session:x}"
        case ControllerElected():
            return f"elected controller with epoch {event.controller_epoch}"
        case ControllerResigned():
            return f"resigned as controller with epoch {event.controller_epoch}: {event.reason}"
        case RequestRefused():
            return f"{event.api} of controller epoch {event.controller_epoch} refused: {event.reason}"
        case _:
            return None
