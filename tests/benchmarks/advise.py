"""`camerlengo lab advise`: which part of the latency exceeds a target, which setting to change, and what that costs.

    camerlengo lab advise --target p99=50ms --throughput 100MB/s --spec workload.toml

`--accept N` measures the adviser itself: on N random workloads, its choice against the best of all combinations.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.cli.workers import each_seed
from controller.labs.latency.adviser import COSTS, NAMES, Advice, Adviser, Prediction, WorkloadToAdvise, acceptance
from controller.labs.latency.cluster_model import ServiceTimes
from tests.benchmarks.common import CouldNotRun, add_count, add_output, circumstances, show
from tests.benchmarks.latency_model import shape_of

_TARGET = re.compile(r"p([0-9]+(?:\.[0-9]+)?)=([0-9]+(?:\.[0-9]+)?)ms")
_THROUGHPUT = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|M|G)?B/s")
_FACTORS = {None: 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def _target(text: str) -> tuple[float, float]:
    match = _TARGET.fullmatch(text)
    if match is None or not 0 < float(match[1]) < 100 or not float(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a percentile and a limit, such as p99=50ms")
    return float(match[1]) / 100.0, float(match[2])


def _throughput(text: str) -> float:
    match = _THROUGHPUT.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected bytes of records a second, such as 100MB/s or 500kB/s")
    return float(match[1]) * _FACTORS[match[2]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says whether a workload meets a latency target on the queueing model, which part of the latency is the largest"
        " beyond it, which settings to change in which order, and what each change costs."
    )
    parser.add_argument("--target", type=_target, default="p99=50ms", metavar="pN=Xms", help="from send() to poll()")
    parser.add_argument("--throughput", type=_throughput, default="100MB/s", metavar="N[kMG]B/s", help="of records")
    parser.add_argument(
        "--spec", type=Path, metavar="FILE", help="the workload, in TOML; default: the published cluster"
    )
    parser.add_argument("--times", default="kafka", metavar="NAME|FILE", help="service times: kafka, camerlengo, FILE")
    add_count(parser, "--accept", 0, "measure the adviser on so many random workloads instead", 0)
    add_count(parser, "--seed", 1, "seed of the simulations, the first with --accept", 0)
    parser.add_argument("--quick", action="store_true", help="shorter simulations")
    add_output(parser)


def read_spec(path: Path | None) -> WorkloadToAdvise:
    """Raises CouldNotRun."""
    if path is None:
        return WorkloadToAdvise()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=WorkloadToAdvise)
    except OSError as error:
        raise CouldNotRun(f"{path}: {error.strerror}: expected a workload in TOML") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CouldNotRun(f"{path}: {error}") from error


def run(arguments: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    times = shape_of(arguments.times, None).times
    if arguments.accept:
        return _accept(arguments, times, load)
    workload = read_spec(arguments.spec)
    share, target_ms = arguments.target
    seconds = 0.2 if arguments.quick else 1.0
    adviser = Adviser(times, share, arguments.throughput, seconds=seconds, seed=arguments.seed)
    advice = adviser.advise(workload, target_ms)
    figures = figures_of(advice, target_ms) | {"circumstances": circumstances(load)}
    show(arguments, figures, text_of(advice, share, target_ms))
    return 0


def _accept(arguments: argparse.Namespace, times: ServiceTimes, load: float) -> int:
    seeds = range(arguments.seed, arguments.seed + arguments.accept)
    rows = list(each_seed(partial(acceptance, times), seeds, os.cpu_count() or 1))
    ratios = np.array([row["by best"] for row in rows])
    figures: dict[str, Any] = {
        "workloads": len(rows),
        "within 10% of the best": int((ratios <= 1.1).sum()),
        "worst, by best": float(ratios.max()),
        "settings tried, mean": round(float(np.mean([row["tried"] for row in rows])), 1),
        "rows": rows,
        "circumstances": circumstances(load),
    }
    show(arguments, figures, "\n".join(f"{name}: {one}" for name, one in figures.items() if name != "rows"))
    return 0


def _row(one: Prediction) -> dict[str, Any]:
    parts = {name: round(value, 3) for name, value in one.parts_ms.items()}
    return {
        "latency ms": round(one.latency_ms, 3),
        "largest part": one.largest,
        "parts beyond it ms": parts,
        "produce requests/s a broker": round(one.requests_s),
        "busy": round(one.busy, 3),
        "delivers": round(one.delivers, 3),
    }


def figures_of(advice: Advice, target_ms: float) -> dict[str, Any]:
    changes = [
        {"setting": NAMES[one.setting], "from": one.before, "to": one.after} | _row(one.prediction)
        for one in advice.changes
    ]
    met = advice.prediction.latency_ms <= target_ms
    return {"now": _row(advice.now), "changes": changes, "target met": met, "settings tried": advice.tried}


def text_of(advice: Advice, share: float, target_ms: float) -> str:
    name = f"p{share * 100:g}"
    lines = [f"now: {name} {_words(advice.now)}"]
    if advice.now.latency_ms <= target_ms:
        return "\n".join([*lines, f"the target of {target_ms:g} ms is met: nothing to change"])
    over = {part: value for part, value in advice.now.parts_ms.items() if value > target_ms / len(advice.now.parts_ms)}
    lines.append(
        f"beyond a fifth of {target_ms:g} ms: " + ", ".join(f"{part} {one:.2f} ms" for part, one in over.items())
    )
    before = advice.now
    for one in advice.changes:
        after = one.prediction
        lines.append(f"change {NAMES[one.setting]} from {one.before:g} to {one.after:g}: {name} {_words(after)}")
        cost = COSTS[one.setting][one.after < one.before]
        lines.append(f"  costs: {cost}; {_difference(before, after)}")
        before = after
    if before.latency_ms > target_ms:
        busy = "; brokers are busy: add brokers, or lower the number of requests" if before.busy > 0.8 else ""
        lines.append(f"the target of {target_ms:g} ms is not met by linger, batch size and fetchers alone{busy}")
    return "\n".join(lines)


def _words(one: Prediction) -> str:
    parts = ", ".join(f"{part} {value:.2f}" for part, value in one.parts_ms.items())
    short = "" if one.delivers > 0.95 else f", only {one.delivers:.0%} of the throughput"
    return f"{one.latency_ms:.2f} ms ({parts}), brokers {one.busy:.0%} busy{short}"


def _difference(before: Prediction, after: Prediction) -> str:
    values: Mapping[str, float] = {
        "produce requests": after.requests_s / max(before.requests_s, 1e-9) - 1,
        "brokers' work": after.busy / max(before.busy, 1e-9) - 1,
    }
    return ", ".join(f"{name} {value:+.0%}" for name, value in values.items())
