"""`camerlengo stop`: whom it asks, what it reports, and that no other process is ever signalled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.running import folder, running_brokers
from tests.cli.test_cluster_command import Command
from tests.processes import eventually

BROKER = """
import os, signal, sys, time
from controller.cli.running import Announcement
ending, broker = sys.argv[1], int(sys.argv[2])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
with Announcement("broker") as announcement:
    announcement.put({"pid": os.getpid(), "broker.id": broker, "zookeeper.connect": sys.argv[3]})
    print("ready", flush=True)
    while not (asked and ending != "never"):
        time.sleep(0.01)
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    announcement.note_end(ending if ending != "stopped" else None)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


class Brokers:
    """Processes that announce themselves as brokers do, and end as `ending` says."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, ending: str, broker: int, connect: str = "127.0.0.1:1") -> None:
        words = [sys.executable, "-c", BROKER, ending, str(broker), connect]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("stopped", 0, "broker 7: stopped in "),
        ("t-0 would be left under min.insync.replicas", 1, "not in order: t-0 would be left under min.insync.replicas"),
        ("killed", 1, "without a shutdown (it was killed, or failed)"),
        ("never", 1, "still running after 0.3 s"),
    ],
)
def test_the_outcome_is_reported(
    ending: str, status: int, said: str, brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers.start(ending, 7)
    timeout = "0.3" if ending == "never" else "60"
    assert main(["stop", "--timeout", timeout]) == status
    assert said in capsys.readouterr().out


def test_only_the_brokers_that_are_named_are_asked(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    for broker in (1, 2):
        brokers.start("stopped", broker)
    assert main(["stop", "--broker", "2", "--broker", "3"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("broker 3: not running\nbroker 2: stopped")
    assert brokers.processes[0].poll() is None
    assert main(["stop", "--broker", "4"]) == 3
    assert "none of brokers 4" in capsys.readouterr().err


def test_brokers_of_several_clusters_are_not_mixed_up(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    brokers.start("stopped", 1, "127.0.0.1:1")
    brokers.start("stopped", 1, "127.0.0.1:2")
    assert main(["stop"]) == 2
    assert "brokers of 2 clusters run on this machine" in capsys.readouterr().err
    assert main(["stop", "--zookeeper", "127.0.0.1:2"]) == 0
    stopped = brokers.processes[1]
    eventually(lambda: stopped.poll() is not None, "it has ended: its lock is released just before")
    assert brokers.processes[0].poll() is None


def test_a_process_id_of_a_file_that_is_left_over_is_not_signalled(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        folder().mkdir(mode=0o700)
        left_over = folder() / "broker-1.json"
        left_over.write_text(json.dumps({"pid": innocent.pid, "broker.id": 1, "zookeeper.connect": "127.0.0.1:1"}))
        assert main(["stop"]) == 3
        assert "no broker of this user runs on this machine" in capsys.readouterr().err
        assert not left_over.exists()
        assert innocent.poll() is None
        innocent.communicate(b"\n")


def test_a_cluster_goes_on_without_a_stopped_broker_and_ends_with_its_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path / "data", "--brokers", "2", "--session-timeout-ms", "10000")
    try:
        command.line()
        assert main(["stop", "--broker", "2"]) == 0
        eventually(lambda: "broker 2 was stopped" in command.said(), "the cluster has noted it")
        assert command.process.poll() is None
        assert [each.broker_id for each in running_brokers()] == [1]
        assert main(["stop"]) == 0
        assert command.process.wait(60) == 0
        assert "broker 1: stopped in" in capsys.readouterr().out
    finally:
        command.close()
