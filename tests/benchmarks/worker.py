"""One measurement of `camerlengo bench`, in a process of its own: prints its times in ms as one JSON object.

    python -m tests.benchmarks.worker load|kazoo HOST:PORT ... (see `main`)

`load` reads a cluster as a new controller does: elected, then brokers, topics with their watches, states, into the
context. `kazoo` reads the same state znodes with kazoo's own `get_async`, all pipelined.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from controller.core.leadership import Won, elect
from controller.core.loading import list_topics, load_states, load_topics, read_brokers, watch_brokers
from controller.core.queue import EventQueue
from controller.core.settings import ControllerSettings
from controller.core.term import Term
from controller.hosts.network import NetworkThread
from controller.pending import Task
from controller.trace import NullTrace
from controller.zookeeper.blocking import run, wait
from controller.zookeeper.broker_writes import BrokerWrites
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection

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


def drive_here(task: Task[Any]) -> Any:
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
    client = ZooKeeperClient(KazooConnection(hosts, clock, SESSION_TIMEOUT_MS), clock, EventQueue(1))
    try:
        wait(client.start(), LIMIT_S)
        outcome = run(elect(client, 1, clock), LIMIT_S)
        assert isinstance(outcome, Won), outcome
        term = Term(
            broker_id=1,
            leadership=outcome.leadership,
            settings=ControllerSettings(),
            zookeeper=client,
            writes=BrokerWrites(client),
            channels=NoChannels(),
            clock=clock,
            trace=NullTrace(),
            rng=FirstOfRange(),
        )
        laps = drive_here(_load(term))
        counts = {"partitions": len(term.context.partitions), "watches": len(client.watched())}
        return {"ms": laps, **counts, "states": len(term.context.rows_with_state())}
    finally:
        wait(client.close(), LIMIT_S)
        network.stop()


def kazoo(hosts: str, topics: int, partitions: int) -> dict[str, Any]:
    from kazoo.client import KazooClient

    from controller.zookeeper.paths import partition_state
    from tests.benchmarks.tree import TreeSize

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


def main(arguments: list[str]) -> None:
    what, hosts, *numbers = arguments
    # As a broker's process does before it starts.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    measures: dict[str, Callable[..., dict[str, Any]]] = {"load": load, "kazoo": kazoo}
    print(json.dumps(measures[what](hosts, *map(int, numbers))))


if __name__ == "__main__":
    main(sys.argv[1:])
