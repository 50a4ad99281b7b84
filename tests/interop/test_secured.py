"""A mixed cluster over SASL_SSL with ACLs: replication, handover, refusals, and Kafka's tools for users and ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import confluent_kafka
import pytest

from controller.broker.settings import address
from controller.hosts.local_cluster import ask_broker
from controller.hosts.secured import ADMINISTRATOR, CLIENT, ClusterSecurity, Security
from controller.protocol.codec import ApiKey
from controller.protocol.control import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.protocol.errors import ErrorCode
from tests.interop.conftest import Findings
from tests.interop.kafka import Kafka, Output
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.tools import MAINS
from tests.interop.workload import Writer, judge, read
from tests.processes import eventually

pytest.importorskip("cryptography", reason="the extra `secure`")
OURS, KAFKAS = 1, 3
BY_KIND = pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.value))
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def secured(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    settings = {"connections.max.reauth.ms": "5000"}  # sessions between brokers of both kinds end, too
    folder = tmp_path_factory.mktemp("secured")
    with MixedCluster(kafka, folder, settings, security=Security(users=("eve", "alice"))) as cluster:
        cluster.start(Kind.OURS)
        yield cluster


def security_of(cluster: MixedCluster) -> ClusterSecurity:
    assert cluster.security is not None
    return cluster.security


def gone(cluster: MixedCluster, broker: int) -> bool:
    return cluster.json(f"/brokers/ids/{broker}") is None


@pytest.mark.timeout(600)
def test_the_controllership_goes_to_either_kind_and_back_while_records_are_written(
    secured: MixedCluster, findings: Findings
) -> None:
    secured.create("mixed", [[1, 3, 2], [3, 1, 4], [2, 4, 3], [4, 2, 1]], min_insync_replicas="2")
    writer = Writer(secured, "mixed", 200)
    for kind in (Kind.KAFKAS, Kind.OURS, Kind.KAFKAS, Kind.OURS):
        secured.move_controller(kind)
        writer.advances()
        made = f"made-by-{kind.value}"
        if not secured.assignment(made):
            secured.create(made, [[1, 3], [3, 1]])
    for broker in (OURS, KAFKAS):
        secured.brokers[broker].kill()
        eventually(partial(gone, secured, broker), f"the session of broker {broker} has ended", LIMIT_S)
        writer.advances()
        secured.start_brokers([broker])
        secured.await_healed("mixed")
    writer.stop()
    count = judge(secured, writer)
    findings.figure(f"SASL_SSL, sessions of 5 s: {count} records over 4 handovers and 2 kills, none lost or twice")


@BY_KIND
@pytest.mark.timeout(300)
def test_what_only_a_controller_may_ask_is_refused_to_a_client(secured: MixedCluster, kind: Kind) -> None:
    secured.move_controller(kind)
    topic = f"kept-{kind.value}"
    secured.create(topic, [[OURS, KAFKAS]])
    writer = Writer(secured, topic, 200)
    writer.advances(20)
    before = secured.state(topic, 0)
    secure = partial(security_of(secured).connect, user=CLIENT)
    states = (StopReplicaTopicState(topic, (StopReplicaPartitionState(0, 2**30, True),)),)
    for broker in (OURS, KAFKAS):
        at = address(secured.address(broker))
        stop = StopReplicaRequest(broker, 2**30, states)
        answer = ask_broker(at, ApiKey.STOP_REPLICA, 3, stop, LIMIT_S, secure)
        assert isinstance(answer, StopReplicaResponse)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        update = UpdateMetadataRequest(broker, 2**30, (), ())
        answered = ask_broker(at, ApiKey.UPDATE_METADATA, 6, update, LIMIT_S, secure)
        assert isinstance(answered, UpdateMetadataResponse)
        assert answered.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    writer.advances(20)
    writer.stop()
    judge(secured, writer)
    assert secured.state(topic, 0) == before


def tool(cluster: MixedCluster, broker: int, name: str, *words: str) -> Output:
    config = str(security_of(cluster).folder / f"{ADMINISTRATOR}.properties")
    servers = ("--bootstrap-server", cluster.address(broker), "--command-config", config)
    return cluster.kafka.run(MAINS[name], *servers, *words)


def may_read(cluster: MixedCluster, user: str, password: str, topic: str) -> bool:
    """Whether each broker answers this user's request for the topic's metadata."""
    for broker in cluster.kinds:
        options = cluster.options() | {"sasl.username": user, "sasl.password": password, "log_level": 0}
        consumer = confluent_kafka.Consumer(
            options | {"bootstrap.servers": cluster.address(broker), "group.id": "may-read"}
        )
        try:
            found = consumer.list_topics(topic, timeout=3.0).topics[topic]
        except confluent_kafka.KafkaException:
            return False
        finally:
            consumer.close()
        if found.error is not None:
            return False
    return True


@BY_KIND
@pytest.mark.timeout(600)
def test_kafkas_tools_change_acls_and_users_of_both_kinds_of_brokers(
    secured: MixedCluster, kind: Kind, findings: Findings
) -> None:
    secured.move_controller(kind)
    change_users_and_acls(secured, [OURS, KAFKAS], kind.value, findings)


@pytest.mark.timeout(600)
def test_kafkas_tools_change_acls_and_users_of_brokers_of_this_project_alone(
    kafka: Kafka, tmp_path_factory: pytest.TempPathFactory, findings: Findings
) -> None:
    kinds = {1: Kind.OURS, 2: Kind.OURS}
    with MixedCluster(kafka, tmp_path_factory.mktemp("alone"), kinds=kinds, security=Security()) as cluster:
        cluster.start(Kind.OURS)
        # A new librdkafka that gets metadata without a controller does not ask again for minutes.
        eventually(lambda: cluster.admin().list_topics(timeout=LIMIT_S).controller_id > 0, "a controller", LIMIT_S)
        change_users_and_acls(cluster, [1, 2], "alone", findings)


def change_users_and_acls(secured: MixedCluster, replicas: list[int], name: str, findings: Findings) -> None:
    topic, user = f"tools-{name}", f"user-{name}"
    secured.create(topic, [replicas])
    at_user = ("--entity-type", "users", "--entity-name", user)
    acl = ("--allow-principal", f"User:{user}", "--operation", "Read", "--topic", topic)
    password = "SCRAM-SHA-512=[iterations=4096,password=first]"

    def run(tool_name: str, what: str, prints: str, *words: str) -> None:
        output = tool(secured, OURS, tool_name, *words)
        held = output.status == 0 and bool(re.search(prints, output.out))
        if name != "alone":
            findings.tool(tool_name, what, name, held)
        assert held, output

    run("kafka-configs", "user, alter (SCRAM)", "Completed updating", *at_user, "--alter", "--add-config", password)
    run("kafka-configs", "user, describe (SCRAM)", "SCRAM-SHA-512=iterations=4096", *at_user, "--describe")
    eventually(lambda: not may_read(secured, user, "first", topic), "the user has no ACL", LIMIT_S)
    run("kafka-acls", "add", "Adding ACLs", "--add", *acl)
    eventually(lambda: may_read(secured, user, "first", topic), "the ACL is known to all brokers", LIMIT_S)
    run("kafka-acls", "list", f"User:{user}, host=.*operation=READ, permissionType=ALLOW", "--list", "--topic", topic)
    run("kafka-acls", "remove", "Are you sure|Removing|^\\s*$|Current", "--remove", "--force", *acl)
    eventually(lambda: not may_read(secured, user, "first", topic), "the ACL is gone", LIMIT_S)
    run("kafka-configs", "user, delete (SCRAM)", "Completed", *at_user, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert read(secured, topic, 0) == []
