"""Produce: each partition's batches to its leader's log, and an answer when as many replicas have them as were asked.

acks 0: no answer at all. 1: when they are in the leader's log. -1: when the high watermark has passed them, that is
when every member of the ISR has them; until then the request waits (`delayed_produce.py`). Rules and codes: Kafka 2.8's
ReplicaManager.appendRecords. Offsets, epochs, idempotence and what a batch must be are the log's.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.partition import Partition
from controller.broker.progress import Progress
from controller.broker.records.delayed_produce import DelayedProduce, MinInsync, Part, Parts, Replication, response
from controller.broker.records.record_access import RecordAccess, Refused, refused
from controller.protocol.errors import ErrorCode
from controller.protocol.produce_values import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
)
from controller.protocol.records import Records
from controller.quick import maker
from controller.storage import StorageError
from controller.storage.batches import HEADER_BYTES, LENGTH_END, MAGIC
from controller.timer.purgatory import Purgatory

FIRST_VERSION_WITH_ZSTD = 7
_result = maker(ProducePartitionResult)
_MAGIC_AT = 16
_ATTRIBUTES_END = 23
_CODEC_BITS = 0x07
_ZSTD = 4
VALID_ACKS = (ACKS_NONE, ACKS_LEADER, ACKS_ALL)


class Produce:
    """`waiting` is where those with acks=all wait, by partition."""

    def __init__(
        self,
        access: RecordAccess,
        progress: Progress,
        waiting: Purgatory[tuple[str, int], DelayedProduce],
        min_insync: MinInsync,
    ) -> None:
        self._access = access
        self._progress = progress
        self._waiting = waiting
        self._min_insync = min_insync
        progress.of_high_watermarks.append(self._news)
        progress.have_nobody[self._news] = lambda: not waiting.delayed

    def handle(self, request: ProduceRequest, version: int, answer: Callable[[ProduceResponse], None]) -> None:
        """For acks 1 and -1, and for those that are none."""
        parts = self._append_all(request, version)
        if not any(part.awaited for _, those in parts for part in those):
            answer(response(parts))
            return
        operation = DelayedProduce(request.timeout_ms, parts, self._min_insync, answer)
        self._waiting.try_complete_else_watch(operation, operation.keys())

    def handle_unanswered(self, request: ProduceRequest, version: int) -> bool:
        """For acks 0. False: something was refused, which the client can only be told by closing its connection."""
        parts = self._append_all(request, version)
        return all(part.result.error_code == ErrorCode.NONE for _, those in parts for part in those)

    def _append_all(self, request: ProduceRequest, version: int) -> Parts:
        return [
            (topic.name, [self._append(topic.name, each, request.acks, version) for each in topic.partition_data])
            for topic in request.topic_data
        ]

    def _append(self, topic: str, asked: ProducePartition, acks: int, version: int) -> Part:
        try:
            if acks not in VALID_ACKS:
                raise Refused(ErrorCode.INVALID_REQUIRED_ACKS)
            partition, log = self._access.leader_log(topic, asked.index)
            leading = partition.leading
            assert leading is not None
            if acks == ACKS_ALL and len(leading.isr) < self._min_insync(topic):
                raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, f"{topic}-{asked.index}: the ISR is {leading.isr}")
            appended = log.append_as_leader(_batch(asked.records, version), partition.leader_epoch)
        except (Refused, StorageError) as error:
            why = refused(error)
            return Part(ProducePartitionResult(asked.index, why.error, error_message=why.message))
        result = _result(
            asked.index, ErrorCode.NONE, appended.base_offset, appended.log_append_time_ms, log.log_start_offset
        )
        if not appended.duplicate:
            self._progress.appended(partition)
        return Part(result, Replication(partition, leading, appended.last_offset + 1) if acks == ACKS_ALL else None)

    def _news(self, partition: Partition) -> None:
        if self._waiting.delayed:
            self._waiting.check_and_complete(partition.key)


def _batch(records: Records | None, version: int) -> bytes | memoryview:
    """The one batch that a partition's part of a request may have: of several the log knows a repetition by the first
    alone. Whether it is whole is the log's to find."""
    if not isinstance(records, bytes | memoryview) or not len(records):
        raise Refused(ErrorCode.INVALID_RECORD, "no batch of records")
    if len(records) < HEADER_BYTES or records[_MAGIC_AT] != MAGIC:
        return records
    if LENGTH_END + int.from_bytes(records[LENGTH_END - 4 : LENGTH_END], "big") < len(records):
        raise Refused(ErrorCode.INVALID_RECORD, "more than one batch of records")
    if version < FIRST_VERSION_WITH_ZSTD and records[_ATTRIBUTES_END - 1] & _CODEC_BITS == _ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd in version {version} of Produce")
    return records
