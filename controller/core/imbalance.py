"""Leader imbalance, and the partitions that an automatic preferred election moves.

A partition's preferred leader is its assignment's first replica. For each broker, the imbalance is the share of the
partitions that prefer it and that it does not lead. Above a given percentage their leadership is moved back to it.
Pure: columns in, columns out. Source: KafkaController.checkAndTriggerAutoLeaderRebalance (2.8 to 3.9).
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
    """Return those of `rows` that are off their preferred leader, if that leader's imbalance is above `percentage`.

    The comparison is in integers: an imbalance of exactly `percentage` percent is not above it.
    """
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
