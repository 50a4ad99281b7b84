"""One real ZooKeeper server for this room's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.zookeeper.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="module")
def real_server() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(kind="java", tick_ms=500, fsync=False) as server:
        yield server
