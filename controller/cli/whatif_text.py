"""The output of `camerlengo whatif`, as text and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from controller.pipeline.failure_impact import ClusterColumns, FailureImpact, FailureImpacts
from controller.report.summary import render_table

if TYPE_CHECKING:
    from controller.pipeline.worst_failures import FailedSet, WorstFailures

FORMAT = 1
BROKERS_SHOWN = 20
PARTITIONS_SHOWN = 20
_HEAD = ("lost", "offline", "unclean", "under min ISR", "leaders moved", "leads most then", "skew")

Named = Sequence[tuple[str, str, FailureImpact]]


def lines(columns: ClusterColumns, losses: FailureImpacts, named: Named, worst: WorstFailures | None) -> Iterator[str]:
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
