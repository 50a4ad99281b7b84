"""`camerlengo lab latency --model`: the published experiments at full size in virtual time, as text, JSON and plots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from controller.cli.workers import each_seed
from controller.labs.latency.cluster_model import ClusterShape, ServiceTimes
from controller.labs.latency.experiments import EXPERIMENTS
from controller.labs.latency.service_times import MEASURED, NETWORK_THREADS, THREADS
from tests.benchmarks.common import CouldNotRun, Line, Look, Panel, progress, save

CORES = 4
"""Of a broker's and of a client's machine: chosen. The publication's machines are not known here."""


def shape_of(times: str, threads: int | None) -> ClusterShape:
    """`times`: a name of MEASURED, or a file with the output of --calibrate. Raises CouldNotRun."""
    found = MEASURED.get(times)
    if found is None:
        try:
            found = msgspec.json.decode(Path(times).read_bytes(), type=ServiceTimes)
        except (OSError, msgspec.DecodeError) as error:
            known = ", ".join(MEASURED)
            raise CouldNotRun(f"service times {times!r}: expected {known} or a file of --calibrate: {error}") from error
    network = NETWORK_THREADS["kafka"] if found.network_us else 0
    tls = bool(found.tls_network_us)
    return ClusterShape(found, threads=threads or THREADS.get(times, 1), network_threads=network, cores=CORES, tls=tls)


def experiments(names: Sequence[str], shape: ClusterShape, seconds: float, workers: int) -> dict[str, Any]:
    """Each in a process of its own, with the seconds that it took. Raises CouldNotRun for an unknown name."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise CouldNotRun(f"experiment {unknown[0]!r}: expected {', '.join(EXPERIMENTS)}")
    found = {}
    results = each_seed(partial(_run, tuple(names), shape, seconds), range(len(names)), workers)
    for name, result in zip(names, results, strict=True):
        progress(f"model: {name}")
        found[name] = result
    return found


def _run(names: Sequence[str], shape: ClusterShape, seconds: float, number: int) -> dict[str, Any]:
    before_s = time.process_time()
    found = EXPERIMENTS[names[number]](shape, seconds)
    return found | {"CPU s": round(time.process_time() - before_s, 1)}


def text_of(found: Mapping[str, Any]) -> str:
    return "\n".join(line for name, figures in found.items() for line in (f"{name}:", *_lines(figures), ""))


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, value in figures.items():
        if name == "rows":
            for row, cells in value.items():
                yield f"  {row}: " + ", ".join(f"{key} {cell}" for key, cell in cells.items())
        else:
            yield f"  {name}: {value}"


def draw(folder: Path, found: Mapping[str, Any]) -> list[Path]:
    """latency-partitions.png and latency-load.png, for E4 and E7."""
    made = []
    if "E4" in found:
        made.append(folder / "latency-partitions.png")
        save(made[-1], "p99 end to end by partitions (model)", list(_partition_panels(found["E4"]["rows"])), 2)
    if "E7" in found:
        made.append(folder / "latency-load.png")
        save(made[-1], "Waiting grows as busy / idle (model)", list(_load_panels(found["E7"])), 2)
    return made


def _partition_panels(rows: Mapping[str, Mapping[str, float]]) -> Iterator[Panel]:
    for column, title in (("p99 ms", "topic of 5 MB/s"), ("p99 ms beside", "topic of 9 partitions beside")):
        lines = []
        for colour, fetchers in enumerate((1, 2, 4)):
            chosen = {
                int(name.split()[0]): row[column]
                for name, row in rows.items()
                if name.endswith(f", {fetchers} fetchers")
            }
            lines.append(Line(f"{fetchers} fetchers", [*chosen], [*chosen.values()], colour))
        yield Panel(title, "partitions of the topic", "p99 ms", lines)


def _load_panels(found: Mapping[str, Any]) -> Iterator[Panel]:
    for name in ("produce alone", "with fetches"):
        rows = [row for row_name, row in found["rows"].items() if row_name.startswith(name)]
        if name in found:
            x, y = [row["busy/idle"] for row in rows], [row["wait ms"] for row in rows]
            start, slope = found[name]["ms = a + b * busy/idle"]
            fit = Line("least squares", [0.0, max(x)], [start, start + slope * max(x)], 0, Look.Computed)
            yield Panel(name, "busy / idle", "mean wait of a produce, ms", [Line("model", x, y, 0, Look.Points), fit])
