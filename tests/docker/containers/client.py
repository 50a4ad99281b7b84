"""Clients as a user has them: librdkafka on this machine, which goes where the cluster tells it, and one request to one
broker and no other, which tells what that broker believes."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from controller.protocol import (
    ApiKey,
    MetadataRequest,
    MetadataResponse,
    RequestHeader,
    decode_response,
    encode_request,
)
from tests.docker.checks import BrokerView, Partition

ANSWER_S = 10.0
CREATION_S = 30.0
_VERSION = 9


class NotAnswered(Exception):
    """A broker can't be asked, or closed the connection; says why."""


def ask(port: int) -> BrokerView:
    """What the broker behind that port of this machine tells a client. NotAnswered."""
    header = RequestHeader(ApiKey.METADATA, _VERSION, 1, "camerlengo-test")
    frame = encode_request(header, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
            connection.sendall(len(frame).to_bytes(4, "big") + frame)
            stream = connection.makefile("rb")
            body = stream.read(int.from_bytes(stream.read(4), "big"))
    except OSError as error:
        raise NotAnswered(f"port {port}: {error}") from error
    if not body:
        raise NotAnswered(f"port {port}: the connection was closed")
    _, answer = decode_response(ApiKey.METADATA, _VERSION, body)
    assert isinstance(answer, MetadataResponse)
    partitions: Mapping[tuple[str, int], Partition] = {
        (topic.name, one.partition_index): Partition(
            one.leader_id, tuple(one.isr_nodes), tuple(one.replica_nodes), one.leader_epoch
        )
        for topic in answer.topics
        for one in topic.partitions
    }
    return BrokerView(tuple(broker.node_id for broker in answer.brokers), answer.controller_id, partitions)


def make_admin(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap, "client.id": "camerlengo-test", "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int, replication_factor: int) -> str | None:
    """Why it was not created, None if it was. A client of its own for each attempt: one that has met another controller
    keeps to it. An earlier attempt whose answer was lost may have created it."""
    new = NewTopic(topic, partitions, replication_factor)
    admin = make_admin(bootstrap)
    (future,) = admin.create_topics([new], operation_timeout=CREATION_S, request_timeout=CREATION_S).values()
    try:
        future.result(CREATION_S + ANSWER_S)
    except KafkaException as error:
        return None if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS else str(error)
    return None
