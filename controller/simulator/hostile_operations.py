"""Operations that a hostile client asks for: nearly sound ones, so that they come far before they are refused.

Most have one thing that makes no sense: a broker twice or one that there is not, a partition too many, a name or a
config that cannot be. Some have none and are carried out. The topics have names that no plan has.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from controller.protocol import SUPPORTED, ApiKey
from controller.protocol.admin_values import (
    OPERATION_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from controller.protocol.client_values import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.codec import encode_request
from controller.protocol.election_values import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    ElectLeadersRequest,
    ElectLeadersTopic,
)
from controller.protocol.headers import RequestHeader
from controller.protocol.reassignment_values import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from controller.simulator.senseless_requests import BAD_NAMES, INT_MAX

TOPICS = ("hostile-0", "hostile-1", "hostile-2")
NO_BROKERS = (-1, 0, 99, INT_MAX)
CONFIGS = (
    ("min.insync.replicas", ("1", "2", "99", "0", "-1", "x")),
    ("unclean.leader.election.enable", ("true", "false", "perhaps")),
    ("retention.ms", ("-1", "1000", "-2", "9" * 30)),
    ("cleanup.policy", ("delete", "compact", "", "delete,delete")),
    ("no.such.config", ("1",)),
)
TIMEOUTS_MS = (-1, 0, 1, 1_000)
WRONG = 0.15
"""The chance of each part of an operation to make no sense."""


class Operations:
    """Draws operations with `rng` for a cluster of these brokers."""

    def __init__(self, rng: Random, brokers: Sequence[int]) -> None:
        self._rng = rng
        self._brokers = brokers

    def request(self) -> bytes:
        """A frame, without its size."""
        rng = self._rng
        key, request = rng.choice(
            (self._create, self._create, self._add, self._delete, self._move, self._elect, self._set)
        )()
        return encode_request(RequestHeader(key, SUPPORTED[key].last, rng.randrange(1 << 31), "hostile"), request)

    def _create(self) -> tuple[ApiKey, Any]:
        rng = self._rng
        configs = tuple(CreatableTopicConfig(*self._config()) for _ in range(rng.choice((0, 0, 1))))
        topics = []
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.5:
                numbers = range(rng.randint(1, 3)) if not self._is_wrong() else (0, 0)
                placed = tuple(CreatableReplicaAssignment(number, self._replicas()) for number in numbers)
                topics.append(CreatableTopic(self._name(), -1, -1, placed, configs))
            else:
                partitions, factor = rng.randint(1, 3), rng.randint(1, min(3, len(self._brokers)))
                if self._is_wrong():
                    partitions, factor = rng.choice(((0, 1), (1, 99), (INT_MAX, 1), (-2, -2), (10_001, 3)))
                topics.append(CreatableTopic(self._name(), partitions, factor, (), configs))
        return ApiKey.CREATE_TOPICS, CreateTopicsRequest(tuple(topics), self._timeout(), rng.random() < 0.2)

    def _add(self) -> tuple[ApiKey, Any]:
        rng = self._rng
        count = rng.randint(1, 5) if not self._is_wrong() else rng.choice((-1, 0, 10_001, INT_MAX))
        placed = None
        if rng.random() < 0.4:
            placed = tuple(CreatePartitionsAssignment(self._replicas()) for _ in range(rng.randint(0, 3)))
        topics = (CreatePartitionsTopic(self._name(), count, placed),) * rng.choice((1, 1, 1, 2))
        return ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics, self._timeout(), rng.random() < 0.2)

    def _delete(self) -> tuple[ApiKey, Any]:
        topics = (DeleteTopicState(self._name()),) * self._rng.choice((1, 1, 2))
        return ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics, self._timeout())

    def _move(self) -> tuple[ApiKey, Any]:
        wanted = tuple(
            ReassignablePartition(self._partition(), None if self._rng.random() < 0.2 else self._replicas())
            for _ in range(self._rng.choice((1, 1, 2, 4)))
        )
        topics = (ReassignableTopic(self._name(), wanted),)
        return ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics, self._timeout())

    def _elect(self) -> tuple[ApiKey, Any]:
        kind = self._rng.choice((ELECTION_PREFERRED, ELECTION_UNCLEAN)) if not self._is_wrong() else 9
        partitions = tuple(self._partition() for _ in range(self._rng.choice((1, 2, 3))))
        request = ElectLeadersRequest((ElectLeadersTopic(self._name(), partitions),), self._timeout(), kind)
        return ApiKey.ELECT_LEADERS, request

    def _set(self) -> tuple[ApiKey, Any]:
        name, value = self._config()
        operation = OPERATION_SET if not self._is_wrong() else self._rng.choice((1, 2, 3, 99))
        changes = (AlterableConfig(name, operation, value),) * self._rng.choice((1, 1, 2))
        resource = IncrementalAlterConfigsResource(RESOURCE_TOPIC, self._name(), changes)
        return ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest((resource,))

    # -- parts

    def _is_wrong(self) -> bool:
        return self._rng.random() < WRONG

    def _name(self) -> str:
        return self._rng.choice(BAD_NAMES if self._is_wrong() else TOPICS)

    def _partition(self) -> int:
        return self._rng.choice((-1, 99, INT_MAX)) if self._is_wrong() else self._rng.randrange(3)

    def _replicas(self) -> tuple[int, ...]:
        rng = self._rng
        replicas = rng.sample(list(self._brokers), rng.randint(1, min(3, len(self._brokers))))
        if self._is_wrong():
            wrong = rng.randrange(3)
            replicas = [] if wrong == 0 else [*replicas, replicas[0] if wrong == 1 else rng.choice(NO_BROKERS)]
        return tuple(replicas)

    def _config(self) -> tuple[str, str]:
        name, values = self._rng.choice(CONFIGS)
        return name, self._rng.choice(values)

    def _timeout(self) -> int:
        return self._rng.choice(TIMEOUTS_MS)
