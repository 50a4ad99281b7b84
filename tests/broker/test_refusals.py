"""Whatever a broker may be asked, it can refuse: in each version there is a response that says the error."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.broker.error_responses import refusal
from controller.protocol.codec import MESSAGES, ApiKey, RequestHeader, decode_response, encode_response
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from tests.protocol.strategies import values


@pytest.mark.parametrize("key", sorted(MESSAGES), ids=lambda key: key.name)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(st.data())
def test_every_request_has_its_refusal(key: ApiKey, data: st.DataObject) -> None:
    message = MESSAGES[key].request
    version = data.draw(st.integers(message.first, message.last), "version")
    request = data.draw(values(message, version), "request")
    response = refusal(request, ErrorCode.UNKNOWN_SERVER_ERROR, "why")
    decoded = decode_response(key, version, encode_response(RequestHeader(key, version, 7, "a"), response))
    assert decoded[0] == 7
    assert type(decoded[1]) is type(response)


def test_each_partition_is_told_the_error() -> None:
    request = ProduceRequest(1, 1000, (ProduceTopic("a", (ProducePartition(0, b""), ProducePartition(2, b""))),))
    response = refusal(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(response, ProduceResponse)
    told = [(each.index, each.error_code) for each in response.responses[0].partition_responses]
    assert told == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (2, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
