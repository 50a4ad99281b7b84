"""The suite of clusters for tests, with brokers in containers. It runs before the other tests' cluster is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.containers.machine import ROOT
from tests.programs import needs_programs

SUITE = "tests/testing/on_any_host"

pytestmark = [needs_programs, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("image")
def test_the_suite_passes(compose_files: tuple[Path, Path, Path], variables_file: Path, tmp_path: Path) -> None:
    """`-m`: so that programs are not hidden."""
    files = [f"--kafka-compose={path}" for path in compose_files]
    words = ["--kafka=docker", "--kafka-brokers=3", *files, f"--kafka-compose-env={variables_file}", "-q"]
    words += ["-m", "programs or not programs", "--durations=20", "--kafka-timeout=120", "--timeout=300"]
    command = [sys.executable, "-m", "pytest", SUITE, *words, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/suite"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "10 passed, 4 skipped" in result.stdout
