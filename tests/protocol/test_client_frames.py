"""What real clients send is taken, and is the same bytes again: one request of each kind, as they came over the wire.

tests/data/clients/requests.jsonl has them from confluent-kafka 2.16.1 (librdkafka 2.16.0), kafka-python 3.0.12 and kcat
1.7.1 (librdkafka 2.0.2), which were offered the versions of `SUPPORTED` and took their pick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.protocol import RECORD_MESSAGES, SUPPORTED, ApiKey, decode_request, encode_request

LINES = (Path(__file__).parent.parent / "data" / "clients" / "requests.jsonl").read_text().splitlines()
REQUESTS = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: f"{row['client']}-{row['api']}-{row['version']}")
def test_a_clients_request_is_the_same_bytes_again(row: dict[str, Any]) -> None:
    frame = bytes.fromhex(row["request"])
    request = decode_request(frame, SUPPORTED)
    assert request.header.api_key.name == row["api"]
    assert (request.header.api_version, request.header.client_id) == (row["version"], row["client"])
    assert encode_request(request.header, request.value) == frame


def test_all_of_the_data_plane_but_what_followers_ask_was_sent() -> None:
    sent = {ApiKey[row["api"]] for row in REQUESTS}
    assert set(RECORD_MESSAGES) - sent == {ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ALTER_REPLICA_LOG_DIRS}
