"""`camerlengo whatif`: what a cluster would lose with its brokers, racks, pairs of brokers. Reads only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from controller.cli.main import UsageError
from controller.cli.output import output_file
from controller.cli.requirements import SPARK, Need
from controller.cli.state import CouldNotRead, add_source_options, read_source
from controller.cli.values import integer
from controller.cli.whatif_text import lines, whatif_document
from controller.pipeline.failure_impact import ClusterColumns, FailureImpact, FailureImpacts, TopicDefaults, columns_of

COULD_NOT_RUN = 3


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
        print("\n".join(lines(columns, losses, named, worst)))
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
