"""`camerlengo bench loading`: loading a large cluster as a new controller does, compared with kazoo's own reads.

    python -m tests.benchmarks.loading load|kazoo HOST:PORT ...

is one measurement, in a process of its own: it prints its times in ms as one JSON object. `load` reads a cluster as a
new controller does: elected, then brokers, topics with their watches, states, into the context. `kazoo` reads the same
state znodes with kazoo's own `get_async`, all pipelined.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import Need
from controller.cli.zookeeper_options import add_zookeeper_options, zookeeper_needs
from controller.clock import Coro
from controller.core.leadership import ControllerSettings, Term, Won, elect
from controller.core.loading import list_topics, load_states, load_topics, read_brokers, watch_brokers
from controller.hosts.network import NetworkThread
from controller.trace import NullTrace
from controller.zookeeper import blocking
from tests.benchmarks.clusters import TreeSize, client_of, write_tree, zookeeper
from tests.benchmarks.common import add_count, add_output, run_worker, show, spread

LIMIT_S = 300.0
SESSION_TIMEOUT_MS = 30_000
KAZOO_WINDOW = 10_000
"""Reads that kazoo has pending at once: enough to keep its pipeline full, without a list of all of them."""


class NoChannels:
    def announce(self, brokers: Any) -> None: ...

    def send(self, broker: int, request: Any) -> None: ...

    def close(self) -> None: ...


class FirstOfRange:
    """No chance is needed: nothing is placed."""

    def randrange(self, stop: int, /) -> int:
        return 0


def drive_here(task: Coro[Any]) -> Any:
    """As the event thread does: the coroutine runs on this thread, which sleeps while an answer is on its way."""
    while True:
        try:
            pending = task.send(None)
        except StopIteration as ended:
            return ended.value
        answered = threading.Event()
        pending.on_done(answered.set)
        if not answered.wait(LIMIT_S):
            raise TimeoutError(f"not answered within {LIMIT_S:g} s")


class Stopwatch:
    """`laps`: wall time of each step and in total; "cpu": what this process's threads spent from the first to the
    last, which a busy machine changes less."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = self._began = time.monotonic()
        self._cpu_began = time.process_time()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = (now - self._last) * 1_000
        self.laps["total"] = (now - self._began) * 1_000
        self.laps["cpu"] = (time.process_time() - self._cpu_began) * 1_000
        self._last = now


async def _load(term: Term) -> dict[str, float]:
    """`loading.load`, with a lap after each step."""
    watch = Stopwatch()
    brokers, brokers_zxid = await read_brokers(term)
    term.context.put_brokers(brokers)
    await watch_brokers(term, brokers, brokers_zxid)
    watch.lap("brokers")
    topics, topics_zxid = await list_topics(term)
    watch.lap("topic list")
    rows = await load_topics(term, topics, topics_zxid)
    watch.lap("assignments and watches")
    await load_states(term, rows)
    watch.lap("states")
    return watch.laps


def load(hosts: str) -> dict[str, Any]:
    network = NetworkThread()
    network.start()
    clock = network.clock
    client = client_of(hosts, clock)
    try:
        blocking.wait(client.start(), LIMIT_S)
        outcome = blocking.run(elect(client, 1, clock), LIMIT_S)
        assert isinstance(outcome, Won), outcome
        term = Term(
            broker_id=1,
            leadership=outcome.leadership,
            settings=ControllerSettings(),
            zookeeper=client,
            channels=NoChannels(),
            clock=clock,
            trace=NullTrace(),
            rng=FirstOfRange(),
        )
        laps = drive_here(_load(term))
        counts = {"partitions": len(term.context.partitions), "watches": len(client.watched())}
        return {"ms": laps, **counts, "states": len(term.context.rows_with_state())}
    finally:
        blocking.wait(client.close(), LIMIT_S)
        network.stop()


def kazoo(hosts: str, topics: int, partitions: int) -> dict[str, Any]:
    from kazoo.client import KazooClient

    from controller.zookeeper.paths import partition_state
    from tests.benchmarks.clusters import TreeSize

    names = [partition_state(*name) for name in TreeSize(topics, partitions, 1, 1).names()]
    client = KazooClient(hosts, timeout=SESSION_TIMEOUT_MS / 1_000)
    client.start(timeout=LIMIT_S)
    try:
        watch = Stopwatch()
        read = 0
        pending: list[Any] = []
        for start in range(0, len(names), KAZOO_WINDOW):
            asked = [client.get_async(name) for name in names[start : start + KAZOO_WINDOW]]
            read += sum(len(one.get(timeout=LIMIT_S)[0]) > 0 for one in pending)
            pending = asked
        read += sum(len(one.get(timeout=LIMIT_S)[0]) > 0 for one in pending)
        watch.lap("states")
        return {"ms": watch.laps, "states": read}
    finally:
        client.stop()
        client.close()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper, writes a cluster into it, and loads it as a new controller does, each time in a"
        " fresh process: read, decoded, watched and in the context. kazoo's own pipelined reads of the same state"
        " znodes are timed beside it."
    )
    add_count(parser, "--partitions", 100_000, "total number of partitions")
    add_count(parser, "--topics", 2_000, "number of topics")
    add_count(parser, "--replication-factor", 3, "replicas of each partition")
    add_count(parser, "--brokers", 3, "registered brokers")
    add_count(parser, "--runs", 5, "runs, each in a new process")
    add_count(parser, "--peer-runs", 1, "runs of kazoo's reads; 0: none", least=0)
    add_output(parser)
    add_zookeeper_options(parser, "java")


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_needs(arguments)


def run(arguments: argparse.Namespace) -> int:
    size = _size(arguments)
    with zookeeper(arguments.zookeeper, arguments.zookeeper_jars) as (server, clock):
        hosts = server.connect_string
        write_tree(hosts, size, clock)
        loads = [run_worker(__name__, "load", hosts) for _ in range(arguments.runs)]
        numbers = str(size.topics), str(size.partitions)
        peers = [run_worker(__name__, "kazoo", hosts, *numbers) for _ in range(arguments.peer_runs)]
    found = figures(size, loads, peers)
    show(arguments, found, table(found))
    return 0


def _size(arguments: argparse.Namespace) -> TreeSize:
    if arguments.replication_factor > arguments.brokers:
        raise UsageError(f"--replication-factor {arguments.replication_factor}: expected at most --brokers")
    if arguments.topics > arguments.partitions:
        raise UsageError(f"--topics {arguments.topics}: expected at most --partitions")
    return TreeSize(arguments.topics, arguments.partitions, arguments.replication_factor, arguments.brokers)


def figures(size: TreeSize, loads: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most of each phase in ms; `ratio`: kazoo's median for the states alone over ours for all."""
    for answer in (*loads, *peers):
        if answer["states"] != size.partitions:
            raise RuntimeError(f"{answer['states']} of {size.partitions} states were read: the figures mean nothing")
    found: dict[str, Any] = {
        "benchmark": "loading",
        "partitions": size.partitions,
        "topics": size.topics,
        "replication_factor": size.replication_factor,
        "brokers": size.brokers,
        "runs": len(loads),
        "load_ms": _spread_phases([answer["ms"] for answer in loads]),
        "kazoo_get_async_ms": _spread_phases([answer["ms"] for answer in peers]) if peers else None,
        "ratio": None,
    }
    if peers:
        found["ratio"] = found["kazoo_get_async_ms"]["states"]["median"] / found["load_ms"]["total"]["median"]
    return found


def _spread_phases(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {phase: spread([run[phase] for run in runs]) for phase in runs[0]}


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['partitions']} partitions in {found['topics']} topics, replication factor"
        f" {found['replication_factor']}; {found['runs']} fresh processes",
        f"{'phase':<40}{'median ms':>12}{'min':>10}{'max':>10}",
    ]
    last = {"total": "load: total", "cpu": "load: CPU of its process"}
    rows = [(f"load: {phase}", spread) for phase, spread in found["load_ms"].items() if phase not in last]
    rows += [(name, found["load_ms"][phase]) for phase, name in last.items()]
    if found["kazoo_get_async_ms"] is not None:
        rows.append(("kazoo get_async: states alone", found["kazoo_get_async_ms"]["states"]))
        rows.append(("kazoo get_async: CPU of its process", found["kazoo_get_async_ms"]["cpu"]))
    lines += [f"{name:<40}{one['median']:>12.1f}{one['min']:>10.1f}{one['max']:>10.1f}" for name, one in rows]
    if found["ratio"] is not None:
        lines.append(f"kazoo's reads of the states alone take {found['ratio']:.1f} times as long as the whole load")
    return "\n".join(lines)


def worker_main(arguments: list[str]) -> None:
    what, hosts, *numbers = arguments
    # As a broker's process does before it starts.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    measures: dict[str, Callable[..., dict[str, Any]]] = {"load": load, "kazoo": kazoo}
    print(json.dumps(measures[what](hosts, *map(int, numbers))))


if __name__ == "__main__":
    worker_main(sys.argv[1:])
