"""`camerlengo whatif`: the impact on a cluster of losing brokers, racks, pairs of brokers. Reads only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from controller.cli.main import COULD_NOT_RUN, UsageError
from controller.cli.requirements import SPARK, Need
from controller.cli.state import CouldNotRead, add_source_options, read_source
from controller.cli.terminal import show
from controller.cli.values import integer, output_file
from controller.pipeline.failure_impact import ClusterColumns, FailureImpact, FailureImpacts, TopicDefaults, columns_of
from controller.report.summary import render_table

if TYPE_CHECKING:
    from controller.pipeline.worst_failures import FailedSet, WorstFailures


FORMAT = 1
BROKERS_SHOWN = 20
PARTITIONS_SHOWN = 20
_HEAD = ("lost", "offline", "unclean", "under min ISR", "leaders moved", "leads most then", "skew")

Named = Sequence[tuple[str, str, FailureImpact]]


def whatif_lines(
    columns: ClusterColumns, losses: FailureImpacts, named: Named, worst: WorstFailures | None
) -> Iterator[str]:
    now = losses.of(())
    unled = int((columns.leader < 0).sum())
    yield f"{len(columns)} partitions on {len(columns.brokers)} live brokers; {unled} have no replica that could lead"
    yield f"leaders: {now.most_led} at most (broker {now.most_loaded}), skew {now.skew:.2f}"
    yield from _named(columns, named, "chosen", "the chosen sets, lost")
    yield from _named(columns, named, "rack", "each rack lost")
    yield from _named(columns, named, "broker", "each broker lost, worst first")
    if worst is not None:
        yield from _sets(losses, worst.pairs, f"worst of all {worst.pairs_examined} pairs")
        yield from _sets(losses, worst.triples, f"worst of {worst.triples_examined} triples that share a partition")


def _named(columns: ClusterColumns, named: Named, kind: str, title: str) -> Iterator[str]:
    found = [(name, loss) for each, name, loss in named if each == kind]
    if not found:
        return
    if kind == "broker":
        found.sort(key=lambda one: (-one[1].offline, -one[1].unclean, -one[1].under, -one[1].most_led, one[1].lost))
    yield from ("", title)
    yield render_table([_HEAD, *(_row(name, loss) for name, loss in found[:BROKERS_SHOWN])])
    if len(found) > BROKERS_SHOWN:
        yield f"and {len(found) - BROKERS_SHOWN} more (--json has all)"
    if kind == "chosen":
        for name, loss in found:
            yield from _partitions(columns, f"offline without {name}", loss.offline_rows)
            yield from _partitions(columns, f"under min.insync.replicas without {name}", loss.under_rows)


def _partitions(columns: ClusterColumns, title: str, rows: Sequence[int]) -> Iterator[str]:
    if rows:
        more = f" and {len(rows) - PARTITIONS_SHOWN} more" if len(rows) > PARTITIONS_SHOWN else ""
        yield f"{title}: {', '.join(columns.name(row) for row in rows[:PARTITIONS_SHOWN])}{more}"


def _row(name: str, loss: FailureImpact) -> tuple[str, ...]:
    most = f"{loss.most_loaded} ({loss.most_led})" if loss.survivors else "none"
    counts = (loss.offline, loss.unclean, loss.under, loss.moved)
    return (name, *map(str, counts), most, f"{loss.skew:.2f}")


def _sets(losses: FailureImpacts, found: Sequence[FailedSet], title: str) -> Iterator[str]:
    if found:
        yield from ("", title)
        shown = [(",".join(map(str, one.brokers)), losses.of(one.brokers)) for one in found]
        yield render_table([_HEAD, *(_row(name, loss) for name, loss in shown)])


def whatif_document(
    columns: ClusterColumns, losses: FailureImpacts, named: Named, worst: WorstFailures | None
) -> dict[str, Any]:
    """docs/pipeline.md has its fields."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "partitions": len(columns),
        "brokers": list(columns.brokers),
        "cannot_be_led": int((columns.leader < 0).sum()),
        "now": _leaders(losses.of(())),
        "lost": [{"kind": kind, "name": name, **_loss(columns, loss)} for kind, name, loss in named],
    }
    if worst is not None:
        document["pairs_examined"] = worst.pairs_examined
        document["triples_examined"] = worst.triples_examined
        document["worst_pairs"] = [_loss(columns, losses.of(one.brokers)) for one in worst.pairs]
        document["worst_triples"] = [_loss(columns, losses.of(one.brokers)) for one in worst.triples]
    return document


def _loss(columns: ClusterColumns, loss: FailureImpact) -> dict[str, Any]:
    return {
        "brokers": list(loss.lost),
        "offline": loss.offline,
        "unclean": loss.unclean,
        "under_min_isr": loss.under,
        "leaders_moved": loss.moved,
        **_leaders(loss),
        "offline_partitions": [columns.name(row) for row in loss.offline_rows],
        "under_min_isr_partitions": [columns.name(row) for row in loss.under_rows],
    }


def _leaders(loss: FailureImpact) -> dict[str, Any]:
    led = {str(broker): count for broker, count in zip(loss.survivors, loss.leaders, strict=True)}
    return {"leaders": led, "skew": round(loss.skew, 3)}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "For every broker, every rack and each chosen set of brokers lost: what goes offline, what falls under"
        " min.insync.replicas, who leads then. Then the worst pairs of all, and the worst triples among those that"
        " share a partition (on Spark). Nothing is written."
    )
    add_source_options(parser)
    parser.add_argument(
        "--lose", action="append", default=[], metavar="ID,ID...", help="set of brokers to lose; may be repeated"
    )
    parser.add_argument(
        "--min-insync-replicas",
        type=integer(1, 32_767),
        default=1,
        metavar="N",
        help="value for topics that do not set it (1)",
    )
    parser.add_argument("--unclean", action="store_true", help="allow unclean elections for topics that do not set it")
    parser.add_argument(
        "--worst",
        type=integer(0, 1_000_000),
        default=10,
        metavar="N",
        help="number of pairs and triples to show (10); 0: none",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document (docs/pipeline.md)")
    parser.add_argument(
        "--heat-map", type=output_file, metavar="FILE", help="write a heat map of all pairs to FILE, as SVG"
    )
    parser.add_argument("--master", default="local[*]", metavar="URL", help="URL of the Spark master (local[*])")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return SPARK if arguments.worst else ()


def run(arguments: argparse.Namespace) -> int:
    if arguments.heat_map is not None and not arguments.worst:
        raise UsageError("--heat-map: expected --worst above 0")
    try:
        tree, state = read_source(arguments)
    except CouldNotRead as error:
        print(f"camerlengo whatif: {error}", file=sys.stderr)
        return COULD_NOT_RUN
    columns = columns_of(state, tree, TopicDefaults(arguments.min_insync_replicas, arguments.unclean))
    if not columns.brokers:
        raise UsageError("no broker is registered")
    losses = FailureImpacts(columns)
    named = [*_named_sets(columns, losses, _chosen(arguments.lose, columns.brokers))]
    worst = None
    if arguments.worst and len(columns.brokers) > 1:
        from controller.pipeline.session import spark_session
        from controller.pipeline.worst_failures import heat_map_svg, worst_failures

        with spark_session("whatif", arguments.master) as spark:
            worst = worst_failures(spark, columns, arguments.worst)
        if arguments.heat_map is not None:
            _write(arguments.heat_map, heat_map_svg(worst.heat))
    if arguments.json:
        document = whatif_document(columns, losses, named, worst)
        print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode("utf-8"))
    else:
        show("\n".join(whatif_lines(columns, losses, named, worst)))
    return 0


def _chosen(words: Sequence[str], live: Sequence[int]) -> list[tuple[int, ...]]:
    chosen = []
    for word in words:
        try:
            ids = tuple(sorted({int(number) for number in word.split(",")}))
        except ValueError as error:
            raise UsageError(f"--lose {word}: expected broker ids, such as 1,2") from error
        if unknown := sorted(set(ids) - set(live)):
            raise UsageError(f"--lose {word}: not registered: {', '.join(map(str, unknown))}")
        chosen.append(ids)
    return chosen


def _named_sets(
    columns: ClusterColumns, losses: FailureImpacts, chosen: Sequence[tuple[int, ...]]
) -> Iterator[tuple[str, str, FailureImpact]]:
    """(kind, name, loss): chosen sets first, then racks, then brokers."""
    for ids in chosen:
        yield "chosen", ",".join(map(str, ids)), losses.of(ids)
    for rack in sorted({rack for rack in columns.racks.values() if rack}):
        yield "rack", rack, losses.of([broker for broker, where in columns.racks.items() if where == rack])
    for broker in columns.brokers:
        yield "broker", str(broker), losses.of([broker])


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
