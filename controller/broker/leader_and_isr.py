"""What of a LeaderAndIsr and its answer is a matter of their form alone: the topics named, and a refusal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from controller.protocol.control_values import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
)
from controller.protocol.errors import ErrorCode


def topics_named_in(request: LeaderAndIsrRequest) -> tuple[LeaderAndIsrTopicState, ...]:
    """The topics, each once, of which a partition is named: the early responses group rows by name, and can't speak
    of one without rows or of two groups of one name."""
    topics: dict[tuple[str, bytes], LeaderAndIsrTopicState] = {}
    for topic in request.topic_states:
        if topic.partition_states:
            key = (topic.topic_name, topic.topic_id)
            before = topics.get(key)
            if before is None:
                topics[key] = topic
            else:
                topics[key] = replace(topic, partition_states=(*before.partition_states, *topic.partition_states))
    return tuple(topics.values())


def failed_in(topics: Iterable[LeaderAndIsrTopicError], failed: Set[tuple[str, int]]) -> list[LeaderAndIsrTopicError]:
    """The answers, with KAFKA_STORAGE_ERROR for the partitions that have failed since."""
    return [
        replace(
            topic,
            partition_errors=tuple(
                replace(one, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
                if (topic.topic_name, one.partition_index) in failed
                else one
                for one in topic.partition_errors
            ),
        )
        for topic in topics
    ]


def leader_and_isr_error(request: LeaderAndIsrRequest, error: ErrorCode) -> LeaderAndIsrResponse:
    """A whole request refused: the error at its top and for each partition, as Kafka's own."""
    topics = tuple(
        LeaderAndIsrTopicError(
            tuple(LeaderAndIsrPartitionError(state.partition_index, error) for state in topic.partition_states),
            topic.topic_name,
            topic.topic_id,
        )
        for topic in topics_named_in(request)
    )
    return LeaderAndIsrResponse(error, topics)
