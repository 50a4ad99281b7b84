"""`camerlengo bench broker`: throughput, latency and CPU time of three broker processes, with confluent-kafka.

Each run has a topic of its own and a client in a fresh process (`broker_worker`).
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, cast

from controller.cli.requirements import CLIENTS, Need
from controller.cli.values import number, number_from
from controller.hosts.local_cluster import LocalCluster
from tests.benchmarks.common import ROOT, add_count, add_output, aligned, integers, run_worker, show, spread

WORKER = "tests.benchmarks.broker_worker"
PARTITIONS = 3
BROKERS = 3
READY_LIMIT_S = 60.0
SETTINGS = {
    "log.segment.delete.delay.ms": "1000",  # a run's records make room for the next run's
    "min.insync.replicas": "2",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """The replication of a topic, and the acks of its producer."""

    replication_factor: int
    acks: str

    def __str__(self) -> str:
        return f"RF {self.replication_factor} acks={self.acks}"


@dataclass(frozen=True, slots=True)
class Work:
    """What one client's process did. `cpu_s` is that of all brokers together while it ran, `client_cpu_s` the client's
    while it worked."""

    seconds: float
    requests: int
    cpu_s: float
    client_cpu_s: float
    latency_ms: tuple[float, ...] = ()


class BrokerBench:
    """Over a cluster that runs."""

    def __init__(self, cluster: LocalCluster) -> None:
        from confluent_kafka.admin import AdminClient

        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        self._topics = 0

    @contextmanager
    def topic(self, setup: Setup) -> Iterator[str]:
        """A new one, in sync on all of its replicas; deleted at the end."""
        from confluent_kafka.admin import NewTopic

        self._topics += 1
        name = f"bench-{self._topics}"
        config = {"min.insync.replicas": str(min(setup.replication_factor, 2))}
        made = NewTopic(name, PARTITIONS, setup.replication_factor, config=config)
        self._admin.create_topics([made])[name].result(READY_LIMIT_S)
        self._await_leaders(name, setup.replication_factor)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(READY_LIMIT_S)

    def _await_leaders(self, topic: str, replicas: int) -> None:
        until_s = time.monotonic() + READY_LIMIT_S
        while True:
            partitions = self._admin.list_topics(topic, READY_LIMIT_S).topics[topic].partitions.values()
            if len(partitions) == PARTITIONS and all(
                one.leader >= 0 and len(one.isrs) == replicas for one in partitions
            ):
                return
            if time.monotonic() > until_s:
                raise RuntimeError(f"{topic} had not all its leaders and replicas in {READY_LIMIT_S:g} s")
            time.sleep(0.05)

    def work(self, kind: str, **given: Any) -> Work:
        """One client's process. Raises CalledProcessError, with what it said on its standard error shown."""
        before_s = self.cpu_s()
        answer = run_worker(WORKER, *self.words(kind, given))
        spent_s = self.cpu_s() - before_s
        latency_ms = tuple(answer.get("latency_ms", ()))
        return Work(answer["seconds"], int(answer["requests"]), spent_s, answer["client_cpu_s"], latency_ms)

    def words(self, kind: str, given: Mapping[str, Any]) -> list[str]:
        return [kind, json.dumps({"servers": self._cluster.bootstrap_servers, "partitions": PARTITIONS, **given})]

    def settled_s(self) -> float:
        """Wait until the brokers have nothing more to do. Return since when; RuntimeError."""
        until_s = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < until_s:
            at_s, before_s = time.perf_counter(), self.cpu_s()
            time.sleep(LOOK_S)
            if self.cpu_s() - before_s <= LOOK_S / 10:
                return at_s
        raise RuntimeError(f"brokers without a client were not idle in {READY_LIMIT_S:g} s")

    def cpu_s(self) -> float:
        return sum(cpu_s(broker.pid) for broker in self._cluster.brokers.values())


TURN_S, LOOK_S = 0.25, 0.005
"""Short, since what a shared machine gives changes within seconds."""


class _Client(AbstractContextManager["_Client"]):
    """One client's process, ready to begin, which is stopped but for its turns. It ends with the context."""

    def __init__(self, bench: BrokerBench, kind: str, given: dict[str, Any]) -> None:
        command = [sys.executable, "-m", WORKER, *bench.words(kind, given), "in-turns"]
        pipe = subprocess.PIPE
        self._process = cast("Any", subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, cwd=ROOT))
        self._await_line()
        self._stop()
        self._process.stdin.write(b"\n")
        self._bench, self._took_s, self._cpu_s = bench, 0.0, -bench.cpu_s()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _await_line(self) -> None:
        if not self._process.stdout.readline():
            raise subprocess.CalledProcessError(self._process.wait(), self._process.args)

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def turn(self) -> bool:
        """Returns whether there is more to do."""
        began_s = time.perf_counter()
        self._process.send_signal(signal.SIGCONT)
        ended, _, _ = select.select([self._process.stdout], [], [], TURN_S)
        self._stop()
        self._took_s += self._bench.settled_s() - began_s
        if ended:
            self._await_line()
            self._cpu_s += self._bench.cpu_s()
        return not ended

    def work(self) -> Work:
        self._process.send_signal(signal.SIGCONT)
        answer = json.loads(self._process.communicate(b"\n")[0])
        return Work(self._took_s, int(answer["requests"]), self._cpu_s, answer["client_cpu_s"])


def cpu_s(pid: int) -> float:
    """A process's own and the system's time for it, so far, by Linux's clock of the process (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


SETUPS = tuple(Setup(replicas, acks) for replicas in (1, 3) for acks in ("1", "all"))
PERCENTILES = (50, 99, 99.9)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and three brokers on loopback. For each replication factor and acks, a client in a fresh"
        " process produces to a topic of three partitions and another consumes it, as fast as they go; then one"
        " produces at a steady rate, one record a request, and takes the time to each acknowledgement. The brokers'"
        " CPU is that of all three, replication included. Needs confluent-kafka."
    )
    parser.add_argument(
        "--sizes", type=integers(), default=(100, 1024), metavar="N,...", help="record sizes (100,1024)"
    )
    parser.add_argument("--megabytes", type=number(), default=100.0, metavar="N", help="MB produced in each run (100)")
    add_count(parser, "--runs", 3, "number of runs; the output has medians")
    add_count(parser, "--rate", 500, "records per second of the latency runs")
    parser.add_argument(
        "--seconds", type=number_from(), default=10.0, metavar="S", help="duration of each latency run (10; 0: none)"
    )
    parser.add_argument(
        "--against",
        type=_tree,
        metavar="TREE",
        help="another source tree: compare its brokers' throughput and CPU with these, each pair of runs in turn",
    )
    add_output(parser)


def _tree(text: str) -> Path:
    if not (Path(text) / "controller" / "cli").is_dir():
        raise argparse.ArgumentTypeError(f"expected a directory with controller/cli, got {text}")
    return Path(text)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return CLIENTS


def run(arguments: argparse.Namespace) -> int:
    if arguments.against is not None:
        return run_against(arguments)
    cluster = LocalCluster(brokers=BROKERS, settings=SETTINGS)
    with cluster:
        bench = BrokerBench(cluster)
        throughput = [throughput_row(bench, setup, size, arguments) for size in arguments.sizes for setup in SETUPS]
        latency = [latency_row(bench, setup, arguments) for setup in SETUPS] if arguments.seconds else []
    found = {"benchmark": "broker", "partitions": PARTITIONS, "throughput": throughput, "latency": latency}
    show(arguments, found, table(found))
    return 0


COMPARED = ("CPU a record", "CPU a request", "time")
Pair: TypeAlias = list[tuple[Work, Work]]


def run_against(arguments: argparse.Namespace) -> int:
    """Compare the brokers of the working directory with another tree's. Each run has new processes of both, since what
    a process gets of the machine's memory makes a difference that stays."""
    trees, rows = (Path(), arguments.against), tuple(product(arguments.sizes, SETUPS))
    pairs: dict[tuple[int, Setup], list[Pair]] = {row: [] for row in rows}
    for count in range(arguments.runs):
        order = -1 if count % 2 else 1
        with ExitStack() as stack:
            benches = [stack.enter_context(_bench_of(tree)) for tree in trees[::order]]
            for size, setup in rows:
                records = max(int(arguments.megabytes * 1e6 / size), PARTITIONS)
                pairs[size, setup].append(in_turns(benches, setup, size, records)[::order])
    found = [{"setup": str(setup), "size": size} | ratios(pairs[size, setup]) for size, setup in rows]
    lines = [["", "size", *COMPARED]]
    for row in found:
        compared = ("{median:.2f} ({min:.2f} to {max:.2f})".format(**row[name]) for name in COMPARED)
        lines.append([row["setup"], str(row["size"]), *compared])
    show(arguments, {"benchmark": "broker", "pairs": arguments.runs, "ratios": found}, aligned(lines))
    return 0


@contextmanager
def _bench_of(tree: Path) -> Iterator[BrokerBench]:
    with ExitStack() as stack:
        with chdir(tree):  # a broker's process finds the packages in its directory first
            cluster = stack.enter_context(LocalCluster(brokers=BROKERS, settings=SETTINGS))
        bench = BrokerBench(cluster)
        in_turns([bench], SETUPS[0], 1, PARTITIONS)  # the first consumer creates the topic of groups' offsets
        yield bench


def in_turns(benches: Sequence[BrokerBench], setup: Setup, size: int, records: int) -> Pair:
    """What the producer and the consumer of each did, each client in turn with those of the others."""

    def work(kind: str, **given: object) -> list[Work]:
        with ExitStack() as stack:
            at_work = clients = [
                stack.enter_context(_Client(bench, kind, given | {"topic": topic, "records": records}))
                for bench, topic in zip(benches, topics, strict=True)
            ]
            while at_work:
                at_work = [client for client in at_work if client.turn()]
            return [client.work() for client in clients]

    with ExitStack() as topics_kept:
        topics = [topics_kept.enter_context(bench.topic(setup)) for bench in benches]
        return list(zip(work("produce", acks=setup.acks, size=size), work("consume"), strict=True))


def ratios(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians of the first tree's CPU and time over the other's, of producing and consuming together: with acks=1
    followers may still fetch what was produced while it is consumed, and the sooner they do the less is left. The CPU a
    request says what a broker does; how many records a client puts into one depends on when it is woken, too."""

    def both(works: tuple[Work, Work]) -> tuple[float, ...]:
        cpu_s, requests = sum(work.cpu_s for work in works), sum(work.requests for work in works)
        return cpu_s, cpu_s / max(requests, 1), sum(work.seconds for work in works)

    compared = [[own / other for own, other in zip(both(one), both(two), strict=True)] for one, two in pairs]
    return dict(zip(COMPARED, [spread(each, 2) for each in zip(*compared, strict=True)], strict=True))


def throughput_row(bench: BrokerBench, setup: Setup, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    records = max(int(arguments.megabytes * 1e6 / size), PARTITIONS)
    produced, consumed = zip(*(in_turns([bench], setup, size, records)[0] for _ in range(arguments.runs)), strict=True)
    return {
        "replication_factor": setup.replication_factor,
        "acks": setup.acks,
        "size": size,
        "records": records,
        "produce": figures(produced, records),
        "consume": figures(consumed, records),
    }


def figures(runs: Sequence[Work], records: int) -> dict[str, Any]:
    """Medians, with the least and the most of the rates."""
    rates = [records / work.seconds for work in runs]
    return {
        "records_per_s": spread(rates, None),
        "cpu_us_a_record": round(statistics.median(work.cpu_s * 1e6 / records for work in runs), 3),
        "client_cpu_us_a_record": round(statistics.median(work.client_cpu_s * 1e6 / records for work in runs), 3),
        "cpu_us_a_request": round(statistics.median(work.cpu_s * 1e6 / max(work.requests, 1) for work in runs), 1),
        "records_a_request": round(statistics.median(records / max(work.requests, 1) for work in runs), 1),
    }


LATENCY_BYTES = 1024


def latency_row(bench: BrokerBench, setup: Setup, arguments: argparse.Namespace) -> dict[str, Any]:
    records = max(int(arguments.rate * arguments.seconds), 1)
    with bench.topic(setup) as topic:
        work = bench.work(
            "latency", topic=topic, acks=setup.acks, records=records, size=LATENCY_BYTES, per_second=arguments.rate
        )
    return {
        "replication_factor": setup.replication_factor,
        "acks": setup.acks,
        "size": LATENCY_BYTES,
        "records": records,
        "records_per_s": arguments.rate,
        "latency_ms": {f"p{percent:g}": percentile(work.latency_ms, percent) for percent in PERCENTILES}
        | {"max": round(max(work.latency_ms), 2)},
        "cpu_us_a_request": round(work.cpu_s * 1e6 / max(work.requests, 1), 1),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many per cent of all are not above."""
    ordered = sorted(values)
    index = max(-(-len(ordered) * percent // 100), 1) - 1
    return round(ordered[int(index)], 2)


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{BROKERS} brokers, {found['partitions']} partitions; CPU us a record: of all brokers, of the client;"
        " a request: of all brokers",
        f"{'':<16}{'size':>6}{'produced/s':>12}{'brokers':>9}{'client':>8}{'a request':>11}"
        f"{'consumed/s':>12}{'brokers':>9}{'client':>8}{'a request':>11}",
    ]
    for row in found["throughput"]:
        name = str(Setup(row["replication_factor"], row["acks"]))
        sides = "".join(
            f"{side['records_per_s']['median']:>12,}{side['cpu_us_a_record']:>9.2f}"
            f"{side['client_cpu_us_a_record']:>8.2f}{side['cpu_us_a_request']:>11.0f}"
            for side in (row["produce"], row["consume"])
        )
        lines.append(f"{name:<16}{row['size']:>6}{sides}")
    if found["latency"]:
        first = found["latency"][0]
        lines.append(f"produce latency at {first['records_per_s']} records/s of {first['size']} bytes, ms")
        lines.append(f"{'':<16}{'p50':>8}{'p99':>8}{'p99.9':>8}{'max':>8}{'us/request':>12}")
    for row in found["latency"]:
        name = str(Setup(row["replication_factor"], row["acks"]))
        shown = "".join(f"{value:>8.1f}" for value in row["latency_ms"].values())
        lines.append(f"{name:<16}{shown}{row['cpu_us_a_request']:>12.0f}")
    return "\n".join(lines)
