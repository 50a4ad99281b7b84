"""Workloads in the JSON of Trogdor, Kafka's test framework, and when their records are due.

`ProduceBenchSpec`, `ConsumeBenchSpec`, `RoundTripWorkloadSpec` and `ConnectionStressSpec` are read with the fields that
matter here; unknown fields are refused, so that no setting is ignored silently. Records are due at times that do not
depend on the cluster (an open loop): a record that is sent late keeps its due time, and its latency counts from there
(no coordinated omission). Trogdor itself sends what a period of 100 ms allows at once and then flushes, which
`arrivals="trogdor"` does too.

Source: org.apache.kafka.trogdor.workload of Kafka 2.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

import msgspec

PERIOD_S = 0.1
"""Trogdor's throttle: THROTTLE_PERIOD_MS."""
STRESS_THREADS_MAX = 1_000
STAMP_BYTES = 16
"""Of a value: when the record was due, and its number."""


class BadWorkload(ValueError):
    """A specification that can't be used; names the field."""


class ConstantPayload(msgspec.Struct, tag="constant", tag_field="type", forbid_unknown_fields=True):
    size: int = 512

    def payload(self, _position: int, _random: Random) -> bytes:
        return bytes(self.size)


class SequentialPayload(msgspec.Struct, tag="sequential", tag_field="type", forbid_unknown_fields=True):
    size: int = 4
    offset: int = 0

    def payload(self, position: int, _random: Random) -> bytes:
        return int.to_bytes((position + self.offset) % (1 << 8 * self.size), self.size, "little")


class UniformRandomPayload(msgspec.Struct, tag="uniformRandom", tag_field="type", forbid_unknown_fields=True):
    """`padding`: as many of the bytes, at the end, are zero, so the share of it sets how well records compress."""

    size: int = 512
    seed: int = 0
    padding: int = 0

    def payload(self, _position: int, random: Random) -> bytes:
        return random.randbytes(self.size - self.padding) + bytes(self.padding)


class NullPayload(msgspec.Struct, tag="null", tag_field="type", forbid_unknown_fields=True):
    def payload(self, _position: int, _random: Random) -> None:
        return None


Payload: TypeAlias = ConstantPayload | SequentialPayload | UniformRandomPayload


class Partitions(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    num_partitions: int
    replication_factor: int
    configs: dict[str, str] = {}


class _Workload(
    msgspec.Struct,
    rename="camel",
    forbid_unknown_fields=True,
    kw_only=True,
    tag=lambda name: f"org.apache.kafka.trogdor.workload.{name}Spec",
    tag_field="class",
):
    start_ms: int = 0
    duration_ms: int = 0
    bootstrap_servers: str = ""
    common_client_conf: dict[str, str] = {}


class ProduceBench(_Workload):
    target_messages_per_sec: int
    max_messages: int
    active_topics: dict[str, Partitions]
    producer_node: str = ""
    key_generator: Payload | NullPayload = msgspec.field(default_factory=SequentialPayload)
    value_generator: Payload = msgspec.field(default_factory=ConstantPayload)
    producer_conf: dict[str, str] = {}
    consumer_conf: dict[str, str] = {}
    admin_client_conf: dict[str, str] = {}
    use_configured_partitioner: bool = False
    skip_flush: bool = False


class RoundTrip(_Workload, tag="org.apache.kafka.trogdor.workload.RoundTripWorkloadSpec"):
    target_messages_per_sec: int
    max_messages: int
    active_topics: dict[str, Partitions]
    client_node: str = ""
    value_generator: Payload = msgspec.field(default_factory=ConstantPayload)
    producer_conf: dict[str, str] = {}
    consumer_conf: dict[str, str] = {}
    admin_client_conf: dict[str, str] = {}

    key_generator = SequentialPayload()
    use_configured_partitioner = False


class ConsumeBench(_Workload):
    """`active_topics`: TOPIC:PARTITION, both may have a range as in foo[1-3]:[0-5]. `target_messages_per_sec`: 0 for no
    limit."""

    max_messages: int
    active_topics: list[str]
    target_messages_per_sec: int = 0
    consumer_node: str = ""
    consumer_conf: dict[str, str] = {}
    admin_client_conf: dict[str, str] = {}


class ConnectionStress(_Workload):
    """`action`: CONNECT opens a connection and closes it, FETCH_METADATA also asks for the brokers."""

    duration_ms: int
    target_connections_per_sec: int
    num_threads: int = 1
    action: Literal["CONNECT", "FETCH_METADATA"] = "CONNECT"
    client_node: list[str] = []


Workload: TypeAlias = ProduceBench | RoundTrip
Bench: TypeAlias = ProduceBench | ConsumeBench | ConnectionStress


def read_bench(text: bytes, name: str) -> Bench:
    """A workload that one client of Trogdor's runs by itself. Raises BadWorkload."""
    try:
        found: Bench = msgspec.json.decode(text, type=Bench)
    except msgspec.DecodeError as error:
        raise BadWorkload(f"{name}: {error}") from error
    if isinstance(found, ConnectionStress):
        rate = ("targetConnectionsPerSec", found.target_connections_per_sec)
        for field, value in (("durationMs", found.duration_ms), rate, ("numThreads", found.num_threads)):
            if value < 1:
                raise BadWorkload(f"{name}: {field} is {value}: expected 1 or more")
        if found.num_threads > STRESS_THREADS_MAX:
            raise BadWorkload(f"{name}: numThreads is {found.num_threads}: expected at most {STRESS_THREADS_MAX}")
        if found.common_client_conf:
            raise BadWorkload(f"{name}: commonClientConf: expected none, connections are PLAINTEXT here")
        return found
    if isinstance(found, ConsumeBench):
        if found.max_messages < 1:
            raise BadWorkload(f"{name}: maxMessages is {found.max_messages}: expected 1 or more")
        if not assigned(found):
            raise BadWorkload(f"{name}: activeTopics is empty: expected at least one TOPIC:PARTITION")
        return found
    _check(found, name)
    return found


def read_workload(text: bytes, name: str) -> Workload:
    """Raises BadWorkload."""
    try:
        found: Workload = msgspec.json.decode(text, type=ProduceBench | RoundTrip)
    except msgspec.DecodeError as error:
        raise BadWorkload(f"{name}: {error}") from error
    _check(found, name)
    return found


def _check(found: Workload, name: str) -> None:
    for field, value in (("targetMessagesPerSec", found.target_messages_per_sec), ("maxMessages", found.max_messages)):
        if value < 1:
            raise BadWorkload(f"{name}: {field} is {value}: expected 1 or more")
    size = found.value_generator.size
    if size < STAMP_BYTES:
        raise BadWorkload(f"{name}: valueGenerator.size is {size}: expected {STAMP_BYTES} or more, for the stamps")
    if not topics_of(found):
        raise BadWorkload(f"{name}: activeTopics is empty: expected at least one topic")


def read_workload_file(path: Path) -> Workload:
    """Raises BadWorkload, also where there is no such file."""
    return read_workload(_text_of(path), str(path))


def read_bench_file(path: Path) -> Bench:
    """Raises BadWorkload, also where there is no such file."""
    return read_bench(_text_of(path), str(path))


def _text_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadWorkload(f"{path}: {error.strerror}: expected a JSON specification of Trogdor's") from error


_RANGE = re.compile(r"(.*?)\[([0-9]+)-([0-9]+)\](.*)")
TOPICS_MAX = 10_000


def topics_of(workload: Workload) -> Mapping[str, Partitions]:
    """Topics by name: foo[1-3] stands for three."""
    return {name: partitions for pattern, partitions in workload.active_topics.items() for name in _expanded(pattern)}


def assigned(workload: ConsumeBench) -> list[tuple[str, int]]:
    """The partitions that the consumer is assigned."""
    found = []
    for pattern in workload.active_topics:
        for name in _expanded(pattern):
            topic, colon, partition = name.partition(":")
            if not (topic and colon and partition.isdecimal()):
                raise BadWorkload(f"activeTopics {name!r}: expected TOPIC:PARTITION (groups are not supported here)")
            found.append((topic, int(partition)))
    return found


def _expanded(pattern: str) -> list[str]:
    match = _RANGE.fullmatch(pattern)
    if match is None:
        return [pattern]
    numbers = range(int(match[2]), int(match[3]) + 1)
    if len(numbers) > TOPICS_MAX:
        raise BadWorkload(f"activeTopics {pattern!r} names {len(numbers)} topics: expected at most {TOPICS_MAX}")
    tails = _expanded(match[4])
    if len(numbers) * len(tails) > TOPICS_MAX:
        count = len(numbers) * len(tails)
        raise BadWorkload(f"activeTopics {pattern!r} names {count} partitions: expected at most {TOPICS_MAX}")
    return [f"{match[1]}{number}{tail}" for number in numbers for tail in tails]


Arrivals = Literal["constant", "poisson", "trogdor"]


def due_times(per_second: float, arrivals: Arrivals, random: Random) -> Iterator[float]:
    """When records are due, in seconds from the start, without an end."""
    if arrivals == "trogdor":
        a_period = max(int(per_second * PERIOD_S), 1)
        period_s = a_period / per_second
        number = 0
        while True:
            yield from [number * period_s] * a_period
            number += 1
    due_s = 0.0
    while True:
        due_s += random.expovariate(per_second) if arrivals == "poisson" else 1.0 / per_second
        yield due_s
