"""A new controller's first work: in Kafka's order, and complete wherever the one before it stopped."""

from __future__ import annotations

from tests.core.driving import Cluster


def test_a_topic_is_created_and_survives_a_broker() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.host(1)
    cluster.topic("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 0, (1, 2, 3), 0), "t-1": (2, 0, (2, 3, 1), 0)}
    cluster.check()
    cluster.unregister(2)
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 1, (1, 3), 1), "t-1": (3, 1, (3, 1), 1)}
    cluster.check()
