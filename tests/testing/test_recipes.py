"""The recipes of docs/testing-your-app.md, and that the page shows them as they are here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis.strategies import lists, sampled_from, tuples

from camerlengo import Kafka, ZooKeeper
from controller.testing import SimulationRuns

PAGE = Path(__file__).parents[2] / "docs" / "testing-your-app.md"


# The application of the page.


def new_producer(servers: str, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": servers, "acks": "all", **settings})


def write(producer: Any, topic: str, value: bytes) -> Any:
    """Return the offset of the record, or the error."""
    outcomes: list[Any] = []
    producer.produce(topic, value, on_delivery=lambda error, message: outcomes.append(error or message.offset()))
    producer.flush(30)
    return outcomes[0]


def new_consumer(servers: str, topic: str) -> Any:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "any", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def read(consumer: Any, count: int) -> list[bytes]:
    return [message.value() for message in consumer.consume(count, 30)]


# The recipes.


@pytest.mark.kafka(brokers=3)
def test_consumer_survives_its_leader(kafka: Kafka) -> None:
    kafka.create_topic("payments", replication_factor=3)
    producer = new_producer(kafka.bootstrap_servers)
    consumer = new_consumer(kafka.bootstrap_servers, "payments")
    write(producer, "payments", b"one")
    assert read(consumer, 1) == [b"one"]
    leader = kafka.wait_for_leader("payments")
    kafka.broker(leader).kill()
    write(producer, "payments", b"two")
    assert read(consumer, 1) == [b"two"]
    assert kafka.leader("payments") != leader


@pytest.mark.parametrize("idempotent", [False, True])
def test_lost_answer(kafka: Kafka, idempotent: bool) -> None:
    kafka.create_topic("payments")
    producer = new_producer(kafka.bootstrap_servers, **{"enable.idempotence": idempotent})
    fault = kafka.lose_answer("Produce", times=1)
    write(producer, "payments", b"one")
    write(producer, "payments", b"end")
    assert fault.hits == 1
    written = [b"one", b"end"] if idempotent else [b"one", b"one", b"end"]
    assert read(new_consumer(kafka.bootstrap_servers, "payments"), len(written)) == written


@pytest.mark.kafka(brokers=3, settings={"unclean.leader.election.enable": True})
def test_unclean_election(kafka: Kafka) -> None:
    kafka.create_topic("payments", assignment={0: [1, 2]})
    producer = new_producer(kafka.bootstrap_servers)
    assert write(producer, "payments", b"replicated") == 0
    kafka.broker(2).kill()
    kafka.wait_for_isr("payments", size=1)
    assert write(producer, "payments", b"on broker 1 alone") == 1
    kafka.broker(1).kill()
    kafka.broker(2).start()
    assert kafka.wait_for_leader("payments") == 2
    # The record at offset 1 was acknowledged with acks=all, and another one takes its place.
    assert write(new_producer(kafka.bootstrap_servers), "payments", b"after") == 1
    consumer = new_consumer(kafka.bootstrap_servers, "payments")
    assert read(consumer, 2) == [b"replicated", b"after"]


@pytest.mark.kafka(brokers=3, settings={"min.insync.replicas": 2})
def test_rolling_restart(kafka: Kafka) -> None:
    kafka.create_topic("payments", replication_factor=3)
    producer = new_producer(kafka.bootstrap_servers, **{"enable.idempotence": True})
    offsets = []
    for broker in kafka.brokers.values():
        broker.stop()
        offsets.append(write(producer, "payments", b"while it is down"))
        broker.start()
        kafka.wait_until_healthy()
    assert offsets == [0, 1, 2]


@pytest.mark.kafka(brokers=3)
def test_full_disk(kafka: Kafka) -> None:
    kafka.create_topic("payments", assignment={0: [1, 2, 3]})
    producer = new_producer(kafka.bootstrap_servers)
    assert write(producer, "payments", b"one") == 0
    kafka.broker(1).fill_disk()
    assert write(producer, "payments", b"two") == 1  # by another leader
    kafka.clock.advance(5_000)
    kafka.wait_until(lambda: not kafka.broker(1).running, "broker 1 has ended")
    kafka.broker(1).free_disk()
    kafka.broker(1).start()
    kafka.wait_until_healthy()


@pytest.mark.kafka(brokers=3)
def test_slow_broker(kafka: Kafka) -> None:
    kafka.create_topic("payments", assignment={0: [1, 2, 3]})
    kafka.broker(1).slow(2_000)
    impatient = new_producer(kafka.bootstrap_servers, **{"delivery.timeout.ms": 300})
    error = write(impatient, "payments", b"one")
    assert error.code() == KafkaError._MSG_TIMED_OUT


@pytest.mark.kafka(settings={"auto.create.topics.enable": True, "num.partitions": 4})
def test_auto_created_topic(kafka: Kafka) -> None:
    producer = new_producer(kafka.bootstrap_servers)
    assert write(producer, "paymnets", b"one") == 0  # a typing error creates a topic
    assert kafka.leader("paymnets", 3) == 1
    with pytest.raises(KeyError):
        kafka.leader("payments")


@pytest.mark.zookeeper(tick_ms=100)
def test_lock_is_lost_with_its_session(zookeeper: ZooKeeper) -> None:
    first, second = zookeeper.client(), zookeeper.client()
    lost = threading.Event()
    first.add_listener(lambda state: lost.set() if state == "LOST" else None)
    first.Lock("/job").acquire()
    waiting = second.Lock("/job")
    assert not waiting.acquire(blocking=False)
    zookeeper.expire(first)
    assert waiting.acquire(timeout=30)
    assert lost.wait(30)  # from here on the first worker must not write


@pytest.mark.simulation(seed=7)
def test_simulated_runs(simulation: SimulationRuns) -> None:
    simulation.run("session-expiry", settings={"brokers": 5})
    for seed in range(3):
        simulation.run("swarm", seed=seed)


FAULTS: dict[str, Callable[[Kafka, int], object]] = {
    "kill": lambda kafka, broker: kafka.broker(broker).kill(),
    "stop": lambda kafka, broker: kafka.broker(broker).stop(),
    "expire": lambda kafka, broker: kafka.broker(broker).expire_session(),
    "lose answer": lambda kafka, broker: kafka.lose_answer("Produce", broker=broker),
    "not leader": lambda kafka, broker: kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER", broker=broker, times=2),
}


@settings(max_examples=5, deadline=None)
@given(steps=lists(tuples(sampled_from(sorted(FAULTS)), sampled_from([1, 2, 3])), max_size=4))
def test_each_record_is_written_once_whatever_fails(steps: list[tuple[str, int]]) -> None:
    with Kafka(brokers=3, settings={"min.insync.replicas": 2}) as kafka:
        kafka.create_topic("payments", replication_factor=3)
        producer = new_producer(kafka.bootstrap_servers, **{"enable.idempotence": True, "retry.backoff.ms": 10})
        for number, (fault, broker) in enumerate(steps):
            FAULTS[fault](kafka, broker)
            assert write(producer, "payments", str(number).encode()) == number
            kafka.restore()
        consumer = new_consumer(kafka.bootstrap_servers, "payments")
        assert read(consumer, len(steps)) == [str(number).encode() for number in range(len(steps))]


def shown() -> list[str]:
    """The source of each recipe and of the application's functions."""
    source = Path(__file__).read_text()
    begin, end = source.index("def new_producer("), source.index("def shown()")
    return [
        part.strip()
        for part in re.split(r"\n\n\n(?!    )", source[begin:end])
        if part.strip() and not part.startswith("# ")
    ]


def test_the_page_shows_the_recipes() -> None:
    page = PAGE.read_text()
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert len(shown()) == 15
    assert [one for one in shown() if one not in blocks] == []


JOB = re.compile(r"```yaml\n(name: tests\n.*?)```", re.DOTALL)


def test_the_job_of_the_page_needs_no_java(tmp_path: Path) -> None:
    """Its last command, with the fixtures of the page, where neither Java nor PySpark can be found."""
    (job,) = JOB.findall(PAGE.read_text())
    commands = re.findall(r"- run: (.*)", job)
    assert [one.split()[0] for one in commands] == ["pip", "pytest"]
    assert "java" not in job.lower()
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    (tmp_path / "test_it.py").write_text(
        "import shutil\n"
        "def test_kafka(kafka):\n    kafka.create_topic('payments')\n    assert shutil.which('java') is None\n"
        "def test_zookeeper(zookeeper):\n    zookeeper.client().create('/node')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("PATH", "JAVA_HOME")}
    words = commands[-1].replace("-n auto", "").split()[1:]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "controller.testing.plugin", *words],
        cwd=tmp_path,
        env={**environment, "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
