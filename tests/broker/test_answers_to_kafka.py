"""What a follower of Kafka 2.8 can be answered: errors that its fetcher handles, as docs/interop.md lists them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from controller.core.handlers.isr_changes import HANDLED_AT_0
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from controller.protocol.schema import RequestValue
from tests.broker.data_harness import DataBroker

DOCS = Path(__file__).parents[2] / "docs" / "interop.md"
FOLLOWER, EPOCH, END = 2, 3, 5
EPOCHS = (-1, EPOCH - 1, EPOCH, EPOCH + 1)
VERSIONS = {ApiKey.FETCH: (11, 12), ApiKey.OFFSET_FOR_LEADER_EPOCH: (3, 4), ApiKey.LIST_OFFSETS: (5, 6)}
"""Of inter-broker protocols 2.6 to 2.8."""


def asked(api: ApiKey, topic: str, epoch: int, at: int, replica: int) -> RequestValue:
    if api is ApiKey.FETCH:
        one = FetchPartition(0, at, 1 << 20, epoch, log_start_offset=0)
        return FetchRequest(0, 0, (FetchTopic(topic, (one,)),), replica_id=replica)
    if api is ApiKey.LIST_OFFSETS:
        time = EARLIEST_TIMESTAMP if at == 0 else LATEST_TIMESTAMP
        return ListOffsetsRequest((ListOffsetsTopic(topic, (ListOffsetsPartition(0, time, epoch),)),), replica)
    wanted = OffsetForLeaderPartition(0, EPOCH if at == 0 else at, epoch)
    return OffsetForLeaderEpochRequest((OffsetForLeaderTopic(topic, (wanted,)),), replica)


def answered(api: ApiKey) -> set[ErrorCode]:
    """Every error of a partition that these requests bring, whoever leads it and whatever the follower believes."""
    found = set()
    for role in ("leads", "follows", "offline", "new leader"):
        broker = DataBroker()
        partition = broker.follow(epoch=EPOCH) if role == "follows" else broker.lead(epoch=EPOCH - 1)
        if role != "follows":
            broker.append(partition, END, committed=role != "new leader")
            partition = broker.lead(epoch=EPOCH)
        if role == "offline":
            partition.go_offline()
        requests = product(("t", "unknown"), EPOCHS, (-1, 0, END, END + 9), (FOLLOWER, 9), VERSIONS[api])
        for topic, epoch, at, replica, version in requests:
            answer = broker.ask(api, asked(api, topic, epoch, at, replica), version)
            if api is ApiKey.FETCH:
                assert answer.error_code == ErrorCode.NONE
                topics = answer.responses
            else:
                topics = answer.topics
            found |= {ErrorCode(one.error_code) for each in topics for one in each.partitions}
    return found


def listed(row: str) -> set[ErrorCode]:
    """The errors that the table of docs/interop.md has in that row."""
    (line,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {row} |")]
    return {ErrorCode[name] for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", line.split("|")[2])}


def test_followers_get_what_the_table_lists() -> None:
    for api, row in (
        (ApiKey.FETCH, "Fetch, of a partition"),
        (ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch"),
        (ApiKey.LIST_OFFSETS, "ListOffsets"),
    ):
        assert answered(api) - {ErrorCode.NONE} == listed(row), row


def test_leaders_get_what_the_table_lists() -> None:
    """`tests/core/test_isr_changes.py` holds the controller to these."""
    assert listed("AlterIsr 0, of a partition") == set(HANDLED_AT_0)
