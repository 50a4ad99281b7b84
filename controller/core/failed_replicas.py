"""Replicas that their brokers can't serve though they live: a log directory failed. Known of one term, from what the
brokers answered to its LeaderAndIsr; a broker that is gone, or comes back, is asked anew. No I/O.

Nearly always there are none, and then nothing here costs anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from controller.core.partition_table import Bools, Int32s, PartitionTable, Rows

Key = tuple[str, int]


class FailedReplicas:
    """Topic and partition, by broker."""

    def __init__(self) -> None:
        self._by_broker: dict[int, set[Key]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_broker)

    def of(self, broker: int) -> frozenset[Key]:
        return frozenset(self._by_broker.get(broker, ()))

    def heard(self, broker: int, failed: Collection[Key], sound: Collection[Key]) -> frozenset[Key]:
        """Record a broker's answer for some of its replicas; return those that have failed since its last answer."""
        known = self._by_broker.get(broker, set())
        now = (known - set(sound)) | set(failed)
        if now:
            self._by_broker[broker] = now
        else:
            self._by_broker.pop(broker, None)
        return frozenset(now - known)

    def forget(self, brokers: Iterable[int]) -> None:
        for broker in brokers:
            self._by_broker.pop(broker, None)

    def forget_topics(self, names: Collection[str]) -> None:
        for broker in list(self._by_broker):
            self.heard(broker, (), [key for key in self._by_broker[broker] if key[0] in names])

    def usable(self, table: PartitionTable, rows: Rows, brokers: Int32s, mask: Bools) -> Bools:
        """`mask`, bool like `brokers` (int32[n, w] beside `rows`), without the replicas that failed."""
        for broker, keys in self._by_broker.items():
            hit = np.isin(rows, rows_of(table, keys))
            mask = mask & ~((brokers == broker) & hit[:, None])
        return mask

    def among(self, brokers: tuple[int, ...], key: Key) -> tuple[int, ...]:
        """Those of `brokers` whose replica of this partition has not failed."""
        if not self._by_broker:
            return brokers
        return tuple(broker for broker in brokers if key not in self._by_broker.get(broker, ()))


def rows_of(table: PartitionTable, keys: Iterable[Key]) -> Rows:
    known = (table.row_of(topic, partition) for topic, partition in keys)
    return np.array(sorted(row for row in known if row is not None), dtype=np.int64)
