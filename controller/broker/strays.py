"""Replicas that are this broker's no more and that nobody has taken from it: reassigned, or their topic deleted, while
it could not be told (KIP-550). Rules alone, over values: what becomes of them is `replica_manager.py`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.broker.metadata.metadata_cache import MetadataSnapshot, NamedPartitions
from controller.broker.partition import Partition, Role
from controller.protocol.control_values import NO_TOPIC_ID, LeaderAndIsrTopicState


def went_elsewhere(
    broker: int,
    partitions: Mapping[tuple[str, int], Partition],
    metadata: MetadataSnapshot,
    named: NamedPartitions,
    kept: Collection[str] | None,
) -> list[Partition]:
    """Replicas here that a later leader epoch's assignment does not name, or that of a topic on its way out:
    reassigned while nobody could tell this broker, whose session had ended and whose process had not; or whose topic
    has gone since.

    `metadata`: as it is with what was `named` just now. `kept`: None if nothing is known of what was not named;
    otherwise those are all the partitions that there are, except those of the `kept` topics.
    """
    found = []
    topics, going = metadata.topics, named.going
    for partition in named.among(partitions) if kept is None else list(partitions.values()):
        if not partition.fetching and partition.role is Role.NONE:
            continue
        topic, index = key = partition.key
        state = topics[topic].get(index) if topic in topics else None
        if state is None:
            unnamed = kept is not None and topic not in kept
            if unnamed or (key in going and broker not in going[key]):
                found.append(partition)
        elif state.leader_epoch > partition.leader_epoch and broker not in state.replicas:
            found.append(partition)
    return found


def is_of_a_topic_that_is_gone(partition: Partition, topic: LeaderAndIsrTopicState, metadata: MetadataSnapshot) -> bool:
    """What has no role here, of a topic whose name is another's by now, as metadata shows too, unless it has not come
    to the new one yet: reassigned away while this broker was away, and the topic deleted and created again.
    LeaderAndIsr of a topic that is new comes before its metadata."""
    return (
        partition.role is Role.NONE
        and NO_TOPIC_ID not in (partition.topic_id, topic.topic_id)
        and partition.topic_id != topic.topic_id
        and bool(metadata.brokers)
        and metadata.topic_ids.get(topic.topic_name) in (None, topic.topic_id)
    )
