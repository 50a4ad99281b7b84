"""`camerlengo analyze PATH...`: what traces and real brokers' logs say of a cluster, on Spark."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.main import UsageError
from controller.cli.requirements import SPARK, Need
from controller.cli.terminal import show
from controller.cli.values import integer, output_folder
from controller.report.summary import render_table

if TYPE_CHECKING:
    from controller.pipeline.analysis import Analysis, Row

HELD, BROKEN = 0, 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads trace.parquet files and Kafka's controller.log and state-change.log (plain or gzipped, a folder a"
        " broker), wherever they lie below each PATH, and says who was controller, what each lost broker cost, which"
        " partitions had no leader, and whether something happened that must never. Times are the logs' own."
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a directory to search")
    parser.add_argument(
        "--report",
        type=output_folder,
        metavar="DIR",
        help="write report.html, the tables and the events (Parquet) there",
    )
    parser.add_argument(
        "--until", type=_time, metavar="TIME", help="ignore later events; for example 2026-11-21T08:05:36"
    )
    parser.add_argument(
        "--min-insync-replicas",
        type=integer(1, 32_767),
        default=1,
        metavar="N",
        help="report partitions with fewer in-sync replicas (1)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="follow growing logs until Ctrl-C and update the --report, which is required",
    )
    parser.add_argument("--master", default="local[*]", metavar="URL", help="URL of the Spark master (local[*])")


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-21T08:05:36, got {text!r}") from error
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return SPARK


def run(arguments: argparse.Namespace) -> int:
    from controller.pipeline.analysis import analyse
    from controller.pipeline.reading import NothingToRead, chunks_of, unreadable_traces
    from controller.pipeline.report import report_html
    from controller.pipeline.session import spark_session
    from controller.pipeline.store import write_events

    if arguments.follow:
        return _follow(arguments)
    try:
        chunks = chunks_of(arguments.paths)
    except NothingToRead as error:
        raise UsageError(str(error)) from error
    problems = unreadable_traces(chunks)
    if problems:
        raise UsageError("no trace can be read:\n  " + "\n  ".join(problems))
    with tempfile.TemporaryDirectory(prefix="camerlengo-") as scratch:
        folder = arguments.report or Path(scratch)
        events, tables = folder / "events", folder / "tables"
        with spark_session("analyze", arguments.master) as spark:
            write_events(spark, chunks, events)
            keep = tables if arguments.report is not None else None
            found = analyse(spark, events, arguments.min_insync_replicas, arguments.until, keep)
        if arguments.report is not None:
            page = report_html(found, ", ".join(path.name or str(path) for path in arguments.paths))
            (folder / "report.html").write_text(page, encoding="utf-8")
    show("\n".join(_lines(found)))
    return BROKEN if found.broken else HELD


def _follow(arguments: argparse.Namespace) -> int:
    from controller.pipeline.follow import follow
    from controller.pipeline.report import headlines, report_html
    from controller.pipeline.session import spark_session

    if arguments.report is None or arguments.until is not None:
        raise UsageError("--follow: expected --report and no --until")
    printed: set[str] = set()

    def renew(found: Analysis) -> None:
        page = report_html(found, ", ".join(path.name or str(path) for path in arguments.paths))
        (arguments.report / "report.html").write_text(page, encoding="utf-8")
        for line in (*headlines(found), *_violations(found)):
            if line not in printed:
                printed.add(line)
                print(line, flush=True)

    with spark_session("follow", arguments.master) as spark:
        follow(spark, arguments.paths, arguments.report, arguments.min_insync_replicas, renew)
    return HELD


def _violations(found: Analysis) -> Iterator[str]:
    for one in found.rows["violations"]:
        where = f"{one['topic']}-{one['partition']}: " if one["topic"] else ""
        yield f"VIOLATION at {one['at']}: {one['rule']}: {where}{one['detail']}"


def _lines(found: Analysis) -> Iterator[str]:
    from controller.pipeline.report import headlines

    yield from headlines(found)
    for one in found.rows["bad_times_by_kind"]:
        longest = "" if one["longest_ms"] is None else f", the longest {one['longest_ms']:g} ms"
        lasting = f", {one['lasting']} of them to the end" if one["lasting"] else ""
        yield f"{one['what']}: {one['stretches']} times, {one['partitions']} partitions{longest}{lasting}"
    chosen = [(one["why"], str(one["elections"]), str(one["moved"]), "unclean" if one["unclean"] else "")
              for one in found.rows["elections"]]  # fmt: skip
    if chosen:
        yield from ("", render_table([("elections", "held", "moved a leader", ""), *chosen]), "")
    took = [(one["run"], _when(one), one["what"], str(one["records"]), f"{one['p50_ms']:.1f}", f"{one['p99_ms']:.1f}")
            for one in found.rows["latencies"]]  # fmt: skip
    if took:
        yield from (render_table([("run", "when", "latency (ms)", "records", "p50", "p99"), *took]), "")
    yield from _violations(found)
    yield f"{found.sizes['violations']} violations" if found.broken else "no violation found"
    if found.sizes["leftovers"]:
        yield f"{found.sizes['leftovers']} lines are not events; the report's tables list them separately"


def _when(latency: Row) -> str:
    fault = "" if latency["fault"] is None else f" {latency['fault']} {latency['target']}"
    return f"{latency['when']}{fault}"
