"""The command that runs client libraries' own tests: what it counts, on a source directory made here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from controller.protocol.codec import ApiKey
from tests.clients.client_suite_plugin import SECURITY, needs_of
from tests.clients.client_suites import LIBRARIES, class_of, main, report
from tests.clients.client_suites import Result as SuiteResult
from tests.programs import needs_programs, program

CONFTEST = """
from dataclasses import dataclass
import asyncio, pytest

@dataclass
class KafkaServer:
    host: str
    port: int
    ssl_port: int
    sasl_plain_port: int
    sasl_ssl_port: int
    container: object

def pytest_addoption(parser):
    parser.addoption("--docker-image")

@pytest.fixture(scope="session")
def kafka_server():
    raise RuntimeError("starts a container")

@pytest.fixture(scope="class")
def setup_test_class(request, kafka_server):
    request.cls.server = kafka_server
"""

TESTS = """
# KafkaIntegrationTestCase
import asyncio, unittest, pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

@pytest.mark.usefixtures("setup_test_class")
class TestSmall(unittest.TestCase):
    def run_it(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, 30))

    @property
    def servers(self):
        return f"{self.server.host}:{self.server.port}"

    async def written(self, **options):
        async with AIOKafkaProducer(bootstrap_servers=self.servers, **options) as producer:
            return (await producer.send_and_wait("small", b"one", partition=0)).offset

    async def read(self, group):
        await self.written()
        consumer = AIOKafkaConsumer(
            "small", bootstrap_servers=self.servers, group_id=group, auto_offset_reset="earliest")
        async with consumer:
            return (await consumer.getone()).value

    async def transacted(self):
        async with AIOKafkaProducer(bootstrap_servers=self.servers, transactional_id="writer") as producer:
            async with producer.transaction():
                await producer.send_and_wait("small", b"two", partition=0)

    def test_writes(self):
        self.assertGreaterEqual(self.run_it(self.written()), 0)

    def test_reads(self):
        self.assertEqual(self.run_it(self.read(None)), b"one")

    def test_reads_in_a_group(self):
        self.assertEqual(self.run_it(self.read("readers")), b"one")

    def test_writes_in_a_transaction(self):
        self.run_it(self.transacted())

    def test_with_tls(self):
        self.fail(f"port {self.server.ssl_port}")

    def test_that_fails(self):
        self.assertEqual(self.run_it(self.written()), -7)

    def test_that_skips_itself(self):
        self.skipTest("for another version")

def test_without_a_broker():
    assert False
"""


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (ApiKey.PRODUCE, None),
        (ApiKey.FIND_COORDINATOR, None),
        (ApiKey.END_TXN, None),
        (ApiKey.DESCRIBE_ACLS, SECURITY),
        (ApiKey.ALTER_REPLICA_LOG_DIRS, None),
    ],
)
def test_what_a_request_needs(key: ApiKey, expected: str | None) -> None:
    assert needs_of(key) == expected


def test_what_a_test_is_counted_under() -> None:
    assert class_of("passed", []) == class_of("failed", []) == "applicable"
    assert class_of("skipped", []) == "other"
    assert class_of("skipped", [SECURITY]) == SECURITY


def test_too_few_that_pass_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    def results(passed: int, failed: int) -> list[SuiteResult]:
        outcomes = ["passed"] * passed + ["failed"] * failed
        return [SuiteResult(str(number), outcome, "applicable", "") for number, outcome in enumerate(outcomes)]

    library = LIBRARIES["aiokafka"]
    assert report(library, results(19, 1))
    assert not report(library, results(18, 1))
    assert not report(library, [])
    assert "18 of 19 applicable tests passed" in capsys.readouterr().out


def test_a_suite_is_run_against_a_broker_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aiokafka").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/conftest.py").write_text(CONFTEST)
    (tmp_path / "tests/test_small.py").write_text(TESTS)
    (tmp_path / "tests/test_other.py").write_text("def test_without_a_broker():\n    assert False\n")
    assert main([str(tmp_path), "--logs", str(tmp_path / "logs")]) == 1, "one of five applicable tests fails"
    lines = capsys.readouterr().out.splitlines()
    found = {
        words[2].rpartition("::")[2].rstrip(":"): (words[0], words[1]) for line in lines if (words := line.split())[2:]
    }
    assert {name: found[name] for name in found if name.startswith("test_")} == {
        "test_writes": ("passed", "applicable"),
        "test_reads": ("passed", "applicable"),
        "test_reads_in_a_group": ("passed", "applicable"),
        "test_writes_in_a_transaction": ("passed", "applicable"),
        "test_with_tls": ("skipped", "security"),
        "test_that_fails": ("failed", "applicable"),
        "test_that_skips_itself": ("skipped", "other"),
    }
    assert "4 of 5 applicable tests passed" in lines
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "broker-0.log",
        "test_small.log",
    }


def test_arguments_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "test").mkdir()
    for arguments, message in (
        ([str(tmp_path / "none")], "expected an unpacked source directory"),
        ([str(tmp_path), "--suite", "aiokafka"], "expected an unpacked source directory, tests/"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


SELECTED = (
    "end_to_end or idempotent or record_metadata or delete_records or create_ or elect_leaders or offsets_for_time"
)
"""Some of kafka-python's integration tests that need no group: records, topics, elections, offsets by time."""


@needs_programs
@pytest.mark.timeout(600)
def test_some_of_kafka_pythons_own_tests_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its distribution of the installed version, from the package index."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") is not None else [program("pip3", "pip")]
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "kafka-python",
        "--dest",
        str(tmp_path),
    ]
    subprocess.run([*pip, "download", *options, f"kafka-python=={version('kafka-python')}"], check=True, timeout=300)
    [distribution] = tmp_path.glob("*.tar.gz")
    with tarfile.open(distribution) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = (path.parent for path in tmp_path.glob("*/pyproject.toml"))
    status = main([str(source), "-k", f"({SELECTED}) and not acls and not ssl and not sasl"])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "failed  applicable" not in printed
    assert printed.count("passed  applicable") >= 20, printed
