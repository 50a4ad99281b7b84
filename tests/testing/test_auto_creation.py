"""auto.create.topics.enable: real clients, and the error codes of Kafka's rule."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from controller.protocol.client import MetadataRequest, MetadataRequestTopic
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import framed
from controller.testing import Kafka
from tests.testing.clients import consuming, producer, read, send

ON = {"auto.create.topics.enable": True, "num.partitions": 3, "default.replication.factor": 2}


def metadata(kafka: Kafka, broker: int, *topics: str, allow: bool = True, version: int = 9) -> dict[str, ErrorCode]:
    """Ask one broker. Return the error of each topic."""
    host, _, port = kafka.broker(broker).address.rpartition(":")
    names = tuple(MetadataRequestTopic(name) for name in topics)
    request = MetadataRequest(names, allow_auto_topic_creation=allow)
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(framed(encode_request(RequestHeader(ApiKey.METADATA, version, 1, "test"), request)))
        frame = answers.read(int.from_bytes(answers.read(4), "big"))
    answer: Any = decode_response(ApiKey.METADATA, version, frame)[1]
    return {topic.name: ErrorCode(topic.error_code) for topic in answer.topics}


@pytest.mark.parametrize("brokers", [2, 3])
def test_a_produced_topic_is_created(brokers: int) -> None:
    with Kafka(brokers=brokers, settings=ON) as kafka:
        assert send(producer(kafka), "payments", b"one", partition=2) == 0
        assert read(kafka, "payments", 1, partition=2) == [b"one"]
        assert len(kafka.isr("payments", 2)) == 2
        with pytest.raises(KeyError):
            kafka.leader("payments", 3)


def test_the_answer_says_how_it_went_on_each_broker() -> None:
    with Kafka(brokers=2, settings=ON) as kafka:
        for broker in kafka.brokers:
            name = f"of-broker-{broker}"
            assert metadata(kafka, broker, name, "a:b") == {
                name: ErrorCode.LEADER_NOT_AVAILABLE,
                "a:b": ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
            kafka.wait_for_leader(name)
            assert metadata(kafka, broker, name) == {name: ErrorCode.NONE}
            assert metadata(kafka, broker, f"old-{broker}", version=1) == {
                f"old-{broker}": ErrorCode.LEADER_NOT_AVAILABLE
            }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert metadata(kafka, 1, "other", allow=False) == {"other": unknown}
        assert metadata(kafka, 1, "__consumer_offsets") == {"__consumer_offsets": unknown}
        kafka.broker(2).kill()
        kafka.wait_until_healthy()
        assert metadata(kafka, 1, "few") == {"few": ErrorCode.INVALID_REPLICATION_FACTOR}
        with pytest.raises(KeyError):
            kafka.leader("few")


def test_it_is_off_unless_it_is_set() -> None:
    with Kafka() as kafka:
        assert metadata(kafka, 1, "payments") == {"payments": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_consumer_creates_a_topic_only_if_it_says_so() -> None:
    with Kafka(settings={"auto.create.topics.enable": True}) as kafka:
        seen = kafka.delay("Metadata", 1)
        with consuming(kafka, "payments") as consumer:
            assert consumer.poll(0.05) is None
            kafka.wait_until(lambda: seen.hits >= 2, "the consumer has asked for its topic")
            with pytest.raises(KeyError):
                kafka.leader("payments")
        with consuming(kafka, "payments", allow_auto_create_topics=True) as consumer:
            kafka.wait_for_leader("payments")
