"""Which latencies `camerlengo bench cold-reads` counts, and where the records are that its readers read."""

from __future__ import annotations

import math
import os
from contextlib import closing
from pathlib import Path

import pytest

from tests.benchmarks.cold_reads import (
    COLD,
    FETCH_BYTES,
    SEGMENT_MB,
    BenchClient,
    SpeedSample,
    TieredCluster,
    at_usual_speed,
    await_cold,
    cold_records,
    fill,
    slow_among,
    start,
)
from tests.benchmarks.common import CouldNotRun


def test_all_requests_of_an_even_machine_count() -> None:
    assert at_usual_speed([(1.0, 1.5), (2.0, 4.0), (3.0, 4.25)], []) == [500.0, 2_000.0, 1_250.0]


@pytest.mark.parametrize("slow", [(1.5, 2.5), (2.5, 3.5), (1.0, 9.0), (2.25, 2.5), (2.75, 4.0)])
def test_a_request_that_meets_a_slow_time_is_left_out(slow: tuple[float, float]) -> None:
    assert at_usual_speed([(0.0, 0.5), (2.0, 3.0), (10.0, 10.5)], [slow, (20.0, math.inf)]) == [500.0, 500.0]


def test_so_is_one_that_waited_for_it_and_one_within_a_longer_slow_time_that_began_earlier() -> None:
    asked = [(2.0, 5.0), (4.0, 7.0), (6.0, 8.0), (8.5, 9.0), (12.0, 12.5), (20.0, 20.5)]
    assert at_usual_speed(asked, [(11.0, 11.5), (1.0, 3.0), (10.0, 15.0)]) == [500.0, 500.0]


def test_a_request_that_waited_for_a_slow_answer_counts() -> None:
    assert at_usual_speed([(2.0, 5.0), (4.0, 5.5)], [(6.0, 7.0)]) == [3_000.0, 1_500.0]


def test_the_machine_is_slow_where_a_sample_is_late_or_its_loop_takes_long() -> None:
    samples = [SpeedSample(float(at), 0.0001 * (at % 3), 10_000 + at) for at in range(20)]
    assert slow_among(samples) == []
    samples[3] = SpeedSample(3.0, 0.002, 10_000)
    samples[9] = SpeedSample(9.0, 0.0, 31_000)
    samples[19] = SpeedSample(19.0, 0.0, 31_000)
    assert slow_among(samples) == [(3.0, 5.0), (9.0, 11.0), (19.0, math.inf)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="has no CPUs of a process's own")
def test_a_child_runs_on_the_cpus_of_who_starts_it() -> None:
    """Planted: leave it to the system. A thread starts all processes, and had the broker's CPU: so had its clients."""
    allowed = os.sched_getaffinity(0)
    for cpu in sorted(allowed)[:2]:
        try:
            os.sched_setaffinity(0, {cpu})
            child = start("slow_times", {})
        finally:
            os.sched_setaffinity(0, allowed)
        with closing(child):
            assert os.sched_getaffinity(child.pid) == {cpu}


def test_with_tiers_what_the_readers_read_is_on_the_hdd_alone(tmp_path: Path) -> None:
    with TieredCluster(brokers=1, data_dir=tmp_path) as cluster:
        at = cluster.brokers[1].ready_at()
        assert at is not None
        fill(at, 3 * SEGMENT_MB)
        await_cold(tmp_path / "ssd" / "cold-0", end := cold_records(SEGMENT_MB))
        copied = [int(path.stem) for path in (tmp_path / "logs-1").glob("cold-0*/*.log")]
        assert min(copied) == 0 < max(copied)
        client = BenchClient(at)
        assert all(len(client.fetch(COLD, offset, FETCH_BYTES)) for offset in (0, end - 1))


def test_records_that_stay_on_the_ssd_are_reported(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000512.log").touch()
    await_cold(tmp_path, 512)
    with pytest.raises(CouldNotRun, match=f"{tmp_path} has records from 512 on after 0.1 s: expected none before 513"):
        await_cold(tmp_path, 513, 0.1)
