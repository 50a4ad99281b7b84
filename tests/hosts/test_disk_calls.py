"""What the network's thread asks of the disk by itself: a reviewed list, so that nothing is added unseen."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from controller.hosts.local_cluster import BrokerChild, LocalCluster
from tests.processes import eventually

DEADLINE_S = 60.0
SETTINGS = {
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.cleaner.backoff.ms": "300",
}

REVIEWED: Mapping[str, tuple[str, str]] = {
    "broker/records/fetch.py:_read": (
        "open",
        "an index is opened to ask whether it is in the page cache, and a log that has left the cache of descriptors",
    ),
    "broker/records/cold_reads.py:attempt": ("open", "as above"),
    "broker/records/writes.py:_append": (
        "open",
        "a log without records opens its file with the first; by a job while an operation of the device takes long",
    ),
    "broker/records/fetch.py:_aborted": ("open", "the index of a segment's aborted transactions; mostly it has none"),
    "broker/log_cleaner.py:<lambda>": (
        "open replace unlink",
        "a cleaned segment takes the place of others between two jobs, where no request can come in between",
    ),
}
"""By who asks, FILE:FUNCTION outside storage or with the function of storage: the calls of `os`, and why they are not a
job. What is not here is to be a job of the device, or to be added with its reason, here and in docs/storage.md."""


class Watched(BrokerChild):
    @property
    def calls_file(self) -> Path:
        return self.config_file.with_suffix(".calls")

    def command(self) -> list[str]:
        broker = super().command()[3:]
        return [sys.executable, "-m", "tests.hosts.disk_calls", str(self.calls_file), *broker]


class WatchedCluster(LocalCluster):
    def broker_child(self, number: int, settings: Mapping[str, str]) -> BrokerChild:
        return Watched(number, settings, self.folder)


def live(cluster: LocalCluster) -> None:
    """Topics with small segments, of either policy: appends, rolls, retention, cleaning, deletion, a restart."""
    client = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2}
    admin = AdminClient(client)
    small = {"segment.bytes": "20000"}
    topics = [
        NewTopic("kept", 1, 1, config={**small, "retention.bytes": "60000"}),
        NewTopic("compacted", 1, 1, config={**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
        NewTopic("synced", 1, 1, config={"flush.messages": "1"}),
    ]
    for made in admin.create_topics(topics).values():
        made.result(DEADLINE_S)
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 20})
    for number in range(400):
        for topic in ("kept", "compacted", "synced"):
            producer.produce(topic, bytes(500), key=str(number % 10))
    assert producer.flush(DEADLINE_S) == 0
    for done in admin.delete_records([TopicPartition("kept", 0, 390)]).values():
        done.result(DEADLINE_S)
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in ("compacted", "synced")])
    eventually(lambda: consumer.poll(0.1) is not None, "there are records")
    consumer.commit(offsets=[TopicPartition("synced", 0, 1)], asynchronous=False)
    consumer.offsets_for_times([TopicPartition("synced", 0, 1)], DEADLINE_S)
    consumer.close()
    folder = cluster.folder / "logs-1"
    eventually(lambda: len(list((folder / "kept-0").glob("*.log"))) == 1, "retention has removed segments")
    eventually(lambda: "compacted" in (folder / "cleaner-offset-checkpoint").read_text(), "the cleaner has run")
    for deleted in admin.delete_topics(["kept"]).values():
        deleted.result(DEADLINE_S)
    eventually(lambda: not list(folder.glob("kept-0*")), "the files are removed")


def test_the_network_thread_asks_the_disk_for_what_was_reviewed_alone() -> None:
    with WatchedCluster(1, settings=SETTINGS) as cluster:
        live(cluster)
        broker = cluster.brokers[1]
        assert isinstance(broker, Watched)
        assert broker.stop(DEADLINE_S) == 0
        broker.start()
        broker.await_ready(time.monotonic() + DEADLINE_S)
        assert broker.stop(DEADLINE_S) == 0
        found = set(broker.calls_file.read_text().splitlines())
    assert sorted(line for line in found if not is_reviewed(line)) == []
    assert any("log_cleaner.py:<lambda>" in line for line in found), "nothing was watched"


def is_reviewed(line: str) -> bool:
    call, by = line.split(" ", 1)
    calls, _ = REVIEWED.get(by) or REVIEWED.get(by.split(" for ")[-1], ("", ""))
    return call in calls.split()


def test_a_call_that_was_not_reviewed_is_found() -> None:
    assert is_reviewed("open storage/segment.py:load for broker/records/fetch.py:_read")
    assert not is_reviewed("fsync storage/segment.py:load for broker/records/fetch.py:_read")
    assert not is_reviewed("fsync storage/segment.py:sync for broker/records/writes.py:_append")
    assert not is_reviewed("open storage/directory.py:_retire for broker/other.py:do")
