"""Consumer groups with real clients: they commit, resume and rebalance, and go on when their coordinator is killed."""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import kafka as kafka_python
import pytest
from aiokafka import AIOKafkaConsumer

from controller.testing import Kafka
from tests.clients.clients import CLIENTS, MANNERS
from tests.processes import DEADLINE_S
from tests.programs import program

TOPIC, PARTITIONS = "orders", 4
VALUES = [f"{number}".encode() for number in range(40)]
SESSION_MS = 6_000
Read = Callable[[str, str, int], list[bytes]]
"""(bootstrap servers, group, how many): what one member read and committed, before it left."""


def by_confluent(servers: str, group: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    consumer.subscribe([TOPIC])
    read: list[bytes] = []
    until = time.monotonic() + DEADLINE_S
    while len(read) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.append(message.value() or b"")
            consumer.commit(message, asynchronous=False)
    consumer.close()
    return read


def by_kafka_python(servers: str, group: str, count: int) -> list[bytes]:
    consumer = kafka_python.KafkaConsumer(
        TOPIC,
        bootstrap_servers=servers.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=1,
    )
    read: list[bytes] = []
    until = time.monotonic() + DEADLINE_S
    while len(read) < count and time.monotonic() < until:
        # Its assignment may be lost with a poll that ends while it joins (docs/groups.md).
        for records in consumer.poll(DEADLINE_S * 1_000).values():
            read += [record.value for record in records]
        consumer.commit()
    consumer.close()
    return read


def by_aiokafka(servers: str, group: str, count: int) -> list[bytes]:
    async def consume() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=1,
        )
        await consumer.start()
        read: list[bytes] = []
        try:
            while len(read) < count:
                record = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
                read.append(record.value)
                await consumer.commit()
        finally:
            await consumer.stop()
        return read

    return asyncio.run(consume())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    with Kafka(brokers=3) as running:
        running.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap_servers, "log_level": 2})
        for number, value in enumerate(VALUES):
            producer.produce(TOPIC, value, partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        yield running


@pytest.mark.parametrize("read", [by_confluent, by_kafka_python, by_aiokafka], ids=lambda one: one.__name__)
def test_the_next_member_goes_on_where_the_last_one_committed(cluster: Kafka, read: Read) -> None:
    first = read(cluster.bootstrap_servers, read.__name__, 15)
    second = read(cluster.bootstrap_servers, read.__name__, len(VALUES) - 15)
    assert (len(first), sorted(first + second)) == (15, sorted(VALUES))


def test_a_group_written_by_one_client_is_read_by_another(cluster: Kafka) -> None:
    first = by_confluent(cluster.bootstrap_servers, "handed on", 20)
    second = by_aiokafka(cluster.bootstrap_servers, "handed on", 10)
    third = by_kafka_python(cluster.bootstrap_servers, "handed on", 10)
    assert sorted(first + second + third) == sorted(VALUES)


class Member:
    """A consumer on a thread of its own, which commits what it has read. `stop` returns that."""

    def __init__(self, cluster: Kafka, group: str) -> None:
        self.assigned: set[int] = set()
        self.read: list[bytes] = []
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 100,
                "auto.commit.interval.ms": 50,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, _consumer: object, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.assigned = {one.partition for one in partitions}

    def _revoked(self, _consumer: object, _partitions: object) -> None:
        self.assigned = set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.read.append(message.value() or b"")
        self._consumer.close()

    def stop(self) -> list[bytes]:
        self._stopping.set()
        self._thread.join()
        return self.read


def eventually(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 2 * DEADLINE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def shared(*members: Member | KcatMember) -> Callable[[], bool]:
    """Each has partitions, and all have all of them, each once."""

    def holds() -> bool:
        owned = [partition for member in members for partition in member.assigned]
        return sorted(owned) == list(range(PARTITIONS)) and all(member.assigned for member in members)

    return holds


def test_members_share_the_partitions_and_take_over_from_who_leaves(cluster: Kafka) -> None:
    one, two = Member(cluster, "shared"), Member(cluster, "shared")
    try:
        eventually(shared(one, two), "both have partitions")
        eventually(lambda: set(VALUES) <= {*one.read, *two.read}, "all is read")
        two.stop()
        eventually(shared(one), "the one that is left has all")
    finally:
        one.stop()
        two.stop()


def test_a_group_goes_on_when_its_coordinator_is_killed() -> None:
    with Kafka(brokers=3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        (confluent,) = [one for one in CLIENTS if one.name == "confluent-kafka"]
        confluent.produce(cluster.bootstrap_servers, TOPIC, VALUES[:20], MANNERS["plain"])
        members = [Member(cluster, "g"), Member(cluster, "g")]
        try:
            eventually(shared(*members), "both have partitions")
            eventually(lambda: len({*members[0].read, *members[1].read}) == 20, "the first half is read")
            described = admin.describe_consumer_groups(["g"])["g"].result(DEADLINE_S)
            cluster.brokers[described.coordinator.id].kill()
            confluent.produce(cluster.bootstrap_servers, TOPIC, VALUES[20:], MANNERS["plain"])
            eventually(lambda: {*members[0].read, *members[1].read} == set(VALUES), "the second half is read, too")
            eventually(shared(*members), "both have partitions still")
        finally:
            for member in members:
                member.stop()


# -- kcat


class KcatMember:
    """`kcat -G`, a process, which commits what it has read. `read` is what it printed so far."""

    def __init__(self, cluster: Kafka, group: str, path: Path, *options: str) -> None:
        self._path = path
        words = ["-b", cluster.bootstrap_servers, "-G", group, "-u", "-X", "auto.offset.reset=earliest", *options]
        settings = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 100, "auto.commit.interval.ms": 50}
        given = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        with path.open("wb") as output, path.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen([program("kcat"), *words, *given, TOPIC], stdout=output, stderr=errors)

    @property
    def read(self) -> list[bytes]:
        return self._path.read_bytes().split()

    @property
    def assigned(self) -> set[int]:
        """By the last line about a rebalance."""
        said = self._path.with_suffix(".err").read_text()
        last = [line for line in said.splitlines() if "rebalanced" in line][-1:]
        return {int(one) for line in last if "assigned" in line for one in re.findall(r"\[(\d+)\]", line)}

    def wait(self) -> list[bytes]:
        """Until it ends by itself."""
        assert self._process.wait(DEADLINE_S) == 0, self._path.with_suffix(".err").read_text()
        return self.read

    def stop(self) -> list[bytes]:
        """It leaves the group in order."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(DEADLINE_S)
        return self.read


@pytest.mark.programs
def test_kcat_commits_and_resumes(cluster: Kafka, tmp_path: Path) -> None:
    first = KcatMember(cluster, "kcat", tmp_path / "first", "-c", "15").wait()
    second = KcatMember(cluster, "kcat", tmp_path / "second", "-e").wait()
    assert (len(first), sorted(first + second)) == (15, sorted(VALUES))


@pytest.mark.programs
def test_kcat_shares_partitions_and_goes_on_when_its_coordinator_is_killed(tmp_path: Path) -> None:
    with Kafka(brokers=3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        (confluent,) = [one for one in CLIENTS if one.name == "confluent-kafka"]
        confluent.produce(cluster.bootstrap_servers, TOPIC, VALUES[:20], MANNERS["plain"])
        members = [KcatMember(cluster, "g", tmp_path / name) for name in ("one", "two")]
        try:
            eventually(shared(*members), "both have partitions")
            eventually(lambda: len({*members[0].read, *members[1].read}) == 20, "the first half is read")
            described = admin.describe_consumer_groups(["g"])["g"].result(DEADLINE_S)
            cluster.brokers[described.coordinator.id].kill()
            confluent.produce(cluster.bootstrap_servers, TOPIC, VALUES[20:], MANNERS["plain"])
            eventually(lambda: {*members[0].read, *members[1].read} == set(VALUES), "the second half is read, too")
            members[1].stop()
            eventually(shared(members[0]), "the one that is left has all")
        finally:
            for member in members:
                member.stop()
