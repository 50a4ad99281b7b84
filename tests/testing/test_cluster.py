"""An in-process cluster as its users see it: real clients, topics, and the life of brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import camerlengo
import controller.simulator
import controller.testing
import controller.zookeeper
from controller.broker.settings import BadSettings
from controller.testing import ClusterTimeout, Kafka, TopicNotCreated
from controller.testing.memory_host import MemoryHost
from tests.testing.clients import consuming, producer, read, send


def test_a_record_is_written_and_read() -> None:
    with Kafka() as kafka:
        kafka.create_topic("payments")
        assert send(producer(kafka), "payments", b"one") == 0
        assert read(kafka, "payments", 1) == [b"one"]


def test_the_controller_is_killed_and_its_partitions_have_other_leaders() -> None:
    with Kafka(brokers=3) as kafka:
        first = kafka.controller
        assert first is not None
        others = [one for one in kafka.brokers if one != first]
        kafka.create_topic("payments", assignment={0: [first, *others]})
        made = producer(kafka)
        assert send(made, "payments", b"one") == 0
        kafka.broker(first).kill()
        assert kafka.wait_for_leader("payments") in others
        assert kafka.controller in others
        assert send(made, "payments", b"two") == 1
        assert read(kafka, "payments", 2) == [b"one", b"two"]
        kafka.broker(first).start()
        assert sorted(kafka.wait_for_isr("payments", size=3)) == [1, 2, 3]
        kafka.wait_until_healthy()


def test_it_is_used_in_a_coroutine() -> None:
    async def main() -> int | None:
        async with Kafka() as kafka:
            kafka.create_topic("payments")
            return kafka.leader("payments")

    assert asyncio.run(main()) == 1


def test_records_in_a_directory_outlive_the_cluster(tmp_path: Path) -> None:
    with Kafka(directory=tmp_path) as kafka:
        kafka.create_topic("payments")
        assert send(producer(kafka), "payments", b"one") == 0
    assert (tmp_path / "broker-1" / "payments-0" / "00000000000000000000.log").stat().st_size > 0


def test_several_threads_and_several_clusters() -> None:
    with Kafka(brokers=2) as one, Kafka(brokers=2) as other:
        for kafka in (one, other):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda number, kafka=kafka: kafka.create_topic(f"topic-{number}"), range(16)))
            assert all(kafka.leader(f"topic-{number}") in (1, 2) for number in range(16))
        assert one.bootstrap_servers != other.bootstrap_servers
    names = [thread.name for thread in threading.enumerate()]
    assert "kafka" not in names


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(ValueError, match="brokers 0: expected 1 or more"):
        Kafka(brokers=0)
    with pytest.raises(BadSettings, match=r"min\.insync\.replica"):
        Kafka(settings={"min.insync.replica": 2}).start()
    with pytest.raises(ValueError, match=r"broker\.id: set by the cluster"):
        Kafka(settings={"broker.id": 2}).start()
    kafka = Kafka()
    with pytest.raises(RuntimeError, match="not started"):
        kafka.create_topic("payments")
    with kafka:
        with pytest.raises(TopicNotCreated, match="INVALID_REPLICATION_FACTOR"):
            kafka.create_topic("payments", replication_factor=2)
        kafka.create_topic("payments")
        with pytest.raises(TopicNotCreated, match="TOPIC_ALREADY_EXISTS"):
            kafka.create_topic("payments")
        with pytest.raises(KeyError, match="payments-1: no such partition"):
            kafka.leader("payments", 1)
        with pytest.raises(KeyError, match=r"broker 2: expected one of \[1\]"):
            kafka.broker(2)
        with pytest.raises(RuntimeError, match="broker 1 runs"):
            kafka.broker(1).start()
        with pytest.raises(ValueError, match="api 'Prodduce'"):
            kafka.fail("Prodduce", "NOT_LEADER_OR_FOLLOWER")
        with pytest.raises(ValueError, match="error 'NO_LEADER'"):
            kafka.fail("Produce", "NO_LEADER")
    with pytest.raises(RuntimeError, match="the cluster is stopped"):
        kafka.leader("payments")
    kafka.stop()


def test_a_wait_in_vain_says_what_was_missing() -> None:
    with Kafka(brokers=2) as kafka:
        kafka.create_topic("payments", assignment={0: [2]})
        kafka.broker(2).kill()
        kafka.timeout_s = 0.2
        with pytest.raises(
            ClusterTimeout, match=r"until payments-0 has a leader .* payments-0: leader -1 is not known"
        ):
            kafka.wait_for_leader("payments")


def test_a_failing_test_shows_the_timeline() -> None:
    def fail() -> None:
        with Kafka() as kafka:
            kafka.create_topic("payments")
            raise AssertionError("wrong")

    with pytest.raises(AssertionError) as failure:
        fail()
    (note,) = failure.value.__notes__
    assert "broker 1 is the controller, epoch 1" in note
    assert "payments-0: leader 1, ISR [1]: initial" in note


def test_the_report_is_a_page(tmp_path: Path) -> None:
    with Kafka(brokers=2) as kafka:
        kafka.broker(1).kill()
        kafka.wait_until(lambda: kafka.controller == 2, "broker 2 is the controller")
        page = kafka.report(tmp_path / "report", name="a kill").read_text()
    assert "a kill" in page
    assert "broker 2" in page


RECORD = """
from controller.testing import Kafka
from tests.testing.clients import producer, send
with Kafka(brokers=3) as kafka:
    kafka.create_topic("payments", replication_factor=3)
    assert send(producer(kafka), "payments", b"one") == 0
"""
UNUSED = "_pytest ctypes.util doctest hypothesis html http loguru multiprocessing pdb pytest sqlite3 unittest xml"
"""What starts slowly, or belongs to tests and reports alone."""
HEAVY = "confluent_kafka kafka kazoo matplotlib pandas pyarrow pyspark jinja2 rich javaproperties prometheus_client"


@pytest.mark.parametrize(
    ("program", "without"),
    [
        (
            "from controller.testing import Kafka; Kafka().start().stop()",
            f"{HEAVY} {UNUSED} controller.report controller.scenarios",
        ),
        (RECORD, f"{HEAVY} {UNUSED} controller.report controller.scenarios".replace("confluent_kafka", "")),
        ("from camerlengo import Kafka", HEAVY + " controller.report controller.scenarios"),
        ("import controller.testing.plugin", HEAVY + " numpy controller.broker controller.storage loguru msgspec"),
        ("import camerlengo", HEAVY + " numpy ast msgspec controller.testing controller.zookeeper controller.core"),
    ],
)
def test_what_is_loaded(program: str, without: str) -> None:
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint('\\n'.join(sys.modules))"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name in without.split()] == []


def test_nothing_is_left_of_a_consumer_on_a_stopped_cluster() -> None:
    with Kafka() as kafka:
        kafka.create_topic("payments")
        with consuming(kafka, "payments") as consumer:
            assert consumer.poll(0.05) is None


def test_the_facade_has_what_it_names() -> None:
    assert "Kafka" in dir(camerlengo)
    for module in (camerlengo, controller.testing, controller.simulator, controller.zookeeper):
        names = dir(module)
        assert len(names) > 3
        assert names == vars(module)["__all__"]
        assert all(getattr(module, name).__name__ == name for name in names)
    with pytest.raises(AttributeError, match="no attribute 'Kafkaa'"):
        getattr(camerlengo, "Kafkaa")  # noqa: B009


def test_a_wait_looks_after_changes_and_not_in_between() -> None:
    with Kafka(brokers=2, timeout_s=0.3) as kafka:
        host = kafka._host
        assert isinstance(host, MemoryHost)
        kafka.create_topic("payments", assignment={0: [2]})
        kafka.broker(2).kill()
        before = host.changes.looks
        with pytest.raises(ClusterTimeout):
            kafka.wait_for_leader("payments")
        assert host.changes.looks - before < 50
