"""What holds of a cluster on every host: in this process, as processes, in containers.

pytest tests/testing/on_any_host --kafka=process --kafka-brokers 3
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.testing import Kafka, TopicNotCreated, UnsupportedByHost
from tests.testing.clients import producer, read, send

SESSION_MS = 6_000


def let_pass(kafka: Kafka, ms: float) -> None:
    """Where the clock can't be advanced, the waits that follow take as long."""
    if kafka.host == "memory":
        kafka.clock.advance(ms)


def other_than(kafka: Kafka, *brokers: int | None) -> int:
    return next(one for one in kafka.brokers if one not in brokers)


@pytest.mark.kafka(brokers=1, settings={"auto.create.topics.enable": True, "num.partitions": 2})
def test_settings_are_the_brokers(kafka: Kafka) -> None:
    assert send(producer(kafka), "created", b"one", partition=1) == 0
    assert kafka.leader("created", 1) == 1
    with pytest.raises(KeyError):
        kafka.leader("created", 2)


def test_a_record_is_written_and_read(kafka_session: Kafka, kafka_topic: str) -> None:
    assert send(producer(kafka_session), kafka_topic, b"one") == 0
    assert read(kafka_session, kafka_topic, 1) == [b"one"]


def test_a_killed_leader_is_replaced_and_comes_back(kafka_session: Kafka) -> None:
    kafka = kafka_session
    leader = other_than(kafka, kafka.controller)
    kafka.create_topic("killed", assignment={0: [leader, *(one for one in kafka.brokers if one != leader)]})
    made = producer(kafka)
    assert send(made, "killed", b"one") == 0
    kafka.broker(leader).kill()
    assert not kafka.broker(leader).running
    let_pass(kafka, SESSION_MS + 1_000)
    kafka.wait_until(lambda: kafka.leader("killed") not in (None, leader), "another broker leads")
    assert send(made, "killed", b"two") == 1
    kafka.broker(leader).start()
    assert sorted(kafka.wait_for_isr("killed", size=3)) == [1, 2, 3]
    assert read(kafka, "killed", 2) == [b"one", b"two"]


def test_a_killed_controller_is_replaced(kafka_session: Kafka) -> None:
    first = kafka_session.controller
    assert first is not None
    kafka_session.broker(first).kill()
    let_pass(kafka_session, SESSION_MS + 1_000)
    kafka_session.wait_until(lambda: kafka_session.controller not in (None, first), "another broker is the controller")


def test_a_stop_moves_the_leaders_first(kafka_session: Kafka) -> None:
    kafka = kafka_session
    leader = other_than(kafka, kafka.controller)
    kafka.create_topic("stopped", assignment={0: [leader, other_than(kafka, leader)]})
    kafka.broker(leader).stop()
    assert not kafka.broker(leader).running
    assert kafka.leader("stopped") not in (None, leader)
    kafka.broker(leader).start()
    kafka.wait_until_healthy()


def test_a_paused_follower_comes_back(kafka_session: Kafka) -> None:
    kafka = kafka_session
    kafka.create_topic("paused", assignment={0: [1, 2]})
    kafka.broker(2).pause()
    assert kafka.broker(2).running
    assert kafka.broker(2).paused
    assert send(producer(kafka, acks=1), "paused", b"one") == 0
    kafka.broker(2).resume()
    assert not kafka.broker(2).paused
    kafka.wait_until_healthy()
    assert len(kafka.isr("paused")) == 2


def test_a_broker_without_zookeeper_is_replaced_and_comes_back(kafka_session: Kafka) -> None:
    kafka = kafka_session
    kafka.requires("zookeeper-links")
    leader = other_than(kafka, kafka.controller)
    kafka.create_topic("cut", assignment={0: [leader, other_than(kafka, leader)]})
    kafka.broker(leader).partition_from("zookeeper")
    let_pass(kafka, 10_000)
    kafka.wait_until(lambda: kafka.leader("cut") not in (None, leader), "another broker leads")
    kafka.broker(leader).heal("zookeeper")
    kafka.wait_until_healthy()


def test_a_follower_behind_a_cut_link_comes_back(kafka_session: Kafka) -> None:
    kafka = kafka_session
    kafka.requires("links")
    kafka.create_topic("linked", assignment={0: [1, 2]})
    kafka.broker(1).partition_from(2)
    assert send(producer(kafka, acks=1), "linked", b"one") == 0
    kafka.broker(1).heal()
    kafka.wait_until_healthy()
    assert send(producer(kafka), "linked", b"two") == 1


def test_an_expired_broker_registers_again(kafka_session: Kafka) -> None:
    kafka = kafka_session
    kafka.requires("sessions")
    leader = other_than(kafka, kafka.controller)
    kafka.create_topic("expired", assignment={0: [leader, other_than(kafka, leader)]})
    kafka.broker(leader).expire_session()
    kafka.wait_until(lambda: kafka.leader("expired") not in (None, leader), "another broker leads")
    kafka.wait_until_healthy()
    assert kafka.broker(leader).running


def test_a_lost_disk_is_filled_again(kafka_session: Kafka) -> None:
    kafka = kafka_session
    kafka.requires("lost-disks")
    kafka.create_topic("lost", assignment={0: [1, 2]})
    assert send(producer(kafka), "lost", b"one") == 0
    kafka.broker(1).lose_disk()
    kafka.wait_until(lambda: kafka.leader("lost") == 2, "broker 2 leads")
    kafka.broker(1).start()
    kafka.wait_until_healthy()
    assert read(kafka, "lost", 1) == [b"one"]


def test_what_a_host_can_not_do_is_refused_by_name(kafka_session: Kafka) -> None:
    broker = kafka_session.broker(1)
    calls: dict[str, Callable[[], object]] = {
        "clock": lambda: kafka_session.clock.advance(0),
        "disks": broker.fill_disk,
        "lost-disks": broker.lose_disk,
        "links": lambda: broker.partition_from(2),
        "requests": lambda: kafka_session.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1),
        "sessions": broker.expire_session,
        "slow": lambda: broker.slow(1),
        "zookeeper-links": lambda: broker.partition_from("zookeeper"),
    }
    lacking = []
    for ability, call in calls.items():
        try:
            kafka_session.requires(ability)
        except pytest.skip.Exception:
            lacking.append(ability)
            with pytest.raises(UnsupportedByHost, match=rf"'{kafka_session.host}' can't .*'{ability}'"):
                call()
    assert bool(lacking) == (kafka_session.host != "memory")
    with pytest.raises(ValueError, match="ability 'clocks': expected one of clock, disks"):
        kafka_session.requires("clocks")


def test_what_can_not_be_is_refused(kafka_session: Kafka, kafka_topic: str) -> None:
    with pytest.raises(TopicNotCreated, match="INVALID_REPLICATION_FACTOR"):
        kafka_session.create_topic("wide", replication_factor=4)
    with pytest.raises(TopicNotCreated, match="TOPIC_ALREADY_EXISTS"):
        kafka_session.create_topic(kafka_topic)
    with pytest.raises(KeyError, match="no such partition"):
        kafka_session.leader(kafka_topic, 1)
    with pytest.raises(RuntimeError, match="broker 1 runs"):
        kafka_session.broker(1).start()


def test_the_timeline_and_the_report_show_what_happened(kafka_session: Kafka, kafka_topic: str, tmp_path: Path) -> None:
    kafka_session.broker(1).kill()
    with pytest.raises(RuntimeError, match="broker 1 does not run"):
        kafka_session.broker(1).pause()
    kafka_session.broker(1).start()
    kafka_session.wait_until_healthy()
    timeline = kafka_session.timeline()
    assert "FAULT kill: broker 1" in timeline
    assert f"{kafka_topic}-0: leader" in timeline
    assert "is the controller, epoch" in timeline
    assert "broker 1" in kafka_session.report(tmp_path / "report").read_text()


@pytest.mark.kafka(requires=["clock"])
def test_a_mark_asks_for_abilities(kafka: Kafka) -> None:
    kafka.clock.advance(1_000)
