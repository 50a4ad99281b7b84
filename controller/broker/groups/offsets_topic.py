"""The topic __consumer_offsets: which of its partitions a group belongs to, and the bytes of its records.

Two kinds of records: a committed offset, by group, topic and partition, and a group with its members. A record without
a value deletes what its key names. Keys and values begin with their version. Source: Kafka 2.8's
GroupMetadataManager, OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.broker.coordinated_topic import UnknownRecord, read_versioned, version_of, written
from controller.protocol.groups import (
    NO_EPOCH,
    NO_TIMESTAMP,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSETS_TOPIC = "__consumer_offsets"
_OFFSET_KEY_VERSION, _OFFSET_VERSION, _OFFSET_VERSION_WITH_EXPIRY = 1, 3, 1
_GROUP_KEY_VERSION = 2
GROUP_VERSION = 3
"""With group.instance.id; brokers before 2.3 read version 2."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`appended_at`: the offset of the batch that holds it, by which later commits are distinguished from earlier ones.
    `expires_ms` is of clients of Kafka 0.8 alone: -1 in all others. Times are milliseconds since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = NO_TIMESTAMP
    appended_at: int = -1


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return written(OffsetCommitKey(group, topic, partition), _OFFSET_KEY_VERSION)


def offset_value(committed: CommittedOffset) -> bytes:
    version = _OFFSET_VERSION if committed.expires_ms == NO_TIMESTAMP else _OFFSET_VERSION_WITH_EXPIRY
    value = OffsetCommitValue(
        committed.offset, committed.metadata, committed.committed_ms, committed.leader_epoch, committed.expires_ms
    )
    return written(value, version)


def group_key(group: str) -> bytes:
    return written(GroupMetadataKey(group), _GROUP_KEY_VERSION)


def group_value(value: GroupMetadataValue, version: int = GROUP_VERSION) -> bytes:
    return written(value, version)


def read_key(data: bytes | None) -> OffsetCommitKey | GroupMetadataKey:
    """Raises UnknownRecord."""
    if data is None:
        raise UnknownRecord("a record without a key")
    kind = OffsetCommitKey if version_of(data, "a key") <= OffsetCommitKey.message.last else GroupMetadataKey
    key = read_versioned(kind, data, "a key")
    assert isinstance(key, OffsetCommitKey | GroupMetadataKey)
    return key


def read_offset(data: bytes, appended_at: int) -> CommittedOffset:
    """Raises UnknownRecord."""
    value = read_versioned(OffsetCommitValue, data, "a committed offset")
    assert isinstance(value, OffsetCommitValue)
    epoch = max(value.leader_epoch, NO_EPOCH)
    return CommittedOffset(
        value.offset, epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, appended_at
    )


def read_group(data: bytes) -> GroupMetadataValue:
    """Raises UnknownRecord."""
    value = read_versioned(GroupMetadataValue, data, "a group")
    assert isinstance(value, GroupMetadataValue)
    return value
