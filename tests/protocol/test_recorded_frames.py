"""Every recorded frame of a real cluster decodes, and encodes to the same bytes again."""

from __future__ import annotations

from collections import Counter

import pytest

from controller.protocol import (
    SUPPORTED,
    ApiKey,
    ApiVersionsResponse,
    ErrorCode,
    LeaderAndIsrRequest,
    MalformedFrame,
    UpdateMetadataRequest,
    VersionRange,
    decode_request,
    decode_response,
    decode_response_body,
    encode_request,
    encode_request_body,
    encode_response,
    request_head,
    response_body,
)
from controller.protocol.client import FindCoordinatorResponse
from controller.protocol.fetch import (
    CONSUMER,
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchRequest,
    FetchResponse,
)
from tests.protocol.recording import CONTROL, recorded


def test_every_request_and_response_is_the_same_bytes_again() -> None:
    for exchange in recorded():
        request = decode_request(exchange.request, SUPPORTED)
        assert (request.header.api_key, request.header.api_version) == (exchange.api_key, exchange.version)
        assert request.header.correlation_id == exchange.correlation_id
        assert request.header.client_id == exchange.sender
        assert encode_request(request.header, request.value) == exchange.request, f"line {exchange.line}"
        if exchange.response is not None:
            correlation_id, value = decode_response(exchange.api_key, exchange.version, exchange.response)
            assert correlation_id == exchange.correlation_id
            assert encode_response(request.header, value) == exchange.response, f"line {exchange.line}"


def test_head_and_body_apart_are_the_frame() -> None:
    for exchange in recorded():
        request = decode_request(exchange.request, SUPPORTED)
        body = encode_request_body(exchange.api_key, exchange.version, request.value)
        assert request_head(request.header) + body == exchange.request
        if exchange.response is not None:
            correlation_id, response = response_body(exchange.api_key, exchange.version, exchange.response)
            assert (correlation_id, decode_response_body(exchange.api_key, exchange.version, response)) == (
                decode_response(exchange.api_key, exchange.version, exchange.response)
            )


def test_the_recording_has_what_it_is_here_for() -> None:
    seen = Counter(exchange.api_key for exchange in recorded())
    assert all(seen[api_key] >= 5 for api_key in CONTROL)
    assert seen[ApiKey.CREATE_TOPICS] == seen[ApiKey.CREATE_PARTITIONS] == 1
    assert seen[ApiKey.METADATA] == 16
    assert seen[ApiKey.FETCH] == 60
    assert seen[ApiKey.PRODUCE] == 9
    assert seen[ApiKey.LIST_OFFSETS] == 3
    assert seen[ApiKey.FIND_COORDINATOR] == 4
    assert seen[ApiKey.INIT_PRODUCER_ID] == 1
    assert seen[ApiKey.API_VERSIONS] == 20


LATER = {
    ApiKey.ALTER_ISR: VersionRange(0, 3),
    ApiKey.UPDATE_FEATURES: VersionRange(0, 1),
    ApiKey.DESCRIBE_LOG_DIRS: VersionRange(0, 4),
    ApiKey.ALLOCATE_PRODUCER_IDS: VersionRange(0, 0),
}
"""What brokers and clients of Kafka 3 ask, spoken beside what a 2.8 broker offers."""


def test_the_versions_spoken_are_those_that_a_real_broker_offers() -> None:
    offers = []
    for exchange in recorded():
        if exchange.api_key is ApiKey.API_VERSIONS and exchange.response is not None:
            _, value = decode_response(exchange.api_key, exchange.version, exchange.response)
            assert isinstance(value, ApiVersionsResponse)
            offers.append(
                {offer.api_key: VersionRange(offer.min_version, offer.max_version) for offer in value.api_keys}
            )
    assert len(offers) == 20
    for offered in offers:
        assert {key: LATER.get(key, offered.get(key)) for key in SUPPORTED} == SUPPORTED
        for key, later in LATER.items():
            older = offered.get(key)
            assert older is None or (older.first == later.first and older.last < later.last), key


def fetches() -> list[tuple[FetchRequest, FetchResponse]]:
    found = []
    for exchange in recorded():
        if exchange.api_key is ApiKey.FETCH and exchange.response is not None:
            request = decode_request(exchange.request, SUPPORTED).value
            _, response = decode_response(exchange.api_key, exchange.version, exchange.response)
            assert isinstance(request, FetchRequest)
            assert isinstance(response, FetchResponse)
            found.append((request, response))
    return found


def test_what_the_documentation_says_of_followers_and_consumers() -> None:
    for request, _ in fetches():
        assert (request.max_wait_ms, request.min_bytes) == (500, 1)
        asked = [partition for topic in request.topics for partition in topic.partitions]
        assert all(partition.partition_max_bytes == 2**20 for partition in asked)
        assert all(partition.current_leader_epoch >= 0 for partition in asked)
        if request.replica_id == CONSUMER:
            assert (request.session_id, request.session_epoch) == (NO_SESSION, FINAL_SESSION_EPOCH)
            assert (request.isolation_level, request.max_bytes) == (READ_COMMITTED, 50 << 20)
            continue
        assert (request.isolation_level, request.max_bytes) == (READ_UNCOMMITTED, 10 << 20)
        assert (request.session_id == NO_SESSION) == (request.session_epoch == INITIAL_SESSION_EPOCH)
        assert request.topics or request.session_id
        for partition in asked:
            assert (partition.last_fetched_epoch >= 0) == (partition.fetch_offset > 0)
            assert partition.log_start_offset == 0


def test_what_the_documentation_says_of_a_leaders_answer() -> None:
    ended = missing = 0
    for request, response in fetches():
        over = request.replica_id != CONSUMER and not response.session_id
        assert not over or (request.forgotten_topics_data and not request.topics and not response.responses)
        ended += over
        for data in (data for topic in response.responses for data in topic.partitions):
            assert data.records is not None
            assert data.last_stable_offset == data.high_watermark
            assert data.aborted_transactions == (() if request.isolation_level else None)
            assert (data.error_code == 0) == (data.high_watermark >= 0) == (data.log_start_offset >= 0)
            missing += data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (ended, missing) == (3, 3)


def test_what_the_documentation_says_of_a_coordinator_that_is_not_there() -> None:
    refusals = []
    for exchange in recorded():
        if exchange.api_key is ApiKey.FIND_COORDINATOR and exchange.response is not None:
            _, value = decode_response(exchange.api_key, exchange.version, exchange.response)
            assert isinstance(value, FindCoordinatorResponse)
            refusals += [value] if value.error_code else []
    assert (
        refusals
        == [FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")] * 2
    )


@pytest.mark.parametrize("api_key", CONTROL)
def test_no_frame_is_taken_that_is_shorter_or_longer(api_key: ApiKey) -> None:
    exchange = max((e for e in recorded() if e.api_key is api_key), key=lambda e: len(e.request))
    for size in range(len(exchange.request)):
        with pytest.raises(MalformedFrame):
            decode_request(exchange.request[:size])
    with pytest.raises(MalformedFrame, match="1 bytes after its end"):
        decode_request(exchange.request + b"\x00")


def test_what_the_documentation_says_of_the_controllers_fields() -> None:
    states = 0
    for exchange in recorded():
        value = decode_request(exchange.request, SUPPORTED).value
        if isinstance(value, LeaderAndIsrRequest):
            assert value.type == 0
            led = {state.leader for topic in value.topic_states for state in topic.partition_states}
            assert {leader.broker_id for leader in value.live_leaders} <= led
            for topic in value.topic_states:
                for state in topic.partition_states:
                    states += 1
                    assert state.controller_epoch <= value.controller_epoch
                    assert not state.is_new or state.leader_epoch <= 1
        elif isinstance(value, UpdateMetadataRequest):
            assert all(broker.rack is None and len(broker.endpoints) == 1 for broker in value.live_brokers)
            for metadata in (state for topic in value.topic_states for state in topic.partition_states):
                assert set(metadata.offline_replicas) <= set(metadata.replicas)
    assert states > 50
