"""A pytest plugin that gives kazoo's own test suite a ZooKeeper: CAMERLENGO_KAZOO_AGAINST, one of `KINDS`.

For `python -m tests.clients.kazoo_suite`. kazoo's harness would download and start ZooKeeper itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.fake_kazoo import ClientStream, FakeZooKeeper, Transport
from controller.zookeeper.server.server import ZooKeeperServer

AGAINST: Final = "CAMERLENGO_KAZOO_AGAINST"
KINDS: Final = ("fake", "python", "java")
"""`FakeZooKeeper` in this process, `ZooKeeperServer` over TCP, and ZooKeeper's Java server."""
WITHOUT_SERVER: Final = frozenset({"test_threading_handler.py", "test_selectors_select.py", "test_utils.py"})
"""Tests of kazoo's own sockets."""
_TICK_MS = 2_000
_SUPER = "-Dzookeeper.DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU="
"""What kazoo's harness gives the servers that it starts."""


class SuiteServer(Protocol):
    """A member of the cluster, as far as kazoo's tests look at it."""

    address: str
    secure_address: str
    client_port: int
    running: bool

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class _TcpServer:
    """One server that listens, in Python or Java."""

    def __init__(self, kind: str) -> None:
        self._server: ZooKeeperServer | EmbeddedZooKeeper = (
            ZooKeeperServer(tick_ms=_TICK_MS)
            if kind == "python"
            else EmbeddedZooKeeper(
                kind="java", fsync=False, tick_ms=_TICK_MS, max_session_timeout_ms=20 * _TICK_MS, java_options=(_SUPER,)
            )
        )
        self._server.start()
        self.address = self.secure_address = self._server.connect_string
        self.client_port = int(self.address.rpartition(":")[2])
        self.running = True

    def run(self) -> None:
        if isinstance(self._server, EmbeddedZooKeeper):
            self._server.restart(0)
        else:
            self._server.start()
        self.running = True

    def stop(self) -> None:
        self.running = False
        self._server.stop()

    def close(self) -> None:
        self._server.close()


class _FakeMember:
    """One of three addresses of a FakeZooKeeper."""

    transports: Final[list[_MemberTransport]] = []

    def __init__(self, zookeeper: FakeZooKeeper, port: int) -> None:
        self.address = self.secure_address = f"127.0.0.1:{port}"
        self.client_port = port
        self.running = True
        self._zookeeper = zookeeper

    def run(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False
        for transport in self.transports:
            if transport.port == self.client_port:
                self._zookeeper.call(transport.reset)

    close = stop


class _MemberTransport(Transport):
    def __init__(self, zookeeper: FakeZooKeeper, members: Sequence[_FakeMember]) -> None:
        super().__init__(zookeeper)
        self._members = members
        self.port = 0

    def create_connection(self, address: tuple[str, int], **options: Any) -> ClientStream:
        if address[1] not in [member.client_port for member in self._members if member.running]:
            raise ConnectionRefusedError(f"no server at {address}")
        self.port = address[1]
        return super().create_connection(address, **options)


def _fake_members() -> list[_FakeMember]:
    """Return the members, and give every threading handler that kazoo makes a transport to them."""
    zookeeper = FakeZooKeeper()
    members = [_FakeMember(zookeeper, port) for port in (2181, 2182, 2183)]
    make = SequentialThreadingHandler.__init__

    def made(handler: Any) -> None:
        make(handler)
        transport = _MemberTransport(zookeeper, members)
        _FakeMember.transports.append(transport)
        handler.create_connection = transport.create_connection
        handler.create_socket_pair = transport.create_socket_pair
        handler.select = transport.select

    SequentialThreadingHandler.__init__ = made
    return members


class _SuiteCluster:
    """kazoo's harness starts and ends its cluster with each test class: this one is there all the time."""

    def __init__(self, servers: Sequence[SuiteServer]) -> None:
        self._servers = servers

    def __iter__(self) -> Iterator[SuiteServer]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> SuiteServer:
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


_SERVERS: list[SuiteServer] = []


def pytest_configure(config: pytest.Config) -> None:
    kind = os.environ[AGAINST]
    for name in ("OpenSSL", "jks"):  # for the certificates of the servers that the harness starts
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
    if not WITHOUT_SERVER & {Path(argument).name for argument in config.args}:
        _SERVERS.extend(_fake_members() if kind == "fake" else [_TcpServer(kind)])
    cluster = _SuiteCluster(_SERVERS)
    harness: Any = import_module("kazoo.testing.harness")
    harness.get_global_cluster = lambda: cluster


def pytest_unconfigure() -> None:
    for server in _SERVERS:
        server.close()
