"""A broker's data directory goes from one kind to the other and back, while the rest of the cluster writes."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Findings
from tests.interop.kafka import Kafka
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.test_faults import ASSIGNMENT, BY_KIND, restart, settle
from tests.interop.workload import Writer


@BY_KIND
@pytest.mark.timeout(900)
def test_directories_are_exchanged(
    kafka: Kafka, kind: Kind, tmp_path_factory: pytest.TempPathFactory, findings: Findings
) -> None:
    """Each broker of the cluster is stopped and comes back as the other kind, on its directory; then all once more."""
    with MixedCluster(kafka, tmp_path_factory.mktemp("exchanged")) as cluster:
        cluster.start(kind)
        topic = "exchanged"
        cluster.create(topic, ASSIGNMENT, min_insync_replicas="2")
        writer = Writer(cluster, topic)
        swaps = 0
        for _ in range(2):
            for broker in list(cluster.kinds):
                writer.advances()
                assert cluster.brokers[broker].stop(60) in (0, 143)
                cluster.kinds[broker] = Kind.OURS if cluster.kinds[broker] is Kind.KAFKAS else Kind.KAFKAS
                restart(cluster, broker, topic)
                swaps += 1
        settle(cluster, writer, findings, f"{swaps} exchanged directories, controller first {kind.value}")
