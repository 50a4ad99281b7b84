"""`camerlengo zookeeper`: serves until it is told to end, leaves nothing behind, and says what it lacks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.zookeeper.embedded import four_letter_word
from tests.processes import eventually, running_with

COMMAND = [sys.executable, "-m", "controller.cli", "zookeeper"]


def started(*words: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    process = subprocess.Popen([*COMMAND, "--no-fsync", *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    match = re.fullmatch(r"zookeeper\.connect=(127\.0\.0\.1:\d+(?:,127\.0\.0\.1:\d+)*)\n", line)
    assert match, line
    return process, [int(host.partition(":")[2]) for host in match[1].split(",")]


@pytest.mark.parametrize("kind", ["python", "java"])
@pytest.mark.parametrize(
    ("told", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_it_ends_when_told_and_leaves_no_server(told: signal.Signals, status: int, kind: str, tmp_path: Path) -> None:
    process, (port,) = started(f"--zookeeper={kind}", "--data", str(tmp_path), "--min-session-timeout-ms", "1500")
    assert "minSessionTimeout=1500\n" in four_letter_word(port, "conf", 5.0)
    assert running_with(f"{tmp_path}/server-1")
    process.send_signal(told)
    assert process.wait(60) == status
    eventually(lambda: not running_with(f"{tmp_path}/server-1"), "the server is gone")
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.stdout.close()


def test_three_servers_are_an_ensemble() -> None:
    process, ports = started("--servers", "3")
    modes = sorted(four_letter_word(port, "srvr", 5.0).partition("Mode: ")[2].partition("\n")[0] for port in ports)
    assert modes == ["follower", "follower", "leader"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()


def test_a_server_that_ends_by_itself_ends_the_command(tmp_path: Path) -> None:
    process, _ = started("--data", str(tmp_path))
    os.kill(int(running_with(f"{tmp_path}/server-1")[0].partition(":")[0]), signal.SIGKILL)
    assert process.wait(60) == 3
    assert process.stdout is not None
    process.stdout.close()


def test_the_port_that_was_asked_for_is_used_and_a_taken_one_is_named() -> None:
    process, (port,) = started()
    try:
        refused = ran("--port", str(port))
        assert refused.returncode == 3
        assert f"127.0.0.1:{port}: Address already in use" in refused.stderr
    finally:
        process.terminate()
        process.communicate(timeout=60)
    process, ports = started("--port", str(port))
    assert ports == [port]
    process.terminate()
    process.communicate(timeout=60)


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=False
    )


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    for result, status, complaint in (
        (ran("--zookeeper-jars", str(tmp_path)), 3, "no zookeeper-VERSION.jar"),
        (ran("--zookeeper=java", PATH=str(tmp_path), JAVA_HOME=""), 3, "apt-get install openjdk-17-jre-headless"),
        (ran("--servers", "2"), 2, "invalid choice"),
        (ran("--zookeeper=python", "--servers", "3"), 2, "3 servers need --zookeeper=java"),
        (ran("--zookeeper=python", "--zookeeper-jars", "jars"), 2, "jars needs --zookeeper=java"),
        (ran("--max-session-timeout-ms", "1"), 2, "expected 0 < min <= max"),
        (ran("--data", "/dev/null/data"), 2, "/dev/null/data"),
    ):
        assert result.returncode == status, result.stderr
        assert complaint in result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
