"""`camerlengo bench hostile`: the latency of a client while another one attacks, and what the brokers use.

    python -m tests.benchmarks.hostile HOST:PORT,...

is the probe, a well-behaved client in its own process: it sends small requests to each broker, again and again, and for
each line on its input it prints, as one line of JSON, what it has measured since the last one.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from controller.broker.settings import address
from controller.cli.main import UsageError
from controller.cli.requirements import Need, zookeeper_server
from controller.cli.values import integer, number, output_folder
from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.protocol.client import CreatableTopic, CreateTopicsRequest, MetadataRequest
from controller.protocol.codec import RequestHeader, encode_request
from controller.protocol.framing import SIZE_BYTES, framed
from controller.protocol.messages import ApiKey
from tests.benchmarks.clusters import Child
from tests.benchmarks.common import add_output, add_zookeeper_jars, note, show
from tests.benchmarks.hostile_attacks import ATTACKS, TOPIC, Attack, AttackClient, Target, scaled

BROKERS = 3
BOUND_MS = 100.0
BOUND_BYTES = 4 * 104_857_600
"""queued.max.request.bytes by default."""
PROBE_LIMIT_S = 60.0
AFTER_S = 0.5
"""How long after an attack the probe goes on to measure: an attack that is over at once has an effect as well."""
CALM_S = 3.0
"""Between two attacks, and how long the probe measures what is quiet before each."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and three brokers on loopback, each with `ulimit -n 1024`. One attack after the other runs"
        " against them, while a probe in a process of its own asks each broker for little every 10 ms. For each attack"
        " the table has the probe's worst latency beside that of the quiet seconds before, how much more memory a"
        " broker used at most, the descriptors it held, and whether the bounds held: 100 ms more than when quiet,"
        " queued.max.request.bytes, and every broker alive."
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="run the attacks whose names contain TEXT"
    )
    parser.add_argument(
        "--scale", type=number(0, 1), default=1.0, metavar="N", help="factor for the number of requests (1)"
    )
    parser.add_argument(
        "--descriptors",
        type=integer(256, 1_000_000),
        default=1024,
        metavar="N",
        help="file descriptor limit of each broker (1024)",
    )
    add_output(parser)
    parser.add_argument(
        "--logs", type=output_folder, metavar="DIR", help="keep the brokers' settings, logs and data in DIR"
    )
    add_zookeeper_jars(parser)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_server(arguments.zookeeper_jars)


def run(arguments: argparse.Namespace) -> int:
    attacks = scaled(ATTACKS, arguments.only)
    if not attacks:
        names = "; ".join(one.name for one in ATTACKS)
        raise UsageError(f"--only {arguments.only[-1]}: expected a substring of one of: {names}")
    cluster = LocalCluster(brokers=BROKERS, zookeeper_jars=arguments.zookeeper_jars, data_dir=arguments.logs)
    try:
        with _descriptors(arguments.descriptors):
            cluster.start()
        rows = list(_rows(cluster, attacks, arguments.scale))
    finally:
        cluster.close()
    found = {"benchmark": "hostile", "descriptors": arguments.descriptors, "scale": arguments.scale, "attacks": rows}
    show(arguments, found, table(rows))
    return 0 if all(row["verdict"] == "held" for row in rows) else 1


@contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """The limit that processes started within have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))  # a broker raises its soft limit to the hard one
    try:
        yield
    finally:
        # Only the superuser may raise the hard limit again: for others the attacks have as many descriptors.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4_096, hard)), hard))


def _rows(cluster: LocalCluster, attacks: list[Attack], scale: float) -> Iterator[dict[str, Any]]:
    target = _target(cluster, scale)
    probe = Child(__name__, cluster.bootstrap_servers, hello=False)
    try:
        time.sleep(CALM_S)
        for attack in attacks:
            probe.ask()
            time.sleep(CALM_S)
            quiet = probe.ask()
            before = {number: resident(broker.pid) for number, broker in cluster.brokers.items()}
            for broker in cluster.brokers.values():
                _forget_peak(broker.pid)
            began_s = time.monotonic()
            try:
                outcome = attack.run(target)
            except OSError as error:
                outcome = f"{type(error).__name__}: {error}"
            time.sleep(AFTER_S)
            measured = probe.ask()
            alive = [number for number, broker in cluster.brokers.items() if broker.running]
            grown = max((peak(cluster.brokers[number].pid) - before[number] for number in alive), default=0)
            row = {
                "attack": attack.name,
                "outcome": outcome,
                "seconds": round(time.monotonic() - began_s, 1),
                "quiet_worst_ms": quiet["worst_ms"],
                "p50_ms": measured["p50_ms"],
                "worst_ms": measured["worst_ms"],
                "grown_mib": round(grown / 2**20, 1),
                "descriptors": max((descriptors(cluster.brokers[number].pid) for number in alive), default=0),
                "verdict": verdict(quiet, measured, grown, len(alive)),
            }
            note(f"{attack.name}: {outcome} ({row['verdict']})")
            yield row
            if len(alive) < BROKERS:
                return
    finally:
        probe.close()


def _target(cluster: LocalCluster, scale: float) -> Target:
    addresses = {number: broker.ready_at() for number, broker in cluster.brokers.items()}
    known = {number: at for number, at in addresses.items() if at is not None}
    controller = ask_metadata(known[1], PROBE_LIMIT_S).controller_id
    client = AttackClient(known[controller])
    client.ask(ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest((CreatableTopic(TOPIC, 1, 3),), 30_000))
    client.close()
    deadline = time.monotonic() + PROBE_LIMIT_S
    while time.monotonic() < deadline:
        topics = {topic.name: topic for topic in ask_metadata(known[1], PROBE_LIMIT_S).topics}
        if TOPIC in topics and topics[TOPIC].partitions[0].leader_id >= 0:
            return Target(known, controller, topics[TOPIC].partitions[0].leader_id, scale)
        time.sleep(0.1)
    raise UsageError(f"topic {TOPIC} has no leader after {PROBE_LIMIT_S:g} s")


def verdict(quiet: dict[str, Any], measured: dict[str, Any], grown: int, alive: int) -> str:
    broken = []
    if alive < BROKERS:
        broken.append("a broker is gone")
    if measured["worst_ms"] is None or measured["worst_ms"] > BOUND_MS + (quiet["worst_ms"] or 0.0):
        broken.append("latency")
    if grown > BOUND_BYTES:
        broken.append("memory")
    return ", ".join(broken) or "held"


def resident(pid: int) -> int:
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'attack':<46}{'quiet':>8}{'p50':>8}{'worst ms':>10}{'MiB more':>10}{'fds':>6}  {'verdict':<9} outcome"]
    for row in rows:
        figures = f"{_shown(row['quiet_worst_ms']):>8}{_shown(row['p50_ms']):>8}{_shown(row['worst_ms']):>10}"
        spent = f"{row['grown_mib']:>10}{row['descriptors']:>6}"
        lines.append(f"{row['attack']:<46}{figures}{spent}  {row['verdict']:<9} {row['outcome']}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


INTERVAL_S = 0.01
ANSWER_LIMIT_S = 120.0


class LatencyProbe:
    """One broker's client. `took_ms`: how long each answer took; one that is due counts with its age."""

    def __init__(self, at: str) -> None:
        self._address = address(at)
        self._frame = framed(encode_request(RequestHeader(ApiKey.METADATA, 9, 1, "probe"), MetadataRequest(())))
        self._lock = threading.Lock()
        self._took_ms: list[float] = []
        self._asked_s: float | None = None
        self._failures = 0

    def run(self) -> None:
        while True:
            try:
                with socket.create_connection(self._address, ANSWER_LIMIT_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while True:
                        self._ask(connection)
                        time.sleep(INTERVAL_S)
            except OSError:
                with self._lock:
                    self._failures += 1
                    self._asked_s = None
                time.sleep(INTERVAL_S)

    def _ask(self, connection: socket.socket) -> None:
        began_s = self._asked_s = time.perf_counter()
        connection.sendall(self._frame)
        size = int.from_bytes(_read(connection, SIZE_BYTES), "big")
        _read(connection, size)
        with self._lock:
            self._took_ms.append((time.perf_counter() - began_s) * 1_000.0)
            self._asked_s = None

    def taken(self) -> tuple[list[float], int]:
        with self._lock:
            took_ms, self._took_ms = self._took_ms, []
            failures, self._failures = self._failures, 0
            if self._asked_s is not None:
                took_ms.append((time.perf_counter() - self._asked_s) * 1_000.0)
        return took_ms, failures


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def probe(addresses: str) -> None:
    probes = [LatencyProbe(at) for at in addresses.split(",")]
    for probe in probes:
        threading.Thread(target=probe.run, daemon=True).start()
    for _ in sys.stdin:
        took_ms: list[float] = []
        failures = 0
        for probe in probes:
            some, failed = probe.taken()
            took_ms += some
            failures += failed
        took_ms.sort()
        found = {
            "requests": len(took_ms),
            "failures": failures,
            "p50_ms": round(took_ms[len(took_ms) // 2], 2) if took_ms else None,
            "worst_ms": round(took_ms[-1], 1) if took_ms else None,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    probe(sys.argv[1])
