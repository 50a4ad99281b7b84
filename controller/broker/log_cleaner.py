"""The log cleaner: chooses the dirtiest log of the topics that are compacted, and cleans it piece by piece.

Each piece of work is a job of the log's device. It gives way to other threads after each batch (`Disk.give_way`), so
that requests come first, and a pause follows it, as long as log.cleaner.io.max.bytes.per.second asks for. One log is
cleaned at a time. A truncation or a shutdown ends a cleaning first, a deletion takes its files away; it begins anew
later. A log that can't be cleaned is named once and left alone until the next start (Kafka's uncleanable partitions), a
failed disk takes its directory offline. Source: Kafka 2.8's LogCleaner and LogCleanerManager.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from controller.broker.log_manager import LogManager
from controller.broker.request_context import Drive, Job, Steps, finish
from controller.clock import Clock, Timer
from controller.storage import DeviceUnavailable, LogDirectory, LogOffline, OutOfResources, PartitionLog, TopicPartition
from controller.storage.compaction import CleanerLimits, Cleaning, Work, first_timestamps_ms
from controller.storage.compaction_rules import (
    NEVER_CLEANED,
    DirtyRange,
    dirty_range,
    first_dirty_offset,
    is_due,
    pause_ms,
)
from controller.storage.devices import CHANGE_LIMIT_MS
from controller.storage.disk import NotCached, is_shortage
from controller.storage.offset_map import keys_within
from controller.trace import Noted, Trace

PIECE_BYTES_MIN = 1024


@dataclass(slots=True, eq=False)
class _Current:
    """The log that is being cleaned."""

    key: TopicPartition
    directory: LogDirectory
    log: PartitionLog
    cleaning: Cleaning
    steps: Generator[Work, Any, None]
    began_ms: float
    is_first: bool
    """The log was never cleaned, which is noted durably before a segment is replaced."""
    bytes_seen: int = 0

    @property
    def order(self) -> str:
        return f"cleaner of {self.directory.path}"

    @property
    def is_over(self) -> bool:
        """Its log is another now, or none."""
        return (
            self.cleaning.is_settled
            or self.directory.health.cause is not None
            or self.directory.logs.get(self.key) is not self.log
        )


@dataclass(slots=True)
class CleanerFigures:
    """What Kafka's metrics show of its cleaner. `uncleanable`: with the reason."""

    max_dirty_percent: int = 0
    last_run_ms: float = 0.0
    clean_time_ms: float = 0.0
    recopy_percent: float = 0.0
    buffer_utilization_percent: float = 0.0
    max_compaction_delay_ms: int = 0
    cleanings: int = 0
    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)


def _in_turn(first: Callable[[], None], then: Work) -> Any:
    first()
    return then()


@dataclass(eq=False)
class LogCleaner:
    """`_setting` returns a log.cleaner.* setting of the broker as it is now. All is done on the broker's thread but the
    jobs, which `_drive` runs. `_high_watermarks`: of the replicas here; others are not cleaned."""

    _logs: LogManager
    _high_watermarks: Callable[[], Mapping[TopicPartition, int]]
    _setting: Callable[[str], str]
    _clock: Clock
    _trace: Trace
    _drive: Drive = finish
    _timer: Timer | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _current: _Current | None = field(default=None, init=False)
    figures: CleanerFigures = field(default_factory=CleanerFigures, init=False)

    def start(self) -> None:
        self._arm(self._backoff_ms(), self.look)

    def stop(self) -> None:
        """No piece of work begins any more. Safe to call twice."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Begin to clean the dirtiest log that is due; look again later if there is none."""
        self.figures.last_run_ms = self._clock.now_ms()
        found = self._dirtiest()
        if found is None:
            self._arm(self._backoff_ms(), self.look)
            return
        (key, directory), dirty = found
        limits = CleanerLimits(
            keys_within(
                int(self._setting("log.cleaner.dedupe.buffer.size")),
                float(self._setting("log.cleaner.io.buffer.load.factor")),
            ),
            max(int(self._setting("log.cleaner.io.buffer.size")) // 2, PIECE_BYTES_MIN),
        )
        cleaning = directory.cleaning(key, dirty, limits)
        log = directory.logs[key]
        is_first = log.cleaned_to == NEVER_CLEANED
        current = _Current(key, directory, log, cleaning, cleaning.steps(), self._clock.now_ms(), is_first)
        self._current = current
        self._go_on(current, lambda: next(current.steps))

    # Which log

    def _dirtiest(self) -> tuple[tuple[TopicPartition, LogDirectory], DirtyRange] | None:
        high_watermarks = self._high_watermarks()
        found: list[tuple[float, tuple[TopicPartition, LogDirectory], DirtyRange]] = []
        highest, delay_ms = 0.0, 0
        for directory in self._logs.directories:
            if directory.health.cause is not None:
                continue
            for key, log in directory.logs.items():
                if not log.settings.compacted or key not in high_watermarks or key in self.figures.uncleanable:
                    continue
                dirty = self._examined(key, directory, log, high_watermarks[key])
                if dirty is None:
                    continue
                highest, delay_ms = max(highest, dirty.ratio), max(delay_ms, dirty.overdue_ms)
                if is_due(dirty, log.settings):
                    found.append((dirty.ratio, (key, directory), dirty))
        self.figures.max_dirty_percent = int(100 * highest)
        self.figures.max_compaction_delay_ms = delay_ms
        if not found:
            return None
        _, which, dirty = max(found, key=lambda one: one[0])
        return which, dirty

    def _examined(
        self, key: TopicPartition, directory: LogDirectory, log: PartitionLog, high_watermark: int
    ) -> DirtyRange | None:
        """None: there is nothing to clean, or not yet."""
        if log.is_bare or len(log.segment_offsets) < 2 or log.has_files_to_remove or log.is_being_cleaned:
            return None

        def examine() -> DirtyRange:
            first = first_dirty_offset(log.cleaned_to, log.log_start_offset, log.log_end_offset)
            limit = log.last_stable_offset(min(high_watermark, log.log_end_offset))
            times = first_timestamps_ms(log.segments, first, log.settings)
            return dirty_range(log.segments, first, limit, log.settings, self._clock.wall_ms(), times)

        try:
            return log.attempt(False, examine)
        except NotCached as cold:
            self._drive(self._read_in(cold))
            return None  # it is looked at the next time
        except (LogOffline, OutOfResources):
            return None
        except Exception as error:  # noqa: BLE001 - the other logs are looked at
            self._give_up(key, directory, error)
            return None

    @staticmethod
    def _read_in(cold: NotCached) -> Steps:
        with suppress(OSError, DeviceUnavailable):
            yield Job(cold.read_in, cold.device, size_bytes=cold.size_bytes, what=str(cold))

    # Piece by piece

    def _turn(self, current: _Current, work: Work) -> Steps:
        began_ms = self._clock.now_ms()
        name = f"{current.key[0]}-{current.key[1]}"
        try:
            order = current.order  # one that has no answer in time is still awaited
            device = current.cleaning.device or current.directory.device
            if current.is_first:
                current.is_first, work = False, partial(_in_turn, current.directory.write_cleaner_points, work)
            result = yield Job(work, device, order=order, limit_ms=CHANGE_LIMIT_MS, what=f"the cleaning of {name}")
        except Exception as error:  # noqa: BLE001 - judged by the steps and by `_failed`
            failure = error
            self._go_on(current, lambda: current.steps.throw(failure))
            return
        took_ms = self._clock.now_ms() - began_ms
        done = current.cleaning.done
        bytes_now = done.read + done.written
        new_bytes, current.bytes_seen = bytes_now - current.bytes_seen, bytes_now
        rate = float(self._setting("log.cleaner.io.max.bytes.per.second"))
        pause = pause_ms(new_bytes, took_ms, rate)
        self._arm(pause, lambda: self._go_on(current, lambda: current.steps.send(result)))

    def _go_on(self, current: _Current, advance: Callable[[], Work]) -> None:
        """The steps' own part, on this thread, up to the next piece of work."""
        if self._closed:
            return
        if current.is_over:
            self._end(current)
            return
        try:
            work = advance()
        except StopIteration:
            self._cleaned(current)
        except Exception as error:  # noqa: BLE001 - judged there
            self._failed(current, error)
        else:
            self._drive(self._turn(current, work))

    def _cleaned(self, current: _Current) -> None:
        log, cleaning, figures = current.log, current.cleaning, self.figures
        log.cleaning_ends(cleaning.end)
        with suppress(LogOffline):  # reported with its cause by the LogManager
            current.directory.checkpoint_cleaner_points(soon=True)
        done = cleaning.done
        figures.cleanings += 1
        figures.clean_time_ms = self._clock.now_ms() - current.began_ms
        figures.recopy_percent = 100 * done.written / max(done.copied, 1)
        figures.buffer_utilization_percent = cleaning.map_percent
        where = f"{current.key[0]}-{current.key[1]}"
        self._note(
            "info",
            f"log cleaner: {where} is cleaned up to offset {cleaning.end}: {done.copied} bytes became {done.written}, "
            f"{done.records_before} records {done.records_after}, in {figures.clean_time_ms:.0f} ms",
        )
        self._end(current, again_ms=0.0)

    def _failed(self, current: _Current, error: Exception) -> None:
        if current.is_over or current.log.health.cause is not None:
            self._end(current)
            return
        # LogOffline: an HDD is lost.
        is_temporary = isinstance(error, LogOffline | OutOfResources | DeviceUnavailable)
        is_temporary |= isinstance(error, OSError) and is_shortage(error)
        if isinstance(error, OSError) and not is_temporary:
            current.directory.health.fail(error)  # reported by the LogManager
            self._end(current)
            return
        if isinstance(error, DeviceUnavailable):
            self._drive(self._end_cleaning(current))
        else:
            try:
                current.log.end_cleaning()
            except (LogOffline, OutOfResources):
                self._end(current)
                return
        if is_temporary:
            where = f"{current.key[0]}-{current.key[1]}"
            self._note("warning", f"log cleaner: {where} is cleaned later: {error}")
        else:
            self._give_up(current.key, current.directory, error)
        self._end(current)

    def _end_cleaning(self, current: _Current) -> Steps:
        """Once the device answers again, since files are removed; other logs are cleaned meanwhile."""
        directory = current.directory
        try:
            what = f"a look whether {directory.path} answers"
            yield Job(directory.ask, directory.device, order=current.order, what=what)
        except DeviceUnavailable:
            if not self._closed:
                self._clock.call_later(self._backoff_ms(), lambda: self._drive(self._end_cleaning(current)))
            return
        if not (current.is_over or self._closed):
            with suppress(LogOffline, OutOfResources):
                current.log.end_cleaning()

    def _give_up(self, key: TopicPartition, directory: LogDirectory, error: Exception) -> None:
        self.figures.uncleanable[key] = str(error)
        known = isinstance(error, OSError | ValueError) or type(error).__module__.startswith("controller.storage")
        why = str(error) if known else traceback.format_exc()
        where = f"{key[0]}-{key[1]} in {directory.path}"
        self._note("error", f"log cleaner: {where} can't be cleaned, and is left alone until the next start: {why}")

    def _end(self, current: _Current, again_ms: float | None = None) -> None:
        if self._current is current:
            self._current = None
            current.steps.close()
            self._arm(self._backoff_ms() if again_ms is None else again_ms, self.look)

    # When

    def _backoff_ms(self) -> float:
        return float(self._setting("log.cleaner.backoff.ms"))

    def _arm(self, delay_ms: float, action: Callable[[], None]) -> None:
        def run() -> None:
            if not self._closed:
                action()

        if not self._closed:
            self._timer = self._clock.call_later(delay_ms, run)

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))
