"""A compacted log that brokers of both kinds clean in turn, in the same data directory."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest

from controller.storage.checkpoints import decode_offsets
from controller.zookeeper.server.server import ZooKeeperServer
from tests.interop.conftest import Findings
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import succeed
from tests.interop.workload import segments
from tests.processes import eventually

TOPIC, KEYS, ROUNDS = "compacted", 50, 80
LIMIT_S = 60.0
SETTINGS = {"log.cleaner.backoff.ms": "200", "default.replication.factor": "1"}
CLEANS = {"log.cleaner.enable": "true", "log.cleaner.dedupe.buffer.size": "16777216"}


class Compacted:
    """What was written, and what must be there of it: the last value of each key."""

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster
        self._number = 0
        self.last: dict[bytes, bytes | None] = {}

    def write(self) -> None:
        """Some keys get no value: they end in a tombstone."""
        config = {"bootstrap.servers": self._cluster.servers, "enable.idempotence": True, "log_level": 2}
        producer = confluent_kafka.Producer(config | {"compression.codec": "lz4"})
        for _ in range(ROUNDS):
            for key in range(KEYS):
                self._number += 1
                name, value = b"key-%d" % key, b"%d-" % self._number + b"x" * (self._number % 100)
                self.last[name] = None if self._number % 37 == 0 else value
                producer.produce(TOPIC, self.last[name], name, partition=0)
            assert producer.flush(LIMIT_S) == 0

    @property
    def checkpoint(self) -> int:
        path = self._cluster.data_dir(1) / "cleaner-offset-checkpoint"
        return decode_offsets(str(path), path.read_bytes()).get((TOPIC, 0), 0) if path.exists() else 0

    def await_cleaned(self) -> int:
        """Until everything before the active segment is cleaned. Where the cleaning ended."""

        def active() -> int:
            return int(segments(self._cluster, 1, TOPIC, 0)[-1].stem)

        eventually(lambda: self.checkpoint >= active(), "all but the active segment is cleaned", LIMIT_S)
        return self.checkpoint

    def judge(self) -> int:
        """A reader gets the last value of every key, in ascending offsets. How many records are left."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._cluster.servers, "group.id": "none", "enable.partition.eof": True}
        )
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        found: dict[bytes, bytes | None] = {}
        offsets: list[int] = []

        def ended() -> bool:
            message = consumer.poll(0.2)
            if message is None:
                return False
            if message.error() is not None:
                return True
            found[message.key() or b""] = message.value()
            offsets.append(message.offset() or 0)
            return False

        eventually(ended, "all is read", LIMIT_S)
        consumer.close()
        assert {key: value for key, value in found.items() if value is not None} == {
            key: value for key, value in self.last.items() if value is not None
        }
        assert offsets == sorted(set(offsets))
        assert len(offsets) < self._number / 2, "most records are dropped"
        return len(offsets)


@pytest.mark.timeout(600)
def test_each_kind_goes_on_with_the_compaction_of_the_other(kafka: Kafka, tmp_path: Path, findings: Findings) -> None:
    zookeeper = ZooKeeperServer(max_session_timeout_ms=60_000)
    of = {Kind.KAFKAS: CLEANS}
    with MixedCluster(kafka, tmp_path, SETTINGS, of, kinds={1: Kind.OURS}, zookeeper=zookeeper) as cluster:
        cluster.start(Kind.OURS)
        eventually(
            lambda: cluster.admin().list_topics(timeout=10).controller_id > 0, "the broker knows itself", LIMIT_S
        )
        config = {"cleanup_policy": "compact", "segment_bytes": "16384", "min_cleanable_dirty_ratio": "0.01"}
        cluster.create(TOPIC, [(1,)], **config)
        log = Compacted(cluster)
        left = []
        for kind in (Kind.OURS, Kind.KAFKAS, Kind.OURS, Kind.KAFKAS):
            before = log.checkpoint
            if kind is not cluster.kinds[1]:
                assert cluster.brokers[1].stop(LIMIT_S) in (0, 143)
                cluster.kinds[1] = kind
                cluster.start_brokers([1])
                cluster.await_healed(TOPIC)
                assert log.judge()
            log.write()
            after = log.await_cleaned()
            assert after > before
            left.append(f"{log.judge()} of {log._number} records after {kind.value} up to {after}")
            if kind is Kind.KAFKAS:
                said = cluster.brokers[1].log_file.read_text()
                ranges = re.findall(rf"offset map for log {TOPIC}-0 .*offset range \[(\d+),", said)
                assert str(before) in ranges, f"Kafka's cleaner goes on from {before}, not from {ranges}"
            files = ",".join(map(str, segments(cluster, 1, TOPIC, 0)))
            dumped = succeed(cluster, "kafka-dump-log", "--files", files, "--deep-iteration")
            assert "isvalid: true" in dumped
            assert "isvalid: false" not in dumped
        findings.figure(f"compaction in turn: {'; '.join(left)}")
