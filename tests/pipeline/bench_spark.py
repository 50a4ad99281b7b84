"""`python -m tests.pipeline.bench_spark campaign|analysis`: what Spark makes of two cores and of little memory; not one
of the tests.

`campaign` runs seeds in this process alone, on local[2] and alone again (a shared machine is not as fast all day), and
compares the rates; with --partitions it does so for each number, and compares the tables. `analysis` makes the logs of
a cluster, one broker's far larger than the others', and analyses them on local[2], beside a plain parse of the same
lines; it tells the memory of all processes. Every rate comes with processor time, for a machine that is in use.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.pipeline.analysis import analyse
from controller.pipeline.campaign import Campaign, Result, SettingPoint, Traces, retrying, run_all, run_campaign
from controller.pipeline.reading import chunks_of
from controller.pipeline.session import spark_session
from controller.pipeline.store import write_events
from controller.scenarios.files import load_scenario
from tests.pipeline.bench import plain_parse
from tests.pipeline.generated_logs import generate_cluster
from tests.pipeline.processes_used import Sampler, used

MASTER = "local[2]"
STEADY = (0.1, 0.8)
"""The part of a campaign that is measured: past the workers' start, before tasks run out."""


def campaign_of(scenario: str, seeds: int) -> Campaign:
    point = SettingPoint((("records", "false"),), load_scenario(scenario, {"records": "false"}))
    return Campaign(scenario, (point,), 1, seeds, Traces.NONE)


def alone(campaign: Campaign, runs: int, folder: Path) -> tuple[float, float]:
    """Runs a second by the clock and a second of processor time, one core, past the first runs."""
    whole = run_all(campaign, range(runs + 3), folder, "alone")
    for _ in zip(range(3), whole, strict=False):
        pass
    began_s, cpu_s = time.monotonic(), time.process_time()
    done = sum(1 for _ in whole)
    return done / (time.monotonic() - began_s), done / (time.process_time() - cpu_s)


def on_spark(campaign: Campaign, folder: Path, partitions: int | None) -> tuple[list[Result], float, float, float]:
    """Results; runs a second by the clock and a second of the workers' processor time, and how many cores the workers
    kept busy, all in the steady part."""
    seen: list[tuple[float, int, float]] = []
    with spark_session("bench", retrying(MASTER)) as spark:
        jvm = spark.sparkContext._gateway.proc.pid

        def look(known: Sequence[Result]) -> None:
            seen.append((time.monotonic(), len(known), used(jvm).python_cpu_s))

        results = run_campaign(spark, campaign, folder, partitions, look)
    low, high = (share * len(campaign) for share in STEADY)
    steady = [one for one in seen if low <= one[1] <= high]
    (began_s, first, first_cpu_s), (ended_s, last, last_cpu_s) = steady[0], steady[-1]
    cpu_s, wall_s, done = last_cpu_s - first_cpu_s, ended_s - began_s, last - first
    return results, done / wall_s, done / cpu_s, cpu_s / wall_s


def measure_campaign(arguments: argparse.Namespace) -> None:
    campaign = campaign_of(arguments.scenario, arguments.seeds)
    few = max(10, arguments.seeds // 20)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before = alone(campaign, few, folder / "before")
        print(f"alone: {before[0]:.2f} runs/s, {before[1]:.2f} a CPU s", flush=True)
        tables = []
        for partitions in arguments.partitions or [None]:
            results, rate, rate_cpu, busy = on_spark(campaign, folder / f"spark-{partitions}", partitions)
            tables.append(results)
            print(
                f"{partitions or 'its own'} partitions: {len(results)} runs, {rate:.2f}/s on {MASTER},"
                f" {rate_cpu:.2f} a CPU s, {busy:.2f} cores busy with runs",
                flush=True,
            )
            after = alone(campaign, few, folder / f"after-{partitions}")
            one, one_cpu = ((early + late) / 2 for early, late in zip(before, after, strict=True))
            before = after
            print(f"alone: {after[0]:.2f} runs/s, {after[1]:.2f} a CPU s", flush=True)
            print(
                f"    of one core, the mean of before and after: {rate / one:.2f} times by the clock,"
                f" {busy * rate_cpu / one_cpu:.2f} times by processor time",
                flush=True,
            )
        print("the tables are equal" if all(table == tables[0] for table in tables) else "THE TABLES DIFFER")


def measure_analysis(arguments: argparse.Namespace) -> None:
    for megabytes in arguments.megabytes:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            logs, table = Path(scratch) / "logs", Path(scratch) / "table"
            lines = generate_cluster(logs, megabytes)
            print(f"{megabytes:g} MB, {lines} lines", flush=True)
            _analysed(logs, table, lines, arguments.heap_mb)
            if not arguments.no_plain:
                _plain(logs, lines)


def _analysed(logs: Path, table: Path, lines: int, heap_mb: int) -> None:
    with spark_session("bench", MASTER, {"spark.driver.memory": f"{heap_mb}m"}) as spark:
        jvm = spark.sparkContext._gateway.proc.pid
        spark.range(2).mapInArrow(lambda batches: batches, "id long").count()  # the workers have started
        with Sampler(jvm) as sampler:
            before, began_s = used(jvm), time.monotonic()
            write_events(spark, chunks_of([logs]), table)
            _told("parsed on local[2]", began_s, before, used(jvm), lines)
            before, began_s = used(jvm), time.monotonic()
            found = analyse(spark, table)
            _told("analysed", began_s, before, used(jvm), lines)
        print(f"    at most {sampler.jvm_mb:.0f} MB the JVM, {sampler.python_mb:.0f} MB each of Python's workers")
        print(
            f"    {found.sizes['violations']} violations, {found.sizes['terms']} terms,"
            f" {found.sizes['leftovers']} lines left over",
            flush=True,
        )


def _told(what: str, began_s: float, before: Any, after: Any, lines: int) -> None:
    wall_s = time.monotonic() - began_s
    # Workers that were idle for a minute end, and theirs is lost.
    python_s = max(0.0, after.python_cpu_s - before.python_cpu_s)
    jvm_s = after.jvm_cpu_s - before.jvm_cpu_s
    print(
        f"    {what}: {wall_s:.1f} s ({lines / wall_s:.0f} lines/s),"
        f" processor time {python_s:.1f} s Python, {jvm_s:.1f} s JVM",
        flush=True,
    )


def _plain(logs: Path, lines: int) -> None:
    began_s, cpu_s = time.monotonic(), time.process_time()
    events = sum(plain_parse(path) for path in sorted(logs.rglob("*.log")))
    wall_s = time.monotonic() - began_s
    cpu_s = time.process_time() - cpu_s
    print(
        f"    plain parse: {wall_s:.1f} s ({lines / wall_s:.0f} lines/s), processor time {cpu_s:.1f} s, {events} events"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    campaign = commands.add_parser("campaign")
    campaign.add_argument("--scenario", default="broker-kill")
    campaign.add_argument("--seeds", type=int, default=2000)
    campaign.add_argument("--partitions", type=int, nargs="+", help="runs all seeds again for each number")
    campaign.set_defaults(measure=measure_campaign)
    analysis = commands.add_parser("analysis")
    analysis.add_argument("--megabytes", type=float, nargs="+", default=[100.0], help="of logs, a run each")
    analysis.add_argument("--no-plain", action="store_true", help="without the plain parse")
    analysis.add_argument("--scratch", type=Path, help="where logs and tables go, and are deleted")
    analysis.add_argument(
        "--heap-mb", type=int, default=1024, help="of the JVM: it takes what it may before it tidies up"
    )
    analysis.set_defaults(measure=measure_analysis)
    arguments = parser.parse_args()
    arguments.measure(arguments)


if __name__ == "__main__":
    main()
