"""Periodic log maintenance (flushes, retention, checkpoints of the directories) and the closing of logs.

As Kafka 2.8's LogManager and ReplicaManager, with the same intervals under the same names. An offline directory is
skipped. One that goes offline here has already reported it (`LogManager.of_failures`), and the others are processed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from controller.broker.flush_pacing import FlushPacing
from controller.broker.log_manager import LogManager
from controller.broker.records.cold_reads import until_cached
from controller.broker.replica_manager import ReplicaManager
from controller.broker.request_context import Drive, Job, Steps, Yielded, finish
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Timer
from controller.storage import (
    DeviceUnavailable,
    LogDirectory,
    LogOffline,
    OutOfResources,
    PartitionLog,
    StorageError,
    TopicPartition,
)
from controller.storage.devices import CHANGE_LIMIT_MS, DeviceJobs, JobOutcome
from controller.trace import Noted, Trace

FIRST_MS = 30_000
"""How long after the start each is done first, or its interval if that is shorter: Kafka's InitialTaskDelayMs."""
NEVER_MS = 1 << 44
"""Intervals from here on never elapse in practice; the default of log.flush.scheduler.interval.ms is one of them."""

PURGED_AT_ONCE = 20
"""Partitions whose files are deleted before requests have their turn again."""
PURGE_AGAIN_MS = 5.0
ASK_AGAIN_MS = 5_000.0
"""From the time on when a device had no answer, or refused the question."""
AFTER_SHORTAGE_MS = 30_000.0
"""From a refusal for want of descriptors or memory until the controller is asked for the partition again."""


class LogMaintenance:
    """Runs log maintenance. `start` may be called on any thread; all tasks run in the clock's callbacks, on the
    broker's thread. `on_all_offline` is called once, when no directory is left: such a broker can't do anything, and
    Kafka's ends, too. `on_deleted` is called when retention has deleted something: log start offsets have changed.
    `ask_controller` is called when the controller is to send the states of partitions that were refused again: a device
    answers again, or some time has passed since a shortage."""

    def __init__(
        self,
        settings: BrokerSettings,
        logs: LogManager,
        replicas: ReplicaManager,
        clock: Clock,
        trace: Trace,
        on_all_offline: Callable[[], None] = lambda: None,
        on_deleted: Callable[[], None] = lambda: None,
        ask_controller: Callable[[], None] = lambda: None,
        drive: Drive = finish,
    ) -> None:
        self._drive = drive
        self._busy: set[tuple[str, str]] = set()
        self._on_all_offline = on_all_offline
        self._on_deleted = on_deleted
        self._ask_controller = ask_controller
        logs.of_silences.append(self._begin_to_ask)
        replicas.of_shortages.append(self._wait_after_shortage)
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._trace = trace
        self._timers: dict[Callable[[], None], Timer] = {}
        self._closed = False
        self._pacing = FlushPacing(logs, clock, drive)
        self._all_offline = False
        self._tasks: tuple[tuple[Callable[[], None], int], ...] = (
            (self.checkpoint_high_watermarks, settings.replica_high_watermark_checkpoint_interval_ms),
            (self.flush, settings.log_flush_scheduler_interval_ms),
            (self.apply_retention, settings.log_retention_check_interval_ms),
            (self.checkpoint_recovery_points, settings.log_flush_offset_checkpoint_interval_ms),
            (self.checkpoint_log_start_offsets, settings.log_flush_start_offset_checkpoint_interval_ms),
            (self.purge_deleted, settings.log_segment_delete_delay_ms),
        )

    def start(self) -> None:
        for task, interval_ms in self._tasks:
            if interval_ms < NEVER_MS:
                self._arm(task, interval_ms, min(interval_ms, FIRST_MS))

    def stop(self) -> None:
        """Nothing is done any more. Safe to call twice."""
        self._closed = True
        self._pacing.stop()
        for timer in self._timers.values():
            timer.cancel()

    def close_logs(self, devices: DeviceJobs | None = None) -> None:
        """Close all logs cleanly, so that the next start has nothing to recover. No log may be used afterwards. With
        `devices` each directory is a job, which may go on after this returned; one that a job fails to close is
        recovered at the next start."""
        self.stop()
        for directory in self._online():
            close, what = partial(self._close, directory), f"clean shutdown of {directory.path}"
            if devices is None:
                close()
            else:
                devices.submit(directory.device, close, partial(self._closed_in, what), limit_ms=NEVER_MS, what=what)

    def _close(self, directory: LogDirectory) -> None:
        self._in(directory, self._write_high_watermarks)
        self._in(directory, LogDirectory.close)

    def _closed_in(self, what: str, outcome: JobOutcome) -> None:
        if outcome.error is not None:
            self._note("warning", f"{what}: {outcome.error}; the next start recovers it")

    # -- each task, over all directories

    def checkpoint_high_watermarks(self) -> None:
        self._each(lambda directory: self._write_high_watermarks(directory, soon=True))

    def flush(self) -> None:
        self._each(lambda directory: self._begin("flush", directory, self._flush(directory)))

    def _flush(self, directory: LogDirectory) -> Steps:
        first: Exception | None = None
        for log in directory.flush_due(self._clock.wall_ms()):
            try:
                yield from until_cached(log, partial(log.flush, log.log_end_offset))
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below; the other logs are flushed
                first = first or error
        if first is not None:
            raise first

    def apply_retention(self) -> None:
        high_watermarks = self._replicas.high_watermarks()

        def apply(directory: LogDirectory) -> None:
            self._begin("retention", directory, self._retention(directory, high_watermarks))

        self._each(apply)

    def _retention(self, directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]) -> Steps:
        """One log after another, since the files of new logs are made in between."""
        deleted = 0
        try:
            for partition, high_watermark in high_watermarks.items():
                log = directory.logs.get(partition)
                if log is not None and (not log.is_bare or log.has_files_to_remove):
                    deleted += yield from self._retention_of(directory, log, high_watermark)
        finally:
            if deleted:
                self._note("info", f"log directory {directory.path}: retention deleted {deleted} segments")
                self._on_deleted()

    def _retention_of(
        self, directory: LogDirectory, log: PartitionLog, high_watermark: int
    ) -> Generator[Yielded, Any, int]:
        """Raises LogOffline, OutOfResources, DeviceUnavailable. Any other error is the log's alone."""
        try:
            count, removal = yield from until_cached(log, partial(log.let_go, high_watermark))
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - logged with its place; the other logs are looked after
            self._note("error", f"{log.directory}: retention failed\n{traceback.format_exc()}")
            return 0
        if removal is not None:
            what = f"removal of {len(removal.segments)} segments of {log.directory}"
            try:
                yield Job(removal, directory.device, order=directory.path, limit_ms=CHANGE_LIMIT_MS, what=what)
            except OSError as error:
                log.not_removed(error)
            log.removed(removal)
        return count

    def checkpoint_recovery_points(self) -> None:
        self._each(lambda directory: directory.checkpoint_recovery_points(soon=True))

    def checkpoint_log_start_offsets(self) -> None:
        self._each(lambda directory: directory.checkpoint_log_start_offsets(soon=True))

    def purge_deleted(self) -> None:
        """Some at a time: of a large topic there may be thousands, and requests come first."""
        self._each(self._begin_purge)

    def _begin_purge(self, directory: LogDirectory) -> None:
        if not self._closed:
            self._begin("purge", directory, self._purge(directory))

    def _purge(self, directory: LogDirectory) -> Steps:
        call, what = directory.purging(PURGED_AT_ONCE), f"removal of deleted partitions in {directory.path}"
        purged = yield Job(call, directory.device, order=directory.path, limit_ms=CHANGE_LIMIT_MS, what=what)
        if directory.purged(purged) == PURGED_AT_ONCE:
            self._clock.call_later(PURGE_AGAIN_MS, partial(self._begin_purge, directory))

    def _begin_to_ask(self, directory: LogDirectory) -> None:
        if not self._closed:
            self._begin("ask", directory, self._ask(directory))

    def _ask(self, directory: LogDirectory) -> Steps:
        """Whether its device answers, behind what it is still at; until it does."""
        what = f"a look whether {directory.path} answers"
        try:
            yield Job(directory.ask, directory.device, order=directory.path, limit_ms=CHANGE_LIMIT_MS, what=what)
            is_over = directory.finish_late()
        except DeviceUnavailable:
            is_over = False
        if is_over:
            self._note("info", f"log directory {directory.path} answers again")
            self._ask_controller()
        else:
            self._clock.call_later(ASK_AGAIN_MS, partial(self._begin_to_ask, directory))

    def _wait_after_shortage(self) -> None:
        if not self._closed and self._ask_controller not in self._timers:
            self._timers[self._ask_controller] = self._clock.call_later(AFTER_SHORTAGE_MS, self._ask_after_shortage)

    def _ask_after_shortage(self) -> None:
        del self._timers[self._ask_controller]
        self._ask_controller()

    def _write_high_watermarks(self, directory: LogDirectory, soon: bool = False) -> None:
        """Write the high watermarks. A log whose partition was not named in this incarnation keeps its old entry."""
        at = self._replicas.high_watermarks_in(directory.logs, directory.high_watermarks)
        directory.write_high_watermarks(at, soon)

    # -- when

    def _arm(self, task: Callable[[], None], interval_ms: int, delay_ms: int) -> None:
        def run() -> None:
            if self._closed:
                return
            self._arm(task, interval_ms, interval_ms)  # first: a task that fails is done again at its next time
            task()

        self._timers[task] = self._clock.call_later(delay_ms, run)

    def _each(self, action: Callable[[LogDirectory], object]) -> None:
        for directory in self._online():
            self._in(directory, action)
        self._note_all_offline()

    def _note_all_offline(self) -> None:
        if not self._all_offline and not self._online():
            self._all_offline = True
            self._note("error", "every log directory is offline")
            self._on_all_offline()

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._logs.directories if directory.health.cause is None]

    def _begin(self, what: str, directory: LogDirectory, steps: Steps) -> None:
        """Run the steps, unless the last ones of this kind are still under way."""
        key = (what, directory.path)
        if key not in self._busy:
            self._busy.add(key)
            self._drive(self._guarded(key, directory, steps))

    def _guarded(self, key: tuple[str, str], directory: LogDirectory, steps: Steps) -> Steps:
        try:
            yield from steps
        except Exception as error:  # noqa: BLE001 - judged as an action's that is not made of steps
            self._in(directory, partial(_raise, error))
        finally:
            self._busy.discard(key)
        self._note_all_offline()

    def _in(self, directory: LogDirectory, action: Callable[[LogDirectory], object]) -> None:
        try:
            action(directory)
        except LogOffline:
            # `LogManager.of_failures` has already reported it with its cause.
            return
        except (OutOfResources, DeviceUnavailable) as error:
            self._note("warning", f"log directory {directory.path}: maintenance is postponed: {error}")
        except Exception:  # noqa: BLE001 - logged with its place; the other directories are looked after
            self._note("error", f"log directory {directory.path}: maintenance failed\n{traceback.format_exc()}")

    def _note(self, level: str, message: str) -> None:
        self._trace.emit(Noted(level, message))


def _raise(error: Exception, _directory: LogDirectory) -> None:
    raise error


class NoLogDirectory(Exception):
    """None of the log directories can be used; names each with its cause."""


def opening_notes(logs: LogManager) -> list[Noted]:
    """Return log lines about the opened directories. Raises NoLogDirectory if none is online."""
    notes: list[Noted] = []
    offline: list[str] = []
    for directory in logs.directories:
        notes += [Noted("warning", warning) for warning in directory.health.warnings]
        if directory.health.cause is not None:
            offline.append(f"log directory {directory.path} is offline: {directory.health.cause}")
            continue
        how = "closed cleanly" if directory.was_clean else "recovered"
        notes.append(Noted("info", f"log directory {directory.path}: {len(directory.logs)} logs, {how}"))
        for (topic, index), log in directory.logs.items():
            if log.cut_bytes:
                what = f"{topic}-{index}: {log.cut_bytes} bytes of a torn end were cut off at {log.log_end_offset}"
                notes.append(Noted("warning", what))
    if len(offline) == len(logs.directories):
        raise NoLogDirectory("; ".join(offline))
    return [*notes, *(Noted("error", one) for one in offline)]
