"""An installation without extras and a machine without Java: each command says in one line what to install, with exit
status 3, before it does anything; what needs neither works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.cli.requirements import CLIENTS, SPARK, missing
from controller.zookeeper import embedded
from tests.cli.parsers import POSITIONALS, options, parsers

ROOT = Path(__file__).parents[2]
TREE = str(ROOT / "tests/data/kafka-2.8.2/znodes-after-admin.txt")
EXTRAS = ("aiokafka", "confluent_kafka", "hypothesis", "kafka", "matplotlib", "pandas", "pyarrow", "pyspark", "simpy")

PROGRAM = """
import contextlib, io, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[1]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from controller.cli.main import main
found = []
for words in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as ended:
            status = ended.code
    found.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def ended(calls: list[list[str]], folder: Path, hidden: Sequence[str] = EXTRAS) -> list[Any]:
    """(status, standard output, standard error) of each call, without the `hidden` packages and without Java."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(hidden), json.dumps(calls)],
        env={name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
        | {"PATH": str(folder), "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


ALONE = {
    "broker": (["broker", "--override", "broker.rac=x"], 2),
    "cluster": (["cluster", "--override", "broker.rac=x"], 2),
    "zookeeper": (["zookeeper", "--max-session-timeout-ms", "1"], 2),
    "list": (["list"], 0),
    "stop": (["stop"], 3),
    "state": (["state", "--tree", TREE], 0),
    "explain": (["explain", "--tree", TREE], 0),
    "pause": (["pause"], 2),
    "simulate": (["simulate", "broker-kill", "--seed", "1", "--set", "records=false"], 0),
    "bench simulator": (["bench", "simulator", "scheduler", "--events", "10"], 0),
    "bench schemes": (["bench", "schemes", "--most", "1"], 2),
    "bench connections": (["bench", "connections", "--idle", "0"], 2),
    "bench hostile": (["bench", "hostile", "--only", "none"], 2),
    "bench timer": (["bench", "timer", "--timers", "1"], 2),
    "bench purgatory": (["bench", "purgatory", "--rates", "0"], 2),
    "bench watches": (["bench", "watches", "--sizes", "0"], 2),
    "bench groups": (["bench", "groups", "--members", "0"], 2),
    "bench compaction": (["bench", "compaction", "--megabytes", "0"], 2),
    "bench cold-reads": (["bench", "cold-reads", "--readers", "-1"], 2),
    "lab advise": (["lab", "advise", "--spec", "missing.toml"], 3),
    "lab tiers": (["lab", "tiers", "--cache-mb", "0"], 2),
}
"""Commands that need nothing, as they are called here: words, and the status that they end with."""
NEED_SPARK = {"analyze", "campaign", "whatif"}
START_ZOOKEEPER = ("chaos", "cluster", "zookeeper")
OPTIONS_THAT_NEED = {"--report", "--plots"}


def needing() -> Iterator[list[str]]:
    """All other commands; those that start a ZooKeeper with Apache's; and those of ALONE with the options that need
    something."""
    for words, parser in parsers():
        name = " ".join(words)
        rest = [*POSITIONALS.get(words[0], [])]
        if name in START_ZOOKEEPER:
            yield [*words, *rest, "--zookeeper=java"]
        if name not in ALONE:
            yield [*words, *rest, *(["--tree", TREE] if name == "whatif" else [])]
        for option in options(parser):
            if name in ALONE and OPTIONS_THAT_NEED & {*option.option_strings}:
                yield [*words, *rest, option.option_strings[-1], "somewhere"]


def test_a_command_says_in_one_line_what_it_needs(tmp_path: Path) -> None:
    calls = [*needing()]
    assert len(calls) > 10
    for words, (status, out, err) in zip(calls, ended(calls, tmp_path), strict=True):
        assert (status, out) == (3, ""), (words, status, out, err)
        assert err.count("\n") == 1, (words, err)
        assert err.startswith(f"camerlengo {words[0]}: needs "), (words, err)
        assert "pip install 'camerlengo[" in err, (words, err)
    assert [*tmp_path.iterdir()] == [], "nothing was done"


def test_what_needs_nothing_works(tmp_path: Path) -> None:
    calls = [words for words, _ in ALONE.values()] + [["--help"], ["whatif", "--tree", TREE, "--worst", "0"]]
    statuses = [status for _, status in ALONE.values()] + [0, 0]
    found = ended(calls, tmp_path)
    assert [status for status, _, _ in found] == statuses, [*zip(calls, found, strict=True)]


def test_a_scenario_runs_on_real_processes_without_java(tmp_path: Path) -> None:
    scenario = tmp_path / "start.toml"
    scenario.write_text(
        'name = "start"\n[cluster]\nbrokers = 1\n[[steps]]\ndo = "start"\n'
        '[[steps]]\ndo = "wait"\nuntil = "controller"\n'
    )
    ((status, out, err),) = ended([["chaos", str(scenario)]], tmp_path, hidden=("pyspark",))
    assert status == 0, (out, err)
    assert "verdict: pass" in out


def test_a_command_says_in_one_line_that_java_alone_is_missing(tmp_path: Path) -> None:
    calls = [words for words in needing() if words[0] in NEED_SPARK or "--zookeeper=java" in words]
    calls += [["zookeeper", "--servers=3"], ["cluster", "--zookeeper-servers=3"], ["chaos", "zookeeper-kill"]]
    assert {words[0] for words in calls} == NEED_SPARK | {*START_ZOOKEEPER}
    for words, (status, out, err) in zip(calls, ended(calls, tmp_path, hidden=()), strict=True):
        assert (status, out) == (3, ""), (words, status, out, err)
        assert err.startswith(f"camerlengo {words[0]}: needs a Java 17 runtime (no java on the PATH"), (words, err)
        assert err.count("\n") == 1, (words, err)
    assert [*tmp_path.iterdir()] == [], "nothing was done"


def test_java_alone_is_asked_for_where_it_alone_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    said = missing(SPARK)
    assert said is not None
    assert said.startswith("needs a Java 17 runtime (no java on the PATH")
    assert "pip" not in said
    assert missing(CLIENTS) is None


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_java_version", lambda java: 11)
    said = missing(SPARK)
    assert said is not None
    assert "is Java 11" in said
