"""Three of Kafka's own brokers on the ZooKeeper server in Python: election, topics, records, kills and restarts."""

from __future__ import annotations

from functools import partial

import pytest

from controller.zookeeper.server.server import ZooKeeperServer
from tests.interop.conftest import Findings
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.workload import Writer, await_identical, judge
from tests.processes import eventually

ASSIGNMENT = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


def has_another_controller(cluster: MixedCluster, than: int) -> bool:
    return cluster.controller() not in (None, than)


@pytest.mark.timeout(600)
def test_kafkas_brokers_fail_over_on_the_server_in_python(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory, findings: Findings
) -> None:
    kinds = dict.fromkeys((1, 2, 3), Kind.KAFKAS)
    zookeeper = ZooKeeperServer(tick_ms=500, max_session_timeout_ms=120_000)
    with MixedCluster(kafka, tmp_path_factory.mktemp("python"), kinds=kinds, zookeeper=zookeeper) as cluster:
        cluster.start(Kind.KAFKAS)
        cluster.create("t", ASSIGNMENT, min_insync_replicas="2")
        writer = Writer(cluster, "t")
        for broker in kinds:
            writer.advances()
            controller = cluster.controller()
            cluster.brokers[broker].kill()
            if broker == controller:
                eventually(partial(has_another_controller, cluster, broker), "another controller", 60)
            writer.advances()
            cluster.start_brokers([broker])
            cluster.await_healed("t")
        zookeeper.expire(int(cluster.client.get(f"/brokers/ids/{cluster.controller()}")[1].ephemeralOwner))
        cluster.await_healed("t")
        writer.advances()
        for broker in kinds:
            assert cluster.brokers[broker].stop(60) in (0, 143)
            cluster.start_brokers([broker])
            cluster.await_healed("t")
        writer.stop()
        count = judge(cluster, writer)
        await_identical(cluster, "t")
        findings.figure(f"Kafka on the ZooKeeper in Python: {count:,} acknowledged records, none lost, none twice")
