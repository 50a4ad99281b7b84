"""What a user gets who starts docker/compose.yaml: every broker reachable by name and port, from this machine and from
within; and the compose file alone, as a user's engine reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docker.containers.cluster import BROKERS, COMPOSE_FILE, PARTITIONS, Cluster, compose_words, run
from tests.docker.containers.machine import IMAGE, SERVICES, mounts
from tests.programs import needs_programs

pytestmark = [needs_programs, pytest.mark.timeout(300)]


def test_a_client_on_this_machine_is_told_addresses_that_it_can_reach(cluster: Cluster, admin: Any, topic: str) -> None:
    told = admin.list_topics(timeout=10)
    assert {(one.id, one.host, one.port) for one in told.brokers.values()} == {
        (broker, "localhost", 19090 + broker) for broker in BROKERS
    }
    assert {partition.leader for partition in told.topics[topic].partitions.values()} == set(BROKERS)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_client_in_the_network_is_told_names_that_it_can_reach(cluster: Cluster, topic: str, broker: int) -> None:
    """kcat in another broker's container asks this one."""
    other = cluster.container(f"broker-{broker % 3 + 1}")
    words = ("kcat", "-L", "-J", "-b", f"broker-{broker}.cluster:9092", "-t", topic)
    told = json.loads(run("docker", "exec", other, *words))
    assert sorted(one["name"] for one in told["brokers"]) == [f"broker-{one}.cluster:9092" for one in BROKERS]
    assert len(told["topics"][0]["partitions"]) == PARTITIONS


def test_a_user_s_engine_takes_the_compose_file_with_nothing_of_the_tests_in_it() -> None:
    read = run(*compose_words([COMPOSE_FILE], "camerlengo", None), "config", "--format", "json")
    services = json.loads(read)["services"]
    assert sorted(services) == sorted(SERVICES)
    assert {one["image"] for one in services.values()} == {"zookeeper:3.9", "camerlengo-broker:local"}
    assert all(one["build"]["dockerfile"] == "docker/Dockerfile" for one in services.values() if "build" in one)
    # Nothing but this machine reaches what is published.
    assert {port["host_ip"] for one in services.values() for port in one["ports"]} == {"127.0.0.1"}


def test_the_containers_of_the_tests_run_this_machine_s_programs_and_can_not_change_them(cluster: Cluster) -> None:
    for service in SERVICES:
        found = cluster.inspect(service)
        assert found["Config"]["Image"] == IMAGE
        bound = {mount["Destination"]: mount["RW"] for mount in found["Mounts"] if mount["Type"] == "bind"}
        assert [str(folder) for folder in mounts() if bound.get(str(folder), True)] == []
