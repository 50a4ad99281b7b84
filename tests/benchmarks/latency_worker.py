"""Producers or a consumer of `camerlengo lab latency`, in a process of their own.

    python -m tests.benchmarks.latency_worker produce|consume JSON

Prints one JSON object at its end. A record's value begins with the time when it was due (`time.monotonic_ns`, common to
the processes of a machine) and its number.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from controller.labs.latency.workload import due_times, read_workload, topics_of
from tests.benchmarks.latency_beside import RECORD
from tests.benchmarks.latency_producer import Producers

STAMP = struct.Struct(">qq")
READY = "assigned"
GRAIN_S = 0.0002
"""How late a record may be sent: sleeping is not exact."""
ANY_PARTITION = -1
_FLUSH_S = 20.0


def produce(given: Mapping[str, Any]) -> dict[str, Any]:
    """Send the workload's records as they are due, by `producers` in turn: of librdkafka, or `client` asyncio."""
    count = given.get("producers", 1)
    if given.get("client") == "asyncio":
        with Producers(given["servers"], given["config"], count) as made:
            return _produced(given, made.producers) | {"statistics": []}
    from confluent_kafka import Producer

    statistics: list[dict[str, Any]] = []
    plain = {"bootstrap.servers": given["servers"]} | given["config"]
    reported = {"stats_cb": lambda text: statistics.append(_digest(json.loads(text))), "statistics.interval.ms": 1_000}
    producers = [Producer(plain | reported), *(Producer(plain) for _ in range(count - 1))]
    return _produced(given, producers) | {"statistics": statistics[1:]}


def _produced(given: Mapping[str, Any], producers: Sequence[Any]) -> dict[str, Any]:
    workload = read_workload(given["workload"].encode(), "workload")
    collected = _collected(given["collector"], given["producers"]) if "collector" in given else None
    random = Random(given["seed"])
    targets = [(name, number) for name, one in topics_of(workload).items() for number in range(one.num_partitions)]
    keys, values = workload.key_generator, workload.value_generator
    bodies = [values.payload(number, random)[STAMP.size :] for number in range(64)]
    errors: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            errors.append(str(error))

    flushes = given["arrivals"] == "trogdor" and not getattr(workload, "skip_flush", True)
    start_s = time.monotonic() + 0.2
    late_s, sent, last_due_s = 0.0, 0, 0.0
    dues = due_times(workload.target_messages_per_sec, given["arrivals"], random)
    until_s = given["seconds"]
    turn = itertools.cycle(producers)
    while (due_s := next(dues)) < until_s and sent < workload.max_messages:
        if flushes and due_s != last_due_s:
            _flush(producers)
        last_due_s = due_s
        while (left_s := start_s + due_s - time.monotonic()) > 0:
            producers[0].poll(0)
            time.sleep(min(left_s, GRAIN_S) if left_s < 2 * GRAIN_S else left_s - GRAIN_S)
        late_s = max(late_s, -left_s)
        topic, partition = targets[sent % len(targets)]
        value = STAMP.pack(int((start_s + due_s) * 1e9), sent) + bodies[sent % len(bodies)]
        place = ANY_PARTITION if workload.use_configured_partitioner else partition
        while collected is None:
            one = next(turn)
            try:
                one.produce(topic, value, keys.payload(sent, random), place, on_delivery=delivered)
                break
            except BufferError:
                one.poll(0.01)
        if collected is not None:
            next(collected).sendall(RECORD.pack(partition, len(value)) + value)
        sent += 1
        if sent % 100 == 0:
            for one in producers:
                one.poll(0)
    unsent = _flush(producers)
    seconds = time.monotonic() - start_s
    return {"sent": sent, "unsent": unsent, "errors": errors[:5], "seconds": seconds, "late_ms": late_s * 1e3}


def _flush(producers: Sequence[Any]) -> int:
    """Return how many records were not sent."""
    return sum(one.flush(_FLUSH_S) for one in producers)


def _collected(port: int, connections: int) -> Iterator[socket.socket]:
    """Connections to the collector, in turn, for producers that are too small to have their own."""
    return itertools.cycle([socket.create_connection(("127.0.0.1", port), 10.0) for _ in range(connections)])


def _digest(text: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's own windows, in µs: in the producer's queue, in the broker's queue, from request to response."""
    brokers = [one for one in text["brokers"].values() if one["rtt"]["cnt"]]
    return {
        name: [[one[name]["cnt"], one[name]["avg"], one[name]["p50"], one[name]["p99"]] for one in brokers]
        for name in ("int_latency", "outbuf_latency", "rtt")
    }


def consume(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read from the ends of all partitions until `expected` records came, or none for `patience_s`."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    config = given["config"] | {"bootstrap.servers": given["servers"], "group.id": "camerlengo-lab"}
    consumer = Consumer(config | {"enable.auto.commit": False})
    places = [(topic, number) for topic, count in given["topics"].items() for number in range(count)]
    index = {place: number for number, place in enumerate(places)}
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in places])
    consumer.poll(0.5)  # connections and offsets
    print(READY, file=sys.stderr, flush=True)
    rows: list[tuple[int, int, int, int]] = []
    poll, now_ns, unpack = consumer.poll, time.monotonic_ns, STAMP.unpack_from
    quiet_s = time.monotonic() + given["first_s"]
    size_bytes = 0
    slow_from_s, slow_s, a_record_s = given.get("slow", (0.0, 0.0, 0.0))
    ignored_bytes = given.get("ignore_bytes", -1)
    """The size of records that another producer sends, without stamps."""
    first_s = 0.0
    while time.monotonic() < quiet_s and len(rows) < given["expected"]:
        message = poll(0.1)
        if message is None or message.error() is not None:
            continue
        at_ns = now_ns()
        first_s = first_s or at_ns / 1e9
        if slow_from_s <= at_ns / 1e9 - first_s < slow_from_s + slow_s:
            time.sleep(a_record_s)  # the application of the slow consumer
        value = message.value()
        if len(value) == ignored_bytes:
            continue
        size_bytes += len(value)
        rows.append((index[message.topic(), message.partition()], message.offset(), unpack(value)[0], at_ns))
        if len(rows) % 64 == 0 or len(rows) < 64:
            quiet_s = time.monotonic() + given["patience_s"]
    consumer.close()
    np.save(Path(given["output"]), np.array(rows, dtype=np.int64).reshape(-1, 4))
    span_s = (rows[-1][3] - rows[0][3]) / 1e9 if rows else 0.0
    return {"received": len(rows), "seconds": span_s, "bytes": size_bytes}


if __name__ == "__main__":
    print(json.dumps({"produce": produce, "consume": consume}[sys.argv[1]](json.loads(sys.argv[2]))))
