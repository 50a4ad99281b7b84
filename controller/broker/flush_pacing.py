"""Flushes by rate, spread in time: each device writes slices of its logs steadily, instead of a log at once.

A log that has as much to flush as its rate allows in a second takes its turn on its device. Its bytes are written slice
by slice (`flush_slice_wait_ms`), and then the log is flushed, which writes what came meanwhile, and makes all durable.
Decisions are made in the clock's callbacks, on the broker's thread; slices are jobs of the device.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

import msgspec

from controller.broker.log_manager import LogManager
from controller.broker.records.cold_reads import until_cached
from controller.broker.request_context import Drive, Job, Steps
from controller.clock import Clock, Timer
from controller.storage import DeviceUnavailable, LogDirectory, PartitionLog, StorageError
from controller.storage.disk import Device
from controller.storage.segment import Segment
from statemachines.tier_placement import FLUSH_SLICE_BYTES, flush_slice_wait_ms

MOST_SECONDS = 4
"""A log that has so many seconds of its rate to flush is flushed at once: its device is too slow to be paced."""


MOST_EXTENDED = 8
"""Slices that a turn takes on after it began: a log that grows as fast as its device writes is flushed too."""


class FlushTurn(msgspec.Struct, eq=False):
    """The bytes of a log's active segment that are written before it is flushed: those that are there when its turn
    begins, -1 before. `is_writing`: a slice is under way. `extended`: how often a slice came meanwhile and is written
    first."""

    log: PartitionLog
    segment: Segment
    position: int
    end: int = -1
    is_writing: bool = False
    extended: int = 0

    @property
    def waiting_bytes(self) -> int:
        return self.segment.size_bytes - self.position

    @property
    def slice_bytes(self) -> int:
        """Of the next slice; 0 if none is left, or the log has gone on to another segment."""
        if self.log.health.cause is not None or self.log.segments[-1] is not self.segment:
            return 0
        return min(FLUSH_SLICE_BYTES, (self.segment.size_bytes if self.end < 0 else self.end) - self.position)


class FlushPacing:
    """Paces the flushes by rate of the logs in these directories. Safe to stop twice; a log then flushes itself."""

    def __init__(self, logs: LogManager, clock: Clock, drive: Drive) -> None:
        self._clock = clock
        self._drive = drive
        self._turns: dict[Device, dict[int, FlushTurn]] = {}
        self._timers: dict[Device, Timer] = {}
        self._flushed_bytes: Counter[Device] = Counter()
        """Written by flushes at the ends of turns: the next slice comes as much later."""
        self._closed = False
        for directory in logs.directories:
            directory.flush_soon = partial(self._due, directory)

    def stop(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._turns.clear()

    def _due(self, directory: LogDirectory, log: PartitionLog) -> bool:
        rate = log.settings.flush_bytes_per_second
        if self._closed or log.unflushed_bytes >= MOST_SECONDS * rate:
            return False
        active = log.segments[-1]
        device = directory.device if active.store is None else active.store.device
        turns = self._turns.setdefault(device, {})
        if id(log) not in turns:
            begin = max(0, active.size_bytes - log.unflushed_bytes)
            turns[id(log)] = FlushTurn(log, active, begin)
            if device not in self._timers:
                self._arm(device, 0.0)
        return True

    def _arm(self, device: Device, wait_ms: float) -> None:
        self._timers[device] = self._clock.call_later(wait_ms, lambda: self._next(device))

    def _next(self, device: Device) -> None:
        """Begin to write the next slice of a device: of the first log in turn that has none under way."""
        del self._timers[device]
        turns = self._turns.get(device, {})
        for key, turn in [*turns.items()]:
            if not turn.is_writing and not turn.slice_bytes:
                del turns[key]
                self._drive(_flush(turn.log))
        ready = next((turn for turn in turns.values() if not turn.is_writing), None)
        if ready is None or self._closed:
            return
        if ready.end < 0:
            ready.end = ready.segment.size_bytes
        size, waiting = ready.slice_bytes, sum(turn.waiting_bytes for turn in turns.values())
        paid = size + self._flushed_bytes.pop(device, 0)
        wait_ms = flush_slice_wait_ms(waiting, paid, len(turns), ready.log.settings.flush_bytes_per_second)
        ready.is_writing = True
        self._arm(device, wait_ms)
        self._drive(self._write(device, ready, size))

    def _write(self, device: Device, turn: FlushTurn, size: int) -> Steps:
        call = partial(turn.segment.file.write_back, turn.position, size)
        try:
            yield Job(call, device, what=f"write-back of {turn.segment.path}")
        except DeviceUnavailable:
            self._turns.get(device, {}).pop(id(turn.log), None)  # due again with the next append
        turn.position += size
        turn.is_writing = False
        if not turn.slice_bytes and turn.waiting_bytes >= FLUSH_SLICE_BYTES and turn.extended < MOST_EXTENDED:
            turn.end, turn.extended = turn.position + FLUSH_SLICE_BYTES, turn.extended + 1
        turns = self._turns.get(device, {})
        if not turn.slice_bytes and turns.pop(id(turn.log), None) is not None:
            self._flushed_bytes[device] += turn.waiting_bytes
            self._drive(_flush(turn.log))
        if turns and device not in self._timers:
            self._arm(device, 0.0)


def _flush(log: PartitionLog) -> Steps:
    """What it raises was reported by the log's directory, or by the device's pool."""
    if log.health.cause is None:
        with suppress(StorageError):
            yield from until_cached(log, partial(log.flush, log.log_end_offset))
