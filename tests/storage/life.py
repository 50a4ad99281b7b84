"""A log directory's life in memory, with power cuts: random operations on one side, a model of what must be there on
the other. `run(seed)` raises AssertionError where they part."""

from __future__ import annotations

import random
from collections.abc import Callable

from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogOffline, LogSettings, PartitionLog, headers_of
from controller.storage.batches import BatchHeader
from tests.storage.batches import START_MS, Clock, batch, offset_for_timestamp

PARTITION = ("lives", 0)
PRODUCER = 7
SETTINGS = LogSettings(segment_bytes=2500, index_interval_bytes=300, retention_bytes=6000, retention_ms=-1)


class Life:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.disk = MemoryDisk()
        self.clock = Clock()
        self.batches: list[bytes] = []
        """What the log holds or held, one batch after another, from `base` on."""
        self.base = 0
        self.flushed = 0
        self.epoch = 0
        self.sequence = 0
        self.deleted_before = 0
        self.directory = self._open()
        self.directory.create(PARTITION)

    def _open(self) -> LogDirectory:
        directory = LogDirectory(self.disk, "logs", lambda _: SETTINGS, self.clock)
        assert directory.health.cause is None, directory.health.cause
        return directory

    @property
    def log(self) -> PartitionLog:
        return self.directory.logs[PARTITION]

    @property
    def end(self) -> int:
        return header(self.batches[-1]).next_offset if self.batches else self.base

    # One step

    def operations(self) -> list[Callable[[], None]]:
        return [
            *[self.append] * 8,
            *[self.flush] * 2,
            *(self.truncate, self.checkpoint, self.retain, self.delete_records),
        ]

    def close(self) -> None:
        self.directory.close()

    def step(self) -> None:
        before = list(self.batches)
        operation = self.draw.choice(self.operations())
        if self.draw.random() < 0.1:
            # The disk fails within the operation, and the machine with it.
            self.disk.fail_after = self.disk.changes + self.draw.randint(0, 6)
        lower = self.flushed
        try:
            operation()
            self.log.read(self.log.log_start_offset, 100)
        except LogOffline as offline:
            if not isinstance(offline.cause, OSError) or self.disk.fail_after is None:
                raise
            self.crash(before, min(lower, self.flushed))
        else:
            self.disk.fail_after = None
            assert self.log.log_end_offset == self.end
            if self.draw.random() < 0.05:
                self.crash(self.batches, self.flushed)
            elif self.draw.random() < 0.03:
                self.close()
                self.directory = self._open()
                self.check(self.end)

    def append(self) -> None:
        self.clock.now_ms += self.draw.randint(0, 50)
        made: list[bytes] = []
        if self.draw.random() < 0.2:
            self.epoch += self.draw.randint(1, 2)
        offset = self.end
        for _ in range(self.draw.choice([1, 1, 1, 3])):
            count = self.draw.randint(1, 5)
            value = self.draw.randbytes(self.draw.randint(0, 120))
            made.append(
                batch(
                    count,
                    base_offset=offset,
                    value=value,
                    timestamp_ms=self.clock.now_ms + self.draw.randint(-100, 100),
                    step_ms=self.draw.randint(-2, 3),
                    leader_epoch=self.epoch,
                    producer=(PRODUCER, 0, self.sequence),
                )
            )
            offset, self.sequence = offset + count, self.sequence + count
        self.batches += made
        if self.draw.random() < 0.5:
            self.log.append_as_leader(b"".join(made), self.epoch)
        else:
            self.log.append_as_follower(b"".join(made) + b"cut"[: self.draw.randint(0, 3)])

    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.log_end_offset

    def truncate(self) -> None:
        if self.log.log_start_offset == self.end:
            return
        target = self.draw.randint(max(self.log.log_start_offset, self.end - 30), self.end)
        kept = [one for one in self.batches if header(one).next_offset <= target]
        self.batches = kept
        self.flushed = min(self.flushed, self.end)
        self.log.truncate_to(target)
        self.sequence = self.next_sequence()
        # The new leader has a later epoch than what was cut off.
        self.epoch += 1

    def next_sequence(self) -> int:
        """Without a batch, what a snapshot knows of the producer counts."""
        producer = self.log.producers.producer(PRODUCER)
        if self.batches:
            return header(self.batches[-1]).last_sequence + 1
        return producer.last_sequence + 1 if producer else 0

    def checkpoint(self) -> None:
        self.directory.checkpoint_recovery_points()
        self.directory.checkpoint_log_start_offsets()

    def retain(self) -> None:
        self.log.apply_retention(self.end)

    def delete_records(self) -> None:
        offset = self.draw.randint(self.log.log_start_offset, self.end)
        self.deleted_before = max(self.deleted_before, offset)
        self.log.delete_records_before(offset, self.end)
        self.directory.checkpoint_log_start_offsets()

    # The cut

    def crash(self, before: list[bytes], flushed: int) -> None:
        """`before` and `self.batches`: what the log may hold a beginning of."""
        self.disk.crash(self.draw)
        self.directory = self._open()
        if PARTITION not in self.directory.logs:
            self.directory.create(PARTITION)
        log = self.log
        assert log.log_end_offset >= flushed, f"flushed to {flushed}, ends at {log.log_end_offset}"
        assert log.recovery_point == log.log_end_offset
        held = read_all(log)
        candidates = [self.batches, before]
        matching = [one for one in candidates if is_beginning(held, log, one)]
        assert matching, f"what was recovered, up to {log.log_end_offset}, was never appended so"
        self.batches = [one for one in matching[0] if header(one).next_offset <= log.log_end_offset]
        if not held:
            # Perhaps the crash took records that were deleted by request before: the log begins anew after them.
            assert self.end == log.log_end_offset or log.log_end_offset <= self.deleted_before
            assert log.log_end_offset == log.log_start_offset
            self.batches, self.base = [], log.log_end_offset
        self.flushed = log.recovery_point
        self.sequence = self.next_sequence()
        self.epoch = max(self.epoch, header(self.batches[-1]).leader_epoch if self.batches else 0) + 1
        self.check(log.log_end_offset)

    def check(self, end: int) -> None:
        """What is derived from the batches agrees with them: epochs, producer, look-ups."""
        log = self.log
        assert log.log_end_offset == end
        assert is_beginning(read_all(log), log, self.batches)
        headers = [header(one) for one in self.batches if header(one).next_offset > log.log_start_offset]
        if not headers:
            return
        starts: dict[int, int] = {}
        for one in headers:
            starts.setdefault(one.leader_epoch, max(one.base_offset, log.log_start_offset))
        assert {one.epoch: one.start_offset for one in log.epochs.entries()} == starts
        producer = log.producers.producer(PRODUCER)
        assert producer is not None
        assert producer.last_sequence == headers[-1].last_sequence
        for _ in range(3):
            wanted = self.draw.randint(log.log_start_offset, end - 1)
            found = headers_of(log.read(wanted, 1).read())[0]
            assert found.base_offset <= wanted <= found.last_offset
            self.check_timestamp(headers, self.clock.now_ms - self.draw.randint(0, 400))

    def check_timestamp(self, headers: list[BatchHeader], timestamp_ms: int) -> None:
        found = offset_for_timestamp(self.log, timestamp_ms)
        first = next((one for one in headers if one.max_timestamp_ms >= timestamp_ms), None)
        if first is None:
            assert found is None, (found, timestamp_ms)
        elif first.base_offset >= self.log.log_start_offset:
            assert found is not None
            assert first.base_offset <= found.offset <= first.last_offset
            assert found.timestamp_ms >= timestamp_ms


def header(one: bytes) -> BatchHeader:
    return headers_of(one)[0]


def read_all(log: PartitionLog) -> list[bytes]:
    """Every batch from the log's start on, each checked."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20).read()
        position = 0
        for one in headers_of(data):
            found.append(data[position : position + one.size_bytes])
            position += one.size_bytes
            offset = one.next_offset
        assert position, f"nothing at offset {offset}, the log ends at {log.log_end_offset}"
    return found


def is_beginning(held: list[bytes], log: PartitionLog, batches: list[bytes]) -> bool:
    end = log.log_end_offset
    wanted = [
        one for one in batches if header(one).next_offset > log.log_start_offset and header(one).next_offset <= end
    ]
    return held == wanted and (not held or header(held[-1]).next_offset == end)


def run(seed: int, steps: int = 60) -> Life:
    life = Life(seed)
    for _ in range(steps):
        life.step()
    assert life.clock.now_ms >= START_MS
    return life
