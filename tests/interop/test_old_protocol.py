"""Inter-broker protocol 2.6: leaders of both kinds change ISRs in ZooKeeper."""

from __future__ import annotations

import time

import pytest

from tests.interop.conftest import Findings
from tests.interop.kafka import Kafka
from tests.interop.mixed import KINDS, Kind, MixedCluster
from tests.interop.test_faults import ASSIGNMENT, BY_KIND, restart, settle
from tests.interop.workload import Writer

SPARE_S = 25.0
"""A shutdown that is held back for its three attempts takes 15 s and more with the back-off of this file."""


@BY_KIND
@pytest.mark.timeout(900)
def test_isrs_are_full_again_after_kills_and_shutdowns(
    kafka: Kafka, kind: Kind, tmp_path_factory: pytest.TempPathFactory, findings: Findings
) -> None:
    settings = {"inter.broker.protocol.version": "2.6", "controlled.shutdown.retry.backoff.ms": "10000"}
    with MixedCluster(kafka, tmp_path_factory.mktemp("old"), settings) as cluster:
        cluster.start(kind)
        cluster.create("old", ASSIGNMENT, min_insync_replicas="2")
        writer = Writer(cluster, "old")
        for broker in KINDS:
            writer.advances()
            cluster.brokers[broker].kill()
            writer.advances()
            restart(cluster, broker, "old")
        for broker in KINDS:  # at once: the controller has not been notified of the last ISR
            began = time.monotonic()
            assert cluster.brokers[broker].stop(60) in (0, 143)
            took_s = time.monotonic() - began
            assert took_s < SPARE_S, f"broker {broker} was held back"
            restart(cluster, broker, "old")
        settle(cluster, writer, findings, f"protocol 2.6, controller first {kind.value}")
