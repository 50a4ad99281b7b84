"""The values of ElectLeaders: the partitions for which to elect leaders, and the result for each.

As in `control_values`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for
those that a version lacks. Only values live here.
"""

from __future__ import annotations

from dataclasses import dataclass

# election_type
ELECTION_PREFERRED = 0
ELECTION_UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeadersTopic:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersRequest:
    """`topic_partitions` None asks for all partitions. Version 0 knows preferred elections only."""

    topic_partitions: tuple[ElectLeadersTopic, ...] | None
    timeout_ms: int = 60_000
    election_type: int = ELECTION_PREFERRED


@dataclass(frozen=True, slots=True)
class ElectedPartition:
    partition_id: int
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ElectedTopic:
    topic: str
    partition_result: tuple[ElectedPartition, ...]


@dataclass(frozen=True, slots=True)
class ElectLeadersResponse:
    replica_election_results: tuple[ElectedTopic, ...]
    error_code: int = 0
    throttle_time_ms: int = 0
