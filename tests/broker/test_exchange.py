"""A request is answered once, also where the answer can't be encoded, and also when it was let go while it waited."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.broker.request_context import RequestContext
from controller.protocol import ApiKey, RequestHeader, decode_response
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicData,
)
from controller.protocol.framing import Part, joined

HEADER = RequestHeader(ApiKey.FETCH, 11, 7, "broker-1-fetcher-0")
ASKED = FetchRequest(500, 1, (FetchTopic("t", (FetchPartition(3, 0, 100),)),))
NO_ANSWER = FetchResponse((FetchTopicData("t", (FetchPartitionData(2**40, 0, 0, b""),)),))
"""No partition has that number."""


class Asked:
    def __init__(self) -> None:
        self.answers: list[Sequence[Part] | None] = []
        self.notes: list[str] = []
        self.exchange = RequestContext(
            HEADER, ASKED, self.answers.append, "PLAINTEXT", lambda _level, text: self.notes.append(text)
        )

    def answer(self) -> FetchResponse:
        (parts,) = self.answers
        assert parts is not None
        number, value = decode_response(HEADER.api_key, HEADER.api_version, joined(parts))
        assert number == HEADER.correlation_id
        assert isinstance(value, FetchResponse)
        return value


@pytest.mark.parametrize("release_request", [False, True])
def test_an_answer_that_can_not_be_encoded_is_a_refusal_of_the_request(release_request: bool) -> None:
    asked = Asked()
    if release_request:
        asked.exchange.release_request(FetchRequest(0, 0, ()))
    asked.exchange(NO_ANSWER)
    answer = asked.answer()
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    named = [(topic.topic, one.partition_index) for topic in answer.responses for one in topic.partitions]
    assert named == ([] if release_request else [("t", 3)])
    assert len(asked.notes) == 1


def test_it_is_answered_once_however_it_is_called() -> None:
    asked = Asked()
    asked.exchange(FetchResponse(()))
    with pytest.raises(RuntimeError, match="answered twice"):
        asked.exchange.answer(FetchResponse(()))
    assert asked.answer() == FetchResponse(())
