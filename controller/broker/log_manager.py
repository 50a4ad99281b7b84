"""A broker's logs, over one or more log directories: which of them has a partition, and where a new one goes.

Files alone, through `controller.storage`: who leads, how far a partition is committed and when something is flushed is
decided elsewhere. A directory that can't be trusted is offline, with every partition in it, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from controller.broker.records.cold_reads import until_cached
from controller.broker.request_context import SLICE, Drive, Job, Steps, Yielded, finish, together
from controller.storage import (
    NO_TOPIC_ID,
    DeviceUnavailable,
    Disk,
    DuplicateLogs,
    LogDirectory,
    LogOffline,
    LogSettings,
    OutOfResources,
    PartitionLog,
    StorageError,
    TopicPartition,
)
from controller.storage.checkpoints import decode_offsets
from controller.storage.directory import MADE, MOVES, LogsChange, partition_of
from controller.storage.errors import CorruptLog
from controller.storage.producer_states import ProducersOfBroker, ProducerStates
from controller.storage.settings import INT_MAX
from controller.storage.tiered_log import TieredLog
from controller.storage.tiers import HddStore
from statemachines.tier_placement import Tier

PREFERRED_MAX = 10_000
SettingsOf = Callable[[str], LogSettings]


class LogManager:
    """Opens the directories at `paths` and recovers their logs; `unusable` ones are offline with that cause at once.

    `settings_of` returns a topic's settings; `settings_changed` passes new ones to existing logs. `of_failures` are
    called for each directory that goes offline, or has a log that does, with the OSError or CorruptLog, during the call
    that found the error: they must not use a log themselves. Directories that were offline at the start are not
    reported again. All logs together remember at most `producer_ids_max` producer ids.

    Raises: AlreadyLocked and OutOfResources, and no directory stays open; DuplicateLogs, and nothing has changed.
    """

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        settings_of: SettingsOf,
        wall_ms: Callable[[], int],
        unusable: Mapping[str, OSError] | None = None,
        producer_ids_max: int = INT_MAX,
        tiers: Sequence[Tier] = (),
    ) -> None:
        self._settings_of = settings_of
        self._tiers = dict(zip(paths, tiers, strict=True)) if tiers else {}
        self.directories: tuple[LogDirectory, ...] = ()
        self.producers = ProducersOfBroker(producer_ids_max, self._producer_states)
        self.of_failures: list[Callable[[LogDirectory, Exception], None]] = []
        self.of_silences: list[Callable[[LogDirectory], None]] = []
        """Called when partitions were refused since the directory's device had no answer in time."""
        self.drive: Drive = finish
        self._nowhere: set[TopicPartition] = set()
        """Those that were refused: no directory has a log of them, offline or not."""
        self.preferred: dict[TopicPartition, str] = {}
        """Where logs that are not made yet are to lie, as AlterReplicaLogDirs asked for."""
        self._begun: dict[TopicPartition, str] = {}
        """Where some files of logs that could not be made may be. They are made there, as long as it is online."""
        self._not_made: dict[TopicPartition, LogOffline | OutOfResources | DeviceUnavailable] = {}
        superseded, replaced = _in_two(disk, [path for path in paths if path not in (unusable or {})])
        opened: dict[str, LogDirectory] = {}
        stores: list[HddStore] = []
        try:
            # HDDs first: logs that have their home on an SSD keep old segments there.
            for path in sorted(paths, key=self._is_ssd):
                on_hdds = tuple(stores) if self._is_ssd(path) else ()
                cause = (unusable or {}).get(path)
                opened[path] = self._open(disk, path, wall_ms, cause, on_hdds, superseded.get(path, ()))
                if self._tiers and not self._is_ssd(path):
                    stores.append(opened[path].as_store())
            for path, those in replaced.items():
                _set_aside(opened[path], those)
            self.directories = tuple(opened[path] for path in paths)
            self._settle_moves()
        except BaseException:
            for directory in opened.values():
                directory.unlock()
            raise
        self.producers.added(sum(map(len, self._producer_states())))

    def _settle_moves(self) -> None:
        """A directory that fails meanwhile is offline, as one that can't be opened."""
        all_online = self._all_online
        for directory in self.directories:
            with suppress(LogOffline):
                if all_online:
                    directory.forget_made()
                for partition in sorted(directory.unsettled) if directory.health.cause is None else ():
                    if all_online or partition not in directory.logs:
                        directory.settle(partition)
                    else:
                        directory.leave_alone(partition)

    @property
    def _all_online(self) -> bool:
        return all(one.health.cause is None for one in self.directories)

    def interrupted(self, key: TopicPartition) -> LogDirectory | None:
        """Where the last process was moving this replica; None from the second time on."""
        for directory in self.directories:
            if key in directory.interrupted:
                directory.interrupted.discard(key)
                return directory
        return None

    def replace_by_future(self, key: TopicPartition, target: LogDirectory, high_watermark: int) -> PartitionLog:
        """The future log of `target`, which has all that the partition's log has, takes its place. After a crash
        before the old log's directory has another name, that one counts. Raises LogOffline, OutOfResources: the
        replica is offline."""
        source = self.directory_of(*key)
        if source is None:
            raise KeyError(f"{key[0]}-{key[1]} has no log here")
        if not self._all_online:
            target.note_made((key,))
        known = target.name_future(key, high_watermark)
        source.delete(key)
        return target.take_named(key, known)

    def _is_ssd(self, path: str) -> bool:
        return self._tiers.get(path) is Tier.SSD

    def ssd_directories(self) -> tuple[LogDirectory, ...]:
        """Those online, on a broker with tiers: homes of logs that lie on two tiers."""
        return tuple(one for one in self.directories if self._is_ssd(one.path) and one.health.cause is None)

    def _homes(self) -> list[LogDirectory]:
        """The directories that are online and take new logs."""
        online = (one for one in self.directories if one.health.cause is None)
        return [one for one in online if not self._tiers or self._is_ssd(one.path)]

    def bytes_on_hdd(self, path: str) -> dict[TopicPartition, int]:
        """Of each log that has its home on an SSD: the size of its segments in this directory, on an HDD."""
        found: dict[TopicPartition, int] = {}
        for home in self.directories if self._tiers and not self._is_ssd(path) else ():
            for partition, log in home.logs.items():
                if isinstance(log, TieredLog) and (size_bytes := log.bytes_on_hdd(path)):
                    found[partition] = size_bytes
        return found

    def prefer(self, key: TopicPartition, path: str) -> None:
        """The log of this partition is to be made in this directory. Of many such wishes the oldest are forgotten."""
        self.preferred.pop(key, None)
        while len(self.preferred) >= PREFERRED_MAX:
            del self.preferred[next(iter(self.preferred))]
        self.preferred[key] = path

    def lost_with(self, directory: LogDirectory) -> list[TopicPartition]:
        """The partitions that must not be served any more since this directory, or a log of it, went offline. What
        other logs had there alone is lost."""
        if directory.health.cause is None:
            return directory.offline()
        return directory.offline() + [
            partition
            for home in self.directories
            for store in home.stores
            if store.path == directory.path
            for partition, log in home.logs.items()
            if isinstance(log, TieredLog) and not log.hdd_lost(store)
        ]

    def _producer_states(self) -> Iterator[ProducerStates]:
        for directory in self.directories:
            for log in directory.logs.values():
                if (known := log.known_producers) is not None:
                    yield known

    def _open(
        self,
        disk: Disk,
        path: str,
        wall_ms: Callable[[], int],
        unusable: OSError | None,
        stores: Sequence[HddStore] = (),
        superseded: Collection[TopicPartition] = (),
    ) -> LogDirectory:
        def failed(cause: Exception) -> None:
            for heard in self.of_failures if made else ():
                heard(made[0], cause)

        made: list[LogDirectory] = []
        added = self.producers.added
        made.append(LogDirectory(disk, path, self._settings_of, wall_ms, failed, unusable, added, stores, superseded))
        return made[0]

    def directory_of(self, topic: str, index: int) -> LogDirectory | None:
        """The directory that holds the partition, also when it is offline."""
        key = (topic, index)
        for directory in self.directories:
            if key in directory.logs:
                return directory
        return None

    def get(self, topic: str, index: int) -> PartitionLog | None:
        """Its log, whether it can be trusted or not; None if it is nowhere."""
        directory = self.directory_of(topic, index)
        return None if directory is None else directory.logs[topic, index]

    def plan(
        self,
        wanted: Sequence[tuple[TopicPartition, bytes, bool]],
        planned: dict[LogDirectory, dict[TopicPartition, bytes]],
    ) -> set[TopicPartition]:
        """Adds those of these partitions (with the topic id, and whether it is new to the cluster) that have no log yet
        and may have one, by the directory where it is to be made. Returns them."""
        added: set[TopicPartition] = set()
        all_online, homes = self._all_online, self._homes()
        for key, topic_id, is_new in wanted:
            if any(key in those for those in planned.values()):
                added.add(key)  # named twice
                continue
            may_be_made = bool(homes) and (all_online or is_new or key in self._nowhere)
            if may_be_made and self.directory_of(*key) is None and self._why_unopened(key) is None:
                planned.setdefault(self._home_for(key, homes, planned), {})[key] = topic_id
                added.add(key)
        return added

    def make(
        self,
        logs: Mapping[LogDirectory, Mapping[TopicPartition, bytes]],
        made: Callable[[Collection[TopicPartition]], None],
    ) -> Steps:
        """Makes the files of new logs, by jobs in each directory; `get_or_create` finds them then. `made` is called
        with those of a job as soon as they are there, or can't be made: then `get_or_create` raises the error once,
        since the partition must not come to lie in a second directory."""
        self._not_made.clear()
        yield from together([self._make(one, those, made) for one, those in logs.items()], self.drive)

    def _make(
        self,
        directory: LogDirectory,
        those: Mapping[TopicPartition, bytes],
        made: Callable[[Collection[TopicPartition]], None],
    ) -> Steps:
        silent: DeviceUnavailable | None = None
        keys = list(those)
        for some in (keys[first : first + SLICE] for first in range(0, len(keys), SLICE)):
            try:
                if silent is not None:
                    yield None
                    raise silent
                if not self._all_online:
                    directory.note_made(some)
                yield from self._change(directory, directory.making({key: those[key] for key in some}))
            except (LogOffline, OutOfResources, DeviceUnavailable) as error:
                silent = error if isinstance(error, DeviceUnavailable) else None
                missing = set(some) - directory.logs.keys()
                self._not_made.update(dict.fromkeys(missing, error))
                self._nowhere.update(missing if not isinstance(error, LogOffline) else ())
                for key in missing if isinstance(error, OutOfResources) else missing & directory.unopened.keys():
                    self._begun[key] = directory.path
            for key in directory.logs.keys() & set(some):
                self._is_made(key)
            made(some)

    def _change(self, directory: LogDirectory, change: LogsChange) -> Steps:
        """Raises LogOffline, OutOfResources, DeviceUnavailable."""
        try:
            yield Job(change, directory.device, order=directory.path, what=change.what)
        except DeviceUnavailable as error:
            directory.unanswered(change, error)
            for heard in self.of_silences:
                heard(directory)
            raise
        change.finish()

    def _home_for(
        self,
        key: TopicPartition,
        homes: Sequence[LogDirectory],
        planned: Mapping[LogDirectory, Collection[TopicPartition]],
    ) -> LogDirectory:
        """Where the log is to be made: as was asked for, or, of those whose devices answer, where the fewest are, as
        Kafka's broker does."""
        path = self._begun.get(key) or self.preferred.get(key)
        fewest = min(homes, key=lambda one: (one.is_silent, len(one.logs) + len(planned.get(one, ()))))
        return next((one for one in homes if one.path == path), fewest)

    def _why_unopened(self, key: TopicPartition) -> LogOffline | DeviceUnavailable | None:
        for one in self.directories:
            if (cause := one.unopened.get(key)) is not None:
                return cause if isinstance(cause, DeviceUnavailable) else LogOffline(one.path, cause)
        return None

    def get_or_create(self, key: TopicPartition, topic_id: bytes = NO_TOPIC_ID, *, is_new: bool = True) -> PartitionLog:
        """LogOffline: it lies in a directory that is offline, or all of them are. One that is not new to the cluster
        may lie in any directory that is offline, and then none is made. DeviceUnavailable: see `make`."""
        not_made = self._not_made.pop(key, None)
        if not_made is not None:
            raise not_made
        directory = self.directory_of(*key)
        if directory is None:
            if (why := self._why_unopened(key)) is not None:
                raise why
            homes = self._homes()
            if not homes or not (is_new or key in self._nowhere):
                for one in self.directories:
                    one.health.check()
            directory = self._home_for(key, homes, {})
            if not self._all_online:
                directory.note_made((key,))
        log = directory.create(key, topic_id)
        self._is_made(key)
        log.health.check()
        return log

    def _is_made(self, key: TopicPartition) -> None:
        self._nowhere.discard(key)
        self._begun.pop(key, None)
        self.preferred.pop(key, None)

    def delete_all(self, keys: Sequence[TopicPartition]) -> Generator[Yielded, Any, dict[TopicPartition, StorageError]]:
        """Those that are nowhere are passed over. Returns those that are not deleted, with the reason."""
        by_directory: dict[LogDirectory, list[TopicPartition]] = {}
        failed: dict[TopicPartition, StorageError] = {}
        for key in keys:
            if (directory := self.directory_of(*key)) is not None:
                by_directory.setdefault(directory, []).append(key)
                self._is_made(key)  # it may have been late
            elif isinstance(why := self._why_unopened(key), DeviceUnavailable):
                failed[key] = why
        yield from together([self._delete(one, those, failed) for one, those in by_directory.items()], self.drive)
        return failed

    def _delete(
        self, directory: LogDirectory, those: Sequence[TopicPartition], failed: dict[TopicPartition, StorageError]
    ) -> Steps:
        try:
            for key in those:
                if (log := directory.logs.get(key)) is not None:
                    yield from until_cached(log, log.settle)
            directory.health.check()
            yield from self._change(directory, directory.retiring([key for key in those if key in directory.logs]))
        except (LogOffline, OutOfResources, DeviceUnavailable) as error:
            offline = isinstance(error, LogOffline)
            left = directory.logs.keys() | directory.unopened.keys()
            failed.update({key: error for key in those if offline or key in left})

    def set_aside(self, topic: str, index: int) -> None:
        """Remove the partition but keep its files, under another name; no-op if it is in no directory. Raises
        LogOffline."""
        directory = self.directory_of(topic, index)
        if directory is not None:
            directory.set_aside((topic, index))

    def kept_high_watermark(self, topic: str, index: int) -> int:
        """As last written to its directory's checkpoint; 0 if it never was."""
        directory = self.directory_of(topic, index)
        return 0 if directory is None else directory.high_watermarks.get((topic, index), 0)

    def write_high_watermarks(self, now: Mapping[TopicPartition, int]) -> None:
        """The checkpoint of each directory that is online. A log that `now` does not name keeps what was written."""
        for directory in self.directories:
            if directory.health.cause is None:
                kept = directory.high_watermarks
                at = {key: now.get(key, kept.get(key, 0)) for key in directory.logs}
                if at != kept:
                    directory.write_high_watermarks(at)

    def settings_changed(self, topics: Collection[str] | None) -> None:
        """Apply what `settings_of` returns now to the logs of these topics (None: of all)."""
        named = None if topics is None else frozenset(topics)
        for directory in self.directories:
            for (topic, _), log in directory.logs.items():
                if named is None or topic in named:
                    log.settings = self._settings_of(topic)

    def close(self) -> None:
        """Shut down every online directory cleanly, then raise the first LogOffline, if any."""
        first_error: LogOffline | None = None
        for directory in self.directories:
            try:
                directory.close()
            except LogOffline as offline:
                first_error = first_error or offline
        if first_error is not None:
            raise first_error


def _in_two(disk: Disk, paths: Sequence[str]) -> tuple[dict[str, set[TopicPartition]], dict[str, set[TopicPartition]]]:
    """By directory: the logs there that were about to take the place of one in another directory, which has it still;
    and those of replicas that were made anew in another directory, while this one was offline.

    Raises DuplicateLogs for any other partition that is in two, before a directory is opened, which removes the mark
    of a clean shutdown and repairs logs."""
    found: dict[TopicPartition, str] = {}
    superseded: dict[str, set[TopicPartition]] = {}
    replaced: dict[str, set[TopicPartition]] = {}
    for path in paths:
        try:
            logs = {partition_of(name) for name in disk.names(path) if disk.is_directory(f"{path}/{name}")}
        except OSError:
            continue  # there is none yet, or it is offline from its opening on
        for key in logs:
            if key is None or (other := found.setdefault(key, path)) == path:
                continue
            moved = [one for one in (other, path) if key in _named(disk, one, MOVES)]
            made = [one for one in (other, path) if key in _named(disk, one, MADE)]
            if len(moved) == 1:
                given_up = moved[0]
                superseded.setdefault(given_up, set()).add(key)
            elif len(made) == 1:
                given_up = path if made[0] == other else other
                replaced.setdefault(given_up, set()).add(key)
            else:
                raise DuplicateLogs(f"{key[0]}-{key[1]}", (other, path))
            found[key] = path if given_up == other else other
    return superseded, replaced


def _set_aside(directory: LogDirectory, those: set[TopicPartition]) -> None:
    """Keep the files of replicas that were made anew in another directory, under other names."""
    for key in sorted(those & directory.logs.keys()):
        directory.health.warn(f"{directory.path}/{key[0]}-{key[1]} is set aside: its replica was made anew elsewhere")
        with suppress(LogOffline):
            directory.set_aside(key)


def _named(disk: Disk, path: str, name: str) -> Collection[TopicPartition]:
    try:
        return decode_offsets(f"{path}/{name}", disk.read(f"{path}/{name}"))
    except (OSError, CorruptLog):
        return ()
