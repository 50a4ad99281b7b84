"""Simulated transactional producers: initialise, add partitions, send, commit or abort, as Kafka's producer does.

`TransactionalProducer` is the client's part of the protocol. `SimulatedWriter` writes transactions with it, over its
lives: each is a process of its own, so that it can stand still, die, and find another in its place. What a producer
does about errors follows Kafka 2.8's TransactionManager: requests are sent again, to the present coordinator, until
they are answered; after a batch whose fate is unknown it asks for the next epoch before it goes on (KIP-360), so that
what is late of the former epoch is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from controller.clock import Clock, Future
from controller.core.channels import PeerError
from controller.machine.process import Process, ProcessClock
from controller.protocol import ApiKey, ErrorCode, decode_response_body, encode_request_body
from controller.protocol.client import COORDINATOR_OF_TRANSACTION
from controller.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from controller.scenarios.records.history import ACKNOWLEDGED, NO_OFFSET, SendLog, TransactionalLogs
from controller.scenarios.records.payload import Payload, encode_payload, key_bytes
from controller.scenarios.records.transaction_history import ABORTED, COMMITTED, ClientTransactions
from controller.scenarios.records.workload import ACKS_ALL, PartitionName, TransactionStage, TransactionWorkload
from controller.simulator.network import Address
from controller.simulator.producer import TRANSIENT, UNKNOWN_FATE
from controller.simulator.randomness import Streams
from controller.simulator.routes import BACKOFF_MS, NOBODY, Connect, CoordinatorLink, Pipeline, Routes, keep_going
from controller.storage.batches import Record, encode_batch
from controller.storage.transactions import TRANSACTIONAL

REQUEST_TIMEOUT_MS = 3_000.0
DELIVERY_TIMEOUT_MS = 30_000.0
RECORD_BYTES = 64
_INIT, _ADD, _ADD_OFFSETS, _END, _PRODUCE = 4, 3, 3, 3, 8
_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
)
_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class FencedByCluster(Exception):
    """Another producer has the transactional id, or the coordinator has aborted the transaction."""


class TransactionFailed(Exception):
    """The transaction can't be committed: it is to be aborted."""


class Stages:
    """Where a client is to stop within its transactions, and whether it has come there."""

    def __init__(self) -> None:
        self.wanted: TransactionStage | None = None
        self.reached: Future[None] = Future()
        self._go_on: Future[None] = Future()

    def hold(self, stage: TransactionStage) -> Future[None]:
        """Resolved when the client is there. It sends EndTxn and stops nowhere if the stage is that it ends."""
        self.release()
        self.wanted, self.reached, self._go_on = stage, Future(), Future()
        return self.reached

    def release(self) -> None:
        self.wanted = None
        if not self._go_on.done:
            self._go_on.resolve(None)

    def passing(self, stage: TransactionStage) -> bool:
        """Whether the client is to stop here."""
        if self.wanted is not stage:
            return False
        if not self.reached.done:
            self.reached.resolve(None)
        return stage is not TransactionStage.ENDING

    async def at(self, stage: TransactionStage, clock: Clock) -> None:
        """Stop here, if the client is to, and go on by its process's clock: one that stands still does not."""
        if self.passing(stage):
            await self._go_on
            await clock.sleep(0.0)


class TransactionalProducer:
    """One client with a transactional id. One transaction at a time; `init` begins an incarnation.

    `log` has transactions. `failure`: an answer that no fault explains.
    """

    def __init__(
        self,
        transactional_id: str,
        log: SendLog,
        routes: Routes,
        link: CoordinatorLink,
        timeout_ms: int,
        stages: Stages | None = None,
    ) -> None:
        assert log.transactions is not None
        self.log = log
        self.transactions: ClientTransactions = log.transactions
        self.failure: str | None = None
        self._id = transactional_id
        self._routes = routes
        self.clock = routes.clock
        self.link = link
        self._timeout_ms = timeout_ms
        self._stages = stages or Stages()
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[int, int] = {}
        self._added: set[int] = set()
        self._with_offsets = False
        self._uncertain = False
        """A batch of unknown fate may still be written."""

    async def init(self) -> None:
        """The next incarnation. What the one before it left open is aborted by the coordinator."""
        request = InitProducerIdRequest(self._id, self._timeout_ms)
        asked_ms = self.clock.now_ms()
        while True:
            answer = await self.link.ask_until_answered(ApiKey.INIT_PRODUCER_ID, _INIT, request, REQUEST_TIMEOUT_MS)
            assert isinstance(answer, InitProducerIdResponse)
            if self._accepted(answer.error_code):
                break
            await self.clock.sleep(BACKOFF_MS)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences, self._uncertain = {}, False
        self.transactions.initialised(asked_ms, self.clock.now_ms())

    def begin(self) -> int:
        self._added, self._with_offsets = set(), False
        return self.transactions.began(self.clock.now_ms())

    def _accepted(self, code: int) -> bool:
        """Return whether a request succeeded; False: send it again. Raises FencedByCluster, TransactionFailed."""
        error = ErrorCode(code)
        if error is ErrorCode.NONE:
            return True
        if error in _ELSEWHERE:
            self.link.forget()
        elif error in _FENCED:
            raise FencedByCluster(error.name)
        elif error not in _AGAIN:
            self.failure = self.failure or f"{self._id}: {error.name}"
            raise TransactionFailed(error.name)
        return False

    async def add_partitions(self, places: Collection[int]) -> None:
        left = sorted(set(places) - self._added)
        while left:
            topics: dict[str, list[int]] = {}
            for place in left:
                topic, number = self._routes.partitions[place]
                topics.setdefault(topic, []).append(number)
            request = AddPartitionsToTxnRequest(
                self._id,
                self._producer_id,
                self._epoch,
                tuple(AddPartitionsToTxnTopic(topic, tuple(numbers)) for topic, numbers in topics.items()),
            )
            answer = await self.link.ask_until_answered(ApiKey.ADD_PARTITIONS_TO_TXN, _ADD, request, REQUEST_TIMEOUT_MS)
            assert isinstance(answer, AddPartitionsToTxnResponse)
            codes = [one.error_code for topic in answer.results for one in topic.results]
            if codes and all(code == ErrorCode.NONE for code in codes):
                self._added.update(left)
                break
            for code in codes:
                if code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                    self._accepted(code)
            await self.clock.sleep(BACKOFF_MS)

    async def add_offsets(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(self._id, self._producer_id, self._epoch, group)
        while True:
            answer = await self.link.ask_until_answered(
                ApiKey.ADD_OFFSETS_TO_TXN, _ADD_OFFSETS, request, REQUEST_TIMEOUT_MS
            )
            assert isinstance(answer, AddOffsetsToTxnResponse)
            if self._accepted(answer.error_code):
                self._with_offsets = True
                return
            await self.clock.sleep(BACKOFF_MS)

    @property
    def identity(self) -> tuple[str, int, int]:
        """Transactional id, producer id, epoch."""
        return self._id, self._producer_id, self._epoch

    # -- records

    async def send(self, transaction: int, keys: Mapping[int, Sequence[int]]) -> None:
        """Send a record of each of those keys to each place; returns once all are acknowledged."""
        now_ms = self.clock.now_ms()
        waiting = {
            place: [self.log.sent(key, place, now_ms, transaction) for key in those] for place, those in keys.items()
        }
        firsts = {place: self._sequences.get(place, 0) for place in waiting}
        give_up_ms = now_ms + DELIVERY_TIMEOUT_MS
        self._uncertain = True  # until each is acknowledged
        while waiting:
            if self.clock.now_ms() > give_up_ms:
                raise TransactionFailed("not delivered in time")
            asked = [(place, self._produce(place, numbers, firsts[place])) for place, numbers in waiting.items()]
            for place, answer in asked:
                code, offset = int(ErrorCode.NETWORK_EXCEPTION), NO_OFFSET
                if answer is not None:
                    with suppress(PeerError):
                        code, offset = _result(await answer)
                if self._delivered(place, waiting[place], code, offset):
                    self._sequences[place] = firsts[place] + len(waiting.pop(place))
            if waiting:
                self._routes.forget(sorted(waiting))
                await self.clock.sleep(BACKOFF_MS)
        self._uncertain = False

    def _produce(self, place: int, numbers: Sequence[int], first: int) -> Future[bytes] | None:
        """None while no leader is known."""
        leader = self._routes.leaders[place]
        if leader == NOBODY:
            return None
        log, (topic, partition) = self.log, self._routes.partitions[place]
        records = []
        for index, number in enumerate(numbers):
            payload = Payload(log.producer, log.key[number], number, log.sent_at_ms[number])
            value = encode_payload(payload, RECORD_BYTES)
            records.append(Record(index, self.clock.wall_ms(), key_bytes(payload.key), value))
        batch = encode_batch(
            records,
            attributes=TRANSACTIONAL,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=first,
        )
        request = ProduceRequest(
            ACKS_ALL, int(REQUEST_TIMEOUT_MS), (ProduceTopic(topic, (ProducePartition(partition, batch),)),), self._id
        )
        body = encode_request_body(ApiKey.PRODUCE, _PRODUCE, request)
        return self._routes.pipeline(leader).ask(ApiKey.PRODUCE, _PRODUCE, body, 1.5 * REQUEST_TIMEOUT_MS)

    def _delivered(self, place: int, numbers: Sequence[int], code: int, offset: int) -> bool:
        """Whether a batch is in the log. Raises FencedByCluster, TransactionFailed."""
        error, now_ms = ErrorCode(code), self.clock.now_ms()
        if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            for index, number in enumerate(numbers):
                at = offset + index if offset != NO_OFFSET and error is ErrorCode.NONE else NO_OFFSET
                self.log.ended(number, ACKNOWLEDGED, now_ms, offset=at)
            return True
        if error in TRANSIENT or error in UNKNOWN_FATE:
            return False
        if error in _FENCED:
            raise FencedByCluster(error.name)
        self.failure = self.failure or f"{self._id}: {error.name} for a batch"
        raise TransactionFailed(error.name)

    # -- the end

    async def end(self, transaction: int, *, commits: bool) -> None:
        """Commit or abort, until the coordinator has answered. A transaction with nothing in it ends here."""
        now_ms = self.clock.now_ms()
        if commits:
            self.transactions.committing(transaction, now_ms)
        while self._added or self._with_offsets:
            request = EndTxnRequest(self._id, self._producer_id, self._epoch, commits)
            answering = self.link.ask_until_answered(ApiKey.END_TXN, _END, request, REQUEST_TIMEOUT_MS)
            self._stages.passing(TransactionStage.ENDING)
            answer = await answering
            assert isinstance(answer, EndTxnResponse)
            if self._accepted(answer.error_code):
                break
            await self.clock.sleep(BACKOFF_MS)
        self.transactions.ended(transaction, COMMITTED if commits else ABORTED, self.clock.now_ms())

    async def abort(self, transaction: int) -> None:
        """Abort. After a batch of unknown fate by way of the next epoch."""
        if self._uncertain:
            await self.init()
            self.transactions.ended(transaction, ABORTED, self.clock.now_ms())
        else:
            await self.end(transaction, commits=False)


def _result(body: bytes) -> tuple[int, int]:
    answer = decode_response_body(ApiKey.PRODUCE, _PRODUCE, body)
    assert isinstance(answer, ProduceResponse)
    result = answer.responses[0].partition_responses[0]
    return result.error_code, result.base_offset


class SimulatedLife:
    """A client from its start to its end, as a process of its own, with a link to the coordinator of `key`."""

    def __init__(self, client: RestartableClient[Any], life: int, key: str, key_type: int) -> None:
        self.superseded = False
        """Another has come in its place."""
        self.process = Process(client.name)
        self.clock = ProcessClock(client.world, self.process)
        self._rng = client.streams.stream(f"records/{client.name}/{life}")

        def connect(address: Address) -> Pipeline:
            return client.connect(self.process, self.clock, address, client.name)

        self._connect = connect
        self.routes = Routes(connect, self.clock, self._rng, client.brokers, client.partitions)
        self.link = CoordinatorLink(key, key_type, self.routes, connect, client.brokers)

    def end(self) -> None:
        self.process.die()  # and with it its connections and timers

    def keep_to(self, among: Collection[int]) -> None:
        self.routes.keep_to(among)
        self.link.keep_to(among)

    def gave_way(self) -> None:
        """It stands still, and another takes its place."""


Life = TypeVar("Life", bound=SimulatedLife)


class RestartableClient(ABC, Generic[Life]):
    """One client over its lives, which share its name."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        world: Clock,
        streams: Streams,
        brokers: Mapping[int, Address],
        partitions: Sequence[PartitionName],
    ) -> None:
        self.name = name
        self.connect = connect
        self.world = world
        self.streams = streams
        self.brokers = dict(brokers)
        self.partitions = tuple(partitions)
        self.stages = Stages()
        self._lives = 0
        self._former: list[Life] = []
        self._life: Life | None = None

    @abstractmethod
    def begin(self) -> None:
        """Start, unless it runs already."""

    @property
    def is_running(self) -> bool:
        return self._life is not None and self._life.process.alive

    def die(self) -> None:
        self.stages.release()
        if self._life is not None and self.is_running:
            self._life.end()

    def end_former(self) -> None:
        """Those in whose place others have come are not waited for."""
        for life in self._former:
            if life.process.alive:
                life.end()

    def pause(self) -> None:
        if self._life is not None:
            self._life.process.pause()

    def resume(self) -> None:
        if self._life is not None:
            self._life.process.resume()

    def replace(self) -> Callable[[], None]:
        """The client stands still, and another takes its place under its name (and group.instance.id). Return what has
        the former one go on, which the cluster fences."""
        former = self._life
        assert former is not None
        former.process.pause()
        former.superseded = True
        self.stages.release()
        former.gave_way()
        self._life = None
        self._former.append(former)
        self.begin()
        return former.process.resume

    def keep_to(self, among: Collection[int] | None) -> None:
        """Ask these brokers alone from now on, as a client would whose other brokers are cut off; None: all."""
        if among is None:
            return
        self.brokers = {node: address for node, address in self.brokers.items() if node in among}
        if self._life is not None and self.is_running:
            self._life.keep_to(among)


class _WriterLife(SimulatedLife):
    """A writer from its start to its end."""

    def __init__(self, writer: SimulatedWriter, life: int) -> None:
        super().__init__(writer, life, writer.name, COORDINATOR_OF_TRANSACTION)
        self.done = False
        """It has ended its transaction, and begins no other."""
        self._writer = writer
        log = writer.logs.new(writer.name)
        self.producer = TransactionalProducer(
            writer.name, log, self.routes, self.link, writer.workload.timeout_ms, writer.stages
        )
        keep_going(self._run())

    async def _run(self) -> None:
        self.routes.learn()
        workload = self._writer.workload
        pause_ms = 1000.0 * workload.writers / workload.rate_per_s
        while True:
            try:
                await self.producer.init()
                while not self._writer.stopped:
                    due_ms = self.clock.now_ms() + pause_ms * self._rng.uniform(0.5, 1.5)
                    await self._transaction()
                    await self.clock.sleep(max(due_ms - self.clock.now_ms(), 0.0))
                break
            except (FencedByCluster, TransactionFailed):
                if self.superseded:
                    break
                await self.clock.sleep(BACKOFF_MS)
        self.done = True

    async def _transaction(self) -> None:
        """One transaction. Raises FencedByCluster; TransactionFailed if it could not be aborted."""
        writer, producer = self._writer, self.producer
        workload, stages = writer.workload, writer.stages
        number = producer.begin()
        await stages.at(TransactionStage.INITIALISED, self.clock)
        places = self._rng.sample(writer.places, min(len(writer.places), self._rng.randint(1, workload.partitions)))
        keys = {place: [self._rng.randrange(64) for _ in range(workload.records)] for place in places}
        try:
            await producer.add_partitions(places)
            await stages.at(TransactionStage.PARTITIONS_ADDED, self.clock)
            await producer.send(number, keys)
            await stages.at(TransactionStage.SENT, self.clock)
        except TransactionFailed:
            await producer.abort(number)
            return
        commits = not workload.abort_every or (number + 1) % workload.abort_every != 0
        await producer.end(number, commits=commits)


class SimulatedWriter(RestartableClient[_WriterLife]):
    """One transactional producer, over its lives, which share its name: its transactional id."""

    def __init__(
        self,
        number: int,
        connect: Connect,
        world: Clock,
        streams: Streams,
        brokers: Mapping[int, Address],
        partitions: Sequence[PartitionName],
        places: Sequence[int],
        workload: TransactionWorkload,
        logs: TransactionalLogs,
    ) -> None:
        super().__init__(f"writer-{number}", connect, world, streams, brokers, partitions)
        self.places = list(places)
        self.workload = workload
        self.logs = logs
        self.stopped = False
        self._all: list[TransactionalProducer] = []

    @property
    def done(self) -> bool:
        return self._life is not None and self._life.done

    @property
    def failures(self) -> list[str]:
        return [one.failure for one in self._all if one.failure is not None]

    def begin(self) -> None:
        if not self.is_running:
            self._lives += 1
            self._life = _WriterLife(self, self._lives)
            self._all.append(self._life.producer)

    def stop(self, among: Collection[int] | None) -> None:
        """Begin no more transactions. A producer that is dead begins once more, and with it what it left open ends.
        `among`: the brokers that it asks from now on; None: all."""
        self.stopped = True
        self.stages.release()
        self.end_former()
        self.resume()
        self.keep_to(among)
        self.begin()

    def close(self) -> None:
        self.end_former()
        self.die()
