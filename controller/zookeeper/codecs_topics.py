"""Codecs of what a cluster keeps of its topics: assignments, partition states, configs, and the requests and
notifications that name partitions. Values in, bytes out and back; no I/O. `codecs_columns.py` has the bulk forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from controller.zookeeper.znode_json import (
    ID,
    ID_OR_NONE,
    NOTHING_KEPT,
    OMITTED,
    OPTIONAL_STRING,
    STRING,
    FieldReader,
    Id,
    Ids,
    KeptFields,
    Long,
    encode_object,
)

_IDS = msgspec.json.Decoder(Ids)
_ASSIGNMENT: msgspec.json.Decoder[Mapping[int, tuple[int, ...]]] = msgspec.json.Decoder(dict[Id, Ids])
_STRING_MAP = msgspec.json.Decoder(dict[str, str])

TopicPartition = tuple[str, int]


class _TopicPartition(msgspec.Struct, frozen=True):
    """Any number is read: an item of a request that makes no sense costs itself, not the items beside it."""

    topic: str
    partition: Long


class _Reassignment(msgspec.Struct, frozen=True):
    topic: str
    partition: Long
    replicas: tuple[Long, ...]


_TOPIC_PARTITIONS = msgspec.json.Decoder(tuple[_TopicPartition, ...])
_REASSIGNMENTS = msgspec.json.Decoder(tuple[_Reassignment, ...])


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """/brokers/topics/T. `topic_id` is a UUID as 22 characters of URL-safe base64, None from writers before 2.8.
    `adding` and `removing` name only the partitions that are being reassigned."""

    topic_id: str | None
    partitions: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    version: int = 3
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PartitionStateZnode:
    """/brokers/topics/T/partitions/P/state. `leader` is -1 for none."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConfigZnode:
    """/config/TYPE/NAME: what was set, by Kafka's own names."""

    config: Mapping[str, str]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """/config/changes/config_change_N. `entity_path` is `topics/T`, `brokers/1`, ..."""

    entity_path: str
    version: int = 2
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsrChangeZnode:
    """/isr_change_notification/isr_change_N."""

    partitions: tuple[TopicPartition, ...]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PreferredElection:
    """/admin/preferred_replica_election."""

    partitions: tuple[TopicPartition, ...]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LogDirEvent:
    """/log_dir_event_notification/log_dir_event_N: a log directory of `broker_id` failed (event 1)."""

    broker_id: int
    event: int = 1
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reassignments:
    """/admin/reassign_partitions: the replicas asked for, by partition."""

    replicas: Mapping[TopicPartition, tuple[int, ...]]
    version: int = 1
    kept: KeptFields = field(default=NOTHING_KEPT, compare=False, repr=False)


def decode_topic_assignment(path: str, data: bytes | None) -> TopicAssignment:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a topic's assignment", data)
    return TopicAssignment(
        topic_id=fields.take_or("topic_id", OPTIONAL_STRING, None),
        partitions=fields.take("partitions", _ASSIGNMENT),
        adding=fields.take_or("adding_replicas", _ASSIGNMENT, {}),
        removing=fields.take_or("removing_replicas", _ASSIGNMENT, {}),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_topic_assignment(topic: TopicAssignment) -> bytes:
    return encode_object(
        (
            ("partitions", topic.partitions),
            ("topic_id", OMITTED if topic.topic_id is None else topic.topic_id),
            ("adding_replicas", topic.adding),
            ("removing_replicas", topic.removing),
            ("version", topic.version),
        ),
        topic.kept,
    )


def decode_partition_state(path: str, data: bytes | None) -> PartitionStateZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a partition's state", data)
    return PartitionStateZnode(
        leader=fields.take("leader", ID_OR_NONE),
        leader_epoch=fields.take("leader_epoch", ID),
        isr=fields.take("isr", _IDS),
        controller_epoch=fields.take("controller_epoch", ID),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_partition_state(state: PartitionStateZnode) -> bytes:
    return encode_object(
        (
            ("controller_epoch", state.controller_epoch),
            ("leader", state.leader),
            ("version", state.version),
            ("leader_epoch", state.leader_epoch),
            ("isr", state.isr),
        ),
        state.kept,
    )


def decode_config(path: str, data: bytes | None) -> ConfigZnode:
    """A config znode that holds nothing sets nothing. Raises DamagedZnode."""
    if not data:
        return ConfigZnode({})
    fields = FieldReader(path, "a config", data)
    config = fields.take_or("config", _STRING_MAP, {})
    return ConfigZnode(config, fields.take_or("version", ID, 1), fields.kept())


def encode_config(config: ConfigZnode) -> bytes:
    return encode_object((("version", config.version), ("config", config.config)), config.kept)


def decode_config_change(path: str, data: bytes | None) -> ConfigChange:
    """Raises DamagedZnode. Version 1 named the entity in two fields."""
    fields = FieldReader(path, "a config change", data)
    if fields.has("entity_path"):
        entity_path = fields.take("entity_path", STRING)
    else:
        entity_path = f"{fields.take('entity_type', STRING)}/{fields.take('entity_name', STRING)}"
    return ConfigChange(entity_path, fields.take_or("version", ID, 2), fields.kept())


def encode_config_change(change: ConfigChange) -> bytes:
    return encode_object((("version", change.version), ("entity_path", change.entity_path)), change.kept)


def _decode_partitions(fields: FieldReader) -> tuple[TopicPartition, ...]:
    return tuple((item.topic, item.partition) for item in fields.take("partitions", _TOPIC_PARTITIONS))


def _encode_partitions(partitions: tuple[TopicPartition, ...], version: int, kept: KeptFields) -> bytes:
    items = tuple(_TopicPartition(topic, partition) for topic, partition in partitions)
    return encode_object((("version", version), ("partitions", items)), kept)


def decode_isr_change_notification(path: str, data: bytes | None) -> IsrChangeZnode:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "an ISR change notification", data)
    return IsrChangeZnode(_decode_partitions(fields), fields.take_or("version", ID, 1), fields.kept())


def encode_isr_change_notification(notification: IsrChangeZnode) -> bytes:
    return _encode_partitions(notification.partitions, notification.version, notification.kept)


def decode_preferred_election(path: str, data: bytes | None) -> PreferredElection:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "partitions to elect the preferred leaders of", data)
    return PreferredElection(_decode_partitions(fields), fields.take_or("version", ID, 1), fields.kept())


def encode_preferred_election(election: PreferredElection) -> bytes:
    return _encode_partitions(election.partitions, election.version, election.kept)


def decode_log_dir_event(path: str, data: bytes | None) -> LogDirEvent:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "a log directory event", data)
    return LogDirEvent(
        broker_id=fields.take("broker", ID),
        event=fields.take_or("event", ID, 1),
        version=fields.take_or("version", ID, 1),
        kept=fields.kept(),
    )


def encode_log_dir_event(event: LogDirEvent) -> bytes:
    fields = (("version", event.version), ("broker", event.broker_id), ("event", event.event))
    return encode_object(fields, event.kept)


def decode_reassignments(path: str, data: bytes | None) -> Reassignments:
    """Raises DamagedZnode."""
    fields = FieldReader(path, "partitions to reassign", data)
    items = fields.take("partitions", _REASSIGNMENTS)
    replicas = {(item.topic, item.partition): item.replicas for item in items}
    return Reassignments(replicas, fields.take_or("version", ID, 1), fields.kept())


def encode_reassignments(reassignments: Reassignments) -> bytes:
    items = tuple(_Reassignment(*partition, replicas) for partition, replicas in reassignments.replicas.items())
    return encode_object((("version", reassignments.version), ("partitions", items)), reassignments.kept)
