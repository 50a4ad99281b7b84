"""The worst pairs and triples of brokers to lose, on Spark: slices of partitions give terms, slices of brokers give
pairs; and the heat map of pairs, as one SVG that loads nothing.

The columns are broadcast once; what comes back to the driver are terms, a row a pair that shares a partition, and the
worst few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from controller.pipeline.failure_impact import (
    LOST_AT_ONCE,
    ClusterColumns,
    ImpactTerms,
    Sums,
    impact_terms,
    pair_impacts,
    skew_of,
    sums_of,
    triple_counts,
)

SLICE_ROWS = 50_000
"""Partitions a task: some 350,000 cases of a cluster with three replicas, 50 MB of arrays while they are judged."""
BROKERS_A_TASK = 32
HEAT_CELLS = 100

_TERM = pa.schema([("size", pa.int32()), ("key", pa.int64()), ("to", pa.int64())]
                  + [(name, pa.int64()) for name in ("offline", "unclean", "under", "by")])  # fmt: skip
_PAIR = pa.schema([(name, pa.int64()) for name in ("a", "b", "offline", "unclean", "under", "most_led", "led")])
_TRIPLE = pa.schema([(name, pa.int64()) for name in ("a", "b", "c", "offline", "unclean", "under")])
_TERM_DDL = "size int, key long, to long, offline long, unclean long, under long, by long"
_PAIR_DDL = ", ".join(f"{name} long" for name in _PAIR.names)
_TRIPLE_DDL = ", ".join(f"{name} long" for name in _TRIPLE.names)
_NOBODY = -1

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class FailedSet:
    """One set of brokers (ids) and what losing it does; `most_led` and `skew` of pairs only."""

    brokers: tuple[int, ...]
    offline: int
    unclean: int
    under: int
    most_led: int | None = None
    skew: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """`offline` and `under` [cells, cells], the most that any pair of a cell's brokers costs; `labels` name the
    brokers of a cell. Symmetric; on the diagonal what the brokers cost alone, or paired within their cell."""

    labels: tuple[str, ...]
    offline: np.ndarray[Any, Any]
    under: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class WorstFailures:
    pairs_examined: int
    triples_examined: int
    pairs: tuple[FailedSet, ...]
    triples: tuple[FailedSet, ...]
    heat: HeatMap


def worst_failures(
    spark: SparkSession, columns: ClusterColumns, shown: int, slice_rows: int = SLICE_ROWS
) -> WorstFailures:
    """The `shown` worst pairs of all, and the worst triples of those of which all three hold a replica of one
    partition. Worse is: more offline, then more led uncleanly, then more short of replicas, then the larger peak of
    leaders; equal ones by their ids. `slice_rows` changes nothing but the size of tasks."""
    brokers = np.array(columns.brokers)
    summands = _terms_on(spark, columns, slice_rows).cache()
    sums = sums_of(
        np.bincount(np.searchsorted(brokers, columns.leader[columns.leader >= 0]), minlength=len(brokers)),
        _collected(summands, 1, len(brokers)),
        _collected(summands, 2, len(brokers)),
    )
    held = spark.sparkContext.broadcast(sums)
    tasks = max(1, -(-len(brokers) // BROKERS_A_TASK))
    pairs = spark.range(0, len(brokers), 1, tasks).mapInArrow(_pairs(held), _PAIR_DDL).cache()
    own = summands.where((f.col("size") == 3) & (f.col("to") == _NOBODY))
    triples = own.mapInArrow(_triples(held), _TRIPLE_DDL).cache()
    try:
        return WorstFailures(
            pairs_examined=pairs.count(),
            triples_examined=triples.count(),
            pairs=tuple(_pair(columns, row) for row in _worst(pairs, ("a", "b"), ("most_led",), shown)),
            triples=tuple(_triple(columns, row) for row in _worst(triples, ("a", "b", "c"), (), shown)),
            heat=_heat(columns, sums, pairs),
        )
    finally:
        for frame in (summands, pairs, triples):
            frame.unpersist()
        held.destroy()


def _terms_on(spark: SparkSession, columns: ClusterColumns, slice_rows: int) -> DataFrame:
    """Return terms of all sizes, added up over the slices."""
    held = spark.sparkContext.broadcast(columns)
    slices = max(1, -(-len(columns) // slice_rows))
    rows = spark.range(0, slices, 1, slices).mapInArrow(_slices(held, slice_rows), _TERM_DDL)
    summed = [f.sum(name).alias(name) for name in ("offline", "unclean", "under", "by")]
    return rows.groupBy("size", "key", "to").agg(*summed)


def _slices(held: Any, slice_rows: int) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        columns: ClusterColumns = held.value
        for batch in batches:
            for number in batch.column("id").to_pylist():
                rows = np.arange(number * slice_rows, min(len(columns), (number + 1) * slice_rows))
                for size in range(1, LOST_AT_ONCE + 1):
                    yield from _as_batches(impact_terms(columns, rows, size), size, len(columns.brokers))

    return judge


def _as_batches(found: ImpactTerms, size: int, brokers: int) -> Batches:
    keys = np.zeros(len(found.sets), dtype=np.int64)
    for place in range(size):
        keys = keys * brokers + found.sets[:, place]
    none, gains = np.zeros(len(keys), dtype=np.int64), found.gains
    yield _batch(_TERM, np.full(len(keys), size, np.int32), keys, none + _NOBODY, *found.counts.T, none)
    none = np.zeros(len(gains), dtype=np.int64)
    sizes = np.full(len(gains), size, np.int32)
    yield _batch(_TERM, sizes, keys[gains[:, 0]], gains[:, 1], none, none, none, gains[:, 2])


def _batch(schema: pa.Schema, *arrays: np.ndarray[Any, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(np.ascontiguousarray(array), field.type) for array, field in zip(arrays, schema, strict=True)],
        schema=schema,
    )


def _collected(summands: DataFrame, size: int, brokers: int) -> ImpactTerms:
    """Of one size, as arrays; by key. As many rows as there are sets that share a partition (and their heirs)."""
    table = summands.where(f.col("size") == size).orderBy("key", "to").toArrow()
    column = {name: table.column(name).to_numpy() for name in table.column_names}
    own = column["to"] == _NOBODY
    keys = column["key"][own]
    sets = np.stack([keys // brokers**place % brokers for place in reversed(range(size))], axis=1).astype(np.int32)
    counts = np.stack([column[name][own] for name in ("offline", "unclean", "under")], axis=1)
    gained = ~own & (column["by"] != 0)
    of_set = np.searchsorted(keys, column["key"][gained])
    return ImpactTerms(sets, counts, np.stack((of_set, column["to"][gained], column["by"][gained]), axis=1))


def _pairs(held: Any) -> Callable[[Batches], Batches]:
    def add(batches: Batches) -> Batches:
        sums: Sums = held.value
        for batch in batches:
            for first in batch.column("id").to_pylist():
                found = pair_impacts(sums, first)
                firsts = np.full(len(found.second), first, dtype=np.int64)
                yield _batch(_PAIR, firsts, found.second, *found.counts.T, found.most_led, found.led)

    return add


def _triples(held: Any) -> Callable[[Batches], Batches]:
    def add(batches: Batches) -> Batches:
        sums: Sums = held.value
        for batch in batches:
            keys = batch.column("key").to_numpy()
            sets = np.stack([keys // sums.brokers**place % sums.brokers for place in (2, 1, 0)], axis=1)
            own = np.stack([batch.column(name).to_numpy() for name in ("offline", "unclean", "under")], axis=1)
            counts = triple_counts(sums, sets.astype(np.int32), own)
            yield _batch(_TRIPLE, *sets.T, *counts.T)

    return add


def _worst(sets: DataFrame, names: tuple[str, ...], peak: tuple[str, ...], shown: int) -> list[Any]:
    worse = [f.col(name).desc() for name in ("offline", "unclean", "under", *peak)]
    rows: list[Any] = sets.orderBy(*worse, *names).limit(shown).collect()
    return rows


def _pair(columns: ClusterColumns, row: Any) -> FailedSet:
    ids = (columns.brokers[row.a], columns.brokers[row.b])
    left = len(columns.brokers) - 2
    return FailedSet(ids, row.offline, row.unclean, row.under, row.most_led, skew_of(row.most_led, row.led, left))


def _triple(columns: ClusterColumns, row: Any) -> FailedSet:
    ids = tuple(columns.brokers[place] for place in (row.a, row.b, row.c))
    return FailedSet(ids, row.offline, row.unclean, row.under)


def _heat(columns: ClusterColumns, sums: Sums, pairs: DataFrame) -> HeatMap:
    brokers = len(columns.brokers)
    cells = min(brokers, HEAT_CELLS)
    of_cell = np.arange(brokers) * cells // max(brokers, 1)
    offline, under = np.zeros((cells, cells), dtype=np.int64), np.zeros((cells, cells), dtype=np.int64)
    np.maximum.at(offline, (of_cell, of_cell), sums.alone[:, 0])
    np.maximum.at(under, (of_cell, of_cell), sums.alone[:, 2])
    cell = [f.floor(f.col(name) * cells / brokers).cast("int").alias(name) for name in ("a", "b")]
    most = pairs.select(*cell, "offline", "under").groupBy("a", "b").agg(f.max("offline"), f.max("under")).toArrow()
    a, b, found_offline, found_under = (column.to_numpy() for column in most.columns)
    for one, other in ((a, b), (b, a)):
        np.maximum.at(offline, (one, other), found_offline)
        np.maximum.at(under, (one, other), found_under)
    members = [[columns.brokers[place] for place in np.flatnonzero(of_cell == cell)] for cell in range(cells)]
    labels = tuple(str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}" for ids in members)
    return HeatMap(labels, offline, under)


_SIDE = 720
_MARGIN = 70
_LABELS = 25
"""As many as can be read beside the map."""
_PALETTE = (
    "#f5f6f8",
    "#fde0c5",
    "#facba6",
    "#f8b58b",
    "#f59e72",
    "#f2855d",
    "#ef6a4c",
    "#d23b3b",
    "#9c1f3f",
    "#5f0f40",
)


def heat_map_svg(heat: HeatMap) -> str:
    """Two maps side by side: partitions offline, and partitions under min.insync.replicas."""
    width, height = 2 * (_SIDE + _MARGIN) + 40, _SIDE + _MARGIN + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, sans-serif" font-size="12" fill="#2b2f36">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    parts += _map(heat.labels, heat.offline, "partitions offline when both brokers are lost", 0)
    parts += _map(heat.labels, heat.under, "partitions under min.insync.replicas", _SIDE + _MARGIN + 40)
    return "\n".join([*parts, "</svg>", ""])


def _map(labels: tuple[str, ...], values: Any, title: str, left: int) -> Iterator[str]:
    cells = len(labels)
    most = int(values.max()) if cells else 0
    side = _SIDE / max(cells, 1)
    yield f'<g transform="translate({left + _MARGIN},44)">'
    yield f'<text x="0" y="-24" font-size="15" font-weight="600">{escape(title)}</text>'
    yield f'<text x="0" y="-8" fill="#5c6470">darkest: {most}</text>'
    for row in range(cells):
        for column in range(cells):
            value = int(values[row, column])
            text = f"{labels[row]} and {labels[column]}: {value}" if row != column else f"{labels[row]}: {value}"
            yield (
                f'<rect x="{column * side:.2f}" y="{row * side:.2f}" width="{side + 0.3:.2f}" height="{side + 0.3:.2f}"'
                f' fill="{_colour(value, most)}"><title>{escape(text)}</title></rect>'
            )
    for cell in range(0, cells, max(1, -(-cells // _LABELS))):
        middle = (cell + 0.5) * side
        yield f'<text x="-6" y="{middle + 4:.1f}" text-anchor="end">{escape(labels[cell])}</text>'
        yield (f'<text transform="translate({middle + 4:.1f},{_SIDE + 8}) rotate(90)">{escape(labels[cell])}</text>')
    yield "</g>"


def _colour(value: int, most: int) -> str:
    """Return the colour of a value. Every loss above 0 has another colour than 0."""
    return _PALETTE[0] if value == 0 else _PALETTE[1 + (value * (len(_PALETTE) - 2)) // most]
