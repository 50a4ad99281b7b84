"""One Spark session for all tests of the room: starting one costs more than most of them. And one run of a scenario on
real processes, which goes on while the session starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.pipeline.campaign import retrying
from controller.pipeline.session import spark_session

JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xmn200m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""The optimizing compiler doesn't pay for what runs once, nor does verifying the byte code of Spark's own jars."""

SMALL_JOBS = {
    "spark.sql.shuffle.partitions": "1",
    # Code made for a query, and plans changed while they run, don't pay for jobs this small.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": JVM,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with spark_session("tests", retrying("local[2]"), SMALL_JOBS) as session:
        yield session


SCENARIO = "controller-kill"
CHAOS_S = 170.0


@pytest.fixture(scope="session")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """SCENARIO on real processes, as a command that runs, and the folder of its report."""
    folder = tmp_path_factory.mktemp("chaos") / "real"
    words = [sys.executable, "-m", "controller.cli", "chaos", SCENARIO, "--set", "rate=200", "--report", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        yield command, folder
        command.terminate()


@pytest.fixture(scope="session")
def real_run(chaos: tuple[subprocess.Popen[str], Path], spark: Any) -> Path:
    """The report of that run, once it has ended."""
    command, folder = chaos
    told, _ = command.communicate(timeout=CHAOS_S)
    assert command.returncode == 0, told
    return folder
