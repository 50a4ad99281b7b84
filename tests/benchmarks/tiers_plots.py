"""The plots of `camerlengo lab tiers`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.labs.tiers.figures import Case, Figures, LabMeasurement, LabRun
from controller.labs.tiers.workload import ARCHITECTURES, Flush, LogStorage
from tests.benchmarks.common import Line, Look, Panel, save

NAMES = [each.name for each in ARCHITECTURES]


def by_traffic(folder: Path, traffics_mb: Sequence[int], runs: Sequence[LabRun], found: Sequence[Figures]) -> None:
    """Draw latencies and shares over the traffic of a broker. `runs` and `found` go together, traffic by traffic."""

    def panel(title: str, label: str, name: str, log: bool = False, flush: Flush = Flush.Rate) -> Panel:
        lines = []
        for colour, architecture in enumerate(NAMES):
            y = [
                each[name]
                for run, each in zip(runs, found, strict=True)
                if (run.architecture.name, run.flush) == (architecture, flush)
            ]
            lines.append(Line(architecture, traffics_mb, [max(each, 0.1) if log else each for each in y], colour))
        return Panel(title, "traffic of a broker (MB/s)", label, lines, log_y=log)

    save(
        folder / "tiers-latency.png",
        "Latency by traffic, real-time and lagging consumers",
        [
            panel("Lagging consumers, mean read, flush by rate", "ms", "cold read mean ms", log=True),
            panel("Real-time consumers, p99 read, flush by rate", "ms", "real-time p99 ms", log=True),
            panel("Producers, mean write, flush by count", "ms", "write mean ms", log=True, flush=Flush.Count),
        ],
    )
    save(
        folder / "tiers-shares.png",
        "Where data is read, and real-time jobs, flush by rate",
        [
            panel("Reads from HDDs", "share of all reads", "HDD share"),
            panel("Reads of SSDs among those of devices", "SSD hit rate", "SSD hit rate"),
            panel("Real-time jobs in the best of five bands", "share of jobs", "band 1"),
        ],
    )


def disk_writes(path: Path, title: str, found: Mapping[LabRun, LabMeasurement]) -> None:
    """Draw what one HDD, or one SSD of the tiered log, writes by interval, flushed by count and by rate."""
    panels = []
    for storage, device in ((LogStorage.Disk, "hdd0"), (LogStorage.Tiered, "ssd0")):
        lines = []
        for colour, flush in enumerate(Flush):
            for run, each in found.items():
                here = (run.architecture.storage, run.architecture.bypass, run.flush, run.case)
                if here == (storage, False, flush, Case.RealTime):
                    rates = [nbytes / each.interval_s / 1e6 for nbytes in each.disk_writes[device]][:SHOWN]
                    x = [at * each.interval_s for at in range(len(rates))]
                    lines.append(Line(f"flush by {flush.value}", x, rates, colour))
        if lines:
            panels.append(Panel(f"{device} of {storage.value}", "seconds", "MB/s written", lines))
    if panels:
        save(path, f"{title}: writes of one device over time", panels)


SHOWN = 300


def agreement(
    folder: Path, real: Mapping[LabRun, Figures], model: Mapping[LabRun, Figures], names: Sequence[str]
) -> None:
    """Draw what was measured on the devices over what was simulated, a panel for each figure."""
    panels = []
    for name in names:
        lines = []
        for colour, architecture in enumerate(NAMES):
            pairs = [
                (model[run].get(name, math.nan), each.get(name, math.nan))
                for run, each in real.items()
                if run.architecture.name == architecture
            ]
            pairs = [pair for pair in pairs if not any(map(math.isnan, pair))]
            lines.append(Line(architecture, [x for x, _ in pairs], [y for _, y in pairs], colour, Look.Points))
        log = name.endswith(" ms")
        panels.append(Panel(name, "simulated", "physical", lines, log_x=log, log_y=log, diagonal=not log))
    save(folder / "tiers-agreement.png", "Physical and simulated", panels, columns=4)
