"""Fetch: records from an offset on, to consumers up to the high watermark, to followers up to the log's end.

Rules and codes: Kafka 2.8's ReplicaManager.fetchMessages and Partition.readRecords. Records are answered as ranges of
their files, so that nobody copies them before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.record_access import RecordAccess, Refused, local_log, refused
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    READ_COMMITTED,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
)
from controller.storage import StorageError


class Fetch:
    def __init__(self, access: RecordAccess) -> None:
        self._access = access

    def handle(self, request: FetchRequest, version: int, answer: Callable[[FetchResponse], None]) -> None:
        topics = tuple(
            FetchTopicData(topic.topic, tuple(self._read(request, topic.topic, each) for each in topic.partitions))
            for topic in request.topics
        )
        answer(FetchResponse(topics))

    def _read(self, request: FetchRequest, topic: str, asked: FetchPartition) -> FetchPartitionData:
        try:
            partition = self._access.partition(topic, asked.partition)
            log = local_log(partition, asked.current_leader_epoch, only_leader=True)
            found = log.read(asked.fetch_offset, asked.partition_max_bytes, partition.high_watermark)
        except (Refused, StorageError) as error:
            return FetchPartitionData(asked.partition, refused(error).error, -1, b"")
        aborted = () if request.isolation_level == READ_COMMITTED else None
        return FetchPartitionData(
            asked.partition,
            ErrorCode.NONE,
            partition.high_watermark,
            found,
            partition.high_watermark,
            log.log_start_offset,
            aborted_transactions=aborted,
        )
