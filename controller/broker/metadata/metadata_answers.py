"""Metadata requests answered from a snapshot, as Kafka 2.8 answers each version. Pure: values in, values out."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator, Iterable
from typing import Any, TypeAlias

from controller.broker.metadata.metadata_cache import MetadataSnapshot, Partitions, endpoint_of
from controller.broker.steps import Job, Yielded
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_values import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from controller.protocol.codec import encode_metadata_partition, encode_response_body
from controller.protocol.control_values import NO_LEADER, NO_TOPIC_ID, UpdateMetadataPartitionState
from controller.protocol.errors import ErrorCode
from controller.protocol.written import written
from controller.zookeeper.znode_sense import TOPIC_NAME_LENGTH_MAX

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
BODIES_KEPT = 4
KEPT_TOPICS = 1_000
"""Answers to requests that name more topics, or one that no topic can have, are not kept."""
SLICE = 500
"""Topics and partitions of an answer that are made between two yields; most partitions are encoded already."""
ROWS_KEPT = 20_000
_Asked: TypeAlias = tuple[int, MetadataRequest, int, str, str | None]
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")

# With no authorizer everybody may do what there is to do; one bit for each AclOperation's code.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def is_legal_topic(name: str) -> bool:
    return name not in (".", "..") and len(name) <= TOPIC_NAME_LENGTH_MAX and _LEGAL_TOPIC.fullmatch(name) is not None


def metadata_response(
    snapshot: MetadataSnapshot,
    request: MetadataRequest,
    version: int,
    listener: str,
    cluster_id: str | None,
    rows: MetadataRows | None = None,
) -> Generator[None, Any, MetadataResponse]:
    """Make a Metadata response, in slices. `listener` is the one that the request arrived on; brokers without it are
    left out. With `rows` the response is for the encoder alone: partitions that were encoded before are reused. A topic
    that is named several times is answered once, as in Kafka: the cluster's size bounds the answer."""
    answer = _Answer(snapshot, version, listener, request.include_topic_authorized_operations, rows)
    named = None if request.topics is None else dict[MetadataRequestTopic, None]()
    topics: list[MetadataResponseTopic] = []
    done = 0  # topics and partitions since the last yield
    asked: Iterable[str | MetadataRequestTopic] = snapshot.topics if request.topics is None else request.topics
    for one in asked:
        if isinstance(one, str):
            topics.append(answer.topic(one, snapshot.topics[one]))
        elif named is not None and one not in named:
            named[one] = None
            topics.append(answer.asked_for(one))
        else:
            done += 1
            continue
        done += 1 + len(topics[-1].partitions)
        if done >= SLICE:
            done = 0
            yield None
    brokers = [
        MetadataResponseBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
        for broker in snapshot.brokers.values()
        if (endpoint := endpoint_of(broker, listener)) is not None
    ]
    return MetadataResponse(
        brokers=tuple(brokers),
        topics=tuple(topics),
        cluster_id=cluster_id,
        controller_id=snapshot.controller_id,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
        ),
    )


class MetadataBodies:
    """Answers' bodies, encoded once for all that ask the same of one snapshot: after a failure every client does. Of a
    snapshot that is another only what has changed is encoded anew. Who hosts many brokers may give all of them one."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[_Asked, tuple[MetadataSnapshot, bytes]] = OrderedDict()
        self._rows = MetadataRows()

    def body(
        self, snapshot: MetadataSnapshot, request: MetadataRequest, version: int, listener: str, cluster_id: str | None
    ) -> Generator[Yielded, Any, bytes]:
        """Made in slices. UnencodableValue."""
        if not _may_be_kept(request):
            value = yield from metadata_response(snapshot, request, version, listener, cluster_id, self._rows)
            return (yield Job(lambda: encode_response_body(ApiKey.METADATA, version, value)))  # type: ignore[no-any-return]
        key = (id(snapshot), request, version, listener, cluster_id)
        known = self._bodies.get(key)
        if known is not None:
            return known[1]
        making = metadata_response(snapshot, request, version, listener, cluster_id, self._rows)
        sliced = False
        while True:
            try:
                next(making)
            except StopIteration as end:
                value = end.value
                break
            sliced = True
            yield None
        if sliced:
            body: bytes = yield Job(lambda: encode_response_body(ApiKey.METADATA, version, value))
        else:
            body = encode_response_body(ApiKey.METADATA, version, value)
        self._bodies[key] = (snapshot, body)
        if len(self._bodies) > BODIES_KEPT:
            self._bodies.popitem(last=False)
        return body


def _may_be_kept(request: MetadataRequest) -> bool:
    """Whether what a client named is small: the answer repeats the names."""
    return request.topics is None or (
        len(request.topics) <= KEPT_TOPICS
        and all(one.name is None or len(one.name) <= TOPIC_NAME_LENGTH_MAX for one in request.topics)
    )


class MetadataRows:
    """Partitions as they were encoded last, by topic and version: each for as long as its state is the very same, and
    its leader is reached as before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[int, tuple[UpdateMetadataPartitionState, ErrorCode, bytes]]] = {}
        self._count = 0

    def of(self, answer: _Answer, topic: str, partitions: Partitions, version: int) -> list[bytes]:
        """UnencodableValue."""
        if self._count > ROWS_KEPT:
            self._known, self._count = {}, 0
        known = self._known.setdefault((topic, version), {})
        before = len(known)
        found = []
        for index, state in partitions.items():
            row = known.get(index)
            error = answer.reached[state.leader]
            if row is None or row[0] is not state or row[1] is not error:
                row = known[index] = (state, error, encode_metadata_partition(version, answer.partition(state)))
            found.append(row[2])
        self._count += len(known) - before
        return found


class _Reached(dict[int, ErrorCode]):
    """The error that a client gets for each leader (NONE: it is reachable), determined once per leader."""

    def __init__(self, snapshot: MetadataSnapshot, listener: str, knows_listener_error: bool) -> None:
        super().__init__()
        self._brokers = snapshot.brokers
        self._listener = listener
        self._knows_listener_error = knows_listener_error

    def __missing__(self, leader: int) -> ErrorCode:
        broker = self._brokers.get(leader)
        if broker is None:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif endpoint_of(broker, self._listener) is not None:
            error = ErrorCode.NONE
        else:
            error = ErrorCode.LISTENER_NOT_FOUND if self._knows_listener_error else ErrorCode.LEADER_NOT_AVAILABLE
        self[leader] = error
        return error


class _Answer:
    """What holds for all topics of one response."""

    def __init__(
        self,
        snapshot: MetadataSnapshot,
        version: int,
        listener: str,
        with_operations: bool,
        rows: MetadataRows | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._version = version
        # Version 0 leaves out replicas that can't be reached; from 6 on a client knows LISTENER_NOT_FOUND.
        self._only_reachable = version == 0
        self._rows = None if self._only_reachable else rows
        self.reached = _Reached(snapshot, listener, knows_listener_error=version >= 6)
        self._operations = TOPIC_OPERATIONS if with_operations else NO_AUTHORIZED_OPERATIONS

    def asked_for(self, topic: MetadataRequestTopic) -> MetadataResponseTopic:
        if topic.name is None:
            # Asking by id is of version 12; the field that versions 10 and 11 have for it is refused by Kafka 2.8.
            return MetadataResponseTopic(ErrorCode.UNSUPPORTED_VERSION, "", (), topic.topic_id)
        partitions = self._snapshot.topics.get(topic.name)
        if partitions is not None:
            return self.topic(topic.name, partitions)
        legal = is_legal_topic(topic.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error, topic.name, (), is_internal=topic.name in INTERNAL_TOPICS)

    def topic(self, name: str, partitions: Partitions) -> MetadataResponseTopic:
        if self._rows is None:
            shown = tuple(self.partition(state) for state in partitions.values())
        else:
            shown = written(self._rows.of(self, name, partitions, self._version))
        return MetadataResponseTopic(
            ErrorCode.NONE,
            name,
            shown,
            self._snapshot.topic_ids.get(name, NO_TOPIC_ID),
            name in INTERNAL_TOPICS,
            self._operations,
        )

    def partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        replicas, isr = state.replicas, state.isr
        if self._only_reachable:
            replicas = tuple(one for one in replicas if self.reached[one] is ErrorCode.NONE)
            isr = tuple(one for one in isr if self.reached[one] is ErrorCode.NONE)
        leader, error = state.leader, self.reached[state.leader]
        if error is not ErrorCode.NONE:
            leader = NO_LEADER
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            error, state.partition_index, leader, replicas, isr, state.leader_epoch, state.offline_replicas
        )
