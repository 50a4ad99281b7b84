"""Values that no command can mean, for every option of every command: refused by the parser, before anything is done.

The tables are made from the parsers themselves. An option that is new is in them; one of a kind that is not known here
fails, so that somebody decides what it takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.cli import simulate_plan
from controller.cli.values import output_file, output_folder, seeds
from tests.cli.ending import status_of
from tests.cli.parsers import POSITIONALS, options, parsers

ABSURD = (
    "-1",
    "-5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 25,
    "-" + "9" * 25,
    "",
    " ",
    "x",
    "1x",
    "0x10",
    "1,,2",
    "1..2..3",
)
TEXTS = frozenset(
    [
        "--designs",
        "--lose",
        "--master",
        "--model",
        "--only",
        "--override",
        "--percentiles",
        "--rates",
        "--reason",
        "--set",
    ]
    + ["--sizes", "--zookeeper", "--experiment"]
)
"""Options whose value is a text with a form of its own, which the command checks."""
READ = {"--config", "--spec", "--times", "--tree", "--zookeeper-config", "--zookeeper-jars", "paths"}
"""Paths that a command reads: each says so itself if nothing is there."""
NAMES = {"scenario", "subject", "topic", "what"}


def kind(option: argparse.Action) -> str:
    """What sort of value an option takes: "number", "seeds", "output", "text", "read", "name", "choice" or "own"."""
    name = (option.option_strings or [option.dest])[-1]
    if option.choices is not None and option.type in (None, str):
        return "choice"
    if getattr(option.type, "__qualname__", "").partition(".")[0] in ("integer", "_real"):
        return "number"
    if option.type is seeds:
        return "seeds"
    if option.type in (output_file, output_folder) or name == "--page":
        return "output"
    if option.type in (None, Path) and (name in READ or name in NAMES or name in TEXTS):
        return "text"
    return "own" if option.type not in (int, float, str, None, Path) else "unknown"


CASES = [(words, option) for words, parser in parsers() for option in options(parser)]


def named(case: Any) -> str:
    return "-".join(case) if isinstance(case, tuple) else str((case.option_strings or [case.dest])[-1])


def test_every_option_is_of_a_kind_that_is_checked() -> None:
    assert [(words, named(option)) for words, option in CASES if kind(option) == "unknown"] == []
    assert len(CASES) > 80


@pytest.mark.parametrize(
    ("words", "option"), [case for case in CASES if kind(case[1]) in ("number", "seeds", "own")], ids=named
)
def test_a_number_that_no_one_can_mean_is_refused(
    words: tuple[str, ...], option: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.option_strings[-1]
    parse: Callable[[str], object] = option.type  # type: ignore[assignment]
    refused = []
    for value in ABSURD:
        try:
            parse(value)
        except (argparse.ArgumentTypeError, ValueError):
            refused.append(value)
    assert refused == [*ABSURD] or (refused and kind(option) == "own")
    assert status_of([*words, *POSITIONALS.get(words[0], []), f"{name}={refused[0]}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"argument {name}: " in said.err


@pytest.mark.parametrize(("command", "option"), [case for case in CASES if kind(case[1]) == "output"], ids=named)
def test_a_place_that_can_not_be_written_is_refused(
    command: tuple[str, ...], option: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    """/proc lets root write by its permission bits, and refuses nevertheless."""
    name = option.option_strings[-1]
    assert status_of([*command, *POSITIONALS.get(command[0], []), name, "/proc/x"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"argument {name}: " in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "swarm", "--seed", "-1"], "expected an integer from 0 to 9223372036854775807, got '-1'"),
        (["simulate", "swarm", "--seeds=-5..5"], "expected A..B with 0 <= A <= B"),
        (["simulate", "swarm", "--seeds", "0..99999999999"], "expected at most 1000000000 seeds"),
        (["simulate", "broker-kill", "--until", "-5"], "expected a number above 0"),
        (["cluster", "--session-timeout-ms", "1"], "expected an integer from 100 to 120000, got '1'"),
        (["cluster", "--brokers", "1000000"], "expected an integer from 1 to 1000"),
        (["cluster", "--port", "70000"], "expected an integer from 1 to 65535"),
    ],
)
def test_what_was_met(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(words) == 2
    assert said in capsys.readouterr().err


def test_a_seed_that_holds_leaves_nothing_to_shrink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    least = tmp_path / "least.toml"
    assert status_of(["simulate", simulate_plan.SWARM, "--seed", "1", "--shrink", str(least)]) == 0
    assert f"no violation; {least} was not written" in capsys.readouterr().err
    assert not least.exists()
