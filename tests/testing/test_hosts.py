"""One suite (tests/testing/on_any_host) on the hosts that need neither containers nor Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = "tests/testing/on_any_host"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("host", "skipped"), [("memory", 0), ("process", 1)])
def test_the_suite_passes(host: str, skipped: int, tmp_path: Path) -> None:
    words = [f"--kafka={host}", "--kafka-brokers=3", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/suite"]
    words += ["--kafka-timeout=90"]
    command = [sys.executable, "-m", "pytest", SUITE, *words]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{14 - skipped} passed" in result.stdout
