"""The bulk encoders give the codec's bytes, for made-up columns and for a real cluster's requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.core.request_batch import (
    LEADER_AND_ISR_VERSIONS,
    UPDATE_METADATA_VERSIONS,
    PartitionColumns,
    common_part,
    leader_and_isr_body,
    own_part,
    update_metadata_body,
)
from controller.protocol import (
    SUPPORTED,
    ApiKey,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaRequest,
    UnencodableValue,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
    decode_request,
    encode_request_body,
    request_head,
)
from tests.protocol.recording import recorded

SOME = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
LEADERS = (LeaderAndIsrLiveLeader(1, "host-1", 9092), LeaderAndIsrLiveLeader(2, "host-2", 9093))
BROKERS = (
    UpdateMetadataBroker(1, (UpdateMetadataEndpoint(9092, "host-1", "PLAINTEXT", 0),)),
    UpdateMetadataBroker(2, (UpdateMetadataEndpoint(1, "a", "IN", 0), UpdateMetadataEndpoint(2, "b", "OUT", 1)), "r"),
)
TOPICS = (("orders", bytes(range(16))), ("nobody's", bytes(16)), ("pay", b"\xff" * 16), ("ü" * 70, bytes(16)))


@dataclass(frozen=True, slots=True)
class Row:
    """One partition, as the columns and as the codec's values are made from it."""

    topic: int
    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False


def padded(sets: Sequence[tuple[int, ...]], spread: bool = False) -> npt.NDArray[np.int32]:
    """[n, width], -1 as padding: behind, or (`spread`) between, as a filter by mask leaves it."""
    width = max((len(ids) for ids in sets), default=0) * (2 if spread else 1)
    array = np.full((len(sets), width), -1, np.int32)
    for row, ids in enumerate(sets):
        for at, broker in enumerate(ids):
            array[row, at * (2 if spread else 1)] = broker
    return array


def columns(rows: Sequence[Row], spread: bool = False) -> PartitionColumns:
    def column(name: str) -> npt.NDArray[np.int32]:
        return np.array([getattr(row, name) for row in rows], np.int32)

    return PartitionColumns(
        topic_index=column("topic"),
        partition=column("partition"),
        controller_epoch=column("controller_epoch"),
        leader=column("leader"),
        leader_epoch=column("leader_epoch"),
        isr=padded([row.isr for row in rows], spread),
        zk_version=column("zk_version"),
        replicas=padded([row.replicas for row in rows]),
    )


def grouped(rows: Sequence[Row], topics: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes, list[Row]]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.topic, []).append(row)
    return [(*topics[topic], members) for topic, members in groups.items()]


def leader_and_isr(
    version: int, rows: Sequence[Row], topics: Sequence[tuple[str, bytes]], leaders: Any, type_: int = 0
) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        7,
        8,
        tuple(
            LeaderAndIsrTopicState(
                name,
                tuple(
                    LeaderAndIsrPartitionState(
                        row.partition,
                        row.controller_epoch,
                        row.leader,
                        row.leader_epoch,
                        row.isr,
                        row.zk_version,
                        row.replicas,
                        row.adding if version >= 3 else (),
                        row.removing if version >= 3 else (),
                        row.is_new,
                    )
                    for row in members
                ),
                topic_id,
            )
            for name, topic_id, members in grouped(rows, topics)
        ),
        leaders,
        9,
        type_,
    )


def update_metadata(rows: Sequence[Row], topics: Sequence[tuple[str, bytes]], brokers: Any) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        7,
        8,
        tuple(
            UpdateMetadataTopicState(
                name,
                tuple(
                    UpdateMetadataPartitionState(
                        row.partition,
                        row.controller_epoch,
                        row.leader,
                        row.leader_epoch,
                        row.isr,
                        row.zk_version,
                        row.replicas,
                        row.offline,
                    )
                    for row in members
                ),
                topic_id,
            )
            for name, topic_id, members in grouped(rows, topics)
        ),
        brokers,
        9,
    )


def bulk_leader_and_isr(
    version: int, rows: Sequence[Row], topics: Sequence[tuple[str, bytes]], leaders: Any, type_: int = 0
) -> bytes:
    return leader_and_isr_body(
        version,
        controller_id=7,
        controller_epoch=8,
        broker_epoch=9,
        topics=topics,
        columns=columns(rows, spread=len(rows) % 2 == 0),
        is_new=np.array([row.is_new for row in rows], np.bool_),
        live_leaders=leaders,
        adding={at: row.adding for at, row in enumerate(rows) if row.adding},
        removing={at: row.removing for at, row in enumerate(rows) if row.removing},
        type=type_,
    )


def bulk_update_metadata(version: int, rows: Sequence[Row], topics: Sequence[tuple[str, bytes]], brokers: Any) -> bytes:
    return update_metadata_body(
        version,
        controller_id=7,
        controller_epoch=8,
        broker_epoch=9,
        topics=topics,
        columns=columns(rows, spread=len(rows) % 2 == 0),
        offline=padded([row.offline for row in rows], spread=True),
        live_brokers=brokers,
    )


IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
NUMBER = st.integers(-2, 2**31 - 1)
ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from((0, 2, 3)),
        NUMBER,
        NUMBER,
        NUMBER,
        NUMBER,
        IDS,
        NUMBER,
        IDS,
        IDS,
        st.just(()) | IDS,
        st.just(()) | IDS,
        st.booleans(),
    ),
    max_size=12,
).map(lambda rows: sorted(rows, key=lambda row: row.topic))


@pytest.mark.parametrize("version", LEADER_AND_ISR_VERSIONS)
def test_leader_and_isr_is_the_codecs(version: int) -> None:
    @SOME
    @given(ROWS, st.integers(0, 2))
    def same(rows: list[Row], leaders: int) -> None:
        value = leader_and_isr(version, rows, TOPICS, LEADERS[:leaders])
        encoded = encode_request_body(ApiKey.LEADER_AND_ISR, version, value)
        assert bulk_leader_and_isr(version, rows, TOPICS, LEADERS[:leaders]) == encoded

    same()


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
def test_update_metadata_is_the_codecs(version: int) -> None:
    @SOME
    @given(ROWS, st.integers(0, 2))
    def same(rows: list[Row], brokers: int) -> None:
        value = update_metadata(rows, TOPICS, BROKERS[:brokers])
        encoded = encode_request_body(ApiKey.UPDATE_METADATA, version, value)
        assert bulk_update_metadata(version, rows, TOPICS, BROKERS[:brokers]) == encoded

    same()


@pytest.mark.parametrize("complete_but", [None, (), ("t", "u")])
@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
def test_our_own_tagged_fields_are_written_as_by_the_codec(version: int, complete_but: tuple[str, ...] | None) -> None:
    value = msgspec.structs.replace(
        update_metadata([], TOPICS, BROKERS), partitions_follow=True, complete_but=complete_but
    )
    bulk = update_metadata_body(
        version,
        controller_id=value.controller_id,
        controller_epoch=value.controller_epoch,
        broker_epoch=value.broker_epoch,
        topics=TOPICS,
        columns=columns([]),
        offline=padded([]),
        live_brokers=BROKERS,
        partitions_follow=True,
        complete_but=complete_but,
    )
    assert bulk == encode_request_body(ApiKey.UPDATE_METADATA, version, value)


ROW = Row(0, 1, 2, 3, 4, (5, 6), 7, (5, 6, 8), (8,), (9,), (10,), True)


@pytest.mark.parametrize(
    "fault",
    [
        {"isr": (6, 5)},
        {"leader": 4, "leader_epoch": 3},
        {"offline": ()},
        {"adding": (10,), "removing": (9,)},
        {"is_new": False},
        {"topic": 2},
    ],
)
def test_a_row_encoded_wrongly_would_be_noticed(fault: dict[str, Any]) -> None:
    other = replace(ROW, **fault)
    leader_and_isr_same = bulk_leader_and_isr(5, [other], TOPICS, LEADERS) == encode_request_body(
        ApiKey.LEADER_AND_ISR, 5, leader_and_isr(5, [ROW], TOPICS, LEADERS)
    )
    update_metadata_same = bulk_update_metadata(7, [other], TOPICS, BROKERS) == encode_request_body(
        ApiKey.UPDATE_METADATA, 7, update_metadata([ROW], TOPICS, BROKERS)
    )
    assert not (leader_and_isr_same and update_metadata_same)


def test_a_leader_and_isr_type_is_written_from_version_5() -> None:
    encoded = encode_request_body(ApiKey.LEADER_AND_ISR, 5, leader_and_isr(5, [ROW], TOPICS, (), type_=2))
    assert bulk_leader_and_isr(5, [ROW], TOPICS, (), type_=2) == encoded
    with pytest.raises(UnencodableValue, match="type"):
        bulk_leader_and_isr(4, [ROW], TOPICS, (), type_=2)


def rows_of(request: LeaderAndIsrRequest | UpdateMetadataRequest) -> list[Row]:
    rows = []
    groups: Sequence[LeaderAndIsrTopicState | UpdateMetadataTopicState] = request.topic_states
    for topic, group in enumerate(groups):
        for state in group.partition_states:
            row = Row(
                topic,
                state.partition_index,
                state.controller_epoch,
                state.leader,
                state.leader_epoch,
                state.isr,
                state.zk_version,
                state.replicas,
            )
            if isinstance(state, UpdateMetadataPartitionState):
                rows.append(replace(row, offline=state.offline_replicas))
            else:
                rows.append(
                    replace(row, adding=state.adding_replicas, removing=state.removing_replicas, is_new=state.is_new)
                )
    return rows


def test_a_real_clusters_requests_are_the_same_bytes_in_bulk() -> None:
    seen = {ApiKey.LEADER_AND_ISR: 0, ApiKey.UPDATE_METADATA: 0}
    for exchange in recorded():
        request = decode_request(exchange.request, SUPPORTED)
        value = request.value
        if isinstance(value, LeaderAndIsrRequest):
            rows = rows_of(value)
            body = leader_and_isr_body(
                exchange.version,
                controller_id=value.controller_id,
                controller_epoch=value.controller_epoch,
                broker_epoch=value.broker_epoch,
                topics=[(topic.topic_name, topic.topic_id) for topic in value.topic_states],
                columns=columns(rows),
                is_new=np.array([row.is_new for row in rows], np.bool_),
                live_leaders=value.live_leaders,
                adding={at: row.adding for at, row in enumerate(rows)},
                removing={at: row.removing for at, row in enumerate(rows)},
            )
        elif isinstance(value, UpdateMetadataRequest):
            rows = rows_of(value)
            body = update_metadata_body(
                exchange.version,
                controller_id=value.controller_id,
                controller_epoch=value.controller_epoch,
                topics=[(topic.topic_name, topic.topic_id) for topic in value.topic_states],
                columns=columns(rows),
                offline=padded([row.offline for row in rows]),
                live_brokers=value.live_brokers,
            )
            body = own_part(body, value.broker_epoch) + common_part(body)
        else:
            continue
        seen[exchange.api_key] += 1
        assert request_head(request.header) + body == exchange.request, f"line {exchange.line}"
    assert seen == {ApiKey.LEADER_AND_ISR: 41, ApiKey.UPDATE_METADATA: 81}


@pytest.mark.parametrize(
    ("api_key", "first", "last", "value"),
    [
        (ApiKey.LEADER_AND_ISR, 2, 5, LeaderAndIsrRequest(1, 2, (), (), 3)),
        (ApiKey.UPDATE_METADATA, 5, 7, UpdateMetadataRequest(1, 2, (), (), 3)),
        (ApiKey.STOP_REPLICA, 1, 3, StopReplicaRequest(1, 2, (), 3)),
    ],
)
def test_a_patched_body_is_the_one_encoded_with_that_broker_epoch(
    api_key: ApiKey,
    first: int,
    last: int,
    value: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest,
) -> None:
    for version in range(first, last + 1):
        body = encode_request_body(api_key, version, value)
        other = encode_request_body(api_key, version, msgspec.structs.replace(value, broker_epoch=2**40 + 5))
        assert own_part(body, 2**40 + 5) + common_part(body) == other != body


def test_columns_that_do_not_fit_are_refused() -> None:
    good = columns([ROW, replace(ROW, topic=2)])
    with pytest.raises(ValueError, match="descends"):
        columns([replace(ROW, topic=2), ROW])
    with pytest.raises(ValueError, match="shape"):
        replace(good, leader=good.leader[:1])
    with pytest.raises(ValueError, match="width"):
        replace(good, isr=good.isr[:, 0])
    with pytest.raises(ValueError, match="width"):
        update_metadata_body(
            7,
            controller_id=1,
            controller_epoch=1,
            topics=TOPICS,
            columns=good,
            offline=np.empty((1, 0), np.int32),
            live_brokers=(),
        )
    with pytest.raises(ValueError, match="shape"):
        leader_and_isr_body(
            5,
            controller_id=1,
            controller_epoch=1,
            broker_epoch=1,
            topics=TOPICS,
            columns=good,
            is_new=np.zeros(1, np.bool_),
            live_leaders=(),
        )


def test_what_the_bulk_layout_can_not_hold_is_refused() -> None:
    wide = replace(ROW, replicas=tuple(range(127)))
    with pytest.raises(UnencodableValue, match="127 replicas"):
        bulk_update_metadata(7, [wide], TOPICS, ())
    assert bulk_update_metadata(5, [wide], TOPICS, BROKERS) == encode_request_body(
        ApiKey.UPDATE_METADATA, 5, update_metadata([wide], TOPICS, BROKERS)
    )
    for version in (1, 6):
        with pytest.raises(UnencodableValue, match="versions"):
            bulk_leader_and_isr(version, [ROW], TOPICS, ())
    for version in (4, 8):
        with pytest.raises(UnencodableValue, match="versions"):
            bulk_update_metadata(version, [ROW], TOPICS, ())
    with pytest.raises(UnencodableValue, match="5 bytes"):
        bulk_update_metadata(7, [ROW], (("pay", b"short"),), ())
