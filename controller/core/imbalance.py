"""How far leadership has drifted from where the assignments want it, and what an automatic preferred election moves.

A partition's preferred leader is its assignment's first replica. Broker by broker: of the partitions that would have it
lead, how many does it not lead? Above so many percent they are given back to it. Pure: columns in, columns out.
Source: KafkaController.checkAndTriggerAutoLeaderRebalance (2.8 to 3.9).
"""

from __future__ import annotations

import numpy as np

from controller.core.partition_table import NO_BROKER, Int32s, PartitionTable, Rows

DENSE_IDS = 1 << 20
"""Up to this broker id brokers are counted in a table, beyond it after sorting."""


def preferred_leaders(table: PartitionTable, rows: Rows) -> Int32s:
    """int32[n]: the first of each assignment; -1 of an empty one."""
    if not table.width:
        return np.full(len(rows), NO_BROKER, dtype=np.int32)
    preferred: Int32s = table.assignment[rows, 0]
    return preferred


def to_rebalance(table: PartitionTable, rows: Rows, percentage: int) -> Rows:
    """Of `rows`, those off their preferred leader whose preferred leader misses more than `percentage` percent of what
    it should lead. In whole numbers: exactly so many percent are not more."""
    off = table.are_off_preferred(rows)
    if not off.any():
        return rows[:0]
    places: Rows = preferred_leaders(table, rows).astype(np.int64) + 1  # of an empty assignment: 0
    if places.max() > DENSE_IDS:
        _, places = np.unique(places, return_inverse=True)
    wanted = np.bincount(places)
    missed = np.bincount(places[off], minlength=len(wanted))
    over = missed * 100 > wanted * percentage
    chosen: Rows = rows[off][over[places[off]]]
    return chosen
