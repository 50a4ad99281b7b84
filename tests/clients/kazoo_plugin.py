"""A pytest plugin that gives kazoo's own test suite one server: KAZOO_SUITE_SERVER, "python" or "real".

For `python -m tests.clients.kazoo_tcp_suite`. kazoo's harness would download and start ZooKeeper itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.server.server import ZooKeeperServer

_TICK_MS = 2_000
_SUPER = "-Dzookeeper.DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU="
"""What kazoo's harness gives the servers that it starts."""


class _SuiteServer:
    """One server of kazoo's test cluster, as far as its tests look at it."""

    def __init__(self, kind: str) -> None:
        self._python = ZooKeeperServer(tick_ms=_TICK_MS) if kind == "python" else None
        self._real = None
        if self._python is not None:
            self._python.start()
            self.address = self._python.connect_string
        else:
            self._real = EmbeddedZooKeeper(
                fsync=False, tick_ms=_TICK_MS, max_session_timeout_ms=20 * _TICK_MS, java_options=(_SUPER,)
            )
            self._real.start()
            self.address = self._real.connect_string
        self.client_port = int(self.address.rpartition(":")[2])
        self.running = True

    @property
    def secure_address(self) -> str:
        raise RuntimeError("the suite's server has no TLS port")

    def stop(self) -> None:
        self.running = False
        if self._python is not None:
            self._python.stop()
        elif self._real is not None:
            self._real.stop()

    def run(self) -> None:
        if self._python is not None:
            self._python.start()
        elif self._real is not None:
            self._real.restart(0)
        self.running = True

    def close(self) -> None:
        if self._python is not None:
            self._python.stop()
        elif self._real is not None:
            self._real.close()


class _SuiteCluster:
    def __init__(self, server: _SuiteServer) -> None:
        self._servers = [server]

    def __iter__(self) -> Iterator[_SuiteServer]:
        return iter(self._servers)

    def __getitem__(self, index: int) -> _SuiteServer:
        return self._servers[index]

    def start(self) -> None:
        pass

    def terminate(self) -> None:
        pass

    def get_logs(self) -> list[str]:
        return []

    def get_ssl_client_configuration(self) -> dict[str, str]:
        raise RuntimeError("the suite's server has no TLS port")


_SERVERS: list[_SuiteServer] = []


def pytest_unconfigure() -> None:
    for server in _SERVERS:
        server.close()


def pytest_configure() -> None:
    _SERVERS.append(_SuiteServer(os.environ["KAZOO_SUITE_SERVER"]))
    cluster = _SuiteCluster(_SERVERS[0])
    for name in ("OpenSSL", "jks"):  # for the certificates of the servers that the harness starts
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
    from kazoo.testing import harness

    harness.get_global_cluster = lambda: cluster
