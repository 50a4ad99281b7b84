"""`camerlengo lab latency --as-trogdor`: one client of a specification of Trogdor's, and the status that it prints.

The clients work as `ProduceBenchWorker` and `ConsumeBenchWorker` of Kafka 2.8 do, with librdkafka. A producer sends
what a period of 100 ms allows, flushes, and waits for the next period; a record's latency is the time from send() to
its callback. A consumer's latency is the time for which poll() let it wait for the batch that has the record: it is not
a latency from end to end. Both are counted in whole ms, up to 10 s. The topics must exist. A
ConnectionStress opens connections, each of its threads so many in a period, and counts those that failed.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np

from controller.broker.settings import Address, address
from controller.hosts.local_cluster import ask_metadata
from controller.labs.latency.workload import (
    PERIOD_S,
    Bench,
    ConnectionStress,
    ConsumeBench,
    ProduceBench,
    assigned,
    topics_of,
)
from controller.protocol.errors import ProtocolError
from tests.benchmarks.common import CouldNotRun

HISTOGRAM_MAX_MS = 10_000
PERCENTILES = (0.5, 0.95, 0.99)
POLL_S = 0.05
POLL_RECORDS = 500
"""Kafka's default of max.poll.records."""
_LIMIT_S = 120.0
CONNECT_LIMIT_S, ANSWER_LIMIT_S = 0.5, 10.0


class MillisecondHistogram:
    """Whole numbers up to a largest one, which stands for all that are larger."""

    def __init__(self, largest: int = HISTOGRAM_MAX_MS) -> None:
        self._counts = np.zeros(largest + 1, dtype=np.int64)

    def add(self, value: float, count: int = 1) -> None:
        self._counts[min(max(int(value), 0), len(self._counts) - 1)] += count

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def average(self) -> float:
        return float(self._counts @ np.arange(len(self._counts)) / max(self.total, 1))

    def percentile(self, share: float) -> int:
        """The first value up to which so large a share lies."""
        return int(np.searchsorted(np.cumsum(self._counts), int(self.total * share)))

    def status(self) -> dict[str, float]:
        percentiles = {f"p{share * 100:.0f}LatencyMs": self.percentile(share) for share in PERCENTILES}
        return {"averageLatencyMs": round(self.average(), 3)} | percentiles


class PeriodThrottle:
    """At most so many calls in a period of the clock. `before_wait` is called before a wait; `wait` with the seconds
    that are left, and may return early."""

    def __init__(
        self,
        per_second: float,
        wait: Callable[[float], object] = time.sleep,
        before_wait: Callable[[], object] = lambda: None,
    ) -> None:
        self._most = max(int(per_second * PERIOD_S), 1) if per_second > 0 else 2**62
        self._wait, self._before_wait = wait, before_wait
        self._count, self._period = self._most, -1

    def increment(self) -> None:
        while self._count >= self._most:
            period = int(time.time() / PERIOD_S)
            if period > self._period:
                self._period, self._count = period, 0
                break
            self._before_wait()
            self._wait(max((period + 1) * PERIOD_S - time.time(), 0.0))
        self._count += 1


def status_of(bench: Bench, bootstrap: str) -> dict[str, Any]:
    """Run the client to its end. Raises CouldNotRun if records fail or none come for long."""
    if isinstance(bench, ConnectionStress):
        return connected(bench, address(bootstrap))
    return produced(bench, bootstrap) if isinstance(bench, ProduceBench) else consumed(bench, bootstrap)


def produced(bench: ProduceBench, bootstrap: str) -> dict[str, Any]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap} | bench.common_client_conf | bench.producer_conf)
    histogram, errors = MillisecondHistogram(), []

    def delivered(error: object, message: Any) -> None:
        histogram.add(message.latency() * 1_000.0)
        if error is not None:
            errors.append(str(error))

    before_wait = (lambda: None) if bench.skip_flush else producer.flush
    throttle = PeriodThrottle(bench.target_messages_per_sec, producer.poll, before_wait)
    places = [(name, number) for name, one in topics_of(bench).items() for number in range(one.num_partitions)]
    keys, values, random = bench.key_generator, bench.value_generator, Random(1)
    start_s = time.monotonic()
    for number, (topic, partition) in zip(range(bench.max_messages), itertools.cycle(places), strict=False):
        value = values.payload(number, random)
        producer.produce(topic, value, keys.payload(number, random), partition, on_delivery=delivered)
        producer.poll(0)
        throttle.increment()
    if producer.flush(_LIMIT_S) or errors:
        raise CouldNotRun(f"records failed: {errors[:1] or 'not all were answered'}")
    return {"totalSent": histogram.total} | histogram.status() | _seconds(start_s, histogram.total)


def consumed(bench: ConsumeBench, bootstrap: str) -> dict[str, Any]:
    from confluent_kafka import Consumer, TopicPartition

    first = {"bootstrap.servers": bootstrap, "group.id": "camerlengo-lab", "enable.auto.commit": "false"}
    consumer = Consumer(first | bench.common_client_conf | bench.consumer_conf)
    consumer.assign([TopicPartition(*place, 0) for place in assigned(bench)])
    throttle = PeriodThrottle(bench.target_messages_per_sec)
    histogram, size_bytes = MillisecondHistogram(), 0
    start_s = batch_s = time.monotonic()
    while histogram.total < bench.max_messages:
        one = consumer.poll(POLL_S)
        if one is None or one.error() is not None:
            if time.monotonic() - batch_s > _LIMIT_S:
                raise CouldNotRun(f"{histogram.total} of {bench.max_messages} records came, none for {_LIMIT_S:g} s")
            continue
        batch = [one, *consumer.consume(POLL_RECORDS - 1, 0.0)]
        waited_ms = (time.monotonic() - batch_s) * 1_000.0  # Java's poll() returns the whole batch
        for record in batch[: bench.max_messages - histogram.total]:
            if record.error() is None:
                size_bytes += len(record.key() or b"") + len(record.value() or b"")
                histogram.add(waited_ms)
                throttle.increment()
        batch_s = time.monotonic()
    consumer.close()
    figures = {"totalMessagesReceived": histogram.total, "totalBytesReceived": size_bytes}
    return figures | histogram.status() | _seconds(start_s, histogram.total)


def connected(bench: ConnectionStress, at: Address) -> dict[str, Any]:
    start_s = time.monotonic()
    until_s = start_s + bench.duration_ms / 1_000.0

    def connect() -> tuple[int, int]:
        """How many connections one thread tried, and how many failed."""
        tried = failed = 0
        throttle = PeriodThrottle(bench.target_connections_per_sec / bench.num_threads)
        while True:
            throttle.increment()
            if time.monotonic() >= until_s:
                return tried, failed
            tried += 1
            try:
                if bench.action == "CONNECT":
                    socket.create_connection(at, CONNECT_LIMIT_S).close()
                else:
                    ask_metadata(at, ANSWER_LIMIT_S)
            except (OSError, ProtocolError):
                failed += 1

    with ThreadPoolExecutor(bench.num_threads) as pool:
        counts = [one.result() for one in [pool.submit(connect) for _ in range(bench.num_threads)]]
    total, failures = map(sum, zip(*counts, strict=True))
    rate = total / (time.monotonic() - start_s)
    return {"totalConnections": total, "totalFailedConnections": failures, "connectsPerSec": round(rate, 3)}


def _seconds(start_s: float, records: int) -> dict[str, float]:
    seconds = time.monotonic() - start_s
    return {"seconds": round(seconds, 3), "records a second": round(records / seconds, 1)}
