"""Logs on two tiers, case by case: lost HDDs, deletion, a full SSD, the flush rate, the checkpoint of evictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from controller.machine.disk import MemoryDisk
from controller.storage import LogDirectory, LogOffline, LogSettings
from controller.storage.disk import NotCached
from controller.storage.errors import CorruptLog, SsdFull
from controller.storage.segment import Segment
from controller.storage.tiered_log import TieredLog, copying
from controller.storage.tiers import TIER_CHECKPOINT, HddStore, TierCheckpoint, segment_places
from statemachines.log_segment import SegmentState
from statemachines.tier_placement import Tier, next_to_copy
from tests.storage.batches import Clock, batch, offset_for_timestamp
from tests.storage.life import read_all

KEY = ("t", 0)
SETTINGS = LogSettings(segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)


class Tiers:
    def __init__(self, settings: LogSettings = SETTINGS) -> None:
        self.disk, self.clock, self.settings = MemoryDisk(), Clock(), settings
        self.open()
        self.directory.create(KEY)

    def open(self, **unusable: OSError) -> None:
        def opened(path: str, **named: object) -> LogDirectory:
            return LogDirectory(
                self.disk,
                path,
                lambda _: self.settings,
                self.clock,
                unusable=unusable.get(path),
                **named,  # type: ignore[arg-type]
            )

        self.disk.locks.clear()
        self.hdds = [opened("hdd1"), opened("hdd2")]
        self.failed: list[Exception] = []
        stores = [one.as_store() for one in self.hdds]
        self.directory = opened("ssd", stores=stores, on_failure=self.failed.append)
        assert self.directory.health.cause is None

    @property
    def log(self) -> TieredLog:
        log = self.directory.logs[KEY]
        assert isinstance(log, TieredLog)
        return log

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append_as_leader(batch(1, base_offset=0, value=b"x" * 100), 1)

    def copy_all(self) -> None:
        while (segment := next_to_copy(self.log.segments)) is not None:
            steps = copying(self.log, segment)
            try:
                call = next(steps)
                while True:
                    call = steps.send(call())
            except StopIteration:
                continue

    def evict(self, count: int) -> None:
        for segment in self.log.segments[:count]:
            assert self.log.evict(segment)

    def states(self) -> list[str]:
        return [segment.state.name for segment in self.log.segments]


@pytest.fixture
def tiers() -> Tiers:
    made = Tiers()
    made.append(30)
    made.copy_all()
    made.evict(2)
    assert made.states()[:3] == ["WithoutCache", "WithoutCache", "Cached"]
    return made


def test_a_start_without_the_hdd_serves_what_the_ssd_has_and_keeps_the_log_start(tiers: Tiers) -> None:
    third = tiers.log.segment_offsets[2]
    tiers.log.flush()
    held = next(store for store in tiers.log.tiers.stores if store.path in tiers.log.tiers.checkpoint.on_hdd.values())
    tiers.open(**{held.path: OSError("no such device")})
    assert tiers.log.log_start_offset == 0
    assert tiers.log.segment_offsets[0] == third
    assert set(tiers.states()[:-1]) == {"OnlyCache"}
    with pytest.raises(LogOffline, match="on an HDD that is lost"):
        tiers.log.read(0, 100)
    assert tiers.log.read(third, 100).length
    tiers.append(5)
    tiers.log.flush()
    tiers.open()
    assert len(read_all(tiers.log)) == 35


def test_a_hdd_that_was_offline_during_a_truncation_brings_nothing_back(tiers: Tiers) -> None:
    tiers.append(20)
    tiers.copy_all()
    tiers.log.flush()
    store = next(segment.store for segment in tiers.log.segments if segment.state is SegmentState.Cached)
    assert store is not None
    end, third = tiers.log.log_end_offset, tiers.log.segment_offsets[2]
    tiers.open(**{store.path: OSError("no such device")})
    tiers.log.truncate_to(third)
    for _ in range(end - third):
        tiers.log.append_as_leader(batch(1, base_offset=0, value=b"y" * 100), 2)
    tiers.log.flush()
    now = read_all_from(tiers.log, third)
    tiers.open()
    assert read_all_from(tiers.log, third) == now
    assert all(b"y" * 100 in one for one in now)


def read_all_from(log: TieredLog, offset: int) -> list[bytes]:
    found = []
    while offset < log.log_end_offset:
        found.append(log.read(offset, 1).read())
        offset += 1
    return found


@pytest.mark.parametrize("late", [False, True])
def test_a_follower_whose_hdds_do_not_answer_appends_to_the_file_that_it_has(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: begin a segment on an HDD as long as one is online. It began on the SSD, under the name of the empty one
    before, and was removed with it. `late`: they answer no more once the log has decided to leave the SSD."""
    tiers = Tiers()
    tiers.log.tiers.append_to = Tier.HDD
    for store in tiers.log.tiers.stores:
        store.answers = late
    if late:
        monkeypatch.setattr(tiers.log.tiers, "open_store", lambda: None)
    tiers.append(3)
    tiers.log.flush()
    tiers.open()
    assert len(read_all(tiers.log)) == 3


def test_a_lost_hdd_with_the_active_segment_takes_the_log_offline() -> None:
    tiers = Tiers()
    tiers.log.tiers.append_to = Tier.HDD
    tiers.append(3)
    assert tiers.states() == ["ActiveOnHdd"]
    store = tiers.log.segments[0].store
    assert store is not None
    store.health.fail(OSError("lost"))
    assert not tiers.log.hdd_lost(store)
    with pytest.raises(LogOffline, match="is lost"):
        tiers.log.read(0, 100)
    assert tiers.directory.health.cause is None


def fails_as_it_removes(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> HddStore:
    store = segment.store
    assert store is not None
    remove_now = store.disk.remove

    def remove(path: str) -> None:
        if f"{segment.base_offset:020}" in path:
            raise store.failure(OSError("the HDD has failed"))
        remove_now(path)

    monkeypatch.setattr(store.disk, "remove", remove)
    return store


def test_a_hdd_that_fails_as_its_empty_segment_makes_way_leaves_a_log_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = Tiers()
    tiers.log.tiers.append_to = Tier.HDD
    tiers.append(1)
    tiers.log.restart_at(5)
    assert tiers.states() == ["ActiveOnHdd"]
    store = fails_as_it_removes(tiers.log.segments[0], monkeypatch)
    tiers.log.tiers.append_to = Tier.SSD
    tiers.append(2)
    assert not store.is_online
    assert tiers.states() == ["Active"]
    tiers.log.flush()
    monkeypatch.undo()
    tiers.open()
    assert read_all_from(tiers.log, 5) == [tiers.log.read(offset, 1).read() for offset in (5, 6)]


def test_a_hdd_that_fails_during_a_truncation_brings_nothing_back(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers.append(30)
    tiers.copy_all()
    tiers.log.flush()
    end, third = tiers.log.log_end_offset, tiers.log.segment_offsets[2]
    store = fails_as_it_removes(tiers.log.segments[-2], monkeypatch)
    assert tiers.log.truncate_to(tiers.log.segment_offsets[3] + 1)
    assert not store.is_online
    while tiers.log.log_end_offset < end:
        tiers.log.append_as_leader(batch(1, base_offset=0, value=b"y" * 100), 2)
    tiers.log.flush()
    now = read_all_from(tiers.log, third)
    monkeypatch.undo()
    tiers.open()
    assert read_all_from(tiers.log, third) == now


def test_a_deleted_log_leaves_nothing_on_any_tier(tiers: Tiers) -> None:
    tiers.directory.delete(KEY)
    for directory in (tiers.directory, *tiers.hdds):
        directory.purge_deleted()
        assert not [name for name in tiers.disk.names(directory.path) if name.startswith("t-0")]
    tiers.directory.create(KEY)
    assert tiers.log.log_end_offset == 0


def test_retention_and_deletion_of_records_reach_the_hdds(tiers: Tiers) -> None:
    third = tiers.log.segment_offsets[2]
    tiers.log.delete_records_before(third, tiers.log.log_end_offset)
    assert tiers.log.apply_retention(tiers.log.log_end_offset) == 2
    assert not tiers.log.tiers.checkpoint.on_hdd
    tiers.log.flush()
    tiers.open()
    assert tiers.log.segment_offsets[0] == third


def test_a_truncation_below_copied_segments_cuts_on_the_hdd_and_goes_on_on_the_ssd(tiers: Tiers) -> None:
    second = tiers.log.segment_offsets[1]
    tiers.log.truncate_to(second + 1)
    assert tiers.states() == ["WithoutCache", "ActiveOnHdd"]
    tiers.append(2)
    assert tiers.states() == ["WithoutCache", "WithoutCache", "Active"]
    tiers.log.flush()
    tiers.open()
    assert tiers.log.log_end_offset == second + 3
    assert len(read_all(tiers.log)) == second + 3


def test_a_look_up_by_time_finds_records_on_every_tier(tiers: Tiers) -> None:
    for offset in (0, tiers.log.segment_offsets[1], tiers.log.log_end_offset - 1):
        found = offset_for_timestamp(tiers.log, -1)
        assert found is not None
        assert found.offset == 0
        assert tiers.log.batch_for_timestamp(0, offset) is not None


def test_a_full_ssd_refuses_an_append_and_stays_online() -> None:
    tiers = Tiers()
    tiers.directory.measure_ssd(2000, 90)
    with pytest.raises(SsdFull, match="the SSD is full"):
        tiers.append(30)
    end = tiers.log.log_end_offset
    assert tiers.directory.health.cause is None
    assert tiers.log.ssd_bytes() <= 1800
    tiers.copy_all()
    tiers.evict(1)
    tiers.directory.measure_ssd(2000, 90)
    tiers.append(1)
    assert tiers.log.log_end_offset == end + 1


def test_a_follower_takes_what_a_nearly_full_ssd_has_room_for() -> None:
    """Found by the swarm: what a leader sent at once was more than the SSD had room for, and was fetched for good."""
    tiers = Tiers()
    tiers.directory.measure_ssd(1000, 95)
    fetched = b"".join(batch(1, base_offset=offset, value=b"x" * 100) for offset in range(20))
    taken = tiers.log.append_as_follower(fetched).last_offset + 1
    assert 0 < taken < 20
    with pytest.raises(SsdFull):
        tiers.log.append_as_follower(fetched[taken * len(fetched) // 20 :])
    tiers.directory.measure_ssd(10_000, 95)
    assert tiers.log.append_as_follower(fetched[taken * len(fetched) // 20 :]).last_offset == 19


def test_a_full_ssd_refuses_nothing_that_goes_to_an_hdd_which_does_not_answer() -> None:
    tiers = Tiers()
    tiers.log.tiers.append_to = Tier.HDD
    tiers.append(1)
    assert tiers.states() == ["ActiveOnHdd"]
    tiers.directory.measure_ssd(100, 95)
    used = tiers.directory.ssd.used_bytes
    for store in tiers.log.tiers.stores:
        store.answers = False
    tiers.append(1)
    assert tiers.states() == ["ActiveOnHdd"]
    assert tiers.directory.ssd.used_bytes == used
    while tiers.states() == ["ActiveOnHdd"]:
        tiers.append(1)
    assert tiers.states() == ["WithoutCache", "Active"]
    assert tiers.directory.ssd.used_bytes > used
    with pytest.raises(SsdFull):
        tiers.append(1)


def test_segments_are_found_on_an_hdd_that_is_mounted_elsewhere(tiers: Tiers) -> None:
    tiers.log.flush()
    (used,) = set(tiers.log.tiers.checkpoint.on_hdd.values())
    other = "hdd2" if used == "hdd1" else "hdd1"
    tiers.disk.rename(f"{used}/t-0-tier", f"{other}/t-0-tier")
    tiers.open()
    assert len(read_all(tiers.log)) == 30
    assert set(tiers.log.tiers.checkpoint.on_hdd.values()) == {other}


def test_a_compacted_log_without_a_part_is_offline() -> None:
    tiers = Tiers(replace(SETTINGS, compacted=True))
    tiers.append(30)
    tiers.copy_all()
    tiers.evict(2)
    store = tiers.log.segments[0].store
    assert store is not None
    store.health.fail(OSError("no such device"))
    assert not tiers.log.hdd_lost(store), "its oldest records are no older than the rest"
    tiers.open(**{store.path: OSError("no such device")})
    assert not tiers.directory.logs
    tiers.open()
    assert tiers.log.log_end_offset == 30


def test_a_log_is_flushed_once_a_second_of_its_rate_waits() -> None:
    tiers = Tiers(LogSettings(flush_bytes_per_second=1000))
    points = []
    for _ in range(30):
        tiers.append(1)
        points.append(tiers.log.recovery_point)
    assert len(set(points)) >= 4, "small flushes, one after another"
    assert max(one - other for other, one in pairwise(points)) <= 7


@pytest.mark.parametrize("text", [b"", b"1\n", b"0\nsegment x hdd1\n", b"0\nother 3 hdd1\n", b"0\nsegment 3 \n"])
def test_a_damaged_tier_checkpoint_is_named(text: bytes) -> None:
    disk = MemoryDisk()
    disk.replace(f"home/{TIER_CHECKPOINT}", text)
    with pytest.raises(CorruptLog, match="home/tier-checkpoint at"):
        TierCheckpoint(disk, "home")


def test_a_corrupt_batch_that_a_read_finds_on_an_hdd_takes_that_log_alone_offline(tiers: Tiers) -> None:
    other = ("other", 0)
    tiers.directory.create(other).append_as_leader(batch(1, base_offset=0), 1)
    segment = next(one for one in tiers.log.segments[1:] if one.state is SegmentState.WithoutCache)
    offset = segment.base_offset
    tiers.directory.close()
    tiers.open()
    tiers.disk.damage(segment.path, 8 + 8)  # the magic's place, of its first batch
    with pytest.raises(LogOffline, match=r"hdd\d/.* at 0: "):
        tiers.log.read(offset, 1000)
    with pytest.raises(LogOffline):
        tiers.log.read(tiers.log.log_end_offset, 1000)
    assert (tiers.directory.health.cause, tiers.directory.offline()) == (None, [KEY])
    assert [hdd.health.cause for hdd in tiers.hdds] == [None, None]
    assert isinstance(tiers.failed[0], CorruptLog)
    assert tiers.directory.logs[other].read(0, 1000).length


def test_a_corrupt_segment_on_an_hdd_leaves_the_ssd_and_its_other_logs_online(tiers: Tiers) -> None:
    other = ("other", 0)
    tiers.directory.create(other).append_as_leader(batch(1, base_offset=0), 1)
    end = tiers.log.log_end_offset
    tiers.directory.close()
    segment = next(one for one in tiers.log.segments[1:] if one.state is SegmentState.WithoutCache)
    tiers.disk.damage(segment.path, 8 + 8)  # the leader epoch, and with it the magic's place, of its first batch
    tiers.disk.damage(segment.path, 3)
    tiers.open()
    assert tiers.directory.health.cause is None
    assert list(tiers.directory.logs) == [other]
    assert isinstance(tiers.directory.unopened[KEY], CorruptLog)
    assert any("is not opened" in warning for warning in tiers.directory.health.warnings)
    tiers.disk.damage(segment.path, 8 + 8)
    tiers.disk.damage(segment.path, 3)
    tiers.open()
    assert tiers.log.log_end_offset == end


def test_the_places_of_segments_are_read_from_the_names_of_their_files(tiers: Tiers) -> None:
    """Against the states that the log itself knows, with a copy under way, and with an HDD that can't be read."""
    tiers.append(8)
    segment = next_to_copy(tiers.log.segments)
    assert segment is not None
    steps = copying(tiers.log, segment)
    steps.send(next(steps)())
    checkpoint = tiers.log.tiers.checkpoint

    def sizes(directory: str) -> dict[str, int]:
        opened = {name: tiers.disk.open(f"{directory}/{name}") for name in tiers.disk.names(directory)}
        return {name: file.size() for name, file in opened.items()}

    home = tiers.log.directory
    on_hdds: dict[str, dict[str, int] | None] = {
        store.path: sizes(directory) if tiers.disk.is_directory(directory := store.directory(home)) else {}
        for store in tiers.log.tiers.stores
    }
    found = segment_places(sizes(home), on_hdds, checkpoint)
    assert [(one.base_offset, one.state, one.size_bytes) for one in found] == [
        (one.base_offset, one.state, one.size_bytes) for one in tiers.log.segments
    ]
    states = {one.state for one in found}
    assert {SegmentState.WithoutCache, SegmentState.Cached, SegmentState.Copying, SegmentState.Active} <= states
    copied = next(one for one in found if one.state is SegmentState.Copying)
    assert 0 < copied.copied_bytes <= copied.size_bytes
    lost = segment_places(sizes(home), dict.fromkeys(on_hdds), checkpoint)
    assert [one.base_offset for one in lost if one.state is SegmentState.Lost] == sorted(checkpoint.on_hdd)


def test_rolls_flushes_and_removals_ask_the_ssd_first_where_the_caller_must_not_wait() -> None:
    made = Tiers()
    log = made.log
    asked: list[str] = []

    def carried_out(call: Callable[[], object]) -> None:
        for _ in range(3):
            try:
                log.attempt(False, call)
                return
            except NotCached as missing:
                asked.append(str(missing))
                missing.read_in()
        raise AssertionError(asked)

    for _ in range(12):
        carried_out(partial(log.append_as_leader, batch(1, value=b"x" * 100), 1))
        made.clock.now_ms += 1_000
    assert log.log_end_offset == 12, "none is appended twice"
    assert made.directory.ssd.used_bytes == log.size_bytes, "nor counted"
    assert asked == ["roll of ssd/t-0"] * (len(log.segments) - 1)
    asked.clear()
    carried_out(log.flush)
    assert asked == ["flush of ssd/t-0"]
    assert log.recovery_point == 12
    log.settings = made.settings = replace(SETTINGS, retention_bytes=0)
    made.clock.now_ms += 1_000
    carried_out(partial(log.let_go, 12))
    assert asked == ["flush of ssd/t-0", "removal of segments of ssd/t-0"]
    assert log.log_start_offset == 12
