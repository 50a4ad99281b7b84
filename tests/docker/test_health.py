"""The health check asks as a client does and is held against the broker's own codec; what is not healthy fails it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.protocol import (
    ApiKey,
    MetadataRequest,
    MetadataResponse,
    RequestHeader,
    decode_request,
    encode_response,
)
from controller.protocol.client import MetadataResponseBroker
from tests.docker.scripts import script

health = script("health")


def answer(brokers: list[int], controller: int, rack: str | None = None) -> bytes:
    listed = tuple(MetadataResponseBroker(node_id=one, host=f"host-{one}", port=9092, rack=rack) for one in brokers)
    response = MetadataResponse(brokers=listed, controller_id=controller, topics=())
    return encode_response(RequestHeader(ApiKey.METADATA, health.VERSION, health.CORRELATION_ID, None), response)


@contextmanager
def broker_that_answers(frame: bytes) -> Iterator[str]:
    """Takes one connection, reads the request, answers with `frame` (nothing if it is empty) and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(struct.pack(">i", len(frame)) + frame if frame else b"")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_the_request_is_one_that_the_broker_reads_and_asks_for_no_topic() -> None:
    request = decode_request(health.REQUEST)
    assert (request.header.api_key, request.header.api_version) == (ApiKey.METADATA, health.VERSION)
    assert isinstance(request.value, MetadataRequest)
    assert request.value.topics == ()


@pytest.mark.parametrize("rack", [None, "", "rack-1"])
@pytest.mark.parametrize("brokers", [[], [7], [1, 2, 3]])
def test_the_answer_is_read_as_the_codec_wrote_it(brokers: list[int], rack: str | None) -> None:
    assert health.brokers_in(answer(brokers, 2, rack)) == (brokers, 2)


@pytest.mark.parametrize("broker_id", ["2", ""])
def test_a_broker_that_lists_itself_is_healthy(broker_id: str) -> None:
    with broker_that_answers(answer([1, 2], 1)) as address:
        assert health.check(address, broker_id) == "brokers [1, 2], controller 1"


@pytest.mark.parametrize(
    ("frame", "broker_id", "said"),
    [
        (answer([1, 3], 1), "2", "broker 2 is not listed"),
        (answer([], -1), "", "not listed"),
        (answer([1, 2], 1)[:-6], "2", "no metadata"),
        (b"\0\0\0\5" + answer([2], 1)[4:], "2", "another request"),
        (b"", "2", "closed"),
    ],
    ids=["not listed", "nobody listed", "torn", "not asked for", "no answer"],
)
def test_what_is_not_healthy_fails_the_check_and_says_why(frame: bytes, broker_id: str, said: str) -> None:
    with broker_that_answers(frame) as address, pytest.raises(health.Unhealthy, match=said):
        health.check(address, broker_id)


def test_nobody_there_is_unhealthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(health.Unhealthy, match="no answer"):
        health.check(address, "1")
