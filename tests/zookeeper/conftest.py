"""The ZooKeepers of the contract suite: `backend` is each in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from controller.zookeeper.embedded import EmbeddedZooKeeper
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


@pytest.fixture(scope="session")
def real_server() -> Iterator[EmbeddedZooKeeper]:
    """One real server for every test that only needs one to be there."""
    with EmbeddedZooKeeper(tick_ms=TICK_MS, fsync=False, max_request_bytes=MAX_REQUEST_BYTES) as server:
        yield server


def open_backend(name: str, server: Callable[[], EmbeddedZooKeeper]) -> Backend:
    """A backend whose root has been made."""
    root = f"/contract-{next(_roots)}"
    backend: Backend
    if name == "in-memory":
        backend = InMemoryBackend(root)
    elif name == "kazoo in memory":
        backend = FakeBackend(root)
    else:
        backend = RealBackend(root, server())
    maker = backend.client()
    maker.create(root, None)
    backend.wait(maker.connection.close())
    return backend


@pytest.fixture(params=["in-memory", "kazoo in memory", "real server"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = open_backend(request.param, lambda: request.getfixturevalue("real_server"))
    yield backend
    backend.close()


@pytest.fixture
def client(backend: Backend) -> Client:
    return backend.client()
