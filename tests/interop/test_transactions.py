"""Transactions with Kafka's tools, and brokers of both kinds that coordinate the same transactional ids in turn."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from controller.broker.transactions.transaction import (
    Transition,
    read_transaction,
    read_transaction_key,
    transaction_key,
    transaction_value,
)
from controller.storage import LogSettings
from controller.storage.batches import HEADER_BYTES, decode_records, headers_of
from controller.storage.disk_files import FileDisk
from controller.storage.log import PartitionLog
from controller.zookeeper.server.server import ZooKeeperServer
from statemachines.transaction import (
    CompleteAbort,
    CompleteCommit,
    PrepareAbort,
    PrepareCommit,
    TransactionState,
)
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import succeed
from tests.processes import eventually

LIMIT_S = 60.0
STATES, OFFSETS = "__transaction_state", "__consumer_offsets"
ONE_OF_EACH = {1: Kind.OURS, 2: Kind.KAFKAS}
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "2",
    "replica.lag.time.max.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture
def mixed(kafka: Kafka, tmp_path: Path) -> Iterator[MixedCluster]:
    zookeeper = ZooKeeperServer(max_session_timeout_ms=60_000)
    with MixedCluster(kafka, tmp_path, SETTINGS, kinds=ONE_OF_EACH, zookeeper=zookeeper) as running:
        begin(running)
        yield running


def begin(cluster: MixedCluster) -> None:
    """Return once its brokers name both of them, and a controller: librdkafka asks about it once in a long time."""
    cluster.start(Kind.OURS)

    def known() -> bool:
        found = cluster.admin().list_topics(timeout=10)
        return len(found.brokers) == 2 and found.controller_id > 0

    eventually(known, "the brokers know one another", LIMIT_S)


def read_committed(servers: str, topic: str, partitions: int, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True, "log_level": 2}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    read: list[bytes] = []
    ended: set[int | None] = set()

    def all_read() -> bool:
        message = consumer.poll(0.2)
        error = None if message is None else message.error()
        if message is not None and error is None:
            read.append(message.value() or b"")
        elif message is not None and error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        return len(read) >= count and len(ended) == partitions

    eventually(all_read, "all is read", LIMIT_S)
    consumer.close()
    return sorted(read)


def test_kafkas_producer_writes_transactions_to_our_brokers(kafka: Kafka, tmp_path: Path) -> None:
    zookeeper = ZooKeeperServer(max_session_timeout_ms=60_000)
    ours = {1: Kind.OURS, 2: Kind.OURS}
    with MixedCluster(kafka, tmp_path, SETTINGS, kinds=ours, zookeeper=zookeeper) as cluster:
        begin(cluster)
        cluster.create("perf", [(1, 2), (2, 1)])
        words = "--topic perf --num-records 2000 --record-size 100 --throughput 2000 --transactional-id perf"
        timed = "--transaction-duration-ms 100 --producer-props acks=all bootstrap.servers="
        printed = succeed(cluster, "kafka-producer-perf-test", *f"{words} {timed}{cluster.servers}".split())
        assert re.search(r"2000 records sent", printed), printed
        assert len(read_committed(cluster.servers, "perf", 2, 2_000)) == 2_000
        read = "--topic perf --from-beginning --max-messages 2000 --isolation-level read_committed --timeout-ms 30000"
        lines = succeed(cluster, "kafka-console-consumer", *read.split()).split()
        assert len(lines) == 2_000
        log = next(cluster.data_dir(1).glob("perf-*/*.log"))
        dumped = succeed(cluster, "kafka-dump-log", "--files", str(log), "--deep-iteration")
        assert "endTxnMarker: COMMIT" in dumped


def test_either_kind_goes_on_with_the_transactional_ids_of_the_other(mixed: MixedCluster) -> None:
    mixed.create(STATES, [(1, 2)], cleanup_policy="compact")
    mixed.create(OFFSETS, [(1, 2)], cleanup_policy="compact")
    mixed.create("orders", [(1, 2), (2, 1)])
    expected: list[bytes] = []

    def transact(number: int) -> None:
        """One transaction that commits, with offsets, and one that aborts; a third stays open and is fenced next."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": mixed.servers, "transactional.id": "mixed", "log_level": 2}
        )
        producer.init_transactions(LIMIT_S)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": mixed.servers, "group.id": "g", "log_level": 2})
        for word, commits in ((b"kept", True), (b"aborted", False), (b"open", None)):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce("orders", b"%s-%d-%d" % (word, number, partition), partition=partition)
            assert producer.flush(LIMIT_S) == 0
            offset = confluent_kafka.TopicPartition("orders", 0, number if commits else 1_000)
            metadata = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([offset], metadata, LIMIT_S)
            if commits:
                producer.commit_transaction(LIMIT_S)
            elif commits is not None:
                producer.abort_transaction(LIMIT_S)
                # A client asks for stable offsets: while a transaction is open there are none.
                eventually(lambda: committed(consumer) == number, "offsets are committed", LIMIT_S)
        expected.extend(b"kept-%d-%d" % (number, partition) for partition in (0, 1))
        consumer.close()

    def committed(consumer: confluent_kafka.Consumer) -> int:
        (found,) = consumer.committed([confluent_kafka.TopicPartition("orders", 0)], LIMIT_S)
        return int(found.offset)

    def coordinates(broker: int) -> bool:
        states = [mixed.state(topic, 0) for topic in (STATES, OFFSETS)]
        return all(state is not None and state.leader == broker for state in states)

    eventually(lambda: coordinates(1), "ours coordinates")
    transact(1)
    for number, (dead, heir) in enumerate([(1, 2), (2, 1), (1, 2)], 2):
        mixed.await_healed(STATES, OFFSETS, "orders")
        mixed.brokers[dead].kill()
        eventually(lambda heir=heir: coordinates(heir), f"broker {heir} coordinates", LIMIT_S)  # type: ignore[misc]
        transact(number)
        mixed.start_brokers([dead])
    mixed.await_healed(STATES, OFFSETS, "orders")
    closing = confluent_kafka.Producer(
        {"bootstrap.servers": mixed.servers, "transactional.id": "mixed", "log_level": 2}
    )
    closing.init_transactions(LIMIT_S)  # ends the last one that is open
    assert read_committed(mixed.servers, "orders", 2, len(expected)) == sorted(expected)
    for broker in mixed.brokers.values():
        broker.close()
    states = list(states_in(mixed.data_dir(2) / f"{STATES}-0"))
    assert {PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort} <= {state for state, _ in states}
    assert all(alike for _, alike in states), "what Kafka has written is written alike"
    for index in (0, 1):
        require_same_index(mixed.data_dir(2) / f"orders-{index}", mixed.folder / f"copy-{index}")


def states_in(directory: Path) -> Iterator[tuple[TransactionState, bool]]:
    """The state of each record, and whether what is read of it is written with the same bytes."""
    data = (directory / f"{0:020d}.log").read_bytes()
    position = 0
    for header in headers_of(data):
        payload = data[position + HEADER_BYTES : position + header.size_bytes]
        position += header.size_bytes
        for record in decode_records(header, payload):
            name = read_transaction_key(record.key)
            if record.value is not None:
                read = read_transaction(name, record.value)
                ids = read.producer_id, -1, read.producer_epoch, -1
                times = read.start_ms, read.updated_ms
                change = Transition(read.state, *ids, read.timeout_ms, read.partitions, *times)
                alike = transaction_key(name) == record.key and transaction_value(change) == record.value
                yield read.state, alike


def require_same_index(kafkas: Path, copy: Path) -> None:
    """Recovery makes the same index of aborted transactions from a log as Kafka has."""
    copy.mkdir()
    shutil.copy(kafkas / f"{0:020d}.log", copy)
    log = PartitionLog(FileDisk(), str(copy), LogSettings(), lambda: time.time_ns() // 1_000_000)
    log.close()
    index = f"{0:020d}.txnindex"
    assert (copy / index).read_bytes() == (kafkas / index).read_bytes()
