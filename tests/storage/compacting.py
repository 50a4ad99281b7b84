"""The life of a compacted log in memory, with crashes, truncations and failures in the middle of cleanings.

`Compacting.check` compares what a reader of the log gets with everything that was appended; it shares no code with the
cleaner. `run(seed)` raises AssertionError where they part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogSettings, PartitionLog
from controller.storage.batches import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    decode_records,
    encode_batch,
    encode_record,
    headers_of,
)
from controller.storage.compaction import CleanerLimits, Cleaning
from controller.storage.compaction_rules import dirty_range, first_dirty_offset, is_due
from controller.storage.compression import compressed, decompressing
from controller.storage.log_validator import done
from controller.storage.transactions import TRANSACTIONAL, Marker, Origin, encode_marker
from tests.storage.batches import Clock

PARTITION = ("compacted", 0)
SETTINGS = LogSettings(
    segment_bytes=1500,
    index_interval_bytes=200,
    retention_ms=-1,
    compacted=True,
    min_cleanable_dirty_ratio=0.1,
    delete_retention_ms=500,
)
LIMITS = CleanerLimits(keys_max=12, piece_bytes=300)


@dataclass(frozen=True)
class Written:
    """A record of the history. `producer_id` -1: it is of no producer. `aborted` None: its transaction is open."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    producer_id: int = -1
    aborted: bool | None = False


def check_compacted(
    read: Sequence[Record],
    history: Sequence[Written],
    bounds: tuple[int, int, int],
    kept_ms: int,
    now_ms: int,
) -> None:
    """What a reader gets of a compacted log, against all that was ever appended.

    `bounds`: the log's start, up to where it was cleaned, and up to where a cleaning that was ended may have come.
    Below the second each key is there once; above the third, everything is there; each key's last value is.
    `kept_ms`: how long a tombstone is kept at least.
    """
    start, cleaned_to, compacted_to = bounds
    offsets = [one.offset for one in read]
    assert offsets == sorted(set(offsets)), f"offsets do not ascend: {offsets}"
    appended = {one.offset: one for one in history}
    for one in read:
        was = appended.get(one.offset)
        assert was is not None, f"invented: {one}"
        assert (was.key, was.value, was.timestamp_ms) == (one.key, one.value, one.timestamp_ms), f"{one}, was {was}"
    there = set(offsets)
    for was in history:
        if was.offset >= max(compacted_to, start) and was.aborted is not True:
            assert was.offset in there, f"lost above {compacted_to}, where no cleaning was: {was}"
    seen: set[bytes] = set()
    for was in (appended[offset] for offset in offsets if offset < cleaned_to):
        assert was.aborted is False, f"of an aborted transaction: {was}"
        assert was.key not in seen, f"not the only record of its key below {cleaned_to}: {was}"
        seen.add(was.key)
    last = {was.key: was for was in history if was.offset < compacted_to and was.aborted is False}
    for key, was in last.items():
        may_be_dropped = was.value is None and now_ms >= was.timestamp_ms + kept_ms
        assert was.offset in there or may_be_dropped or was.offset < start, f"the last value of {key!r} is gone: {was}"


def records_in(data: bytes) -> tuple[list[BatchHeader], list[Record]]:
    """The batches, and the records that are no markers."""
    headers = headers_of(data)
    records: list[Record] = []
    position = 0
    for header in headers:
        payload = memoryview(data)[position + HEADER_BYTES : position + header.size_bytes]
        if header.codec and header.record_count:
            payload = done(decompressing(header.codec, payload, 1 << 20))
        if not header.is_control:
            records += decode_records(header, bytes(payload))
        position += header.size_bytes
    return headers, records


class Compacting:
    def __init__(self, seed: int, settings: LogSettings = SETTINGS, limits: CleanerLimits = LIMITS) -> None:
        self.draw = random.Random(seed)
        self.disk = MemoryDisk()
        self.clock = Clock()
        self.settings = settings
        self.limits = limits
        self.history: list[Written] = []
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        """By producer id, the offset from which its open transaction goes on."""
        self.synced = 0
        self.cleanings = 0
        self.is_unclean = False
        self.compacted_to = 0
        """Below it records may have been dropped for later ones."""
        self.directory = self._open()
        self.directory.create(PARTITION)

    def _open(self) -> LogDirectory:
        directory = LogDirectory(self.disk, "logs", lambda _: self.settings, self.clock)
        assert directory.health.cause is None, directory.health.cause
        return directory

    def _reopen(self) -> None:
        self.directory = self._open()

    @property
    def log(self) -> PartitionLog:
        return self.directory.logs[PARTITION]

    # One step

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.clock.now_ms += self.draw.randint(0, 60)
        choice = self.draw.random()
        if choice < 0.62:
            self.append()
        elif choice < 0.72:
            self.end_transaction()
        elif choice < 0.9:
            self.clean()
        elif choice < 0.94:
            self.log.flush()
            self.synced = self.log.log_end_offset
        elif choice < 0.96:
            self.truncate()
        elif choice < 0.98:
            self.directory.close()
            self._reopen()
        else:
            self.crash()
        self.check()

    def append(self) -> None:
        count = self.draw.choice([1, 1, 2, 3, 6])
        producer = self.draw.choice([-1, -1, 1, 2, 3, 4])
        transactional = producer in (3, 4)
        base = self.log.log_end_offset
        records = []
        for number in range(count):
            key = b"key-%d" % self.draw.randint(0, 8)
            if self.draw.random() < 0.3:
                key += b"-and more than sixteen bytes"
            value = None if self.draw.random() < 0.2 else b"%d" % (base + number)
            records.append(Record(number, self.clock.now_ms - self.draw.randint(0, 20), key, value))
        codec = self.draw.choice([0, 0, 1, 2, 3, 4])
        first = records[0]
        plain = b"".join(encode_record(one, 0, first.timestamp_ms) for one in records)
        batch = encode_batch(
            records,
            attributes=codec | (TRANSACTIONAL if transactional else 0),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=self.sequences.get(producer, 0) if producer >= 0 else -1,
            payload=compressed(codec, plain),
        )
        appended = self.log.append_as_leader(batch, 1)
        assert (appended.base_offset, appended.duplicate) == (base, False)
        if producer >= 0:
            self.sequences[producer] = self.sequences.get(producer, 0) + count
        aborted = None if transactional else False
        if transactional:
            self.open.setdefault(producer, base)
        self.history += [
            Written(base + one.offset, one.timestamp_ms, one.key or b"", one.value, producer, aborted)
            for one in records
        ]

    def end_transaction(self) -> None:
        if not self.open:
            return
        producer = self.draw.choice(sorted(self.open))
        first = self.open.pop(producer)
        commits = self.draw.random() < 0.5
        marker = encode_marker(producer, 0, Marker(commits, 0), self.clock.now_ms)
        checked = done(self.log.checking(marker, Origin.COORDINATOR))
        self.log.append_checked(checked, 1, Origin.COORDINATOR)
        self.history = [
            replace(one, aborted=not commits)
            if one.producer_id == producer and one.offset >= first and one.aborted is None
            else one
            for one in self.history
        ]

    def cleaning(self) -> Cleaning | None:
        log = self.log
        if log.is_bare:
            return None
        end = log.log_end_offset
        first = first_dirty_offset(log.cleaned_to, log.log_start_offset, end)
        limit = log.last_stable_offset(end)
        dirty = dirty_range(log.segments, first, limit, self.settings, self.clock())
        return self.directory.cleaning(PARTITION, dirty, self.limits) if is_due(dirty, self.settings) else None

    def clean(self, stop_after: int | None = None) -> bool:
        """Whether a cleaning came to its end. It may be ended by a crash or a truncation."""
        cleaning = self.cleaning()
        if cleaning is None:
            return False
        is_first = self.log.cleaned_to < 0
        trouble = self.draw.random()
        stop_after = self.draw.randint(0, 60) if stop_after is None else stop_after
        steps, high_watermark = cleaning.steps(), self.log.log_end_offset
        try:
            work = next(steps)
            if is_first:
                self.directory.checkpoint_cleaner_points()
            while True:
                if stop_after == 0 and trouble < 0.25:
                    self.crash()
                    return False
                if stop_after == 0 and trouble < 0.45:
                    self.truncate()
                    if cleaning.is_settled:
                        return False
                if stop_after % 3 == 0 and trouble < 0.5:
                    self.append()
                stop_after -= 1
                self.beside()
                if cleaning.is_settled:
                    return False
                result = work()
                if cleaning.done.written:
                    self.compacted_to = max(self.compacted_to, high_watermark)
                work = steps.send(result)
        except StopIteration:
            self.log.cleaning_ends(cleaning.end)
            self.directory.checkpoint_cleaner_points(soon=True)
            self.cleanings += 1
            return True

    def beside(self) -> None:
        """What goes on between two steps of a cleaning."""

    def truncate(self) -> None:
        """Sometimes below what was compacted, as after an unclean election: what was dropped for later records is lost
        then, and so is what was known of producers and transactions."""
        least = self.compacted_to if self.draw.random() < 0.8 else 0
        self.log.truncate_to(self.draw.randint(max(self.log.log_end_offset - 30, least), self.log.log_end_offset))
        end = self.log.log_end_offset
        self.is_unclean |= end < self.compacted_to
        self.compacted_to = min(self.compacted_to, end)
        self._lost(end)

    def crash(self) -> None:
        if self.draw.random() < 0.5:
            self.directory.checkpoint_recovery_points()
        self.disk.crash(self.draw)
        self._reopen()
        end = self.log.log_end_offset
        assert end >= self.synced, f"the log was flushed up to {self.synced}, and ends at {end}"
        assert end >= self.compacted_to, (
            f"records were dropped for later ones up to {self.compacted_to}, gone from {end}"
        )
        self._lost(self.log.log_end_offset)

    def _lost(self, end: int) -> None:
        """Records from `end` on are gone, and markers with them: what their transactions wrote is open again."""
        self.history = [one for one in self.history if one.offset < end]
        self.synced = min(self.synced, end)
        states = self.log.known_producers
        self.open.clear()
        for producer_id in (1, 2, 3, 4):
            known = None if states is None else states.producer(producer_id)
            self.sequences[producer_id] = 0 if known is None or not known.batches else known.last_sequence + 1
            if known is not None and known.first_offset >= 0:
                self.open[producer_id] = known.first_offset
        self.history = [
            replace(one, aborted=None)
            if one.producer_id in self.open and one.offset >= self.open[one.producer_id]
            else one
            for one in self.history
        ]

    # The result

    def read(self) -> tuple[list[BatchHeader], list[Record]]:
        log, offset = self.log, self.log.log_start_offset
        data = b""
        while offset < log.log_end_offset:
            piece = log.read(offset, 1000).read()
            if not piece and self.is_unclean:
                break  # what was cut off had replaced it
            assert piece, f"nothing at offset {offset} of {log.log_end_offset}"
            data += piece
            offset = headers_of(piece)[-1].next_offset
        return records_in(data)

    def check(self) -> None:
        headers, records = self.read()
        log = self.log
        if self.is_unclean:
            check_compacted(records, self.history, (log.log_end_offset, 0, log.log_end_offset), 0, self.clock())
            return
        check_compacted(
            records,
            self.history,
            (log.log_start_offset, log.cleaned_to, max(log.cleaned_to, self.compacted_to)),
            self.settings.delete_retention_ms,
            self.clock(),
        )
        assert not headers or headers[-1].next_offset == log.log_end_offset
        if log.known_producers is not None:
            for producer_id, known in log.known_producers.items():
                last = [one for one in headers if one.producer_id == producer_id and not one.is_control]
                if known.batches:
                    ends = [one.last_sequence for one in last]
                    assert known.last_sequence in ends, f"the last batch of producer {producer_id} is gone"


def run(seed: int, steps: int = 150) -> int:
    """How many cleanings came to their end."""
    one = Compacting(seed)
    one.go(steps)
    return one.cleanings
