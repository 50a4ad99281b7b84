"""The checks of APIs that need more than a line of the table: by what is asked, or of what is answered.

Each function is named by a `Special` of `table.py`. It takes out of `asked.request` what is denied, answers the
request, or has its response changed. Rules: Kafka 2.8's KafkaApis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from controller.broker.error_responses import refusal, topic_results
from controller.broker.security.acls import SUPPORTED_OPERATIONS, AclOperation, Authorizer, ResourceType
from controller.broker.security.principal import Requester
from controller.broker.security.table import ERRORS
from controller.protocol.admin import RESOURCE_TOPIC
from controller.protocol.client import (
    COORDINATOR_OF_GROUP,
    CreatableTopicResult,
    CreateTopicsResponse,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from controller.protocol.control import NO_TOPIC_ID
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FINAL_SESSION_EPOCH, NO_SESSION, FetchResponse
from controller.protocol.groups import (
    OffsetDeletePartitionResult,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteTopicResult,
)

if TYPE_CHECKING:
    from controller.broker.security.guard import CheckedRequest

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
NO_TOPIC = ERRORS[TOPIC]


def operation_bits(client: Requester, authorizer: Authorizer, resource_type: ResourceType, name: str) -> int:
    """A bit for each operation that the client may do to the resource (KIP-430)."""
    bits = 0
    for operation in SUPPORTED_OPERATIONS[resource_type]:
        if authorizer.allows(client, operation, resource_type, name):
            bits |= 1 << operation
    return bits


def produce(asked: CheckedRequest) -> None:
    """Transactional records need a transactional id: without that check they could be written in no one's name, and
    would hold back read_committed consumers for ever, since no coordinator ends their transaction."""
    records = (one.records for topic in asked.request.topic_data for one in topic.partition_data)
    if not any(map(_is_transactional, records)):
        return
    name, kind = asked.request.transactional_id, ResourceType.TRANSACTIONAL_ID
    if name is None or not asked.allows(AclOperation.WRITE, kind, name):
        asked.refuse(ERRORS[kind])


def _is_transactional(records: bytes | memoryview | None) -> bool:
    """By the attributes of the first batch, as in Kafka; what is no batch is refused later."""
    return records is not None and len(records) > 22 and records[16] == 2 and bool(records[22] & 0x10)


def fetch(asked: CheckedRequest) -> None:
    """A consumer gets no fetch session: what it may read is then asked with each fetch, and a topic that it was denied
    is not forgotten."""
    if asked.request.replica_id >= 0:
        if not asked.allows(AclOperation.CLUSTER_ACTION):
            asked.split("topics", "responses", lambda _topic: NO_TOPIC)
            if not asked.exchange.answered:
                asked.exchange.answer(FetchResponse((), ErrorCode.NONE))
        return
    if asked.request.session_id != NO_SESSION:
        asked.exchange.answer(FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        return
    asked.request = replace(asked.request, session_epoch=FINAL_SESSION_EPOCH)
    asked.split(
        "topics", "responses", lambda topic: None if asked.allows(AclOperation.READ, TOPIC, topic.topic) else NO_TOPIC
    )


def metadata(asked: CheckedRequest) -> None:
    request, snapshot = asked.request, asked.metadata.for_clients
    if request.topics is None:
        names = [one for one in snapshot.topics if asked.allows(AclOperation.DESCRIBE, TOPIC, one, quietly=True)]
        topics = tuple(MetadataRequestTopic(name) for name in names)
        asked.request = request = replace(request, topics=topics, allow_auto_topic_creation=False)
    else:
        _named_topics(asked)
        request = asked.request
    if asked.exchange.answered:
        return
    if request.include_topic_authorized_operations:
        asked.then(lambda value: _with_topic_operations(asked, value))
    if request.include_cluster_authorized_operations:
        allowed = asked.allows(AclOperation.DESCRIBE)
        bits = asked.operations(CLUSTER, "kafka-cluster") if allowed else 0
        asked.then(lambda value: _with_cluster_operations(value, bits))


def _with_cluster_operations(value: Any, bits: int) -> MetadataResponse:
    return replace(value, cluster_authorized_operations=bits)  # type: ignore[no-any-return]


def _with_topic_operations(asked: CheckedRequest, value: Any) -> MetadataResponse:
    topics = tuple(
        topic
        if topic.error_code == NO_TOPIC
        else replace(topic, topic_authorized_operations=asked.operations(TOPIC, topic.name))
        for topic in value.topics
    )
    return replace(value, topics=topics)  # type: ignore[no-any-return]


def _named_topics(asked: CheckedRequest) -> None:
    """What may not be described is answered alike, whether it exists or not."""
    request, snapshot = asked.request, asked.metadata.for_clients
    by_id = {topic_id: name for name, topic_id in snapshot.topic_ids.items()} if _names_by_id(request) else {}
    creates = request.allow_auto_topic_creation and asked.creates_topics
    kept: list[MetadataRequestTopic] = []
    denied: list[MetadataResponseTopic] = []
    for topic in request.topics:
        name = by_id.get(topic.topic_id) if topic.name is None else topic.name
        if name is None:
            kept.append(topic)  # of an id that is not known
        elif not asked.allows(AclOperation.DESCRIBE, TOPIC, name):
            if topic.name is None:
                denied.append(MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, "", (), topic.topic_id))
            else:
                denied.append(MetadataResponseTopic(NO_TOPIC, name, ()))
        elif creates and name not in snapshot.topics and not _may_create(asked, name):
            denied.append(MetadataResponseTopic(NO_TOPIC, name, ()))
        else:
            kept.append(topic)
    if denied:
        added = tuple(denied)
        asked.then(lambda value: _with_topics(value, added))
        asked.request = replace(request, topics=tuple(kept))


def _with_topics(value: Any, added: tuple[MetadataResponseTopic, ...]) -> MetadataResponse:
    """See `metadata_response`: no topics without brokers."""
    return replace(value, topics=(*value.topics, *added)) if value.brokers else value  # type: ignore[no-any-return]


def _names_by_id(request: Any) -> bool:
    return any(topic.name is None for topic in request.topics)


def _may_create(asked: CheckedRequest, name: str) -> bool:
    return asked.allows(AclOperation.CREATE, quietly=True) or asked.allows(AclOperation.CREATE, TOPIC, name)


def offset_fetch(asked: CheckedRequest) -> None:
    if asked.request.topics is not None:
        asked.split("topics", "topics", lambda topic: _describes(asked, topic.name))
        return

    def seen(value: Any) -> Any:
        shown = (one for one in value.topics if asked.allows(AclOperation.DESCRIBE, TOPIC, one.name, quietly=True))
        return replace(value, topics=tuple(shown))

    asked.then(seen)


def _describes(asked: CheckedRequest, name: str) -> ErrorCode | None:
    return None if asked.allows(AclOperation.DESCRIBE, TOPIC, name) else NO_TOPIC


def find_coordinator(asked: CheckedRequest) -> None:
    of_group = asked.request.key_type == COORDINATOR_OF_GROUP
    kind = GROUP if of_group else ResourceType.TRANSACTIONAL_ID
    if not asked.allows(AclOperation.DESCRIBE, kind, asked.request.key):
        asked.refuse(ERRORS[kind])


def group_operations(asked: CheckedRequest) -> None:
    if not asked.request.include_authorized_operations:
        return

    def shown(value: Any) -> Any:
        groups = (
            replace(one, authorized_operations=asked.operations(GROUP, one.group_id))
            if one.error_code == ErrorCode.NONE
            else one
            for one in value.groups
        )
        return replace(value, groups=tuple(groups))

    asked.then(shown)


def list_groups(asked: CheckedRequest) -> None:
    if asked.allows(AclOperation.DESCRIBE, quietly=True):
        return

    def seen(value: Any) -> Any:
        shown = (one for one in value.groups if asked.allows(AclOperation.DESCRIBE, GROUP, one.group_id, quietly=True))
        return replace(value, groups=tuple(shown))

    asked.then(seen)


def create_topics(asked: CheckedRequest) -> None:
    def shown(value: Any) -> CreateTopicsResponse:
        return replace(value, topics=tuple(_without_configs(asked, topic) for topic in value.topics))  # type: ignore[no-any-return]

    asked.then(shown)
    if not asked.allows(AclOperation.CREATE, quietly=True):
        asked.split(
            "topics",
            "topics",
            lambda topic: None if asked.allows(AclOperation.CREATE, TOPIC, topic.name) else NO_TOPIC,
            lambda request, error: refusal(request, error, "Authorization failed."),
        )


def _without_configs(asked: CheckedRequest, topic: CreatableTopicResult) -> CreatableTopicResult:
    if topic.error_code != ErrorCode.NONE or asked.allows(
        AclOperation.DESCRIBE_CONFIGS, TOPIC, topic.name, quietly=True
    ):
        return topic
    return replace(topic, num_partitions=-1, replication_factor=-1, configs=(), topic_config_error_code=int(NO_TOPIC))


def delete_topics(asked: CheckedRequest) -> None:
    request = asked.request
    wanted = {topic.topic_id for topic in request.topics if topic.topic_id != NO_TOPIC_ID}
    by_id = (
        {topic_id: name for name, topic_id in asked.metadata.for_clients.topic_ids.items() if topic_id in wanted}
        if wanted
        else {}
    )

    def denied(topic: Any) -> ErrorCode | None:
        name = by_id.get(topic.topic_id) if topic.name is None else topic.name
        if name is None:
            return None  # of an id that is not known
        if topic.name is None and not asked.allows(AclOperation.DESCRIBE, TOPIC, name):
            return NO_TOPIC
        return None if asked.allows(AclOperation.DELETE, TOPIC, name) else NO_TOPIC

    asked.split("topics", "responses", denied)


def init_producer_id(asked: CheckedRequest) -> None:
    name = asked.request.transactional_id
    if name is not None:
        if not asked.allows(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            asked.refuse(ERRORS[ResourceType.TRANSACTIONAL_ID])
    elif not (
        asked.allows(AclOperation.IDEMPOTENT_WRITE, quietly=True) or asked.allows_some(AclOperation.WRITE, TOPIC)
    ):
        asked.refuse(ERRORS[CLUSTER])


def offset_for_leader_epoch(asked: CheckedRequest) -> None:
    if not asked.allows(AclOperation.CLUSTER_ACTION, quietly=True):
        asked.split("topics", "topics", lambda topic: _describes(asked, topic.topic))


def add_partitions(asked: CheckedRequest) -> None:
    """All or nothing: if one topic is denied, no partition is added to the transaction."""
    errors = {
        topic.name: None if asked.allows(AclOperation.WRITE, TOPIC, topic.name) else NO_TOPIC
        for topic in asked.request.topics
    }
    if any(errors.values()):
        not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
        asked.split("topics", "results", lambda topic: errors[topic.name] or not_tried)


def describe_configs(asked: CheckedRequest) -> None:
    _configs(asked, AclOperation.DESCRIBE_CONFIGS, "resources", "results")


def alter_configs(asked: CheckedRequest) -> None:
    _configs(asked, AclOperation.ALTER_CONFIGS, "resources", "responses")


def _configs(asked: CheckedRequest, operation: AclOperation, array: str, answered_in: str) -> None:
    def denied(resource: Any) -> ErrorCode | None:
        if resource.resource_type == RESOURCE_TOPIC:
            return None if asked.allows(operation, TOPIC, resource.resource_name) else NO_TOPIC
        return None if asked.allows(operation) else ERRORS[CLUSTER]  # brokers, loggers, and kinds that are not known

    asked.split(array, answered_in, denied)


def offset_delete(asked: CheckedRequest) -> None:
    asked.split(
        "topics",
        "topics",
        lambda topic: None if asked.allows(AclOperation.READ, TOPIC, topic.name) else NO_TOPIC,
        _offset_delete_refusal,
    )


def _offset_delete_refusal(request: OffsetDeleteRequest, error: ErrorCode) -> OffsetDeleteResponse:
    results = topic_results(request.topics, OffsetDeleteTopicResult, OffsetDeletePartitionResult, error)
    return OffsetDeleteResponse(ErrorCode.NONE, results)


SPECIAL: Mapping[str, Callable[[CheckedRequest], None]] = {
    check.__name__: check
    for check in (
        produce,
        fetch,
        metadata,
        offset_fetch,
        find_coordinator,
        group_operations,
        list_groups,
        create_topics,
        delete_topics,
        init_producer_id,
        offset_for_leader_epoch,
        add_partitions,
        describe_configs,
        alter_configs,
        offset_delete,
    )
}
