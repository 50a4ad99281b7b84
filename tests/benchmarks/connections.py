"""`camerlengo bench connections`: many connections with waiting fetches on one broker, and what they cost.

    python -m tests.benchmarks.connections clients HOST:PORT FIRST
    python -m tests.benchmarks.connections probe HOST:PORT

are its child processes: many clients with non-blocking sockets and one epoll, and the two other clients whose latency
is measured, a producer to another topic and one that asks for metadata. Each command is a line on the input, each
answer a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.broker.settings import Address, address, address_text
from controller.cli.values import integer, output_folder
from controller.hosts.listening import reserved_descriptors
from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.protocol.client import CreatableTopic, CreateTopicsRequest, MetadataRequest
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from controller.protocol.framing import FrameBuffer, framed
from controller.protocol.produce import ACKS_LEADER, ProducePartition, ProduceRequest, ProduceTopic
from controller.storage.batches import Record, encode_batch
from tests.benchmarks.broker import cpu_s
from tests.benchmarks.clusters import Child
from tests.benchmarks.common import CouldNotRun, add_count, add_output, circumstances, markdown, note, put_table, show
from tests.benchmarks.hostile import AttackClient, LatencyProbe, resident

ONE_EACH, SEVERAL_EACH = "connections", "waiting fetches"
"""The tables of runs with one waiting fetch on each connection, and with several."""
PARKED, STEADY = "parked", "steady"
RECORD = b"the record that answers every waiting fetch"
FETCH_VERSION = 11
FETCH_WAIT_MS = 1_800_000
LIMIT_S = 120.0
CHUNK = 100
"""Connections that one process opens at the same time."""
SENT_AT_ONCE = 20
PER_SOURCE = 20_000
"""Connections from one loopback address, of about 28,000 ephemeral ports."""
OTHER_DESCRIPTORS = 200
"""Of a client process or a broker, besides connections."""
SETTLE_S = 2.0

FETCH_BYTES, CONNECTION_BYTES = 2_000, 4_000
ANSWERED_S = 2.0
P99_MS = 50.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and one broker. N clients connect to it from several loopback addresses and each sends"
        " fetches that wait for one byte; then one record is produced, which answers all of them. The table has the"
        " broker's CPU time and resident memory per connection and per waiting fetch, its CPU time while all wait, and"
        " the time from the produce request to the last answer. During each phase a producer to another topic and a"
        " client that asks for metadata send a request every 10 ms; their p50, p99 and worst latency are shown."
    )
    add_count(parser, "--connections", 50_000, "number of connections")
    add_count(parser, "--fetches", 1, "waiting fetches of each connection, sent ahead; a broker takes up 100")
    add_count(parser, "--rate", 3_000, "the most connections opened, and fetches sent, a second")
    parser.add_argument("--sessions", action="store_true", help="ask for a fetch session with each fetch")
    parser.add_argument("--idle", type=integer(1), default=10, metavar="S", help="seconds to wait at rest (10)")
    add_output(parser, page="docs/broker.md", tables=[ONE_EACH, SEVERAL_EACH])
    parser.add_argument(
        "--logs", type=output_folder, metavar="DIR", help="keep the broker's settings, logs and data in DIR"
    )


def run(arguments: argparse.Namespace) -> int:
    load_before = os.getloadavg()[0]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    _require_descriptors(limit, arguments.connections)
    with LocalCluster(brokers=1, data_dir=arguments.logs) as cluster:
        found = _measured(arguments, cluster, limit)
    found["circumstances"] = circumstances(load_before)
    rows = table(found)
    if arguments.page is not None:
        command = f"`camerlengo bench connections --connections {arguments.connections} --fetches {arguments.fetches}`"
        name = ONE_EACH if arguments.fetches == 1 else SEVERAL_EACH
        put_table(arguments.page, name, [f"{command}: {found['circumstances']}", "", *rows])
    show(arguments, found, "\n".join([*rows, found["circumstances"]]))
    return 0 if all(goals(found).values()) else 1


def _require_descriptors(limit: int, connections: int) -> None:
    """Raise CouldNotRun if the broker may not have that many connections, which all are in one process."""
    usable = limit - reserved_descriptors(limit) - OTHER_DESCRIPTORS
    if limit != resource.RLIM_INFINITY and connections > usable:
        raise CouldNotRun(
            f"{connections} connections: expected at most {usable} with a hard limit of {limit} file descriptors"
            " (ulimit -Hn), since one broker process has them all; raise the limit or lower --connections, and use"
            " --fetches for more waiting fetches"
        )


def _measured(arguments: argparse.Namespace, cluster: LocalCluster, limit: int) -> dict[str, Any]:
    broker = cluster.brokers[1]
    at = broker.ready_at()
    assert at is not None
    _create_topics(at)
    children: list[Child] = []
    try:
        probe = Child(__name__, "probe", address_text(at), hello=False)
        children.append(probe)
        clients = []
        for first, count in _shares(arguments.connections, limit - OTHER_DESCRIPTORS):
            child = Child(__name__, "clients", address_text(at), str(first), hello=False)
            children.append(child)
            clients.append((child, count))
        return ConnectionsRun(arguments, broker.pid, at, probe, clients).measured()
    finally:
        for child in children:
            child.close()


def _shares(count: int, each: int) -> Iterator[tuple[int, int]]:
    """Return the first connection and the number of connections of each client process."""
    for first in range(0, count, each):
        yield first, min(each, count - first)


class ConnectionsRun:
    """One run, phase by phase. `phases` has the figures of each."""

    def __init__(
        self, arguments: argparse.Namespace, pid: int, at: Address, probe: Child, clients: Sequence[tuple[Child, int]]
    ) -> None:
        self._arguments = arguments
        self._pid = pid
        self._at = at
        self._probe = probe
        self._clients = clients
        self.phases: dict[str, dict[str, Any]] = {}

    def measured(self) -> dict[str, Any]:
        arguments = self._arguments
        connections, rate = arguments.connections, arguments.rate // len(self._clients) or 1
        fetches = connections * arguments.fetches
        self._probe.ask("start")
        with self._phase("before"):
            time.sleep(SETTLE_S + 1.0)
        with self._phase("connect"):
            self._all(lambda count: f"connect {count} {rate}")
        with self._phase("park"):
            self._all(lambda _: f"park {arguments.fetches} {rate} {int(arguments.sessions)}")
        self._probe.ask("stop")
        with self._phase("idle"):
            time.sleep(arguments.idle)
        self._probe.ask("start")
        time.sleep(SETTLE_S)
        with self._phase("answer", settle=False):
            waiting = [child.send("answers") for child, _ in self._clients]
            began_s = _produce(self._at)
            answers = [answer() for answer in waiting]
        seconds = max(answer["last_s"] for answer in answers) - began_s
        with self._phase("after"):
            time.sleep(SETTLE_S)
        wrong = sum(answer["wrong"] for answer in answers)
        answered = sum(answer["answered"] for answer in answers)
        phases = self.phases
        return {
            "benchmark": "connections",
            "connections": connections,
            "fetches": fetches,
            "sessions": arguments.sessions,
            "client_processes": len(self._clients),
            "rate": arguments.rate,
            "connection_bytes": round(phases["connect"]["grown"] / connections),
            "connection_us": round(self._cpu_us("connect") / connections, 1),
            "fetch_bytes": round(phases["park"]["grown"] / fetches),
            "fetch_us": round(self._cpu_us("park") / fetches, 1),
            "idle_cpu_percent": round(100.0 * phases["idle"]["cpu_s"] / phases["idle"]["seconds"], 2),
            "answered": answered,
            "wrong": wrong,
            "answered_s": round(seconds, 3),
            "answer_us": round(self._cpu_us("answer") / fetches, 1),
            "phases": phases,
        }

    def _all(self, command: Callable[[int], str]) -> None:
        waiting = [child.send(command(count)) for child, count in self._clients]
        for answer in waiting:
            answer()

    @contextmanager
    def _phase(self, name: str, *, settle: bool = True) -> Iterator[None]:
        """Measure a phase. Resident memory is that after the broker has settled."""
        self._probe.ask("take")
        resident_before, cpu_before_s, began_s = resident(self._pid), cpu_s(self._pid), time.monotonic()
        queued_before_s = queued_s(self._pid)
        yield
        if settle:
            time.sleep(SETTLE_S / 2)
        self.phases[name] = {
            "seconds": time.monotonic() - began_s,
            "cpu_s": cpu_s(self._pid) - cpu_before_s,
            "queued_s": queued_s(self._pid) - queued_before_s,
            "resident": resident(self._pid),
            "grown": resident(self._pid) - resident_before,
            "probe": self._probe.ask("take"),
        }
        note(f"{name}: {json.dumps(self.phases[name])}")

    def _cpu_us(self, name: str) -> float:
        """Return the CPU time of a phase without that of the probe's requests, as measured before."""
        before, phase = self.phases["before"], self.phases[name]
        extra = phase["cpu_s"] - before["cpu_s"] / before["seconds"] * phase["seconds"]
        return float(max(extra, 0.0) * 1e6)


def queued_s(pid: int) -> float:
    """Return how long the threads of a process have waited for a core that others had."""
    return sum(int(one.read_text().split()[1]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def goals(found: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether each bound held."""
    return {
        "connection_bytes": found["connection_bytes"] <= CONNECTION_BYTES,
        "fetch_bytes": found["fetch_bytes"] <= FETCH_BYTES,
        "answered": found["answered"] == found["fetches"] and not found["wrong"],
        "answered_s": found["answered_s"] <= ANSWERED_S,
        "p99": all(
            client["p99_ms"] is not None and client["p99_ms"] < P99_MS
            for phase in found["phases"].values()
            for client in phase["probe"].values()
            if client["requests"] or client["failures"]
        ),
    }


def table(found: Mapping[str, Any]) -> list[str]:
    held = goals(found)
    fetches, connections = f"{found['fetches']:,}", f"{found['connections']:,}"
    rows = [
        ["connections", connections, "", ""],
        ["waiting fetches", fetches, "", ""],
        _goal("memory of a connection", f"{found['connection_bytes']:,} B", "4,000 B", held["connection_bytes"]),
        ["CPU time of a connection", f"{found['connection_us']:g} us", "", ""],
        _goal("memory of a waiting fetch", f"{found['fetch_bytes']:,} B", "2,000 B", held["fetch_bytes"]),
        ["CPU time of a waiting fetch until it waits", f"{found['fetch_us']:g} us", "", ""],
        ["CPU while all wait", f"{found['idle_cpu_percent']:g} % of a core", "", ""],
        _goal("answered with the record", f"{found['answered'] - found['wrong']:,}", fetches, held["answered"]),
        _goal("from the produce to the last answer", f"{found['answered_s']:.2f} s", "2 s", held["answered_s"]),
        ["CPU time of an answer", f"{found['answer_us']:g} us", "", ""],
        ["the broker's wait for a core meanwhile", f"{found['phases']['answer']['queued_s']:.2f} s", "", ""],
    ]
    for name, title in (
        ("before", "before the first connection"),
        ("connect", "while they connect"),
        ("park", "while the fetches arrive"),
        ("answer", "while all are answered"),
    ):
        for client, one in found["phases"][name]["probe"].items():
            shown = " / ".join(
                "-" if one[key] is None else f"{one[key]:.1f}" for key in ("p50_ms", "p99_ms", "worst_ms")
            )
            ok = one["p99_ms"] is not None and one["p99_ms"] < P99_MS
            rows.append(_goal(f"{client}, {title}: p50 / p99 / worst", f"{shown} ms", "p99 50 ms", ok))
    return markdown(["figure", "measured", "bound", "held"], rows)


def _goal(name: str, value: str, bound: str, held: bool) -> list[str]:
    return [name, value, bound, "yes" if held else "no"]


def _create_topics(at: Address) -> None:
    client = AttackClient(at)
    topics = (CreatableTopic(PARKED, 1, 1), CreatableTopic(STEADY, 1, 1))
    client.ask(ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest(topics, 30_000))
    client.close()
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        led = [topic for topic in ask_metadata(at, LIMIT_S).topics if topic.partitions[0].leader_id >= 0]
        if len(led) == len(topics):
            time.sleep(1.0)  # the leader's own request may be a moment behind the metadata
            return
        time.sleep(0.1)
    raise CouldNotRun(f"topics {PARKED} and {STEADY} have no leader after {LIMIT_S:g} s")


def produce_request(topic: str, value: bytes) -> ProduceRequest:
    batch = encode_batch([Record(0, int(time.time() * 1_000), None, value)])
    return ProduceRequest(ACKS_LEADER, 30_000, (ProduceTopic(topic, (ProducePartition(0, batch),)),))


def _produce(at: Address) -> float:
    """Produce the one record. Return when its request was sent, as time.monotonic() counts."""
    client = AttackClient(at)
    request = produce_request(PARKED, RECORD)
    time.sleep(0.2)
    began_s = time.monotonic()
    client.ask(ApiKey.PRODUCE, 7, request)
    client.close()
    return began_s


# -- the many clients


class ManyClients:
    """`first`: the number of the first connection, among those of all client processes."""

    def __init__(self, at: Address, first: int) -> None:
        self._at = at
        self._first = first
        self._sockets: list[socket.socket] = []
        self._due = 0

    def connect(self, count: int, rate: int) -> dict[str, Any]:
        """Open `count` connections, `rate` a second."""
        began_s = time.monotonic()
        for start in range(0, count, CHUNK):
            some = [self._begun(self._first + number) for number in range(start, min(start + CHUNK, count))]
            ready = select.epoll()
            for one in some:
                ready.register(one, select.EPOLLOUT)
            left = len(some)
            while left:
                events = ready.poll(LIMIT_S)
                if not events:
                    raise TimeoutError(f"{left} connections were not accepted in {LIMIT_S:g} s")
                for descriptor, _ in events:
                    ready.unregister(descriptor)
                left -= len(events)
            ready.close()
            for one in some:
                if error := one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, os.strerror(error))
            self._sockets += some
            began_s = _wait(began_s, len(some), rate)
        return {"connected": len(self._sockets)}

    def _begun(self, number: int) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.SOL_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        made.bind((f"127.0.0.{2 + number // PER_SOURCE}", 0))
        made.connect_ex(self._at)
        return made

    def park(self, fetches: int, rate: int, sessions: int) -> dict[str, Any]:
        """Send `fetches` requests on each connection, `rate` a second over all connections."""
        frames = [self._fetch(number, epoch=0 if sessions else -1) for number in range(fetches)]
        self._due = len(self._sockets) * fetches
        began_s = time.monotonic()
        sent = 0
        for frame in frames:
            for one in self._sockets:
                one.sendall(frame)
                sent += 1
                if sent % SENT_AT_ONCE == 0:
                    began_s = _wait(began_s, SENT_AT_ONCE, rate)
        return {"sent": sent}

    @staticmethod
    def _fetch(number: int, epoch: int) -> bytes:
        request = FetchRequest(
            FETCH_WAIT_MS,
            1,
            (FetchTopic(PARKED, (FetchPartition(0, 0, 1_048_576),)),),
            max_bytes=52_428_800,
            session_epoch=epoch,
        )
        return framed(encode_request(RequestHeader(ApiKey.FETCH, FETCH_VERSION, number, "consumer"), request))

    def answers(self) -> dict[str, Any]:
        """Receive the answer of each request, and count those that are not in order or lack the record."""
        ready = select.epoll()
        by_descriptor = {one.fileno(): [one, FrameBuffer(), 0] for one in self._sockets}
        for descriptor in by_descriptor:
            ready.register(descriptor, select.EPOLLIN)
        answered = wrong = 0
        last_s = time.monotonic()
        while answered < self._due:
            events = ready.poll(LIMIT_S)
            if not events:
                break
            for descriptor, _ in events:
                entry: Any = by_descriptor[descriptor]
                data = entry[0].recv(65_536)
                if not data:
                    ready.unregister(descriptor)
                    continue
                for frame in entry[1].feed(data):
                    answered += 1
                    wrong += RECORD not in frame or int.from_bytes(frame[:4], "big") != entry[2]
                    entry[2] += 1
                    sample = frame
            last_s = time.monotonic()
        ready.close()
        if answered:
            response = decode_response(ApiKey.FETCH, FETCH_VERSION, sample)[1]
            assert isinstance(response, FetchResponse)
            assert response.responses[0].partitions[0].error_code == ErrorCode.NONE, response
        return {"answered": answered, "wrong": wrong, "last_s": last_s}


def _wait(began_s: float, count: int, rate: int) -> float:
    """Wait so that `count` since `began_s` are at most `rate` a second, and return the time. What was late is not made
    up for: it would come all at once."""
    left_s = began_s + count / rate - time.monotonic()
    if left_s > 0.0:
        time.sleep(left_s)
    return time.monotonic()


def clients(at: str, first: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    many = ManyClients(address(at), int(first))
    for line in sys.stdin:
        name, *words = line.split()
        _print(getattr(many, name)(*map(int, words)))


# -- the two others


class SteadyProbe(LatencyProbe):
    """Asks with one request again and again. `running` is cleared while the broker is to be idle."""

    def __init__(self, at: str, frame: bytes, running: threading.Event) -> None:
        super().__init__(at)
        self._frame = frame
        self._running = running

    def _ask(self, connection: socket.socket) -> None:
        self._running.wait()
        super()._ask(connection)

    def figures(self) -> dict[str, Any]:
        took_ms, failures = self.taken()
        took_ms.sort()
        return {
            "requests": len(took_ms),
            "failures": failures,
            "p50_ms": round(took_ms[len(took_ms) // 2], 2) if took_ms else None,
            "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 2) if took_ms else None,
            "worst_ms": round(took_ms[-1], 1) if took_ms else None,
        }


def probe(at: str) -> None:
    running = threading.Event()
    ask = framed(encode_request(RequestHeader(ApiKey.METADATA, 9, 1, "probe"), MetadataRequest(())))
    write = framed(encode_request(RequestHeader(ApiKey.PRODUCE, 7, 1, "probe"), produce_request(STEADY, b"steady")))
    probes = {"producer": SteadyProbe(at, write, running), "metadata": SteadyProbe(at, ask, running)}
    for one in probes.values():
        threading.Thread(target=one.run, daemon=True).start()
    for line in sys.stdin:
        if line.strip() == "start":
            running.set()
        elif line.strip() == "stop":
            running.clear()
        _print({name: one.figures() for name, one in probes.items()})


def _print(found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "clients":
        clients(*sys.argv[2:])
    else:
        probe(*sys.argv[2:])
