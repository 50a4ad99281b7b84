"""What runs beside the measured clients in the experiments of `camerlengo lab latency`, in processes of their own.

    python -m tests.benchmarks.latency_beside KIND JSON

Each prints "ready" on stderr, and runs until its stdin is closed; then it prints a JSON object.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

Given = Mapping[str, Any]
READY = "ready"
RECORD = struct.Struct(">II")
"""Of a record on its way to the collector: its partition, and its length."""


def _until_closed(step: Callable[[], object]) -> None:
    print(READY, file=sys.stderr, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        step()


def large(given: Given) -> dict[str, Any]:
    """Send one record of `bytes` every `every_s`, to partition 0 of `topic`."""
    from confluent_kafka import Producer

    limits = {"message.max.bytes": given["bytes"] + 100_000, "acks": "all", "linger.ms": 0}
    producer = Producer({"bootstrap.servers": given["servers"], "log_level": 0} | limits)
    body, sent = bytes(given["bytes"]), 0

    def step() -> None:
        nonlocal sent
        producer.produce(given["topic"], body, partition=0)
        sent += producer.flush(10.0) == 0
        time.sleep(given["every_s"])

    _until_closed(step)
    return {"sent": sent}


def metadata(given: Given) -> dict[str, Any]:
    """Ask a broker for the metadata of all topics, over `connections` in turn, as fast as it answers."""
    from controller.protocol.client import MetadataRequest
    from controller.protocol.codec import ApiKey, RequestHeader, encode_request
    from controller.protocol.framing import framed

    host, _, port = given["servers"].split(",")[0].rpartition(":")
    request = MetadataRequest(None, allow_auto_topic_creation=False)
    frame = framed(encode_request(RequestHeader(ApiKey.METADATA, 9, 1, "storm"), request))
    opened = [socket.create_connection((host, int(port)), 10.0) for _ in range(given["connections"])]
    streams = [one.makefile("rb") for one in opened]
    asked = 0

    def step() -> None:
        nonlocal asked
        for one in opened:
            one.sendall(frame)
        for stream in streams:
            stream.read(int.from_bytes(stream.read(4), "big"))
        asked += len(opened)

    _until_closed(step)
    return {"asked": asked}


def group(given: Given) -> dict[str, Any]:
    """`consumers` members of one group, which commit every `every_ms`."""
    from confluent_kafka import Consumer

    config = {"bootstrap.servers": given["servers"], "group.id": given["group"], "log_level": 0}
    commits = {"auto.commit.interval.ms": given["every_ms"], "auto.offset.reset": "earliest"}
    members = [Consumer(config | commits) for _ in range(given["consumers"])]
    for one in members:
        one.subscribe([given["topic"]])
    received = 0

    def step() -> None:
        nonlocal received
        for one in members:
            message = one.poll(0.002)
            received += message is not None and message.error() is None

    _until_closed(step)
    for one in members:
        one.close()
    return {"received": received}


def collector(given: Given) -> dict[str, Any]:
    """Accept connections on `port`, and produce with one producer what they send."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": given["servers"], "log_level": 0} | given["config"])
    sent = 0

    def serve(sock: socket.socket) -> None:
        nonlocal sent
        with sock, sock.makefile("rb") as stream:
            while len(head := stream.read(RECORD.size)) == RECORD.size:
                partition, size = RECORD.unpack(head)
                producer.produce(given["topic"], stream.read(size), partition=partition)
                sent += 1

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", given["port"]), backlog=512) as listening:
        threading.Thread(target=accept, daemon=True).start()
        _until_closed(lambda: producer.poll(0.005))
        producer.flush(10.0)
    return {"sent": sent}


KINDS = {one.__name__: one for one in (large, metadata, group, collector)}


if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](json.loads(sys.argv[2]))))
