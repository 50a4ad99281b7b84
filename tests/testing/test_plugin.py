"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controller.testing.plugin import make_host

PLUGIN = "controller.testing.plugin"
ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.mark.kafka(brokers=2, seed=7, settings={"min.insync.replicas": 2})
def test_marked(kafka):
    kafka.create_topic("payments", replication_factor=2)
    assert sorted(kafka.brokers) == [1, 2]

def test_plain(kafka):
    assert sorted(kafka.brokers) == [1]

SEEN = []

@pytest.mark.parametrize("number", [1, 2])
def test_of_the_session(kafka_session, kafka_topic, number):
    SEEN.append((kafka_session, kafka_topic))
    assert len({one for one, _ in SEEN}) == 1 and len({topic for _, topic in SEEN}) == len(SEEN)
    kafka_session.broker(1).kill()

def test_after_a_kill(kafka_session, kafka_topic):
    assert kafka_session.leader(kafka_topic) == 1
"""


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_fixtures_and_the_mark(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run(tmp_path, TESTS, *words)
    assert result.returncode == 0, result.stdout
    assert "5 passed" in result.stdout


def test_a_failure_shows_the_timeline_and_writes_a_report(tmp_path: Path) -> None:
    text = (
        "def test_wrong(kafka):\n    kafka.create_topic('payments')\n    assert kafka.leader('payments') == 2\n"
        "def test_right(kafka):\n    kafka.create_topic('refunds')\n"
    )
    result = run(tmp_path, text, "--kafka-reports", "reports")
    assert result.returncode == 1
    assert "Timeline of the cluster" in result.stdout
    assert "payments-0: leader 1, ISR [1]: initial" in result.stdout
    assert "refunds" not in result.stdout
    (page,) = (tmp_path / "reports").rglob("report.html")
    assert "test_wrong" in page.read_text()


FAILING = """
import pytest

def test_lock(zookeeper):
    zookeeper.expire(zookeeper.client())
    assert zookeeper.sessions() is None

@pytest.mark.simulation(seed=9)
def test_run(simulation):
    simulation.cluster(brokers=1).run_for(3_000)
    simulation.run("assignment-order", settings={"recovery_ms": 0})

def test_processes(kafka):
    kafka.create_topic("payments")
    assert kafka.leader("payments") == 2
"""


def test_each_fixture_reports_what_happened(tmp_path: Path) -> None:
    result = run(tmp_path, FAILING, "--kafka-reports", "reports", "--kafka=process")
    assert "3 failed" in result.stdout
    assert re.search(r"FAULT expire: session 0x[0-9a-f]+", result.stdout)
    assert "broker 1 is the controller, epoch 1" in result.stdout
    assert "replay: camerlengo simulate assignment-order --set recovery_ms=0 --seed 9" in result.stdout
    assert "payments-0: leader 1, ISR [1]: initial" in result.stdout
    assert re.search(r"- Kafka logs -+\nbroker 1:", result.stdout)
    pages = sorted(str(one.relative_to(tmp_path / "reports")) for one in (tmp_path / "reports").rglob("*.html"))
    assert pages == [
        "test_it.py-test_processes/report.html",
        "test_it.py-test_run/report.html",
        "test_it.py-test_run/run-2/report.html",
    ]


MARKED = """
import pytest

@pytest.mark.zookeeper(tick=5)
def test_zookeeper(zookeeper): ...

@pytest.mark.simulation(7)
def test_simulation(simulation): ...

@pytest.mark.kafka(requires=["wings"])
def test_kafka(kafka): ...
"""


def test_marks_of_all_fixtures_are_checked(tmp_path: Path) -> None:
    result = run(tmp_path, MARKED)
    assert "3 errors" in result.stdout
    assert "mark zookeeper: ['tick']: expected keywords among tick_ms" in result.stdout
    assert "mark simulation: [7]: expected keywords among seed, settings" in result.stdout
    assert "ability 'wings': expected one of clock, disks" in result.stdout


def test_docker_without_a_compose_file_is_refused(pytestconfig: pytest.Config) -> None:
    class Docker:
        rootpath = Path("nowhere")

        def getoption(self, name: str, default: object = None) -> object:
            return "docker" if name == "--kafka" else pytestconfig.getoption(name, default)

    with pytest.raises(pytest.UsageError, match=r"no file .*nowhere/docker/compose\.yaml: expected a compose file"):
        make_host(Docker())  # type: ignore[arg-type]


def test_a_mark_that_can_not_be_is_refused(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.kafka(broker=2)\ndef test_it(kafka): ...\n"
    result = run(tmp_path, text)
    assert result.returncode != 0
    assert "mark kafka: ['broker']: expected keywords among brokers" in result.stdout


def test_the_entry_point_names_the_module_itself() -> None:
    """So that pytest loads it once, where `-p` names it too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_the_readmes_test_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "def test_records_survive_their_leader" in block)
    result = run(tmp_path, text)
    assert result.returncode == 0, result.stdout
