"""The runs of `camerlengo bench controller`: a ZooKeeper with a cluster's tree in it, brokers that acknowledge at once,
a controller that stands by, and what is done to them. Each run gives one value.

This process is the controller before: it holds /controller, so that it can give it up, and puts back what a run
changed. The standby's and ZooKeeper's processor time are read from outside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.core.leadership import Won, elect
from controller.core.queue import EventQueue
from controller.hosts.network import NetworkThread, RealClock
from controller.zookeeper import launch, paths
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import Leadership, ZooKeeperClient
from controller.zookeeper.codecs import (
    ControllerZnode,
    decode_controller_epoch,
    decode_partition_state,
    encode_controller,
    encode_controller_epoch,
)
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.kazoo_connection import KazooConnection
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from tests.benchmarks.tree import TreeSize, first_state, registrations, write_partitions

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
class Failover:
    """`total_ms`: from the request that deletes /controller to the failover's end; `told_ms`: to the last answer of a
    broker. `phases`: (name, ms) in their order, election first. `peak_mb`: of the controller's process, so far."""

    total_ms: float
    told_ms: float
    phases: tuple[tuple[str, float], ...]
    cpu: Cpu
    peak_mb: float


@dataclass(frozen=True, slots=True)
class BrokerGone:
    """From the request that deletes the registration to the last new leader that ZooKeeper acknowledged, to the last
    ISR that shrank, and to the last answer of a broker."""

    led_ms: float
    shrunk_ms: float
    told_ms: float
    cpu: Cpu


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """From the request to its answer, which is that nothing remains, and to the last answer of a broker."""

    succeeded_ms: float
    told_ms: float
    cpu: Cpu


def process_cpu_ms(pid: int) -> float:
    """What a process has used so far: Linux's clock of another process (clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2) * 1_000.0


class _Child:
    """One of this benchmark's own processes, spoken to in lines."""

    def __init__(self, module: str, *words: str) -> None:
        argv = [sys.executable, "-m", module, *words]
        self._process = launch.launch(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self.hello = self._answer()

    def ask(self, line: str) -> Any:
        return self.tell(line)()

    def tell(self, line: str) -> Callable[[], Any]:
        """Asks, and gives what waits for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WrongOutcome(f"a process of the benchmark ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """The end of its input is the end of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


class Bench:
    """A cluster of one size, with its processes. Made by `bench`."""

    def __init__(self, server: EmbeddedZooKeeper, size: TreeSize, clock: RealClock, brokers: _Child) -> None:
        pid = server.servers[0].pid
        assert pid is not None
        self.size = size
        self._zookeeper_pid = pid
        self._ports = {int(broker): port for broker, port in brokers.hello.items()}
        self._client = ZooKeeperClient(
            KazooConnection(server.connect_string, clock, SESSION_TIMEOUT_MS), clock, EventQueue(1)
        )
        wait(self._client.start(), LIMIT_S)
        run(BrokerWrites(self._client).ensure_persistent_paths(), LIMIT_S)
        outcome = run(elect(self._client, FORMER, clock), LIMIT_S)
        assert isinstance(outcome, Won), outcome
        self._leadership: Leadership = outcome.leadership
        run(self._client.create_rows(self._leadership, registrations(self._ports)), LIMIT_S)
        write_partitions(self._client, self._leadership, size)
        self._standby = _Child("tests.benchmarks.controller_worker", server.connect_string)

    def close(self) -> None:
        self._standby.close()
        wait(self._client.close(), LIMIT_S)

    # -- what is measured

    def fail_over(self) -> Failover:
        """This process gives up /controller; the standby takes over, and this process takes it back."""
        before = self._cpu()
        began_ms = time.monotonic() * 1_000.0
        wait(self._client.commit_election([Delete(paths.CONTROLLER, ANY_VERSION)]), LIMIT_S)
        found = self._standby.ask("failover")
        cpu = self._since(before)
        if found["partitions"] != self.size.partitions:
            raise WrongOutcome(f"a failover over {found['partitions']} partitions, of {self.size.partitions}")
        total_ms = found["ended_ms"] - began_ms
        phases = [("election", total_ms - found["duration_ms"]), *((name, ms) for name, ms, _ in found["phases"])]
        return Failover(total_ms, found["answered_ms"] - began_ms, tuple(phases), cpu, found["peak_mb"])

    def lose_broker(self, broker: int) -> BrokerGone:
        """The standby leads already. Leaves the broker gone and the states as they have become."""
        before = self._cpu()
        waiting = self._standby.tell("gone")
        began_ms = time.monotonic() * 1_000.0
        wait(self._client.commit_election([Delete(paths.broker(broker), ANY_VERSION)]), LIMIT_S)
        found = waiting()
        cpu = self._since(before)
        self.require_led_without(broker)
        ends = [at_ms - began_ms for at_ms, _ in found["writes"]]
        return BrokerGone(ends[0], ends[-1], found["answered_ms"] - began_ms, cpu)

    def shut_down_broker(self, broker: int) -> ControlledShutdown:
        """The standby leads already. Leaves the states as they have become."""
        before = self._cpu()
        found = self._standby.ask(f"shutdown {broker}")
        cpu = self._since(before)
        if found["error"] or found["remaining"]:
            raise WrongOutcome(f"error {found['error']}, {found['remaining']} partitions remain")
        self.require_led_without(broker)
        asked_ms = found["asked_ms"]
        return ControlledShutdown(found["succeeded_ms"] - asked_ms, found["answered_ms"] - asked_ms, cpu)

    # -- around it

    def take_back(self) -> None:
        """This process is the controller again, and the standby stands by."""
        [epoch] = run(_read(self._client, [paths.CONTROLLER_EPOCH]), LIMIT_S)
        next_epoch = decode_controller_epoch(epoch.path, epoch.data) + 1
        mine: list[Write] = [
            Delete(paths.CONTROLLER, ANY_VERSION),
            Create(paths.CONTROLLER, encode_controller(ControllerZnode(FORMER, 0)), ephemeral=True),
            SetData(paths.CONTROLLER_EPOCH, encode_controller_epoch(next_epoch), epoch.stat.version),
        ]
        wait(self._client.commit_election(mine), LIMIT_S)
        self._leadership = Leadership(self._client.session(), next_epoch, epoch.stat.version + 1)
        self._standby.ask("standby")

    def put_back(self) -> None:
        """Registrations that are gone, and every state as it was at first. This process is the controller."""
        wanted = registrations(self._ports)
        rows = wait(self._client.read([row.path for row in wanted]), LIMIT_S).rows
        gone = [row for row, found in zip(wanted, rows, strict=True) if found is None]
        if gone:
            run(self._client.create_rows(self._leadership, gone), LIMIT_S)
        states = self._states()
        writes = [
            SetData(row.path, first_state(replicas), row.stat.version)
            for row, replicas in zip(states, self._assignments(), strict=True)
        ]
        run(self._client.commit_rows(self._leadership, writes), LIMIT_S)

    def _assignments(self) -> Iterator[tuple[int, ...]]:
        for topic in range(self.size.topics):
            for partition in range(self.size.partitions_of(topic)):
                yield self.size.replicas(topic, partition)

    def _states(self) -> Sequence[Any]:
        return run(_read(self._client, [paths.partition_state(*name) for name in self.size.names()]), LIMIT_S)

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
def bench(size: TreeSize, jars: Path | None = None, heap_mb: int | None = None) -> Iterator[Bench]:
    """A cluster with its ZooKeeper (fsync on, in a folder of its own that goes with it). `heap_mb`: of its JVM, all of
    it taken at once; None: as Java chooses. EmbeddedServerUnavailable."""
    # A small room for the young: the tree leaves it while it is written, and not, all at once, in a run.
    options = () if heap_mb is None else (f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", f"-Xmn{min(YOUNG_MB, heap_mb // 2)}m")
    server = EmbeddedZooKeeper(jars=jars, java_options=options)
    network = NetworkThread()
    network.start()
    try:
        with server:
            brokers = _Child("tests.benchmarks.acknowledging", str(size.brokers))
            try:
                made = Bench(server, size, network.clock, brokers)
                try:
                    yield made
                finally:
                    made.close()
            finally:
                brokers.close()
    finally:
        network.stop()
