"""Real consumers of a chaos run: one that follows all partitions while things happen, and the final read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.chaos.client import interruptible
from controller.chaos.client_thread import ClientThread
from controller.chaos.producing import CLIENT_CONFIG
from controller.scenarios.records.history import FINAL, FOREIGN, FinalRead, Reached, ReadLog
from controller.scenarios.records.payload import ForeignRecord, decode_payload
from controller.scenarios.records.workload import PartitionName

_BATCH = 1_000
_POLL_S = 0.1
_ASK_S = 2.0
_ASK_AGAIN_MS = 100.0

SETTLE_MS = 5_000.0
"""How long an end may stay below an acknowledged record: the high watermark advances after the followers have it."""

PATIENCE_MS = 20_000.0
"""How long a partition may return no record before it counts as unreadable."""


def consumer_config(bootstrap: str) -> dict[str, Any]:
    return CLIENT_CONFIG | {
        "bootstrap.servers": bootstrap,
        "group.id": "camerlengo-chaos",  # asked for by the library; partitions are assigned, nothing is committed
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "fetch.error.backoff.ms": 50,
        "fetch.wait.max.ms": 500,
        "check.crcs": True,
    }


class _Reader:
    """A consumer of all partitions from their beginning, and what it has read."""

    def __init__(
        self, number: int, bootstrap: str, partitions: Sequence[PartitionName], now_ms: Callable[[], float]
    ) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self.log = ReadLog(number)
        self.consumer: Any = Consumer(consumer_config(bootstrap))
        self._places = {name: place for place, name in enumerate(partitions)}
        self._now_ms = now_ms
        self.consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in partitions])

    def take(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return partition and offset of each record that arrived within the timeout.

        Error messages are skipped: all errors that librdkafka reports here are temporary, and it recovers by itself.
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
        return taken


def _asker(bootstrap: str) -> Any:
    """Reads nothing, asks for offsets, on connections of its own: a connection's answers come in order, so a reader's
    would come after its fetches, which wait for `fetch.wait.max.ms` at the end of a log."""
    from confluent_kafka import Consumer

    return Consumer(consumer_config(bootstrap))


class ConsumingClient:
    """Reads from its making on, until `stop`. `log` is the thread's own until then."""

    def __init__(
        self, number: int, bootstrap: str, partitions: Sequence[PartitionName], now_ms: Callable[[], float]
    ) -> None:
        self._reader = _Reader(number, bootstrap, partitions, now_ms)
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
class _Standing:
    """The progress of the final read of one partition.

    `start`, `end`: -1 until the leader has returned them. `full_since_ms`: the time since which everything up to `end`
    has been read although records beyond it were acknowledged.
    """

    expected: int
    progress_ms: float
    start: int = -1
    end: int = -1
    position: int = 0
    asked_ms: float = float("-inf")
    full_since_ms: float | None = None
    error: str = ""
    reached: Reached | None = None


class FinalReader:
    """Reads every partition from its beginning to its end, after all producers have stopped.

    `expected`: for each partition an offset below which a record was acknowledged. If the partition ends before it, the
    reader waits SETTLE_MS for the end to reach it.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: Sequence[PartitionName],
        expected: Sequence[int],
        now_ms: Callable[[], float],
    ) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self._reader = _Reader(FINAL, bootstrap, partitions, now_ms)
        self._asker = _asker(bootstrap)
        self._standings = [_Standing(each, now_ms()) for each in expected]

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
        return [self._verdict(standing) for standing in self._standings]

    def _open(self) -> list[int]:
        return [place for place, standing in enumerate(self._standings) if standing.reached is None]

    def _look(self, place: int) -> None:
        standing, now_ms = self._standings[place], self._now_ms()
        if standing.position >= standing.end and now_ms - standing.asked_ms >= _ASK_AGAIN_MS:
            standing.asked_ms = now_ms
            self._ask(place)
        if standing.end < 0 or standing.position < standing.end:
            standing.full_since_ms = None
            if now_ms - standing.progress_ms > PATIENCE_MS:
                standing.reached = Reached.NOTHING_MORE
            return
        if standing.full_since_ms is None:
            standing.full_since_ms = now_ms
        if standing.end >= standing.expected or now_ms - standing.full_since_ms > SETTLE_MS:
            standing.reached = Reached.END

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

    def _verdict(self, standing: _Standing) -> FinalRead:
        detail = ""
        if standing.reached is not Reached.END:
            detail = f"read to {standing.position} of {standing.end}"
            detail += f": {standing.error}" if standing.error else ""
        return FinalRead(max(standing.start, 0), standing.end, standing.reached or Reached.PART, detail)
