"""The impact on a cluster's partitions when brokers fail simultaneously: pure functions over columns.

Any registered broker may fail. A topic's `min.insync.replicas` and `unclean.leader.election.enable` are its own, else
the cluster's dynamic default, else what the caller says: a broker's server.properties are not in ZooKeeper.

A case is a partition and the brokers of it that fail; its outcome is found by the columnar election. The impact of a
set of brokers is then a sum: of the impact of each of them alone, and, for each two (and three) of them, a correction
from only those partitions that hold a replica on both (on all three). The corrections of all pairs are found from one
case for each pair within each partition, a few million in the largest cluster; a pair of brokers that shares no
partition needs no election.

For one first broker all second ones are done at once: the leaders that each survivor would have are one matrix, a row
for each second broker, made from the two brokers' own gains and the few corrections where both held the same partition.

The impact is what the failure itself causes: a partition that was offline or short of in-sync replicas before is not
counted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from controller.zookeeper import codecs, paths
from controller.zookeeper.cluster_state import ClusterState, Tree
from controller.zookeeper.operations import DamagedZnode
from statemachines.leader_election_columns import Ids, Mask, elect_offline_columns, is_member, live_mask

MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
NOBODY = -1


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What holds for a topic that sets nothing itself, in a cluster that sets no dynamic default (Kafka's own are 1
    and False)."""

    min_in_sync: int = 1
    unclean: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClusterColumns:
    """n partitions, a row each, as they stand once everything that can be led is led.

    `brokers`: the registered ones' ids, ascending; `racks` by broker, "" for none. `assignment` and `isr` are padded
    with -1; `isr` has live members only, `leader` is -1 where no replica can lead. `live` is bool beside `assignment`.
    """

    brokers: tuple[int, ...]
    racks: Mapping[int, str]
    topics: tuple[str, ...]
    topic_index: Ids
    partition: Ids
    assignment: Ids
    isr: Ids
    leader: Ids
    live: Mask
    min_in_sync: Ids
    unclean: Mask

    def __len__(self) -> int:
        return len(self.leader)

    def name(self, row: int) -> str:
        return f"{self.topics[self.topic_index[row]]}-{self.partition[row]}"


def columns_of(state: ClusterState, tree: Tree, defaults: TopicDefaults) -> ClusterColumns:
    """`state` is what `tree` says of its cluster. A setting that can't be read counts as not set."""
    table = state.partitions
    held, states = table.assignments, table.states
    asked = [_asked_of(tree, name, defaults) for name in held.names]
    min_in_sync = np.array([one.min_in_sync for one in asked], dtype=np.int32)[held.topic_index]
    unclean = np.array([one.unclean for one in asked], dtype=np.bool_)[held.topic_index]
    racks = {
        broker.broker_id: (broker.registration.rack if broker.registration else None) or "" for broker in state.brokers
    }
    return settled(
        racks, held.names, held.topic_index, held.partition, held.assignment, states.isr, states.leader,
        min_in_sync, unclean,
    )  # fmt: skip


def settled(
    racks: Mapping[int, str],
    topics: tuple[str, ...],
    topic_index: Ids,
    partition: Ids,
    assignment: Ids,
    isr: Ids,
    leader: Ids,
    min_in_sync: Ids,
    unclean: Mask,
) -> ClusterColumns:
    """Return the cluster with the live brokers `racks`, after the controller has elected all electable leaders: a
    leader that is not live is replaced, and dead members leave the ISR."""
    brokers = tuple(sorted(racks))
    live = live_mask(assignment, brokers)
    led = live_mask(leader, brokers)
    elected = elect_offline_columns(assignment, isr, live, unclean)
    in_sync = np.full((len(leader), max(isr.shape[1], elected.isr.shape[1])), NOBODY, dtype=np.int32)
    in_sync[:, : isr.shape[1]] = isr
    in_sync[~led, : elected.isr.shape[1]] = elected.isr[~led]
    return ClusterColumns(
        brokers=brokers,
        racks=racks,
        topics=topics,
        topic_index=topic_index,
        partition=partition,
        assignment=assignment,
        isr=np.where(live_mask(in_sync, brokers), in_sync, NOBODY).astype(np.int32),
        leader=np.where(led, leader, elected.leader).astype(np.int32),
        live=live,
        min_in_sync=min_in_sync,
        unclean=unclean,
    )


def _asked_of(tree: Tree, topic: str, defaults: TopicDefaults) -> TopicDefaults:
    own, dynamic = _config(tree, paths.config_topic(topic)), _config(tree, paths.CONFIG_BROKER_DEFAULT)
    asked = {**dynamic, **own}
    words = asked.get(MIN_IN_SYNC, "")
    return TopicDefaults(
        min_in_sync=int(words) if words.isdigit() else defaults.min_in_sync,
        unclean=asked[UNCLEAN].lower() == "true" if UNCLEAN in asked else defaults.unclean,
    )


def _config(tree: Tree, path: str) -> Mapping[str, str]:
    row = tree.get(path)
    if row is None:
        return {}
    try:
        return codecs.decode_config(path, row.data).config
    except DamagedZnode:
        return {}


def replicas_of(columns: ClusterColumns, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """[n, width]: of each of the partitions `rows` the live brokers whose loss can matter to it, -1 after them: its
    replicas, and members of its ISR and its leader, should they be no replicas. As places in `columns.brokers`,
    ascending."""
    parts = (columns.assignment[rows], columns.isr[rows], columns.leader[rows][:, None])
    everyone = np.concatenate(parts, axis=1)
    brokers = np.array(columns.brokers, dtype=np.int32)
    places = np.searchsorted(brokers, everyone).astype(np.int32)
    there = live_mask(everyone, columns.brokers)
    far = np.int32(len(brokers))
    places = np.sort(np.where(there, places, far), axis=1)
    places[:, 1:][places[:, 1:] == places[:, :-1]] = far
    places = np.sort(places, axis=1)
    width = max(1, int((places < far).sum(axis=1).max(initial=1)))
    packed: npt.NDArray[np.int32] = np.where(places < far, places, NOBODY)[:, :width]
    return packed


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
class FailureImpact:
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


class FailureImpacts:
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

    def of(self, lost: Sequence[int]) -> FailureImpact:
        """ValueError for a broker that is not live."""
        gone = tuple(sorted(set(lost)))
        if unknown := set(gone) - set(self._columns.brokers):
            raise ValueError(f"no live brokers: {sorted(unknown)}")
        ids = np.array(gone, dtype=np.int32)
        rows = self._held_by(ids)
        then = outcomes(self._columns, rows, np.broadcast_to(ids, (len(rows), len(ids))))
        leads = self._led - self._counted(self._columns.leader[rows]) + self._counted(then.leader)
        left = ~np.isin(self._brokers, ids)
        return FailureImpact(
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
class ImpactTerms:
    """The summands for sets of one size: `sets` [m, size] places of brokers, ascending and each set once; `counts`
    [m, 3] what it adds to offline, unclean and under (corrections may be negative). `gains`, a row each: the set's
    row in `sets`, the place of the broker that leads more, and by how many partitions."""

    sets: Ids
    counts: npt.NDArray[np.int64]
    gains: npt.NDArray[np.int64]


def impact_terms(columns: ClusterColumns, rows: Rows, size: int) -> ImpactTerms:
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


def _summed(case_sets: Ids, counts: npt.NDArray[np.int64], gained: npt.NDArray[np.int64], brokers: int) -> ImpactTerms:
    """Cases of equal sets added up; gains that cancel are gone."""
    keys = keys_of(case_sets, brokers)
    distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
    summed = np.zeros((len(distinct), 3), dtype=np.int64)
    np.add.at(summed, group, counts)
    where = group[gained[:, 0]] * brokers + gained[:, 1]
    places, back = np.unique(where, return_inverse=True)
    by = np.bincount(back, weights=gained[:, 2], minlength=len(places)).astype(np.int64)
    gains = np.stack((places // max(brokers, 1), places % max(brokers, 1), by), axis=1)
    return ImpactTerms(case_sets[first], summed, gains[gains[:, 2] != 0])


def keys_of(sets: Ids, brokers: int) -> npt.NDArray[np.int64]:
    """One number for each set of places: its members as digits to the base `brokers`."""
    keys = np.zeros(len(sets), dtype=np.int64)
    for place in range(sets.shape[1]):
        keys = keys * brokers + sets[:, place]
    return keys


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Over b brokers, by their places. `led` [b]: partitions led before. `alone` [b, 3] and `gains` [b, b] (lost
    broker, heir) are of each broker alone; `pairs` are the corrections, `keys` their sets, ascending, and
    `gain_starts` [m + 1] where each set's gains begin."""

    led: Int64s
    alone: Int64s
    gains: npt.NDArray[np.int32]
    pairs: ImpactTerms
    keys: Int64s
    gain_starts: Int64s

    @property
    def brokers(self) -> int:
        return len(self.led)


def sums_of(led: Int64s, alone: ImpactTerms, pairs: ImpactTerms) -> Sums:
    """Add up terms of sizes 1 and 2 as `impact_terms` returns them: sets ascending, gains grouped by set."""
    brokers = len(led)
    counts = np.zeros((brokers, 3), dtype=np.int64)
    counts[alone.sets[:, 0]] = alone.counts
    gains = np.zeros((brokers, brokers), dtype=np.int32)
    gains[alone.sets[alone.gains[:, 0], 0], alone.gains[:, 1]] = alone.gains[:, 2]
    starts = np.searchsorted(pairs.gains[:, 0], np.arange(len(pairs.sets) + 1))
    return Sums(led, counts, gains, pairs, keys_of(pairs.sets, brokers), starts)


@dataclass(frozen=True, slots=True, eq=False)
class PairLosses:
    """Of one first broker with each second one after it: `counts` [m, 3] offline, unclean, under; `most_led` [m] the
    most that any survivor leads then, `led` [m] what they lead together."""

    second: Int64s
    counts: Int64s
    most_led: Int64s
    led: Int64s


def pair_impacts(sums: Sums, first: int) -> PairLosses:
    second = np.arange(first + 1, sums.brokers)
    counts = sums.alone[first] + sums.alone[second]
    low, high = np.searchsorted(sums.keys, (first * sums.brokers, (first + 1) * sums.brokers))
    corrected = sums.pairs.sets[low:high, 1] - first - 1
    counts[corrected] += sums.pairs.counts[low:high]
    leads = sums.gains[second]  # a copy, which becomes what each survivor leads
    leads += (sums.led + sums.gains[first]).astype(np.int32)
    gains = sums.pairs.gains[sums.gain_starts[low] : sums.gain_starts[high]]
    leads[sums.pairs.sets[gains[:, 0], 1] - first - 1, gains[:, 1]] += gains[:, 2].astype(np.int32)
    leads[:, first] = 0
    leads[np.arange(len(second)), second] = 0
    most = leads.max(axis=1).astype(np.int64) if leads.size else np.zeros(len(second), dtype=np.int64)
    return PairLosses(second, counts, most, leads.sum(axis=1, dtype=np.int64))


def triple_counts(sums: Sums, sets: Ids, correction: Int64s) -> Int64s:
    """[m, 3] of the triples `sets` [m, 3] (places, ascending), with what they add of their own."""
    counts: Int64s = correction + sums.alone[sets].sum(axis=1)
    for pair in ((0, 1), (0, 2), (1, 2)):
        keys = keys_of(sets[:, pair], sums.brokers)
        found = np.minimum(np.searchsorted(sums.keys, keys), max(0, len(sums.keys) - 1))
        if len(sums.keys):
            counts += np.where((sums.keys[found] == keys)[:, None], sums.pairs.counts[found], 0)
    return counts
