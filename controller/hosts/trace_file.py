"""A broker process's trace: every event a line of JSON in a file, and a line of log for those a person would ask for.

Times are the machine's monotonic clock, which all processes share, so that whoever collects several files can put
them on one axis.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

from loguru import logger

from controller.clock import Clock
from controller.trace import (
    BrokerRegistered,
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    FailoverCompleted,
    FailoverPhase,
    Noted,
    RequestRefused,
    SessionEnded,
    SessionStarted,
    TraceEvent,
)
from controller.trace_records import TraceRecord, encode_record

_LOGGED = (
    BrokerRegistered,
    BrokersChanged,
    ControllerElected,
    ControllerResigned,
    FailoverCompleted,
    FailoverPhase,
    RequestRefused,
    SessionEnded,
    SessionStarted,
)


class FileTrace:
    """A Trace for any thread. `path` None: events are logged only, and bulk ones not even made (`enabled`).

    Each line is written at once, so that a killed process loses at most the line it was writing.
    """

    def __init__(self, clock: Clock, node: int, path: Path | None) -> None:
        self._clock = clock
        self.node = node
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None if path is None else path.open("ab", buffering=0)

    @property
    def enabled(self) -> bool:
        return self._file is not None

    def emit(self, event: TraceEvent) -> None:
        with self._lock:  # time and place in the file agree
            if self._file is not None:
                self._file.write(encode_record(TraceRecord(self._clock.now_ms(), self.node, event)))
        if isinstance(event, Noted):
            logger.log(event.level.upper(), "{}", event.message)
        elif isinstance(event, _LOGGED):
            logger.info("{}", event)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
