"""The small text files of a log directory, in Kafka's formats, and the leader epochs that one of them holds.

Pure: text in, values out, and back. A checkpoint is a version (0), a count, and as many lines. What can't be read so
raises CorruptLog with the line; what a start does without the file is the reader's decision.

`LeaderEpochs` holds the start offset of each leader epoch, from which a leader answers a follower that asks where their
logs diverge. Rules: Kafka's LeaderEpochFileCache (KIP-101, KIP-279).
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

import msgspec

from controller.storage.batches import INT_MAX, LONG_MAX, OFFSET_MAX
from controller.storage.errors import CorruptLog

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochStart(msgspec.Struct, frozen=True, gc=False):
    epoch: int
    start_offset: int


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """`end_offset` is the first offset that is not of `epoch` or an earlier one; both -1 if unknown."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """Epochs and start offsets, both ascending. Each change sets `changed`, so that the checkpoint is written."""

    __slots__ = ("_entries", "changed")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: tuple[EpochStart, ...] = ()
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)
        self.changed = False

    def entries(self) -> tuple[EpochStart, ...]:
        return self._entries

    @property
    def latest(self) -> int:
        """The latest epoch, -1 with none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` begins at `start_offset`. What is known of later epochs or offsets was of a log that is no more
        and is forgotten; an epoch that is known keeps its start."""
        if epoch < 0 or start_offset < 0:
            return
        if self._entries and self._entries[-1].epoch == epoch and self._entries[-1].start_offset <= start_offset:
            return
        kept = [one for one in self._entries if one.epoch < epoch and one.start_offset < start_offset]
        self._entries = (*kept, EpochStart(epoch, start_offset)) if kept else _one(epoch, start_offset)
        self.changed = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """OffsetForLeaderEpoch: the largest epoch up to `epoch` that is known, and where the next one begins."""
        if epoch < 0 or not self._entries or epoch > self.latest:
            return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(self._entries, epoch, key=lambda one: one.epoch)
        # Older than all that is known: nothing of it is left here, so it ended where the oldest begins.
        found = self._entries[above - 1].epoch if above else epoch
        return EpochEnd(found, self._entries[above].start_offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """The log ends at `end_offset` now: epochs that begin there or later never were."""
        if not self._entries or self._entries[-1].start_offset < end_offset:
            return
        self._entries = tuple(one for one in self._entries if one.start_offset < end_offset)
        self.changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: the epoch it is in begins there too."""
        above = bisect_right(self._entries, start_offset, key=lambda one: one.start_offset)
        if above == 0:
            return
        first = EpochStart(self._entries[above - 1].epoch, start_offset)
        if self._entries[0] != first:
            self._entries, self.changed = (first, *self._entries[above:]), True

    def clear(self) -> None:
        self.changed = self.changed or bool(self._entries)
        self._entries = ()


@lru_cache(maxsize=256)
def _one(epoch: int, start_offset: int) -> tuple[EpochStart]:
    """Many logs know one epoch, which began at 0."""
    return (EpochStart(epoch, start_offset),)


TopicPartition: TypeAlias = tuple[str, int]

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_POINTS = "cleaner-offset-checkpoint"
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
