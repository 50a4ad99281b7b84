"""The in-process part makes no call that macOS or Windows does not have, and gives the same simulated run there."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from tests.other_systems import STEPS


@cache
def output(platform: str, *steps: str) -> list[str]:
    command = [sys.executable, "-m", "tests.other_systems", platform, *steps]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150)
    return [*done.stdout.splitlines(), f"exit status {done.returncode}"]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_in_process_part_runs_with_what_another_system_has(platform: str) -> None:
    lines = output(platform)
    assert [line for line in lines if line.endswith(": ok")] == [f"{name}: ok" for name in STEPS], "\n".join(lines)
    assert lines[-1] == "exit status 0"


def test_a_seed_gives_the_same_run_on_each_system() -> None:
    lines = output("darwin") + output("win32") + output(sys.platform, "simulator")
    traces = [line for line in lines if line.startswith("trace ")]
    assert len(traces) == 3
    assert len(set(traces)) == 1
