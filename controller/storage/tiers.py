"""The HDD tier of logs whose home is on an SSD: where the copies lie, which must be there, and what is left over.

A log's home is its directory on the SSD, with its checkpoints and, as Kafka has them, the files of the segments that
the SSD holds. A log directory on an HDD keeps the copies of the log `TOPIC-PARTITION` in `TOPIC-PARTITION-tier`, under
the same names. A copy is written under names that end in `.copying` and is synced; the `.log` gets its own name last
of all, and that name is the mark of a copy that is complete.

The home's `tier-checkpoint` names the segments that an HDD alone has. It names them before the SSD's files are removed,
so that a start without that HDD knows that a part is missing and does not take the log for a shorter one. It also
says from which offset on an HDD is out of date, one that was offline when the log was truncated, and which files there
are of before a compaction.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import msgspec

from controller.storage.disk import ANY_DEVICE, Device, Disk, File, Health, Lock, NotCached, is_shortage
from controller.storage.errors import AlreadyLocked, CorruptLog, LogOffline, OutOfResources, SsdFull
from controller.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    base_offset_of,
    segment_path,
)
from controller.storage.transactions import TXN_INDEX_SUFFIX
from statemachines.log_segment import SEGMENT, Cached, OnlyCache, SegmentState, WithoutCache
from statemachines.tier_placement import Tier, admits, least_used

if TYPE_CHECKING:
    from controller.storage.batches import Bytes
    from controller.storage.settings import LogSettings

TIER_SUFFIX = "-tier"
COPYING = ".copying"
TIER_CHECKPOINT = "tier-checkpoint"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
"""Of the files that go with a segment's records, in the order in which they are copied."""

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(method: Callable[Concatenate[HddFile, P], R]) -> Callable[Concatenate[HddFile, P], R]:
    @wraps(method)
    def run(self: HddFile, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._store.health.check()
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            raise self._store.failure(error) from error

    return run


class HddFile:
    """A segment's file on an HDD. An OSError takes the HDD offline, and not the log: LogOffline of the HDD."""

    __slots__ = ("_file", "_store")

    def __init__(self, file: File, store: HddStore) -> None:
        self._file = file
        self._store = store

    def raw(self) -> File:
        """For other threads than the log's: an OSError of it goes to the store's `failure` there."""
        return self._file

    @_guarded
    def append(self, data: Bytes, rest: Bytes = b"") -> None:
        self._file.append(data, rest)

    @_guarded
    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    @_guarded
    def read_cached(self, position: int, length: int) -> bytes | None:
        return self._file.read_cached(position, length)

    def require_cached(self, position: int, length: int) -> None:
        self._file.require_cached(position, length)

    def keeping(self, position: int, length: int) -> NotCached:
        return self._file.keeping(position, length)

    @_guarded
    def size(self) -> int:
        return self._file.size()

    @_guarded
    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    @_guarded
    def sync(self) -> None:
        self._file.sync()

    def write_back(self, position: int, length: int) -> None:
        self._file.write_back(position, length)

    def fileno(self) -> int:
        return self._file.fileno()

    def held(self) -> File:
        return self if self._file.held() is self._file else self._file.held()

    def close(self) -> None:
        self._file.close()


class HddDisk:
    """The disk as the segments of an HDD use it: see HddFile. What a file that is missing means is the caller's."""

    def __init__(self, disk: Disk, store: HddStore) -> None:
        self._disk = disk
        self._store = store

    def _do(self, call: Callable[..., R], *args: object) -> R:
        self._store.health.check()
        try:
            return call(*args)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._store.failure(error) from error

    @property
    def no_wait(self) -> bool:
        return self._disk.no_wait

    @no_wait.setter
    def no_wait(self, value: bool) -> None:
        self._disk.no_wait = value

    def open(self, path: str) -> HddFile:
        return HddFile(self._do(self._disk.open, path), self._store)

    def read(self, path: str) -> bytes:
        return self._do(self._disk.read, path)

    def replace(self, path: str, data: bytes | Callable[[], bytes], durable: bool = True) -> None:
        self._do(self._disk.replace, path, data, durable)

    def replace_soon(self, path: str, data: bytes) -> None:
        self._do(self._disk.replace_soon, path, data)

    def replace_derived(self, path: str, content: Callable[[], bytes]) -> None:
        self._do(self._disk.replace_derived, path, content)

    def give_way(self) -> None:
        self._disk.give_way()

    def settle_derived(self, directory: str) -> None:
        self._disk.settle_derived(directory)

    def rename(self, path: str, new_path: str) -> None:
        self._do(self._disk.rename, path, new_path)

    def remove(self, path: str) -> None:
        self._do(self._disk.remove, path)

    def names(self, directory: str) -> Sequence[str]:
        return self._do(self._disk.names, directory)

    def is_directory(self, path: str) -> bool:
        return self._do(self._disk.is_directory, path)

    def make_directory(self, path: str) -> None:
        self._do(self._disk.make_directory, path)

    def sync_names(self, directory: str) -> None:
        self._do(self._disk.sync_names, directory)

    def sync_all(self, directories: Sequence[str]) -> None:
        self._do(self._disk.sync_all, directories)

    def device_of(self, path: str) -> Device:
        return self._disk.device_of(path)

    def ask(self, device: Device) -> None:
        self._disk.ask(device)

    def space(self, path: str) -> tuple[int, int]:
        return self._do(self._disk.space, path)

    def modified_ms(self, path: str) -> int:
        return self._do(self._disk.modified_ms, path)

    def lock(self, path: str) -> Lock:
        raise AlreadyLocked(f"{path}: the log directory of the HDD itself has the lock")


class HddStore:
    """A log directory on an HDD, as it keeps segments of logs that have their home elsewhere."""

    def __init__(self, disk: Disk, path: str, health: Health) -> None:
        self.path = path
        self.health = health
        self.disk: Disk = HddDisk(disk, self)
        self.raw = disk
        """For other threads than the log's: an OSError of it goes to `failure` there."""
        self.device = ANY_DEVICE
        self.answers = True
        """False: the device did not answer when it was asked last, and nothing is begun here."""
        self.logs = 0
        """With segments here."""

    @property
    def is_online(self) -> bool:
        return self.health.cause is None

    @property
    def is_usable(self) -> bool:
        """Segments and copies may begin here."""
        return self.is_online and self.answers

    def directory(self, home: str) -> str:
        return f"{self.path}/{home.rpartition('/')[2]}{TIER_SUFFIX}"

    def failure(self, error: Exception) -> Exception:
        """What to raise for an error that a file of this HDD met."""
        if isinstance(error, OSError) and is_shortage(error):
            return OutOfResources(self.path, error)
        return self.health.fail(error)


class SsdSpace:
    """How full the segments of logs make an SSD, as last measured and counted since. `capacity_bytes` 0: no limit."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.capacity_bytes = 0
        self.used_bytes = 0
        self.reserve_bytes = 0
        self.refused = 0
        """Appends that were refused."""
        self.wanted_bytes = 0
        """The largest of those that were refused since `wanted` was asked."""

    def wanted(self) -> int:
        wanted, self.wanted_bytes = self.wanted_bytes, 0
        return wanted

    @property
    def free_bytes(self) -> int:
        """What appends may take. Negative: the SSD is over its limit."""
        return self.capacity_bytes - self.reserve_bytes - self.used_bytes if self.capacity_bytes else 2**63 - 1

    def take(self, size_bytes: int) -> None:
        """Count an append to the SSD. Raises SsdFull: it is refused."""
        if self.capacity_bytes and not admits(self.capacity_bytes - self.used_bytes, size_bytes, self.reserve_bytes):
            self.refused += 1
            self.wanted_bytes = max(self.wanted_bytes, size_bytes)
            limit = self.capacity_bytes - self.reserve_bytes
            why = f"the SSD is full: {self.used_bytes} bytes of {limit} are used, and {size_bytes} are to be appended"
            raise SsdFull(self.path, OSError(errno.ENOSPC, why))
        self.used_bytes += size_bytes


class TierCheckpoint:
    """The home's `tier-checkpoint`: version 0, then a line for each segment that an HDD alone has (`segment OFFSET
    PATH`), for each HDD that is out of date (`stale OFFSET PATH`), and for each HDD that may still have a segment's
    files of before a compaction (`replaced OFFSET PATH`). Raises CorruptLog."""

    def __init__(self, disk: Disk, home: str) -> None:
        self._disk = disk
        self.path = f"{home}/{TIER_CHECKPOINT}"
        self.on_hdd: dict[int, str] = {}
        self.stale: dict[str, int] = {}
        self.replaced: set[tuple[int, str]] = set()
        try:
            text = disk.read(self.path)
        except FileNotFoundError:
            return
        self._decode(text)

    def _decode(self, data: bytes) -> None:
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        if lines[0] != "0" or lines[-1] != "":
            raise CorruptLog(self.path, 1, f"version and an end of line expected, got {lines[0]!r}")
        for number, line in enumerate(lines[1:-1], 2):
            kind, _, rest = line.partition(" ")
            offset, _, path = rest.partition(" ")
            if kind not in ("segment", "stale", "replaced") or not offset.isdecimal() or not path:
                kinds = "'segment OFFSET PATH', 'stale OFFSET PATH' or 'replaced OFFSET PATH'"
                raise CorruptLog(self.path, number, f"{kinds} expected, got {line!r}")
            if kind == "stale":
                self.stale[path] = int(offset)
            elif kind == "segment":
                self.on_hdd[int(offset)] = path
            else:
                self.replaced.add((int(offset), path))

    def encode(self) -> bytes:
        lines = [f"segment {base} {path}" for base, path in sorted(self.on_hdd.items())]
        lines += [f"stale {offset} {path}" for path, offset in sorted(self.stale.items())]
        lines += [f"replaced {base} {path}" for base, path in sorted(self.replaced)]
        return "\n".join(["0", *lines, ""]).encode("utf-8", "surrogateescape")

    def write(self) -> None:
        """It is on the disk when this returns."""
        self._disk.replace(self.path, self.encode())


class LogTiers:
    """The HDD tier of one log. `append_to`: where its next segment begins. `stores` may be those of many logs."""

    def __init__(self, disk: Disk, home: str, stores: Sequence[HddStore], ssd: SsdSpace | None = None) -> None:
        self._disk = disk
        self.home = home
        self.stores = stores
        self.ssd = ssd or SsdSpace(home)
        self.append_to = Tier.SSD
        self.answered_ms = 0
        """When the SSD has answered last, of what the log asked it by a job."""
        self.checkpoint = TierCheckpoint(disk, home)
        self._preferred: HddStore | None = None
        self._changed: dict[str, HddStore] = {}
        """The HDDs on which names were changed since they were last synced."""

    # At a start

    def found(self, hot: dict[int, int], warn: Callable[[str], None]) -> dict[int, HddStore]:
        """The store of each segment of which an HDD has a complete copy. `hot`: the size of each segment that the SSD
        has, by base offset. Removes what an interrupted copy or removal left, and copies that are out of date."""
        found: dict[int, HddStore] = {}
        self.remove_replaced()
        for store in self.stores:
            if store.is_online:
                self._look_into(store, hot, found, warn)
        self.sync_names()
        there = {base: store.path for base, store in found.items() if base not in hot}
        if not there.items() <= self.checkpoint.on_hdd.items():
            self.checkpoint.on_hdd.update(there)
            self.checkpoint.write()
        return found

    def _look_into(
        self, store: HddStore, hot: dict[int, int], found: dict[int, HddStore], warn: Callable[[str], None]
    ) -> None:
        directory = store.directory(self.home)
        names: Sequence[str] = ()
        with suppress(FileNotFoundError):
            names = store.disk.names(directory)
        bases = sorted(base for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None)
        keep: set[int] = set()
        hot_names = frozenset(self._disk.names(self.home))
        for place, base in enumerate(bases):
            following = bases[place + 1] if place + 1 < len(bases) else None
            is_whole = base not in hot or self._has_indexes(base, hot_names, names)
            if is_whole and self._is_valid(store, base, following, hot, found, warn):
                keep.add(base)
                found[base] = store
        if keep and self._preferred is None:
            self._prefer(store)
        stems = {f"{base:020d}" for base in keep}
        for name in names:
            if name.partition(".")[0] not in stems or name.endswith((COPYING, ".tmp")):
                store.disk.remove(f"{directory}/{name}")
                self._changed[directory] = store
        if store.path in self.checkpoint.stale:
            self.sync_names()
            del self.checkpoint.stale[store.path]
            self.checkpoint.write()

    def _is_valid(
        self,
        store: HddStore,
        base: int,
        following: int | None,
        hot: dict[int, int],
        found: dict[int, HddStore],
        warn: Callable[[str], None],
    ) -> bool:
        """Whether a `.log` on an HDD is the copy of a segment that the SSD has, or one that an HDD alone is to have."""
        stale_from = self.checkpoint.stale.get(store.path)
        if stale_from is not None and base >= stale_from:
            return False
        if base in hot:
            if base in found or (stale_from is not None and (following is None or following > stale_from)):
                return False
            path = segment_path(store.directory(self.home), base, LOG_SUFFIX)
            size = self._size(store, path)
            if size != hot[base]:
                warn(f"{path}: {size} bytes, where the SSD has {hot[base]}; it is removed")
            return size == hot[base]
        recorded = self.checkpoint.on_hdd.get(base)
        if recorded is None:
            return False  # an interrupted removal: the SSD's was removed with it
        return recorded == store.path or (base not in found and not self._has(recorded, base))

    def _has(self, path: str, base: int) -> bool:
        """Whether the HDD with this log directory is there and has the segment."""
        store = next((one for one in self.stores if one.path == path and one.is_online), None)
        if store is not None:
            with suppress(FileNotFoundError):
                return store.disk.modified_ms(segment_path(store.directory(self.home), base, LOG_SUFFIX)) >= 0
        return False

    def _has_indexes(self, base: int, hot_names: Container[str], names: Container[str]) -> bool:
        """Whether a copy has what belongs to it. One that was being removed may have come back in part."""
        wanted = dict.fromkeys((INDEX_SUFFIX, TIME_INDEX_SUFFIX), True)
        wanted[TXN_INDEX_SUFFIX] = f"{base:020d}{TXN_INDEX_SUFFIX}" in hot_names
        return all((f"{base:020d}{suffix}" in names) == there for suffix, there in wanted.items())

    def _size(self, store: HddStore, path: str) -> int:
        file = store.disk.open(path)
        try:
            return file.size()
        finally:
            file.close()

    # Names on HDDs

    def touched(self, segment: Segment) -> None:
        """Names of its files change, if it is on an HDD."""
        if segment.store is not None and segment.is_on_hdd:
            self._changed[segment.store.directory(self.home)] = segment.store

    def sync_names(self) -> None:
        """What was created and removed on HDDs is on them when this returns."""
        while self._changed:
            directory, store = next(iter(self._changed.items()))
            if store.is_online:
                try:  # noqa: SIM105 - once a segment, no hot path
                    store.disk.sync_names(directory)
                except FileNotFoundError:
                    pass
            del self._changed[directory]

    def open_store(self) -> HddStore | None:
        """The HDD that takes this log's next segment or copy, with the directory made; None if none is usable."""
        if self._preferred is None or not self._preferred.is_usable:
            may_take = [store.is_usable for store in self.stores]
            place = least_used([store.logs for store in self.stores], may_take)
            if place is None:
                return None
            self._prefer(self.stores[place])
        store = self._preferred
        assert store is not None
        directory = store.directory(self.home)
        if not store.disk.is_directory(directory):
            store.disk.make_directory(directory)
            store.disk.sync_names(store.path)
        return store

    def _prefer(self, store: HddStore) -> None:
        self._preferred = store
        store.logs += 1

    # What only an HDD has

    def require(self, base_offset: int, store: HddStore) -> None:
        """From here on, durably, this segment is sought on the HDD at a start."""
        if self.checkpoint.on_hdd.get(base_offset) != store.path:
            self.checkpoint.on_hdd[base_offset] = store.path
            self.checkpoint.write()

    def release(self, base_offset: int) -> None:
        """Before the files of this segment are removed: a start does not miss it."""
        if self.checkpoint.on_hdd.pop(base_offset, None) is not None:
            self.checkpoint.write()

    def drop_copy(self, segment: Segment) -> None:
        """Remove the segment's copy, complete or not; what the SSD has is all there is when this returns."""
        store = segment.store
        if store is not None and store.is_online:
            self.remove_files(store, segment.base_offset)
            self.sync_names()
        segment.store = None

    def remove_files(self, store: HddStore, base_offset: int, *, unfinished_only: bool = False) -> None:
        """The mark first: the rest is removed at the next start then."""
        directory = store.directory(self.home)
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            path = segment_path(directory, base_offset, suffix)
            if not unfinished_only:
                store.disk.remove(path)
            store.disk.remove(path + COPYING)
        self._changed[directory] = store

    def truncating(self, offset: int) -> None:
        """Before a truncation to `offset`: an HDD that is offline now must not bring back what is cut off."""
        wrong = [
            store.path
            for store in self.stores
            if not store.is_online and self.checkpoint.stale.get(store.path, offset + 1) > offset
        ]
        if wrong:
            self.checkpoint.stale.update(dict.fromkeys(wrong, offset))
            self.checkpoint.write()

    # Compaction

    def before_replacing(self, group: Sequence[Segment]) -> None:
        """Before a compacted segment, written on the SSD, takes the place of these: a copy of one of them must not be
        taken for its copy. Those are removed durably; an HDD that is offline is out of date from here on."""
        for segment in group:
            if not segment.is_on_hdd:
                self.drop_copy(segment)
                move(segment, OnlyCache)
        self.truncating(group[0].base_offset)

    def replaced(self, base_offset: int, end: int) -> None:
        """The compacted segment of these offsets is durably on the SSD: what HDDs have of them is sought no more."""
        checkpoint = self.checkpoint
        on_hdd, replaced = checkpoint.on_hdd, checkpoint.replaced
        gone = {base: path for base, path in on_hdd.items() if base_offset <= base < end}
        if not gone:
            return
        checkpoint.on_hdd = {base: path for base, path in on_hdd.items() if base not in gone}
        if base_offset in gone:  # its name is the new segment's too
            checkpoint.replaced = {*replaced, (base_offset, gone[base_offset])}
        try:
            checkpoint.write()
        except OSError:
            checkpoint.on_hdd, checkpoint.replaced = on_hdd, replaced
            raise

    def remove_group(self, group: Sequence[Segment]) -> None:
        """Remove the files of what a compacted segment has replaced. What an HDD keeps of them, the next start that
        finds that HDD removes."""
        on_hdds = [(segment.base_offset, segment.store) for segment in group if segment.is_on_hdd]
        for segment in group:
            move(segment, SegmentState.Deleting)
            if segment.is_on_hdd:
                self._disk.remove(segment_path(self.home, segment.base_offset, SNAPSHOT_SUFFIX))
            else:
                segment.remove()
        for base_offset, store in on_hdds:
            if store is not None and store.is_online:
                with suppress(LogOffline, OutOfResources):
                    self.remove_files(store, base_offset)

    def remove_replaced(self) -> None:
        """Remove the files that have a compacted segment's name, where their HDDs are online, and forget them."""
        here = {store.path: store for store in self.stores if store.is_online}
        found = [(base, path) for base, path in sorted(self.checkpoint.replaced) if path in here]
        if not found:
            return
        for base, path in found:
            self.remove_files(here[path], base)
        self.sync_names()
        self.checkpoint.replaced.difference_update(found)
        self.checkpoint.write()

    # Segments

    def leaves(self, *, is_on_hdd: bool) -> bool:
        """Whether what is appended next belongs on another tier than the active segment's."""
        if is_on_hdd:
            return self.append_to is Tier.SSD
        return self.append_to is Tier.HDD and any(store.is_usable for store in self.stores)

    def reopen(self, segment: Segment) -> None:
        """Make it the log's last, which is appended to where it is. A copy of it is removed first, durably."""
        if segment.is_on_hdd:
            move(segment, SegmentState.ActiveOnHdd)
            return
        self.drop_copy(segment)
        move(segment, SegmentState.Active)

    def remove(self, segment: Segment) -> None:
        """Remove its files from every tier. Which HDD had it is known to the checkpoint no more before that."""
        move(segment, SegmentState.Deleting)
        store, segment.store = segment.store, None
        if store is None:
            segment.remove()
            return
        if segment.disk is not store.disk:
            segment.remove()
        else:
            self.release(segment.base_offset)
            self._disk.remove(segment_path(self.home, segment.base_offset, SNAPSHOT_SUFFIX))
        if store.is_online:
            self.remove_files(store, segment.base_offset)


def retire_on_hdds(stores: Iterable[HddStore], home: str, ending: str) -> None:
    """What the HDDs keep of a log gets the ending of a directory that is deleted or set aside. The HDD's own log
    directory purges it."""
    for store in stores:
        directory = store.directory(home)
        if store.is_online and store.disk.is_directory(directory):
            store.disk.rename(directory, f"{directory}{ending}")
            store.disk.sync_names(store.path)


class Unavailable(msgspec.Struct, frozen=True):
    """The first part of a log, up to `end_offset`, is on an HDD that is lost: nothing of it can be read."""

    first_offset: int
    end_offset: int
    path: str

    def check(self, offset: int) -> None:
        """Raise LogOffline for a read from `offset`."""
        if offset < self.end_offset:
            lost = OSError(errno.EIO, f"offsets {self.first_offset} to {self.end_offset} are on an HDD that is lost")
            raise LogOffline(self.path, lost)


def move(segment: Segment, state: SegmentState) -> None:
    """Raises InvalidTransition."""
    if segment.state is not state:
        SEGMENT.require(segment.state, state, lambda: segment.path)
        segment.state = state


def add_tiers(
    segments: list[Segment],
    tiers: LogTiers,
    settings: LogSettings,
    log_start_offset: int,
    now_ms: int,
    warn: Callable[[str], None],
) -> Unavailable | None:
    """Add to the SSD's segments those that HDDs have, and give all their states.

    Returns what is missing at the log's beginning. Raises LogOffline if something is missing in its middle or at its
    end, or of a compacted log: such a log must not be served.
    """
    found = tiers.found({segment.base_offset: segment.size_bytes for segment in segments}, warn)
    for segment in segments:
        tiers.release(segment.base_offset)  # an eviction that had not come to the SSD's files
        segment.store = found.pop(segment.base_offset, None)
        segment.state = OnlyCache if segment.store is None else Cached
    for base, store in found.items():
        directory = store.directory(tiers.home)
        segment = Segment(store.disk, directory, base, settings.index_interval_bytes, now_ms)
        segment.store, segment.state = store, WithoutCache
        segments.append(segment)
    segments.sort(key=lambda one: one.base_offset)
    for segment, after in pairwise(segments):
        segment.next_offset = after.base_offset
    return _unavailable(segments, tiers, settings, log_start_offset, warn)


def _unavailable(
    segments: Sequence[Segment],
    tiers: LogTiers,
    settings: LogSettings,
    log_start_offset: int,
    warn: Callable[[str], None],
) -> Unavailable | None:
    there = {segment.base_offset for segment in segments}
    missing = {base: path for base, path in sorted(tiers.checkpoint.on_hdd.items()) if base not in there}
    if not missing:
        return None
    first_there = segments[0].base_offset if segments else -1
    first, last = min(missing), max(missing)
    is_needed = settings.compacted and log_start_offset < first_there
    if last > first_there or is_needed:
        cause = OSError(errno.ENOENT, f"the segment {last} is missing on the HDD {missing[last]}")
        raise LogOffline(tiers.home, cause)
    if log_start_offset >= first_there:
        return None  # they were deleted by request
    warn(f"{tiers.home}: offsets {first} to {first_there} are on the HDD {missing[last]}, which is missing or lost")
    return Unavailable(max(first, log_start_offset), first_there, missing[last])


class SegmentPlace(msgspec.Struct, frozen=True):
    """Where a segment of a log on two tiers lies, as its files say. `hdd`: the HDD with its copy, or with all of it;
    `copied_bytes`: of its records, what is on the HDD. `state` is Lost if no file has what the checkpoint names."""

    base_offset: int
    state: SegmentState
    size_bytes: int
    hdd: str | None = None
    copied_bytes: int = 0


def segment_places(
    on_ssd: dict[str, int], on_hdds: dict[str, dict[str, int] | None], checkpoint: TierCheckpoint
) -> list[SegmentPlace]:
    """Return the segments of a log by their offset, from the names and sizes of its files in its home and in the
    directories of its copies; None for an HDD that can't be read. Nothing is opened or changed, so it holds of a
    running broker's files too, at some moment."""

    def logs(files: dict[str, int], ending: str = "") -> dict[int, int]:
        ends = LOG_SUFFIX + ending
        found = {base_offset_of(name.removesuffix(ending), LOG_SUFFIX): name for name in files if name.endswith(ends)}
        return {base: files[name] for base, name in found.items() if base is not None}

    hot = logs(on_ssd)
    readable = {path: files for path, files in on_hdds.items() if files is not None}
    copies = {(path, base): size for path, files in readable.items() for base, size in logs(files).items()}
    copying = {base: (path, size) for path, files in readable.items() for base, size in logs(files, COPYING).items()}
    copied = {base: path for path, base in copies if base in hot and copies[path, base] == hot[base]}
    alone = {base: path for base, path in checkpoint.on_hdd.items() if base not in hot}
    last = max([*hot, *alone], default=-1)
    places = []
    for base in sorted([*hot, *alone]):
        if base in alone:
            path = alone[base]
            held = SegmentState.ActiveOnHdd if base == last else WithoutCache
            size = copies.get((path, base), 0)
            state = held if (path, base) in copies else SegmentState.Lost
            places.append(SegmentPlace(base, state, size, path, size))
        elif base in copied:
            places.append(SegmentPlace(base, Cached, hot[base], copied[base], hot[base]))
        elif base == last:
            places.append(SegmentPlace(base, SegmentState.Active, hot[base]))
        elif base in copying:
            places.append(SegmentPlace(base, SegmentState.Copying, hot[base], *copying[base]))
        else:
            places.append(SegmentPlace(base, OnlyCache, hot[base]))
    return places
