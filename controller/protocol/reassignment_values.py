"""The values of AlterPartitionReassignments and ListPartitionReassignments: where partitions are to go, and which are
on their way.

As in `control_values`: a value holds the fields of all its versions, under the names of Kafka 2.8, with defaults for
those that a version lacks. Only values live here.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_MESSAGE = ""
"""At the top of a response that is no error: Kafka's default for that field, where others have null."""


@dataclass(frozen=True, slots=True)
class ReassignablePartition:
    """`replicas` None: back to where it was."""

    partition_index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsRequest:
    topics: tuple[ReassignableTopic, ...]
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ReassignablePartitionResult:
    partition_index: int
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class ReassignableTopicResult:
    name: str
    partitions: tuple[ReassignablePartitionResult, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsResponse:
    responses: tuple[ReassignableTopicResult, ...]
    error_code: int = 0
    error_message: str | None = NO_MESSAGE
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """Partitions that are asked about."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    """`topics` None asks about all."""

    topics: tuple[ListedTopic, ...] | None
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class OngoingPartition:
    """`replicas` are both sets, the target first."""

    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OngoingTopic:
    name: str
    partitions: tuple[OngoingPartition, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsResponse:
    topics: tuple[OngoingTopic, ...]
    error_code: int = 0
    error_message: str | None = NO_MESSAGE
    throttle_time_ms: int = 0
