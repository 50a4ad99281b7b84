"""A log directory: the logs in it, and the checkpoints that it keeps for all of them, in Kafka's layout.

When something in it can't be trusted, it is offline: `health.cause` says why, every log of it raises LogOffline, and
the process goes on. Files alone; which partitions should be here is the controller's business, and when to flush, to
checkpoint and to delete is the host's.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from controller.storage.batches import INT_MAX
from controller.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    NO_TOPIC_ID,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TopicPartition,
    decode_offsets,
    encode_offsets,
    encode_topic_id,
)
from controller.storage.compaction import CleanerLimits, Cleaning
from controller.storage.compaction_rules import NEVER_CLEANED, DirtyRange
from controller.storage.devices import FileChange
from controller.storage.disk import ANY_DEVICE, Disk, Health, Lock, LogHealth, is_shortage, on_disk
from controller.storage.errors import CorruptLog, DeviceUnavailable, LogOffline, OutOfResources
from controller.storage.log import PartitionLog
from controller.storage.recovery import NEW, LogCheckpoint
from controller.storage.segment import Segment
from controller.storage.settings import LogSettings
from controller.storage.tiered_log import TieredLog
from controller.storage.tiers import HddStore, LogTiers, SsdSpace, retire_on_hdds
from statemachines.log_segment import Cached, OnlyCache

_NOT_A_PARTITIONS = frozenset((errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR))
DELETED = "-delete"
FUTURE = "-future"
"""Of a log that is to take the place of the replica's in another directory."""
MOVES = "camerlengo-moves-checkpoint"
"""Names logs that have their place here while another directory may still have the replica: that one counts then."""
MADE = "camerlengo-made-checkpoint"
"""Names logs that were made here while another directory was offline: what that one has of these partitions is of a
replica that was here before, and does not count."""
STRAY = "-stray"
"""Of a topic that is there no more, under a name that another has now: kept for a person to look at."""


_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")


def directory_name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for any other name."""
    found = _PARTITION.fullmatch(name)
    return (found[1], int(found[2])) if found is not None and int(found[2]) <= INT_MAX else None


def future_of(name: str) -> TopicPartition | None:
    """The partition of a future log's directory; None for any other name."""
    stem, dot, ending = name.rpartition(".")
    return partition_of(stem) if dot and ending.endswith(FUTURE) else None


class Purged(msgspec.Struct, frozen=True):
    """How many deleted partitions' directories were removed, which can't be and why, and what ended it before."""

    count: int
    left: Mapping[str, OSError]
    error: OSError | None = None


def _remove_partition(disk: Disk, path: str) -> OSError | None:
    """Remove a deleted partition's directory; a path that holds directories, or is none, is not this broker's, and is
    left with that error."""
    try:
        for inner in disk.names(path):
            disk.remove(f"{path}/{inner}")
        disk.remove(path)
    except OSError as error:
        if error.errno not in _NOT_A_PARTITIONS:
            raise
        return error
    return None


class LogsChange(FileChange):
    """Makes or removes the directories of these partitions' logs. `logs`: those that were made, or are removed.
    `finish` is called on the broker's thread, once it has ended."""

    def __init__(
        self,
        partitions: Collection[TopicPartition],
        logs: Mapping[TopicPartition, PartitionLog],
        call: Callable[[], object],
        finish: Callable[[LogsChange], None],
        what: str,
    ) -> None:
        super().__init__(call, lambda: None, what)
        self.partitions = partitions
        self.logs = logs
        self._finish = finish

    def finish(self) -> None:
        self._finish(self)


def _without(directory: LogDirectory, logs: Container[TopicPartition]) -> dict[TopicPartition, int]:
    return {one: at for one, at in directory.high_watermarks.items() if one not in logs}


class LogDirectory:
    """Opens `path` and every log in it. Raises AlreadyLocked and OutOfResources; whatever else is wrong is in `health`.

    `settings_of` returns a topic's settings, `now_ms` wall time. `on_failure` is called with the OSError or CorruptLog
    when the directory goes offline, or a log of it alone. `unusable`: why the directory must not be used.
    `producers_added`: as for each log. `stores`: the HDDs of logs on two tiers, if this directory is on an SSD.
    `superseded`: partitions whose logs here were about to take the place of another directory's, which has them still:
    they are removed.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        settings_of: Callable[[str], LogSettings],
        now_ms: Callable[[], int],
        on_failure: Callable[[Exception], None] | None = None,
        unusable: OSError | None = None,
        producers_added: Callable[[int], None] | None = None,
        stores: Sequence[HddStore] = (),
        superseded: Collection[TopicPartition] = (),
    ) -> None:
        self.path = path
        self.futures: dict[TopicPartition, PartitionLog] = {}
        """Logs that will take the place of replicas in other directories."""
        self._begun = 0
        self.interrupted: set[TopicPartition] = set()
        """Those that the last process had here; their files are gone."""
        self.unopened: dict[TopicPartition, Exception] = {}
        """Logs that are here and are not used, since what an HDD has of them can't be trusted, or is `late`."""
        self.late: list[LogsChange] = []
        """Those that the device has begun and had no answer for in time."""
        self.is_silent = False
        """The device had no answer for a change, and has given none since."""
        self.unsettled: set[TopicPartition] = set()
        """See MOVES."""
        self._made_beside: set[TopicPartition] = set()
        """See MADE."""
        self.flush_soon: Callable[[PartitionLog], bool] = lambda _log: False
        """See `PartitionLog`; may be replaced."""
        self._flush_soon = self._ask_to_flush  # one bound method for all logs
        self._superseded = superseded
        self.stores = stores
        self.answers = True
        """See `HddStore`."""
        self.ssd = SsdSpace(path)
        self._producers_added = producers_added
        self.health = Health(path, on_failure)
        self._on_failure = on_failure
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.high_watermarks: Mapping[TopicPartition, int] = {}
        """As last written; what replication starts from."""
        self.was_clean = False
        self._kept: set[str] = set()
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._disk = disk
        self._settings_of = settings_of
        self._now_ms = now_ms
        self._keep_recovery_points = self._write_recovery_points  # one bound method for all logs
        self._lock: Lock | None = None
        self.device = ANY_DEVICE
        try:
            if unusable is not None:
                raise unusable
            disk.make_directory(path)
            self.device = disk.device_of(path)
            self._lock = disk.lock(f"{path}/{LOCK}")
            self._load()
        except OutOfResources:
            self.unlock()
            raise
        except (OSError, CorruptLog) as error:
            if isinstance(error, OSError) and is_shortage(error):
                self.unlock()
                raise OutOfResources(path, error) from error
            self.health.fail(error)
        except LogOffline as offline:
            self.health.fail(offline.cause)  # a log of it has said so before

    def _load(self) -> None:
        disk = self._disk
        names = disk.names(self.path)
        self.was_clean = CLEAN_SHUTDOWN in names
        recovery_points = self._read_offsets(names, RECOVERY_POINTS, "every batch of the logs is checked")
        if recovery_points is not None and self.was_clean and RECOVERY_POINTS not in names:
            recovery_points = None
            self.health.warn(f"{self.path}/{RECOVERY_POINTS} is missing; every batch of the logs is checked")
        if recovery_points is None:
            self.was_clean = False  # which of the bytes were synced is not known
        start_offsets = self._read_offsets(names, LOG_START_OFFSETS, "the logs begin with their first segments") or {}
        cleaned = self._read_offsets(names, CLEANER_POINTS, "compacted logs are cleaned from their beginning") or {}
        self.high_watermarks = self._read_offsets(names, HIGH_WATERMARKS, "the high watermarks begin at 0") or {}
        self.unsettled = set(self._read_offsets(names, MOVES, "no log is taken for one that was moved here") or ())
        self._made_beside = set(self._read_offsets(names, MADE, "no log is taken for one that replaces another") or ())
        self._remove_futures(names)
        for name in names:
            partition = partition_of(name)
            if partition in self._superseded:
                continue
            if partition is not None and not disk.is_directory(f"{self.path}/{name}"):
                self.health.warn(f"{self.path}/{name}: expected a directory, and left alone")
            elif partition is not None and self.health.cause is None:
                flushed = (recovery_points or {}).get(partition, 0)
                start, cleaned_to = start_offsets.get(partition, 0), cleaned.get(partition, NEVER_CLEANED)
                self._load_log(partition, LogCheckpoint(flushed, start, self.was_clean, cleaned_to))
        self._miss(recovery_points or {})
        self.purge_deleted()
        if CLEAN_SHUTDOWN in names:
            # From here on the files change, and the next start must look at them.
            disk.remove(f"{self.path}/{CLEAN_SHUTDOWN}")
            disk.sync_names(self.path)

    def _miss(self, recovery_points: Mapping[TopicPartition, int]) -> None:
        """Says which logs had been flushed and are not here: their replicas begin empty, if they are this broker's."""
        for partition, flushed in recovery_points.items():
            if flushed and partition not in self.logs and self.health.cause is None:
                missing = f"{self._directory(partition)} is missing, though offsets up to {flushed} were flushed"
                self.health.warn(missing)

    def _load_log(self, partition: TopicPartition, known: LogCheckpoint) -> None:
        """One that needs an HDD which is offline is left alone: its replica is offline, and the others serve."""
        settings, home = self._settings_of(partition[0]), self._directory(partition)
        health = Health(home) if self.stores else self.health
        try:
            self.logs[partition] = log = self._open(partition, settings, known, health)
            log.health = self._health_of(partition)
        except LogOffline as offline:
            if not self.stores:
                raise
            if health.cause is not None and not self._is_on_hdd(health.cause):
                raise self.health.fail(health.cause) from offline
            self.health.warn(f"{home} is not opened: {offline.cause}")
            if health.cause is not None:
                self.unopened[partition] = health.cause
            elif all(store.is_online for store in self.stores):
                self._set_aside(partition)
        if health is not self.health:
            self.health.warnings += health.warnings

    def _health_of(self, partition: TopicPartition) -> Health:
        """The health of a log that has been opened. What is corrupt on an HDD takes that log alone offline."""
        if not self.stores:
            return self.health
        return LogHealth(self._directory(partition), self.health, self._is_on_hdd, self._on_failure)

    def offline(self) -> list[TopicPartition]:
        """The partitions that must not be served: all, or those whose part on an HDD is corrupt."""
        return [partition for partition, log in self.logs.items() if log.health.cause is not None]

    def _is_on_hdd(self, cause: Exception) -> bool:
        """Whether what can't be trusted is in a file on an HDD: the SSD and its other logs are not affected."""
        files = tuple(f"{store.path}/" for store in self.stores)
        return isinstance(cause, CorruptLog) and cause.file.startswith(files)

    # Logs that move here

    def _remove_futures(self, names: Sequence[str]) -> None:
        for name in names:
            partition = future_of(name)
            if partition is not None:
                self.interrupted.add(partition)
                self._disk.rename(f"{self.path}/{name}", f"{self.path}/{name}{DELETED}")
            elif (partition := partition_of(name)) in self._superseded and partition is not None:
                self.interrupted.add(partition)
                self._disk.rename(f"{self.path}/{name}", f"{self.path}/{name}.{self._now_ms():032x}{DELETED}")
        self._settle(self._superseded)

    def _settle(self, partitions: Collection[TopicPartition]) -> None:
        """After the names of what was moved away are on the disk."""
        if self.unsettled.intersection(partitions):
            self._disk.sync_names(self.path)
            self.unsettled.difference_update(partitions)
            self._write_offsets(MOVES, lambda: dict.fromkeys(sorted(self.unsettled), 0))

    @on_disk
    def settle(self, partition: TopicPartition) -> None:
        """No other directory has the partition any more."""
        self._settle((partition,))

    @on_disk
    def note_made(self, partitions: Collection[TopicPartition]) -> None:
        """Durably, before their logs are made; see MADE."""
        self._write_offsets(MADE, lambda: dict.fromkeys(sorted({*self._made_beside, *partitions}), 0))
        self._made_beside.update(partitions)

    @on_disk
    def forget_made(self) -> None:
        """Every directory is online, and no other has any of these partitions any more."""
        if self._made_beside:
            self._write_offsets(MADE, dict)
            self._made_beside.clear()

    @on_disk
    def begin_future(self, partition: TopicPartition, topic_id: bytes) -> PartitionLog:
        """An empty log that is to take the place of the partition's in another directory."""
        self._begun += 1
        directory = f"{self._directory(partition)}.{self._now_ms():024x}{self._begun:08x}{FUTURE}"
        self._disk.make_directory(directory)
        if topic_id != NO_TOPIC_ID:
            self._disk.replace(f"{directory}/{PARTITION_METADATA}", encode_topic_id(topic_id), durable=False)
        log = self._open(partition, self._settings_of(partition[0]), NEW, self.health, directory)
        self._disk.sync_all([directory])
        self._disk.sync_names(self.path)
        self.interrupted.discard(partition)
        self.futures[partition] = log
        return log

    @on_disk
    def drop_future(self, partition: TopicPartition) -> None:
        log = self.futures.pop(partition, None)
        if log is not None:
            self._disk.rename(log.directory, f"{log.directory}{DELETED}")
            self._disk.sync_names(self.path)
            retire_on_hdds(self.stores, log.directory, DELETED)
            log.abandon()

    @on_disk
    def name_future(self, partition: TopicPartition, high_watermark: int) -> LogCheckpoint:
        """Give the future log the partition's name, durably. Until `settle` the other directory's counts."""
        log = self.futures.pop(partition)
        log.close()
        known = LogCheckpoint(log.recovery_point, log.log_start_offset, clean=True)
        points, starts = self._recovery_points, self._log_start_offsets
        self._write_offsets(RECOVERY_POINTS, lambda: {**points(), partition: log.recovery_point})
        self._write_offsets(LOG_START_OFFSETS, lambda: {**starts(), partition: log.log_start_offset})
        self.write_high_watermarks({**self.high_watermarks, partition: high_watermark})
        self.unsettled.add(partition)
        self._write_offsets(MOVES, lambda: dict.fromkeys(sorted(self.unsettled), 0))
        self._disk.rename(log.directory, self._directory(partition))
        self._disk.sync_names(self.path)
        return known

    @on_disk
    def take_named(self, partition: TopicPartition, known: LogCheckpoint) -> PartitionLog:
        """The log that `name_future` gave the name; nowhere else is one of the partition."""
        log = self._open(partition, self._settings_of(partition[0]), known, self._health_of(partition))
        self._settle((partition,))
        self.logs[partition] = log
        return log

    def leave_alone(self, partition: TopicPartition) -> None:
        """Another directory may have the partition, and is offline: which log counts is not known."""
        self.logs.pop(partition)
        self.health.warn(f"{self._directory(partition)} is not used while another log directory is offline")

    def as_store(self) -> HddStore:
        """This directory, on an HDD, for logs that have their home on an SSD."""
        store = HddStore(self._disk, self.path, self.health)
        store.device = self.device
        return store

    @on_disk
    def measure_ssd(self, limit_bytes: int, full_percent: int) -> SsdSpace:
        """How full the SSD is now: by its segments if there is a limit to them, else by its file system."""
        ssd = self.ssd
        if limit_bytes:
            ssd.capacity_bytes = limit_bytes
            ssd.used_bytes = sum(log.ssd_bytes() for log in self.logs.values() if isinstance(log, TieredLog))
        else:
            ssd.capacity_bytes, free_bytes = self._disk.space(self.path)
            ssd.used_bytes = ssd.capacity_bytes - free_bytes
        ssd.reserve_bytes = ssd.capacity_bytes * (100 - full_percent) // 100
        return ssd

    @on_disk
    def tiered_segments(self) -> list[tuple[TieredLog, Segment]]:
        """Every segment of the logs on two tiers that have their home here. Their ages are known afterwards: a file's
        is asked of the disk once."""
        found = [(log, one) for log in self.logs.values() if isinstance(log, TieredLog) for one in log.segments]
        for _, segment in found:
            if segment.state in (OnlyCache, Cached):
                segment.sealed_ms  # noqa: B018 - remembered
        return found

    def _set_aside(self, partition: TopicPartition) -> None:
        """The files of a log that lacks a part for good, under another name: its replica begins anew."""
        home = self._directory(partition)
        retire_on_hdds(self.stores, home, f".{self._now_ms():032x}{STRAY}")
        self._disk.rename(home, f"{home}.{self._now_ms():032x}{STRAY}")
        self._disk.sync_names(self.path)

    def _open(
        self,
        partition: TopicPartition,
        settings: LogSettings,
        known: LogCheckpoint,
        health: Health | None,
        directory: str = "",
    ) -> PartitionLog:
        open_log: type[PartitionLog] = TieredLog if self.stores else PartitionLog
        directory = directory or self._directory(partition)
        return open_log(
            self._disk,
            directory,
            settings,
            self._now_ms,
            known=known,
            health=health,
            keep_recovery_point=self._keep_recovery_points,
            producers_added=self._producers_added,
            tiers=LogTiers(self._disk, directory, self.stores, self.ssd) if self.stores else None,
            flush_soon=self._flush_soon,
            device=self.device,
        )

    def _ask_to_flush(self, log: PartitionLog) -> bool:
        return self.flush_soon(log)

    def _directory(self, partition: TopicPartition) -> str:
        return f"{self.path}/{directory_name(partition)}"

    def _read_offsets(self, names: Sequence[str], name: str, otherwise: str) -> dict[TopicPartition, int] | None:
        """None for a file that can't be understood: a start goes on without it, as Kafka's does, and says what
        follows."""
        try:
            return decode_offsets(f"{self.path}/{name}", self._disk.read(f"{self.path}/{name}"))
        except FileNotFoundError:
            if name not in names:
                return {}
            self.health.warn(f"{self.path}/{name} is a link to a file that does not exist; {otherwise}")
            return None
        except CorruptLog as error:
            self.health.warn(f"{error}; {otherwise}")
            return None

    def _write_offsets(self, name: str, offsets: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """On any thread: what they are when no other thread writes the file any more."""
        written: dict[TopicPartition, int] = {}

        def content() -> bytes:
            written.update(offsets())
            return encode_offsets(written)

        self._disk.replace(f"{self.path}/{name}", content)
        self._written[name] = written

    def _write_offsets_soon(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        written = self._written.get(name)
        if written is None or written != offsets or list(written) != list(offsets):
            self._disk.replace_soon(f"{self.path}/{name}", encode_offsets(offsets))
            self._written[name] = dict(offsets)

    # Partitions come and go

    def create(self, partition: TopicPartition, topic_id: bytes = NO_TOPIC_ID) -> PartitionLog:
        """The partition's log; an empty one, with this topic id (16 bytes, zeros for none), if there is none yet."""
        self.health.check()
        if partition not in self.logs:
            making = self.making({partition: topic_id})
            making()
            making.finish()
        return self.logs[partition]

    def making(self, wanted: Mapping[TopicPartition, bytes]) -> LogsChange:
        """Makes the files of empty logs with these topic ids. A job carries it out, in the order of this directory's.
        None of the partitions is here yet, and nothing else is done with them meanwhile."""
        settings = {partition: self._settings_of(partition[0]) for partition in wanted}
        made: dict[TopicPartition, PartitionLog] = {}

        def make() -> None:
            try:
                for partition, topic_id in wanted.items():
                    made[partition] = self._make(partition, topic_id, settings[partition])
                self._disk.sync_all([self._directory(partition) for partition in made])
                self._disk.sync_names(self.path)
            except LogOffline as offline:
                raise offline.cause from offline

        return LogsChange(tuple(wanted), made, make, self._adopt, f"files of {len(wanted)} logs in {self.path}")

    def _make(self, partition: TopicPartition, topic_id: bytes, settings: LogSettings) -> PartitionLog:
        """Make a log with a Health of its own, because the directory's reports failures on the caller's thread."""
        directory = self._directory(partition)
        self._disk.make_directory(directory)
        if topic_id != NO_TOPIC_ID:
            self._disk.replace(f"{directory}/{PARTITION_METADATA}", encode_topic_id(topic_id), durable=False)
        return self._open(partition, settings, NEW, None)

    @on_disk
    def _adopt(self, making: LogsChange) -> None:
        self._put(making.logs)
        making.take()

    def _put(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        for partition, log in logs.items():
            log.health, log.settings = self._health_of(partition), self._settings_of(partition[0])
            self.logs[partition] = log

    def delete(self, partition: TopicPartition) -> None:
        """Remove the partition at once; `purge_deleted` removes its files. KeyError if it is not here."""
        self._retire(partition, DELETED)

    def set_aside(self, partition: TopicPartition) -> None:
        """Remove the partition, but keep its files under another name for good. KeyError if it is not here."""
        self._retire(partition, STRAY)

    def _retire(self, partition: TopicPartition, suffix: str) -> None:
        self.health.check()
        self.logs[partition].settle()
        retiring = self.retiring((partition,), suffix)
        retiring()
        retiring.finish()

    def retiring(self, partitions: Sequence[TopicPartition], suffix: str = DELETED) -> LogsChange:
        """Removes the partitions, whose logs are settled. A job carries it out, in the order of this directory's. Its
        `finish` raises LogOffline; OutOfResources: those that have their names still are here, and can be asked for
        again."""
        logs = {partition: self.logs.pop(partition) for partition in partitions}
        for log in logs.values():  # what still uses a log whose name goes finds no fault with this directory
            log.health = Health(log.directory)
        call, what = partial(self._retire_files, logs, suffix), f"deletions in {self.path}"
        return LogsChange(tuple(logs), logs, call, self._retired, what)

    def _retire_files(self, logs: Mapping[TopicPartition, PartitionLog], suffix: str) -> None:
        """On any thread."""
        # Before the directories: a new life of a partition must not inherit the old one's offsets.
        self._write_recovery_points()
        self._write_offsets(LOG_START_OFFSETS, self._log_start_offsets)
        if any(log.cleaned_to != NEVER_CLEANED for log in logs.values()):
            self.write_cleaner_points()
        self._write_offsets(HIGH_WATERMARKS, partial(_without, self, logs))
        for partition in logs:
            directory = self._directory(partition)
            ending = f".{self._now_ms():032x}{suffix}"
            self._disk.settle_derived(directory)
            # The HDDs first: what they keep of a log that is gone would have no one to claim it.
            retire_on_hdds(self.stores, directory, ending)
            self._disk.rename(directory, f"{directory}{ending}")
        self._disk.sync_names(self.path)

    @on_disk
    def _retired(self, retiring: LogsChange) -> None:
        logs = retiring.logs
        try:
            retiring.take()
            self.high_watermarks = _without(self, logs)
        except OSError as error:
            if is_shortage(error):
                self._put({one: log for one, log in logs.items() if self._disk.is_directory(log.directory)})
            raise
        finally:
            for partition, log in logs.items():
                if partition not in self.logs:
                    log.abandon()

    def unanswered(self, change: LogsChange, error: DeviceUnavailable) -> None:
        """The job has no answer in time. What it has begun, it may still do: nothing is made of these partitions before
        `finish_late`."""
        self.is_silent = True
        if change.give_up():
            self._put(change.logs)
            return
        self.unopened.update(dict.fromkeys(change.partitions, error))
        self.late.append(change)

    def finish_late(self) -> bool:
        """Take what has ended of `late`, well or not. Returns whether nothing is left. Raises LogOffline."""
        for change in [one for one in self.late if one.ended]:
            self.late.remove(change)
            for partition in change.partitions:
                self.unopened.pop(partition, None)
            with suppress(OutOfResources):
                change.finish()
        self.is_silent = bool(self.late)
        return not self.late

    @on_disk
    def purge_deleted(self, at_most: int | None = None) -> int:
        """Remove the files of deleted partitions, of at most `at_most` of them. Returns the number of partitions."""
        return self.purged(self.purging(at_most)())

    def purging(self, at_most: int | None) -> Callable[[], Purged]:
        """What removes the files, on any thread, once at a time; `purged` takes what it returns."""
        disk, directory, kept = self._disk, self.path, frozenset(self._kept)

        def purge() -> Purged:
            deleted = [f"{directory}/{name}" for name in disk.names(directory) if name.endswith(DELETED)]
            paths = [path for path in deleted if path not in kept][:at_most]
            try:
                left = {path: error for path in paths if (error := _remove_partition(disk, path)) is not None}
            except OSError as error:
                return Purged(0, {}, error)
            return Purged(len(paths) - len(left), left)

        return purge

    @on_disk
    def purged(self, outcome: Purged) -> int:
        """Returns the number of partitions."""
        if outcome.error is not None:
            raise outcome.error
        for path, error in outcome.left.items():
            self._kept.add(path)
            self.health.warn(f"{path} is not removed: {error}")
        return outcome.count

    # Checkpoints. With `soon` they may be written after the call returned, and not if nothing changed.

    @on_disk
    def checkpoint_recovery_points(self, soon: bool = False) -> None:
        """Kafka: each `log.flush.offset.checkpoint.interval.ms`. The longer ago, the more is read after a crash."""
        if soon:
            self._write_offsets_soon(RECOVERY_POINTS, self._recovery_points())
        else:
            self._write_recovery_points()

    def _write_recovery_points(self) -> None:
        """On any thread."""
        self._write_offsets(RECOVERY_POINTS, self._recovery_points)

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {one: log.recovery_point for one, log in list(self.logs.items())}

    @on_disk
    def checkpoint_log_start_offsets(self, soon: bool = False) -> None:
        """Kafka: each `log.flush.start.offset.checkpoint.interval.ms`. Those alone that files do not tell."""
        if soon:
            self._write_offsets_soon(LOG_START_OFFSETS, self._log_start_offsets())
        else:
            self._write_offsets(LOG_START_OFFSETS, self._log_start_offsets)

    def _log_start_offsets(self) -> dict[TopicPartition, int]:
        return {
            one: log.log_start_offset
            for one, log in list(self.logs.items())
            if log.log_start_offset and log.log_start_offset > log.segment_offsets[0]
        }

    @on_disk
    def checkpoint_cleaner_points(self, soon: bool = False) -> None:
        """How far each log was compacted: written before its first segment is replaced, and after each cleaning."""
        if soon:
            self._write_offsets_soon(CLEANER_POINTS, self._cleaner_points())
        else:
            self.write_cleaner_points()

    def write_cleaner_points(self) -> None:
        """On any thread."""
        self._write_offsets(CLEANER_POINTS, self._cleaner_points)

    def _cleaner_points(self) -> dict[TopicPartition, int]:
        return {one: log.cleaned_to for one, log in list(self.logs.items()) if log.cleaned_to != NEVER_CLEANED}

    def cleaning(self, partition: TopicPartition, dirty: DirtyRange, limits: CleanerLimits) -> Cleaning:
        """A cleaning of the partition's log that has not begun."""
        return Cleaning(self._disk, self.logs[partition], dirty, limits, self._now_ms())

    @on_disk
    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int], soon: bool = False) -> None:
        """Kafka: each `replica.high.watermark.checkpoint.interval.ms`."""
        if soon and HIGH_WATERMARKS in self._written and high_watermarks == self.high_watermarks:
            return
        if soon:
            self._write_offsets_soon(HIGH_WATERMARKS, high_watermarks)
        else:
            self._write_offsets(HIGH_WATERMARKS, lambda: high_watermarks)
        self.high_watermarks = dict(high_watermarks)

    # Upkeep

    def flush_due(self, now_ms: int) -> list[PartitionLog]:
        """Logs whose `log.flush.interval.ms` is over."""
        dirty = (log for log in self.logs.values() if log.recovery_point < log.log_end_offset)
        return [log for log in dirty if now_ms - log.last_flush_ms >= log.settings.flush_ms]

    def _each(self, steps: Iterable[Callable[[], int | None]]) -> int:
        """Carries out all steps, one log's each, and sums what they return; then raises the first exception that is
        one log's alone. What takes the directory offline is raised at once."""
        total = 0
        first: Exception | None = None
        for step in steps:
            try:
                total += step() or 0
            except LogOffline:
                raise
            except Exception as error:  # noqa: BLE001 - raised below; the other logs are looked after
                first = first or error
        if first is not None:
            raise first
        return total

    @on_disk
    def apply_retention(self, high_watermarks: Mapping[TopicPartition, int]) -> int:
        """Deletes old segments of the logs whose high watermark is given. How many segments."""
        return self._each(
            partial(log.apply_retention, high_watermark)
            for partition, high_watermark in high_watermarks.items()
            if (log := self.logs.get(partition)) is not None and not log.is_bare
        )

    def ask(self) -> None:
        """Return once the directory's device has answered, on any thread."""
        self._disk.ask(self.device)

    def close(self) -> None:
        """A clean shutdown: nothing will be read again at the next start. An offline directory is only unlocked."""
        try:
            if self.health.cause is None:
                self._close_logs()
        finally:
            self.unlock()

    def unlock(self) -> None:
        """Lets another process have the directory, as a death would. The next start recovers."""
        self._disk.settle_derived(self.path)
        if self._lock is not None:
            self._lock.release()

    @on_disk
    def _close_logs(self) -> None:
        for log in self.logs.values():
            log.close()
        self.checkpoint_recovery_points()
        self.checkpoint_log_start_offsets()
        self._disk.replace(f"{self.path}/{CLEAN_SHUTDOWN}", b"")
