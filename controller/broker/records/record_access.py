"""Access checks for a partition's records, with the error for each refusal: Kafka 2.8's rules and codes, for Produce,
Fetch and every other request about records."""

from __future__ import annotations

from collections.abc import Mapping

from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.partition import Partition
from controller.broker.replica_manager import ReplicaManager
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import NO_LEADER_EPOCH
from controller.storage import (
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidTimestamp,
    LogOffline,
    OffsetOutOfRange,
    OutOfResources,
    PartitionLog,
    ProducerFenced,
    SequenceOutOfOrder,
    StorageError,
    UnsupportedCompression,
    UnsupportedMagic,
)


class Refused(Exception):
    """A request about one partition that is not carried out, with Kafka's code for it."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message


_CODES: Mapping[type[StorageError], ErrorCode] = {
    UnsupportedMagic: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    BatchesTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    SequenceOutOfOrder: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    InvalidBatch: ErrorCode.INVALID_RECORD,
    BadBatches: ErrorCode.INVALID_RECORD,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    LogOffline: ErrorCode.KAFKA_STORAGE_ERROR,
    OutOfResources: ErrorCode.KAFKA_STORAGE_ERROR,
}


def refused(error: Refused | StorageError) -> Refused:
    """Convert an error of the storage into the error for the client."""
    if isinstance(error, Refused):
        return error
    return Refused(_CODES.get(type(error), ErrorCode.UNKNOWN_SERVER_ERROR), str(error))


class RecordAccess:
    """Partitions by name, for requests about their records. Raises Refused."""

    def __init__(self, replicas: ReplicaManager, metadata: MetadataCache) -> None:
        self._replicas = replicas
        self._metadata = metadata

    def partition(self, topic: str, index: int) -> Partition:
        """Return the local replica, leader or not.

        Raises Refused: KAFKA_STORAGE_ERROR if its files are offline, NOT_LEADER_OR_FOLLOWER if only other brokers have
        a replica, UNKNOWN_TOPIC_OR_PARTITION if no broker has."""
        partition = self._replicas.partition(topic, index)
        if partition is None:
            elsewhere = index in self._metadata.snapshot.topics.get(topic, {})
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{index} is in an offline log directory")
        return partition

    def leader_log(self, topic: str, index: int, leader_epoch: int = NO_LEADER_EPOCH) -> tuple[Partition, PartitionLog]:
        """A partition that this broker leads, with its log. `leader_epoch`: the one that the asker knows of."""
        partition = self.partition(topic, index)
        return partition, local_log(partition, leader_epoch, only_leader=True)


def local_log(partition: Partition, leader_epoch: int, *, only_leader: bool) -> PartitionLog:
    """Return the log of a local replica, after the checks on the client's leader epoch (NO_LEADER_EPOCH: not sent) and,
    with `only_leader`, on its leadership."""
    if leader_epoch not in (NO_LEADER_EPOCH, partition.leader_epoch):
        behind = leader_epoch < partition.leader_epoch
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH)
    if partition.log is None or (only_leader and partition.leading is None):
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition.log
