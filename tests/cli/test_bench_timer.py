"""`camerlengo bench timer`, small: every peer does the same work, the figures are there, a bound that is not held is
told, and memory that grows is seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.labs.virtual_timer import VirtualTimer
from controller.timer import TimerTask
from tests.benchmarks import timer as bench_timer
from tests.benchmarks.timer import (
    PEERS,
    Costs,
    Peer,
    Ratio,
    TimerFigures,
    TimerMemory,
    measure_operations,
    random_delays,
    table,
)
from tests.cli.ending import status_of

PAGE = Path(__file__).parents[2] / "docs" / "timer-figures.md"


def test_a_small_run_measures_every_peer_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "bench",
        "timer",
        "--timers",
        "2000",
        "--rounds",
        "1",
        "--operations",
        "2000",
        "--clock-seconds",
        "1",
        "--json",
    ]
    page = tmp_path / "figures.md"
    shutil.copy(PAGE, page)
    assert main([*words, "--plots", str(tmp_path), "--page", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["costs"]) == set(PEERS)
    assert found["costs"]["sched"]["cancel"] is None
    assert all(cost > 0 for costs in found["costs"].values() for cost in costs.values() if cost is not None)
    assert list(found["moving"]["wheel"]) == ["200", "2000"]
    assert len(found["operations"]) == 10
    assert len(found["ratios"]) == 7
    idle, sparse, expiring, cancelled = found["clock"]
    assert (idle["wakes"], idle["polls"]) == (0, 0)
    assert idle["ticks"] >= 1_000
    assert sparse["empty_polls"] == expiring["empty_polls"] == 0
    assert cancelled["empty_polls"] <= cancelled["polls"]
    rows = page.read_text(encoding="utf-8").splitlines()
    assert sum(row.startswith("| wheel |") for row in rows) == 3
    assert sum(row.startswith("| 1,000 a second, ") for row in rows) == 2
    assert (tmp_path / "timer-moving-clock.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--timers", "9"], "expected an integer from 1000"), (["--rounds", "0"], "expected an integer from 1")],
)
def test_what_can_not_be_measured_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["bench", "timer", *words]) == 2
    assert message in capsys.readouterr().err


def figures(pair: float) -> TimerFigures:
    costs = {name: Costs(1, 1, 100, 1_000) for name in ("heapq, lazy", "asyncio")}
    costs["wheel"] = Costs(1, None, pair, 100)
    moving = {"wheel": {10: 1.0, 100: 1.4}}
    return TimerFigures(False, 100, 1, costs, moving, {"wheel": TimerMemory(96, 0)}, {10: 1}, [])


def test_ratios_say_which_bounds_hold() -> None:
    held = figures(19).ratios()
    assert [ratio.holds for ratio in held] == [True] * 7
    assert [ratio.holds for ratio in figures(50).ratios()] == [True, False] + [True] * 5
    assert held[4] == Ratio("moving clock, 100 outstanding over 10", 1.4, 1.5)
    assert sum("not held" in line for line in table(figures(50))) == 1


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_runs_what_it_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be quick at nothing."""
    ran: list[None] = []
    monkeypatch.setattr(bench_timer, "nothing", lambda: ran.append(None))
    peer = PEERS[name]()
    due = peer.delays_for([5, 1, 60_000, 5, 200, 1_000])
    handles = [None] * 6
    peer.add(due, handles)
    if peer.cancels_in_constant_time:
        peer.cancel(handles[1:3])
        peer.add_and_cancel(due)
    peer.expire(60_001)
    assert len(ran) == (4 if peer.cancels_in_constant_time else 6)


@pytest.mark.parametrize("name", [name for name in PEERS if name != "sched"])
def test_every_peer_replaces_while_its_clock_moves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two a millisecond: the 1 ms timers run when the clock moves, the others are replaced before."""
    ran: list[None] = []
    monkeypatch.setattr(bench_timer, "nothing", lambda: ran.append(None))
    peer = PEERS[name]()
    handles = [None] * 4
    peer.add(peer.delays_for([1_000] * 4), handles)
    peer.replace(peer.delays_for([1, 1_000, 1, 1_000]), [0, 1, 0, 1], handles, 2)
    assert len(ran) == 2
    peer.cancel(handles)
    peer.expire(60_001)
    assert len(ran) == 2


def test_delays_are_half_short_and_half_long_and_the_seed_s() -> None:
    delays_ms = random_delays(10_000, 7)
    assert delays_ms == random_delays(10_000, 7) != random_delays(10_000, 8)
    short = sum(1 <= delay_ms <= 200 for delay_ms in delays_ms)
    assert short + sum(1_000 <= delay_ms <= 60_000 for delay_ms in delays_ms) == 10_000
    assert 4_700 < short < 5_300


class Keeps(VirtualTimer):
    """A planted leak: what is cancelled is kept."""

    kept: list[TimerTask]

    def cancel(self, task: TimerTask) -> bool:
        self.kept.append(task)
        return super().cancel(task)


def growth(operations: int) -> int:
    """Bytes gained from half of the operations to the end."""
    found = list(measure_operations(operations, 1).values())
    return found[-1] - found[4]


def test_operations_leave_the_memory_where_it_was_and_a_leak_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a million here; `bench timer --operations 10000000` for more."""
    assert growth(200_000) < 200_000  # of 10,000 slots: due times become integers of their own
    make = bench_timer.WheelPeer

    def leaking() -> Peer:
        peer = make()
        peer.timer = Keeps()
        peer.timer.kept = []
        return peer

    monkeypatch.setattr(bench_timer, "WheelPeer", leaking)
    assert growth(100_000) > 1_000_000
