"""FindCoordinator: names the leader of the partition that a group or a transactional id belongs to, and has the
internal topic created if there is none. Source: Kafka 2.8's KafkaApis and AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from controller.broker.coordinated_topic import partition_of
from controller.broker.metadata import MetadataCache
from controller.broker.request_context import RequestContext
from controller.broker.settings import BrokerSettings
from controller.protocol.client import (
    COORDINATOR_OF_GROUP,
    COORDINATOR_OF_TRANSACTION,
    CreatableTopic,
    CreatableTopicConfig,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from controller.protocol.errors import ErrorCode


def internal_topics(settings: BrokerSettings) -> Mapping[int, CreatableTopic]:
    """The topics as they are created, by the type of key that FindCoordinator asks for."""
    offsets = CreatableTopic(
        "__consumer_offsets",
        settings.offsets_topic_num_partitions,
        settings.offsets_topic_replication_factor,
        (),
        (
            CreatableTopicConfig("cleanup.policy", "compact"),
            CreatableTopicConfig("compression.type", "producer"),
            CreatableTopicConfig("segment.bytes", str(settings.offsets_topic_segment_bytes)),
        ),
    )
    transactions = CreatableTopic(
        "__transaction_state",
        settings.transaction_log_num_partitions,
        settings.transaction_log_replication_factor,
        (),
        (
            CreatableTopicConfig("cleanup.policy", "compact"),
            CreatableTopicConfig("compression.type", "uncompressed"),
            CreatableTopicConfig("min.insync.replicas", str(settings.transaction_log_min_isr)),
            CreatableTopicConfig("segment.bytes", str(settings.transaction_log_segment_bytes)),
            CreatableTopicConfig("unclean.leader.election.enable", "false"),
        ),
    )
    return MappingProxyType({COORDINATOR_OF_GROUP: offsets, COORDINATOR_OF_TRANSACTION: transactions})


class CoordinatorFinder:
    """`create` has the controller create a topic that is not there."""

    def __init__(
        self, settings: BrokerSettings, metadata: MetadataCache, create: Callable[[CreatableTopic], None]
    ) -> None:
        self._topics = internal_topics(settings)
        self._metadata = metadata
        self._create = create

    def find(self, exchange: RequestContext, request: FindCoordinatorRequest) -> None:
        topic = self._topics.get(request.key_type)
        if topic is None:
            words = f"Key type {request.key_type}: expected 0 or 1."
            exchange.answer(FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, words))
        else:
            exchange.answer(self._found(topic, request.key, exchange.listener))

    def _found(self, topic: CreatableTopic, key: str, listener: str) -> FindCoordinatorResponse:
        snapshot = self._metadata.snapshot
        partitions = snapshot.topics.get(topic.name)
        if not partitions:
            self._create(topic)
            words = f"The topic {topic.name} is being created."
            return FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, words)
        state = partitions.get(partition_of(key, len(partitions)))
        endpoint = None if state is None else snapshot.endpoint(state.leader, listener)
        if state is None or endpoint is None:
            return FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Its partition has no leader.")
        return FindCoordinatorResponse(ErrorCode.NONE, None, state.leader, endpoint.host, endpoint.port)
