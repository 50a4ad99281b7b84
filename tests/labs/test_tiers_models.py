"""Devices, page cache and block cache of the tiers lab, against cases computed by hand."""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.labs.tiers.caches import BlockCache, PageCache, WritePolicy
from controller.labs.tiers.fuse import BlockDevices, DeviceTask, ThrottledDevice
from controller.labs.tiers.placement import Devices, DiskStore, phases
from controller.labs.tiers.workload import LabWorkload
from statemachines.device_model import HDD_CURVE, MB, DeviceModel, DeviceQueue, hdd_model, ssd_model

PIECE = 256 * 1024


def bandwidth(model: DeviceModel, readers: int) -> float:
    """MB/s of readers that each have one request outstanding, and make 500."""
    device = DeviceQueue("disk", model)
    ready = dict.fromkeys(range(readers), 0.0)
    for _ in range(500 * readers):
        reader = min(ready, key=lambda each: (ready[each], each))
        ready[reader] = device.submit(ready[reader], reader, PIECE)
    return device.read / max(ready.values()) / MB


@pytest.mark.parametrize(("readers", "published"), HDD_CURVE)
def test_a_disks_bandwidth_falls_with_concurrent_readers_as_published(readers: int, published: float) -> None:
    assert bandwidth(hdd_model(), readers) == pytest.approx(published, rel=0.03)


def test_a_disk_of_other_pieces_has_the_same_curve() -> None:
    other = hdd_model().of_pieces(PIECE)
    assert bandwidth(other, 8) == pytest.approx(bandwidth(hdd_model(), 8), rel=0.01)
    assert other.seek_s(8) == pytest.approx(2 * hdd_model().seek_s(8))
    load = LabWorkload().scaled(1 / 1000, 1.0)
    seek_s = load.hdd.service_s(load.read_ahead, 8, False) - load.read_ahead / load.hdd.bandwidth
    assert seek_s == pytest.approx(load.hdd.seek_s(8)), "a window is one piece at each scale"


def test_an_ssds_bandwidth_does_not_fall() -> None:
    model = ssd_model(latency_s=0.0)
    assert bandwidth(model, 32) == pytest.approx(bandwidth(model, 1), rel=0.01)


class VirtualDevice(ThrottledDevice):
    """A throttled device in virtual time, behind a throttle like the kernel's: the bytes of each direction may be as
    many as the bandwidth allows until the end of the slice of 100 ms, beyond that a request waits. `arrive` is called
    with the time that has come."""

    def __init__(self, model: DeviceModel, oversleeps_s: float = 0.0) -> None:
        self.now = 0.0
        self.arrive: Callable[[float], None] = lambda _until: None
        self._oversleeps_s = oversleeps_s
        self._moved = Counter[bool]()
        super().__init__(None, model, 0.1, clock=lambda: self.now, sleep=self.pass_time)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds + self._oversleeps_s
        self.arrive(self.now)

    def carry_out(self, task: DeviceTask) -> bytes:
        write = task.data is not None
        self._moved[write] += task.nbytes
        self.now = max(self.now, math.ceil(self._moved[write] / self._model.bandwidth * 10 - 1) / 10)
        self.arrive(self.now)
        return b""


class MixedLoad:
    """Readers that each have one request outstanding, beside writers of 0.5 MB/s each, for 20 s. Each method returns
    the MB/s of both."""

    NBYTES, RATE, SECONDS = 131_072, 0.5e6, 20.0

    def __init__(self, readers: int, writers: int) -> None:
        self.moved = Counter[bool]()
        self._due = [(0.0, False, reader) for reader in range(readers)] + [
            (self.NBYTES / self.RATE / writers * at, True, at) for at in range(writers)
        ]
        heapq.heapify(self._due)

    def _answered(self, done: float, write: bool, stream: int, begun: float) -> None:
        self.moved[write] += self.NBYTES
        heapq.heappush(self._due, (max(done, begun + self.NBYTES / self.RATE) if write else done, write, stream))

    def _rates(self) -> tuple[float, float]:
        return self.moved[False] / MB / self.SECONDS, self.moved[True] / MB / self.SECONDS

    def of_model(self, model: DeviceModel) -> tuple[float, float]:
        queue, now = DeviceQueue("disk", model), 0.0
        while now < self.SECONDS:
            now, write, stream = heapq.heappop(self._due)
            self._answered(queue.submit(now, (write, stream), self.NBYTES, write), write, stream, now)
        return self._rates()

    def of_device(self, device: VirtualDevice) -> tuple[float, float]:
        waiting = deque[tuple[bool, int, float]]()

        def arrive(until: float) -> None:
            while self._due and self._due[0][0] <= until:
                begun, write, stream = heapq.heappop(self._due)
                waiting.append((write, stream, begun))
                device.submit(DeviceTask((write, stream), 0, self.NBYTES, b"" if write else None, lambda _: None))

        device.arrive = arrive
        while device.now < self.SECONDS:
            if not waiting:
                device.now = max(device.now, self._due[0][0])
                arrive(device.now)
            device.serve_next()
            self._answered(device.now, *waiting.popleft())
        return self._rates()


@pytest.mark.parametrize("oversleeps_s", [0.0, 0.002])
@pytest.mark.parametrize(("readers", "writers"), [(1, 0), (1, 1), (1, 3), (2, 4), (0, 6), (4, 6)])
def test_a_throttled_disk_gives_mixed_readers_and_writers_what_the_model_does(
    readers: int, writers: int, oversleeps_s: float
) -> None:
    model = hdd_model().scaled(1 / 16, 1 / 3)
    expected = MixedLoad(readers, writers).of_model(model)
    found = MixedLoad(readers, writers).of_device(VirtualDevice(model, oversleeps_s))
    assert found == pytest.approx(expected, rel=0.05)


def test_a_throttled_disk_that_was_late_makes_up_for_a_twentieth_of_a_second() -> None:
    """So a process without a core for long is a slower disk, and no burst follows."""
    device = VirtualDevice(DeviceModel(1e6))
    device.submit(DeviceTask("a", 0, 100_000, None, lambda _: device.pass_time(1.0)))
    device.serve_next()
    assert device.now == pytest.approx(1.1)
    device.submit(DeviceTask("a", 0, 100_000, None, lambda _: None))
    device.serve_next()
    assert device.now == pytest.approx(1.2)
    assert [*device.late_s] == pytest.approx([0.0, 0.0])


def test_the_time_of_an_answer_does_not_come_on_top_of_the_next_service() -> None:
    device = VirtualDevice(DeviceModel(1e6))
    for _ in range(2):
        device.submit(DeviceTask("a", 0, 100_000, None, lambda _: device.pass_time(0.02)))
    device.serve_next()
    assert device.now == pytest.approx(0.12)
    device.serve_next()
    assert device.now == pytest.approx(0.22), "0.2 and the second answer"
    assert [*device.late_s] == pytest.approx([0.0, 0.0])


def test_a_device_is_as_late_as_it_was_measured() -> None:
    device = DeviceQueue("disk", DeviceModel(100.0))
    late = iter([0.5, -2.0])
    device.late_s = lambda: next(late)
    assert device.submit(0.0, "a", 100) == 1.5
    assert device.submit(0.0, "a", 100) == 1.5, "no service takes less than no time"


def test_requests_wait_for_those_before_them_and_seek_between_streams() -> None:
    device = DeviceQueue("disk", DeviceModel(100.0, latency_s=0.5, seeks_s=((2, 1.0), (4, 3.0)), piece=100))
    assert device.submit(0.0, "a", 100) == 2.5, "a seek of 1 s to the first place, 1 s of transfer, 0.5 s of latency"
    assert device.submit(0.0, "b", 200) == 6.5, "begins at 2: two pieces, each with a seek of 1 s among two streams"
    assert device.submit(10.0, "b", 100) == 11.5, "alone and of the same stream: no seek"
    assert device.submit(20.0, "c", 100, write=True) == 22.5
    assert (device.read, device.written, device.busy_s) == (400, 100, 9)
    evenly = dict.fromkeys(range(200, 220), 5.0)
    assert device.writes == pytest.approx(evenly | {220: 0.0}), "over the 2 s of its service"


def test_requests_of_one_stream_do_not_compete_with_each_other() -> None:
    device = DeviceQueue("disk", DeviceModel(100.0, seeks_s=((2, 1.0), (3, 5.0)), piece=100))
    assert device.submit(0.0, "a", 100, write=True) == 2.0
    assert device.submit(0.0, "a", 100, write=True) == 3.0, "it goes on where the last one ended"
    assert device.submit(0.0, "b", 100) == 5.0, "two streams, although three requests"
    assert device.submit(4.0, "b", 100) == 6.0, "those of the other stream have been answered"


def test_a_seek_is_interpolated_over_the_logarithm() -> None:
    model = DeviceModel(1.0, seeks_s=((2, 1.0), (8, 3.0)))
    assert [model.seek_s(streams) for streams in (1, 2, 4, 8, 99)] == [0, 1, 2, 3, 3]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.integers(1, 1000), st.booleans()), max_size=40),
    st.floats(0.1, 4),
    st.floats(0.1, 4),
)
def test_bytes_are_kept_answers_are_in_order_and_scales_agree(
    requests: list[tuple[float, int, int, bool]], bytes_ratio: float, time_ratio: float
) -> None:
    model = DeviceModel(700.0, 0.01, ((2, 0.1), (4, 0.3)), piece=100_000)
    one, other = DeviceQueue("one", model), DeviceQueue("other", model.scaled(bytes_ratio, time_ratio))
    now, last = 0.0, 0.0
    for gap, stream, nbytes, write in requests:
        now += gap
        done = one.submit(now, stream, nbytes, write)
        assert done >= max(last, now)
        last = done
        scaled = other.submit(now * time_ratio, stream, nbytes * bytes_ratio, write)
        assert scaled == pytest.approx(done * time_ratio)
    assert one.read + one.written == sum(nbytes for _, _, nbytes, _ in requests)
    assert sum(one.writes.values()) == pytest.approx(one.written)


def test_reads_that_follow_each_other_are_one_stream_whichever_thread_reads() -> None:
    models = {"hdd_model": asdict(hdd_model()), "ssd_model": asdict(ssd_model())}
    sizes = {"chunk": 4, "read_ahead": 1, "segment": 100, "interval_s": 0.1}
    devices = BlockDevices({"hdd": [], "ssd": [], "policy": None} | models | sizes)
    assert [devices._reader(("hdd", 0, 0), at, 1) for at in (0, 1, 50, 2, 51, 6, 90)] == [1, 1, 2, 1, 2, 1, 3]
    assert devices._reader(("hdd", 0, 1), 7, 1) == 1, "of another file"


def cached(cache: PageCache) -> list[int]:
    return [chunk for chunk in range(100) if chunk in cache]


def test_with_two_lists_what_was_read_twice_survives_a_scan() -> None:
    cache = PageCache(4)
    for chunk in (1, 2, 3):
        cache.insert(chunk, 0.0)
        cache.ready_at(chunk)
    for chunk in (1, 2):
        cache.ready_at(chunk)
    for chunk in range(10, 20):
        cache.insert(chunk, 0.0)
        cache.ready_at(chunk)
    assert cached(cache) == [1, 2, 18, 19]
    cache.ready_at(19)
    cache.balance()
    cache.insert(20, 0.0)
    cache.balance()
    assert cached(cache) == [1, 2, 19, 20], "1 was demoted to the inactive list, where 18 and 20 are older"
    cache.insert(21, 0.0)
    assert cached(cache) == [1, 2, 19, 21]


def test_the_active_list_shrinks_while_the_inactive_one_was_seen_to_be_shorter() -> None:
    def active_after(balances: bool) -> int:
        cache = PageCache(8)
        cache.balance()
        for chunk in range(6):
            cache.insert(chunk, 0.0, read=True)
            cache.ready_at(chunk)
        if balances:
            cache.balance()
        for chunk in range(10, 16):
            cache.insert(chunk, 0.0)
        return len([chunk for chunk in cached(cache) if chunk < 6])

    assert active_after(False) == 6, "it was not shorter when that was last seen"
    assert active_after(True) == 5


def test_what_is_not_on_a_device_is_not_evicted_and_becomes_active() -> None:
    cache = PageCache(3, keeps=lambda chunk: chunk in (1, 2))
    for chunk in (1, 2, 3, 4, 5, 6):
        cache.insert(chunk, 0.0)
    assert cached(cache) == [1, 2, 6]
    cache = PageCache(2, keeps=lambda chunk: True)
    for chunk in (1, 2, 3):
        cache.insert(chunk, 0.0)
    assert cached(cache) == [1, 2, 3], "nothing else can be evicted"


def test_a_chunk_that_was_added_and_then_read_in_was_read_once() -> None:
    cache = PageCache(4)
    cache.insert(1, math.inf)
    cache.read_in(1, 2.0)
    assert cache.ready_at(1) == 2.0
    for chunk in (10, 11, 12, 13):
        cache.insert(chunk, 0.0)
    assert 1 in cache, "its second read made it active"


def test_what_is_kept_is_evicted_last_of_its_list_and_counts_as_read_once() -> None:
    cache = PageCache(4)
    for chunk in (1, 2, 3, 4):
        cache.insert(chunk, 0.0)
    for _ in range(2):
        cache.keep(1)
    cache.keep(99)
    cache.insert(5, 0.0)
    cache.insert(6, 0.0)
    assert cached(cache) == [1, 4, 5, 6]
    cache.keep(4)
    cache.ready_at(4)
    for chunk in (7, 8, 9):
        cache.insert(chunk, 0.0)
    assert cached(cache) == [4, 7, 8, 9], "4 is active, 1 is not"


def test_a_read_that_brings_a_chunk_in_is_its_first() -> None:
    cache = PageCache(4)
    cache.insert(1, 0.0, read=True)
    cache.insert(2, 0.0)
    for chunk in (1, 2):
        cache.ready_at(chunk)
    for chunk in (10, 11, 12, 13):
        cache.insert(chunk, 0.0)
    assert (1 in cache, 2 in cache) == (True, False)


def test_what_is_read_again_soon_after_its_eviction_is_active() -> None:
    cache = PageCache(4)
    for chunk in (1, 2):
        cache.insert(chunk, 0.0)
        cache.ready_at(chunk)
        cache.ready_at(chunk)
    for chunk in (10, 11, 12):
        cache.insert(chunk, 0.0)
    assert 10 not in cache
    cache.insert(10, 0.0)
    for chunk in (13, 14, 15, 16):
        cache.insert(chunk, 0.0)
    assert 10 in cache, "within two evictions, as many as the active list had"
    assert 12 not in cache


@given(st.lists(st.integers(0, 20)), st.integers(1, 5))
def test_what_is_only_written_leaves_in_the_order_of_the_last_write(written: list[int], capacity: int) -> None:
    cache, model, left = PageCache(capacity), OrderedDict[int, None](), set[int]()
    for chunk in written:
        if chunk not in left:  # what comes back soon after its eviction becomes active
            cache.insert(chunk, 0.0)
            model[chunk] = None
            model.move_to_end(chunk)
            while len(model) > capacity:
                left.add(model.popitem(last=False)[0])
    assert cached(cache) == sorted(model)


def test_each_write_policy_writes_where_it_says() -> None:
    through, back, around = (BlockCache(4, policy, dirty_share=0.5) for policy in WritePolicy)
    assert [(work.fast, work.slow) for work in (through.write(1), back.write(1), around.write(1))] == [
        (True, True),
        (True, False),
        (False, True),
    ]
    assert [1 in cache for cache in (through, back, around)] == [True, True, False]
    assert around.read(1).fill
    around.write(1)
    assert 1 not in around, "what was read before is stale"


def test_every_read_fills_and_so_cold_reads_evict_what_was_just_written() -> None:
    cache = BlockCache(3, WritePolicy.WriteThrough)
    for block in (1, 2, 3):
        cache.write(block)
    for old in (90, 91, 92):
        assert cache.read(old).slow
    assert cache.read(3).slow
    assert (cache.hits, cache.misses) == (0, 4)


def test_a_block_that_is_read_in_parts_has_those_that_were_read() -> None:
    cache = BlockCache(2, WritePolicy.WriteThrough)
    assert [cache.read(1, part, 4).fast for part in (0, 1, 1, 2, 3, 3, 0)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        True,
    ]
    cache.read(2, 0, 4)
    cache.write(2)
    assert cache.read(2, 3, 4).fast, "a write is of the whole block"
    cache.read(3, 0, 4)
    cache.read(1, 0, 4)
    assert not cache.read(1, 1, 4).fast, "it was evicted, and the parts with it"


def test_writes_and_reads_of_a_log_are_two_streams() -> None:
    """A reader of a number and a partition of the same one are at two places of the disk."""
    load = LabWorkload()
    store = DiskStore(Devices(load, phases(load, 0)))
    store.write(0.0, 3, 1_000, load.chunk)
    store.read(0.0, 3, 1, reader=3)
    seeks = store.devices.hdd(3).busy_s - 2 * load.chunk / load.hdd.bandwidth
    assert seeks == pytest.approx((1 + load.windows) * load.hdd.seek_s(2))


def test_a_dirty_block_is_cleaned_before_it_is_evicted() -> None:
    cache = BlockCache(2, WritePolicy.WriteBack, dirty_share=1.0)
    cache.write(1)
    cache.write(2)
    assert cache.read(3).cleaned == [1]
    assert (cache.dirty, len(cache)) == (1, 2)


def test_write_back_cleans_the_oldest_beyond_its_share() -> None:
    cache = BlockCache(10, WritePolicy.WriteBack, dirty_share=0.2)
    assert [cache.write(block).cleaned for block in range(4)] == [[], [], [0], [1]]


def test_a_set_is_full_before_the_cache_is() -> None:
    cache = BlockCache(8, WritePolicy.WriteThrough, ways=2)
    for block in range(64):
        cache.write(block)
    assert len(cache) == 8
    assert all(len(each) <= 2 for each in cache._sets)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 12))),
    st.sampled_from(WritePolicy),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_no_write_is_lost(
    accesses: list[tuple[bool, int]], policy: WritePolicy, capacity: int, dirty_share: float
) -> None:
    """The newest data of a block is on the disk, or the block is in the cache and dirty."""
    cache = BlockCache(capacity, policy, dirty_share=dirty_share)
    version: dict[int, int] = {}
    fast: dict[int, int] = {}
    disk: dict[int, int] = {}
    for at, (write, block) in enumerate(accesses):
        if write:
            version[block] = at
            work = cache.write(block)
            fast.update({block: at} if work.fast else {})
            disk.update({block: at} if work.slow else {})
        else:
            work = cache.read(block)
            seen = fast.get(block) if work.fast else disk.get(block)
            assert seen == version.get(block)
            if work.fill and block in version:
                fast[block] = version[block]
        disk.update({each: fast[each] for each in work.cleaned})
        assert len(cache) <= capacity


def test_a_page_cache_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a capacity of at least 1, got 0"):
        PageCache(0)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": 4, "ways": 5}, {"capacity": 4, "dirty_share": 2.0}])
def test_a_block_cache_that_makes_no_sense_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        BlockCache(policy=WritePolicy.WriteBack, **options)
