"""kazoo's own test suite against a ZooKeeper of this project, or a real one.

    python -m tests.clients.kazoo_suite fake                # fake_kazoo, in this process
    python -m tests.clients.kazoo_suite embedded            # ZooKeeper's Java server
    python -m tests.clients.kazoo_suite HOST:PORT           # any server that listens
    python -m tests.clients.kazoo_suite fake test_lock.py   # one file

kazoo's wheel carries its tests (kazoo/tests); they are run where they are installed, file by file, each in a process of
its own with a deadline. Only the harness's idea of a cluster is replaced. The exit status is 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import kazoo.client
import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.fake_kazoo import ClientStream, FakeZooKeeper, Transport

ROOT = Path(__file__).parents[2]
SUITE = Path(kazoo.client.__file__).parent / "tests"
SERVER = "CAMERLENGO_KAZOO_SUITE_SERVER"
WITHOUT_SERVER = frozenset({"test_threading_handler.py", "test_selectors_select.py", "test_utils.py"})
"""Tests of kazoo's own sockets."""
ONE_TEST_S = 60
"""A test that takes longer has failed. kazoo's own longest wait is 30 s."""
ONE_FILE_S = 600


class Server:
    """A server that runs already, as kazoo's harness sees a member of its cluster."""

    running = True

    def __init__(self, address: str) -> None:
        self.address = self.secure_address = address

    def run(self) -> None:
        pytest.skip("stops and starts servers")

    stop = run


class Cluster:
    """kazoo's harness starts and ends its cluster with each test class: this one is there all the time."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> Server:
        if number >= len(self._servers):
            pytest.skip("needs several servers")
        return self._servers[number]

    def start(self) -> None:
        pass

    def terminate(self) -> None:
        pass

    def get_logs(self) -> list[str]:
        return []

    def get_ssl_client_configuration(self) -> Any:
        pytest.skip("needs a server with TLS")


class FakeMembers:
    """Three addresses of one FakeZooKeeper. A handler that a test makes is connected to it."""

    def __init__(self) -> None:
        self.zookeeper = FakeZooKeeper()
        self.servers = [_FakeMember(self, port) for port in (2181, 2182, 2183)]
        self.transports: list[_MemberTransport] = []

    def install(self) -> None:
        """Give every threading handler of kazoo's a transport of this server."""
        make = SequentialThreadingHandler.__init__

        def made(handler: Any) -> None:
            make(handler)
            transport = _MemberTransport(self)
            self.transports.append(transport)
            handler.create_connection = transport.create_connection
            handler.create_socket_pair = transport.create_socket_pair
            handler.select = transport.select

        SequentialThreadingHandler.__init__ = made


class _MemberTransport(Transport):
    def __init__(self, members: FakeMembers) -> None:
        super().__init__(members.zookeeper)
        self._members = members
        self.port = 0

    def create_connection(self, address: tuple[str, int], **options: Any) -> ClientStream:
        if address[1] not in [server.port for server in self._members.servers if server.running]:
            raise ConnectionRefusedError(f"no server at {address}")
        self.port = address[1]
        return super().create_connection(address, **options)


class _FakeMember(Server):
    def __init__(self, members: FakeMembers, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}")
        self.port = port
        self._members = members

    def run(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False
        for transport in self._members.transports:
            if transport.port == self.port:
                self._members.zookeeper.call(transport.reset)


def pytest_configure(config: pytest.Config) -> None:
    """In the process that runs one file (`-p tests.clients.kazoo_suite`): replaces the harness's cluster."""
    server = os.environ.get(SERVER)
    if server is None:
        return
    for name in ("OpenSSL", "jks"):  # the harness makes a cluster's TLS certificates with them
        sys.modules.setdefault(name, ModuleType(name))
    harness: Any = import_module("kazoo.testing.harness")
    if server == "fake":
        members = FakeMembers()
        cluster = Cluster(members.servers)
        if not WITHOUT_SERVER & {Path(argument).name for argument in config.args}:
            members.install()
    else:
        cluster = Cluster([Server(server)])
    harness.get_global_cluster = lambda: cluster


def run_file(path: Path, server: str) -> tuple[Counter[str], list[str]]:
    """Run one file; return the number of tests by outcome, and a line for each that failed or was skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.clients.kazoo_suite", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", str(path.parent), f"--timeout={ONE_TEST_S}"]
        command += [f"--junitxml={report}", str(path)]
        environment = {
            **os.environ,
            SERVER: server,
            "ZOOKEEPER_VERSION": "3.9.5",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
        }
        try:
            ran = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True, timeout=ONE_FILE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Counter(errors=1), [f"{path.name}: not finished within {ONE_FILE_S} s"]
        if not report.exists():
            return Counter(errors=1), [f"{path.name}: no report\n{ran.stdout}{ran.stderr}"]
        return _outcomes(path.name, report)


def _outcomes(name: str, report: Path) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    lines = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = {"failure": "failed", "error": "errors", "skipped": "skipped"}[found.tag] if found is not None else ""
        counts[outcome or "passed"] += 1
        if found is not None:
            reason = (found.get("message") or "").strip().partition("\n")[0]
            test = "" if outcome == "skipped" else f"::{case.get('classname', '').split('.')[-1]}::{case.get('name')}"
            lines.append(f"{outcome}: {name}{test}: {reason}")
    return counts, lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run kazoo's own test suite.")
    parser.add_argument("server", metavar="fake|embedded|HOST:PORT")
    parser.add_argument("files", nargs="*", metavar="FILE", help="file names in kazoo/tests (default: all)")
    options = parser.parse_args(arguments)
    files = [SUITE / name for name in options.files] or sorted(SUITE.glob("test_*.py"))
    for path in files:
        if not path.exists():
            parser.error(f"no such file in {SUITE}: {path.name}")
    total: Counter[str] = Counter()
    notes: list[str] = []
    embedded = EmbeddedZooKeeper(tick_ms=500, fsync=False) if options.server == "embedded" else nullcontext()
    with embedded as started:
        server = options.server if started is None else started.connect_string
        print(f"{'file':<32}{'passed':>8}{'failed':>8}{'errors':>8}{'skipped':>8}")
        for path in files:
            counts, lines = run_file(path, server)
            total += counts
            notes += lines
            _print(path.name, counts)
    _print("total", total)
    for note, times in Counter(notes).items():
        print(note if times == 1 else f"{note} ({times} tests)")
    return int(bool(total["failed"] or total["errors"]))


def _print(name: str, counts: Counter[str]) -> None:
    print(
        f"{name:<32}" + "".join(f"{counts[kind]:>8}" for kind in ("passed", "failed", "errors", "skipped")), flush=True
    )


if __name__ == "__main__":
    raise SystemExit(main())
