"""Evictions and copies wait until their devices answer: an SSD or HDD that hangs does not hold up the broker."""

from __future__ import annotations

import pytest

from controller.broker.log_manager import LogManager
from controller.broker.tier_maintenance import TierMaintenance
from controller.broker.tier_settings import TierSettings
from controller.clock import VirtualClock
from controller.machine.disk import MemoryDisk
from controller.storage import DeviceUnavailable, LogSettings
from controller.storage.tiered_log import TieredLog
from controller.storage.tiers import COPYING
from statemachines.log_segment import SegmentState
from statemachines.tier_placement import Tier
from tests.broker.harness import KeptTrace
from tests.broker.test_upkeep_on_devices import Jobs
from tests.storage.batches import batch

SILENT = DeviceUnavailable("8:1", "no answer")
SETTINGS = LogSettings(segment_bytes=1000, retention_ms=-1)


class Kept:
    def __init__(self) -> None:
        self.clock, self.jobs, self.disk = VirtualClock(), Jobs(), MemoryDisk()
        tiers = (Tier.SSD, Tier.HDD)
        self.logs = LogManager(self.disk, ["/ssd", "/hdd"], lambda _: SETTINGS, self.clock.wall_ms, tiers=tiers)
        settings = TierSettings(tiers, ssd_bytes=14_000)
        self.interval_ms = settings.interval_ms
        self.maintenance = TierMaintenance(settings, self.logs, self.clock, KeptTrace(), self.jobs.drive)
        self.maintenance.start()
        made = self.logs.get_or_create(("t", 0))
        assert isinstance(made, TieredLog)
        self.log = made
        for _ in range(40):
            self.log.append_as_leader(batch(1, value=b"x" * 100), 1)

    def tick(self) -> None:
        self.clock.advance_to(self.clock.now_ms() + self.interval_ms)

    def run(self) -> None:
        while self.jobs.waiting:
            self.jobs.run()
            self.clock.advance_to(self.clock.now_ms() + 1)

    def unfinished(self) -> list[str]:
        directory = self.log.tiers.stores[0].directory(self.log.directory)
        names = self.disk.names(directory) if self.disk.is_directory(directory) else ()
        return [name for name in names if name.endswith(COPYING)]

    def states(self) -> set[SegmentState]:
        return {one.state for one in self.log.segments[:-1]}


def test_nothing_is_copied_from_an_ssd_that_does_not_answer() -> None:
    kept = Kept()
    kept.tick()
    assert kept.jobs.waiting[0][1].what == "a look whether memory answers"
    kept.jobs.fail(SILENT)
    assert kept.jobs.waiting == []
    assert kept.states() == {SegmentState.OnlyCache}
    kept.tick()
    kept.run()
    kept.tick()
    kept.run()
    assert SegmentState.Cached in kept.states()


@pytest.mark.parametrize("answered", [0, 1])
def test_nothing_is_evicted_where_the_ssd_or_the_hdd_does_not_answer(answered: int) -> None:
    kept = Kept()
    for _ in range(3):
        kept.tick()
        kept.run()
    assert kept.states() == {SegmentState.Cached}
    for _ in range(30):
        kept.log.append_as_leader(batch(1, value=b"x" * 100), 1)
    kept.tick()
    for _ in range(answered):
        kept.jobs.run()
    kept.jobs.fail(SILENT)
    assert kept.maintenance.counts.evicted_segments == 0
    kept.tick()
    kept.run()
    assert kept.maintenance.counts.evicted_segments > 0


def test_a_copy_to_an_hdd_that_does_not_answer_is_given_up_without_it() -> None:
    """Its end would remove the unfinished copy, on the broker's thread."""
    kept = Kept()
    kept.tick()
    while not kept.unfinished():
        kept.jobs.run()
        kept.clock.advance_to(kept.clock.now_ms() + 1)
    assert kept.jobs.waiting[0][1].order == "a copy to /hdd"
    kept.jobs.fail(SILENT)
    assert kept.unfinished()
    assert kept.states() == {SegmentState.OnlyCache}
    for _ in range(3):
        kept.tick()
        kept.run()
    assert kept.states() == {SegmentState.Cached}
    assert not kept.unfinished()
