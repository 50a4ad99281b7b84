"""The errors of storage. Every error names the file or the bytes, and the position.

Two families: `BadBatches` and its kin mean that a caller passed invalid bytes or requested an offset that is not
available; the log is unchanged. `CorruptLog` and `LogOffline` mean that the files themselves can't be trusted; the log
directory goes offline, and the process continues with the other ones.
"""

from __future__ import annotations


class StorageError(Exception):
    """Anything that storage raises of its own."""


class BadBatches(StorageError):
    """Bytes handed in that are not appended. `position`: where in them the batch begins."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"batch at byte {self.position}: {self.reason}"


class CorruptBatch(BadBatches):
    """Not a whole record batch, or one whose CRC-32C is another (Kafka: CORRUPT_MESSAGE)."""


class UnsupportedMagic(CorruptBatch):
    """A message set of version 0 or 1 (Kafka: UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class InvalidBatch(BadBatches):
    """Whole and unharmed, but against the rules for its sender (Kafka: INVALID_RECORD)."""


class UnsupportedCompression(InvalidBatch):
    """A codec number that Kafka does not define (Kafka: UNSUPPORTED_COMPRESSION_TYPE)."""


class InvalidTimestamp(BadBatches):
    """Further from now than `message.timestamp.difference.max.ms` (Kafka: INVALID_TIMESTAMP)."""


class BatchTooLarge(BadBatches):
    """Over `max.message.bytes` (Kafka: MESSAGE_TOO_LARGE)."""


class BatchesTooLarge(BadBatches):
    """More in one append than a segment holds (Kafka: RECORD_LIST_TOO_LARGE)."""


class OffsetsOutOfOrder(BadBatches):
    """A follower's append that does not go on from the log's end, or turns back within itself."""


class SequenceOutOfOrder(BadBatches):
    """An idempotent producer left out a batch (Kafka: OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class ProducerFenced(BadBatches):
    """An older epoch of a producer id than one that was seen (Kafka: INVALID_PRODUCER_EPOCH)."""


class InvalidTransactionState(BadBatches):
    """A batch outside of a transaction, by a producer that has one open in this log (Kafka: INVALID_TXN_STATE)."""


class CoordinatorFenced(BadBatches):
    """A marker of a coordinator that another has replaced (Kafka: TRANSACTION_COORDINATOR_FENCED)."""


class OffsetOutOfRange(StorageError):
    """Not between the log's start and its end (Kafka: OFFSET_OUT_OF_RANGE)."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(offset, log_start_offset, log_end_offset)
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset

    def __str__(self) -> str:
        return f"offset {self.offset}: the log has {self.log_start_offset} to {self.log_end_offset}"


class CorruptLog(StorageError):
    """A file is not what was flushed to it. `position` is in bytes, or a line number from 1 in a checkpoint."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(file, position, reason)
        self.file = file
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.reason}"


class LogOffline(StorageError):
    """The log directory was taken offline by `cause`, an OSError or CorruptLog (Kafka: KAFKA_STORAGE_ERROR)."""

    def __init__(self, directory: str, cause: Exception) -> None:
        super().__init__(directory, cause)
        self.directory = directory
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.directory} is offline: {self.cause}"


class OutOfResources(StorageError):
    """The process or the machine has run out of file descriptors or memory. The operation was not carried out, the log
    directory stays online, and the same operation may succeed later (Kafka: KAFKA_STORAGE_ERROR)."""

    def __init__(self, directory: str, cause: OSError) -> None:
        super().__init__(directory, cause)
        self.directory = directory
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.directory}: not possible now: {self.cause}"


class DeviceUnavailable(StorageError):
    """A device did not carry out a job: it does not answer, too many jobs wait for it, or the broker shuts down. The
    log directory stays online (Kafka: KAFKA_STORAGE_ERROR)."""

    def __init__(self, device: str, why: str) -> None:
        super().__init__(device, why)
        self.device = device
        self.why = why

    def __str__(self) -> str:
        return f"device {self.device}: {self.why}"


class SsdFull(OutOfResources):
    """The SSD of a log on two tiers has no room for an append: nothing was appended, the log directory stays online.
    Evictions make room, so the same append may succeed later (Kafka: KAFKA_STORAGE_ERROR)."""


class DuplicateLogs(StorageError):
    """A partition's log is in two log directories, and which of them is the right one is not known."""

    def __init__(self, name: str, directories: tuple[str, str]) -> None:
        super().__init__(name, directories)
        self.name = name
        self.directories = directories

    def __str__(self) -> str:
        one, other = (f"{directory}/{self.name}" for directory in self.directories)
        return f"{one} and {other} are the same partition's: remove the one that is not to be kept"


class AlreadyLocked(StorageError):
    """Another process has the log directory."""
