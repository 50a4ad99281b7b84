"""The requests that a follower makes, and what their answers hold for each partition. Pure.

Fields as Kafka 2.8's ReplicaFetcherThread fills them in: the follower's broker id as the replica, the leader epoch that
it knows of with every partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from controller.broker.configs.settings import BrokerSettings
from controller.broker.following.fetcher_session import SessionRequest
from controller.broker.following.fetcher_states import Followed, Key
from controller.protocol.control_values import NO_BROKER_EPOCH
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    ReplicaState,
)
from controller.storage import EpochEnd

Offsets: TypeAlias = Mapping[Key, tuple[ErrorCode, int]]
EndOffsets: TypeAlias = Mapping[Key, tuple[ErrorCode, EpochEnd]]

_KNOWN = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """A later broker may have errors that are not known here."""
    return _KNOWN.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def fetch_request(
    settings: BrokerSettings, session: SessionRequest, until_due_ms: float | None, broker_epoch: int
) -> FetchRequest:
    """`until_due_ms`: when another partition is to be asked about. The leader is not to wait for longer than that.
    `broker_epoch`: whose log it is that what is asked for shows, this life's and no other's (KIP-903)."""
    max_wait_ms = settings.replica_fetch_wait_max_ms
    if until_due_ms is not None:
        max_wait_ms = min(max_wait_ms, math.ceil(until_due_ms))
    life = ReplicaState() if broker_epoch == NO_BROKER_EPOCH else ReplicaState(settings.broker_id, broker_epoch)
    return FetchRequest(
        max_wait_ms,
        settings.replica_fetch_min_bytes,
        session.topics,
        replica_id=settings.broker_id,
        max_bytes=settings.replica_fetch_response_max_bytes,
        session_id=session.session_id,
        session_epoch=session.session_epoch,
        forgotten_topics_data=session.forgotten,
        replica_state=life,
    )


def offset_for_leader_epoch_request(broker_id: int, partitions: Iterable[Followed]) -> OffsetForLeaderEpochRequest:
    """Where each log's latest epoch ends at the leader."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for one in partitions:
        asked = OffsetForLeaderPartition(one.partition.index, one.log.epochs.latest, one.leader_epoch)
        topics.setdefault(one.partition.topic, []).append(asked)
    return OffsetForLeaderEpochRequest(
        tuple(OffsetForLeaderTopic(topic, tuple(asked)) for topic, asked in topics.items()), broker_id
    )


def end_offsets_of(response: OffsetForLeaderEpochResponse) -> EndOffsets:
    return {
        (topic.topic, one.partition): (error_of(one.error_code), EpochEnd(one.leader_epoch, one.end_offset))
        for topic in response.topics
        for one in topic.partitions
    }


def list_offsets_request(broker_id: int, partitions: Iterable[Followed], timestamp: int) -> ListOffsetsRequest:
    """`timestamp`: EARLIEST_TIMESTAMP for the leaders' log starts, LATEST_TIMESTAMP for their log ends (to a follower
    a leader tells its log's end, not its high watermark)."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for one in partitions:
        asked = ListOffsetsPartition(one.partition.index, timestamp, one.leader_epoch)
        topics.setdefault(one.partition.topic, []).append(asked)
    return ListOffsetsRequest(
        tuple(ListOffsetsTopic(topic, tuple(asked)) for topic, asked in topics.items()), broker_id
    )


def offsets_of(response: ListOffsetsResponse) -> Offsets:
    return {
        (topic.name, one.partition_index): (error_of(one.error_code), one.offset)
        for topic in response.topics
        for one in topic.partitions
    }
