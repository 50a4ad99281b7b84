"""`camerlengo whatif` and `analyze`: what they print of a real cluster, and how they fail. Without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main

TREE = str(Path(__file__).parent.parent / "data" / "kafka-2.8.2" / "znodes-after-admin.txt")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["whatif", "--tree", TREE, "--worst", "0", *words]) == 0
    return capsys.readouterr().out


def test_a_person_reads_what_goes_with_each_broker(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--min-insync-replicas", "2")
    assert text.startswith("16 partitions on 3 live brokers; 0 have no replica that could lead\n")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line[:1].isdigit()}
    assert rows["1"][:4] == ["1", "0", "0", "1"]  # tmp1-0 has two replicas, one of them on broker 1
    assert rows["2"][:4] == ["2", "0", "0", "0"]


def test_a_program_reads_json(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(said(capsys, "--lose", "1,3", "--json"))
    assert (document["format"], document["partitions"], document["brokers"]) == (1, 16, [1, 2, 3])
    chosen, *brokers = document["lost"]
    assert (chosen["kind"], chosen["brokers"], chosen["offline_partitions"]) == ("chosen", [1, 3], ["tmp1-0"])
    assert chosen["leaders"] == {"2": 15}
    assert [each["name"] for each in brokers] == ["1", "2", "3"]
    assert sum(document["now"]["leaders"].values()) == 16


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["whatif", "--tree", TREE, "--lose", "1,9"], "not registered: 9"),
        (["whatif", "--tree", TREE, "--lose", "one"], "expected broker ids"),
        (["whatif", "--tree", TREE, "--worst", "0", "--heat-map", "x.svg"], "expected --worst"),
        (["whatif", "--tree", __file__], "not a tree"),
        (["analyze", "/nowhere/at/all"], "/nowhere/at/all: no such file or folder"),
        (["analyze", str(Path(TREE).parent / "log")], "neither trace.parquet nor"),
    ],
)
def test_what_makes_no_sense_is_named(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_a_question_that_needs_no_spark_imports_none() -> None:
    program = (
        "import sys; from controller.cli.main import main; import controller.cli.analyze, controller.cli.campaign;"
        f" main(['whatif', '--tree', {TREE!r}, '--worst', '0']); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
