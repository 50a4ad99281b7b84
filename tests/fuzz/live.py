"""Well-formed nonsense from clients, against a whole cluster in memory: `python -m tests.fuzz.live`.

The brokers, their controllers and ZooKeeper are those of the simulator; requests go straight to the brokers, some at a
time, and time goes on in between. Fails if a controller's term ends, a broker ends, an error is logged that is nobody's
fault but ours, a request is not answered (nor its connection closed) in time, or memory grows. With `--controllers`,
requests of a controller go to one broker that has no cluster: it may obey them, and must go on.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controller.protocol import ApiKey
from controller.protocol.framing import Part
from controller.simulator.senseless_requests import OF_CLIENTS, OF_CONTROLLERS, ValueGenerator
from controller.simulator.simulation import BrokenInvariant, Simulation
from tests.broker.data_node import DataNode
from tests.fuzz.campaign import (
    GROWTH_LIMIT_KIB,
    Failure,
    Memory,
    exit_status,
    fuzz_parser,
    memory_lines,
    refuse_memory_growth,
)

BROKERS = 3
WORLD_LIFE = 3_000
"""Requests that one cluster gets: what was well-formed enough to be obeyed is kept."""
AT_ONCE = 50
BETWEEN_MS = 40.0
ANSWER_LIMIT_MS = 40_000.0
SETTINGS = {"log.dirs": "logs", "connections.max.idle.ms": "-1"}
Respond = Callable[[Sequence[Part] | None], None]


@dataclass
class Figures:
    inputs: int = 0
    seconds: float = 0.0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    before: Memory | None = None
    after: Memory | None = None


class Sent:
    """One request, and whether it was answered."""

    __slots__ = ("at_ms", "broker", "frame", "outcome")

    def __init__(self, broker: int, frame: bytes, at_ms: float) -> None:
        self.broker = broker
        self.frame = frame
        self.at_ms = at_ms
        self.outcome: str | None = None

    def __call__(self, parts: Sequence[Part] | None) -> None:
        if self.outcome is not None:
            raise Failure(f"answered twice: {self.frame.hex()}")
        self.outcome = "connection closed" if parts is None else "answered"

    @property
    def api(self) -> str:
        return ApiKey(int.from_bytes(self.frame[:2], "big")).name


class Cluster:
    """A simulated cluster with topics t0 to t3, until it has got its share of requests."""

    def __init__(self, seed: int) -> None:
        self.world = Simulation(BROKERS, seed=seed, session_timeout_ms=6_000, settings=SETTINGS)
        self.world.run_until(lambda: len(self.world.registered) == BROKERS and self.world.controller is not None)
        for number in range(4):
            self.world.answer(self.world.create_topic(f"t{number}", 2, BROKERS))
        self.world.run_for(1_000)
        self.epoch = self.world.controller_epoch
        self.waiting: list[Sent] = []
        self.fed = 0

    def feed(self, broker: int, frame: bytes) -> Sent:
        sent = Sent(broker, frame, self.world.now_ms)
        node = self.world.node(broker)
        if node is None:
            raise Failure(f"broker {broker} is gone")
        node.broker.receive(frame, sent)
        self.fed += 1
        self.waiting.append(sent)
        return sent

    def go_on(self, ms: float = BETWEEN_MS) -> list[Sent]:
        """Lets time pass; the requests that were answered by then. Failure."""
        recent = self.waiting[-AT_ONCE:]
        try:
            self.world.run_for(ms)
        except BrokenInvariant as broken:
            raise Failure(f"{broken}\n{_frames(recent)}") from broken
        if self.world.controller_epoch != self.epoch or self.world.controller is None:
            raise Failure(f"the term of epoch {self.epoch} has ended\n{_frames(recent)}")
        if len(self.world.running) != BROKERS:
            raise Failure(f"brokers {self.world.running} run\n{_frames(recent)}")
        answered = [sent for sent in self.waiting if sent.outcome is not None]
        self.waiting = [sent for sent in self.waiting if sent.outcome is None]
        for sent in self.waiting:
            if self.world.now_ms - sent.at_ms > ANSWER_LIMIT_MS:
                raise Failure(f"{sent.api} is not answered in {ANSWER_LIMIT_MS:g} ms\n{_frames([sent])}")
        return answered

    def finish(self) -> list[Sent]:
        return self.go_on(ANSWER_LIMIT_MS + 1_000.0)


def _frames(sent: Sequence[Sent]) -> str:
    return "\n".join(f"  broker {one.broker} {one.api}: {one.frame.hex()[:4_000]}" for one in sent)


def campaign(inputs: int, seed: int, *, growth_kib: int = GROWTH_LIMIT_KIB) -> Figures:
    """The same requests for the same seed. Failure."""
    rng = random.Random(seed)
    drawing = ValueGenerator(rng)
    figures = Figures(inputs)
    began_s = time.perf_counter()
    cluster: Cluster | None = None
    worlds = 0
    for number in range(inputs):
        if cluster is None:
            cluster = Cluster(seed * 1_000 + worlds)
            worlds += 1
        key = OF_CLIENTS[number % len(OF_CLIENTS)]
        # Mostly to the controller, to whom half of the APIs mean something.
        broker = cluster.world.controller if rng.random() < 0.6 else rng.randint(1, BROKERS)
        cluster.feed(broker or 1, drawing.request(key))
        if cluster.fed % AT_ONCE == 0:
            _count(figures, cluster.go_on())
        if cluster.fed >= WORLD_LIFE or number == inputs - 1:
            _count(figures, cluster.finish())
            cluster = None
            if figures.before is None:
                figures.before = Memory.now()
    figures.after = Memory.now()
    figures.seconds = time.perf_counter() - began_s
    if worlds > 2:
        refuse_memory_growth(figures.before, figures.after, inputs, growth_kib)
    return figures


def _count(figures: Figures, answered: Sequence[Sent]) -> None:
    for sent in answered:
        figures.outcomes[sent.api, sent.outcome or ""] += 1


def control_campaign(inputs: int, seed: int, *, growth_kib: int = 2 * GROWTH_LIMIT_KIB) -> Figures:
    """Requests of a controller to one broker, which keeps what it was told until another takes its place. Failure."""
    rng = random.Random(seed)
    drawing = ValueGenerator(rng)
    figures = Figures(inputs)
    began_s = time.perf_counter()
    node: DataNode | None = None
    for number in range(inputs):
        if node is None or number % WORLD_LIFE == 0:
            if number == WORLD_LIFE:
                figures.before = Memory.now()  # at the end of a broker's life, as at the end of the campaign
            node = None  # not two of them at the same time
            gc.collect()
            node = DataNode("t0")
        sent = Sent(1, drawing.request(OF_CONTROLLERS[number % len(OF_CONTROLLERS)]), 0.0)
        node.node.broker.receive(sent.frame, sent)
        if number % AT_ONCE == 0:
            node.settle(BETWEEN_MS)
        if node.failure is not None or node.trace.notes("error"):
            why = node.failure or node.trace.notes("error")[0]
            raise Failure(f"{why}\n{_frames([sent])}")
        node.trace.recorder.records.clear()
        figures.outcomes[sent.api, sent.outcome or "answered later"] += 1
    figures.after = Memory.now()
    figures.seconds = time.perf_counter() - began_s
    refuse_memory_growth(figures.before, figures.after, inputs, growth_kib)
    return figures


def lines(figures: Figures) -> list[str]:
    rate = figures.inputs / max(figures.seconds, 1e-9)
    by_api: dict[str, Counter[str]] = {}
    for (api, outcome), count in figures.outcomes.items():
        by_api.setdefault(api, Counter())[outcome] += count
    return [
        f"{figures.inputs:,} requests in {figures.seconds:.1f} s: {rate:,.0f} requests/s",
        *(f"  {api}: " + ", ".join(f"{o} {n:,}" for o, n in found.most_common()) for api, found in by_api.items()),
        *memory_lines(figures.before, figures.after),
        "no term ended, no broker gone, every request answered or its connection closed, no growth",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = fuzz_parser("live", __doc__)
    parser.add_argument("--controllers", action="store_true", help="requests of a controller, to one broker")
    given = parser.parse_args(arguments)
    run = control_campaign if given.controllers else campaign
    return exit_status(given.seed, lambda: lines(run(given.inputs, given.seed)))


if __name__ == "__main__":
    sys.exit(main())
