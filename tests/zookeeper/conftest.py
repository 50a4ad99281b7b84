"""The ZooKeepers of the contract suite: `backend` is each in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.server.server import ZooKeeperServer
from tests.zookeeper.contract import (
    MAX_REQUEST_BYTES,
    TICK_MS,
    Backend,
    Client,
    FakeBackend,
    InMemoryBackend,
    RealBackend,
)

_roots = itertools.count(1)


def java() -> EmbeddedZooKeeper:
    return EmbeddedZooKeeper(kind="java", tick_ms=TICK_MS, fsync=False, max_request_bytes=MAX_REQUEST_BYTES)


def python() -> ZooKeeperServer:
    """With the settings of the real one."""
    return ZooKeeperServer(tick_ms=TICK_MS, max_request_bytes=MAX_REQUEST_BYTES, max_session_timeout_ms=120_000)


@pytest.fixture(scope="session")
def real_server() -> Iterator[EmbeddedZooKeeper]:
    """One Apache server for every test that only needs one to be there."""
    with java() as server:
        yield server


@pytest.fixture(scope="session")
def python_server() -> Iterator[ZooKeeperServer]:
    with python() as server:
        yield server


@pytest.fixture(scope="session")
def quiet_real_server() -> Iterator[EmbeddedZooKeeper]:
    with java() as server:
        yield server


@pytest.fixture(scope="session")
def quiet_python_server() -> Iterator[ZooKeeperServer]:
    with python() as server:
        yield server


@pytest.fixture
def quiet() -> None:
    """The test's server has no other sessions: a test that cuts a connection leaves one, whose end is a transaction."""


def open_backend(name: str, address: Callable[[], str]) -> Backend:
    """A backend whose root has been made."""
    root = f"/contract-{next(_roots)}"
    backend: Backend
    if name == "in-memory":
        backend = InMemoryBackend(root)
    elif name == "kazoo in memory":
        backend = FakeBackend(root)
    else:
        backend = RealBackend(root, address())
    maker = backend.client()
    maker.create(root, None)
    backend.wait(maker.connection.close())
    return backend


@pytest.fixture(params=["in-memory", "kazoo in memory", "server in Python", "real server"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    fixture = "python_server" if request.param == "server in Python" else "real_server"
    if "quiet" in request.fixturenames:
        fixture = f"quiet_{fixture}"
    backend = open_backend(request.param, lambda: str(request.getfixturevalue(fixture).connect_string))
    yield backend
    backend.close()


@pytest.fixture
def client(backend: Backend) -> Client:
    return backend.client()
