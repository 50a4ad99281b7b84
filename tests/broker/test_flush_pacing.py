"""Flushes by rate are spread in time: what a device writes is as steady as what its logs receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.broker.flush_pacing import FlushPacing
from controller.broker.log_manager import LogManager
from controller.broker.request_context import finish
from controller.clock import VirtualClock
from controller.storage import DeviceUnavailable, LogSettings
from controller.storage.disk import ANY_DEVICE
from controller.storage.disk_files import FileDisk
from statemachines.tier_placement import flush_slice_wait_ms
from tests.broker.test_upkeep import Kept
from tests.broker.test_upkeep_on_devices import Jobs, kept_with

MB = 1_000_000
RATE = 2 * MB


@dataclass
class GrowingLog:
    """What pacing uses of a log. It notes when its bytes are written, by slices and by the flush that ends its turn."""

    clock: VirtualClock
    written: Counter[int]
    directory: Any
    settings: LogSettings = field(default_factory=lambda: LogSettings(flush_bytes_per_second=RATE))
    size_bytes: int = 0
    on_disk: int = 0
    flushes: int = 0
    store: None = None
    path: str = "log"

    def __post_init__(self) -> None:
        self.health = SimpleNamespace(cause=None)
        self.file = self
        self.segments = [self]

    @property
    def unflushed_bytes(self) -> int:
        return self.size_bytes - self.flushed

    flushed: int = 0
    segment_offsets: tuple[int, ...] = (0,)

    @property
    def log_end_offset(self) -> int:
        return self.size_bytes

    def attempt(self, may_wait: bool, call: Callable[[], Any]) -> Any:
        return call()

    def append(self, count: int) -> None:
        self.size_bytes += count
        if self.unflushed_bytes >= RATE and not self.directory.flush_soon(self):
            self.flush()

    def write_back(self, position: int, length: int) -> None:
        assert position + length <= self.size_bytes
        self._note(position + length)

    def flush(self, up_to: int | None = None) -> None:
        self._note(self.size_bytes)
        self.flushed = self.size_bytes
        self.flushes += 1

    def _note(self, until: int) -> None:
        new = max(0, until - self.on_disk)
        self.on_disk += new
        self.written[int(self.clock.now_ms() / 100)] += new


def written_by_interval(paced: bool) -> list[int]:
    """Bytes that a device writes by 100 ms while 13 logs, not all begun at one time, grow by 0.85 MB/s each,
    in requests of 50 KB."""
    clock, written = VirtualClock(), Counter[int]()
    directory = SimpleNamespace(device=ANY_DEVICE, flush_soon=lambda _log: False)
    logs = [GrowingLog(clock, written, directory) for _ in range(13)]
    if paced:
        FlushPacing(cast(LogManager, SimpleNamespace(directories=[directory])), clock, finish)
    begun = Random(1)
    for log in logs:
        log.append(begun.randrange(RATE))
    for step in range(1000):
        for at, log in enumerate(logs):
            if (step * 7 + at * 5) % 3 == 0:
                log.append(51_000)
        clock.advance_to(clock.now_ms() + 20.0)
    assert all(log.flushes >= 4 for log in logs)
    assert all(log.unflushed_bytes <= 2.5 * RATE for log in logs)
    return [written[at] for at in range(50, 199)]


def test_a_device_writes_steadily_if_its_logs_do_not_flush_all_at_once() -> None:
    paced, alone = written_by_interval(paced=True), written_by_interval(paced=False)
    assert sum(paced) == pytest.approx(sum(alone), rel=0.25)
    assert max(paced) / (sum(paced) / len(paced)) <= 1.5
    assert max(alone) / (sum(alone) / len(alone)) > 3


def test_what_waits_is_spread_over_a_second_below_the_rates_of_the_logs() -> None:
    assert flush_slice_wait_ms(4e6, 250_000, logs=10, bytes_per_second=2e6) == 62.5
    assert flush_slice_wait_ms(40e6, 250_000, logs=10, bytes_per_second=2e6) == 12.5, "20 MB/s at most"
    assert flush_slice_wait_ms(0, 0, logs=0, bytes_per_second=2e6) == 1000


def paced_log(jobs: Jobs) -> Kept:
    """Of a rate that ten batches exceed."""
    kept = kept_with(jobs, camerlengo_log_flush_bytes_per_second="600", log_segment_bytes="1000000")
    kept.clock.advance_to(kept.clock.now_ms() + 2_000)
    kept.append(0).flush()
    return kept


def test_a_log_is_durable_when_its_slices_are_written() -> None:
    jobs = Jobs()
    kept = paced_log(jobs)
    log = kept.append(10)
    before = log.recovery_point
    kept.clock.advance_to(kept.clock.now_ms() + 1)
    assert log.recovery_point == before < log.log_end_offset
    assert jobs.run().what.startswith("write-back of ")
    assert log.recovery_point == before
    assert jobs.run().what.startswith("flush of ")
    assert log.recovery_point == log.log_end_offset


def test_a_log_whose_device_is_slow_flushes_itself() -> None:
    jobs = Jobs()
    kept = paced_log(jobs)
    log = kept.append(60)
    assert log.unflushed_bytes < 4 * 600
    assert log.recovery_point > 0


def test_a_device_that_does_not_answer_leaves_the_log_for_its_next_append() -> None:
    jobs = Jobs()
    kept = paced_log(jobs)
    log = kept.append(10)
    kept.clock.advance_to(kept.clock.now_ms() + 1)
    jobs.fail(DeviceUnavailable("8:1", "hung"))
    kept.append(1)
    kept.clock.advance_to(kept.clock.now_ms() + 2_000)
    assert [jobs.run().what.split(" of ")[0] for _ in range(2)] == ["write-back", "flush"]
    assert log.recovery_point == log.log_end_offset


def test_a_log_that_rolls_in_its_turn_is_flushed_without_its_old_slices() -> None:
    jobs = Jobs()
    kept = paced_log(jobs)
    log = kept.append(10)
    kept.clock.advance_to(kept.clock.now_ms() + 1)
    log.roll()
    assert [jobs.run().what.split(" of ")[0] for _ in range(2)] == ["write-back", "flush"]
    assert log.recovery_point == log.log_end_offset


def test_pacing_that_has_stopped_leaves_flushes_to_the_logs() -> None:
    jobs = Jobs()
    kept = paced_log(jobs)
    kept.log_maintenance.stop()
    log = kept.append(10)
    assert log.recovery_point > 9
    assert not jobs.waiting


def test_writing_back_is_a_hint_that_fails_nothing(tmp_path: Path) -> None:
    disk = FileDisk()
    path = f"{tmp_path.as_posix()}/00000000000000000000.log"
    file = disk.open(path)
    file.append(b"abc")
    file.write_back(0, 1 << 20)
    assert file.read_at(0, 10) == b"abc"
    disk.remove(path)
    file.close()
    file.write_back(0, 3)
