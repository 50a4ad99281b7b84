"""FindCoordinator: there are no groups and no transactions, and who is offered the request at all."""

from __future__ import annotations

import pytest

from controller.broker.broker import NAMED_MAX
from controller.protocol.client import ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.broker.data_harness import DataBroker

JAVA = ApiVersionsRequest("apache-kafka-java", "2.8.2")


@pytest.mark.parametrize(
    ("software", "version", "offered"),
    [
        (JAVA, 3, False),
        (ApiVersionsRequest("kafka-python", "3.0.12"), 3, False),
        (ApiVersionsRequest(), 0, False),
        (ApiVersionsRequest("librdkafka", "2.16.0"), 3, True),
        (ApiVersionsRequest("confluent-kafka-python", "2.16.1-rdkafka-2.16.0"), 3, True),
    ],
)
def test_only_librdkafka_is_offered_find_coordinator(software: ApiVersionsRequest, version: int, offered: bool) -> None:
    """Any other client fails at once when it subscribes; librdkafka would send lz4 batches uncompressed."""
    answer = DataBroker().ask(ApiKey.API_VERSIONS, software, version)
    assert answer.error_code == ErrorCode.NONE
    assert (ApiKey.FIND_COORDINATOR in {one.api_key for one in answer.api_keys}) == offered
    assert ApiKey.FETCH in {one.api_key for one in answer.api_keys}


@pytest.mark.parametrize(
    ("key_type", "error", "words"),
    [
        (0, ErrorCode.COORDINATOR_NOT_AVAILABLE, "groups are not supported: use assign()"),
        (1, ErrorCode.COORDINATOR_NOT_AVAILABLE, "Transactions are not supported"),
        (2, ErrorCode.INVALID_REQUEST, "Key type 2"),
    ],
)
def test_nobody_coordinates(key_type: int, error: ErrorCode, words: str) -> None:
    answer: FindCoordinatorResponse = DataBroker().ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g", key_type))
    assert (answer.error_code, answer.node_id) == (error, -1)
    assert words in (answer.error_message or "")


def test_the_log_names_each_client_once_and_not_without_end() -> None:
    broker = DataBroker()
    for _ in range(3):
        broker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g", 0))
    (said,) = broker.trace.notes("warning")
    assert said.endswith("group 'g'. Consumer groups are not supported: use assign() instead of subscribe().")
    for number in range(NAMED_MAX + 10):
        broker.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(f"g{number}", 0))
    assert len(broker.trace.notes("warning")) == NAMED_MAX
