"""One transactional id at its coordinator: its producer, its transaction, and the bytes of its record.

Values and rules; no I/O and no clock. A change is prepared, written to __transaction_state, and takes effect once that
is replicated; until then it is pending, and no other may begin. Source: Kafka 2.8's TransactionMetadata,
TransactionLogKey and TransactionLogValue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from controller.broker.coordinated_topic import UnknownRecord, read_versioned, written
from controller.clock import Timer
from controller.protocol.produce import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from controller.protocol.transactions import PartitionsSchema, TransactionLogKey, TransactionLogValue
from statemachines.transaction import (
    TRANSACTION,
    CompleteAbort,
    CompleteCommit,
    Dead,
    Empty,
    Ongoing,
    PrepareAbort,
    PrepareCommit,
    PrepareEpochFence,
    TransactionState,
)

TRANSACTIONS_TOPIC = "__transaction_state"
TopicPartition = tuple[str, int]
EPOCH_MAX = 2**15 - 1
NO_TIME = -1
_VERSION = 0
NO_PARTITIONS: Mapping[TopicPartition, None] = MappingProxyType({})
COMPLETE: Mapping[TransactionState, TransactionState] = MappingProxyType(
    {PrepareCommit: CompleteCommit, PrepareAbort: CompleteAbort}
)
"""What follows once every partition has its marker."""


def is_exhausted(epoch: int) -> bool:
    """Whether a producer id has no further epoch for a client: the last is the coordinator's, to fence with."""
    return epoch >= EPOCH_MAX - 1


class Transition(NamedTuple):
    """What a transactional id is to become. Times are milliseconds since 1970."""

    state: TransactionState
    producer_id: int
    last_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    partitions: Mapping[TopicPartition, None]
    start_ms: int
    updated_ms: int


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """`producer_epoch` -1: created, and no producer has it yet. `pending`: the state of the change that is being
    written. `start_ms`: when the transaction began."""

    id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = Empty
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    pending: TransactionState | None = None
    has_failed_fence: bool = False
    """The next epoch was taken to fence its producer, and perhaps not written: it is not raised once more."""
    timeout: Timer | None = None
    """Aborts the transaction."""

    # Preparing a change.

    def prepare_fence(self) -> Transition:
        """To fence the producer, so that its transaction can be aborted."""
        epoch = self.producer_epoch if self.has_failed_fence else self.producer_epoch + 1
        return self._prepare(PrepareEpochFence, epoch=epoch, last_epoch=NO_PRODUCER_EPOCH)

    def prepare_next_epoch(self, timeout_ms: int, expected: int | None, now_ms: int) -> Transition | None:
        """For a producer that begins. `expected`: the epoch that it has, if it says so (KIP-360); None if that is
        neither the present one nor, after a lost answer, the last."""
        epoch, last = self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if expected is not None:
            if self.producer_epoch in (NO_PRODUCER_EPOCH, expected):
                last = self.producer_epoch
            elif expected == self.last_producer_epoch:
                epoch, last = self.producer_epoch, self.last_producer_epoch
            else:
                return None
        return self._prepare(
            Empty,
            epoch=epoch,
            last_epoch=last,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def prepare_new_id(self, producer_id: int, timeout_ms: int, now_ms: int, *, keeps_last: bool) -> Transition:
        """The epochs of the producer id are exhausted."""
        return self._prepare(
            Empty,
            producer_id=producer_id,
            epoch=0,
            last_epoch=self.producer_epoch if keeps_last else NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def prepare_partitions(self, added: Iterable[TopicPartition], now_ms: int) -> Transition:
        start_ms = self.start_ms if self.state is Ongoing else now_ms
        partitions = {**self.partitions, **dict.fromkeys(added)}
        return self._prepare(Ongoing, partitions=partitions, start_ms=start_ms, updated_ms=now_ms)

    def prepare_end(self, *, commits: bool, now_ms: int) -> Transition:
        return self._prepare(PrepareCommit if commits else PrepareAbort, updated_ms=now_ms)

    def prepare_complete(self, now_ms: int) -> Transition:
        self.has_failed_fence = False
        return self._prepare(COMPLETE[self.state], partitions=NO_PARTITIONS, updated_ms=now_ms)

    def prepare_dead(self) -> Transition:
        return self._prepare(Dead, partitions=NO_PARTITIONS)

    def _prepare(
        self,
        state: TransactionState,
        *,
        producer_id: int | None = None,
        epoch: int | None = None,
        last_epoch: int | None = None,
        timeout_ms: int | None = None,
        partitions: Mapping[TopicPartition, None] | None = None,
        start_ms: int | None = None,
        updated_ms: int | None = None,
    ) -> Transition:
        """Raises InvalidTransition; RuntimeError while another change is pending."""
        if self.pending is not None:
            raise RuntimeError(f"transactional id {self.id}: {state.name} while {self.pending.name} is pending")
        TRANSACTION.require(self.state, state, lambda: self.id)
        self.pending = state
        return Transition(
            state,
            self.producer_id if producer_id is None else producer_id,
            self.producer_id,
            self.producer_epoch if epoch is None else epoch,
            self.last_producer_epoch if last_epoch is None else last_epoch,
            self.timeout_ms if timeout_ms is None else timeout_ms,
            dict(self.partitions) if partitions is None else partitions,
            self.start_ms if start_ms is None else start_ms,
            self.updated_ms if updated_ms is None else updated_ms,
        )

    def as_written(self) -> Transition:
        """The present state as a record has it."""
        return Transition(
            self.state,
            self.producer_id,
            self.producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            dict(self.partitions),
            self.start_ms,
            self.updated_ms,
        )

    def turn_to_abort(self, epoch: int) -> None:
        """The fence that is pending becomes the abort that it is for: both are written as one record."""
        TRANSACTION.require(PrepareEpochFence, PrepareAbort, lambda: self.id)
        self.pending, self.producer_epoch, self.last_producer_epoch = None, epoch, NO_PRODUCER_EPOCH

    def complete(self, transition: Transition) -> None:
        """The change is written. Raises RuntimeError if it is not the one that is pending."""
        if self.pending is not transition.state:
            raise RuntimeError(f"transactional id {self.id}: {transition.state.name} written, {self.pending} pending")
        if transition.state is Empty:
            self.last_producer_id = transition.last_producer_id
        self.state, self.pending = transition.state, None
        self.producer_id, self.producer_epoch = transition.producer_id, transition.producer_epoch
        self.last_producer_epoch, self.timeout_ms = transition.last_producer_epoch, transition.timeout_ms
        self.partitions = dict(transition.partitions)
        self.start_ms, self.updated_ms = transition.start_ms, transition.updated_ms

    @property
    def may_expire(self) -> bool:
        return self.pending is None and self.state in TRANSACTION.valid_sources(Dead)


# As records of __transaction_state.


def transaction_key(transactional_id: str) -> bytes:
    return written(TransactionLogKey(transactional_id), _VERSION)


def transaction_value(change: Transition) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in change.partitions:
        topics.setdefault(topic, []).append(index)
    partitions = tuple(PartitionsSchema(topic, tuple(indexes)) for topic, indexes in topics.items())
    value = TransactionLogValue(
        change.producer_id,
        change.producer_epoch,
        change.timeout_ms,
        int(change.state),
        None if change.state is Empty else partitions,
        change.updated_ms,
        change.start_ms,
    )
    return written(value, _VERSION)


def read_transaction_key(data: bytes | None) -> str:
    """Raises UnknownRecord."""
    if data is None:
        raise UnknownRecord("a record without a key")
    key = read_versioned(TransactionLogKey, data, "a key")
    assert isinstance(key, TransactionLogKey)
    return key.transactional_id


def read_transaction(transactional_id: str, data: bytes) -> TransactionMetadata:
    """Raises UnknownRecord."""
    value = read_versioned(TransactionLogValue, data, f"transactional id {transactional_id!r}")
    assert isinstance(value, TransactionLogValue)
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        number, most = value.transaction_status, int(max(TransactionState))
        what = f"transactional id {transactional_id!r}: state {number}, expected 0 to {most}"
        raise UnknownRecord(what) from None
    partitions = {(one.topic, index): None for one in value.transaction_partitions or () for index in one.partition_ids}
    return TransactionMetadata(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        state,
        {} if state is Empty else partitions,
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
    )
