"""Fetch sessions (KIP-227): a client that asks for the same partitions again and again names only what changed."""

from __future__ import annotations

from collections.abc import Sequence

from controller.broker.fetch_reading import Reading
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
)


class SessionRefused(Exception):
    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error)
        self.error = error


class FullFetch:
    """One that names all its partitions and makes no session."""

    def __init__(self, request: FetchRequest) -> None:
        self._partitions = [(topic.topic, asked) for topic in request.topics for asked in topic.partitions]

    def partitions(self) -> Sequence[tuple[str, FetchPartition]]:
        return self._partitions

    def response(self, readings: Sequence[Reading]) -> FetchResponse:
        return FetchResponse(by_topic(readings))


class FetchSessions:
    def begin(self, request: FetchRequest) -> FullFetch:
        if request.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FullFetch(request)


def by_topic(readings: Sequence[Reading]) -> tuple[FetchTopicData, ...]:
    """Neighbours of one topic together."""
    topics: list[tuple[str, list[FetchPartitionData]]] = []
    for reading in readings:
        if not topics or topics[-1][0] != reading.topic:
            topics.append((reading.topic, []))
        topics[-1][1].append(reading.data)
    return tuple(FetchTopicData(topic, tuple(partitions)) for topic, partitions in topics)
