"""kafka-reassign-partitions moves replicas between the log directories of a broker, ours and Kafka's alike."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import succeed, written

TOPIC, RECORDS = "moved", 2_000


class TwoDirectories(MixedCluster):
    def log_dirs(self, broker: int) -> str:
        return ",".join(str(self.data_dir(broker) / one) for one in "ab")

    def places(self, broker: int) -> list[str]:
        """The directories of the broker that have the partition, or its future log."""
        paths = self.data_dir(broker).glob(f"*/{TOPIC}-0*")
        return sorted(f"{one.parent.name}/{one.name}" for one in paths if not one.name.endswith("-delete"))


@pytest.mark.timeout(300)
def test_replicas_move_between_directories(kafka: Kafka, tmp_path: Path) -> None:
    with TwoDirectories(kafka, tmp_path, kinds={1: Kind.OURS, 2: Kind.KAFKAS}) as cluster:
        cluster.start(Kind.OURS)
        cluster.create(TOPIC, [[1, 2]], segment_bytes="20000")
        cluster.await_healed(TOPIC)
        write(cluster, RECORDS)
        before = {broker: cluster.places(broker) for broker in (1, 2)}
        targets = {broker: "b" if place[0].startswith("a/") else "a" for broker, place in before.items()}
        paths = {broker: str(cluster.data_dir(broker) / target) for broker, target in targets.items()}
        moved = {"topic": TOPIC, "partition": 0, "replicas": [1, 2], "log_dirs": [paths[1], paths[2]]}
        plan = written(tmp_path / "plan.json", json.dumps({"version": 1, "partitions": [moved]}))
        printed = succeed(cluster, "kafka-reassign-partitions", "--reassignment-json-file", plan, "--execute")
        assert "Successfully started log directory moves" in printed, printed
        write(cluster, RECORDS)
        expected = {broker: [f"{target}/{TOPIC}-0"] for broker, target in targets.items()}
        until_s = time.monotonic() + 60
        while (found := {broker: cluster.places(broker) for broker in (1, 2)}) != expected:
            assert time.monotonic() < until_s, found
            time.sleep(0.2)
        printed = succeed(cluster, "kafka-reassign-partitions", "--reassignment-json-file", plan, "--verify")
        for broker in (1, 2):
            where = f"Reassignment of replica {TOPIC}-0-{broker} completed successfully."
            assert where in printed, printed
        described = succeed(cluster, "kafka-log-dirs", "--describe", "--broker-list", "1,2", "--topic-list", TOPIC)
        assert '"isFuture":true' not in described
        cluster.await_healed(TOPIC)
        assert read(cluster) == 2 * RECORDS


def write(cluster: MixedCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.servers, "acks": "all", "batch.num.messages": 50})
    errors: list[object] = []
    for number in range(count):
        producer.produce(TOPIC, b"%d" % number * 20, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert set(errors) == {None}


def read(cluster: MixedCluster) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.servers, "group.id": "g", "enable.partition.eof": "true"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found, until_s = 0, time.monotonic() + 60
    while time.monotonic() < until_s:
        message = consumer.poll(1.0)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            break
        assert error is None, error
        found += message is not None
    consumer.close()
    return found
