"""Real clients behind one interface: `produce` sends values to one partition and returns when all are acknowledged,
`consume` reads so many of it from its beginning with `assign`, without a group.

Each goes on over whatever errors its client tries again by itself; any other is raised.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

from tests.programs import program

LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How records are sent. `codec` as librdkafka calls it; always acks=all."""

    idempotent: bool = False
    codec: str | None = None


MANNERS: Mapping[str, Manner] = {
    "plain": Manner(),
    "idempotent": Manner(idempotent=True),
    **{codec: Manner(codec=codec) for codec in ("gzip", "snappy", "lz4", "zstd")},
}


@dataclass(frozen=True, slots=True)
class Client:
    """`produce(servers, topic, values, manner)`: `values` may be an iterator that takes its time. `consume(servers,
    topic, count)`: AssertionError if they are not there in time."""

    name: str
    produce: Callable[[str, str, Iterable[bytes], Manner], None]
    consume: Callable[[str, str, int], Sequence[bytes]]


# -- confluent-kafka (librdkafka)


def _confluent_produce(servers: str, topic: str, values: Iterable[bytes], manner: Manner) -> None:
    failures: list[object] = []

    def answered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "linger.ms": 5,
            "enable.idempotence": manner.idempotent,
            # As librdkafka's own documentation has it, without idempotence only this keeps the order over a retry.
            "max.in.flight": 5 if manner.idempotent else 1,
            "compression.codec": manner.codec or "none",
            "log_level": 2,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=answered)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0
    assert not failures, failures


def _confluent_consume(servers: str, topic: str, count: int) -> Sequence[bytes]:
    # Without commits: a close that has something to commit waits long for a coordinator, and there is none.
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "any", "enable.auto.commit": False, "log_level": 2}
    )
    values: list[bytes] = []
    until = time.monotonic() + LIMIT_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while len(values) < count:
            assert time.monotonic() < until, f"{len(values)} of {count} records were read"
            for message in consumer.consume(count - len(values), 1.0):
                assert message.error() is None, message.error()
                values.append(_bytes(message.value()))
    finally:
        consumer.close()
    return values


# -- kafka-python


def _python_produce(servers: str, topic: str, values: Iterable[bytes], manner: Manner) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers.split(","),
        acks="all",
        retries=1_000,
        linger_ms=5,
        enable_idempotence=manner.idempotent,
        max_in_flight_requests_per_connection=5 if manner.idempotent else 1,
        compression_type=manner.codec,
    )
    try:
        for sent in [producer.send(topic, value, partition=0) for value in values]:
            sent.get(LIMIT_S)
    finally:
        producer.close(timeout=5)


def _python_consume(servers: str, topic: str, count: int) -> Sequence[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers.split(","), group_id=None, auto_offset_reset="earliest")
    values: list[bytes] = []
    until = time.monotonic() + LIMIT_S
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek(kafka.TopicPartition(topic, 0), 0)
        while len(values) < count:
            assert time.monotonic() < until, f"{len(values)} of {count} records were read"
            for records in consumer.poll(1_000, max_records=count - len(values)).values():
                values += [_bytes(record.value) for record in records]
    finally:
        consumer.close()
    return values


# -- aiokafka


def _aio_produce(servers: str, topic: str, values: Iterable[bytes], manner: Manner) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            linger_ms=5,
            enable_idempotence=manner.idempotent,
            compression_type=manner.codec,
        )
        await producer.start()
        try:
            sent = []
            for value in values:
                sent.append(await producer.send(topic, value, partition=0))
                await asyncio.sleep(0)
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(produce())


def _aio_consume(servers: str, topic: str, count: int) -> Sequence[bytes]:
    async def consume() -> Sequence[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=None, enable_auto_commit=False)
        await consumer.start()
        values: list[bytes] = []
        try:
            at = AioTopicPartition(topic, 0)
            consumer.assign([at])
            consumer.seek(at, 0)
            async with asyncio.timeout(LIMIT_S):
                while len(values) < count:
                    found = await consumer.getmany(at, timeout_ms=1_000, max_records=count - len(values))
                    values += [_bytes(record.value) for record in found.get(at, ())]
        finally:
            await consumer.stop()
        return values

    return asyncio.run(consume())


# -- kcat


def _kcat(*words: str) -> list[str]:
    return [program("kcat", "kafkacat"), *words]


def _kcat_produce(servers: str, topic: str, values: Iterable[bytes], manner: Manner) -> None:
    options = {
        "acks": "all",
        "linger.ms": "5",
        "enable.idempotence": str(manner.idempotent).lower(),
        "max.in.flight": "5" if manner.idempotent else "1",
        "compression.codec": manner.codec or "none",
    }
    words = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    command = _kcat("-P", "-b", servers, "-t", topic, "-p", "0", *words)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        for value in values:
            process.stdin.write(value + b"\n")
            process.stdin.flush()
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said.decode()
    assert b"delivery failed" not in said.lower(), said.decode()


def _kcat_consume(servers: str, topic: str, count: int) -> Sequence[bytes]:
    command = _kcat("-C", "-q", "-b", servers, "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count))
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.splitlines()


def _bytes(value: Any) -> bytes:
    assert isinstance(value, bytes | bytearray | memoryview), value
    return bytes(value)


CLIENTS = (
    Client("confluent-kafka", _confluent_produce, _confluent_consume),
    Client("kafka-python", _python_produce, _python_consume),
    Client("aiokafka", _aio_produce, _aio_consume),
)
"""Those that the project's own set-up installs."""
KCAT = Client("kcat", _kcat_produce, _kcat_consume)
