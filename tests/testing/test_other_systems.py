"""The in-process part makes no call that macOS or Windows lacks, and runs on a machine that lacks something."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from controller.testing import Kafka
from tests.other_systems import STEPS


@cache
def output(module: str, *words: str) -> list[str]:
    command = [sys.executable, "-m", f"tests.{module}", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150)
    return [*done.stdout.splitlines(), f"exit status {done.returncode}"]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_in_process_part_runs_with_what_another_system_has(platform: str) -> None:
    lines = output("other_systems", platform)
    assert [line for line in lines if line.endswith(": ok")] == [f"{name}: ok" for name in STEPS], "\n".join(lines)
    assert lines[-1] == "exit status 0"


def test_a_seed_gives_the_same_run_on_each_system() -> None:
    lines = [
        *output("other_systems", "darwin"),
        *output("other_systems", "win32"),
        *output("other_systems", sys.platform, "simulator"),
    ]
    traces = [line for line in lines if line.startswith("trace ")]
    assert len(traces) == 3
    assert len(set(traces)) == 1


@pytest.mark.parametrize("lacks", ["no-ipv6+no-hostname+proxy+no-home", "read-only+full-tmp"])
def test_the_in_process_part_runs_on_a_machine_that_lacks_something(lacks: str) -> None:
    steps = ["cluster", "zookeeper", "fake_kazoo"]
    lines = output("other_machines", lacks, *steps)
    assert [line for line in lines if line.endswith(": ok")] == [f"{name}: ok" for name in steps], "\n".join(lines)


def test_a_directory_that_can_not_be_written_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "broker-1").write_text("a file in its place")
    with pytest.raises(OSError, match="broker-1"):
        Kafka(directory=tmp_path).start()
