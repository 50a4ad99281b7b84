"""Partition logs: segments, indexes, checkpoints and recovery, in Kafka's on-disk form.

Start with `LogDirectory` and `PartitionLog`. Nothing that is exported here imports `os`, so that the broker's core may
import it and a simulator can run it: the host makes the disk, `disk_files.FileDisk` or `MemoryDisk` of the simulator.
The exported part uses no protocol, no clock and no thread.
"""

from controller.storage.batches import BatchHeader, headers_of, whole_bytes
from controller.storage.checkpoints import NO_TOPIC_ID, EpochEnd, EpochStart, TopicPartition
from controller.storage.directory import LogDirectory
from controller.storage.disk import Disk, File, FileRange
from controller.storage.errors import (
    AlreadyLocked,
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    CoordinatorFenced,
    CorruptBatch,
    CorruptLog,
    DeviceUnavailable,
    DuplicateLogs,
    InvalidBatch,
    InvalidTimestamp,
    InvalidTransactionState,
    LogOffline,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    OutOfResources,
    ProducerFenced,
    SequenceOutOfOrder,
    StorageError,
    UnsupportedCompression,
    UnsupportedMagic,
)
from controller.storage.log import Appended, PartitionLog
from controller.storage.lookups import TimestampOffset
from controller.storage.recovery import LogCheckpoint
from controller.storage.settings import LogSettings

__all__ = [
    "NO_TOPIC_ID",
    "AlreadyLocked",
    "Appended",
    "BadBatches",
    "BatchHeader",
    "BatchTooLarge",
    "BatchesTooLarge",
    "CoordinatorFenced",
    "CorruptBatch",
    "CorruptLog",
    "DeviceUnavailable",
    "Disk",
    "DuplicateLogs",
    "EpochEnd",
    "EpochStart",
    "File",
    "FileRange",
    "InvalidBatch",
    "InvalidTimestamp",
    "InvalidTransactionState",
    "LogCheckpoint",
    "LogDirectory",
    "LogOffline",
    "LogSettings",
    "OffsetOutOfRange",
    "OffsetsOutOfOrder",
    "OutOfResources",
    "PartitionLog",
    "ProducerFenced",
    "SequenceOutOfOrder",
    "StorageError",
    "TimestampOffset",
    "TopicPartition",
    "UnsupportedCompression",
    "UnsupportedMagic",
    "headers_of",
    "whole_bytes",
]
