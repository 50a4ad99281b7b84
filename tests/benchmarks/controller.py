"""`camerlengo bench controller`: time and CPU of a controller over many partitions, on Apache ZooKeeper, with brokers
that acknowledge at once: a failover, a lost broker, a controlled shutdown, and an election in columns.

This process is the controller before: it holds /controller, so that it can give it up, and puts back what a run
changed. The standby's and ZooKeeper's CPU time are read from outside (see `controller_worker`). The election in columns
has no ZooKeeper and no broker: the rule alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from controller.cli.requirements import Need
from controller.cli.zookeeper_options import add_zookeeper_options, zookeeper_needs
from controller.core.leadership import Won, elect
from controller.hosts.network import RealClock
from controller.zookeeper import blocking, paths
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    ControllerZnode,
    decode_controller_epoch,
    decode_partition_state,
    encode_controller,
    encode_controller_epoch,
)
from controller.zookeeper.embedded import EmbeddedZooKeeper, ZooKeeperKind
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from statemachines.leader_election_columns import elect_offline_columns, live_mask
from tests.benchmarks.clusters import (
    Child,
    TreeSize,
    client_of,
    first_state,
    registrations,
    write_partitions,
    zookeeper,
)
from tests.benchmarks.common import (
    Line,
    Panel,
    add_count,
    add_output,
    aligned,
    circumstances,
    integers,
    markdown,
    note,
    plots_needed,
    put_table,
    save,
    show,
    subset,
)

MOST_PARTITIONS = 1_000_000
REPLICAS = 3
ELECTION_BROKERS = 1_000
SEED = 1


@dataclass(frozen=True, slots=True)
class ElectionTime:
    """What one run took, by the clock and of the processor."""

    ms: float
    cpu_ms: float


def elect_in_columns(partitions: int, runs: int) -> tuple[ElectionTime, ...]:
    """What each run took: who of `partitions` of three replicas leads now that every second of a thousand
    brokers is dead, liveness of each replica and the new ISR included. A first run is made and not counted."""
    random = np.random.default_rng(SEED)
    first = random.integers(0, ELECTION_BROKERS, size=(partitions, 1), dtype=np.int32)
    steps = np.cumsum(
        random.integers(1, ELECTION_BROKERS // REPLICAS, size=(partitions, REPLICAS - 1), dtype=np.int32), axis=1
    )
    assignment = np.concatenate((first, (first + steps) % ELECTION_BROKERS), axis=1).astype(np.int32)
    isr = assignment.copy()
    alive = tuple(range(0, ELECTION_BROKERS, 2))
    times = []
    for _ in range(runs + 1):
        began, cpu_began = time.perf_counter(), time.thread_time()
        live = live_mask(assignment, alive)
        elected = elect_offline_columns(assignment, isr, live, isr_live=live)
        ended, cpu_ended = time.perf_counter(), time.thread_time()
        times.append(ElectionTime((ended - began) * 1_000.0, (cpu_ended - cpu_began) * 1_000.0))
    led = elected.leader[elected.elected]
    assert not (led % 2).any(), "a dead broker was elected"
    assert np.array_equal(elected.elected, live.any(axis=1)), "a partition with a live replica has no leader"
    return tuple(times[1:])


LIMIT_S = 600.0
SESSION_TIMEOUT_MS = 60_000
YOUNG_MB = 256
FORMER = 9_999
"""The broker id under which this process is the controller."""


class WrongOutcome(RuntimeError):
    """The cluster is not as it should be after a run: its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor time in ms, of all threads of the process."""

    controller_ms: float
    zookeeper_ms: float


@dataclass(frozen=True, slots=True)
class FailoverTime:
    """`total_ms`: from the request that deletes /controller to the failover's end; `told_ms`: to the last answer of a
    broker. `phases`: (name, ms) in their order, election first. `peak_mb`: of the controller's process, so far."""

    total_ms: float
    told_ms: float
    phases: tuple[tuple[str, float], ...]
    cpu: Cpu
    peak_mb: float


@dataclass(frozen=True, slots=True)
class BrokerLossTime:
    """From the request that deletes the registration to the last new leader that ZooKeeper acknowledged, to the last
    ISR that shrank, and to the last answer of a broker."""

    led_ms: float
    shrunk_ms: float
    told_ms: float
    cpu: Cpu


@dataclass(frozen=True, slots=True)
class ShutdownTime:
    """From the request to its answer, which is that nothing remains, and to the last answer of a broker."""

    succeeded_ms: float
    told_ms: float
    cpu: Cpu


def process_cpu_ms(pid: int) -> float:
    """What a process has used so far: Linux's clock of another process (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2) * 1_000.0


class ControllerBench:
    """A cluster of one size, with its processes. Made by `bench`."""

    def __init__(self, server: EmbeddedZooKeeper, size: TreeSize, clock: RealClock, brokers: Child) -> None:
        pid = server.servers[0].pid
        assert pid is not None
        self.size = size
        self._zookeeper_pid = pid
        self._ports = {int(broker): port for broker, port in brokers.hello.items()}
        self._client = client_of(server.connect_string, clock, SESSION_TIMEOUT_MS)
        blocking.wait(self._client.start(), LIMIT_S)
        blocking.run(BrokerWrites(self._client).ensure_persistent_paths(), LIMIT_S)
        outcome = blocking.run(elect(self._client, FORMER, clock), LIMIT_S)
        assert isinstance(outcome, Won), outcome
        self._leadership: Leadership = outcome.leadership
        blocking.run(self._client.create_rows(self._leadership, registrations(self._ports)), LIMIT_S)
        write_partitions(self._client, self._leadership, size)
        self._standby = Child("tests.benchmarks.controller_worker", "controller", server.connect_string)

    def close(self) -> None:
        self._standby.close()
        blocking.wait(self._client.close(), LIMIT_S)

    # -- what is measured

    def fail_over(self) -> FailoverTime:
        """This process gives up /controller; the standby takes over, and this process takes it back."""
        before = self._cpu()
        began_ms = time.monotonic() * 1_000.0
        blocking.wait(self._client.commit_election([Delete(paths.CONTROLLER, ANY_VERSION)]), LIMIT_S)
        found = self._standby.ask("failover")
        cpu = self._since(before)
        if found["partitions"] != self.size.partitions:
            raise WrongOutcome(f"a failover over {found['partitions']} partitions, of {self.size.partitions}")
        total_ms = found["ended_ms"] - began_ms
        phases = [("election", total_ms - found["duration_ms"]), *((name, ms) for name, ms, _ in found["phases"])]
        return FailoverTime(total_ms, found["answered_ms"] - began_ms, tuple(phases), cpu, found["peak_mb"])

    def lose_broker(self, broker: int) -> BrokerLossTime:
        """The standby leads already. Leaves the broker gone and the states as they have become."""
        before = self._cpu()
        waiting = self._standby.send("gone")
        began_ms = time.monotonic() * 1_000.0
        blocking.wait(self._client.commit_election([Delete(paths.broker(broker), ANY_VERSION)]), LIMIT_S)
        found = waiting()
        cpu = self._since(before)
        self.require_led_without(broker)
        ends = [at_ms - began_ms for at_ms, _ in found["writes"]]
        return BrokerLossTime(ends[0], ends[-1], found["answered_ms"] - began_ms, cpu)

    def shut_down_broker(self, broker: int) -> ShutdownTime:
        """The standby leads already. Leaves the states as they have become."""
        before = self._cpu()
        found = self._standby.ask(f"shutdown {broker}")
        cpu = self._since(before)
        if found["error"] or found["remaining"]:
            raise WrongOutcome(f"error {found['error']}, {found['remaining']} partitions remain")
        self.require_led_without(broker)
        asked_ms = found["asked_ms"]
        return ShutdownTime(found["succeeded_ms"] - asked_ms, found["answered_ms"] - asked_ms, cpu)

    # -- around it

    def take_back(self) -> None:
        """This process is the controller again, and the standby stands by."""
        [epoch] = blocking.run(_read(self._client, [paths.CONTROLLER_EPOCH]), LIMIT_S)
        next_epoch = decode_controller_epoch(epoch.path, epoch.data) + 1
        mine: list[Write] = [
            Delete(paths.CONTROLLER, ANY_VERSION),
            Create(paths.CONTROLLER, encode_controller(ControllerZnode(FORMER, 0)), ephemeral=True),
            SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(next_epoch), epoch.stat.version),
        ]
        blocking.wait(self._client.commit_election(mine), LIMIT_S)
        self._leadership = Leadership(self._client.session(), next_epoch, epoch.stat.version + 1)
        self._standby.ask("standby")

    def put_back(self) -> None:
        """Registrations that are gone, and every state as it was at first. This process is the controller."""
        wanted = registrations(self._ports)
        rows = blocking.wait(self._client.read([row.path for row in wanted]), LIMIT_S).rows
        gone = [row for row, found in zip(wanted, rows, strict=True) if found is None]
        if gone:
            blocking.run(self._client.create_rows(self._leadership, gone), LIMIT_S)
        states = self._states()
        writes = [
            SetData(row.path, first_state(replicas), row.stat.version)
            for row, replicas in zip(states, self._assignments(), strict=True)
        ]
        blocking.run(self._client.commit_rows(self._leadership, writes), LIMIT_S)

    def _assignments(self) -> Iterator[tuple[int, ...]]:
        for topic in range(self.size.topics):
            for partition in range(self.size.partitions_of(topic)):
                yield self.size.replicas(topic, partition)

    def _states(self) -> Sequence[Any]:
        return blocking.run(_read(self._client, [paths.partition_state(*name) for name in self.size.names()]), LIMIT_S)

    def require_led_without(self, broker: int) -> None:
        """Every partition has a leader that is in its ISR, and `broker` is in none."""
        for row in self._states():
            state = decode_partition_state(row.path, row.data)
            if state.leader < 0 or broker in state.isr or state.leader not in state.isr:
                raise WrongOutcome(f"{row.path} holds {state}, and broker {broker} is gone")

    def _cpu(self) -> Cpu:
        return Cpu(process_cpu_ms(self._standby.pid), process_cpu_ms(self._zookeeper_pid))

    def _since(self, before: Cpu) -> Cpu:
        now = self._cpu()
        return Cpu(now.controller_ms - before.controller_ms, now.zookeeper_ms - before.zookeeper_ms)


async def _read(client: ZooKeeperClient, wanted: Sequence[str]) -> list[Any]:
    rows = (await client.read(wanted)).rows
    missing = [path for path, row in zip(wanted, rows, strict=True) if row is None]
    if missing:
        raise WrongOutcome(f"{missing[0]} is not there")
    return list(rows)


@contextmanager
def bench(
    size: TreeSize, heap_mb: int | None = None, *, kind: ZooKeeperKind = "java", jars: Path | None = None
) -> Iterator[ControllerBench]:
    """A cluster with its ZooKeeper (fsync on, in a folder of its own that goes with it). `heap_mb`: of its JVM, all of
    it taken at once; None: as Java chooses. EmbeddedServerUnavailable."""
    # A small room for the young: the tree leaves it while it is written, and not, all at once, in a run.
    options = () if heap_mb is None else (f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-Xmn{min(YOUNG_MB, heap_mb // 2)}m")
    with zookeeper(kind, jars, options) as (server, clock):
        brokers = Child("tests.benchmarks.controller_worker", "brokers", str(size.brokers))
        try:
            made = ControllerBench(server, size, clock, brokers)
            try:
                yield made
            finally:
                made.close()
        finally:
            brokers.close()


T = TypeVar("T")

KAFKA_MS = {10_000: 1_400.0, 50_000: 5_400.0, 100_000: 8_100.0}
"""Kafka 2.8.2's failovers, measured on such a machine: quiet, its JVM warm, medians."""
ABSENT = "-"


def spread_text(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


@dataclass(frozen=True, slots=True)
class Repeated(Generic[T]):
    """`first`: in a fresh process; `runs`: those after it, of which the median counts."""

    name: str
    partitions: int
    first: T
    runs: tuple[T, ...]

    def median(self, figure: Callable[[T], float]) -> float:
        return statistics.median(figure(one) for one in self.runs)

    def spread(self, figure: Callable[[T], float]) -> str:
        return spread_text([figure(one) for one in self.runs])


@dataclass(frozen=True, slots=True)
class ControllerFigures:
    failovers: tuple[Repeated[FailoverTime], ...]
    others: tuple[Repeated[BrokerLossTime] | Repeated[ShutdownTime], ...]
    elected: tuple[ElectionTime, ...]


def phase_medians(measured: Repeated[FailoverTime]) -> dict[str, float]:
    names = [name for name, _ in measured.runs[0].phases]
    return {name: statistics.median(dict(one.phases)[name] for one in measured.runs) for name in names}


def _controller_cpu(one: FailoverTime | BrokerLossTime | ShutdownTime) -> float:
    return one.cpu.controller_ms


def _zookeeper_cpu(one: FailoverTime | BrokerLossTime | ShutdownTime) -> float:
    return one.cpu.zookeeper_ms


# -- failovers: a column a size


def _failover_rows(measured: Sequence[Repeated[FailoverTime]]) -> list[list[str]]:
    def row(name: str, cell: Callable[[Repeated[FailoverTime]], str]) -> list[str]:
        return [name, *map(cell, measured)]

    rows = [
        row("failover, ms", lambda one: one.spread(lambda run: run.total_ms)),
        row("the first in its process, ms", lambda one: f"{one.first.total_ms:,.0f}"),
        row("until brokers have answered, ms", lambda one: f"{one.median(lambda run: run.told_ms):,.0f}"),
        row("CPU of the controller, ms", lambda one: one.spread(_controller_cpu)),
        row("CPU of ZooKeeper, ms", lambda one: one.spread(_zookeeper_cpu)),
        row("a partition, µs", lambda one: f"{one.median(lambda run: run.total_ms) * 1_000 / one.partitions:,.1f}"),
        row(
            "CPU of both a partition, µs",
            lambda one: (
                f"{one.median(lambda run: run.cpu.controller_ms + run.cpu.zookeeper_ms) * 1_000 / one.partitions:,.1f}"
            ),
        ),
        row("most memory of the controller, MB", lambda one: f"{one.runs[-1].peak_mb:,.0f}"),
        row(
            "Kafka 2.8.2, ms", lambda one: f"{KAFKA_MS[one.partitions]:,.0f}" if one.partitions in KAFKA_MS else ABSENT
        ),
    ]
    phases = [phase_medians(one) for one in measured]
    rows += [[f"phase: {name}", *(f"{of[name]:,.1f}" for of in phases)] for name in phases[0]]
    return rows


# -- the others: a row each


def _other_rows(figures: ControllerFigures) -> list[list[str]]:
    rows = []
    for one in figures.others:
        if isinstance(one.first, BrokerLossTime):
            ends = [("last new leader", lambda run: run.led_ms), ("last ISR without it", lambda run: run.shrunk_ms)]
        else:
            ends = [("answered", lambda run: run.succeeded_ms)]
        rows += [
            [f"{one.name}: {end}", one.spread(of), one.spread(_controller_cpu), one.spread(_zookeeper_cpu)]
            for end, of in ends
        ]
    if figures.elected:
        clock, cpu = (
            spread_text([one.ms for one in figures.elected]),
            spread_text([one.cpu_ms for one in figures.elected]),
        )
        rows.append(["1,000,000 partitions of RF 3 elected in columns", clock, cpu, ABSENT])
    return rows


OTHER_HEAD = ["", "ms", "CPU of the controller, ms", "CPU of ZooKeeper, ms"]


def page_tables(figures: ControllerFigures, circumstances: str) -> list[list[str]]:
    """Two tables; how they came about is below the second."""
    sizes = [f"{one.partitions:,}" for one in figures.failovers]
    failovers = markdown(["partitions", *sizes], _failover_rows(figures.failovers)) if sizes else []
    others = markdown(OTHER_HEAD, _other_rows(figures))
    return [failovers, [*others, "", f"Medians (least to most) of {_runs(figures)} runs. {circumstances}"]]


def _runs(figures: ControllerFigures) -> int:
    return max((len(one.runs) for one in (*figures.failovers, *figures.others)), default=len(figures.elected))


def text(figures: ControllerFigures) -> str:
    """For a terminal: the same rows, in columns."""
    lines: list[str] = []
    if figures.failovers:
        sizes = [f"{one.partitions:,}" for one in figures.failovers]
        lines += [aligned([["partitions", *sizes], *_failover_rows(figures.failovers)]), ""]
    rows = _other_rows(figures)
    return "\n".join([*lines, *([aligned([OTHER_HEAD, *rows])] if rows else [])])


def panels(figures: ControllerFigures) -> list[Panel]:
    """Time by partitions beside Kafka's, and what it costs of the processors."""
    sizes = [one.partitions for one in figures.failovers]
    kafka = [size for size in sizes if size in KAFKA_MS]
    lines = [Line("camerlengo", sizes, [one.median(lambda run: run.total_ms) / 1_000 for one in figures.failovers], 0)]
    if kafka:
        lines.append(Line("Kafka 2.8.2", kafka, [KAFKA_MS[size] / 1_000 for size in kafka], 1))
    cpu = [
        Line(
            "the controller",
            sizes,
            [one.median(_controller_cpu) * 1_000 / one.partitions for one in figures.failovers],
            0,
        ),
        Line("ZooKeeper", sizes, [one.median(_zookeeper_cpu) * 1_000 / one.partitions for one in figures.failovers], 2),
    ]
    return [
        Panel("From /controller gone to the end", "partitions", "seconds", lines, log_x=True, log_y=True),
        Panel("Processor time", "partitions", "µs a partition", cpu, log_x=True),
    ]


SIZES = (10_000, 50_000, 100_000, 400_000, 1_000_000)
PARTS = ("failover", "broker-gone", "shutdown", "election")
BROKERS = 3
PLOT_PNG = "controller-scale.png"
TABLES = ("controller failover", "controller brokers")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper with fsync, three brokers that acknowledge at once, and a controller"
        " that stands by, each in a process of its own. failover: /controller is deleted, until the failover's end,"
        " partitions of one replica. broker-gone: a registration is deleted, until the last new leader is in ZooKeeper,"
        " partitions of two replicas. shutdown: request to answer. election: leaders of partitions of three"
        " replicas decided in columns, half the brokers dead. The first failover of each process is reported"
        " separately; the other figures are medians."
    )
    parser.add_argument(
        "--only", type=subset(*PARTS), default=PARTS, metavar="LIST", help=f"parts to run ({','.join(PARTS)})"
    )
    parser.add_argument(
        "--sizes",
        type=integers(),
        default=SIZES,
        metavar="LIST",
        help=f"numbers of partitions of the failovers ({','.join(map(str, SIZES))})",
    )
    add_count(parser, "--partitions", 10_000, "partitions of the other parts")
    add_count(parser, "--topic-size", 50, "partitions per topic")
    add_count(parser, "--runs", 5, "measured runs, after a warm-up")
    add_count(parser, "--heap-mb", None, "initial and maximum heap of ZooKeeper's JVM (Java's default)", least=16)
    add_output(parser, PLOT_PNG, "docs/controller-scale.md", TABLES)
    add_zookeeper_options(parser, "java")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return (*zookeeper_needs(arguments), *plots_needed(arguments))


def run(arguments: argparse.Namespace) -> int:
    load_before = os.getloadavg()[0]
    figures = _measure(arguments)
    show(arguments, {"benchmark": "controller", "runs": arguments.runs, **asdict(figures)}, text(figures))
    if arguments.plots is not None and figures.failovers:
        save(arguments.plots / PLOT_PNG, "Failover over so many partitions", panels(figures), columns=2)
    if arguments.page is not None:
        for name, lines in zip(TABLES, page_tables(figures, circumstances(load_before)), strict=True):
            put_table(arguments.page, name, lines)
    return 0


def _measure(arguments: argparse.Namespace) -> ControllerFigures:
    parts = arguments.only

    def size(partitions: int, replication_factor: int, led_by: int | None = None) -> TreeSize:
        topics = -(-partitions // arguments.topic_size)
        return TreeSize(topics, partitions, replication_factor, BROKERS, led_by)

    def measure(tree: TreeSize, name: str, one: Any) -> Repeated[Any]:
        with bench(tree, arguments.heap_mb, kind=arguments.zookeeper, jars=arguments.zookeeper_jars) as made:
            runs = []
            for number in range(arguments.runs + 1):
                runs.append(one(made))
                note(f"{name}, {tree.partitions} partitions, run {number}: {runs[-1]}")
        return Repeated(name, tree.partitions, runs[0], tuple(runs[1:]))

    many = arguments.partitions
    failovers = [measure(size(number, 1), "failover", _fail_over) for number in arguments.sizes if "failover" in parts]
    others = []
    if "broker-gone" in parts:
        third = f"broker gone that led {len(range(BROKERS - 1, many, BROKERS))} of {many}"
        others.append(measure(size(many, 2), third, _lose_broker))
        others.append(measure(size(many, 2, BROKERS), f"broker gone that led all {many}", _lose_broker))
    if "shutdown" in parts:
        others.append(measure(size(many, 2, BROKERS), f"controlled shutdown of the leader of {many}", _shut_down))
    elected = elect_in_columns(MOST_PARTITIONS, arguments.runs) if "election" in parts else ()
    return ControllerFigures(tuple(failovers), tuple(others), elected)


def _fail_over(made: ControllerBench) -> FailoverTime:
    done = made.fail_over()
    made.take_back()
    return done


def _lose_broker(made: ControllerBench) -> BrokerLossTime:
    made.fail_over()
    done = made.lose_broker(BROKERS)
    made.take_back()
    made.put_back()
    return done


def _shut_down(made: ControllerBench) -> ShutdownTime:
    made.fail_over()
    done = made.shut_down_broker(BROKERS)
    made.take_back()
    made.put_back()
    return done
