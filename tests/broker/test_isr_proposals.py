"""What a leader's proposals look like in each version of AlterIsr and AlterPartition, and what each answer means."""

from __future__ import annotations

import pytest

from controller.broker.isr_manager import Proposal, ProposalOutcome, request_of, results_of, verdict, version_to_ask
from controller.protocol.codec import (
    SUPPORTED,
    ApiKey,
    VersionRange,
    decode_response_body,
    encode_request_body,
    encode_response_body,
)
from controller.protocol.control import AlterIsrPartitionResult, AlterIsrResponse, AlterIsrTopicResult
from controller.protocol.errors import ErrorCode

ID, OTHER_ID = bytes(range(16)), bytes(range(16, 32))
NAMED = Proposal(4, 7, (1, 2), (11, 22), ID)
UNNAMED = Proposal(4, 7, (1, 2))


@pytest.mark.parametrize(
    ("known", "offered", "proposals", "asked"),
    [
        ((0, 3), (0, 3), [NAMED], 3),
        ((0, 3), (0, 3), [NAMED, UNNAMED], 1),
        ((0, 3), (0, 2), [NAMED], 2),
        ((0, 3), (0, 0), [NAMED], 0),
        ((0, 0), (0, 3), [NAMED], 0),
        ((0, 3), (3, 5), [NAMED], 3),
        ((0, 3), (2, 3), [UNNAMED], 0),
        ((0, 3), (4, 5), [NAMED], 0),
        ((0, 3), None, [NAMED], 0),
    ],
)
def test_the_newest_version_that_both_ends_know_and_that_can_say_it(
    known: tuple[int, int], offered: tuple[int, int] | None, proposals: list[Proposal], asked: int
) -> None:
    told = None if offered is None else VersionRange(*offered)
    assert version_to_ask(0, VersionRange(*known), told, proposals) == asked


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.ALTER_ISR].last + 1))
def test_every_version_says_the_same(version: int) -> None:
    """Leader epoch, version and ISR with the lives that are meant; and each answer finds what it answers."""
    proposals = {("t", 0): NAMED, ("u", 5): Proposal(2, 1, (3, 1), topic_id=OTHER_ID), ("t", 1): NAMED}
    request = request_of(1, 55, proposals, version)
    assert encode_request_body(ApiKey.ALTER_ISR, version, request)
    assert [len(topic.partitions) for topic in request.topics] == [2, 1]
    said = [
        (
            one.partition_index,
            one.leader_epoch,
            one.current_isr_version,
            one.new_isr or tuple(member.broker_id for member in one.new_isr_with_epochs),
            one.new_isr_epochs or tuple(member.broker_epoch for member in one.new_isr_with_epochs),
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    unknown = (-1, -1) if version == 3 else ()
    assert said == [(0, 4, 7, (1, 2), (11, 22)), (1, 4, 7, (1, 2), (11, 22)), (5, 2, 1, (3, 1), unknown)]

    results = [AlterIsrPartitionResult(index, 0, 1, 4, (1, 2), 8) for index in (1, 0)]
    answered = AlterIsrResponse(
        0,
        (
            AlterIsrTopicResult("u", (AlterIsrPartitionResult(5, 107),), OTHER_ID),
            AlterIsrTopicResult("t", tuple(results), ID),
            AlterIsrTopicResult("never asked for", tuple(results), bytes(reversed(ID))),
        ),
    )
    if version < 2:
        answered = AlterIsrResponse(0, tuple(AlterIsrTopicResult(one.name, one.partitions) for one in answered.topics))
    else:
        answered = AlterIsrResponse(
            0, tuple(AlterIsrTopicResult("", one.partitions, one.topic_id) for one in answered.topics)
        )
    body = encode_response_body(ApiKey.ALTER_ISR, version, answered)
    read = decode_response_body(ApiKey.ALTER_ISR, version, body)
    assert isinstance(read, AlterIsrResponse)
    found = results_of(read, proposals, version)
    assert {key: one.error_code for key, one in found.items()} == {("u", 5): 107, ("t", 1): 0, ("t", 0): 0}


def test_what_kafka_3_9_makes_of_each_error() -> None:
    """Partition.handleAlterPartitionError and handleAlterPartitionUpdate: what is not named there is tried again."""
    found = {meaning: {code.name for code in ErrorCode if verdict(code) is meaning} for meaning in ProposalOutcome}
    assert found[ProposalOutcome.MADE] == {"NONE"}
    assert found[ProposalOutcome.DROP] == {"OPERATION_NOT_ATTEMPTED", "INELIGIBLE_REPLICA", "INVALID_REQUEST"}
    assert found[ProposalOutcome.KEEP] == {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
        "FENCED_LEADER_EPOCH",
        "INVALID_UPDATE_VERSION",
        "NEW_LEADER_ELECTED",
    }
    assert {"NOT_CONTROLLER", "UNKNOWN_SERVER_ERROR", "UNSUPPORTED_VERSION"} <= found[ProposalOutcome.RETRY]
    assert verdict(1_234) is ProposalOutcome.RETRY, "a later controller's own"
