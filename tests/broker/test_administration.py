"""A node's part in ZooKeeper beside its registration: its topics' configs at every turn of its life, producer ids."""

from __future__ import annotations

import pytest

from controller.broker.topic_configs import WAIT_MS
from controller.protocol.client import ApiVersionsRequest
from controller.protocol.codec import MESSAGES, ApiKey
from controller.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import InitProducerIdRequest
from controller.zookeeper import paths
from tests.broker.data_node import DataNode
from tests.broker.harness import leader_and_isr

WEEK_MS = 7 * 24 * 3600 * 1000


def retention(node: DataNode, topic: str = "t") -> int:
    log = node.logs.get(topic, 0)
    assert log is not None
    return log.settings.retention_ms


def test_a_new_log_has_its_topics_settings_as_soon_as_they_are_read() -> None:
    node = DataNode()
    node.write_config(paths.config_topic("t"), {"retention.ms": "5"})
    node.lead("t")
    assert retention(node) == 5, "before its leader is told so"


def test_a_leader_is_told_so_though_zookeeper_is_away() -> None:
    """And nothing of its records goes before the config is known."""
    node = DataNode("other")
    node.write_config(paths.config_topic("t"), {"retention.ms": "5"})
    began_ms = node.clock.now_ms()
    node.connection.cut()
    node.lead("t")
    assert WAIT_MS <= node.clock.now_ms() - began_ms < WAIT_MS + 100
    assert retention(node) == -1
    node.connection.heal()
    node.until(lambda: retention(node) == 5)


def test_roles_are_taken_in_the_order_in_which_they_were_told() -> None:
    node = DataNode("known")
    requests = [node.begin(ApiKey.LEADER_AND_ISR, leading(topic, epoch)) for topic, epoch in ROLES]
    assert [one.answered for one in requests] == [False] * 3, "the second waits for the first, though it is known"
    node.until(lambda: requests[-1].answered)
    errors = [[part.error_code for topic in one.value().topics for part in topic.partition_errors] for one in requests]
    assert errors == [[0], [0], [ErrorCode.STALE_CONTROLLER_EPOCH]]


ROLES = (("new", 3), ("known", 1), ("new", 2))


def leading(topic: str, leader_epoch: int) -> LeaderAndIsrRequest:
    request = leader_and_isr(1, leader_epoch, broker_epoch=-1)
    named = LeaderAndIsrTopicState(topic, request.topic_states[0].partition_states, bytes(range(16)))
    return LeaderAndIsrRequest(1, 1, (named,), (), -1)


@pytest.mark.parametrize("name", ["../t", "a/b", "", ".", "a\0b", "x" * 300])
def test_a_topic_that_can_have_no_directory_is_refused_and_holds_up_nobody(name: str) -> None:
    node = DataNode()
    before = node.disk.names("logs")
    (topic,) = node.ask(ApiKey.LEADER_AND_ISR, leading(name, 0)).topics
    assert [part.error_code for part in topic.partition_errors] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert node.disk.names("logs") == before
    node.lead("t")
    assert node.services.configs.known("t")


def test_a_config_that_can_not_be_read_keeps_nobody_waiting() -> None:
    node = DataNode()
    node.write(paths.config_topic("t"), b"{")
    began_ms = node.clock.now_ms()
    node.lead("t")
    assert node.clock.now_ms() - began_ms < 100
    assert retention(node) == -1


def test_logs_that_are_there_at_the_start_have_their_settings_before_any_role() -> None:
    first = DataNode("t")
    assert retention(first) == WEEK_MS
    first.logs.close()
    second = DataNode(disk=first.disk)
    assert retention(second) == WEEK_MS, "as its config says, which is not there"
    second.logs.close()
    third = DataNode(disk=first.disk, log_retention_ms="9")
    assert retention(third) == 9


def test_a_topic_of_the_same_name_is_read_anew_after_a_deletion() -> None:
    node = DataNode("t")
    node.write_config(paths.config_topic("t"), {"retention.ms": "5"})
    stop = StopReplicaTopicState("t", (StopReplicaPartitionState(0, -2, delete_partition=True),))
    assert node.ask(ApiKey.STOP_REPLICA, StopReplicaRequest(1, 1, (stop,), broker_epoch=-1)).error_code == 0
    assert node.logs.get("t", 0) is None
    node.lead("t", topic_id=bytes(range(1, 17)))
    node.settle()
    assert retention(node) == 5


def test_a_config_takes_effect_while_the_controller_is_at_something() -> None:
    node = DataNode("t")
    node._busy = True
    node.write_config(paths.config_topic("t"), {"retention.ms": "5"})
    node.notify(b'{"version":2,"entity_path":"topics/t"}')
    assert retention(node) == 5


def test_the_watch_outlives_a_term_and_a_session() -> None:
    node = DataNode("t")
    node.node.controller.resign("as a test asks")
    node.write_config(paths.config_topic("t"), {"retention.ms": "5"})
    node.notify(b'{"version":2,"entity_path":"topics/t"}')
    assert retention(node) == 5
    old = node.connection.session()
    node.zookeeper.expire(old)
    node.write_config(paths.config_topic("t"), {"retention.ms": "6"})
    node.until(lambda: node.connection.session() not in (0, old))
    node.settle()
    assert retention(node) == 6


def test_a_node_offers_and_answers_all_that_there_is() -> None:
    node = DataNode()
    offered = node.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("librdkafka", "2.0.0")).api_keys  # all there is
    missing = set(MESSAGES) - {ApiKey(one.api_key) for one in offered}
    assert missing == set()


def test_producer_ids_come_of_this_brokers_block() -> None:
    node = DataNode()
    answers = [node.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 1)) for _ in range(3)]
    assert [(one.error_code, one.producer_id, one.producer_epoch) for one in answers] == [
        (ErrorCode.NONE, producer_id, 0) for producer_id in range(3)
    ]
    assert node.data(paths.PRODUCER_ID_BLOCK) == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
