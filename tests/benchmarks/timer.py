"""`camerlengo bench timer`: the timing wheel beside heapq, asyncio and `sched`, in one process."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller.cli.main import UsageError
from controller.cli.requirements import PLOTS, Need
from controller.cli.values import integer, output_folder, seed
from controller.timer import COMPILED
from tests.benchmarks.plots import Line, Panel, PlotsUnavailable, save
from tests.benchmarks.timer_measure import (
    LIFETIME_MS,
    Costs,
    Memory,
    measure_costs,
    measure_memory,
    measure_moving,
    measure_operations,
)

COULD_NOT_RUN = 3
PLOT = "timer.png"
LOW, HIGH = 10_000, 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts, cancels and expires as many timers with each, the collector off, and prints the CPU nanoseconds that"
        " one took, ratios with the bounds that are set for them, and bytes. Half of the delays are 1 to 200 ms, half 1"
        " to 60 s."
    )
    parser.add_argument(
        "--timers", type=integer(), default=HIGH, metavar="N", help="number of outstanding timers (1000000)"
    )
    parser.add_argument(
        "--rounds", type=integer(), default=3, metavar="N", help="number of rounds; the best one counts (3)"
    )
    parser.add_argument(
        "--operations", type=integer(), default=0, metavar="N", help="record memory use over N operations (0: none)"
    )
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help="seed of the delays (1)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--plots", type=output_folder, metavar="DIR", help=f"write {PLOT} to DIR")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A cost over another's. `bound`: at most that much is wanted."""

    what: str
    ratio: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a run's. `moving` and `operations` by how many timers, and operations, there were."""

    compiled: bool
    timers: int
    rounds: int
    costs: Mapping[str, Costs]
    moving: Mapping[str, Mapping[int, float]]
    memory: Mapping[str, Memory]
    operations: Mapping[int, int]

    def ratios(self) -> list[Ratio]:
        wheel, heap, loop = (self.costs[name] for name in ("wheel", "heapq, lazy", "asyncio"))
        moving = self.moving["wheel"]
        low, high = min(moving), max(moving)
        return [
            Ratio("add+cancel, over heapq's with lazy deletion", wheel.add_and_cancel / heap.add_and_cancel, 0.8),
            Ratio("add+cancel, over asyncio's call_later and cancel", wheel.add_and_cancel / loop.add_and_cancel, 0.2),
            Ratio("expire, over heapq's", wheel.expire / heap.expire, 0.35),
            Ratio("expire, over asyncio's", wheel.expire / loop.expire, 0.35),
            Ratio(f"moving clock, {high} outstanding over {low}", moving[high] / moving[low], 1.5),
            Ratio("bytes a timer, over 100", self.memory["wheel"].outstanding / 100, 1.0),
            Ratio("bytes left a timer when all are cancelled, over 1", self.memory["wheel"].cancelled, 1.0),
        ]


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return PLOTS if arguments.plots is not None else ()


def run(arguments: argparse.Namespace) -> int:
    for name, least in (("timers", 1_000), ("rounds", 1), ("operations", 0)):
        if getattr(arguments, name) < least:
            raise UsageError(f"--{name} {getattr(arguments, name)}: expected {least} or more")
    found = measure(arguments.timers, arguments.rounds, arguments.operations, arguments.seed)
    _progress("")
    print(json.dumps(as_object(found), indent=2) if arguments.json else "\n".join(table(found)))
    if arguments.plots is not None:
        try:
            draw(found, arguments.plots)
        except (PlotsUnavailable, OSError) as error:
            print(f"camerlengo bench: {error}", file=sys.stderr)
            return COULD_NOT_RUN
    return 0


def measure(timers: int, rounds: int, operations: int, seed: int) -> Figures:
    return Figures(
        COMPILED,
        timers,
        rounds,
        measure_costs(timers, rounds, seed, _progress),
        measure_moving(_outstanding(timers), rounds, seed, _progress),
        measure_memory(timers, seed, _progress),
        measure_operations(operations, seed, _progress) if operations else {},
    )


def _outstanding(timers: int) -> list[int]:
    """Powers of ten from LOW (or a tenth of `timers`, if that is less) to `timers`."""
    count = min(LOW, timers // 10)
    found = []
    while count < timers:
        found.append(count)
        count *= 10
    return [*found, timers]


def _progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
    elif words:
        print(f"{time.process_time():7.1f} s CPU  {words}", file=sys.stderr, flush=True)


def as_object(found: Figures) -> dict[str, Any]:
    whole = asdict(found)
    whole["ratios"] = [asdict(ratio) | {"holds": ratio.holds} for ratio in found.ratios()]
    return {"benchmark": "timer"} | whole


def table(found: Figures) -> Iterator[str]:
    build = "compiled" if found.compiled else "pure Python"
    yield f"{found.timers} timers, {build} wheel, best of {found.rounds}; CPU ns a timer"
    yield f"{'':<24}{'add':>10}{'cancel':>10}{'add+cancel':>12}{'expire':>10}"
    for name, cost in found.costs.items():
        cancel = "-" if cost.cancel is None else f"{cost.cancel:.0f}"
        yield f"{name:<24}{cost.add:>10.0f}{cancel:>10}{cost.add_and_cancel:>12.0f}{cost.expire:>10.0f}"
    yield f"\nCPU ns to replace one, a moving clock, each for {LIFETIME_MS} ms on the average"
    counts = list(found.moving["wheel"])
    yield f"{'outstanding':<24}" + "".join(f"{count:>12}" for count in counts)
    for name, by_count in found.moving.items():
        yield f"{name:<24}" + "".join(f"{by_count[count]:>12.0f}" for count in counts)
    yield f"\n{'bytes a timer':<24}{'outstanding':>12}{'cancelled':>12}"
    for name, memory in found.memory.items():
        yield f"{name:<24}{memory.outstanding:>12.1f}{memory.cancelled:>12.1f}"
    if found.operations:
        yield f"\n{'operations':<24}{'bytes':>12}"
        for count, allocated in found.operations.items():
            yield f"{count:<24}{allocated:>12}"
    yield f"\n{'ratio':<54}{'is':>8}{'at most':>10}"
    for ratio in found.ratios():
        yield f"{ratio.what:<54}{ratio.ratio:>8.2f}{ratio.bound:>10.2f}" + ("" if ratio.holds else "  not held")


def draw(found: Figures, folder: Path) -> None:
    """PlotsUnavailable, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    by_count = [
        Line(name, list(costs), list(costs.values()), colour)
        for colour, (name, costs) in enumerate(found.moving.items())
    ]
    by_rate = [Line(name, *_cores_at_rates(costs), colour) for colour, (name, costs) in enumerate(found.moving.items())]
    panels = [
        Panel("Replacing a timer", "timers outstanding", "CPU ns", by_count, log_x=True),
        Panel("CPU at a rate", "timers replaced a second", "cores", by_rate, log_x=True, log_y=True),
    ]
    build = "compiled" if found.compiled else "pure Python"
    save(folder / PLOT, f"A moving clock, each timer replaced after {LIFETIME_MS} ms; {build} wheel", panels)


def _cores_at_rates(costs: Mapping[int, float]) -> tuple[Sequence[float], Sequence[float]]:
    """So many outstanding, each for LIFETIME_MS, are a rate (Little's law); what one costs times it is the load."""
    rates = [count * 1_000 / LIFETIME_MS for count in costs]
    return rates, [rate * cost / 1e9 for rate, cost in zip(rates, costs.values(), strict=True)]
