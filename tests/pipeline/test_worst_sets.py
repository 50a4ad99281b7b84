"""The worst pairs and triples on Spark are those that brute force finds, in the same order, whatever the slices."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from controller.pipeline.heat_map import heat_map_svg
from controller.pipeline.worst_sets import WorstSets, worst_sets
from tests.pipeline.clusters import PlainCluster, PlainPartition, counted


def cluster(brokers: int, partitions: int) -> PlainCluster:
    chance = random.Random(4)
    rows = []
    for _ in range(partitions):
        assignment = tuple(chance.sample(range(brokers + 1), chance.choice((2, 3))))  # the last broker is dead
        isr = assignment[: chance.choice((1, 2, 3))]
        rows.append(PlainPartition(assignment, isr, isr[0], 2, chance.random() < 0.2))
    return PlainCluster(tuple(range(brokers)), tuple(rows))


@pytest.fixture(scope="module")
def small() -> PlainCluster:
    return cluster(12, 60)


@pytest.fixture(scope="module")
def found(spark: Any, small: PlainCluster) -> WorstSets:
    return worst_sets(spark, small.columns(), shown=200, slice_rows=17)


def worst_first(small: PlainCluster, sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    def badness(lost: tuple[int, ...]) -> tuple[int, ...]:
        offline, unclean, under, leaders = counted(small, lost)
        peak = max(leaders.values()) if len(lost) == 2 else 0
        return (-offline, -unclean, -under, -peak, *lost)

    return sorted(sets, key=badness)


def test_all_pairs_in_the_order_of_brute_force(found: WorstSets, small: PlainCluster) -> None:
    assert found.pairs_examined == 66
    assert [one.brokers for one in found.pairs] == worst_first(small, [*combinations(small.live, 2)])
    for one in found.pairs:
        offline, unclean, under, leaders = counted(small, one.brokers)
        assert (one.offline, one.unclean, one.under) == (offline, unclean, under)
        assert one.most_led == max(leaders.values())


def test_the_triples_that_share_a_partition(found: WorstSets, small: PlainCluster) -> None:
    sharing = {tuple(sorted(set(one.assignment) & set(small.live))) for one in small.partitions}
    expected = worst_first(small, [ids for ids in sharing if len(ids) == 3])
    assert [one.brokers for one in found.triples] == expected
    for one in found.triples:
        assert (one.offline, one.unclean, one.under) == counted(small, one.brokers)[:3]


def test_the_heat_map_has_every_pair(found: WorstSets, small: PlainCluster) -> None:
    assert found.heat.labels == tuple(map(str, small.live))
    for a, b in combinations(small.live, 2):
        offline, _, under, _ = counted(small, (a, b))
        assert (found.heat.offline[a, b], found.heat.under[b, a]) == (offline, under)
    assert heat_map_svg(found.heat).count("<rect") == 2 * 12 * 12 + 1
