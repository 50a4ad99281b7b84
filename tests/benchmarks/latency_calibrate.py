"""Service times for the queueing model of `camerlengo lab latency`, measured on this machine.

Requests of several sizes are sent to a broker one after the other, and the CPU time of all threads of its process is
read from the kernel (`schedstat`, ns). A JVM's network threads, by their names in `jcmd PID Thread.print`, are counted
apart. Kafka's brokers have a second listener with TLS, and get batches with lz4 besides: a connection with TLS costs
their network threads more, a compressed batch their handlers. Each service time is a coefficient of the least squares
fit. Clients' times are those of Kafka's Java clients: CPU of a consumer, and of the application's and the sender's
threads of Trogdor's ProduceBench with random values and lz4, through TLS where the brokers have it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from controller.broker.settings import Address
from controller.hosts.local_cluster import LocalCluster
from controller.labs.latency.cluster_model import ServiceTimes
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.fetch import (
    CONSUMER,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from controller.protocol.framing import framed
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from controller.protocol.schema import RequestValue
from controller.storage.batches import HEADER_BYTES, Record, encode_batch
from controller.system import LOOPBACK, HeldPorts
from tests.benchmarks.common import CouldNotRun, progress
from tests.interop.kafka import FULL_SPEED, Kafka, KafkaCluster, jars_of

SESSIONS = (1, 100, 400)
FOLLOWED_ANYWAY, FOLLOWED = 32, 400
"""Partitions that a follower has, and those that it has besides in a second measurement."""
SHAPES = ((1, 1), (1, 31), (1, 120), (8, 4), (8, 31), (32, 4))
"""(partitions, records of 516 bytes for each) of the produce requests."""
PARTITIONS = 440
TOPIC = "calibration"
FOLLOWED_TOPIC = TOPIC + "-3"
FETCHES = ((1, 1), (1, 31), (1, 120), (8, 31), (32, 4))
PACKED = ((1, 31), (1, 120), (8, 31), (32, 4))
"""As SHAPES, of the produce requests with lz4."""
PACKED_FROM = 40
CROWD = 64
"""Connections that send at once."""
CROWD_SHAPES = ((1, 1), (1, 31), (8, 4), (8, 31))
LZ4 = 3
BENCHES = (
    (400_000, 1, 10_000_000, "16384", "5", (1.0, 1 / 29, 1 / 29)),
    (60_000, 1, 10_000_000, "1", "0", (1.0, 1.0, 1.0)),
    (120_000, 100, 20_000, "16384", "1000", (1.0, 1 / 20, 2 / 2_000)),
    (120_000, 400, 16_000, "16384", "1000", (1.0, 1 / 4, 2 / 1_600)),
)
"""Of a ProduceBench: records, partitions, records/s, batch.size, linger.ms; and for each record records, batches and
requests, of two brokers. What a period allows is flushed; a batch of 16 KB takes 29 records, as the producer supposes
them to grow by 5% when they are compressed."""
ROUNDS = 12
_ANSWER_LIMIT_S = 20.0
_BENCH_LIMIT_S = 60.0


class Connection:
    def __init__(self, at: Address, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(at, _ANSWER_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=at[0])
        self._stream = self._socket.makefile("rb")

    def ask(self, api: ApiKey, version: int, request: RequestValue) -> Any:
        frame = encode_request(RequestHeader(api, version, 1, "calibration"), request)
        return decode_response(api, version, self.exchange(frame))[1]

    def exchange(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(framed(frame))

    def receive(self) -> bytes:
        size = int.from_bytes(self._stream.read(4), "big")
        return self._stream.read(size)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def cpu_ns(pid: int, only: Container[str] | None = None) -> int:
    """Of all threads of the process that live, without those of a JVM's compilers. `only`: the numbers of threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if only is not None and task.name not in only:
            continue
        try:
            if not (task / "comm").read_text().startswith(("C1 ", "C2 ")):
                total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # the thread has ended
    return total


_THREAD = re.compile(r'^"[^"]*kafka-network-thread[^"]*" .* nid=(\w+) ', re.MULTILINE)


def network_threads(pid: int) -> frozenset[str]:
    """The numbers of a JVM's threads that read and send for Kafka's SocketServer."""
    listed = subprocess.run(
        ["jcmd", str(pid), "Thread.print"], capture_output=True, text=True, timeout=60.0, check=False
    )
    found = frozenset(str(int(one, 0)) for one in _THREAD.findall(listed.stdout))
    if not found:
        raise CouldNotRun(f"jcmd {pid} Thread.print named no network thread of Kafka's: {listed.stderr[-500:]}")
    return found


@dataclass(frozen=True, slots=True)
class Point:
    """A request whose cost is measured: its row of the fit, the broker's process, and the call that makes it.
    `network`: the process's network threads, whose cost is counted apart."""

    row: tuple[float, ...]
    pid: int
    ask: Callable[[], object]
    network: frozenset[str] = frozenset()
    costs_us: list[float] = field(default_factory=list)
    network_costs_us: list[float] = field(default_factory=list)
    requests: int = 1
    """Of a call."""

    def measure(self, seconds: float) -> None:
        """Add the CPU time of a call, over a short block of calls."""
        before, number, until_s = cpu_ns(self.pid), 0, time.monotonic() + seconds
        network = cpu_ns(self.pid, self.network) if self.network else 0
        while time.monotonic() < until_s or number < 5:
            self.ask()
            number += self.requests
        apart_ns = cpu_ns(self.pid, self.network) - network if self.network else 0
        self.costs_us.append((cpu_ns(self.pid) - before - apart_ns) / number / 1e3)
        self.network_costs_us.append(apart_ns / number / 1e3)

    @property
    def cost_us(self) -> float:
        return _usual(self.costs_us)

    @property
    def network_us(self) -> float:
        return _usual(self.network_costs_us)


def _usual(costs_us: Sequence[float]) -> float:
    """The lower quartile of the later blocks: others' bursts and a JVM's first seconds count little."""
    return float(np.quantile(costs_us[len(costs_us) // 3 :], 0.25))


def fitted(rows: Sequence[Sequence[float]], costs_us: Sequence[float]) -> list[float]:
    """Coefficients that are not negative; errors count by their share, so that large requests do not decide alone."""
    weights = 1.0 / np.asarray(costs_us)
    matrix = np.asarray(rows, dtype=float) * weights[:, None]
    chosen = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, chosen], np.ones(len(weights)), rcond=None)[0]
        if (found >= 0).all():
            break
        chosen.pop(int(np.argmin(found)))
    full = np.zeros(matrix.shape[1])
    full[chosen] = found
    return [float(one) for one in full]


class TlsKafkaCluster(KafkaCluster):
    """Its brokers have a listener with TLS besides. `authority`: a file with the certificate that clients trust."""

    def __init__(self, kafka: Kafka, brokers: int, settings: Mapping[str, str]) -> None:
        from controller.hosts.certificates import Authority

        super().__init__(kafka, brokers, zookeeper_jars=None, settings=settings)
        self._authority = Authority(kafka.folder, "authority")
        self.authority = self._authority.certificate
        self._tls_ports = HeldPorts(brokers)

    @property
    def tls_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port}" for port in self._tls_ports.numbers)

    def _broker_settings(self, number: int) -> dict[str, str]:
        settings = super()._broker_settings(number)
        keystore = self._authority.issue(f"broker-{number}").read_text()
        key, begin, chain = keystore.partition("-----BEGIN CERTIFICATE-----")  # files have encrypted keys alone
        return settings | {
            "listeners": f"{settings['listeners']},SSL://{LOOPBACK}:{self._tls_ports.numbers[number - 1]}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": begin + chain,
        }

    def stop(self) -> None:
        super().stop()
        self._tls_ports.release()


class Calibration:
    """Of a cluster of two brokers that runs. `seconds`: of each point, in all."""

    def __init__(self, cluster: LocalCluster, kafka: Kafka, seconds: float) -> None:
        self._cluster = cluster
        self._kafka = kafka
        self._seconds = seconds
        self.points: dict[str, list[tuple[tuple[float, ...], float]]] = {}
        self.frames: list[bytes] = []
        """Produce requests, in the order in which their points were made."""
        self._open: list[Connection] = []
        jvms = isinstance(cluster, KafkaCluster)
        self._network = {child.pid: network_threads(child.pid) for child in cluster.brokers.values() if jvms}

    def topic(self, name: str, partitions: int, replicas: int) -> list[int]:
        """Partitions that broker 1 leads."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 2})
        assignment = [[1, 2][:replicas]] * partitions
        admin.create_topics([NewTopic(name, partitions, replica_assignment=assignment)])[name].result(60.0)
        until_s = time.monotonic() + 60.0
        while time.monotonic() < until_s:
            listed = admin.list_topics(timeout=30.0).topics.get(name)
            if listed is not None and all(len(one.isrs) == replicas for one in listed.partitions.values()):
                return list(listed.partitions)
            time.sleep(0.1)
        raise CouldNotRun(f"topic {name} was not in sync in 60 s")

    def at(self, broker: int) -> Address:
        host, _, port = self._cluster.bootstrap_servers.split(",")[broker - 1].rpartition(":")
        return host, int(port)

    def run(self) -> ServiceTimes:
        """All points are measured in turn, round by round, so that what drifts changes all of them alike."""
        pids = {number: child.pid for number, child in self._cluster.brokers.items()}
        connection = Connection(self.at(1))
        secured = self._secured()
        self.topic(TOPIC, PARTITIONS, 1)
        self.topic(TOPIC + "-2", FOLLOWED_ANYWAY, 2)
        produce = [self._produced(connection, pids[1], *shape, 1) for shape in SHAPES]
        follow = [self._produced(connection, pids[2], *shape, 2) for shape in SHAPES]
        fetch = [self._fetched(connection, pids[1], *shape) for shape in FETCHES]
        packed = [self._produced(connection, pids[1], *shape, 1, packed=True) for shape in PACKED if self._network]
        tls = []
        if secured is not None:
            tls = [self._produced(secured, pids[1], *shape, 1) for shape in SHAPES]
            tls += [self._fetched(secured, pids[1], *shape) for shape in FETCHES]
        crowd = [self._crowd(pids[1], *shape) for shape in CROWD_SHAPES if self._network]
        empty = Connection(self.at(1))
        session = [self._session(empty, pids[1], count) for count in SESSIONS]
        waiting = [self._session(empty, pids[1], count, wait_ms=1) for count in SESSIONS]
        families = {"produce": produce, "fetch": fetch, "fetch session": session, "follow": follow}
        families |= {"produce lz4": packed, "tls": tls, "produce of a crowd": crowd, "fetch that waits": waiting}
        self._measure(families)
        self.topic(FOLLOWED_TOPIC, FOLLOWED, 2)
        after = [self._produced(connection, pids[2], *shape, 2, idle=FOLLOWED) for shape in SHAPES[:3]]
        replica = [self._session(empty, pids[1], count, replica=2) for count in SESSIONS[:2] + (FOLLOWED,)]
        families |= {"follow": [*follow, *after], "fetch of a follower": replica}
        self._measure({"follow": after, "fetch of a follower": replica})
        for one in (connection, empty, *self._open, *(() if secured is None else (secured,))):
            one.close()
        fits = {}
        for name, points in families.items():
            self.points[name] = [(point.row, point.cost_us) for point in points]
            fits[name] = fitted([point.row for point in points], [point.cost_us for point in points])
        bootstrap = self._cluster.bootstrap_servers
        request_us, *found_us = fits["fetch"]
        *follow_us, follow_session_us = fits["follow"]
        session_us = fits["fetch session"][1]
        handlers = [*fits["produce"], request_us, session_us, *found_us, *follow_us]
        clients, self.points["benches"] = producers(self._kafka, self._cluster)
        times = replace(
            ServiceTimes(*[*handlers, 0.0, 0.0, polling(self._kafka, bootstrap)]),
            **clients,
            replica_session_us=fits["fetch of a follower"][1],
            wait_session_us=max(fits["fetch that waits"][1] - 2 * session_us, 0.0),
            follow_session_us=follow_session_us,
        )
        if not isinstance(self._cluster, TlsKafkaCluster):
            return times
        plain_us, plain_byte_us = self._network_fit("network", produce + fetch)
        times = replace(times, network_us=plain_us, network_byte_us=plain_byte_us)
        rows = [(*point.row, 0.0) for point in produce] + [point.row for point in packed]
        unpack_us = fitted(rows, [point.cost_us for point in produce + packed])[3]
        network_us, byte_us = self._network_fit("network with TLS", tls)
        handler_us = min(fitted([one.row for one in crowd], [one.cost_us for one in crowd])[0], times.produce_us)
        crowd_us = min(self._network_fit("network of a crowd", crowd)[0], times.network_us)
        return replace(
            times,
            tls_network_us=network_us,
            tls_network_byte_us=byte_us,
            unpack_byte_us=unpack_us,
            handler_wake_us=times.produce_us - handler_us,
            network_wake_us=(times.network_us - crowd_us) / 2,
        )

    def _measure(self, families: Mapping[str, Sequence[Point]]) -> None:
        for number in range(ROUNDS):
            progress(f"round {number + 1} of {ROUNDS}")
            for points in families.values():
                for point in points:
                    point.measure(self._seconds / ROUNDS)

    def _secured(self) -> Connection | None:
        if not isinstance(self._cluster, TlsKafkaCluster):
            return None
        context = ssl.create_default_context(cafile=str(self._cluster.authority))
        host, _, port = self._cluster.tls_servers.split(",")[0].rpartition(":")
        return Connection((host, int(port)), context)

    def _network_fit(self, name: str, points: Sequence[Point]) -> list[float]:
        """µs for a request with its response, and for a byte of either."""
        rows = [(1.0, point.row[2]) for point in points]
        costs_us = [point.network_us for point in points]
        self.points[name] = list(zip(rows, costs_us, strict=True))
        return fitted(rows, costs_us)

    def _produced(
        self,
        connection: Connection,
        pid: int,
        partitions: int,
        records: int,
        replicas: int,
        *,
        packed: bool = False,
        idle: int = 0,
    ) -> Point:
        """`packed`: with lz4, to partitions that nothing else uses. `idle`: partitions that a follower has besides."""
        now_ms = int(time.time() * 1_000)  # old records would be deleted
        found = _random(records, now_ms)
        batch = _packed_batch(found) if packed else encode_batch(found)
        parts = tuple(ProducePartition(index + PACKED_FROM * packed, batch) for index in range(partitions))
        topic = TOPIC if replicas == 1 else TOPIC + "-2"
        value = ProduceRequest(1 if replicas == 1 else -1, 10_000, (ProduceTopic(topic, parts),))
        frame = encode_request(RequestHeader(ApiKey.PRODUCE, 8, 1, "calibration"), value)
        self.frames.append(frame)
        until_s, wrong = time.monotonic() + _ANSWER_LIMIT_S, {-1}
        while wrong and time.monotonic() < until_s:  # the leader may learn of its topic after the broker that was asked
            _, answer = decode_response(ApiKey.PRODUCE, 8, connection.exchange(frame))
            wrong = {one.error_code for one in cast(ProduceResponse, answer).responses[0].partition_responses} - {0}
        if wrong:
            raise CouldNotRun(f"a produce of the calibration failed with error {wrong}")
        row: tuple[float, ...] = (1.0, float(partitions), float(partitions * len(batch)))
        if packed:
            row = (*row, float(partitions * len(_payload(found))))
        elif replicas > 1:
            row = (*row, float(FOLLOWED_ANYWAY + idle))
        return Point(row, pid, lambda: connection.exchange(frame), self._network.get(pid, frozenset()))

    def _crowd(self, pid: int, partitions: int, records: int) -> Point:
        """Produce requests of many connections at once: threads that find the next one ready are not woken for it."""
        one = Connection(self.at(1))
        point = self._produced(one, pid, partitions, records, 1)
        frame = self.frames[-1]
        connections = [one, *(Connection(self.at(1)) for _ in range(CROWD - 1))]
        self._open += connections

        def ask() -> None:
            for connection in connections:
                connection.send(frame)
            for connection in connections:
                connection.receive()

        return replaced(point, ask=ask, requests=CROWD)

    def _fetched(self, connection: Connection, pid: int, partitions: int, records: int) -> Point:
        """From the partitions that the produce requests have filled: from the start, up to a number of bytes."""
        limit = records * 530
        parts = tuple(FetchPartition(index, 0, limit) for index in range(partitions))
        value = FetchRequest(0, 1, (FetchTopic(TOPIC, parts),))
        frame = encode_request(RequestHeader(ApiKey.FETCH, 11, 1, "calibration"), value)
        size = len(connection.exchange(frame))
        row = (1.0, float(partitions), float(size))
        return Point(row, pid, lambda: connection.exchange(frame), self._network.get(pid, frozenset()))

    def _session(
        self, connection: Connection, pid: int, partitions: int, *, wait_ms: int = 0, replica: int = CONSUMER
    ) -> Point:
        """Incremental fetches of a session of idle partitions: nothing is found. `replica`: the follower that fetches.
        It is at the end of its partitions, too, so that the leader learns nothing new."""
        if replica == CONSUMER:
            topic, ends = TOPIC, self._ends(connection, range(PARTITIONS - partitions, PARTITIONS))
        else:
            topic, ends = FOLLOWED_TOPIC, dict.fromkeys(range(partitions), 0)
        asked = tuple(FetchPartition(index, ends[index], 1_000) for index in ends)
        begin = FetchRequest(0, 0, (FetchTopic(topic, asked),), replica, session_epoch=0)
        session = cast(FetchResponse, connection.ask(ApiKey.FETCH, 11, begin)).session_id
        epoch = 0

        def again() -> None:
            nonlocal epoch
            epoch += 1
            value = FetchRequest(wait_ms, min(wait_ms, 1), (), replica, session_id=session, session_epoch=epoch)
            connection.exchange(encode_request(RequestHeader(ApiKey.FETCH, 11, 1, "calibration"), value))

        return Point((1.0, float(partitions)), pid, again, self._network.get(pid, frozenset()))

    def _ends(self, connection: Connection, partitions: Sequence[int]) -> dict[int, int]:
        asked = tuple(ListOffsetsPartition(index, LATEST_TIMESTAMP) for index in partitions)
        answer = connection.ask(ApiKey.LIST_OFFSETS, 5, ListOffsetsRequest((ListOffsetsTopic(TOPIC, asked),)))
        return {one.partition_index: one.offset for one in answer.topics[0].partitions}


def _packed_batch(records: Sequence[Record]) -> bytes:
    import cramjam

    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(_payload(records))
    return encode_batch(records, attributes=LZ4, payload=bytes(compressor.finish()))


def _random(records: int, now_ms: int) -> list[Record]:
    random = np.random.default_rng(1)
    return [Record(number, now_ms, number.to_bytes(4, "little"), random.bytes(512)) for number in range(records)]


def _payload(records: Sequence[Record]) -> bytes:
    return encode_batch(records)[HEADER_BYTES:]


def polling(kafka: Kafka, bootstrap: str) -> float:
    """µs of Kafka's Java consumer for a record."""
    words = ("--topic", TOPIC, "--bootstrap-server", bootstrap, "--timeout", "20000", "--messages")
    few_s, many_s = (_cpu_s(kafka, "kafka.tools.ConsumerPerformance", *words, one) for one in ("2000", "202000"))
    return (many_s - few_s) / 200_000 * 1e6


def _cpu_s(kafka: Kafka, main: str, *words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = kafka.run(main, *words)
    if done.status:
        raise CouldNotRun(f"{main} ended with {done.status}: {done.err[-1_000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def producers(kafka: Kafka, cluster: LocalCluster) -> tuple[dict[str, float], list[tuple[tuple[float, ...], float]]]:
    """µs of Kafka's Java producer in Trogdor's ProduceBench: of the application's thread for a record and for a batch,
    of the sender's for a request, a batch and a record. A run with many records less one with a third of them counts,
    so that what a JVM does once does not."""
    rows: list[tuple[float, ...]] = []
    application_us, sender_us = list[float](), list[float]()
    for number, (records, partitions, rate, size, linger_ms, row) in enumerate(BENCHES):
        progress(f"ProduceBench {number + 1} of {len(BENCHES)}")
        cpus = []
        for count in (records // 3, records):
            spec: dict[str, Any] = {
                "class": "org.apache.kafka.trogdor.workload.ProduceBenchSpec",
                "durationMs": 600_000,
                "producerNode": "node0",
                "bootstrapServers": cluster.bootstrap_servers,
                "targetMessagesPerSec": rate,
                "maxMessages": count,
                "valueGenerator": {"type": "uniformRandom", "size": 512},
                "producerConf": {"acks": "1", "linger.ms": linger_ms, "batch.size": size, "compression.type": "lz4"},
                "activeTopics": {f"bench-{number}": {"numPartitions": partitions, "replicationFactor": 1}},
            }
            if isinstance(cluster, TlsKafkaCluster):
                spec["bootstrapServers"] = cluster.tls_servers
                spec["commonClientConf"] = {
                    "security.protocol": "SSL",
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(cluster.authority),
                }
            cpus.append(_bench(kafka, spec))
        rows.append(row)
        for costs_us, few_s, many_s in zip((application_us, sender_us), *cpus, strict=True):
            costs_us.append((many_s - few_s) / (records - records // 3) * 1e6)
    send_us, batch_us = fitted([row[:2] for row in rows], application_us)
    record_us, sender_batch_us, request_us = fitted(rows, sender_us)
    found = {"send_us": send_us, "batch_us": batch_us, "sender_us": request_us}
    found |= {"sender_batch_us": sender_batch_us, "sender_record_us": record_us}
    points = [*zip(rows, application_us, strict=True), *zip(rows, sender_us, strict=True)]
    return found, points


def _bench(kafka: Kafka, spec: Mapping[str, Any]) -> tuple[float, float]:
    """CPU in s of the threads of a ProduceBench: of the application and of the sender, as last seen."""
    (kafka.folder / "spec.json").write_text(json.dumps(spec))
    with socket.create_server(("", 0)) as held:
        port = held.getsockname()[1]
    nodes = {"node0": {"hostname": "localhost", "trogdor.agent.port": port}}
    config = {"platform": "org.apache.kafka.trogdor.basic.BasicPlatform", "nodes": nodes}
    (kafka.folder / "agent.json").write_text(json.dumps(config))
    words = ("-n", "node0", "-c", str(kafka.folder / "agent.json"), "--exec", str(kafka.folder / "spec.json"))
    command = kafka.command("tool", FULL_SPEED, "org.apache.kafka.trogdor.agent.Agent", *words)
    command[command.index("-cp") + 1] += f":{kafka.jars}/trogdor/*"  # a build from source may keep Trogdor's own there
    names = ("ProduceBenchWor", "kafka-producer-")
    seen_s: dict[tuple[str, str], float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until_s = time.monotonic() + _BENCH_LIMIT_S
            while process.poll() is None and time.monotonic() < until_s:
                for task in Path(f"/proc/{process.pid}/task").iterdir():
                    try:
                        name = (task / "comm").read_text().strip()
                        if name in names:
                            seen_s[name, task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
                    except OSError:
                        continue  # the thread has ended
                time.sleep(0.02)
        finally:
            process.kill()
        said = "" if process.stdout is None else process.stdout.read()
    if "Task succeeded" not in said:
        raise CouldNotRun(f"Trogdor's ProduceBench did not end well: {said[-1_000:]}")
    application_s, sender_s = (sum(cpu for (one, _), cpu in seen_s.items() if one == name) for name in names)
    return application_s, sender_s


def calibrate(system: str, seconds: float) -> tuple[ServiceTimes, dict[str, Any]]:
    """`system`: "camerlengo" or "kafka". The service times, and the measured points."""
    settings = {"log.segment.delete.delay.ms": "1000"}
    try:
        jars = jars_of(os.environ.get("KAFKA_HOME"))
    except ValueError as error:
        raise CouldNotRun(f"{error}; its Java clients are measured") from error
    with tempfile.TemporaryDirectory() as folder:
        kafka = Kafka(jars, Path(folder), FULL_SPEED)
        kafkas = TlsKafkaCluster(kafka, 2, settings) if system == "kafka" else None
        with kafkas or LocalCluster(2, settings=settings) as cluster:
            found = Calibration(cluster, kafka, seconds)
            return found.run(), dict(found.points)
