"""Replicas that catch up no faster than leader.replication.throttled.rate; those in sync, and consumers, as ever."""

from __future__ import annotations

import pytest

from controller.broker.replica_manager import Measured, ReplicationThrottle
from controller.clock import VirtualClock
from controller.protocol.admin import RESOURCE_BROKER, RESOURCE_TOPIC
from controller.protocol.errors import ErrorCode
from tests.broker.data_node import DataNode
from tests.broker.leading import Holder, fetched, offsets
from tests.broker.test_configs import altered, set_to
from tests.broker.test_configs import node as node_fixture
from tests.storage.batches import batch

node = node_fixture
BATCH_BYTES = len(batch())


def holder(rate: int | None, replicas: str) -> Holder:
    """Leads partition 0 with brokers 1 and 2 in sync, 3 behind; ten batches of one record."""
    broker = Holder()
    broker.begin_leading((1, 2))
    for _ in range(10):
        broker.produce(acks=1)
    data = broker.broker.data
    assert data is not None
    data.throttle.rate = lambda: rate
    data.throttle.replicas = lambda _topic: replicas
    return broker


def test_bytes_a_second_are_over_eleven_samples() -> None:
    clock = VirtualClock()
    measured = Measured(clock)
    assert measured.bytes_per_s() == 0
    measured.add(20_000)
    assert measured.bytes_per_s() == 2_000
    clock.advance_to(clock.now_ms() + 10_000)
    measured.add(10_000)
    assert measured.bytes_per_s() == 3_000
    clock.advance_to(clock.now_ms() + 1_000)
    assert measured.bytes_per_s() == 1_000, "the first sample has gone"


@pytest.mark.parametrize(
    ("replicas", "held"), [("0:1", True), ("*", True), ("5:1, 0:1", True), ("0:3", False), ("1:1", False), ("", False)]
)
def test_the_topics_config_says_where_it_is_led_too_fast(replicas: str, held: bool) -> None:
    throttle = ReplicationThrottle(1, VirtualClock(), lambda: 0, lambda _topic: replicas)
    assert throttle.holds_back("t", 0, 3, (1, 2)) is held
    assert not throttle.holds_back("t", 0, 2, (1, 2)), "in sync"


def test_one_that_is_behind_gets_so_many_bytes_and_then_waits() -> None:
    broker = holder(rate=BATCH_BYTES // 20, replicas="0:1")
    at_once = BATCH_BYTES + 1
    assert offsets(broker.follow(3, 0, partition_max_bytes=at_once)) == [0]
    held = broker.follow(3, 1, partition_max_bytes=at_once)
    assert (held.error_code, offsets(held), held.high_watermark) == (ErrorCode.NONE, [], 0)
    assert offsets(broker.follow(2, 0, partition_max_bytes=at_once)) == [0], "in sync"
    broker.later(12_000)
    assert offsets(broker.follow(3, 1, partition_max_bytes=at_once)) == [1]


def test_a_fetch_that_finds_nothing_for_that_reason_waits_and_does_not_spin() -> None:
    broker = holder(rate=0, replicas="*")
    waiting = broker.fetch(0, replica=3, epoch=4, wait_ms=500)
    broker.produce(acks=1)
    assert not waiting.answered
    broker.later(500)
    assert offsets(fetched(waiting)) == []


@pytest.mark.parametrize(("rate", "replicas"), [(None, "*"), (0, ""), (0, "0:2")])
def test_without_a_rate_or_a_name_nothing_is_held_back(rate: int | None, replicas: str) -> None:
    assert offsets(holder(rate, replicas).follow(3, 0)) == list(range(10))


def test_both_are_set_as_the_tool_sets_them_and_taken_up(node: DataNode) -> None:
    data = node.node.broker.data
    assert data is not None
    assert data.throttle.rate() is None
    rates = [set_to(f"{role}.replication.throttled.rate", "1000000") for role in ("leader", "follower")]
    assert altered(node, RESOURCE_BROKER, "1", *rates).error_code == ErrorCode.NONE
    lists = [set_to(f"{role}.replication.throttled.replicas", "0:1,1:1") for role in ("leader", "follower")]
    assert altered(node, RESOURCE_TOPIC, "t", *lists).error_code == ErrorCode.NONE
    node.settle()
    assert data.throttle.rate() == 1_000_000
    assert data.throttle.replicas("t") == "0:1,1:1"
    refused = altered(node, RESOURCE_BROKER, "1", set_to("leader.replication.throttled.rate", "-1"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
