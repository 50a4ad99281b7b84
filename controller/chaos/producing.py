"""A real producer of a chaos run: librdkafka's, on a thread of its own, which sends at its rate whatever happens.

It does not wait for one record before the next, so an outage delays what was due in it and hides nothing. Each record
ends with librdkafka's delivery report, at the latest after DELIVERY_TIMEOUT_MS.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controller.chaos.client_thread import ClientThread
from controller.scenarios.records.history import ACKNOWLEDGED, FAILED, INDETERMINATE, SendLog
from controller.scenarios.records.payload import Payload, encode_payload, key_bytes
from controller.scenarios.records.workload import ACKS_NONE, PartitionName, RecordWorkload, home

DELIVERY_TIMEOUT_MS = 60_000
"""Longer than any failover: a record that a client gives up is of unknown fate, and proves nothing."""

REQUEST_TIMEOUT_MS = 5_000
_POLL_S = 0.002

CLIENT_CONFIG: dict[str, Any] = {
    "socket.connection.setup.timeout.ms": 1000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
"""A dead broker is to cost a client its failover, not a back-off that would be measured as part of it."""


def producer_config(bootstrap: str, workload: RecordWorkload) -> dict[str, Any]:
    return CLIENT_CONFIG | {
        "bootstrap.servers": bootstrap,
        "acks": workload.acks,
        "enable.idempotence": workload.idempotent,
        "max.in.flight.requests.per.connection": workload.in_flight,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 200,
        "linger.ms": 2,
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
        bootstrap: str,
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
        self._producer: Any = Producer(producer_config(bootstrap, workload))
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
            self._poll(_POLL_S)
        while self.log.open and not self._abandoned.is_set():
            self._poll(0.1)

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
            self.log.ended(sequence, ACKNOWLEDGED, now_ms, offset=message.offset())
