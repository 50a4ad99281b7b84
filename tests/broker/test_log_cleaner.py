"""The log cleaner in a broker: which log it takes, when, and what a failure or a deletion leaves of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from controller.broker import log_cleaner
from controller.broker.log_cleaner import LogCleaner
from controller.broker.log_manager import LogManager
from controller.broker.metadata import MetadataCache
from controller.broker.replica_manager import ReplicaManager
from controller.broker.settings import BadSettings, parse_settings
from controller.clock import VirtualClock
from controller.core.topic_settings import BROKER_ALONE
from controller.machine.disk import MemoryDisk
from controller.storage import DeviceUnavailable, LogSettings, PartitionLog
from controller.storage.batches import Record, encode_batch
from controller.storage.checkpoints import decode_offsets
from controller.storage.compaction_rules import CleanableSegment, DirtyRange, dirty_range
from tests.broker.harness import BROKER, KeptTrace
from tests.broker.test_upkeep_on_devices import Jobs
from tests.storage.compacting import records_in

ONE, OTHER, PLAIN = ("one", 0), ("other", 0), ("plain", 0)
BACKOFF_MS = 15_000
CHECKPOINT = "cleaner-offset-checkpoint"


class Cleaned:
    """Logs of three topics, of which `plain` is not compacted."""

    def __init__(self, **given: str) -> None:
        self.clock = VirtualClock()
        self.trace = KeptTrace()
        self.disk = MemoryDisk()
        self.given = {name.replace("_", "."): text for name, text in given.items()}
        self.logs = LogManager(self.disk, ["/logs"], self._settings, self.clock.wall_ms)
        self.replicas = ReplicaManager(BROKER, MetadataCache(), self.trace, self.logs, self.clock.now_ms)
        self.directory = self.logs.directories[0]
        self.cleaner = LogCleaner(self.logs, self._high_watermarks, self._setting, self.clock, self.trace)
        for key in (ONE, OTHER, PLAIN):
            self.directory.create(key)
        self.held_back: dict[tuple[str, int], int] = {}

    @staticmethod
    def _settings(topic: str) -> LogSettings:
        return LogSettings(segment_bytes=1000, retention_ms=-1, compacted=topic != "plain")

    def _setting(self, name: str) -> str:
        return self.given.get(name, BROKER_ALONE[name].default)

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        return {key: log.log_end_offset for key, log in self.directory.logs.items()} | self.held_back

    def fill(self, key: tuple[str, int], batches: int = 60, *, keys: int = 3) -> PartitionLog:
        log = self.directory.logs[key]
        for number in range(batches):
            record = Record(0, self.clock.wall_ms(), b"key-%d" % (number % keys), b"%d" % number)
            log.append_as_leader(encode_batch([record]), 1)
        return log

    def keys(self, key: tuple[str, int]) -> list[bytes]:
        """Of the sealed segments' records."""
        log = self.directory.logs[key]
        data = b"".join(one.file.read_at(0, one.size_bytes) for one in log.segments[:-1])
        return sorted(one.key or b"" for one in records_in(data)[1])


def test_dirty_logs_are_cleaned_one_after_the_other_and_the_others_left() -> None:
    one = Cleaned()
    for key in (ONE, OTHER, PLAIN):
        one.fill(key)
    before = one.directory.logs[PLAIN].size_bytes
    one.cleaner.start()
    one.clock.advance_to(BACKOFF_MS - 1)
    assert one.cleaner.figures.cleanings == 0
    one.clock.advance_to(2 * BACKOFF_MS)
    assert one.cleaner.figures.cleanings == 2
    assert one.keys(ONE) == one.keys(OTHER) == [b"key-0", b"key-1", b"key-2"]
    assert one.directory.logs[PLAIN].size_bytes == before
    points = decode_offsets(CHECKPOINT, one.disk.read(f"/logs/{CHECKPOINT}"))
    assert points == {key: one.directory.logs[key].segment_offsets[-1] for key in (ONE, OTHER)}
    assert one.cleaner.figures.max_dirty_percent == 0


def test_a_log_is_left_until_its_dirty_ratio_is_exceeded() -> None:
    one = Cleaned()
    log = one.fill(ONE, keys=60)
    one.cleaner.start()
    one.clock.advance_to(2 * BACKOFF_MS)
    cleaned_to = log.cleaned_to
    assert cleaned_to == log.segment_offsets[-1]
    one.fill(ONE, 15, keys=60)
    assert log.segment_offsets[-1] > cleaned_to
    one.clock.advance_to(4 * BACKOFF_MS)
    assert log.cleaned_to == cleaned_to, "a sealed segment is dirty, less than half of the log"
    one.fill(ONE, 120, keys=60)
    one.clock.advance_to(6 * BACKOFF_MS)
    assert log.cleaned_to == log.segment_offsets[-1]


def _ratio_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cleaner, "is_due", lambda dirty, _settings: dirty.end > dirty.first_dirty)


def _active_segment_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(segments: Sequence[CleanableSegment], first: int, limit: int, *rest: Any) -> DirtyRange:
        found = dirty_range(segments, first, limit, *rest)
        active_bytes = segments[-1].size_bytes if limit > segments[-1].base_offset else 0
        return replace(found, end=limit, dirty_bytes=found.dirty_bytes + active_bytes)

    monkeypatch.setattr(log_cleaner, "dirty_range", planted)


def test_a_dirty_ratio_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _ratio_ignored(monkeypatch)
    with pytest.raises(AssertionError, match="less than half of the log"):
        test_a_log_is_left_until_its_dirty_ratio_is_exceeded()


def test_a_cleaning_leaves_the_active_segment_though_its_range_should_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guards: `test_the_active_segment_is_never_dirty` finds it if the range's is missing."""
    _active_segment_cleaned(monkeypatch)
    one = Cleaned()
    log = one.fill(ONE)
    active = log.segments[-1]
    before = active.base_offset, active.size_bytes
    one.cleaner.start()
    one.clock.advance_to(2 * BACKOFF_MS)
    assert (active.base_offset, active.size_bytes) == before
    assert log.segments[-1] is active
    assert one.keys(ONE) == [b"key-0", b"key-1", b"key-2"]


def test_nothing_at_the_high_watermark_or_above_is_cleaned() -> None:
    one = Cleaned()
    log = one.fill(ONE)
    one.held_back[ONE] = log.segment_offsets[1] + 1
    one.cleaner.start()
    one.clock.advance_to(2 * BACKOFF_MS)
    assert log.cleaned_to == log.segment_offsets[1]


def test_a_log_that_cannot_be_cleaned_is_named_once_and_the_others_go_on() -> None:
    one = Cleaned()
    log = one.fill(ONE)
    one.fill(OTHER)
    one.disk.damage(log.segments[0].path, 100)
    one.cleaner.start()
    one.clock.advance_to(4 * BACKOFF_MS)
    assert list(one.cleaner.figures.uncleanable) == [ONE]
    (note,) = one.trace.notes("error")
    assert note.startswith(
        "log cleaner: one-0 in /logs can't be cleaned, and is left alone until the next start: batch"
    )
    assert one.cleaner.figures.cleanings == 1
    assert not any(name.endswith(".cleaned") for name in one.disk.names("/logs/one-0"))


def test_a_failing_disk_takes_its_directory_offline() -> None:
    one = Cleaned()
    one.fill(ONE)
    one.cleaner.start()
    one.disk.fail_after = one.disk.changes + 5
    one.clock.advance_to(2 * BACKOFF_MS)
    assert isinstance(one.directory.health.cause, OSError)
    assert one.cleaner._current is None


@pytest.mark.parametrize("action", ["delete", "truncate", "close"])
def test_a_log_may_be_deleted_cut_or_closed_while_it_is_cleaned(action: str) -> None:
    for turns in range(1, 80):
        one = Cleaned(log_cleaner_io_max_bytes_per_second="10000", log_cleaner_io_buffer_size="4096")
        log = one.fill(ONE)
        one.cleaner.look()
        one.clock.advance_to(turns * 30)
        is_cleaning = one.cleaner._current is not None
        if action == "delete":
            one.directory.delete(ONE)
        elif action == "truncate":
            log.truncate_to(3)
        else:
            one.cleaner.stop()
            one.directory.close()
        one.clock.advance_to(10 * BACKOFF_MS)
        assert one.directory.health.cause is None
        assert not one.trace.notes("error")
        names = one.disk.names("/logs/one-0") if action != "delete" else []
        assert not any(name.endswith((".swap", ".cleaned")) for name in names), (turns, names)
        if not is_cleaning:
            break
    else:
        pytest.fail("the cleaning did not end")
    assert turns > 3


def test_a_rate_spreads_a_cleaning_over_time() -> None:
    one = Cleaned(log_cleaner_io_max_bytes_per_second="1000", log_cleaner_io_buffer_size="4096")
    log = one.fill(ONE)
    one.cleaner.look()
    one.clock.advance_to(2_000)
    assert one.cleaner._current is not None
    one.clock.advance_to(1_000_000)
    assert one.cleaner.figures.cleanings == 1
    assert log.cleaned_to == log.segment_offsets[-1]
    assert one.cleaner.figures.clean_time_ms > 5_000


def test_the_cleaners_settings_are_checked_at_the_start() -> None:
    with pytest.raises(BadSettings, match=r"log\.cleaner\.backoff\.ms"):
        parse_settings({"zookeeper.connect": "z:2181", "log.cleaner.backoff.ms": "often"})
    with pytest.raises(BadSettings, match=r"log\.cleaner\.min\.cleanable\.ratio=2: expected a number from 0 to 1"):
        parse_settings({"zookeeper.connect": "z:2181", "log.cleaner.min.cleanable.ratio": "2"})
    with pytest.raises(BadSettings, match=r"log\.cleanup\.policy=shred: expected compact, delete or both"):
        parse_settings({"zookeeper.connect": "z:2181", "log.cleanup.policy": "shred"})


def test_a_cleaning_whose_device_does_not_answer_ends_when_it_answers_and_others_are_cleaned_meanwhile() -> None:
    """Its end removes files, on the broker's thread."""
    one, jobs = Cleaned(), Jobs()
    one.cleaner._drive = jobs.drive
    log = one.fill(ONE)

    def cleaned() -> list[str]:
        return [name for name in one.disk.names(log.directory) if name.endswith(".cleaned")]

    one.cleaner.look()
    while not cleaned():
        jobs.run()
        one.clock.advance_to(one.clock.now_ms() + 1)
    jobs.fail(DeviceUnavailable("8:1", "no answer"))
    assert "cleaned later" in one.trace.notes("warning")[-1]
    looking = jobs.waiting.pop(0)
    assert looking[1].what == "a look whether /logs answers"
    assert cleaned()
    other = one.fill(OTHER)
    one.clock.advance_to(one.clock.now_ms() + BACKOFF_MS)
    while jobs.waiting:
        jobs.run()
        one.clock.advance_to(one.clock.now_ms() + 1)
    assert other.cleaned_to == other.segment_offsets[-1]
    assert cleaned()
    jobs.waiting.append(looking)
    jobs.fail(DeviceUnavailable("8:1", "no answer"))
    assert cleaned()
    one.clock.advance_to(one.clock.now_ms() + BACKOFF_MS)
    jobs.run()
    assert not cleaned()
    while jobs.waiting or log.cleaned_to != log.segment_offsets[-1]:
        if jobs.waiting:
            jobs.run()
        one.clock.advance_to(one.clock.now_ms() + 100)
    assert one.keys(ONE) == [b"key-0", b"key-1", b"key-2"]
