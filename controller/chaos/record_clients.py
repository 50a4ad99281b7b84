"""The real clients of a chaos run that write and read records, from the first record to the history of all.

Each has a thread of its own. A client that ends early reports its error, because the verdict counts on each of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controller.chaos.client import Connect, interruptible
from controller.chaos.client_process import StopsOfClient
from controller.chaos.clock import ScenarioClock
from controller.chaos.group_members import RealGroup
from controller.chaos.transactional_clients import RealWriter, TransactionalSetup
from controller.log import logger
from controller.scenarios.faults import HostFailure
from controller.scenarios.records.history import (
    ACKNOWLEDGED,
    ALL_READER,
    COMMITTED_READER,
    FAILED,
    FINAL,
    FOREIGN,
    INDETERMINATE,
    NO_OFFSET,
    FinalRead,
    FinalReadProgress,
    History,
    ReadLog,
    SendLog,
    acknowledged_ends,
    history_of,
)
from controller.scenarios.records.payload import ForeignRecord, Payload, decode_payload, encode_payload, key_bytes
from controller.scenarios.records.workload import ACKS_NONE, PartitionName, RecordWorkload, home


class ClientThread(threading.Thread):
    """A thread that starts on construction and runs `work`. `error`: the error that ended it early, or None."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name.replace(" ", "-"), daemon=True)
        self.error: str | None = None
        self._work = work
        self._client = name
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as raised:  # noqa: BLE001 - a client of the C library raises what no signature names
            logger.opt(exception=raised).error("{} ended early", self._client)
            self.error = f"{self._client} ended early: {type(raised).__name__}: {raised}"


_BATCH = 1_000
_POLL_S = 0.1
_ASK_S = 2.0
_ASK_AGAIN_MS = 100.0


def consumer_config(connect: Connect, *, committed: bool = False) -> dict[str, Any]:
    return CLIENT_CONFIG | {
        **connect,
        "group.id": "camerlengo-chaos",  # asked for by the library; partitions are assigned, nothing is committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "fetch.error.backoff.ms": 50,
        "fetch.wait.max.ms": 500,
        "enable.partition.eof": committed,
        "check.crcs": True,
    }


class _Reader:
    """A consumer of all partitions (or of those `places`) from their beginning, and what it has read. `committed`: of
    transactions the committed ones alone."""

    def __init__(
        self,
        number: int,
        connect: Connect,
        partitions: Sequence[PartitionName],
        now_ms: Callable[[], float],
        *,
        places: Sequence[int] | None = None,
        committed: bool = False,
    ) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        self._end_of_partition = KafkaError._PARTITION_EOF
        self.log = ReadLog(number, committed=committed)
        self.consumer: Any = Consumer(consumer_config(connect, committed=committed))
        self._places = {name: place for place, name in enumerate(partitions)}
        self._now_ms = now_ms
        those = [partitions[place] for place in (range(len(partitions)) if places is None else places)]
        self.consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in those])

    def take(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return partition and offset of each record that arrived within the timeout; at an end that a reader of
        committed records has come to, the offset before it.

        Other error messages are skipped: all that librdkafka reports here are temporary, and it recovers by itself.
        """
        messages = self.consumer.consume(_BATCH, timeout_s)
        now_ms = self._now_ms()
        taken = []
        for message in messages:
            if message.error() is None:
                place, offset = self._places[message.topic(), message.partition()], message.offset()
                try:
                    payload = decode_payload(message.value())
                except ForeignRecord:
                    self.log.read(place, offset, FOREIGN, -1, -1, now_ms)
                else:
                    self.log.read(place, offset, payload.producer, payload.sequence, payload.key, now_ms)
                taken.append((place, offset))
            elif message.error().code() == self._end_of_partition and message.offset() > 0:
                # What lies before it and was not returned is aborted, or a marker.
                taken.append((self._places[message.topic(), message.partition()], message.offset() - 1))
        return taken


def _asker(connect: Connect, *, committed: bool) -> Any:
    """Reads nothing, asks for offsets, on connections of its own: a connection's answers come in order, so a reader's
    would come after its fetches, which wait for `fetch.wait.max.ms` at the end of a log."""
    from confluent_kafka import Consumer

    return Consumer(consumer_config(connect, committed=committed))


class ConsumingClient:
    """Reads from its making on, until `stop`. `log` is the thread's own until then."""

    def __init__(
        self,
        number: int,
        connect: Connect,
        partitions: Sequence[PartitionName],
        now_ms: Callable[[], float],
        *,
        places: Sequence[int] | None = None,
        committed: bool = False,
    ) -> None:
        self._reader = _Reader(number, connect, partitions, now_ms, places=places, committed=committed)
        self._stopped = threading.Event()
        self._thread = ClientThread(self._run, f"consumer {number}")

    @property
    def log(self) -> ReadLog:
        return self._reader.log

    @property
    def error(self) -> str | None:
        return self._thread.error

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(10.0)
        self._reader.consumer.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._reader.take(_POLL_S)


@dataclass(slots=True)
class _Standing(FinalReadProgress):
    progress_ms: float = 0.0
    position: int = 0
    asked_ms: float = float("-inf")
    error: str = ""


class FinalReader:
    """Reads every partition from its beginning to its end, after all producers have stopped."""

    def __init__(
        self,
        connect: Connect,
        partitions: Sequence[PartitionName],
        expected: Sequence[int],
        now_ms: Callable[[], float],
        *,
        committed: bool = False,
    ) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self._reader = _Reader(FINAL, connect, partitions, now_ms, committed=committed)
        self._asker = _asker(connect, committed=committed)
        self._standings = [_Standing(each, progress_ms=now_ms()) for each in expected]

    @property
    def log(self) -> ReadLog:
        return self._reader.log

    def read(self, deadline_ms: float) -> list[FinalRead]:
        """Blocks for at most `deadline_ms`."""
        give_up_ms = self._now_ms() + deadline_ms
        try:
            with interruptible():
                while self._open() and self._now_ms() < give_up_ms:
                    for place, offset in self._reader.take(_POLL_S):
                        standing = self._standings[place]
                        standing.position, standing.progress_ms = offset + 1, self._now_ms()
                    for place in self._open():
                        self._look(place)
        finally:
            self._reader.consumer.close()
            self._asker.close()
        return [standing.verdict(standing.position, standing.error) for standing in self._standings]

    def _open(self) -> list[int]:
        return [place for place, standing in enumerate(self._standings) if standing.reached is None]

    def _look(self, place: int) -> None:
        standing, now_ms = self._standings[place], self._now_ms()
        if standing.position >= standing.end and now_ms - standing.asked_ms >= _ASK_AGAIN_MS:
            standing.asked_ms = now_ms
            self._ask(place)
        standing.look(standing.position, standing.progress_ms, now_ms)

    def _ask(self, place: int) -> None:
        """Ask the partition's leader for its log start offset and its end."""
        from confluent_kafka import KafkaException, TopicPartition

        standing = self._standings[place]
        try:
            start, end = self._asker.get_watermark_offsets(TopicPartition(*self._partitions[place]), _ASK_S)
        except KafkaException as error:
            standing.error = str(error.args[0])
            return
        standing.start, standing.end, standing.error = start, end, ""
        standing.position = max(standing.position, start)


DELIVERY_TIMEOUT_MS = 60_000
"""Longer than any failover: a record that a client gives up is of unknown fate, and proves nothing."""

REQUEST_TIMEOUT_MS = 5_000
STATISTICS_MS = 200
"""How often librdkafka says in which epoch a producer is."""
_PRODUCER_POLL_S = 0.002

CLIENT_CONFIG: dict[str, Any] = {
    "socket.connection.setup.timeout.ms": 1000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
"""A dead broker is to cost a client its failover, not a back-off that would be measured as part of it."""


def producer_config(connect: Connect, workload: RecordWorkload) -> dict[str, Any]:
    return CLIENT_CONFIG | {
        **connect,
        "acks": workload.acks,
        "enable.idempotence": workload.idempotent,
        # A batch that overtakes one that was refused makes librdkafka begin a new epoch in all partitions, and send
        # again in it what another partition has written (its issue 4953). With more than one in flight that is common.
        "max.in.flight.requests.per.connection": 1 if workload.idempotent else workload.in_flight,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 200,
        "linger.ms": 2,
        "statistics.interval.ms": STATISTICS_MS if workload.idempotent else 0,
        # All that can be due while nothing is acknowledged.
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 2_000_000,
    }


class ProducingClient:
    """A producer that sends from its construction until `stop`.

    `log` belongs to the thread until the thread has ended (`join`). `error`: an error that librdkafka calls fatal, or
    another one that ended the thread early; the producer sends nothing afterwards.
    """

    def __init__(
        self,
        number: int,
        connect: Connect,
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
        now_ms: Callable[[], float],
    ) -> None:
        from confluent_kafka import KafkaError, Producer

        # Their earlier attempts, if any, were refused for the same reason: nothing of them was written.
        self._never_written = (KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
        self.log = SendLog(number)
        self._fatal: str | None = None
        self._workload = workload
        self._partitions = partitions
        self._now_ms = now_ms
        self._producer: Any = Producer(producer_config(connect, workload) | {"stats_cb": self._take_statistics})
        self._statistics = 0
        """How many were taken."""
        self._stopped = threading.Event()
        self._abandoned = threading.Event()
        self._thread = ClientThread(self._run, f"producer {number}")

    @property
    def error(self) -> str | None:
        return self._fatal or self._thread.error

    def stop(self) -> None:
        """Stop sending. Requests in flight are completed."""
        self._stopped.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end, and return True if it did, with all operations completed.

        After `timeout_s` the thread is instructed to leave them open.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._abandoned.set()
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        began_ms = self._now_ms()
        a_record_ms = 1000.0 * self._workload.producers / self._workload.rate_per_s
        while not self._stopped.is_set():
            due = int((self._now_ms() - began_ms) / a_record_ms)
            while len(self.log.key) <= due and not self._stopped.is_set():
                self._send(began_ms + len(self.log.key) * a_record_ms)
            self._poll(_PRODUCER_POLL_S)
        while self.log.open and not self._abandoned.is_set():
            self._poll(0.1)
        taken = self._statistics
        while self._workload.idempotent and self._statistics == taken and not self._abandoned.is_set():
            self._poll(0.1)

    def _take_statistics(self, statistics: str) -> None:
        """An idempotent producer's. `epoch_cnt` counts its producer ids."""
        self._statistics += 1
        eos = json.loads(statistics)["eos"]
        self.log.renewed = eos["epoch_cnt"] > 1 or eos["producer_epoch"] > 0

    def _poll(self, timeout_s: float) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:  # what was sent still ends with its delivery report
            self._fatal = self._fatal or f"producer {self.log.producer}: {error.args[0]}"
            self._stopped.set()

    def _send(self, due_ms: float) -> None:
        from confluent_kafka import KafkaException

        log = self.log
        key = (len(log.key) + log.producer) % self._workload.keys
        partition = home(key, len(self._partitions))
        topic, number = self._partitions[partition]
        sequence = log.sent(key, partition, due_ms)
        value = encode_payload(Payload(log.producer, key, sequence, due_ms), self._workload.record_bytes)
        try:
            self._producer.produce(
                topic, value, key_bytes(key), partition=number, on_delivery=partial(self._delivered, sequence)
            )
        except (BufferError, KafkaException) as error:  # it never came into the queue
            log.ended(sequence, FAILED, self._now_ms(), error=str(error))

    def _delivered(self, sequence: int, error: Any, message: Any) -> None:
        now_ms = self._now_ms()
        if error is not None:
            outcome = FAILED if error.code() in self._never_written else INDETERMINATE
            self.log.ended(sequence, outcome, now_ms, error=error.str())
        elif self._workload.acks == ACKS_NONE:
            self.log.ended(sequence, INDETERMINATE, now_ms)  # sent, and never acknowledged
        else:
            # librdkafka knows no offset of a record whose response was lost, and which it takes for acknowledged since
            # a later batch of the same producer was.
            offset = message.offset()
            self.log.ended(sequence, ACKNOWLEDGED, now_ms, offset=NO_OFFSET if offset is None else offset)


JOIN_S = DELIVERY_TIMEOUT_MS / 1000 + 10


class RecordClients:
    """Begins at once. HostFailure, with the extra to install, where confluent-kafka is missing. `folder` gets the logs
    of clients that are processes."""

    def __init__(
        self,
        connect: Connect,
        workload: RecordWorkload,
        partitions: Sequence[PartitionName],
        clock: ScenarioClock,
        folder: Path,
    ) -> None:
        self._connect = connect
        self._partitions = tuple(partitions)
        self._now_ms = now_ms = clock.now_ms
        self._final: FinalReader | None = None
        self._finals: list[FinalRead] = []
        self._committed_offsets: list[int] | None = None
        places = workload.transactional_places(partitions)
        plain = self._partitions[: len(partitions) - len(places)]
        try:
            self._consumers = [ConsumingClient(number, connect, plain, now_ms) for number in range(workload.consumers)]
            self._producers = [
                ProducingClient(number, connect, workload, plain, now_ms) for number in range(workload.producers)
            ]
            if places:
                self._consumers += [
                    ConsumingClient(number, connect, partitions, now_ms, places=places, committed=committed)
                    for number, committed in ((COMMITTED_READER, True), (ALL_READER, False))
                ]
        except ImportError as error:
            raise HostFailure("records need confluent-kafka: pip install 'camerlengo[chaos]'") from error
        self._setup: TransactionalSetup | None = None
        self.writers: dict[int, RealWriter] = {}
        if workload.transactions is not None:
            self._setup = setup = TransactionalSetup(
                connect, workload.transactions, partitions, places, clock, folder, CLIENT_CONFIG
            )
            self.writers = {number: RealWriter(number, setup) for number in range(workload.transactions.writers)}
        self.group: RealGroup | None = None
        if workload.members:
            transforms = workload.transactions is not None and workload.transactions.transform
            setup_of_group = self._setup if transforms else None
            self.group = RealGroup(connect, workload, plain, clock, folder, CLIENT_CONFIG, setup_of_group)

    def stops(self, client: int) -> StopsOfClient:
        """Where a transactional client is to stop. HostFailure without it."""
        if self.group is not None and self.group.setup is not None and client in self.group.stops:
            return self.group.stops[client]
        if client not in self.writers:
            raise HostFailure(f"transactional client {client}: expected one of {sorted(self.writers)}")
        return self.writers[client].stops

    def quiesce(self, deadline_ms: float) -> None:
        """Blocks until every operation has ended, and all was read once more or `deadline_ms` passed with that. The
        consumers go on meanwhile: what they have not read yet they may read too."""
        self._stop_producers()
        if self.group is not None:
            self.group.settle(self._acknowledged()[: self.group.partitions])
            if self.group.setup is not None:
                ended = self.group.end_transactions()
                self._committed_offsets = ended + [-1] * (len(self._partitions) - len(ended))
        expected, committed = self._acknowledged(), self._setup is not None
        self._final = FinalReader(self._connect, self._partitions, expected, self._now_ms, committed=committed)
        self._finals = self._final.read(deadline_ms)
        self.close()

    @property
    def _sends(self) -> list[SendLog]:
        return [*(producer.log for producer in self._producers), *(self._setup.logs if self._setup else [])]

    def _acknowledged(self) -> list[int]:
        return acknowledged_ends(len(self._partitions), self._sends)

    def _stop_producers(self) -> None:
        for producer in self._producers:
            producer.stop()
        for writer in self.writers.values():
            writer.stop()
        if not all(producer.join(JOIN_S) for producer in self._producers):
            raise HostFailure(f"a producer did not come to its end in {2 * JOIN_S:g} s")
        for writer in self.writers.values():
            writer.join()

    def close(self) -> None:
        """Ends the clients, whatever is unfinished. Safe to call twice."""
        for producer in self._producers:
            producer.stop()
        for producer in self._producers:
            producer.join(0.5)
        for consumer in self._consumers:
            consumer.stop()
        for writer in self.writers.values():
            writer.close()
        if self.group is not None:
            self.group.close()

    def history(self) -> History:
        """After `close` or `quiesce`: until then the logs are the clients' threads'."""
        reads = [consumer.log for consumer in self._consumers]
        reads += [] if self.group is None else self.group.reads
        if self._final is not None:
            reads.append(self._final.log)
        clients: list[ProducingClient | ConsumingClient | RealWriter] = [
            *self._producers,
            *self._consumers,
            *self.writers.values(),
        ]
        errors = [client.error for client in clients if client.error is not None]
        errors += [] if self.group is None else self.group.errors
        group = None if self.group is None else self.group.history()
        return history_of(self._partitions, self._sends, reads, self._finals, errors, group, self._committed_offsets)
