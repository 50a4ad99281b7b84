"""A broker process whose shutdown would leave partitions under min.insync.replicas: it says so, waits, and goes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from controller.hosts.local_cluster import BrokerChild, LocalCluster, ask_metadata
from controller.protocol.client import MetadataResponse
from tests.processes import eventually

DEADLINE_S = 60.0
BACKOFF_MS = 500
HELD = "2 partitions would be left under min.insync.replicas: careful-0 (1 of 2), careful-1 (1 of 2)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {
        "controlled.shutdown.max.retries": "2",
        "controlled.shutdown.retry.backoff.ms": str(BACKOFF_MS),
        "auto.leader.rebalance.enable": "false",
    }
    with LocalCluster(brokers=2, session_timeout_ms=6_000, settings=settings) as running:
        yield running


def leaders(cluster: LocalCluster, asked: BrokerChild) -> dict[str, int]:
    address = asked.ready_at()
    assert address is not None
    seen: MetadataResponse = ask_metadata(address, DEADLINE_S)
    return {
        f"{topic.name}-{one.partition_index}": one.leader_id
        for topic in seen.topics
        for one in topic.partitions
        if topic.name in ("careful", "careless")
    }


def test_it_is_held_back_with_the_reason_and_goes_when_its_attempts_are_used_up_or_at_once_by_force(
    cluster: LocalCluster,
) -> None:
    """Both partitions of "careful" have to be in sync on both brokers, that of "careless" on one. The other broker is
    held back first, by what it leads and what it follows; then it comes back, and goes by force."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    topics = [
        NewTopic("careful", 2, replica_assignment=[[1, 2], [2, 1]], config={"min.insync.replicas": "2"}),
        NewTopic("careless", 1, replica_assignment=[[1, 2]]),
    ]
    for made in client.create_topics(topics).values():
        made.result(DEADLINE_S)
    stays, goes = cluster.brokers[2], cluster.brokers[1]
    began = time.monotonic()
    assert goes.stop(DEADLINE_S) == 0
    assert time.monotonic() - began >= BACKOFF_MS / 1_000
    log = goes.log_file.read_text()
    for attempt in (1, 2):
        assert f"controlled shutdown, {attempt} of 2: 2 partitions are still this broker's: careful-0, careful-1" in log
    assert log.count(HELD) >= 3
    assert "going all the same, as the attempts are used up: 2 partitions are still" in log
    everything = {"careful-0": 2, "careful-1": 2, "careless-0": 2}
    eventually(lambda: leaders(cluster, stays) == everything, "led by who stays")

    goes.settings = {**goes.settings, "camerlengo.controlled.shutdown.check": "false"}
    before = len(log)
    goes.start()
    goes.await_ready(time.monotonic() + DEADLINE_S)
    cluster.await_metadata(time.monotonic() + DEADLINE_S)
    assert goes.stop(DEADLINE_S) == 0
    again = goes.log_file.read_text()[before:]
    assert "controlled shutdown: everything was moved" in again
    assert HELD not in again
