"""One client's work for `camerlengo bench broker`, in a process of its own: prints its figures as one JSON object.

    python -m tests.benchmarks.broker_worker produce|consume|latency '{"servers": ..., "topic": ..., ...}'

The client is confluent-kafka, whose records go through C: what is measured is the brokers as far as that can be, on
cores that they share with it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

LIMIT_S = 300.0
STATISTICS_MS = 100
PRODUCER = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576}
CONSUMER = {
    "enable.auto.commit": False,
    # librdkafka stops fetching a partition for this time (by default a second) when `queued.min.messages` (100,000)
    # or `queued.max.messages.kbytes` (64 MiB) wait for the application. With the default, a run that reaches the limit
    # measures the pause, and a faster broker reaches it earlier.
    "fetch.queue.backoff.ms": 10,
}
"""What the clients of the throughput runs set, whichever brokers they talk to."""
CONSUMED_AT_ONCE = 10_000
in_turns = False
"""A third word: prints an empty line when it is ready to begin, and when it has ended; then it waits for one."""


def _await_turn() -> None:
    if in_turns:
        print(flush=True)
        sys.stdin.readline()


class RequestCount:
    """Counts the requests of one kind that a client sent, by its own statistics."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.count = 0

    def take(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.count = sum(broker["req"].get(self._kind, 0) for broker in brokers)

    def config(self) -> dict[str, Any]:
        return {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self.take}


def produce(
    servers: str,
    topic: str,
    partitions: int,
    acks: str,
    records: int,
    size: int,
    client: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Send records over all partitions as fast as the brokers accept them, until the last one is acknowledged.
    `client`, here and below: how it connects, in the words of librdkafka."""
    failures: list[object] = []
    requests = RequestCount("Produce")
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": acks,
            **PRODUCER,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _message: failures.append(error),
            "log_level": 2,
            **requests.config(),
            **(client or {}),
        }
    )
    producer.list_topics(topic, LIMIT_S)
    value = b"x" * size
    _await_turn()
    began_s, spent_s = time.perf_counter(), time.process_time()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(LIMIT_S) or failures:
        raise RuntimeError(f"not everything was acknowledged: {failures[:3]}")
    took_s, spent_s = time.perf_counter() - began_s, time.process_time() - spent_s
    _await_turn()
    producer.poll(2 * STATISTICS_MS / 1_000)
    return {"seconds": took_s, "requests": requests.count, "client_cpu_s": spent_s}


def consume(
    servers: str,
    topic: str,
    partitions: int,
    records: int,
    config: Mapping[str, Any] | None = None,
    client: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """From the beginning of each partition, until as many were read. `config` is put over CONSUMER."""
    requests = RequestCount("Fetch")
    settings = {**CONSUMER, **(config or {}), **(client or {})}
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "log_level": 2, **settings, **requests.config()}
    )
    consumer.list_topics(topic, LIMIT_S)
    read = 0
    _await_turn()
    began_s, spent_s = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    while read < records:
        # `consume` waits until it has as many as it was asked for: it must not be asked for more than there are.
        found = consumer.consume(min(CONSUMED_AT_ONCE, records - read), 1.0)
        for message in found:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        read += len(found)
        if time.perf_counter() - began_s > LIMIT_S:
            raise RuntimeError(f"{read} of {records} records were read in {LIMIT_S:g} s")
    took_s, spent_s = time.perf_counter() - began_s, time.process_time() - spent_s
    _await_turn()
    consumer.consume(1, 2 * STATISTICS_MS / 1_000)
    consumer.close()
    return {"seconds": took_s, "requests": requests.count, "client_cpu_s": spent_s}


def latency(
    servers: str,
    topic: str,
    partitions: int,
    acks: str,
    records: int,
    size: int,
    per_second: int,
    client: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """From `produce` to the acknowledgement of each record, in ms, at a steady rate. `seconds` is the whole run's."""
    took_ms: list[float] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        since_s = message.latency()
        assert since_s is not None
        took_ms.append(since_s * 1_000.0)

    requests = RequestCount("Produce")
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": acks,
            "linger.ms": 0,
            "log_level": 2,
            **requests.config(),
            **(client or {}),
        }
    )
    value = b"x" * size
    for number in range(partitions):  # connections and first batches are no one's latency
        producer.produce(topic, value, partition=number)
    producer.flush(LIMIT_S)
    began_s, spent_s = time.perf_counter(), time.process_time()
    for number in range(records):
        producer.produce(topic, value, partition=number % partitions, on_delivery=answered)
        while (wait_s := began_s + (number + 1) / per_second - time.perf_counter()) > 0:
            producer.poll(wait_s)
    if producer.flush(LIMIT_S) or len(took_ms) != records:
        raise RuntimeError(f"{len(took_ms)} of {records} records were acknowledged")
    took_s, spent_s = time.perf_counter() - began_s, time.process_time() - spent_s
    producer.poll(2 * STATISTICS_MS / 1_000)
    return {"seconds": took_s, "requests": requests.count, "client_cpu_s": spent_s, "latency_ms": took_ms}


WORK: Mapping[str, Callable[..., dict[str, Any]]] = {"produce": produce, "consume": consume, "latency": latency}


def main(words: list[str]) -> None:
    global in_turns
    kind, text, *more = words
    in_turns = bool(more)
    print(json.dumps(WORK[kind](**json.loads(text))))


if __name__ == "__main__":
    main(sys.argv[1:])
