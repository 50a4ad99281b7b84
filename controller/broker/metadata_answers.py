"""Metadata requests answered from a snapshot, as Kafka 2.8 answers each version. Pure: values in, values out."""

from __future__ import annotations

import re

from controller.broker.metadata_cache import MetadataSnapshot, Partitions, endpoint_of
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
from controller.protocol.codec import encode_response_body
from controller.protocol.control_values import NO_LEADER, NO_TOPIC_ID, UpdateMetadataPartitionState
from controller.protocol.errors import ErrorCode

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
TOPIC_NAME_LENGTH_MAX = 249
BODIES_KEPT = 4
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")

# With no authorizer everybody may do what there is to do; one bit for each AclOperation's code.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def is_legal_topic(name: str) -> bool:
    return name not in (".", "..") and len(name) <= TOPIC_NAME_LENGTH_MAX and _LEGAL_TOPIC.fullmatch(name) is not None


def metadata_response(
    snapshot: MetadataSnapshot, request: MetadataRequest, version: int, listener: str, cluster_id: str | None
) -> MetadataResponse:
    """`listener`: the one that the request came in by; only brokers that have it are told of."""
    answer = _Answer(snapshot, version, listener, request.include_topic_authorized_operations)
    if request.topics is None:
        topics = [answer.topic(name, partitions) for name, partitions in snapshot.topics.items()]
    else:
        topics = [answer.asked_for(topic) for topic in request.topics]
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
    """Answers' bodies, encoded once for all that ask the same of one snapshot: after a failure every client does."""

    def __init__(self) -> None:
        self._snapshot: MetadataSnapshot | None = None
        self._bodies: dict[tuple[MetadataRequest, int, str, str | None], bytes] = {}

    def body(
        self, snapshot: MetadataSnapshot, request: MetadataRequest, version: int, listener: str, cluster_id: str | None
    ) -> bytes:
        """UnencodableValue."""
        if snapshot is not self._snapshot:
            self._snapshot, self._bodies = snapshot, {}
        key = (request, version, listener, cluster_id)
        body = self._bodies.get(key)
        if body is None:
            value = metadata_response(snapshot, request, version, listener, cluster_id)
            body = encode_response_body(ApiKey.METADATA, version, value)
            if len(self._bodies) >= BODIES_KEPT:
                self._bodies.clear()
            self._bodies[key] = body
        return body


class _Answer:
    """What holds for all topics of one response."""

    def __init__(self, snapshot: MetadataSnapshot, version: int, listener: str, with_operations: bool) -> None:
        self._snapshot = snapshot
        self._reachable = {
            broker.id for broker in snapshot.brokers.values() if endpoint_of(broker, listener) is not None
        }
        # Version 0 leaves out replicas that can't be reached; from 6 on a client knows LISTENER_NOT_FOUND.
        self._only_reachable = version == 0
        self._tells_listeners = version >= 6
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
        return MetadataResponseTopic(
            ErrorCode.NONE,
            name,
            tuple(self._partition(state) for state in partitions.values()),
            self._snapshot.topic_ids.get(name, NO_TOPIC_ID),
            name in INTERNAL_TOPICS,
            self._operations,
        )

    def _partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        replicas, isr = state.replicas, state.isr
        if self._only_reachable:
            replicas = tuple(replica for replica in replicas if replica in self._reachable)
            isr = tuple(replica for replica in isr if replica in self._reachable)
        leader, error = state.leader, ErrorCode.NONE
        if state.leader not in self._reachable:
            leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
            if state.leader in self._snapshot.brokers and self._tells_listeners:
                error = ErrorCode.LISTENER_NOT_FOUND
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            error, state.partition_index, leader, replicas, isr, state.leader_epoch, state.offline_replicas
        )
