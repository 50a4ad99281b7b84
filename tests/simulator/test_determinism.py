"""A seed is a run: every scenario's whole trace is the same in two processes that hash differently; where it is not,
the first event that differs is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller.simulator.columns import first_difference
from controller.trace_records import TraceRecord, decode_record
from tests.simulator.determinism import PARTS, scenarios

ROOT = Path(__file__).parents[2]


def two_runs(folder: Path, *words: str) -> list[Path]:
    """The folders that two processes, side by side, have written their traces to."""
    folders, running = [], []
    for hash_seed in ("0", "4242"):
        folders.append(folder / hash_seed)
        folders[-1].mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.simulator.determinism", str(folders[-1]), *words]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for process in running:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
    return folders


def records(file: Path) -> list[TraceRecord]:
    return [decode_record(line) for line in file.read_bytes().splitlines()]


def differences(folders: list[Path]) -> dict[str, str]:
    """By scenario, the first event that is not the same in both."""
    first, second = ({file.stem: file for file in sorted(folder.iterdir())} for folder in folders)
    assert first.keys() == second.keys()
    found = {}
    for name, file in first.items():
        if file.read_bytes() != second[name].read_bytes():
            found[name] = first_difference(records(file), records(second[name])) or "the bytes alone"
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_every_scenario_is_the_same_run_whatever_python_hashes(part: int, tmp_path: Path) -> None:
    folders = two_runs(tmp_path, str(part))
    assert len([*folders[0].iterdir()]) >= len([*scenarios()]) // PARTS
    assert differences(folders) == {}


def test_chance_that_depends_on_a_hash_is_found_and_its_first_event_named(tmp_path: Path) -> None:
    found = differences(two_runs(tmp_path, "--planted"))
    assert len(found) == 1
    told = next(iter(found.values()))
    assert told.startswith("event ")
    assert " in one run, " in told
