"""A follower against the answers of a Kafka 2.8.2 leader, as they were recorded: it asks byte for byte what Kafka's own
follower asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.broker.partition import Partition
from controller.protocol import ApiKey, RequestHeader, request_head, response_body
from tests.broker.fetching import Follower

RECORDING = Path(__file__).parents[1] / "data" / "kafka-2.8.2" / "wire.jsonl"
FETCH_VERSION = 12
FOLLOWER = "broker-3-fetcher-0"


def recorded(connection: int) -> list[tuple[bytes, bytes]]:
    """The frames of a connection of broker 3's fetcher: what it asked, and what it was answered."""
    lines = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    found = [one for one in lines if one["connection"] == connection and one["api"] == "Fetch"]
    assert {(one["from"], one["version"]) for one in found} == {(FOLLOWER, FETCH_VERSION)}
    return [(bytes.fromhex(one["request"]), bytes.fromhex(one["response"])) for one in found if one.get("response")]


@pytest.mark.parametrize(
    ("connection", "comes", "ends"),
    [
        (42580, {0: ("pay", 0), 1: ("orders", 0)}, {("pay", 0): 0, ("orders", 0): 68}),
        (39950, {0: ("orders", 2)}, {("orders", 2): 57}),
    ],
)
def test_a_follower_asks_what_kafkas_follower_asked(
    connection: int, comes: dict[int, tuple[str, int]], ends: dict[tuple[str, int], int]
) -> None:
    """`comes`: before which request a partition was to be followed; `ends`: where the logs end at last."""
    follower = Follower(count=0, broker_id="3")
    for number, (request, response) in enumerate(recorded(connection)):
        if number == 0:
            follow(follower, *comes[0])
        head = request_head(RequestHeader(ApiKey.FETCH, FETCH_VERSION, number, FOLLOWER))
        assert head + follower.peers.asked[number][2] == request
        if number + 1 in comes:
            follow(follower, *comes[number + 1])
        follower.peers.asked[number][3].resolve(response_body(ApiKey.FETCH, FETCH_VERSION, response)[1])
    assert {(one.topic, one.index): one.log and one.log.log_end_offset for one in follower.partitions} == ends
    assert follower.trace.notes("warning") == []


def follow(follower: Follower, topic: str, index: int) -> None:
    partition = Partition(topic, index, leader=2, leader_epoch=0)
    partition.attach(follower.directory.create((topic, index)), 0)
    follower.partitions.append(partition)
    follower.fetchers.follow([partition])
