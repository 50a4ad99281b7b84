"""Records that are written while a cluster is disturbed, and what has become of them afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import crc32c

from tests.interop.mixed import MixedCluster
from tests.processes import eventually

READ_LIMIT_S = 120.0


_RUNNING: list[Writer] = []


def abandon_writers() -> None:
    """Ends what a test that failed has left writing."""
    for writer in _RUNNING:
        writer.abandon()
    _RUNNING.clear()


class Writer:
    """Sends numbered values to each partition of a topic in turn, with idempotence and acks=all, until it is stopped.
    `acknowledged`: by partition, in the order of the acknowledgements."""

    def __init__(self, cluster: MixedCluster, topic: str, a_second: int = 400, *, idempotent: bool = True) -> None:
        self.topic = topic
        self.partitions = len(cluster.assignment(topic))
        self.acknowledged: dict[int, list[bytes]] = {partition: [] for partition in range(self.partitions)}
        self.failed: list[str] = []
        self._pause_s = 1.0 / a_second
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                **cluster.options(),
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": 180_000,
                "compression.codec": "lz4",
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"writer of {topic}")
        self._thread.start()
        _RUNNING.append(self)

    @property
    def count(self) -> int:
        return sum(len(values) for values in self.acknowledged.values())

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            partition, value = number % self.partitions, b"%d-%s" % (number, b"x" * (number * 37 % 200))
            try:
                self._producer.produce(self.topic, value, partition=partition, on_delivery=self._answered)
            except BufferError:
                self._producer.poll(0.1)
                continue
            number += 1
            self._producer.poll(0)
            time.sleep(self._pause_s)

    def _answered(self, error: object, message: confluent_kafka.Message) -> None:
        partition, value = message.partition(), message.value()
        if error is not None:
            self.failed.append(f"{self.topic}-{partition}: {error}")
        elif isinstance(value, bytes) and partition is not None:
            self.acknowledged[partition].append(value)

    def advances(self, by: int = 200) -> None:
        """Returns once so many more records were acknowledged."""
        reached = self.count + by
        eventually(lambda: self.count >= reached or bool(self.failed), f"{by} more records are acknowledged", 120)

    def abandon(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.purge()

    def stop(self) -> None:
        """Returns once everything that was sent is acknowledged."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(120) == 0, "records without an answer"


def read(cluster: MixedCluster, topic: str, partition: int) -> list[bytes]:
    """All there is, from the beginning to the end that was there when this was called."""
    consumer = confluent_kafka.Consumer(
        {
            **cluster.options(),
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    values: list[bytes] = []
    until = time.monotonic() + READ_LIMIT_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
        while True:
            assert time.monotonic() < until, f"{topic}-{partition}: {len(values)} records were read in {READ_LIMIT_S} s"
            for message in consumer.consume(2_000, 0.5):
                error = message.error()
                if error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return values
                assert error is None, error
                value = message.value()
                assert isinstance(value, bytes)
                values.append(value)
    finally:
        consumer.close()


def judge(cluster: MixedCluster, writer: Writer) -> int:
    """Every acknowledged record is there, once, in its order. How many there are."""
    assert writer.failed == []
    for partition, acknowledged in writer.acknowledged.items():
        found = read(cluster, writer.topic, partition)
        twice = [value for value, count in Counter(found).items() if count > 1]
        assert twice == [], f"{writer.topic}-{partition}: {len(twice)} records twice"
        lost = set(acknowledged) - set(found)
        assert lost == set(), f"{writer.topic}-{partition}: {len(lost)} of {len(acknowledged)} records lost"
        numbers = [int(value.partition(b"-")[0]) for value in found]
        assert numbers == sorted(numbers), f"{writer.topic}-{partition}: out of order"
    return writer.count


def segments(cluster: MixedCluster, broker: int, topic: str, partition: int) -> list[Path]:
    return sorted((cluster.data_dir(broker) / f"{topic}-{partition}").glob("*.log"))


def digest(cluster: MixedCluster, broker: int, topic: str, partition: int) -> tuple[int, int]:
    """Length and CRC of a replica's records, segment after segment."""
    length = crc = 0
    for path in segments(cluster, broker, topic, partition):
        data = path.read_bytes()
        length, crc = length + len(data), crc32c.crc32c(data, crc)
    return length, crc


def await_identical(cluster: MixedCluster, topic: str) -> None:
    """Until the replicas of each partition are the same bytes."""
    for partition, brokers in cluster.assignment(topic).items():

        def identical(partition: int = partition, brokers: tuple[int, ...] = brokers) -> bool:
            return len({digest(cluster, broker, topic, partition) for broker in brokers}) == 1

        eventually(identical, f"the replicas of {topic}-{partition} are the same bytes", 60)
