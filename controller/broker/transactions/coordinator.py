"""The coordinator of transactions: gives producers their ids and epochs, and decides how transactions end.

A producer with a transactional id asks for its producer id, and gets the next epoch. The producer that had the last one
is fenced, and its transaction aborted. A producer adds partitions, writes to them, and ends the transaction. Whether it
commits or aborts is decided when the record of that is replicated (PrepareCommit, PrepareAbort); then the client is
answered and the markers are written. A transaction that takes longer than its producer said is aborted. A coordinator
that finds a decision in what it reads carries it out.

For the broker's thread alone. Rules, order of checks and codes: Kafka 2.8's TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from controller.broker.coordinated_topic import CoordinatedPartition
from controller.broker.settings import BrokerSettings
from controller.broker.transactions.markers import Ending, MarkerChannels
from controller.broker.transactions.store import TransactionStore
from controller.broker.transactions.transaction import (
    COMPLETE,
    TopicPartition,
    TransactionMetadata,
    Transition,
    is_exhausted,
)
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import NO_PRODUCER_EPOCH, InitProducerIdResponse
from statemachines.transaction import (
    CompleteAbort,
    CompleteCommit,
    Ongoing,
    PrepareAbort,
    PrepareCommit,
    PrepareEpochFence,
)

_WRITTEN_AGAIN = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
WRITE_AGAIN_MS = 1_000.0
"""A completion that could not be written is tried again after so long."""
Partition = CoordinatedPartition[TransactionMetadata]
Answer = Callable[[ErrorCode], None]
TakeId = Callable[[Callable[[InitProducerIdResponse], None]], None]


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    id: int
    epoch: int


@dataclass(eq=False)
class TransactionCoordinator:
    """`take_id` answers with a producer id that was never given before. `note(level, message)` writes to the log."""

    _settings: BrokerSettings
    _store: TransactionStore
    _markers: MarkerChannels
    _take_id: TakeId
    _clock: Clock
    _note: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self._store.of_loads.append(self._loaded)
        self._store.of_unloads.append(self._unloaded)

    def start(self) -> None:
        """Look for transactional ids to forget every `transaction.remove.expired.transaction.cleanup.interval.ms`."""
        self._clock.call_later(self._settings.transaction_remove_expired_interval_ms, self._look_for_expired)

    def _found(self, transactional_id: str) -> tuple[Partition, TransactionMetadata | None] | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        refusal = self._store.topic.refusal(transactional_id)
        partition = self._store.topic.partition(transactional_id)
        if refusal is not None or partition is None:
            return refusal or ErrorCode.NOT_COORDINATOR
        return partition, partition.entries.get(transactional_id)

    # Producers.

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        answer: Callable[[InitProducerIdResponse], None],
        new_id: int | None = None,
    ) -> None:
        """`expected`: what the producer has, if it says so (KIP-360). `new_id`: an id that was taken for it."""

        def refuse(error: ErrorCode) -> None:
            answer(InitProducerIdResponse(error))

        def with_new_id() -> None:
            def taken(given: InitProducerIdResponse) -> None:
                if given.error_code != ErrorCode.NONE:
                    answer(given)
                else:
                    self.init(transactional_id, timeout_ms, expected, answer, given.producer_id)

            self._take_id(taken)

        if transactional_id and not 0 < timeout_ms <= self._settings.transaction_max_timeout_ms:
            refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            return
        found = self._found(transactional_id)
        if isinstance(found, ErrorCode):
            refuse(found)
            return
        partition, transaction = found
        if transaction is None:
            if self._store.is_full:
                refuse(ErrorCode.POLICY_VIOLATION)
                return
            if new_id is None:
                with_new_id()
                return
            transaction = TransactionMetadata(
                transactional_id, new_id, timeout_ms=timeout_ms, updated_ms=self._clock.wall_ms()
            )
            partition.entries[transactional_id] = transaction
        error = self._init_refusal(transaction, expected)
        if error is not None:
            refuse(error)
        elif transaction.state is Ongoing:
            self._fence(partition, transaction, refuse)
        elif (
            is_exhausted(transaction.producer_epoch)
            and (expected is None or expected.epoch == transaction.producer_epoch)
            and new_id is None
        ):
            with_new_id()
        else:
            change = self._next_producer(transaction, timeout_ms, expected, new_id)
            if change is None:
                refuse(ErrorCode.PRODUCER_FENCED)
            else:
                self._give(partition, transaction, change, answer)

    def _init_refusal(self, transaction: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> ErrorCode | None:
        if transaction.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if expected is not None and not (
            transaction.producer_epoch == NO_PRODUCER_EPOCH
            or expected.id == transaction.producer_id
            or (expected.id == transaction.last_producer_id and is_exhausted(expected.epoch))
        ):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state in COMPLETE else None

    def _next_producer(
        self, transaction: TransactionMetadata, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_id: int | None
    ) -> Transition | None:
        now_ms = self._clock.wall_ms()
        epoch = None if expected is None else expected.epoch
        exhausted = is_exhausted(transaction.producer_epoch) and epoch in (None, transaction.producer_epoch)
        if exhausted and new_id is not None:
            return transaction.prepare_new_id(new_id, timeout_ms, now_ms, keeps_last=expected is not None)
        return transaction.prepare_next_epoch(timeout_ms, epoch, now_ms)

    def _give(
        self,
        partition: Partition,
        transaction: TransactionMetadata,
        change: Transition,
        answer: Callable[[InitProducerIdResponse], None],
    ) -> None:
        def stored(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                answer(InitProducerIdResponse(error))
                return
            who = f"producer {change.producer_id} epoch {change.producer_epoch}"
            self._note("info", f"transactional id {transaction.id} is {who}")
            answer(InitProducerIdResponse(ErrorCode.NONE, change.producer_id, change.producer_epoch))

        self._store.write(partition, transaction, change, stored)

    def _fence(self, partition: Partition, transaction: TransactionMetadata, answer: Answer) -> None:
        """Abort the transaction with an epoch that no producer has. The client asks again, and gets the one after."""
        change = transaction.prepare_fence()

        def ended(error: ErrorCode) -> None:
            answer(ErrorCode.CONCURRENT_TRANSACTIONS if error is ErrorCode.NONE else error)

        self._end(transaction.id, change.producer_id, change.producer_epoch, False, ended, by_client=False)

    # Transactions.

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        answer: Answer,
    ) -> None:
        found = self._found(transactional_id)
        if isinstance(found, ErrorCode):
            answer(found)
            return
        partition, transaction = found
        if transaction is None or transaction.producer_id != producer.id:
            answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif transaction.producer_epoch != producer.epoch:
            answer(ErrorCode.PRODUCER_FENCED)
        elif transaction.pending is not None or transaction.state in COMPLETE:
            answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif transaction.state is Ongoing and all(one in transaction.partitions for one in partitions):
            answer(ErrorCode.NONE)
        else:
            change = transaction.prepare_partitions(partitions, self._clock.wall_ms())

            def stored(error: ErrorCode) -> None:
                if error is ErrorCode.NONE:
                    self._expect_end(partition, transaction)
                answer(error)

            self._store.write(partition, transaction, change, stored)

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, *, commits: bool, answer: Answer) -> None:
        """EndTxn. Answered when the decision is written; the markers follow."""
        self._end(transactional_id, producer.id, producer.epoch, commits, answer, by_client=True)

    def _end(
        self, transactional_id: str, producer_id: int, epoch: int, commits: bool, answer: Answer, *, by_client: bool
    ) -> None:
        found = self._found(transactional_id)
        if isinstance(found, ErrorCode):
            answer(found)
            return
        partition, transaction = found
        if transaction is None:
            answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        refusal = _end_refusal(transaction, producer_id, epoch, commits=commits, by_client=by_client)
        if refusal is ErrorCode.INVALID_TXN_STATE and by_client:
            # Its producer gives up for good: a broker that was deposed, and does not know, must not refuse so.
            self._store.confirm(
                partition, transaction, lambda error: answer(refusal if error is ErrorCode.NONE else error)
            )
            return
        if refusal is not None:
            answer(refusal)
            return
        fences = transaction.pending is PrepareEpochFence
        if fences:
            transaction.turn_to_abort(epoch)
        change = transaction.prepare_end(commits=commits, now_ms=self._clock.wall_ms())

        def stored(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                if fences:
                    transaction.has_failed_fence = True
                answer(error)
                return
            self._stop_timeout(transaction)
            self._send_markers(partition, transaction)
            answer(ErrorCode.NONE)

        self._store.write(partition, transaction, change, stored)

    # The markers.

    def _send_markers(self, partition: Partition, transaction: TransactionMetadata) -> None:
        """Carry out a decision that is written."""
        change = transaction.prepare_complete(self._clock.wall_ms())

        def ended(fenced: bool) -> None:
            if not fenced:
                self._complete(partition, transaction, change)

        ending = Ending(
            transaction.id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state is PrepareCommit,
            partition.epoch,
            dict(transaction.partitions),
            ended,
            lambda: self._store.still_coordinates(partition, transaction),
        )
        self._markers.send(ending)

    def _complete(self, partition: Partition, transaction: TransactionMetadata, change: Transition) -> None:
        """Write that the transaction is complete, as often as needed while this broker coordinates it.

        A log directory that is full refuses the record and stays online, so that no other broker takes over.
        """

        def stored(error: ErrorCode) -> None:
            if error in _WRITTEN_AGAIN and self._store.still_coordinates(partition, transaction):
                self._clock.call_later(WRITE_AGAIN_MS, lambda: self._complete(partition, transaction, change))
            elif error is not ErrorCode.NONE:
                words = f"transactional id {transaction.id}: that it is complete is not written: {error.name}"
                self._note("info", words)

        self._store.write(partition, transaction, change, stored, keeps_pending=lambda error: error in _WRITTEN_AGAIN)

    # Time.

    def _expect_end(self, partition: Partition, transaction: TransactionMetadata) -> None:
        """The transaction is to end within its timeout. Its beginning may be in the future, as the wall clock of the
        broker that it began on may be ahead: unlike Kafka's, it gets no more than its timeout then."""
        if transaction.timeout is None:
            left_ms = transaction.start_ms + transaction.timeout_ms - self._clock.wall_ms()
            delay_ms = min(max(left_ms, 0), transaction.timeout_ms) + 1
            transaction.timeout = self._clock.call_later(delay_ms, lambda: self._timed_out(partition, transaction))

    def _stop_timeout(self, transaction: TransactionMetadata) -> None:
        if transaction.timeout is not None:
            transaction.timeout.cancel()
            transaction.timeout = None

    def _timed_out(self, partition: Partition, transaction: TransactionMetadata) -> None:
        transaction.timeout = None
        if not self._store.still_coordinates(partition, transaction) or transaction.state is not Ongoing:
            return
        if transaction.pending is not None:
            self._look_again(partition, transaction)
            return

        def ended(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                words = f"transactional id {transaction.id}: not ended within {transaction.timeout_ms} ms, aborted"
                self._note("info", words)
            else:
                self._look_again(partition, transaction)

        change = transaction.prepare_fence()
        self._end(transaction.id, change.producer_id, change.producer_epoch, False, ended, by_client=False)

    def _look_again(self, partition: Partition, transaction: TransactionMetadata) -> None:
        self._stop_timeout(transaction)
        delay_ms = self._settings.transaction_abort_timed_out_interval_ms
        transaction.timeout = self._clock.call_later(delay_ms, lambda: self._timed_out(partition, transaction))

    def _look_for_expired(self) -> None:
        self.start()
        self.expire()

    def expire(self) -> None:
        """Forget the transactional ids that have done nothing for `transactional.id.expiration.ms`."""
        until_ms = self._clock.wall_ms() - self._settings.log.producer_id_expiration_ms
        for partition in self._store.topic.partitions():
            expired = [one for one in partition.entries.values() if one.may_expire and one.updated_ms <= until_ms]
            self._store.expire(partition, expired)

    # This broker becomes the coordinator of transactional ids, or ceases to be.

    def _loaded(self, partition: Partition) -> None:
        for transaction in tuple(partition.entries.values()):
            if transaction.state in COMPLETE:
                self._send_markers(partition, transaction)
            elif transaction.state is Ongoing:
                self._expect_end(partition, transaction)

    def _unloaded(self, partition: Partition) -> None:
        self._markers.forget(partition.entries)
        for transaction in partition.entries.values():
            self._stop_timeout(transaction)

    # Administration.

    def transactions(self) -> tuple[ErrorCode, list[TransactionMetadata]]:
        """All that are coordinated here. The error says that some are being loaded."""
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._store.topic.is_loading else ErrorCode.NONE
        return error, self._store.topic.entries()

    def transaction(self, transactional_id: str) -> TransactionMetadata | ErrorCode:
        found = self._found(transactional_id)
        if isinstance(found, ErrorCode):
            return found
        return found[1] or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _end_refusal(
    transaction: TransactionMetadata, producer_id: int, epoch: int, *, commits: bool, by_client: bool
) -> ErrorCode | None:
    """Why a transaction is not ended now: NONE if it has been, in that way."""
    if transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if epoch < transaction.producer_epoch or (by_client and epoch != transaction.producer_epoch):
        return ErrorCode.PRODUCER_FENCED
    if transaction.pending not in (None, PrepareEpochFence):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if by_client and transaction.pending is PrepareEpochFence:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    state = transaction.state
    if state is Ongoing:
        return None
    if state is (CompleteCommit if commits else CompleteAbort):
        return ErrorCode.NONE
    if state is (PrepareCommit if commits else PrepareAbort):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE
