"""Real clients, as an application has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from controller.testing import Kafka

QUIET = {"log_level": 0, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 5}
LIMIT_S = 30.0


def producer(kafka: Kafka, **settings: Any) -> Any:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", "linger.ms": 0, **QUIET, **given})


def send(made: Any, topic: str, value: bytes, partition: int = 0) -> Any:
    """Produce one record. Return its offset, or the error."""
    outcomes: list[Any] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes.append(message.offset() if error is None else error)

    made.produce(topic, value, partition=partition, on_delivery=delivered)
    made.flush(LIMIT_S)
    return outcomes[0] if outcomes else "no outcome"


@contextmanager
def consuming(kafka: Kafka, topic: str, partition: int = 0, offset: int = 0, **settings: Any) -> Iterator[Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            **QUIET,
            **given,
        }
    )
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        yield consumer
    finally:
        consumer.close()


def read(kafka: Kafka, topic: str, count: int, partition: int = 0) -> list[bytes]:
    with consuming(kafka, topic, partition) as consumer:
        return [message.value() for message in consumer.consume(count, LIMIT_S)]
