"""What the loss of brokers does: sums over terms equal looking at every partition for every set, one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from controller.pipeline.failure_impact import (
    FailureImpacts,
    ImpactTerms,
    Sums,
    impact_terms,
    pair_impacts,
    sums_of,
    triple_counts,
)
from tests.pipeline.clusters import PlainCluster, PlainPartition, clusters, counted


def sums(cluster: PlainCluster) -> tuple[Sums, ImpactTerms]:
    columns = cluster.columns()
    rows = np.arange(len(columns))
    brokers = np.array(columns.brokers)
    led = np.bincount(np.searchsorted(brokers, columns.leader[columns.leader >= 0]), minlength=len(brokers))
    return sums_of(led, impact_terms(columns, rows, 1), impact_terms(columns, rows, 2)), impact_terms(columns, rows, 3)


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_any_set_lost_costs_what_its_partitions_say_one_by_one(cluster: PlainCluster) -> None:
    losses = FailureImpacts(cluster.columns())
    for size in range(len(cluster.live) + 1):
        for lost in combinations(cluster.live, size):
            loss = losses.of(lost)
            found = (loss.offline, loss.unclean, loss.under, dict(zip(loss.survivors, loss.leaders, strict=True)))
            assert found == counted(cluster, lost)


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_pairs_and_triples_are_the_sums_of_their_terms(cluster: PlainCluster) -> None:
    known, own = sums(cluster)
    for first in range(len(cluster.live)):
        found = pair_impacts(known, first)
        for row, second in enumerate(found.second.tolist()):
            offline, unclean, under, leaders = counted(cluster, (cluster.live[first], cluster.live[second]))
            assert found.counts[row].tolist() == [offline, unclean, under]
            assert found.most_led[row] == max(leaders.values(), default=0)
            assert found.led[row] == sum(leaders.values())
    for row, places in enumerate(own.sets.tolist()):
        lost = [cluster.live[place] for place in places]
        counts = triple_counts(known, own.sets[row : row + 1], own.counts[row : row + 1])
        assert counts[0].tolist() == [*counted(cluster, lost)[:3]]


SHARED = PlainCluster(
    (1, 2, 3), (PlainPartition((1, 2), (1, 2), 1, 1, False), PlainPartition((1, 3), (3, 1), 1, 2, False))
)


def test_a_pair_without_its_correction_is_counted_wrong() -> None:
    known, _ = sums(SHARED)
    assert pair_impacts(known, 0).counts.tolist() == [[1, 0, 1], [1, 0, 0]]
    without = ImpactTerms(
        np.empty((0, 2), dtype=np.int32), np.empty((0, 3), dtype=np.int64), np.empty((0, 3), dtype=np.int64)
    )
    forgotten = sums_of(
        known.led, ImpactTerms(np.array([[0], [1], [2]]), known.alone, np.empty((0, 3), dtype=np.int64)), without
    )
    assert pair_impacts(forgotten, 0).counts.tolist() == [[0, 0, 1], [0, 0, 2]]


def test_a_broker_that_is_not_live_cannot_be_lost() -> None:
    with pytest.raises(ValueError, match=r"no live brokers: \[9\]"):
        FailureImpacts(SHARED.columns()).of([1, 9])


def test_skew_is_the_largest_over_the_mean() -> None:
    loss = FailureImpacts(SHARED.columns()).of([])
    assert (loss.leaders, loss.most_led, loss.most_loaded, loss.skew) == ((2, 0, 0), 2, 1, 3.0)
