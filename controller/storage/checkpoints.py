"""The small text files of a log directory, in Kafka's formats. Pure: text in, values out, and back.

A checkpoint is a version (0), a count, and as many lines. What can't be read so raises CorruptLog with the line; what
a start does without the file is the reader's decision.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from controller.storage.batches import INT_MAX, LONG_MAX, OFFSET_MAX
from controller.storage.epochs import EpochStart
from controller.storage.errors import CorruptLog

TopicPartition: TypeAlias = tuple[str, int]

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
NO_TOPIC_ID = bytes(16)
FEW_EPOCHS = 4
"""The text of more entries is not remembered."""


def _encode(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ["0", str(len(lines)), *lines]).encode()


def _decode(file: str, data: bytes) -> list[list[str]]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise CorruptLog(file, 1, f"not UTF-8: {error}") from None
    if not lines or lines[0] != "0":
        raise CorruptLog(file, 1, f"version {lines[0] if lines else 'missing'}: expected 0")
    if len(lines) < 2:
        raise CorruptLog(file, 2, "no count of entries")
    if not data.endswith(b"\n"):
        raise CorruptLog(file, len(lines), f"{lines[-1][:40]!r} has no newline at its end: it may be cut off")
    announced = _number(file, 2, lines[1])
    if len(lines) - 2 != announced:
        raise CorruptLog(file, 2, f"{announced} entries announced, {len(lines) - 2} there")
    return [line.split(" ") for line in lines[2:]]


def _number(file: str, line: int, text: str, most: int = LONG_MAX) -> int:
    if not text.isascii() or not text.isdecimal():
        raise CorruptLog(file, line, f"{text!r}: expected a whole number")
    number = int(text) if len(text) < 20 else LONG_MAX + 1
    if number > most:
        raise CorruptLog(file, line, f"{text[:40]!r}: expected at most {most}")
    return number


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _encode([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def decode_offsets(file: str, data: bytes) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line, fields in enumerate(_decode(file, data), start=3):
        if len(fields) != 3:
            raise CorruptLog(file, line, f"{len(fields)} fields: expected topic, partition and offset")
        partition = fields[0], _number(file, line, fields[1], INT_MAX)
        offsets[partition] = _number(file, line, fields[2], OFFSET_MAX)
    return offsets


def encode_epochs(entries: Iterable[EpochStart]) -> bytes:
    """The same object for the same entries: most of a broker's logs have the same few."""
    found = tuple(entries)
    return _few_epochs_text(found) if len(found) <= FEW_EPOCHS else _epochs_text(found)


def _epochs_text(entries: tuple[EpochStart, ...]) -> bytes:
    return _encode([f"{entry.epoch} {entry.start_offset}" for entry in entries])


_few_epochs_text = lru_cache(maxsize=256)(_epochs_text)


def decode_epochs(file: str, data: bytes) -> list[EpochStart]:
    entries: list[EpochStart] = []
    for line, fields in enumerate(_decode(file, data), start=3):
        if len(fields) != 2:
            raise CorruptLog(file, line, f"{len(fields)} fields: expected epoch and start offset")
        entry = EpochStart(_number(file, line, fields[0], INT_MAX), _number(file, line, fields[1], OFFSET_MAX))
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
            raise CorruptLog(file, line, f"{entry} after {entries[-1]}")
        entries.append(entry)
    return entries


@lru_cache(maxsize=1_024)
def encode_topic_id(topic_id: bytes) -> bytes:
    """The text of `partition.metadata`; it has no newline at its end."""
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    return f"version: 0\ntopic_id: {text}".encode()


def decode_topic_id(file: str, data: bytes) -> bytes:
    """16 bytes."""
    try:
        return _topic_id(data)
    except _Unreadable as error:
        raise CorruptLog(file, error.line, error.reason) from None


class _Unreadable(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason


@lru_cache(maxsize=1_000)  # all of a topic's partitions have the same file
def _topic_id(data: bytes) -> bytes:
    lines = data.decode(errors="replace").splitlines()
    if not lines or lines[0] != "version: 0":
        raise _Unreadable(1, "expected version: 0")
    if len(lines) != 2 or not lines[1].startswith("topic_id: "):
        raise _Unreadable(2, "expected topic_id: and 22 characters")
    text = lines[1].removeprefix("topic_id: ")
    try:
        topic_id = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Unreadable(2, f"topic_id {text!r}: {error}") from None
    if len(topic_id) != 16:
        raise _Unreadable(2, f"topic_id {text!r}: expected 16 bytes")
    return topic_id
