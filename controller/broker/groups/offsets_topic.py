"""The topic __consumer_offsets: which of its partitions a group belongs to, and the bytes of its records.

Two kinds of records: a committed offset, by group, topic and partition, and a group with its members. A record without
a value deletes what its key names. Keys and values begin with their version. Source: Kafka 2.8's
GroupMetadataManager, OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from controller.protocol.compiler import layout
from controller.protocol.errors import MalformedFrame
from controller.protocol.groups import (
    NO_EPOCH,
    NO_TIMESTAMP,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from controller.protocol.schema import RequestValue

OFFSETS_TOPIC = "__consumer_offsets"
_VERSION = struct.Struct(">h")
_OFFSET_KEY_VERSION, _OFFSET_VERSION, _OFFSET_VERSION_WITH_EXPIRY = 1, 3, 1
_GROUP_KEY_VERSION = 2
GROUP_VERSION = 3
"""With group.instance.id; brokers before 2.3 read version 2."""


class UnknownRecord(ValueError):
    """A record of __consumer_offsets that can't be read: says which, and why."""


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


def partition_of(group: str, partitions: int) -> int:
    """The partition that a group belongs to: Java's hash of its name, modulo the number of partitions."""
    value = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8) + low) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _written(value: RequestValue, version: int) -> bytes:
    return _VERSION.pack(version) + layout(value.message, version).write(value)


def offset_key(group: str, topic: str, partition: int) -> bytes:
    return _written(OffsetCommitKey(group, topic, partition), _OFFSET_KEY_VERSION)


def offset_value(committed: CommittedOffset) -> bytes:
    version = _OFFSET_VERSION if committed.expires_ms == NO_TIMESTAMP else _OFFSET_VERSION_WITH_EXPIRY
    value = OffsetCommitValue(
        committed.offset, committed.metadata, committed.committed_ms, committed.leader_epoch, committed.expires_ms
    )
    return _written(value, version)


def group_key(group: str) -> bytes:
    return _written(GroupMetadataKey(group), _GROUP_KEY_VERSION)


def group_value(value: GroupMetadataValue, version: int = GROUP_VERSION) -> bytes:
    return _written(value, version)


def _read(kind: type[RequestValue], data: bytes, what: str) -> RequestValue:
    message = kind.message
    version = _version(data, what)
    if not message.first <= version <= message.last:
        raise UnknownRecord(f"{what} of version {version}: expected {message.first} to {message.last}")
    try:
        value: RequestValue = layout(message, version).read(data, _VERSION.size, rest_allowed=True)
    except MalformedFrame as error:
        raise UnknownRecord(f"{what}: {error}") from None
    return value


def _version(data: bytes, what: str) -> int:
    if len(data) < _VERSION.size:
        raise UnknownRecord(f"{what} of {len(data)} bytes: expected a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def read_key(data: bytes | None) -> OffsetCommitKey | GroupMetadataKey:
    """Raises UnknownRecord."""
    if data is None:
        raise UnknownRecord("a record without a key")
    kind = OffsetCommitKey if _version(data, "a key") <= OffsetCommitKey.message.last else GroupMetadataKey
    key = _read(kind, data, "a key")
    assert isinstance(key, OffsetCommitKey | GroupMetadataKey)
    return key


def read_offset(data: bytes, appended_at: int) -> CommittedOffset:
    """Raises UnknownRecord."""
    value = _read(OffsetCommitValue, data, "a committed offset")
    assert isinstance(value, OffsetCommitValue)
    epoch = max(value.leader_epoch, NO_EPOCH)
    return CommittedOffset(
        value.offset, epoch, value.metadata, value.commit_timestamp, value.expire_timestamp, appended_at
    )


def read_group(data: bytes) -> GroupMetadataValue:
    """Raises UnknownRecord."""
    value = _read(GroupMetadataValue, data, "a group")
    assert isinstance(value, GroupMetadataValue)
    return value
