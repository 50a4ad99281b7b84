"""Which transactional ids this broker coordinates, and how their state lasts: the partitions of __transaction_state
that it leads. A change is written with acks=all. Source of what the client is answered if that fails: Kafka 2.8's
TransactionStateManager.appendTransactionToLog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.broker.coordinated_topic import (
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    TOO_LARGE,
    CoordinatedPartition,
    CoordinatedTopic,
    UnknownRecord,
    batch_of,
)
from controller.broker.metadata import MetadataCache
from controller.broker.records.writes import ProduceHandler
from controller.broker.request_context import Drive
from controller.broker.settings import BrokerSettings
from controller.broker.transactions.transaction import (
    TRANSACTIONS_TOPIC,
    TransactionMetadata,
    Transition,
    read_transaction,
    read_transaction_key,
    transaction_key,
    transaction_value,
)
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ACKS_ALL, ProducePartitionResult
from controller.storage.batches import BatchHeader, Record

EXPIRED_AT_ONCE = 500
"""Transactional ids that one batch deletes."""


@dataclass(slots=True)
class _TransactionReading:
    """What the records read so far say. The last one of a transactional id counts."""

    damaged: list[str] = field(default_factory=list)
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)

    def take(self, read: Iterable[tuple[BatchHeader, Sequence[Record]]]) -> None:
        last: dict[str, Record] = {}
        for record in (record for header, records in read if not header.is_control for record in records):
            try:
                transactional_id = read_transaction_key(record.key)
            except UnknownRecord as error:
                self.damaged.append(f"offset {record.offset}: {error}")
            else:
                last.pop(transactional_id, None)
                last[transactional_id] = record
        for transactional_id, record in last.items():
            self.transactions.pop(transactional_id, None)
            try:
                if record.value is not None:
                    self.transactions[transactional_id] = read_transaction(transactional_id, record.value)
            except UnknownRecord as error:
                self.damaged.append(f"offset {record.offset}: {error}")

    def entries(self) -> Mapping[str, TransactionMetadata]:
        return self.transactions


class TransactionStore:
    """`of_loads` and `of_unloads` are called with each partition whose transactional ids this broker begins, or ceases,
    to coordinate."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        produce: ProduceHandler,
        clock: Clock,
        drive: Drive,
        note: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._note = note
        self.of_loads: list[Callable[[CoordinatedPartition[TransactionMetadata]], None]] = []
        self.of_unloads: list[Callable[[CoordinatedPartition[TransactionMetadata]], None]] = []
        self.topic = CoordinatedTopic[TransactionMetadata](
            TRANSACTIONS_TOPIC,
            "transactional ids",
            settings.transaction_log_num_partitions,
            settings.transaction_log_load_buffer_size,
            metadata,
            produce,
            clock,
            drive,
            note,
            _TransactionReading,
            lambda partition: _call_all(self.of_loads, partition),
            lambda partition: _call_all(self.of_unloads, partition),
        )

    @property
    def is_full(self) -> bool:
        """Whether there may be no further transactional id (camerlengo.transactional.ids.max)."""
        known = sum(len(partition.entries) for partition in self.topic.partitions())
        return known >= self._settings.transactional_ids_max

    def write(
        self,
        partition: CoordinatedPartition[TransactionMetadata],
        transaction: TransactionMetadata,
        change: Transition,
        then: Callable[[ErrorCode], None],
        *,
        keeps_pending: Callable[[ErrorCode], bool] = lambda _error: False,
    ) -> None:
        """Write a change that was prepared, and complete it. `then`: the error for the client. After an error for which
        not `keeps_pending`, another change may be prepared."""
        if not self.still_coordinates(partition, transaction):
            then(ErrorCode.NOT_COORDINATOR)
            return
        record = (transaction_key(transaction.id), transaction_value(change))

        def appended(result: ProducePartitionResult) -> None:
            error = self._error(transaction, ErrorCode(result.error_code), len(record[1]))
            if not self.still_coordinates(partition, transaction):
                then(ErrorCode.NOT_COORDINATOR)
                return
            if error is ErrorCode.NONE:
                transaction.complete(change)
            elif not keeps_pending(error):
                transaction.pending = None
            then(error)

        batch = batch_of([record], self._clock.wall_ms())
        self.topic.append(partition.index, batch, ACKS_ALL, max(change.timeout_ms, 1), appended)

    def confirm(
        self,
        partition: CoordinatedPartition[TransactionMetadata],
        transaction: TransactionMetadata,
        then: Callable[[ErrorCode], None],
    ) -> None:
        """Write the present state again, unless a change is pending. `then`: NONE if all replicas in sync have it, so
        that no other broker coordinated the transactional id when the state was looked at."""
        if transaction.pending is not None:
            then(ErrorCode.CONCURRENT_TRANSACTIONS)
            return
        record = (transaction_key(transaction.id), transaction_value(transaction.as_written()))

        def appended(result: ProducePartitionResult) -> None:
            coordinates = self.still_coordinates(partition, transaction)
            error = self._error(transaction, ErrorCode(result.error_code), len(record[1]))
            then(error if coordinates else ErrorCode.NOT_COORDINATOR)

        batch = batch_of([record], self._clock.wall_ms())
        self.topic.append(partition.index, batch, ACKS_ALL, max(transaction.timeout_ms, 1), appended)

    def still_coordinates(
        self, partition: CoordinatedPartition[TransactionMetadata], transaction: TransactionMetadata
    ) -> bool:
        """Whether this broker has led the partition since, and knows this very transactional id."""
        return self.topic.at(partition.index) is partition and partition.entries.get(transaction.id) is transaction

    def _error(self, transaction: TransactionMetadata, error: ErrorCode, size_bytes: int) -> ErrorCode:
        if error in NOT_AVAILABLE or error is ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error in NOT_COORDINATOR:
            return ErrorCode.NOT_COORDINATOR
        if error in TOO_LARGE:
            words = f"transactional id {transaction.id} can't be written: {error.name} ({size_bytes} bytes)"
            self._note("error", words)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return error

    def expire(
        self, partition: CoordinatedPartition[TransactionMetadata], expired: Sequence[TransactionMetadata]
    ) -> None:
        """Forget transactional ids; records without a value say so."""
        for start in range(0, len(expired), EXPIRED_AT_ONCE):
            self._expire(partition, expired[start : start + EXPIRED_AT_ONCE])

    def _expire(
        self, partition: CoordinatedPartition[TransactionMetadata], expired: Sequence[TransactionMetadata]
    ) -> None:
        for transaction in expired:
            transaction.prepare_dead()

        def appended(result: ProducePartitionResult) -> None:
            for transaction in expired:
                if not self.still_coordinates(partition, transaction):
                    continue
                if result.error_code == ErrorCode.NONE:
                    del partition.entries[transaction.id]
                else:
                    transaction.pending = None

        batch = batch_of([(transaction_key(one.id), None) for one in expired], self._clock.wall_ms())
        self.topic.append(partition.index, batch, ACKS_ALL, self._settings.request_timeout_ms, appended)


def _call_all(
    listeners: Sequence[Callable[[CoordinatedPartition[TransactionMetadata]], None]],
    partition: CoordinatedPartition[TransactionMetadata],
) -> None:
    for listener in listeners:
        listener(partition)
