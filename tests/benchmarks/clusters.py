"""What benchmarks run: a ZooKeeper, the tree of a large cluster in it, child processes.

The tree is topics, their partitions' states, and registrations that no session owns, written in batches of fenced
writes, several in flight.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.core.event_loop import EventQueue
from controller.core.leadership import Won, elect
from controller.hosts.network import NetworkThread, RealClock
from controller.zookeeper import launch, paths
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    BrokerEndpoint,
    BrokerRegistration,
    PartitionStateZnode,
    TopicAssignment,
    encode_broker_registration,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.embedded import EmbeddedZooKeeper, ZooKeeperKind
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import Create
from tests.benchmarks.common import ROOT

if TYPE_CHECKING:
    pass


WRITING_LIMIT_S = 600.0
TOPICS_AT_ONCE = 500
"""Written together: of millions of znodes only so many are in memory at a time."""


@dataclass(frozen=True, slots=True)
class TreeSize:
    """`partitions` in all, dealt out evenly over `topics`; each has `replication_factor` of `brokers` replicas. They
    are led by all brokers in turn or, if `led_by` names one, by that alone."""

    topics: int
    partitions: int
    replication_factor: int
    brokers: int
    led_by: int | None = None

    def partitions_of(self, topic: int) -> int:
        return self.partitions // self.topics + (topic < self.partitions % self.topics)

    def names(self) -> list[tuple[str, int]]:
        """(topic, partition) of every partition."""
        sizes = [(f"topic-{topic:06d}", self.partitions_of(topic)) for topic in range(self.topics)]
        return [(name, partition) for name, size in sizes for partition in range(size)]

    def replicas(self, topic: int, partition: int) -> tuple[int, ...]:
        """The first of them leads, and all are in sync."""
        place = topic + partition
        if self.led_by is None:
            return tuple((place + step) % self.brokers + 1 for step in range(self.replication_factor))
        others = [broker for broker in range(1, self.brokers + 1) if broker != self.led_by]
        followers = (others[(place + step) % len(others)] for step in range(self.replication_factor - 1))
        return (self.led_by, *followers)


def write_tree(hosts: str, size: TreeSize, clock: RealClock) -> None:
    """Raises what a write raises, and TimeoutError."""
    client = client_of(hosts, clock)
    try:
        wait(client.start(), WRITING_LIMIT_S)
        run(BrokerWrites(client).ensure_persistent_paths(), WRITING_LIMIT_S)
        outcome = run(elect(client, 1, clock), WRITING_LIMIT_S)
        assert isinstance(outcome, Won), outcome
        ports = {broker: 9091 + broker for broker in range(1, size.brokers + 1)}
        run(client.create_rows(outcome.leadership, registrations(ports)), WRITING_LIMIT_S)
        write_partitions(client, outcome.leadership, size)
    finally:
        wait(client.close(), WRITING_LIMIT_S)


def registrations(ports: Mapping[int, int]) -> list[Create]:
    """Of brokers on this machine, by id."""
    rows = []
    for broker, port in sorted(ports.items()):
        endpoint = BrokerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)
        rows.append(Create(paths.broker(broker), encode_broker_registration(BrokerRegistration(broker, (endpoint,)))))
    return rows


def write_partitions(client: ZooKeeperClient, leadership: Leadership, size: TreeSize) -> None:
    for first in range(0, size.topics, TOPICS_AT_ONCE):
        topics = range(first, min(first + TOPICS_AT_ONCE, size.topics))
        run(client.create_rows(leadership, list(znodes(size, topics))), WRITING_LIMIT_S)


def znodes(size: TreeSize, topics: range) -> Iterator[Create]:
    """Parents before their children."""
    for topic in topics:
        name = f"topic-{topic:06d}"
        assignment = {partition: size.replicas(topic, partition) for partition in range(size.partitions_of(topic))}
        yield Create(paths.topic(name), encode_topic_assignment(TopicAssignment(topic_id_text(topic), assignment)))
        yield Create(paths.partitions(name), None)
        for partition, replicas in assignment.items():
            yield Create(paths.partition(name, partition), None)
            yield Create(paths.partition_state(name, partition), first_state(replicas))


def topic_id_text(topic: int) -> str:
    return base64.urlsafe_b64encode((topic + 1).to_bytes(16, "big")).rstrip(b"=").decode()


def first_state(replicas: tuple[int, ...]) -> bytes:
    return encode_partition_state(PartitionStateZnode(replicas[0], 0, replicas, 1))


@contextmanager
def zookeeper(
    kind: ZooKeeperKind, jars: Path | None, java_options: Sequence[str] = ()
) -> Iterator[tuple[EmbeddedZooKeeper, RealClock]]:
    """Run a ZooKeeper (fsync on, in a temporary directory), and a clock on a network thread."""
    server = EmbeddedZooKeeper(kind=kind, jars=jars, java_options=tuple(java_options))
    network = NetworkThread()
    network.start()
    try:
        with server:
            yield server, network.clock
    finally:
        network.stop()


def client_of(hosts: str, clock: RealClock, session_timeout_ms: int = 30_000) -> ZooKeeperClient:
    return ZooKeeperClient(KazooConnection(hosts, clock, session_timeout_ms), clock, EventQueue(1))


class Child:
    """A process of a benchmark that answers lines with JSON objects. `hello`: its first, unasked one, if it has one."""

    def __init__(self, module: str, *words: str, hello: bool = True) -> None:
        argv = [sys.executable, "-m", module, *words]
        self._process = launch.launch(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self.pid = self._process.pid
        self.hello: Any = self._answer() if hello else None

    def ask(self, line: str = "") -> Any:
        return self.send(line)()

    def send(self, line: str) -> Callable[[], Any]:
        """Send a request, and return what waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """The end of its input is the end of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60.0)
        self._process.stdout.close()
