"""A ZooKeeper server that is killed keeps what it acknowledged. `kill_server` does it more often."""

from __future__ import annotations

from tests.zookeeper import kill_server


def test_a_killed_server_has_all_that_it_acknowledged() -> None:
    figures = kill_server.run(kills=2, seed=7, clients=2)
    assert figures["acknowledged"] > 0
    assert figures["other lines on stderr"] == 0
