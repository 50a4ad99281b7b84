"""Small clusters to lose brokers of, and what becomes of them one partition at a time by the scalar election."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from controller.pipeline.failure_impact import ClusterColumns, settled
from statemachines.leader_election import elect_offline


@dataclass(frozen=True, slots=True)
class PlainPartition:
    assignment: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    min_in_sync: int
    unclean: bool


@dataclass(frozen=True, slots=True)
class PlainCluster:
    live: tuple[int, ...]
    partitions: tuple[PlainPartition, ...]

    def columns(self) -> ClusterColumns:
        rows = self.partitions
        return settled(
            racks={broker: f"r{broker % 2}" for broker in self.live},
            topics=("t",),
            topic_index=np.zeros(len(rows), dtype=np.int32),
            partition=np.arange(len(rows), dtype=np.int32),
            assignment=_padded([row.assignment for row in rows]),
            isr=_padded([row.isr for row in rows]),
            leader=np.array([row.leader for row in rows], dtype=np.int32),
            min_in_sync=np.array([row.min_in_sync for row in rows], dtype=np.int32),
            unclean=np.array([row.unclean for row in rows], dtype=np.bool_),
        )


def _padded(rows: list[tuple[int, ...]]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    width = max((len(row) for row in rows), default=1)
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int32).reshape(len(rows), width)


@st.composite
def clusters(draw: st.DrawFn) -> PlainCluster:
    """Some brokers dead, some leaders dead or outside the ISR, some partitions with unclean elections."""
    known = range(1, draw(st.integers(2, 7)) + 1)
    live = draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
    partitions = []
    for _ in range(draw(st.integers(1, 8))):
        assignment = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
        isr = draw(st.lists(st.sampled_from(assignment), min_size=1, unique=True))
        leader = draw(st.sampled_from([-1, *isr, *assignment]))
        partitions.append(
            PlainPartition(tuple(assignment), tuple(isr), leader, draw(st.integers(1, 3)), draw(st.booleans()))
        )
    return PlainCluster(tuple(sorted(live)), tuple(partitions))


@dataclass(frozen=True, slots=True)
class PlainState:
    leader: int
    isr: frozenset[int]
    unclean: bool


def after(partition: PlainPartition, leader: int, isr: Collection[int], live: Collection[int]) -> PlainState:
    """By the rule for one partition: who leads, and who is in sync, once only `live` are left."""
    kept = frozenset(isr) & set(live)
    if leader in live:
        return PlainState(leader, kept, unclean=False)
    elected = elect_offline(partition.assignment, tuple(isr), live, partition.unclean)
    if elected is None:
        return PlainState(-1, kept, unclean=False)
    return PlainState(elected.leader, frozenset({elected.leader}) if elected.unclean else kept, elected.unclean)


def counted(cluster: PlainCluster, lost: Collection[int]) -> tuple[int, int, int, dict[int, int]]:
    """Offline, unclean, under min.insync.replicas, and leaders by survivor: each partition looked at by itself."""
    survivors = [broker for broker in cluster.live if broker not in lost]
    offline = unclean = under = 0
    leaders = dict.fromkeys(survivors, 0)
    for partition in cluster.partitions:
        before = after(partition, partition.leader, partition.isr, cluster.live)
        then = after(partition, before.leader, tuple(sorted(before.isr)), survivors)
        was_led, led = before.leader >= 0, then.leader >= 0
        was_under = was_led and len(before.isr) < partition.min_in_sync
        offline += was_led and not led
        unclean += led and then.unclean and was_led
        under += led and len(then.isr) < partition.min_in_sync and not was_under
        if led:
            leaders[then.leader] += 1
    return offline, unclean, under, leaders
