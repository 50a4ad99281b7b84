"""The impact on a cluster's partitions when brokers are lost simultaneously: pure functions over columns.

A case is a partition and the brokers of it that are lost; its outcome is found by the columnar election. What a set
of brokers costs is then a sum: of what each of them alone costs, and, for each two (and three) of them, a correction
from only those partitions that hold a replica on both (on all three). The corrections of all pairs are found from one
case for each pair within each partition, a few million in the largest cluster, and no pair of brokers that shares no
partition needs any election at all.

Losses count what the loss itself does: a partition that was offline or short of in-sync replicas before is not
counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from controller.pipeline.cluster_columns import ClusterColumns, replicas_of
from statemachines.leader_election_columns import Ids, Mask, elect_offline_columns, is_member

Rows = npt.NDArray[np.int64]

LOST_AT_ONCE = 3
"""Worst sets are looked for up to this size."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The outcomes, one row for each case.

    `leader`: after the failure (-1: none). The masks: the partition went `offline`, has a leader that was not in the
    ISR (`unclean`), fell `under` min.insync.replicas while it has a leader, or its leadership `moved`.
    """

    leader: Ids
    offline: Mask
    unclean: Mask
    under: Mask
    moved: Mask

    def counts(self) -> npt.NDArray[np.int64]:
        """[n, 3]: offline, unclean, under, as 0 and 1."""
        return np.stack((self.offline, self.unclean, self.under), axis=1).astype(np.int64)


def outcomes(columns: ClusterColumns, rows: Rows, lost: Ids) -> Outcomes:
    """Of the partitions `rows` [n] when the brokers `lost` (ids, [n, k], padded with -1) are gone. `rows` may name
    a partition more than once, each time with other brokers lost."""
    assignment, isr, leader = columns.assignment[rows], columns.isr[rows], columns.leader[rows]
    live = columns.live[rows] & ~is_member(assignment, lost)
    elected = elect_offline_columns(assignment, isr, live, columns.unclean[rows])
    was_led = leader >= 0
    lost_leader = is_member(leader[:, None], lost)[:, 0]
    then = np.where(was_led & ~lost_leader, leader, elected.leader).astype(np.int32)
    unclean = elected.unclean & lost_leader
    in_sync = ((isr >= 0) & ~is_member(isr, lost)).sum(axis=1)
    in_sync[unclean] = 1
    wanted = columns.min_in_sync[rows]
    was_under = was_led & ((isr >= 0).sum(axis=1) < wanted)
    led = then >= 0
    return Outcomes(
        leader=then,
        offline=was_led & ~led,
        unclean=unclean,
        under=led & (in_sync < wanted) & ~was_under,
        moved=lost_leader & led,
    )


@dataclass(frozen=True, slots=True)
class Loss:
    """What losing `lost` does. `leaders` are the surviving brokers' counts of led partitions, in the order of
    `survivors`; `skew` is the largest of them over their mean (1.0 is even, 0.0 where nothing is led)."""

    lost: tuple[int, ...]
    offline: int
    unclean: int
    under: int
    moved: int
    survivors: tuple[int, ...]
    leaders: tuple[int, ...]
    offline_rows: tuple[int, ...]
    under_rows: tuple[int, ...]

    @property
    def most_led(self) -> int:
        return max(self.leaders, default=0)

    @property
    def skew(self) -> float:
        return skew_of(self.most_led, sum(self.leaders), len(self.leaders))

    @property
    def most_loaded(self) -> int:
        """The broker that leads most then; -1 where none is left."""
        if not self.survivors:
            return -1
        return min(zip(self.survivors, self.leaders, strict=True), key=lambda one: (-one[1], one[0]))[0]


def skew_of(most: int, led: int, brokers: int) -> float:
    return most * brokers / led if led else 0.0


class Losses:
    """Answers for chosen sets of brokers, of any size: looks only at the partitions of those that are lost."""

    def __init__(self, columns: ClusterColumns) -> None:
        self._columns = columns
        self._brokers = np.array(columns.brokers, dtype=np.int32)
        replicas = replicas_of(columns, np.arange(len(columns)))
        held = np.flatnonzero(replicas.ravel() >= 0)
        order = np.argsort(replicas.ravel()[held], kind="stable")
        self._rows = held[order] // replicas.shape[1]
        self._starts = np.searchsorted(replicas.ravel()[held][order], np.arange(len(self._brokers) + 1))
        self._led = self._counted(columns.leader)

    def of(self, lost: Sequence[int]) -> Loss:
        """ValueError for a broker that is not live."""
        gone = tuple(sorted(set(lost)))
        if unknown := set(gone) - set(self._columns.brokers):
            raise ValueError(f"no live brokers: {sorted(unknown)}")
        ids = np.array(gone, dtype=np.int32)
        rows = self._held_by(ids)
        then = outcomes(self._columns, rows, np.broadcast_to(ids, (len(rows), len(ids))))
        leads = self._led - self._counted(self._columns.leader[rows]) + self._counted(then.leader)
        left = ~np.isin(self._brokers, ids)
        return Loss(
            lost=gone,
            offline=int(then.offline.sum()),
            unclean=int(then.unclean.sum()),
            under=int(then.under.sum()),
            moved=int(then.moved.sum()),
            survivors=tuple(self._brokers[left].tolist()),
            leaders=tuple(leads[left].tolist()),
            offline_rows=tuple(rows[then.offline].tolist()),
            under_rows=tuple(rows[then.under].tolist()),
        )

    def _held_by(self, ids: Ids) -> Rows:
        parts = [np.empty(0, dtype=np.int64)]
        for place in np.searchsorted(self._brokers, ids).tolist():
            parts.append(self._rows[self._starts[place] : self._starts[place + 1]])
        return np.unique(np.concatenate(parts))

    def _counted(self, leader: Ids) -> npt.NDArray[np.int64]:
        """By place, how many partitions each broker leads."""
        places = np.searchsorted(self._brokers, leader[leader >= 0])
        return np.bincount(places, minlength=len(self._brokers))


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The summands for sets of one size: `sets` [m, size] places of brokers, ascending and each set once; `counts`
    [m, 3] what it adds to offline, unclean and under (corrections may be negative). `gains`, a row each: the set's
    row in `sets`, the place of the broker that leads more, and by how many partitions."""

    sets: Ids
    counts: npt.NDArray[np.int64]
    gains: npt.NDArray[np.int64]


def terms(columns: ClusterColumns, rows: Rows, size: int) -> Terms:
    """What the partitions `rows` contribute to sets of `size` brokers (1 to LOST_AT_ONCE): inclusion and exclusion
    over the subsets of each partition's replicas."""
    replicas = replicas_of(columns, rows)
    brokers = np.array(columns.brokers, dtype=np.int32)
    case_rows, case_sets = _cases(replicas, size)
    counts = np.zeros((len(case_rows), 3), dtype=np.int64)
    gained: list[npt.NDArray[np.int64]] = []
    for part in range(1, size + 1):
        sign = 1 if (size - part) % 2 == 0 else -1
        for chosen in combinations(range(size), part):
            lost = case_sets[:, chosen]
            then = outcomes(columns, rows[case_rows], brokers[lost])
            counts += sign * then.counts()
            moved = np.flatnonzero(then.moved)
            to = np.searchsorted(brokers, then.leader[moved])
            gained.append(np.stack((moved, to, np.full(len(moved), sign)), axis=1).astype(np.int64))
    return _summed(case_sets, counts, np.concatenate(gained), len(brokers))


def _cases(replicas: Ids, size: int) -> tuple[Rows, Ids]:
    """Every choice of `size` replicas of a row: the row's number, and the chosen places [m, size], ascending."""
    found_rows, found_sets = [np.empty(0, dtype=np.int64)], [np.empty((0, size), dtype=np.int32)]
    for chosen in combinations(range(replicas.shape[1]), size):
        there = np.flatnonzero(replicas[:, chosen[-1]] >= 0)
        found_rows.append(there)
        found_sets.append(replicas[there][:, chosen])
    return np.concatenate(found_rows), np.concatenate(found_sets)


def _summed(case_sets: Ids, counts: npt.NDArray[np.int64], gained: npt.NDArray[np.int64], brokers: int) -> Terms:
    """Cases of equal sets added up; gains that cancel are gone."""
    keys = keys_of(case_sets, brokers)
    distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
    summed = np.zeros((len(distinct), 3), dtype=np.int64)
    np.add.at(summed, group, counts)
    where = group[gained[:, 0]] * brokers + gained[:, 1]
    places, back = np.unique(where, return_inverse=True)
    by = np.bincount(back, weights=gained[:, 2], minlength=len(places)).astype(np.int64)
    gains = np.stack((places // max(brokers, 1), places % max(brokers, 1), by), axis=1)
    return Terms(case_sets[first], summed, gains[gains[:, 2] != 0])


def keys_of(sets: Ids, brokers: int) -> npt.NDArray[np.int64]:
    """One number for each set of places: its members as digits to the base `brokers`."""
    keys = np.zeros(len(sets), dtype=np.int64)
    for place in range(sets.shape[1]):
        keys = keys * brokers + sets[:, place]
    return keys
