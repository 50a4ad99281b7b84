"""`camerlengo bench schemes`: its figures are of what it says, its crossing is where the model's lines cross, and its
plots are pictures. No figure is held to a bound here."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from controller.cli.main import COULD_NOT_RUN, USAGE_ERROR, main
from controller.labs.cost_model import WheelMemory, mean_migrations
from controller.labs.schemes import CATALOGUE, Entry, OrderedList, Scheme, SchemeTimer, UnorderedList
from tests.benchmarks import schemes as bench_schemes
from tests.benchmarks.common import CouldNotRun, Line, Look, Mark, Panel, save
from tests.benchmarks.scheme_steps import LOADS, CountedTick, StepCount, count_steps, measure_shapes
from tests.benchmarks.schemes import (
    CROSSING_PNG,
    CURVES_PNG,
    Sweep,
    crossing_of,
    fill,
    growth,
    measure_point,
    measured_crossing,
    model_lines,
    sizes,
)
from tests.cli.ending import status_of

QUICK = (
    "bench",
    "schemes",
    "--most",
    "100",
    "--slots",
    "64",
    "--outstanding",
    "1000",
    "--cpu-ms",
    "1",
    "--counted",
    "20",
)
PAGE = Path(__file__).parents[2] / "docs" / "timer.md"
PNG = b"\x89PNG\r\n\x1a\n"
MEMORY = WheelMemory(256, 3)


def model_sweep(index: float, migrate: float, memory: WheelMemory = MEMORY) -> Sweep:
    """A machine that does exactly as the model says."""
    outstanding, intervals = 50_000, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]
    hashed = [outstanding * index / memory.slots for _ in intervals]
    moves = [mean_migrations(2 * interval, memory.slots // memory.wheels) for interval in intervals]
    hierarchical = [outstanding * mean * migrate / interval for mean, interval in zip(moves, intervals, strict=True)]
    return Sweep(outstanding, memory, intervals, hashed, hierarchical, hashed, hierarchical)


@pytest.mark.parametrize(("index", "migrate"), [(100.0, 800.0), (100.0, 500.0), (50.0, 900.0)])
def test_on_a_machine_that_does_as_the_model_says_the_prediction_is_what_is_measured(
    index: float, migrate: float
) -> None:
    sweep = model_sweep(index, migrate)
    crossing = crossing_of(sweep)
    assert crossing.costs.index == pytest.approx(index)
    assert crossing.costs.migrate == pytest.approx(migrate)
    assert crossing.measured == pytest.approx(crossing.predicted, rel=0.1)
    assert crossing.predicted < crossing.bound == 3 * 256 * migrate / index
    hashed, most, mean = model_lines(sweep, crossing)
    assert hashed == pytest.approx(sweep.hashed_work_ns)
    assert mean == pytest.approx(sweep.hierarchical_work_ns)
    assert all(one < other for one, other in zip(mean, most, strict=True))


def test_a_machine_that_does_otherwise_shows() -> None:
    """Were a migration dearer the longer the intervals are, the measured crossing would leave the predicted one."""
    sweep = model_sweep(100.0, 800.0)
    dearer = [
        work * (interval / 1_000) ** 0.6
        for work, interval in zip(sweep.hierarchical_work_ns, sweep.intervals, strict=True)
    ]
    crossing = crossing_of(replace(sweep, hierarchical_work_ns=dearer))
    assert crossing.measured is not None
    assert crossing.measured > crossing.predicted * 2


def test_lines_that_do_not_cross_have_no_crossing() -> None:
    assert measured_crossing(model_sweep(100.0, 1.0)) is None
    assert measured_crossing(model_sweep(1.0, 5_000.0)) is None


def test_costs_of_nothing_are_refused() -> None:
    sweep = model_sweep(100.0, 800.0)
    with pytest.raises(CouldNotRun, match=r"costs of -100\.0 and 800\.0 ns"):
        crossing_of(replace(sweep, hashed_work_ns=[-work for work in sweep.hashed_work_ns]))


def test_a_scheme_is_filled_with_as_many_timers_as_said_most_of_them_soon_due() -> None:
    from random import Random

    scheme = OrderedList()
    fill(scheme, 1_000, 2_000, Random(1))
    assert len(scheme) == 1_000
    # What is left of a uniform interval is under half of the longest in three quarters of all cases.
    assert scheme.advance_to(1_000) == pytest.approx(750, abs=50)
    assert scheme.advance_to(2_000) + 1_000 - len(scheme) > 0
    assert len(scheme) == 0


class _Miscounting(UnorderedList):
    """Counts each timer twice."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        super()._insert(timer, interval)
        self._outstanding += 1


def test_a_scheme_that_loses_count_gives_no_figures() -> None:
    def make(longest: int, slots: int) -> Scheme:
        return _Miscounting()

    entry: Entry = replace(CATALOGUE[0], make=make)
    with pytest.raises(RuntimeError, match=r"unordered list: \d+ timers of 100 are left"):
        measure_point(entry, 100, 64, 1_000_000, 1)


@pytest.mark.parametrize(
    ("most", "expected"), [(100, [100]), (999, [100, 300]), (10_000, [100, 300, 1_000, 3_000, 10_000])]
)
def test_sizes_go_up_to_the_most(most: int, expected: list[int]) -> None:
    assert sizes(most) == expected


def test_growth_is_the_power_of_n() -> None:
    counts = [100, 300, 1_000]
    assert growth(counts, [1.0, 1.0, 10.0]).strip() == "1.00"
    assert growth(counts, [5.0, 6.0, 5.0]).strip() == "0.00"
    assert growth([100, 300], [1.0, 2.0]).strip() == "-"


@pytest.fixture
def sweep_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little is measured in a quick run that a busy machine could drown it: it is measured, and then replaced."""
    measured = bench_schemes._sweep

    def sweep(outstanding: int, memory: WheelMemory, seed: int) -> Sweep:
        found = measured(outstanding, memory, seed)
        assert (found.outstanding, found.memory) == (1_000, WheelMemory(63, 3))
        assert all(work > 0 for work in (*found.hashed_ns, *found.hierarchical_ns))
        return model_sweep(100.0, 800.0, memory)

    monkeypatch.setattr(bench_schemes, "_sweep", sweep)
    monkeypatch.setattr(bench_schemes, "INTERVALS", (500, 1_000))


@pytest.mark.usefixtures("sweep_of_the_model")
def test_a_quick_run_prints_all_figures_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "timer.md"
    shutil.copy(PAGE, page)
    assert main([*QUICK, "--json", "--plots", str(tmp_path / "plots"), "--page", str(page)]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [point["scheme"] for point in found["points"]] == [entry.name for entry in CATALOGUE]
    assert all(point[f"{name}_ns"] > 0 for point in found["points"] for name in ("start", "stop", "tick"))
    assert found["sweep"]["memory"] == {"slots": 63, "wheels": 3}
    assert found["crossing"]["measured"] == pytest.approx(found["crossing"]["predicted"], rel=0.05)
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted([CURVES_PNG, CROSSING_PNG])
    assert all(path.read_bytes().startswith(PNG) for path in (tmp_path / "plots").iterdir())
    assert "100 timers: ordered list" in said.err
    assert found["steps"]["timers"] == 20
    assert [shape["slots"] for shape in found["shapes"]] == [8_640_000, 244, 220, 120]
    rows = page.read_text(encoding="utf-8").splitlines()
    for entry in CATALOGUE:
        in_the_list = 1 if entry.number in (2, 3, 5) else 0
        assert sum(row.startswith(f"| {entry.number} {entry.name} |") for row in rows) == 3 + in_the_list


def test_plots_that_can_not_be_written_are_an_error_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, **_: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    assert main([*QUICK, "--plots", str(tmp_path / "plots")]) == COULD_NOT_RUN
    said = capsys.readouterr().err
    assert said.startswith("camerlengo bench: ")
    assert "timers:" not in said


def test_the_table_has_the_schemes_the_sweep_and_the_crossing() -> None:
    points = [measure_point(entry, 100, 64, 100_000, 1) for entry in CATALOGUE]
    sweep = model_sweep(100.0, 800.0)
    words = bench_schemes.table(points, sweep, crossing_of(sweep))
    for entry in CATALOGUE:
        assert words.count(f"\n{entry.name} ") == 3
    assert "c(index) 100 ns, c(migrate) 800 ns" in words
    assert "with 3 migrations a timer 6,144" in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--most", "99"), "--most: expected an integer from 100"),
        (("--slots", "8"), "--slots: expected an integer from 64"),
        (("--cpu-ms", "0"), "--cpu-ms: expected an integer from 1"),
    ],
)
def test_input_that_makes_no_sense_is_a_usage_error(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["bench", "schemes", *words]) == USAGE_ERROR
    assert message in capsys.readouterr().err


def test_a_panel_of_each_look_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    lines = [Line(look.value, [1, 10, 100], [1, 2, 3], place, look) for place, look in enumerate(Look)]
    plain = Panel("plain", "x", "y", lines[:1])
    panels = [Panel("all", "x", "y", lines, log_x=True, log_y=True, marks=[Mark(5, "here")]), plain]
    save(tmp_path / "one.png", "title", [*panels, replace(plain, diagonal=True)])
    save(tmp_path / "two.png", "title", [*panels, replace(plain, diagonal=True)])
    save(tmp_path / "without.png", "title", [*panels, plain], columns=2)
    one = (tmp_path / "one.png").read_bytes()
    assert one.startswith(PNG)
    assert one == (tmp_path / "two.png").read_bytes() != (tmp_path / "without.png").read_bytes()


ENTRY = {entry.name: entry for entry in CATALOGUE}


def steps(name: str, load: str, kind: str, timers: int = 256, slots: int = 64) -> StepCount:
    return count_steps(ENTRY[name], load, timers, slots).by_kind[kind]


def test_comparisons_are_counted_in_the_library_s_heap_too() -> None:
    one, other = CountedTick(5), CountedTick(7)
    before = CountedTick.compared
    assert [one < other, one + 2 == other, other - 2 <= one, bool(one >> 3), divmod(other, 4) == (1, 3)].count(
        True
    ) == 4
    assert CountedTick.compared - before == 5
    assert steps("heap, lazy stop", "falling", "start").worst >= 8


def test_the_same_load_is_the_same_count_each_time() -> None:
    for entry in CATALOGUE:
        assert count_steps(entry, "random", 60, 64) == count_steps(entry, "random", 60, 64)


def test_a_start_costs_what_is_published() -> None:
    """Worst n in an ordered list, log n in a heap and a balanced tree, constant in a list and in wheels."""
    worst = {name: max(steps(name, load, "start").worst for load in LOADS) for name in ENTRY}
    assert worst["ordered list"] == worst["tree, unbalanced"] == 256
    assert worst["hashed wheel, ordered"] == worst["hashed wheel, 2^k slots"] >= 256 * 7 // 8
    assert worst["tree, balanced"] <= 1.45 * 8 + 1
    assert worst["heap, indexed"] <= 2 * 8
    assert worst["unordered list"] == worst["hashed wheel, unordered"] == 1
    assert worst["simple wheel"] == 2


def test_a_tick_costs_what_is_published() -> None:
    for name in ("unordered list", "hashed wheel, unordered"):
        assert steps(name, "one slot", "tick").worst == 256
    assert steps("hashed wheel, ordered", "random", "tick").mean < 3
    assert steps("simple wheel", "random", "tick").total == 0


def test_equal_intervals_are_the_worst_of_an_unbalanced_tree_and_the_best_of_an_ordered_list() -> None:
    assert steps("tree, unbalanced", "equal", "start").mean == pytest.approx(128, abs=1)
    assert steps("tree, balanced", "equal", "start").mean < 9
    assert steps("ordered list", "equal", "start").worst <= 2


def test_the_fifth_scheme_is_constant_while_its_hash_is_good() -> None:
    assert steps("hashed wheel, 2^k slots", "random", "start", timers=64, slots=256).mean < 1.5
    assert steps("hashed wheel, 2^k slots", "one slot", "start", timers=64, slots=256).mean > 25


def test_wheels_with_units_migrate_as_often_as_uniform_ones() -> None:
    flat, units, uniform, small = measure_shapes(500)
    assert (flat.slots, units.slots, uniform.slots, small.slots) == (8_640_000, 244, 220, 120)
    assert (units.wheels, uniform.wheels, small.wheels) == (4, 4, 6)
    assert (units.most_migrations, uniform.most_migrations, small.most_migrations) == (3, 3, 5)
    assert units.migrations == pytest.approx(uniform.migrations, abs=0.1)
    assert small.migrations > units.migrations + 1
    assert small.memory_bytes < units.memory_bytes < flat.memory_bytes / 10_000


def test_lines_and_plots_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 'a': 2 x and 1 y"):
        Line("a", [1, 2], [1], 0)
    with pytest.raises(ValueError, match="line 'a': colour 7"):
        Line("a", [], [], 7)
    with pytest.raises(ValueError, match="no panel"):
        save(tmp_path / "none.png", "title", [])
