"""A container's health check: does its broker serve, and does the metadata that it serves list the broker itself?

Asks for Metadata as any client does, on the broker's own listener (`HEALTH_ADDRESS`, 127.0.0.1:9092 unless set), and
ends with status 0 or 1 and a sentence. A broker is listed once a controller has seen its registration and told it so.
It stays listed in its own metadata when it loses ZooKeeper later: this is a check of the process, not of the cluster,
which `camerlengo state` shows. Standard library alone, since it is started every few seconds.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

DEADLINE_S = 2.5
METADATA, VERSION, CORRELATION_ID = 3, 1, 1
"""Version 1 is the first with a controller id, and one in which no topic at all can be asked for."""
REQUEST = struct.pack(">hhih", METADATA, VERSION, CORRELATION_ID, -1) + struct.pack(">i", 0)


class Unhealthy(Exception):
    """Says what is wrong."""


def brokers_in(answer: bytes) -> tuple[list[int], int]:
    """The ids of the listed brokers, and the controller's (-1: none), of a Metadata 1 response's frame."""
    try:
        correlation_id, count = struct.unpack_from(">ii", answer)
        at, brokers = 8, []
        for _ in range(count):
            broker, host_length = struct.unpack_from(">ih", answer, at)
            at += 6 + host_length + 4
            (rack_length,) = struct.unpack_from(">h", answer, at)
            at += 2 + max(rack_length, 0)
            brokers.append(broker)
        (controller,) = struct.unpack_from(">i", answer, at)
    except struct.error as error:
        raise Unhealthy(f"an answer that is no metadata: {answer[:40]!r}") from error
    if correlation_id != CORRELATION_ID:
        raise Unhealthy(f"an answer to another request: {correlation_id}")
    return brokers, controller


def ask(host: str, port: int) -> bytes:
    try:
        with socket.create_connection((host, port), DEADLINE_S) as connection:
            connection.sendall(struct.pack(">i", len(REQUEST)) + REQUEST)
            stream = connection.makefile("rb")
            size = stream.read(4)
            answer = stream.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
    except OSError as error:
        raise Unhealthy(f"no answer from {host}:{port}: {error}") from error
    if not answer:
        raise Unhealthy(f"{host}:{port} closed the connection")
    return answer


def check(address: str, broker_id: str) -> str:
    """A sentence for a healthy broker. Unhealthy otherwise. `broker_id` "" asks for any broker to be listed."""
    host, _, port = address.rpartition(":")
    brokers, controller = brokers_in(ask(host, int(port)))
    if not brokers or (broker_id and int(broker_id) not in brokers):
        raise Unhealthy(f"broker {broker_id or '(any)'} is not listed: brokers {brokers}, controller {controller}")
    return f"brokers {brokers}, controller {controller}"


if __name__ == "__main__":
    try:
        print(check(os.environ.get("HEALTH_ADDRESS", "127.0.0.1:9092"), os.environ.get("KAFKA_BROKER_ID", "")))
    except Unhealthy as unhealthy:
        print(unhealthy)
        sys.exit(1)
