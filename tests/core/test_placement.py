"""Kafka's spread of replicas: its known assignments, and the properties that they show."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.placement import (
    BadPartitions,
    BadReplicationFactor,
    Broker,
    PlacementError,
    RacksIncomplete,
    alternate_racks,
    assign_replicas,
    expand_assignment,
)

NO_CHANCE = random.Random(0)


def brokers(count: int) -> list[Broker]:
    return [(broker, None) for broker in range(count)]


def test_ten_partitions_on_five_brokers_are_where_kafka_puts_them() -> None:
    """The table of AdminUtils' own comment: start index 0, replication factor 3."""
    assert assign_replicas(brokers(5), 10, 3, start_index=0, rng=NO_CHANCE) == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


def test_racks_alternate_in_their_order_and_brokers_in_theirs() -> None:
    assert alternate_racks({0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}) == [
        0,
        3,
        1,
        5,
        4,
        2,
    ]
    assert alternate_racks({0: "a", 1: "b", 2: "a", 3: "a"}) == [0, 1, 2, 3]


def test_rack_aware_assignment_is_kafkas() -> None:
    """Six brokers in three racks, start index 0: the list that the walk is made over is 0 3 1 5 4 2. The shift of one
    whole round of racks comes with the seventh partition."""
    racked: list[Broker] = [(0, "rack1"), (1, "rack3"), (2, "rack3"), (3, "rack2"), (4, "rack2"), (5, "rack1")]
    assert assign_replicas(racked, 7, 3, start_index=0, rng=NO_CHANCE) == {
        0: (0, 3, 1),
        1: (3, 1, 5),
        2: (1, 5, 4),
        3: (5, 4, 2),
        4: (4, 2, 0),
        5: (2, 0, 3),
        6: (0, 4, 2),
    }


@pytest.mark.parametrize(
    ("given_brokers", "partitions", "factor", "error"),
    [
        (brokers(3), 0, 1, BadPartitions),
        (brokers(3), -1, 1, BadPartitions),
        (brokers(3), 1, 0, BadReplicationFactor),
        (brokers(3), 1, 4, BadReplicationFactor),
        ([], 1, 1, BadReplicationFactor),
        ([(0, "a"), (1, None)], 1, 1, RacksIncomplete),
        ([(0, None), (0, None)], 1, 1, PlacementError),
    ],
)
def test_what_cant_be_placed_is_refused(
    given_brokers: list[Broker], partitions: int, factor: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        assign_replicas(given_brokers, partitions, factor, rng=NO_CHANCE)


def test_the_same_seed_places_the_same_and_another_does_not() -> None:
    placed = [assign_replicas(brokers(50), 20, 3, rng=random.Random(seed)) for seed in (1, 1, 2)]
    assert placed[0] == placed[1] != placed[2]


SPREAD = st.tuples(st.integers(1, 12), st.integers(1, 60), st.integers(1, 12), st.integers(0, 5), st.integers(0, 99))


@given(SPREAD)
def test_no_broker_twice_and_leaders_are_spread_evenly(given_case: tuple[int, int, int, int, int]) -> None:
    count, partitions, factor, racks, seed = given_case
    factor = min(factor, count)
    placed_on: list[Broker] = [(b * 7, f"rack{b % racks}" if racks else None) for b in range(count)]
    placed = assign_replicas(placed_on, partitions, factor, rng=random.Random(seed))
    assert list(placed) == list(range(partitions))
    assert all(len(set(replicas)) == len(replicas) == factor for replicas in placed.values())
    led = Counter(replicas[0] for replicas in placed.values())
    assert max(led.values()) - min(led.get(broker, 0) for broker, _ in placed_on) <= 1
    if racks:
        rack_of = dict(placed_on)
        there_are = len(set(rack_of.values()))
        assert all(
            len({rack_of[broker] for broker in replicas}) == min(factor, there_are) for replicas in placed.values()
        )


@given(st.integers(1, 6), st.integers(1, 3), st.integers(2, 4), st.integers(0, 99))
def test_replicas_are_even_where_everything_divides(rounds: int, factor: int, racks: int, seed: int) -> None:
    """As many brokers in each rack, and a whole number of rounds: every broker holds as many replicas."""
    factor = min(factor, racks)
    placed_on: list[Broker] = [(broker, f"rack{broker % racks}") for broker in range(racks * 3)]
    partitions = rounds * len(placed_on)
    placed = assign_replicas(placed_on, partitions, factor, rng=random.Random(seed))
    held = Counter(broker for replicas in placed.values() for broker in replicas)
    assert set(held.values()) == {partitions * factor // len(placed_on)}


def test_an_expansion_walks_on_from_where_the_topic_stands() -> None:
    """Kafka starts at the first replica of partition 0, and counts partitions from how many there are."""
    whole = assign_replicas(brokers(5), 12, 3, start_index=2, rng=NO_CHANCE)
    existing = {partition: replicas for partition, replicas in whole.items() if partition < 4}
    added = expand_assignment(brokers(5), existing, 12, rng=NO_CHANCE)
    assert list(added) == list(range(4, 12))
    assert [added[partition][0] for partition in added] == [whole[partition][0] for partition in added]
    assert all(len(set(replicas)) == 3 for replicas in added.values())


def test_an_expansion_whose_first_broker_is_gone_starts_at_the_next_id() -> None:
    added = expand_assignment([(1, None), (5, None), (9, None)], {0: (4,)}, 4, rng=NO_CHANCE)
    assert added == {1: (9,), 2: (1,), 3: (5,)}
    wrapped = expand_assignment([(1, None), (5, None)], {0: (8,)}, 2, rng=NO_CHANCE)
    assert wrapped == {1: (5,)}


def test_an_expansion_that_adds_nothing_is_refused() -> None:
    with pytest.raises(BadPartitions):
        expand_assignment(brokers(3), {0: (0,), 1: (1,)}, 2, rng=NO_CHANCE)
