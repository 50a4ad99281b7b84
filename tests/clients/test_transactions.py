"""Transactions with real clients: all or nothing is read, and they go on when brokers are killed."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import confluent_kafka
import kafka as kafka_python
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

from controller.testing import Kafka
from tests.processes import DEADLINE_S
from tests.programs import program

PARTITIONS = 3
TOPIC, GROUPS_TOPIC, STATES_TOPIC = "orders", "__consumer_offsets", "__transaction_state"
LIMIT_S = 4 * DEADLINE_S
Transaction = tuple[Sequence[bytes], bool]
"""The values, one for each partition, and whether they are committed."""
Write = Callable[[str, str, str, Sequence[Transaction]], None]
Read = Callable[[str, str, int], list[bytes]]


def write_by_confluent(servers: str, topic: str, name: str, transactions: Sequence[Transaction]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 2})
    producer.init_transactions(LIMIT_S)
    for values, commits in transactions:
        producer.begin_transaction()
        for partition, value in enumerate(values):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(LIMIT_S) == 0, "also what is aborted is in the log"
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)


def keep_requests_to_dead_coordinators(producer: kafka_python.KafkaProducer) -> None:
    """kafka-python 3.0.12 forgets a transactional request for ever when the connection to its coordinator is refused.

    `Sender._maybe_send_pending_request` repeats it if `await_ready` returns False, and drops it if that raises.
    """
    client = producer._sender._client
    await_ready = client.await_ready

    def ready(*arguments: object, **options: object) -> bool:
        try:
            return bool(await_ready(*arguments, **options))
        except kafka_python.errors.KafkaConnectionError:
            return False

    client.await_ready = ready


def write_by_kafka_python(servers: str, topic: str, name: str, transactions: Sequence[Transaction]) -> None:
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=servers.split(","), transactional_id=name, retries=1_000, acks="all"
    )
    keep_requests_to_dead_coordinators(producer)
    try:
        producer.init_transactions()
        for values, commits in transactions:
            producer.begin_transaction()
            for sent in [producer.send(topic, value, partition=place) for place, value in enumerate(values)]:
                sent.get(LIMIT_S)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(timeout=5)


def write_by_aiokafka(servers: str, topic: str, name: str, transactions: Sequence[Transaction]) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        await producer.start()
        try:
            for values, commits in transactions:
                await producer.begin_transaction()
                for partition, value in enumerate(values):
                    await producer.send_and_wait(topic, value, partition=partition)
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(write())


def read_by_confluent(servers: str, topic: str, count: int) -> list[bytes]:
    """At least as many, and all up to the last stable offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    read: list[bytes] = []
    ended: set[int | None] = set()
    until = time.monotonic() + LIMIT_S
    while (len(read) < count or len(ended) < PARTITIONS) and time.monotonic() < until:
        message = consumer.poll(0.2)
        error = None if message is None else message.error()
        if message is None:
            continue
        if error is None:
            read.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return read


def read_by_kafka_python(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=servers.split(","), group_id=None, isolation_level="read_committed"
    )
    partitions = [kafka_python.TopicPartition(topic, index) for index in range(PARTITIONS)]
    read: list[bytes] = []
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        until = time.monotonic() + LIMIT_S
        while len(read) < count and time.monotonic() < until:
            for records in consumer.poll(200).values():
                read += [record.value for record in records]
    finally:
        consumer.close()
    return read


def read_by_aiokafka(servers: str, topic: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
        await consumer.start()
        read: list[bytes] = []
        try:
            partitions = [AioTopicPartition(topic, index) for index in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            while len(read) < count:
                read.append((await asyncio.wait_for(consumer.getone(), LIMIT_S)).value)
        finally:
            await consumer.stop()
        return read

    return asyncio.run(consume())


def read_by_kcat(servers: str, topic: str, count: int) -> list[bytes]:
    """All up to the end."""
    level = ["-X", "isolation.level=read_committed"]
    command = [program("kcat"), "-b", servers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *level]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
    return done.stdout.split()


WRITERS = [write_by_confluent, write_by_kafka_python, write_by_aiokafka]


def transactions(name: str, count: int) -> tuple[list[Transaction], list[bytes]]:
    """Every second one is aborted, of which the values begin with `aborted`. What is committed, sorted."""
    made: list[Transaction] = []
    committed: list[bytes] = []
    for number in range(count):
        commits = number % 2 == 0
        word = "kept" if commits else "aborted"
        values = [f"{word}-{name}-{number}-{partition}".encode() for partition in range(PARTITIONS)]
        made.append((values, commits))
        committed += values if commits else []
    return made, sorted(committed)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    with Kafka(brokers=3) as running:
        yield running


@pytest.mark.parametrize("write", WRITERS, ids=lambda one: one.__name__)
def test_what_is_committed_is_read_and_what_is_aborted_is_not(cluster: Kafka, write: Write) -> None:
    topic = f"by-{write.__name__}"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    made, committed = transactions("a", 5)
    write(cluster.bootstrap_servers, topic, topic, made)
    for read in (read_by_confluent, read_by_kafka_python, read_by_aiokafka):
        assert sorted(read(cluster.bootstrap_servers, topic, len(committed))) == committed, read.__name__


@pytest.mark.programs
def test_kcat_reads_what_is_committed(cluster: Kafka) -> None:
    cluster.create_topic("kcat", partitions=PARTITIONS, replication_factor=3)
    made, committed = transactions("k", 5)
    write_by_confluent(cluster.bootstrap_servers, "kcat", "kcat", made)
    assert sorted(read_by_kcat(cluster.bootstrap_servers, "kcat", len(committed))) == committed


@pytest.mark.programs
def test_kcat_writes_a_transaction(cluster: Kafka) -> None:
    cluster.create_topic("kcat-writes", partitions=PARTITIONS, replication_factor=3)
    command = [
        program("kcat"),
        "-b",
        cluster.bootstrap_servers,
        "-P",
        "-t",
        "kcat-writes",
        "-X",
        "transactional.id=kcat",
    ]
    values = [f"kept-{number}".encode() for number in range(20)]
    done = subprocess.run(command, input=b"\n".join(values), capture_output=True, timeout=LIMIT_S, check=True)
    assert b"ERROR" not in done.stderr
    assert sorted(read_by_kcat(cluster.bootstrap_servers, "kcat-writes", len(values))) == sorted(values)
    assert sorted(read_by_confluent(cluster.bootstrap_servers, "kcat-writes", len(values))) == sorted(values)


def test_a_zombie_is_fenced(cluster: Kafka) -> None:
    cluster.create_topic("fenced", partitions=PARTITIONS, replication_factor=3)
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "zombie", "log_level": 2}
    zombie = confluent_kafka.Producer(config)
    zombie.init_transactions(LIMIT_S)
    zombie.begin_transaction()
    zombie.produce("fenced", b"aborted", partition=0)
    assert zombie.flush(LIMIT_S) == 0
    made, committed = transactions("f", 1)
    write_by_confluent(cluster.bootstrap_servers, "fenced", "zombie", made)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        zombie.commit_transaction(LIMIT_S)
    assert fenced.value.args[0].fatal()
    assert sorted(read_by_confluent(cluster.bootstrap_servers, "fenced", len(committed))) == committed


VICTIMS: dict[str, Callable[[Kafka], int]] = {
    "a partition's leader": lambda cluster: cluster.wait_for_leader(TOPIC, 0),
    "the coordinator": lambda cluster: cluster.wait_for_leader(STATES_TOPIC, 0),
    "the controller": lambda cluster: cluster.controller or 1,
}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("write", WRITERS, ids=lambda one: one.__name__)
def test_transactions_go_on_when_a_broker_is_killed(write: Write, victim: str) -> None:
    with Kafka(brokers=3, settings={"transaction.state.log.num.partitions": "1"}) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        made, committed = transactions("k", 16)
        killing = threading.Event()

        def paced() -> Iterator[Transaction]:
            for number, one in enumerate(made):
                if number == 5:
                    killing.set()
                yield one

        class Paced(Sequence[Transaction]):
            def __len__(self) -> int:
                return len(made)

            def __getitem__(self, place: int) -> Transaction:  # type: ignore[override]
                return made[place]

            def __iter__(self) -> Iterator[Transaction]:
                return paced()

        failures: list[BaseException] = []

        def writing() -> None:
            try:
                write(cluster.bootstrap_servers, TOPIC, "k", Paced())
            except BaseException as error:  # noqa: BLE001 - raised on the test's thread
                failures.append(error)

        writer = threading.Thread(target=writing, daemon=True)
        writer.start()
        assert killing.wait(LIMIT_S)
        cluster.brokers[VICTIMS[victim](cluster)].kill()
        writer.join(2 * LIMIT_S)
        assert not failures, failures
        assert not writer.is_alive()
        assert sorted(read_by_confluent(cluster.bootstrap_servers, TOPIC, len(committed))) == committed


class AbortRefused(Exception):
    """librdkafka aborts also where the coordinator took no partition, since the transaction before was not complete
    yet. The coordinator refuses that, as Kafka's does, which is fatal: an application goes on with a new producer."""


def abort(producer: confluent_kafka.Producer) -> None:
    try:
        producer.abort_transaction(LIMIT_S)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() == confluent_kafka.KafkaError.INVALID_TXN_STATE:
            raise AbortRefused from error
        raise


def transform(servers: str, name: str, count: int, done: Callable[[], bool]) -> None:
    """Read `in`, write `out` and commit the offsets, a few records in each transaction. Every third one is aborted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "transformers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    # Without traffic librdkafka 2.x asks for the group's next coordinator only when the state of a connection changes.
    closing = {"connections.max.idle.ms": 2_000}
    config = {"bootstrap.servers": servers, "transactional.id": name, "log_level": 2, **closing}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(LIMIT_S)
    consumer.subscribe(["in"])
    rounds = 0
    try:
        while not done():
            messages = [one for one in consumer.consume(count, 0.2) if one.error() is None]
            if not messages:
                continue
            rounds += 1
            producer.begin_transaction()
            try:
                for message in messages:
                    producer.produce("out", b"out-" + (message.value() or b""), partition=message.partition())
                if rounds % 3 == 0:
                    raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(-1))
                positions = consumer.position(consumer.assignment())
                metadata = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(positions, metadata, LIMIT_S)
                producer.commit_transaction(LIMIT_S)
            except confluent_kafka.KafkaException as error:
                if error.args[0].fatal():
                    raise
                abort(producer)
                for one in consumer.committed(consumer.assignment(), LIMIT_S):
                    consumer.seek(confluent_kafka.TopicPartition(one.topic, one.partition, max(one.offset, 0)))
    finally:
        consumer.close()


@pytest.mark.parametrize("victim", [None, GROUPS_TOPIC, STATES_TOPIC, "out"])
def test_what_is_read_and_transformed_is_written_exactly_once(victim: str | None) -> None:
    values = [f"{number}".encode() for number in range(120)]
    with Kafka(brokers=3) as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        for number, value in enumerate(values):
            producer.produce("in", value, partition=number % PARTITIONS)
        assert producer.flush(LIMIT_S) == 0
        over = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            while not over.is_set():
                try:
                    transform(cluster.bootstrap_servers, "transformer", 7, over.is_set)
                except AbortRefused:
                    continue
                except BaseException as error:  # noqa: BLE001 - raised on the test's thread
                    failures.append(error)
                    return

        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        try:
            if victim is not None:
                read_by_confluent(cluster.bootstrap_servers, "out", len(values) // 4)
                cluster.brokers[cluster.wait_for_leader(victim, 0)].kill()
            written = read_by_confluent(cluster.bootstrap_servers, "out", len(values))
        finally:
            over.set()
            worker.join(LIMIT_S)
        assert not failures, failures
        assert Counter(written) == Counter(b"out-" + value for value in values)
