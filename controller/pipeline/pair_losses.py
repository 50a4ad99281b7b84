"""What sets of two and three brokers cost, added up from terms (`losses.terms`): pure functions over columns.

For one first broker all second ones are done at once: the leaders that each survivor would have are one matrix, a row
a second broker, made from the two brokers' own gains and the few corrections where both held the same partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controller.pipeline.losses import Terms, keys_of
from statemachines.leader_election_columns import Ids

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Over b brokers, by their places. `led` [b]: partitions led before. `alone` [b, 3] and `gains` [b, b] (lost
    broker, heir) are of each broker alone; `pairs` are the corrections, `keys` their sets, ascending, and
    `gain_starts` [m + 1] where each set's gains begin."""

    led: Int64s
    alone: Int64s
    gains: npt.NDArray[np.int32]
    pairs: Terms
    keys: Int64s
    gain_starts: Int64s

    @property
    def brokers(self) -> int:
        return len(self.led)


def sums_of(led: Int64s, alone: Terms, pairs: Terms) -> Sums:
    """Terms as `losses.terms` gives them for sizes 1 and 2: sets ascending, gains grouped by set."""
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


def pair_losses(sums: Sums, first: int) -> PairLosses:
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
