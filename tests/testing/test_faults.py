"""Each fault of an in-process cluster, as a test of an application would inject it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

from controller.testing import Kafka
from tests.testing.clients import consuming, producer, read, send


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka(brokers=3) as cluster:
        yield cluster


def led_by(kafka: Kafka, leader: int) -> None:
    """Create topic "payments" on all brokers, its partition led by `leader`."""
    kafka.create_topic("payments", assignment={0: [leader, *(one for one in kafka.brokers if one != leader)]})


def not_controller(kafka: Kafka) -> int:
    return next(one for one in kafka.brokers if one != kafka.controller)


def test_a_kill_without_expiry_is_noticed_when_the_session_expires(kafka: Kafka) -> None:
    leader = not_controller(kafka)
    led_by(kafka, leader)
    kafka.broker(leader).kill(expire=False)
    assert kafka.leader("payments") == leader
    kafka.clock.advance(3_000)
    assert kafka.leader("payments") == leader
    kafka.clock.advance(4_000)
    assert kafka.wait_for_leader("payments") != leader


def test_a_stop_moves_the_leaders_first(kafka: Kafka) -> None:
    leader = not_controller(kafka)
    led_by(kafka, leader)
    kafka.broker(leader).stop()
    assert not kafka.broker(leader).running
    assert kafka.leader("payments") not in (None, leader)
    assert "controlled shutdown" in kafka.timeline()
    kafka.broker(leader).start()
    kafka.wait_until_healthy()


def test_a_paused_broker_keeps_its_leaders_until_its_session_expires(kafka: Kafka) -> None:
    leader = not_controller(kafka)
    led_by(kafka, leader)
    made = producer(kafka)
    assert send(made, "payments", b"one") == 0
    kafka.broker(leader).pause()
    assert kafka.broker(leader).paused
    kafka.clock.advance(10_000)
    successor = kafka.wait_for_leader("payments")
    assert successor != leader
    kafka.broker(leader).resume()
    kafka.wait_until_healthy()
    assert kafka.leader("payments") == successor
    assert len(kafka.isr("payments")) == 3


def test_a_paused_broker_answers_what_it_was_sent_once_it_is_resumed() -> None:
    with Kafka() as kafka:
        kafka.create_topic("payments")
        made = producer(kafka)
        assert send(made, "payments", b"one") == 0
        kafka.broker(1).pause()
        outcomes: list[int] = []
        made.produce(
            "payments", b"two", partition=0, on_delivery=lambda _error, message: outcomes.append(message.offset())
        )
        assert made.flush(0.2) == 1
        kafka.broker(1).resume()
        assert made.flush(30) == 0
        assert outcomes == [1]


def test_a_broker_whose_session_expires_registers_again(kafka: Kafka) -> None:
    leader = not_controller(kafka)
    led_by(kafka, leader)
    kafka.broker(leader).expire_session()
    kafka.wait_until(lambda: kafka.leader("payments") not in (None, leader), "another broker leads")
    kafka.wait_until_healthy()
    assert kafka.broker(leader).running


def test_the_controllers_session_expires(kafka: Kafka) -> None:
    first = kafka.controller
    assert first is not None
    kafka.broker(first).expire_session()
    kafka.wait_until(lambda: kafka.controller not in (None, first), "another broker is the controller")
    kafka.wait_until_healthy()


def test_a_follower_behind_a_partition_leaves_the_isr_and_comes_back(kafka: Kafka) -> None:
    leader = kafka.controller
    assert leader is not None
    follower = not_controller(kafka)
    kafka.create_topic("payments", assignment={0: [leader, follower]})
    kafka.broker(leader).partition_from(follower)
    assert send(producer(kafka, acks=1), "payments", b"one") == 0  # a follower that lacks nothing does not lag
    kafka.clock.advance(45_000)  # replica.lag.time.max.ms is 30 s, and is looked at every half of it
    assert kafka.wait_for_isr("payments", size=1) == (leader,)
    kafka.broker(leader).heal()
    assert sorted(kafka.wait_for_isr("payments", size=2)) == sorted([leader, follower])


def test_a_broker_without_zookeeper_is_replaced_and_comes_back(kafka: Kafka) -> None:
    leader = not_controller(kafka)
    led_by(kafka, leader)
    kafka.broker(leader).partition_from("zookeeper")
    kafka.clock.advance(10_000)
    kafka.wait_until(lambda: kafka.leader("payments") not in (None, leader), "another broker leads")
    kafka.broker(leader).heal("zookeeper")
    kafka.wait_until_healthy()


def test_a_slow_broker_answers_late(kafka: Kafka) -> None:
    led_by(kafka, 1)
    kafka.broker(1).slow(50)
    made = producer(kafka, request_timeout_ms=20_000)
    assert send(made, "payments", b"one") == 0
    kafka.broker(1).slow(0)
    assert send(made, "payments", b"two") == 1
    assert "FAULT slow: broker 1 by 50 ms" in kafka.timeline()


def test_a_slow_follower_delays_acks_all_and_not_acks_one(kafka: Kafka) -> None:
    led_by(kafka, 1)
    kafka.wait_until_healthy()
    kafka.broker(2).slow(3_600_000)
    assert send(producer(kafka, acks=1), "payments", b"one") == 0
    made = producer(kafka)
    outcomes: list[KafkaError | None] = []
    made.produce("payments", b"two", partition=0, on_delivery=lambda error, _message: outcomes.append(error))
    assert made.flush(0.3) == 1
    kafka.broker(2).slow(0)
    kafka.clock.advance(45_000)  # the follower leaves the ISR
    assert made.flush(30) == 0
    assert outcomes == [None]


def test_a_full_disk_ends_the_broker_and_keeps_what_was_written(kafka: Kafka) -> None:
    led_by(kafka, 1)
    made = producer(kafka)
    assert send(made, "payments", b"one") == 0
    kafka.broker(1).fill_disk()
    assert send(made, "payments", b"two") == 1  # by another leader
    kafka.clock.advance(5_000)  # until the broker looks at its log directories
    kafka.wait_until(lambda: not kafka.broker(1).running, "broker 1 has ended")
    assert kafka.wait_for_leader("payments") != 1
    kafka.broker(1).free_disk()
    kafka.broker(1).start()
    kafka.wait_until_healthy()
    assert read(kafka, "payments", 2) == [b"one", b"two"]


def test_a_lost_disk_is_filled_again_by_the_leader(kafka: Kafka) -> None:
    led_by(kafka, 1)
    made = producer(kafka)
    assert send(made, "payments", b"one") == 0
    kafka.broker(1).lose_disk()
    assert kafka.wait_for_leader("payments") != 1
    kafka.broker(1).start()
    kafka.wait_until_healthy()
    for other in (2, 3):
        kafka.broker(other).kill()
    kafka.wait_until(lambda: kafka.leader("payments") == 1, "broker 1 leads")
    assert read(kafka, "payments", 1) == [b"one"]


def test_faults_of_disks_need_disks_in_memory(tmp_path: object) -> None:
    with Kafka(directory=str(tmp_path)) as kafka:
        with pytest.raises(ValueError, match="broker 1 keeps its records in a directory"):
            kafka.broker(1).fill_disk()


def test_a_request_is_answered_with_an_error_so_many_times(kafka: Kafka) -> None:
    led_by(kafka, 1)
    fault = kafka.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    assert send(producer(kafka), "payments", b"one") == 0
    assert fault.hits == 2
    forever = kafka.fail("produce", "TOPIC_AUTHORIZATION_FAILED", broker=1)
    error = send(producer(kafka), "payments", b"two")
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.heal_requests()
    assert forever.hits == 1
    assert send(producer(kafka), "payments", b"two") == 1


def test_a_fault_of_some_requests_is_drawn_from_the_seed() -> None:
    hits = []
    for _ in range(2):
        with Kafka(seed=7) as kafka:
            kafka.create_topic("payments")
            fault = kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER", probability=0.5)
            made = producer(kafka)
            assert [send(made, "payments", b"x") for _ in range(10)] == list(range(10))
            hits.append(fault.hits)
    assert hits[0] == hits[1] > 0


def test_a_lost_answer_makes_a_plain_producer_write_twice_and_an_idempotent_one_once() -> None:
    for idempotent, expected in ((False, [b"one", b"one", b"end"]), (True, [b"one", b"end"])):
        with Kafka() as kafka:
            kafka.create_topic("payments")
            made = producer(kafka, enable_idempotence=idempotent)
            kafka.lose_answer("Produce")
            assert send(made, "payments", b"one") == len(expected) - 2
            send(made, "payments", b"end")
            assert read(kafka, "payments", len(expected)) == expected


def test_a_delayed_fetch_comes_late_and_followers_are_not_delayed(kafka: Kafka) -> None:
    led_by(kafka, 1)
    assert send(producer(kafka), "payments", b"one") == 0
    fault = kafka.delay("Fetch", 60_000, times=1)
    with consuming(kafka, "payments") as consumer:
        assert consumer.poll(0.3) is None
        assert fault.hits == 1
        assert send(producer(kafka), "payments", b"two") == 1
        kafka.clock.advance(60_000)
        assert consumer.poll(30).value() == b"one"


def test_much_time_passes_at_once_and_no_session_expires(kafka: Kafka) -> None:
    epochs = [record for record in kafka.records if type(record.event).__name__ == "ControllerElected"]
    kafka.clock.advance(600_000)
    assert [record for record in kafka.records if type(record.event).__name__ == "ControllerElected"] == epochs
    assert "lost its ZooKeeper session" not in kafka.timeline()
    with pytest.raises(ValueError, match="advance by -1 ms"):
        kafka.clock.advance(-1)
    with pytest.raises(ValueError, match="finite"):
        kafka.clock.advance(float("inf"))
