"""The command line as a whole: what it says of itself, and of what it does not know."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from controller.cli import bench
from controller.cli.main import COMMANDS, main


def test_it_tells_its_version_and_pythons(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    python = f"{platform.python_implementation()} {platform.python_version()}"
    assert said == f"camerlengo {version('camerlengo')} ({python})\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    first_words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")}
    assert ended.value.code == 0
    assert set(COMMANDS) <= first_words


def test_a_command_that_is_not_there_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["elect"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "elect" in said
    assert all(name in said for name in COMMANDS)


@pytest.mark.parametrize("words", [["--version"], ["--help"]], ids=" ".join)
def test_version_and_help_import_no_command(words: list[str]) -> None:
    """They take 0.1 s of CPU time; with every command imported they took 1.3 s."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "controller.cli", *words], capture_output=True, text=True
    )
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if "|" in line}
    assert ended.returncode == 0
    own = {name for name in imported if name.partition(".")[0] in ("controller", "statemachines")}
    assert own <= {"controller", *(f"controller.cli{each}" for each in ("", ".main", ".interrupts", ".subcommands"))}
    assert "argparse" in imported


def test_a_subcommands_help_imports_its_module_alone() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "controller.cli", "bench", "timer", "--help"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0
    assert "controller.timer" in ended.stderr
    assert "tests.benchmarks.clusters" not in ended.stderr
    assert "kazoo" not in ended.stderr


def test_benchmarks_need_a_source_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    for words in (["bench"], ["bench", "timer", "--timers", "1"]):
        assert main(words) == 3
        assert capsys.readouterr().err == "camerlengo bench: benchmarks need a source checkout of camerlengo\n"
