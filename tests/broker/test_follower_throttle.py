"""Replicas that are behind take no more than follower.replication.throttled.rate; those in sync are never held back."""

from __future__ import annotations

import pytest

from controller.broker.fetcher import Fetcher
from tests.broker.data_node import DataNode
from tests.broker.fetching import BACKOFF_MS, EPOCH, LEADER, Follower, data
from tests.broker.test_configs import altered, set_to
from tests.broker.test_configs import node as node_fixture
from tests.storage.batches import batch

node = node_fixture
ONE = batch(1, leader_epoch=EPOCH)
RATE = len(ONE) // 20
"""So low that one batch is the limit for twice the window of eleven seconds."""
FAR = 100


def throttled(rate: int | None = RATE, replicas: str = "0:1", count: int = 1) -> Follower:
    follower = Follower(count)
    follower.throttle.rate, follower.throttle.replicas = lambda: rate, lambda _topic: replicas
    follower.follow()
    return follower


def test_one_that_is_behind_takes_so_many_bytes_and_then_does_not_ask() -> None:
    follower = throttled()
    assert follower.fetched() == [(0, 0)]
    follower.answer_fetch(data(0, ONE, high_watermark=FAR))
    asked = follower.count
    follower.later(10 * BACKOFF_MS)
    assert follower.count == asked, "nothing else is followed, so nothing is asked"
    follower.later(2 * BACKOFF_MS)
    assert follower.fetched() == [(0, 1)], "the bytes are no longer in the window"


def test_it_is_left_out_of_the_fetches_that_go_on_for_others() -> None:
    follower = throttled(count=2)
    assert follower.fetched() == [(0, 0), (1, 0)]
    follower.answer_fetch(data(0, ONE, high_watermark=FAR), data(1, ONE, high_watermark=FAR))
    assert follower.fetched() == [(1, 1)]
    follower.later(12 * BACKOFF_MS)
    follower.answer_fetch(data(1, high_watermark=FAR))
    assert sorted(follower.fetched()) == [(0, 1), (1, 1)]


def test_all_that_are_behind_wait_when_one_has_taken_what_there_was() -> None:
    follower = throttled(replicas="*", count=3)
    follower.answer_fetch(data(0, ONE, high_watermark=FAR), data(2, high_watermark=0), session=77)
    follower.answer_fetch(session=77)
    (topic,) = follower.asked(1).topics + follower.asked(1).forgotten_topics_data
    assert (topic.topic, sorted(topic.partitions)) == ("t", [0, 1]), "2 has all that is committed"


def test_one_that_is_given_while_there_is_nothing_left_waits_from_the_first() -> None:
    follower = throttled(replicas="*", count=2)
    follower.fetchers.leave([follower.partitions[1]])
    follower.answer_fetch(data(0, ONE, high_watermark=FAR))
    asked = follower.count
    follower.follow(1)
    follower.later(BACKOFF_MS)
    assert follower.count == asked


def test_one_that_has_all_that_is_committed_is_asked_about_whatever_has_come() -> None:
    follower = throttled(rate=0)
    follower.later(BACKOFF_MS)
    assert follower.count == 0, "nobody knows how far it is"
    follower = throttled()
    follower.answer_fetch(data(0, ONE, high_watermark=1))
    assert follower.fetched() == [(0, 1)]


@pytest.mark.parametrize(("rate", "replicas"), [(None, "*"), (0, ""), (0, "0:2"), (0, "1:1")])
def test_without_a_rate_or_a_name_nothing_is_held_back(rate: int | None, replicas: str) -> None:
    follower = throttled(rate, replicas)
    follower.answer_fetch(data(0, ONE, high_watermark=FAR))
    assert follower.fetched() == [(0, 1)]


@pytest.mark.parametrize("planted", ["_count", "_is_held"])
def test_a_follower_that_does_not_count_or_does_not_wait_is_seen(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetcher, planted, lambda *_arguments: None)
    follower = throttled()
    follower.answer_fetch(data(0, ONE, high_watermark=FAR))
    assert follower.fetched() == [(0, 1)]


def test_a_rate_that_is_set_while_it_follows_counts_from_then_on(node: DataNode) -> None:
    plane = node.node.broker.data
    assert plane is not None
    assert plane.follower_throttle.rate() is None
    rate, replicas = "follower.replication.throttled.rate", "follower.replication.throttled.replicas"
    assert altered(node, 4, "1", set_to(rate, "5")).error_code == 0
    assert altered(node, 2, "t", set_to(replicas, f"0:1,1:{LEADER}")).error_code == 0
    node.settle()
    assert (plane.follower_throttle.rate(), plane.throttle.rate()) == (5, None)
    plane.follower_throttle.count("t", 0, 1_000)
    assert plane.follower_throttle.is_exceeded("t", 0)
    assert not plane.follower_throttle.is_exceeded("t", 1), "that one is broker 2's"
