"""The frames of a real Kafka 2.8.2 cluster, as recorded in tests/data, for the tests of this room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from controller.protocol import SUPPORTED, ApiKey

RECORDING = Path(__file__).parent.parent / "data" / "kafka-2.8.2" / "wire.jsonl"

CONTROL = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.UPDATE_METADATA,
    ApiKey.STOP_REPLICA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_ISR,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    line: int
    api_key: ApiKey
    version: int
    correlation_id: int
    sender: str
    request: bytes
    response: bytes | None


@cache
def recorded() -> tuple[Recorded, ...]:
    """Every exchange of an API that is spoken here, in order."""
    return tuple(_read())


def _read() -> Iterator[Recorded]:
    with RECORDING.open() as lines:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line)
            if row["api_key"] not in SUPPORTED:
                continue
            yield Recorded(
                number,
                ApiKey(row["api_key"]),
                row["version"],
                row["correlation"],
                row["from"],
                bytes.fromhex(row["request"]),
                bytes.fromhex(row["response"]) if row["response"] else None,
            )
