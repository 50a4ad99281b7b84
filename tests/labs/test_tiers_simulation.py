"""The simulation of the tiers lab: determinism, what each architecture may do, and planted faults that are found."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from controller.cli.main import main
from controller.labs.tiers import placement
from controller.labs.tiers.figures import PEAK, Case, LabMeasurement, LabRun, bands, figures, joined, peak_over_mean
from controller.labs.tiers.placement import Devices, DiskStore, LabSegment, TieredStore
from controller.labs.tiers.simulation import Fetch, LabBroker
from controller.labs.tiers.workload import ARCHITECTURES, Architecture, Flush, HostLatency, LabWorkload, LogStorage
from statemachines.log_segment import ON_SSD, SegmentState
from tests.benchmarks import tiers, tiers_plots

SMALL = replace(LabWorkload().scaled(1.0, 1.0, nodes_ratio=0.2), warm_s=40.0, measured_s=40.0, segment=20e6)
BY_NAME = {each.name: each for each in ARCHITECTURES}
EACH = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.name)


def measured(
    architecture: Architecture, flush: Flush = Flush.Rate, case: Case = Case.Both, seed: int = 1
) -> LabMeasurement:
    return LabBroker(case.of(SMALL), architecture, flush, seed).run()


def figured(architecture: Architecture, flush: Flush = Flush.Rate, case: Case = Case.Both) -> dict[str, float]:
    return figures([measured(architecture, flush, case)], SMALL.chunk, SMALL.measured_s)


def test_the_published_figures_give_8_minutes_and_the_published_ratios() -> None:
    load = LabWorkload()
    assert load.cache_s == pytest.approx(80 * 1024 / 170)
    assert load.cache_s / 60 == pytest.approx(8, abs=0.1)
    ratios = load.ratios()
    assert ratios["least lag over cache time"] == pytest.approx(1.25, abs=0.01)
    assert ratios["longest lag over cache time"] == pytest.approx(18.75, abs=0.1)
    assert (ratios["share of lagging jobs"], ratios["HDDs per SSD"]) == (0.2, 5)


def test_another_scale_keeps_the_ratios() -> None:
    load = LabWorkload()
    for name, value in load.scaled(1e-3, 1e-2, 0.5).ratios().items():
        if name != "fetch over page cache":
            assert value == pytest.approx(load.ratios()[name], rel=0.02), name


@EACH
def test_a_seed_determines_a_run(architecture: Architecture) -> None:
    load = replace(SMALL, warm_s=4.0, measured_s=8.0)
    one, again, other = (LabBroker(load, architecture, Flush.Rate, seed).run() for seed in (1, 1, 2))
    assert one == again
    assert one.cold_reads != other.cold_reads


@EACH
@pytest.mark.parametrize("flush", Flush)
def test_each_read_is_counted_once_and_takes_time(architecture: Architecture, flush: Flush) -> None:
    found = measured(architecture, flush)
    assert sum(found.chunks.values()) == len(found.cold_reads) + len(found.real_time_reads)
    assert min([*found.writes, *found.cold_reads, *found.real_time_reads]) > 0


def test_what_is_written_arrives_at_the_devices() -> None:
    """Each byte once on HDDs alone, twice with write-through, and in the tiered log once and once more as a copy."""
    expected = SMALL.traffic * SMALL.measured_s
    leaders = SMALL.leaders / SMALL.partitions
    for name, times in {"HDD": 1, "OpenCAS-like": 2, "tiered": 1 + leaders}.items():
        found = measured(BY_NAME[name], case=Case.RealTime)
        written = sum(sum(series) for series in found.disk_writes.values())
        assert written == pytest.approx(times * expected, rel=0.12), name


def test_the_tiered_log_reads_lagging_data_from_ssds_in_a_fifth_of_the_time() -> None:
    disk, tiered = figured(BY_NAME["HDD"]), figured(BY_NAME["tiered"])
    assert disk["HDD share"] > 0.1
    assert (tiered["HDD share"], tiered["SSD hit rate"]) == (0, 1)
    assert tiered["cold read mean ms"] < 0.2 * disk["cold read mean ms"]
    assert tiered["real-time HDD share"] == 0


def test_cold_reads_that_bypass_the_page_cache_leave_real_time_data_there() -> None:
    plain, bypass = (measured(BY_NAME[name]) for name in ("tiered", "tiered, cold reads bypass"))
    assert bypass.chunks["hot memory"] > plain.chunks["hot memory"]
    assert len(bypass.cold_reads) == pytest.approx(len(plain.cold_reads), rel=0.02)


def test_lagging_jobs_read_at_random_times_as_often_as_they_catch_up() -> None:
    load = LabWorkload()
    one, other = placement.drawn(load, 1), placement.drawn(load, 1)
    gaps = [[next(job) for _ in range(500)] for job in one.gaps]
    assert gaps == [[next(job) for _ in range(500)] for job in other.gaps], "a seed determines them"
    assert np.mean(gaps) == pytest.approx(load.period_s / load.catch_up, rel=0.05)
    assert len({tuple(job) for job in gaps}) == round(load.jobs * load.lagging), "none keeps step with another"


def test_a_flush_by_count_makes_a_produce_wait_for_its_burst() -> None:
    count, rate = (figured(BY_NAME["HDD"], flush, Case.RealTime) for flush in (Flush.Count, Flush.Rate))
    assert count["write p99 ms"] > 100 * rate["write p99 ms"]


def test_a_flush_by_count_writes_all_its_chunks_at_once() -> None:
    """Of 25 chunks in the queue of one disk, each but the first waits for no other stream and seeks no more."""
    broker = LabBroker(Case.RealTime.of(replace(SMALL, warm_s=0.0)), BY_NAME["HDD"], Flush.Count, 1)
    broker._unflushed[0] = 25
    broker._flush_by_count(0.0, 0, 24, due=0.0)
    model, chunk = SMALL.hdd, SMALL.chunk
    assert broker.devices.hdd(0).busy_s == pytest.approx(25 * chunk / model.bandwidth + model.seek_s(2))


def test_copies_are_spread_in_time_and_flushes_by_rate_over_the_seconds() -> None:
    """A rate of copies twice as high as that of leaders' data makes each HDD write copies half of the time."""
    short = replace(Case.RealTime.of(SMALL), warm_s=5.0, measured_s=10.0)
    found = {
        share: figures(
            [LabBroker(replace(short, copy_share=share), BY_NAME["tiered"], Flush.Rate, 1).run()],
            short.chunk,
            short.measured_s,
        )["peak over mean by the second"]
        for share in (1.1, 4.0)
    }
    assert found[1.1] < found[4.0]


def test_writes_of_the_tiered_log_by_rate_are_steady_by_100_ms_and_an_ssd_bears_five_hdds() -> None:
    load = replace(LabWorkload(), warm_s=10.0, measured_s=10.0)
    assert load.hdds == 5 * load.ssds
    broker = LabBroker(load, BY_NAME["tiered"], Flush.Rate, 1)
    found = broker.run()
    assert max(each.busy_s for each in broker.devices.ssds) < (load.warm_s + load.measured_s) / 3
    assert figures([found], load.chunk, load.measured_s)[PEAK] <= 1.5
    assert peak_over_mean(found.disk_writes["ssd0"]) <= 1.5


def test_a_measured_host_takes_the_place_of_the_constants_of_memory() -> None:
    host = HostLatency(writes_s=(3.0,), reads_s=(0.25,), begun_reads_s=(0.001,), device_reads_s=(0.125,))
    load = replace(Case.Both.of(SMALL), host=host)
    found = LabBroker(load, BY_NAME["tiered, cold reads bypass"], Flush.Rate, 1).run()
    assert set(map(float, np.round(found.writes, 6))) == {3.0}
    assert min(found.real_time_reads) == pytest.approx(0.25 + 0.008)
    assert min(found.cold_reads) > 0.125 + SMALL.chunk / SMALL.ssd.bandwidth + 0.008


CACHED_CHUNKS = int(SMALL.page_cache / SMALL.chunk)


class SlowStore(DiskStore):
    """Notes which part of which chunk is read when; each takes `read_s`."""

    def __init__(self, devices: Devices, read_s: float) -> None:
        super().__init__(devices)
        self.read_s = read_s
        self.asked: list[tuple[float, int, int]] = []

    def read(
        self, now: float, partition: int, number: int, reader: object, part: int = 0, parts: int = 1
    ) -> tuple[str, float]:
        self.asked.append((round(1000 * now, 3), number - placement.SPAN // 2, part))
        return "hdd", now + self.read_s


def fetched(
    read_s: float,
    first: int,
    fetches: int,
    *,
    fetch_ahead: bool = False,
    each_s: float = 1.0,
    fills: Sequence[tuple[float, int]] = (),
) -> tuple[list[float], list[tuple[float, int, int]]]:
    """Return what fetches of a partition's old chunks take, and the reads of the device, in ms. `fills`: at what second
    how many other chunks enter the page cache."""
    load = replace(SMALL, memory_s=0.0, memory=math.inf, fetch_ahead=fetch_ahead)
    broker = LabBroker(load, BY_NAME["HDD"], Flush.Rate, 1)
    broker.measured.clear()
    broker.store = store = SlowStore(broker.devices, read_s)
    took: list[float] = []
    for at in range(fetches):
        begun = at * each_s

        def received(done: float, begun: float = begun) -> None:
            took.append(round(1000 * (done - begun), 3))

        broker.at(begun, broker._fetch, Fetch(0, first + at, 0, "cold", received))

    def fill(now: float, at: int, chunks: int) -> None:
        for other in range(chunks):
            broker.cache.insert(placement.chunk_of(at, other), now)

    for at, (second, chunks) in enumerate(fills, 1):
        broker.at(second, fill, at, chunks)
    while broker._events:
        now, _, action, arguments = heapq.heappop(broker._events)
        action(now, *arguments)
    return took, store.asked


def test_a_fetch_takes_the_round_trips_of_its_consumer() -> None:
    """1 MiB is 16 times 64 KiB, and a round trip 0.5 ms."""
    chunk_in_memory = -1
    assert fetched(0.0, chunk_in_memory, 1) == ([8.0], [])


def test_the_next_window_is_read_when_the_reader_comes_to_the_one_before() -> None:
    """Each ms 128 KiB are sent. The first fetch waits for its first window, the second one found it read ahead."""
    took, asked = fetched(0.0009, -5_000, 2)
    assert took == [8.9, 8.0]
    first = [(0.0, -5_000, 0), (0.9, -5_000, 1), (1.9, -5_000, 2), (2.9, -5_000, 3)]
    assert asked[:4] == first
    assert asked[7:10] == [(6.9, -5_000, 7), (7.9, -4_999, 0), (1000.0, -4_999, 1)]


def test_a_device_that_is_slower_than_the_network_is_waited_for_once_the_send_buffer_is_empty() -> None:
    """36 KiB of the 100 KiB are sent ahead, 0.281 ms of the network's time. A window comes 3 ms after it is read."""
    took, asked = fetched(0.003, -5_000, 1)
    assert [each[0] for each in asked[:6]] == [0.0, 3.0, 4.0, 6.719, 7.719, 10.437], "7 is when the third window comes"
    assert took == [17.875]


def test_nothing_is_read_ahead_beyond_the_end_of_a_segment() -> None:
    devices = LabBroker(SMALL, BY_NAME["HDD"], Flush.Rate, 1).devices
    last = next(
        at
        for at in range(-5_000, -4_000)
        if devices.segment_of(0, placement.SPAN // 2 + at) != devices.segment_of(0, placement.SPAN // 2 + at + 1)
    )
    took, asked = fetched(0.0009, last, 2)
    assert took == [8.9, 8.9]
    assert (1000.0, last + 1, 0) in asked


def test_a_broker_reads_the_chunk_behind_an_answered_one() -> None:
    """The first fetch waits for its first window, the second finds its chunk in memory."""
    took, asked = fetched(0.0009, -5_000, 2, fetch_ahead=True)
    assert took == [8.9, 8.0]
    ahead = [(at, window) for at, number, window in asked if number == -4_999]
    assert [window for _, window in ahead] == [*range(SMALL.windows)]
    assert ahead[0][0] > 7
    assert ahead[-1][0] < 1_000
    assert {number for _, number, _ in asked} == {-5_000, -4_999, -4_998}


def test_a_fetch_waits_for_a_chunk_that_is_being_read_ahead() -> None:
    """The second fetch is of 600 ms, its chunk's last window comes at 901.876, and its network takes 8."""
    took, asked = fetched(0.1, -5_000, 2, fetch_ahead=True, each_s=0.6)
    assert took[1] == 309.875
    assert len([one for one in asked if one[1] == -4_999]) == SMALL.windows, "it is not read a second time"


def test_the_background_reads_two_windows_at_once() -> None:
    """Coming to a window it has the next one read, as a fetch does; the last window has the next chunk's first read."""
    _, asked = fetched(0.1, -5_000, 1, fetch_ahead=True)
    at = {(number, window): round(at) for at, number, window in asked}
    assert [at[-4_999, window] for window in range(8)] == [403, 502, 503, 602, 603, 702, 703, 802]
    assert at[-4_998, 0] == 803


def test_a_chunk_that_is_evicted_while_it_is_read_ahead_is_read_again() -> None:
    """All of it: each window is evicted before the fetch that waited comes to it."""
    for second, reads in ((0.4, 1), (0.7, 2)):
        fills = [(second, 2 * CACHED_CHUNKS)]
        _, asked = fetched(0.1, -5_000, 2, fetch_ahead=True, each_s=0.6, fills=fills)
        assert len([one for one in asked if one[1] == -4_999]) == reads * SMALL.windows


def test_a_first_window_that_was_read_before_the_rest_is_evicted_before_it() -> None:
    """It is read at 403 ms, with the chunk before, the rest from 502 on. The second fetch waits for it alone."""
    for between, took_ms in ((0, 8.0), (10, 108.0)):
        fills = [(0.45, between), (0.95, CACHED_CHUNKS - 5)]
        took, asked = fetched(0.1, -5_000, 2, fetch_ahead=True, fills=fills)
        assert took[1] == took_ms
        assert ((1_000.0, -4_999, 0) in asked) == (took_ms > 100)


def test_a_chunk_that_is_read_anew_has_a_new_first_window() -> None:
    broker = LabBroker(SMALL, BY_NAME["HDD"], Flush.Rate, 1)
    for read_anew in (False, True):
        broker._first_evicted[7] = 0
        if read_anew:
            broker._first_window(0.0, Fetch(0, 7, 0, "cold", lambda _done: None), 7)
        assert broker._lost_first(7) is not read_anew


def test_the_kernel_writes_all_that_waits_when_what_waits_would_be_evicted() -> None:
    broker = LabBroker(SMALL, BY_NAME["HDD"], Flush.Rate, 1)
    wrote: list[tuple[int, int, float]] = []

    def write(now: float, partition: int, number: int, nbytes: float) -> float:
        wrote.append((partition, number - placement.SPAN // 2, nbytes / SMALL.chunk))
        return now + 1.0

    broker.store.write = write  # type: ignore[method-assign]
    broker._written[:2], broker._unflushed[:2], broker._flushed_slices[0] = [4, 9], [2, 1], broker.slices * 3 + 1
    in_partition = partial(placement.chunk_of, 0)
    assert not broker.cache.keeps(in_partition(placement.SPAN // 2 + 2))
    assert broker.cache.keeps(in_partition(placement.SPAN // 2 + 4))
    assert broker.cache.keeps(in_partition(placement.SPAN // 2 + 3))
    assert wrote == [(0, 3, 1 - 1 / broker.slices), (0, 4, 1.0), (1, 9, 1.0)]
    broker._slices_due[0] = 1
    broker._write_slice(0.5, 0)
    assert len(wrote) == 3, "the flush waits for what the kernel writes"
    assert [(at, action) for at, _, action, _ in broker._events] == [(1.0, broker._slice_written)]


def stored() -> TieredStore:
    store = LabBroker(SMALL, BY_NAME["tiered"], Flush.Rate, 1).store
    assert isinstance(store, TieredStore)
    return store


def only_durable_copies_leave_the_ssds(store: TieredStore) -> bool:
    """Roll segments of which none is copied until the SSDs are overfull, then copy one."""
    uncopied = []
    for segment in range(
        placement.SPAN // 2 // store.devices.per_segment, placement.SPAN // 2 // store.devices.per_segment + 400
    ):
        for partition in range(store.devices.load.leaders):
            if (partition, segment) in store.segments:
                store.rolled(partition, segment)
                uncopied.append(store.segments[partition, segment])
    first = store.begin_copy(0)
    assert first is not None
    store.copied(first)
    return all(each.state in ON_SSD for each in uncopied if each is not first)


def test_a_segment_without_a_copy_stays_on_its_ssd() -> None:
    assert only_durable_copies_leave_the_ssds(stored())


def test_an_eviction_of_what_has_no_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_segment(segments: Iterable[LabSegment], used: int, threshold: int, target: int) -> list[LabSegment]:
        return [*segments] if used > threshold else []

    monkeypatch.setattr(placement, "to_evict", any_segment)
    assert not only_durable_copies_leave_the_ssds(stored())


def reads_change_nothing(store: TieredStore) -> bool:
    for each in store.segments.values():
        each.state = SegmentState.WithoutCache
    before = {key: each.state for key, each in store.segments.items()}
    for number in range(placement.SPAN // 2 - 100, placement.SPAN // 2):
        store.read(0.0, 0, number, "reader")
    written = sum(device.written for device in store.devices.ssds)
    return written == 0 and before == {key: each.state for key, each in store.segments.items()}


def test_a_read_from_an_hdd_is_never_written_back() -> None:
    assert reads_change_nothing(stored())


def test_a_write_back_on_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = TieredStore.read

    def written_back(self: TieredStore, now: float, partition: int, number: int, reader: object) -> tuple[str, float]:
        self.devices.ssd(partition).submit(now, reader, self.devices.load.chunk, write=True)
        return read(self, now, partition, number, reader)

    monkeypatch.setattr(TieredStore, "read", written_back)
    assert not reads_change_nothing(stored())


def test_the_bands_and_the_peak_are_computed_as_described() -> None:
    jobs = [[0.001] * 10, [0.02] * 10, [0.07] * 10, [0.3] * 10, [2.0] * 10, []]
    assert bands(jobs) == [0.2] * 5
    assert peak_over_mean([1.0, 1.0, 4.0]) == 2.0
    assert joined([1.0, 2.0, 3.0, 4.0, 5.0], 2) == [3.0, 7.0]


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "LabWorkload", lambda: replace(SMALL, measured_s=1.0, warm_s=0.5))
    assert main(["lab", "tiers", "--quick", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert len(rows) == len({(row["architecture"], row["flush"], row["case"]) for row in rows}) == 36
    assert main(["lab", "tiers", "--quick"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in tiers.TABLES)
    assert str(LabRun(ARCHITECTURES[0], Flush.Rate, Case.Both)) == "HDD, flush by rate, real-time and lagging"
    assert LogStorage.Tiered.value == "tiered"


def test_agreement_counts_close_values_and_pairs_in_one_order() -> None:
    run_list = [LabRun(each, Flush.Rate, Case.Both) for each in ARCHITECTURES[:3]]
    real = {run: {"HDD share": value} for run, value in zip(run_list, (0.5, 0.3, 0.9), strict=True)}
    model = {run: {"HDD share": value} for run, value in zip(run_list, (0.5, 0.2, 0.21), strict=True)}
    row = next(line for line in tiers.agreement(real, model) if line[0] == "HDD share")
    assert row == ["HDD share", "3", "1", "2", "1", "1.50"], "0.2 and 0.21 do not differ; 0.5 and 0.21 have two orders"


def test_each_line_is_held_against_its_limit() -> None:
    hdd, tiered = ARCHITECTURES[0], ARCHITECTURES[3]
    found = {
        LabRun(hdd, Flush.Rate, Case.Both): {"cold read mean ms": 100.0, tiers.P99: 30.0},
        LabRun(tiered, Flush.Rate, Case.Both): {
            "cold read mean ms": 21.0,
            tiers.P99: 1.2,
            "real-time HDD share": 0.0,
            PEAK: 1.5,
        },
        LabRun(hdd, Flush.Rate, Case.RealTime): {tiers.P99: 2.0},
        LabRun(tiered, Flush.Rate, Case.RealTime): {tiers.P99: 1.0, PEAK: 1.51},
    }
    again = {run: {tiers.P99: 1.0} for run in found}
    rows = [*tiers.verdicts(found, {20: tiers.p99_ratios([found, again, again])})]
    assert "tiered, 20 jobs per HDD, median of 3" in rows[2][0]
    assert [(row[1], row[3]) for row in rows[1:]] == [
        ("79.0", "no"),
        ("1.00", "yes"),
        ("1.00", "no"),
        ("1.51", "no"),
        ("1.50", "yes"),
        ("0.00", "yes"),
    ]
    head = ["figure", "values", "within 30%", "pairs that differ", "in the same order", "median"]
    table = [head, ["a", "3", "3", "2", "1", "1"], ["b", "2", "2", "0", "0", "1"]]
    assert [row[1:] for row in tiers.agreement_verdicts(table)] == [["5 of 5", "all", "yes"], ["1 of 2", "all", "no"]]


def test_the_plots_are_drawn(tmp_path: Path) -> None:
    run_list = [LabRun(each, flush, Case.RealTime) for each in ARCHITECTURES for flush in Flush]
    one = replace(SMALL, warm_s=2.0, measured_s=2.0)
    found = {run: LabBroker(Case.RealTime.of(one), run.architecture, run.flush, 1).run() for run in run_list}
    tiers_plots.disk_writes(tmp_path / "writes.png", "Models", found)
    results = [
        figures([each], one.chunk, one.measured_s) | {"cold read mean ms": 1.0, "band 1": 1.0}
        for each in found.values()
    ]
    tiers_plots.by_traffic(tmp_path, [100], run_list, results)
    by_run = dict(zip(run_list, results, strict=True))
    tiers_plots.agreement(tmp_path, by_run, by_run, ["write mean ms", "HDD share"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "writes.png",
        "tiers-latency.png",
        "tiers-shares.png",
        "tiers-agreement.png",
    }
