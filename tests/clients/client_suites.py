"""The integration tests of kafka-python and aiokafka against a broker of this project, or of Kafka's.

    python -m tests.clients.client_suites DIR                           # a source directory of either
    python -m tests.clients.client_suites DIR --suite aiokafka -k seek  # those tests alone
    python -m tests.clients.client_suites DIR --kafka                   # the Kafka 2.8 that KAFKA_HOME names

DIR is an unpacked source directory: kafka-python's distribution has its integration tests, aiokafka's repository alone
has them. They run with the library that is installed, each file in a process of its own, against one broker: number 0,
on a ZooKeeper server in Python. Tests of the library alone, without a broker, are left out.

A test is *applicable* if it needs no security (`client_suite_plugin.needs_of`). Prints
each test with its outcome, and a table. The exit status is 1 if fewer than 95% of the applicable tests pass.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from controller.broker.settings import address_text
from controller.hosts.local_cluster import BrokerChild
from controller.system import LOOPBACK, HeldPorts
from controller.zookeeper.server.server import ZooKeeperServer
from tests.clients.client_suite_plugin import LIBRARY, RECORD, SECURITY, SERVER
from tests.interop.kafka import START_LIMIT_S, Kafka, KafkaBroker, jars_of

ROOT: Final = Path(__file__).parents[2]
KAFKA_VERSION: Final = "2.8.2"
GOAL: Final = 0.95
ONE_TEST_S: Final = 120
"""A test that takes longer has failed. aiokafka's own limit of a test is 120 s."""
ONE_FILE_S: Final = 3_600
OUTCOMES: Final = ("passed", "failed", "skipped")
CLASSES: Final = ("applicable", SECURITY, "other")
OTHER: Final = "other"
"""Tests that skip themselves: for another version of Kafka, or without a program."""


@dataclass(frozen=True, slots=True)
class Library:
    """A client library's tests.

    Attributes:
        module: the library's own folder in its source directory.
        folder: where its tests are in its source directory.
        package: the name that the tests have where they run. `tests` is taken by this project.
        files: the files with tests, below `package`.
        word: what a file contains whose tests need a broker.
        settings: the broker's, as the library's own fixtures set them.
        options: further options of pytest.
    """

    name: str
    module: str
    folder: str
    package: str
    files: str
    word: str
    settings: Mapping[str, str]
    options: tuple[str, ...] = ()


LIBRARIES: Final = {
    "kafka-python": Library(
        "kafka-python", "kafka", "test", "test", "integration/test_*.py", "kafka", {"num.partitions": "4"}
    ),
    "aiokafka": Library(
        "aiokafka",
        "aiokafka",
        "tests",
        "aiokafka_tests",
        "test_*.py",
        "KafkaIntegrationTestCase",
        {"num.partitions": "2"},
        ("--docker-image", f"kafka:{KAFKA_VERSION}"),
    ),
}
COMMON: Final = {
    "auto.create.topics.enable": "true",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "18000",
    "zookeeper.connection.timeout.ms": "60000",
}


@dataclass(frozen=True, slots=True)
class Result:
    """One test: "passed", "failed" or "skipped", and its class, one of `CLASSES`."""

    test: str
    outcome: str
    kind: str
    reason: str


def class_of(outcome: str, needs: Sequence[str]) -> str:
    """Return what a test is counted under."""
    if SECURITY in needs:
        return SECURITY
    return OTHER if outcome == "skipped" else "applicable"


@contextlib.contextmanager
def broker(settings: Mapping[str, str], folder: Path, kafka: Kafka | None) -> Iterator[str]:
    """Run broker 0, of this project or of Kafka's, and a ZooKeeper; give the broker's address."""
    ports = HeldPorts(1)
    with ZooKeeperServer(max_session_timeout_ms=60_000) as zookeeper:
        own = {
            "zookeeper.connect": zookeeper.connect_string,
            "log.dirs": str(folder / "logs"),
            "listeners": f"PLAINTEXT://{LOOPBACK}:{ports.numbers[0]}",
        }
        child = (
            BrokerChild(0, {**COMMON, **settings, **own}, folder)
            if kafka is None
            else KafkaBroker(kafka, 0, {**COMMON, **settings, **own}, folder)
        )
        try:
            child.start()
            yield address_text(child.await_ready(time.monotonic() + START_LIMIT_S))
        finally:
            child.close()
            ports.release()


def run_file(library: Library, package: Path, path: Path, server: str, select: str | None) -> list[Result]:
    """Run the tests of one file that need a broker."""
    record = package.parent / "record.jsonl"
    record.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.clients.client_suite_plugin",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-c", os.devnull, "--rootdir", str(package.parent), f"--timeout={ONE_TEST_S}", "-o", "addopts="]
    command += [*library.options, *(["-k", select] if select else []), str(path)]
    environment = {
        **os.environ,
        LIBRARY: library.name,
        SERVER: server,
        RECORD: str(record),
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(package.parent),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
    }
    log = package.parent / f"{path.stem}.log"
    late = False
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                env=environment,
                cwd=package.parent,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=ONE_FILE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            late = True
    if not record.exists():
        return [] if b"deselected" in log.read_bytes() else [_not_collected(path, log, late)]
    return _results(record)


def _not_collected(path: Path, log: Path, late: bool) -> Result:
    end = f"not within {ONE_FILE_S} s" if late else " ".join(log.read_text(errors="replace").splitlines()[-3:])
    return Result(path.name, "failed", "applicable", f"not collected: {end}")


def _results(record: Path) -> list[Result]:
    """What each test that was collected came to. One that has no outcome did not end."""
    found: dict[str, Result] = {}
    for line in record.read_text().splitlines():
        one = json.loads(line)
        if "collected" in one:
            test = one["collected"]
            found[test] = Result(test, "failed", "applicable", "did not end")
        else:
            test, outcome = one["test"], one["outcome"]
            found[test] = Result(test, outcome, class_of(outcome, one["needs"]), one["reason"])
    return list(found.values())


def run(
    library: Library,
    source: Path,
    select: str | None,
    kafka: Kafka | None,
    keep: Path | None,
) -> list[Result]:
    """Run a library's tests; print each with its outcome."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="client-suite-") as temporary:
        folder = Path(temporary)
        package = folder / library.package
        shutil.copytree(source / library.folder, package)
        (package / "__init__.py").touch()
        with broker(library.settings, folder, kafka) as server:
            for path in sorted(package.glob(library.files)):
                if library.word not in path.read_text():
                    continue
                found = run_file(library, package, path, server, select)
                for one in found:
                    about = "" if one.outcome == "passed" else f": {one.reason}"
                    print(f"{one.outcome:<8}{one.kind:<13}{one.test}{about}", flush=True)
                results += found
        if keep is not None:
            for log in folder.glob("*.log"):
                shutil.copy(log, keep)
    return results


def report(library: Library, results: Sequence[Result]) -> bool:
    """Print the table of a library's tests. Return whether enough of the applicable ones passed."""
    print(f"\n{library.name} {version(library.name)}")
    print(f"{'':<14}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES))
    counts = Counter((one.kind, one.outcome) for one in results)
    for kind in CLASSES:
        print(f"{kind:<14}" + "".join(f"{counts[kind, outcome]:>9}" for outcome in OUTCOMES))
    passed, failed = counts["applicable", "passed"], counts["applicable", "failed"]
    print(f"{passed} of {passed + failed} applicable tests passed\n")
    return passed >= GOAL * (passed + failed) and passed > 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="DIR", help="an unpacked source directory of the library")
    parser.add_argument("--suite", choices=LIBRARIES, help="the library (default: as DIR has it)")
    parser.add_argument("-k", dest="select", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    parser.add_argument("--kafka", action="store_true", help="run against the Kafka 2.8 that KAFKA_HOME names")
    parser.add_argument("--logs", type=Path, metavar="NEWDIR", help="keep the logs of brokers and tests in NEWDIR")
    options = parser.parse_args(arguments)
    library = LIBRARIES[options.suite] if options.suite else _library_of(options.source)
    if library is None or not (options.source / library.folder).is_dir():
        expected = (
            "kafka-python's (with test/) or aiokafka's (with tests/)" if library is None else library.folder + "/"
        )
        parser.error(f"{options.source}: expected an unpacked source directory, {expected}")
    if options.logs is not None:
        options.logs.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder:
        try:
            kafka = Kafka(jars_of(os.environ.get("KAFKA_HOME")), Path(folder)) if options.kafka else None
        except ValueError as error:
            parser.error(str(error))
        results = run(library, options.source, options.select, kafka, options.logs)
    return int(not report(library, results))


def _library_of(source: Path) -> Library | None:
    return next((library for library in LIBRARIES.values() if (source / library.module).is_dir()), None)


if __name__ == "__main__":
    raise SystemExit(main())
