"""What runs in Spark's own tasks and streams: campaigns, the worst sets of brokers, minutes counted as they pass.

In one file, since a session costs more than all of them: campaigns give the same results for any number of partitions,
after Ctrl-C and with a worker killed; the worst pairs and triples are those that brute force finds, in the same order.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.pipeline.campaign import Campaign, Result, Traces, read_results, run_all, run_campaign
from controller.pipeline.event_table import EVENTS, ddl
from controller.pipeline.follow import counts_by_minute, take_in
from controller.pipeline.worst_failures import WorstFailures, heat_map_svg, worst_failures
from tests.pipeline.clusters import PlainCluster, PlainPartition, counted
from tests.pipeline.test_campaign_runs import campaign
from tests.pipeline.test_follow import STATE_CHANGE, write
from tests.processes import eventually

WANTED = campaign(seeds=4, traces=Traces.FAILING)
LONGER = campaign(seeds=8)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Of LONGER, whose runs with fewer seeds are WANTED's."""
    return [*run_all(LONGER, range(len(LONGER)), tmp_path_factory.mktemp("alone"), "alone")]


def of(wanted: Campaign, longer: list[Result]) -> list[Result]:
    """Results of LONGER as they are numbered in `wanted`."""
    by_run = {(one.point, one.seed): one for one in longer}
    numbered = [(number, *wanted.run_of(number)) for number in range(len(wanted))]
    return [msgspec.structs.replace(by_run[point, seed], number=number) for number, point, seed in numbered]


def test_any_number_of_partitions_gives_the_same_table(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    expected = of(WANTED, alone)
    for partitions in (2, 8, 64):  # no more tasks than runs are made
        assert run_campaign(spark, WANTED, tmp_path / str(partitions), partitions) == expected


def test_a_campaign_goes_on_with_what_is_left(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    before = [result for result, _ in zip(run_all(WANTED, range(8), tmp_path, "0000-000000"), range(3), strict=False)]
    seen: list[int] = []
    results = run_campaign(spark, WANTED, tmp_path, 3, lambda known: seen.append(len(known)))
    assert results == of(WANTED, alone)
    assert results[: len(before)] == before
    assert seen[-1] == 8
    assert run_campaign(spark, WANTED, tmp_path, 3) == results


def test_ctrl_c_and_the_same_call_again(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    def interrupt(known: Sequence[Result]) -> None:
        if known:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_campaign(spark, LONGER, tmp_path, 4, interrupt)
    files = [*(tmp_path / "results").glob("0000-*.jsonl")]
    eventually(lambda: not spark.sparkContext.statusTracker().getActiveStageIds(), "the tasks have stopped")
    before = read_results(files)
    assert len(before) > 0
    assert run_campaign(spark, LONGER, tmp_path, 4) == alone
    again = read_results((tmp_path / "results").glob("0001-*.jsonl"))
    assert {one.number for one in before}.isdisjoint(one.number for one in again)


def test_a_killed_worker_costs_only_the_runs_it_was_in(spark: Any, tmp_path: Path, alone: list[Result]) -> None:
    killed: list[int] = []

    def kill_one(known: Sequence[Result]) -> None:
        if known and len(known) < len(LONGER) and not killed:
            killed.extend(workers_of(spark)[:1])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    results = run_campaign(spark, LONGER, tmp_path, 4, kill_one)
    assert killed
    assert results == alone
    lines = sum(len(file.read_bytes().splitlines()) for file in (tmp_path / "results").glob("*.jsonl"))
    assert len(results) <= lines <= len(results) + 1  # the line that the kill may have torn


def workers_of(spark: Any) -> list[int]:
    """Spark's Python workers: what its daemon, a child of its JVM, has forked."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    ours = {spark.sparkContext._gateway.proc.pid}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    python = {pid for pid in ours if b"pyspark.daemon" in command(pid)}
    return sorted(pid for pid in python if parents[pid] in python)


def command(pid: int) -> bytes:
    """Nothing of a process that has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def cluster(brokers: int, partitions: int) -> PlainCluster:
    chance = random.Random(4)
    rows = []
    for _ in range(partitions):
        assignment = tuple(chance.sample(range(brokers + 1), chance.choice((2, 3))))  # the last broker is dead
        isr = assignment[: chance.choice((1, 2, 3))]
        rows.append(PlainPartition(assignment, isr, isr[0], 2, chance.random() < 0.2))
    return PlainCluster(tuple(range(brokers)), tuple(rows))


@pytest.fixture(scope="module")
def small() -> PlainCluster:
    return cluster(12, 60)


@pytest.fixture(scope="module")
def found(spark: Any, small: PlainCluster) -> WorstFailures:
    return worst_failures(spark, small.columns(), shown=200, slice_rows=17)


def worst_first(small: PlainCluster, sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    def badness(lost: tuple[int, ...]) -> tuple[int, ...]:
        offline, unclean, under, leaders = counted(small, lost)
        peak = max(leaders.values()) if len(lost) == 2 else 0
        return (-offline, -unclean, -under, -peak, *lost)

    return sorted(sets, key=badness)


def test_all_pairs_in_the_order_of_brute_force(found: WorstFailures, small: PlainCluster) -> None:
    assert found.pairs_examined == 66
    assert [one.brokers for one in found.pairs] == worst_first(small, [*combinations(small.live, 2)])
    for one in found.pairs:
        offline, unclean, under, leaders = counted(small, one.brokers)
        assert (one.offline, one.unclean, one.under) == (offline, unclean, under)
        assert one.most_led == max(leaders.values())


def test_the_triples_that_share_a_partition(found: WorstFailures, small: PlainCluster) -> None:
    sharing = {tuple(sorted(set(one.assignment) & set(small.live))) for one in small.partitions}
    expected = worst_first(small, [ids for ids in sharing if len(ids) == 3])
    assert [one.brokers for one in found.triples] == expected
    for one in found.triples:
        assert (one.offline, one.unclean, one.under) == counted(small, one.brokers)[:3]


def test_the_heat_map_has_every_pair(found: WorstFailures, small: PlainCluster) -> None:
    assert found.heat.labels == tuple(map(str, small.live))
    for a, b in combinations(small.live, 2):
        offline, _, under, _ = counted(small, (a, b))
        assert (found.heat.offline[a, b], found.heat.under[b, a]) == (offline, under)
    assert heat_map_svg(found.heat).count("<rect") == 2 * 12 * 12 + 1


def test_a_stream_tells_each_minute_once_when_it_has_passed(spark: Any, tmp_path: Path) -> None:
    source, table = tmp_path / "logs", tmp_path / "table"
    source.mkdir()
    (source / "state-change.log").write_bytes(STATE_CHANGE.read_bytes())
    assert take_in([source], table, 0.0, write) == 1
    stored = spark.readStream.schema(f"{ddl(EVENTS)}, day date").parquet(str(table / "events"))
    writing = counts_by_minute(stored, "1 minute").writeStream.format("memory").queryName("minutes")
    query = writing.outputMode("append").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    told = [(str(row.minute)[11:16], row.event) for row in spark.table("minutes").collect()]
    assert len(told) == len(set(told))
    # The log ends at 08:10:24: the minute from 08:09 on can still get events that are a minute late.
    assert {clock for clock, _ in told} == {"08:05", "08:06", "08:07", "08:08"}
