"""Produce: each partition's batches to its leader's log, and an answer when as many replicas have them as were asked.

acks 0: no answer at all. 1: when they are in the leader's log. -1: when the high watermark has passed them, that is
when every member of the ISR has them; until then the request waits (`delayed_produce.py`). Rules and codes: Kafka 2.8's
ReplicaManager.appendRecords. Offsets, epochs, idempotence and what a batch must be are the log's.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.progress import Progress
from controller.broker.record_access import RecordAccess, Refused, refused
from controller.protocol.errors import ErrorCode
from controller.protocol.produce_values import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResult,
)
from controller.protocol.records import Records
from controller.storage import StorageError

VALID_ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)


class Produce:
    def __init__(self, access: RecordAccess, progress: Progress, min_insync: Callable[[str], int]) -> None:
        self._access = access
        self._progress = progress
        self._min_insync = min_insync

    def handle(self, request: ProduceRequest, version: int, answer: Callable[[ProduceResponse], None]) -> None:
        results = tuple(
            ProduceTopicResult(
                topic.name, tuple(self._append(topic.name, each, request.acks) for each in topic.partition_data)
            )
            for topic in request.topic_data
        )
        answer(ProduceResponse(results))

    def _append(self, topic: str, asked: ProducePartition, acks: int) -> ProducePartitionResult:
        try:
            if acks not in VALID_ACKS:
                raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
            partition, log = self._access.leader_log(topic, asked.index)
            if acks == ACKS_ALL and len(partition.isr) < self._min_insync(topic):
                raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS)
            appended = log.append_as_leader(_bytes(asked.records), partition.leader_epoch)
        except (Refused, StorageError) as error:
            why = refused(error)
            return ProducePartitionResult(asked.index, why.error, error_message=why.message)
        self._progress.appended(partition)
        return ProducePartitionResult(
            asked.index, ErrorCode.NONE, appended.base_offset, appended.log_append_time_ms, log.log_start_offset
        )


def _bytes(records: Records | None) -> bytes | memoryview:
    if not isinstance(records, bytes | memoryview) or not len(records):
        raise Refused(ErrorCode.INVALID_RECORD, "no batch of records")
    return records
