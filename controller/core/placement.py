"""Where a new partition's replicas go: Kafka's spread (AdminUtils.assignReplicasToBrokers). Pure; no I/O.

Two aims: every broker gets about as many replicas, and the followers of the partitions that one broker leads are
spread over all others, so that its death moves its load to many. The first replica walks round the brokers, partition
by partition. The others follow at a shift, which grows by one each time the walk has gone all the way round:

    brokers 0 to 4, start 0     p0: 0 1 2   p1: 1 2 3   p2: 2 3 4   p3: 3 4 0   p4: 4 0 1
                                p5: 0 2 3   p6: 1 3 4   ...

With racks the brokers are first dealt out rack by rack (0 of the first, 0 of the second, ..., then 1 of the first), the
same walk is made over that list, and a broker is passed over while its rack has a replica and another rack has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Protocol


class Rng(Protocol):
    """A source of chance that the caller seeds."""

    def randrange(self, stop: int, /) -> int: ...


class PlacementError(ValueError):
    """The replicas asked for can't be placed."""


class BadPartitions(PlacementError):
    """The protocol's INVALID_PARTITIONS."""


class BadReplicationFactor(PlacementError):
    """The protocol's INVALID_REPLICATION_FACTOR."""


class RacksIncomplete(PlacementError):
    """Only some brokers name their rack: a placement by racks is not possible, and Kafka refuses to guess."""


Broker = tuple[int, "str | None"]
"""A broker's id and its rack."""


def assign_replicas(
    brokers: Sequence[Broker],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int = -1,
    start_partition: int = 0,
    rng: Rng,
) -> dict[int, tuple[int, ...]]:
    """Each new partition's replicas, preferred leader first, for partitions from `start_partition` on.

    `start_index`: where among the brokers (in their order here, or rack by rack) partition 0 starts, and the first
    shift; -1 draws both from `rng`. Rack-aware if every broker names a rack, not if none does.
    """
    if partitions <= 0:
        raise BadPartitions(f"{partitions} partitions: expected 1 or more")
    if replication_factor <= 0:
        raise BadReplicationFactor(f"replication factor {replication_factor}: expected 1 or more")
    if replication_factor > len(brokers):
        raise BadReplicationFactor(
            f"replication factor {replication_factor} is larger than the {len(brokers)} available brokers"
        )
    if len({broker for broker, _ in brokers}) != len(brokers):
        raise PlacementError(f"brokers {[broker for broker, _ in brokers]}: expected each once")
    racks = {broker: rack for broker, rack in brokers if rack is not None}
    if racks and len(racks) < len(brokers):
        without = [broker for broker, rack in brokers if rack is None]
        raise RacksIncomplete(f"brokers {without} name no rack, brokers {list(racks)} do")
    order = alternate_racks(racks) if racks else [broker for broker, _ in brokers]
    # Kafka draws the start before the shift.
    start = start_index if start_index >= 0 else rng.randrange(len(order))
    shift = start_index if start_index >= 0 else rng.randrange(len(order))
    assignment: dict[int, tuple[int, ...]] = {}
    for partition in range(max(0, start_partition), max(0, start_partition) + partitions):
        if partition > 0 and partition % len(order) == 0:
            shift += 1
        first = (partition + start) % len(order)
        assignment[partition] = (
            _replicas_by_rack(order, racks, first, shift, replication_factor)
            if racks
            else _replicas(order, first, shift, replication_factor)
        )
    return assignment


def expand_assignment(
    brokers: Sequence[Broker], existing: Mapping[int, Sequence[int]], total: int, *, rng: Rng
) -> dict[int, tuple[int, ...]]:
    """The replicas of the partitions that a topic gains on its way to `total`: the walk goes on where it would be had
    it begun at the first replica of partition 0, with that partition's replication factor. `brokers` by id."""
    if total <= len(existing):
        raise BadPartitions(f"{total} partitions: the topic has {len(existing)} already")
    first_replicas = existing[0]
    start = next((index for index, (broker, _) in enumerate(brokers) if broker >= first_replicas[0]), 0)
    return assign_replicas(
        brokers, total - len(existing), len(first_replicas), start_index=start, start_partition=len(existing), rng=rng
    )


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """The brokers dealt out over the racks in the racks' order, each rack's by id."""
    by_rack = [sorted(broker for broker in racks if racks[broker] == rack) for rack in sorted(set(racks.values()))]
    return [broker for broker in chain.from_iterable(zip_longest(*by_rack)) if broker is not None]


def _follower_index(first: int, shift: int, follower: int, brokers: int) -> int:
    """At least one away from the first replica, and at most all the way round to just before it."""
    return (first + 1 + (shift + follower) % (brokers - 1)) % brokers


def _replicas(order: Sequence[int], first: int, shift: int, replication_factor: int) -> tuple[int, ...]:
    followers = (_follower_index(first, shift, each, len(order)) for each in range(replication_factor - 1))
    return (order[first], *(order[index] for index in followers))


def _replicas_by_rack(
    order: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    replicas = [order[first]]
    racks_used = {racks[order[first]]}
    step = 0
    while len(replicas) < replication_factor:
        # A shift of whole rounds of racks keeps the rack of each follower where the walk put it.
        broker = order[_follower_index(first, shift * rack_count, step, len(order))]
        step += 1
        if broker not in replicas and (racks[broker] not in racks_used or len(racks_used) == rack_count):
            replicas.append(broker)
            racks_used.add(racks[broker])
    return tuple(replicas)
