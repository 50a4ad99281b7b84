"""The purgatory's figures as a table for its page, and as plots beside what was published. Values in, words out."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.pages import markdown
from tests.benchmarks.plots import Line, Mark, Panel
from tests.benchmarks.purgatory_runs import Run

PUBLISHED_NEW = 105_000
"""Requests a second at which the new design shows no degradation, few or many of them timing out; the most that was
asked of it. Source: Confluent, "Apache Kafka, Purgatory, and Hierarchical Timing Wheels", on the JVM."""
PUBLISHED_OLD = {"20/60 ms": 40_000, "200/400 ms": 25_000}
"""Where the old one saturates. Same source."""
DRAWN = ("new", "old", "load")
ABSENT = "-"


def page_table(runs: Sequence[Run], circumstances: str) -> list[str]:
    """A column a load, a row for each thing that is asked of the figures; then how they came about."""
    loads = list(dict.fromkeys(one.load for one in runs))
    rows: list[list[str]] = []
    for design in DRAWN:
        real = [one for one in runs if (one.clock, one.design) == ("real", design)]
        if real:
            named = "the load by itself" if design == "load" else f"{design} design"
            of = [[one for one in real if one.load == load] for load in loads]
            rows.append([f"{named} holds", *(_held(some) for some in of)])
            rows.append([f"{named}, the most asked", *(_most(some) for some in of)])
        virtual = [one for one in runs if (one.clock, one.design) == ("virtual", design)]
        if virtual:
            named = "the load by itself" if design == "load" else f"{design} design"
            cells = [[one for one in virtual if one.load == load] for load in loads]
            rows.append([f"{named}, virtual clock", *(_virtual(some) for some in cells)])
    published = [
        f"{PUBLISHED_NEW:,}; the old {PUBLISHED_OLD[load]:,}" if load in PUBLISHED_OLD else ABSENT for load in loads
    ]
    rows.append(["published: the new holds", *published])
    return [*markdown(["50th/75th percentile", *loads], rows), "", circumstances]


def _held(runs: Sequence[Run]) -> str:
    held = [one.target for one in runs if one.held]
    return f"{_thousands(max(held))} requests/s" if held else f"not {_thousands(min(one.target for one in runs))}"


def _most(runs: Sequence[Run]) -> str:
    most = max(runs, key=lambda one: one.target)
    late = "never all answered" if most.late_ms is None else f"the last answer {most.late_ms:.0f} ms late"
    return f"{_thousands(most.achieved)} of {_thousands(most.target)}, {late}; {most.cpu_us:.1f} µs CPU a request"


def _virtual(runs: Sequence[Run]) -> str:
    if not runs:
        return ABSENT
    best = runs[0].best
    fastest = "" if best is None else f", {best:,.0f} in the fastest 50,000"
    return f"{runs[0].achieved:,.0f} requests a CPU second{fastest}"


def _thousands(rate: float) -> str:
    """To three digits or so: a schedule drawn at random is a little off the rate that it was drawn for."""
    return f"{round(rate, -3 if rate >= 10_000 else -2):,.0f}"


def panels(runs: Sequence[Run]) -> list[Panel]:
    """For each load: achieved against target with the published marks, and CPU time against target."""
    real = [one for one in runs if one.clock == "real"]
    found: list[Panel] = []
    for load in dict.fromkeys(one.load for one in real):
        of = {design: [one for one in real if (one.load, one.design) == (load, design)] for design in DRAWN}
        shown = [(design, rows, colour) for colour, (design, rows) in enumerate(of.items()) if rows]
        targets = {design: [one.target for one in rows] for design, rows, _ in shown}
        achieved = [Line(design, targets[design], [one.achieved for one in rows], at) for design, rows, at in shown]
        cpu = [Line(design, targets[design], [one.cpu_us for one in rows], at) for design, rows, at in shown]
        marks = [Mark(PUBLISHED_NEW, "published: the new still holds", 0)]
        if load in PUBLISHED_OLD:
            marks.append(Mark(PUBLISHED_OLD[load], "published: the old saturates", 1))
        title = f"50th/75th percentile {load}"
        found.append(Panel(title, "target (requests/s)", "achieved (requests/s)", achieved, diagonal=True, marks=marks))
        found.append(Panel(title, "target (requests/s)", "CPU time (µs a request)", cpu))
    return found
