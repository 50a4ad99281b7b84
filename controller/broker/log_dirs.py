"""DescribeLogDirs: which replica lies in which log directory of this broker, how large it is and how far behind.

A failed directory is answered with its error and no replicas. The rules are Kafka's (ReplicaManager.describeLogDirs).
Replicas are never moved between directories here, so none is a future replica. Volume sizes are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from controller.broker.logs import Logs
from controller.broker.replica_manager import ReplicaManager
from controller.broker.steps import SLICE, Steps
from controller.protocol.cluster_values import (
    DescribedLogDir,
    DescribedReplica,
    DescribedReplicas,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from controller.protocol.errors import ErrorCode
from controller.storage import LogDirectory


class DescribeLogDirs:
    def __init__(self, logs: Logs, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def handle(
        self, request: DescribeLogDirsRequest, _version: int, answer: Callable[[DescribeLogDirsResponse], None]
    ) -> Steps:
        wanted: Mapping[str, frozenset[int]] | None = None
        if request.topics is not None:
            wanted = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
        described = []
        for directory in self._logs.directories:
            described.append((yield from self._described(directory, wanted)))
        answer(DescribeLogDirsResponse(tuple(described)))

    def _described(
        self, directory: LogDirectory, wanted: Mapping[str, frozenset[int]] | None
    ) -> Generator[None, Any, DescribedLogDir]:
        if directory.health.cause is not None:
            return DescribedLogDir(int(ErrorCode.KAFKA_STORAGE_ERROR), directory.path)
        topics: dict[str, list[DescribedReplica]] = {}
        for done, (topic, index) in enumerate(sorted(directory.logs), 1):
            if done % SLICE == 0:
                yield None
            if wanted is not None and index not in wanted.get(topic, ()):
                continue
            log, partition = directory.logs.get((topic, index)), self._replicas.partition(topic, index)
            if log is None:
                continue  # deleted since the list was made
            committed = 0 if partition is None else partition.high_watermark
            replica = DescribedReplica(index, log.size_bytes, max(committed - log.log_end_offset, 0))
            topics.setdefault(topic, []).append(replica)
        named = tuple(DescribedReplicas(topic, tuple(replicas)) for topic, replicas in topics.items())
        return DescribedLogDir(int(ErrorCode.NONE), directory.path, named)
