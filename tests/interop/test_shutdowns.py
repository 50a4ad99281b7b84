"""Controlled shutdowns in a mixed cluster: no partition's ISR is left wedged."""

from __future__ import annotations

import pytest

from tests.interop.kafka import KafkaBroker
from tests.interop.mixed import Kind, MixedCluster

PARTITIONS = 12
WEDGED = "IllegalStateException: Failed to enqueue ISR change"


def complaints(cluster: MixedCluster) -> list[str]:
    """Lines of Kafka's brokers about ISR changes that they can't make any more."""
    found = []
    for broker in cluster.brokers.values():
        if isinstance(broker, KafkaBroker):
            found += [line for line in broker.log_file.read_text(errors="replace").splitlines() if WEDGED in line]
    return found


@pytest.mark.timeout(600)
def test_a_shutdown_that_moves_leadership_to_a_kafka_broker_wedges_no_partition(cluster: MixedCluster) -> None:
    """Broker 2 leads 12 partitions whose next leader is Kafka's broker 3, and is held back by another topic: it stays
    for its attempts, fetches as a follower, and broker 3 wants it in the ISR again."""
    cluster.move_controller(Kind.OURS)
    cluster.create("moved", [[2, 3, 4]] * PARTITIONS, min_insync_replicas="1")
    cluster.create("held", [[2, 3]], min_insync_replicas="2")
    for _ in range(2):
        broker = cluster.brokers[2]
        assert broker.stop(60) == 0
        leaders = {state.leader for state in cluster.states("moved").values() if state is not None}
        assert leaders == {3}
        cluster.start_brokers([2])
        cluster.await_healed("moved", "held")
        assert complaints(cluster) == []
