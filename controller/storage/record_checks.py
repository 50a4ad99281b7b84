"""The records of a batch that a producer sent: whether each of them is what the header says, and can be read.

Pure. Rules: Kafka 2.8's LogValidator and DefaultRecord. Three go beyond Kafka: an uncompressed batch's offset deltas
must be 0, 1, 2 ... (Kafka looks at those of compressed batches only); a header's key must be UTF-8, since clients that
decode it fail otherwise; and a record's attributes must be 0, as no bit of them is defined and kafka-python misreads
others.

The work is a generator: before each piece it yields an estimate of the microseconds that the piece takes, so that the
caller can do a small batch at once and a large one in pieces, away from the event loop.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from controller.storage.batches import HEADER_BYTES, LONG_MAX, NO_TIMESTAMP, BatchHeader
from controller.storage.compression import BadCompression, TooMuchOutput, decompressing
from controller.storage.errors import BatchTooLarge, InvalidBatch, InvalidTimestamp
from controller.storage.record_columns import (
    MIXED_RECORDS,
    UNIFORM_FROM,
    UNIFORM_RECORDS,
    Bytes8,
    Integers,
    sound_run,
    uniform_run,
)
from controller.storage.settings import LogSettings

RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key's and value's length, count of headers: a byte each."""
ALONE = 40
"""So few records are cheaper to look at one by one."""
_RUN_US, _ALONE_US = 600, 2
_ALONE_RECORDS = 512
_HEADERS_A_RUN = 1_024
_KNOWN_KEYS = 64


class Malformed(Exception):
    """A record is not what it should be; says how."""


def checking_records(
    header: BatchHeader, batch: memoryview, position: int, settings: LogSettings, now_ms: int
) -> Generator[int, None, int]:
    """Check the records of `batch`; return the largest of their timestamps (-1: none has one).

    Raises InvalidBatch, InvalidTimestamp or BatchTooLarge, with `position`.
    """
    payload = batch[HEADER_BYTES:]
    if header.codec:
        limit = max(settings.decompressed_bytes_max, settings.max_message_bytes)
        try:
            payload = yield from decompressing(header.codec, payload, limit)
        except TooMuchOutput as error:
            raise BatchTooLarge(position, str(error)) from None
        except BadCompression as error:
            raise InvalidBatch(position, str(error)) from None
    times = Times(header.base_timestamp_ms)
    walk = _Walk(payload, header.record_count, times, keys_needed=settings.compacted)
    try:
        yield from walk.steps()
    except Malformed as error:
        raise InvalidBatch(position, str(error)) from None
    return _checked_times(times, position, settings, now_ms)


def _checked_times(times: Times, position: int, settings: LogSettings, now_ms: int) -> int:
    for timestamp_ms in (times.least_ms, times.largest_ms):
        if timestamp_ms is None:
            continue
        if not -LONG_MAX <= timestamp_ms <= LONG_MAX:
            raise InvalidTimestamp(position, f"timestamp {timestamp_ms} of a record: expected 64 bits")
        if not settings.log_append_time and abs(timestamp_ms - now_ms) > settings.timestamp_difference_max_ms:
            raise InvalidTimestamp(
                position,
                f"timestamp {timestamp_ms} of a record is {abs(timestamp_ms - now_ms)} ms from now, expected "
                f"{settings.timestamp_difference_max_ms} at most",
            )
    return NO_TIMESTAMP if times.largest_ms is None else max(times.largest_ms, NO_TIMESTAMP)


class Times:
    """The least and the largest timestamp of the records that have one."""

    __slots__ = ("_base_ms", "_none", "largest_ms", "least_ms")

    def __init__(self, base_ms: int) -> None:
        self._base_ms = base_ms
        self._none = NO_TIMESTAMP - base_ms
        self.least_ms: int | None = None
        self.largest_ms: int | None = None

    def add(self, delta: int) -> None:
        if delta == self._none:
            return
        at_ms = self._base_ms + delta
        if self.least_ms is None or at_ms < self.least_ms:
            self.least_ms = at_ms
        if self.largest_ms is None or at_ms > self.largest_ms:
            self.largest_ms = at_ms

    def add_all(self, deltas: Integers) -> None:
        least, largest = int(deltas.min()), int(deltas.max())
        if least <= self._none <= largest:
            deltas = deltas[deltas != self._none]
            if not len(deltas):
                return
            least, largest = int(deltas.min()), int(deltas.max())
        self.add(least)
        self.add(largest)


class _Walk:
    """From record to record of `payload`, which is to hold `count` of them and nothing else."""

    __slots__ = ("_at", "_count", "_data", "_done", "_keys", "_keys_needed", "_payload", "_times")

    def __init__(self, payload: memoryview, count: int, times: Times, *, keys_needed: bool) -> None:
        self._payload = payload
        self._count = count
        self._times = times
        self._keys_needed = keys_needed
        self._at = self._done = 0
        self._keys: set[bytes] = set()
        """Keys of headers that are known to be UTF-8."""
        self._data: Bytes8 | None = None

    def steps(self) -> Generator[int, None, None]:
        size = len(self._payload)
        if self._count * RECORD_BYTES_MIN > size:
            raise Malformed(f"{self._count} records announced, {size} bytes of records")
        yield min(self._count * _ALONE_US, _RUN_US)
        if self._count <= ALONE:
            yield from self._alone(self._count)
        while self._done < self._count:
            if self._run() < UNIFORM_FROM and self._done < self._count:
                yield _ALONE_RECORDS * _ALONE_US
                yield from self._alone(min(_ALONE_RECORDS, self._count - self._done))
            if self._done < self._count:
                yield _RUN_US
        if self._at != size:
            raise Malformed(f"{size - self._at} bytes after the last of {self._count} records")

    def _run(self) -> int:
        """The next records in columns; how many were sound."""
        if self._data is None:
            self._data = np.frombuffer(self._payload, np.uint8)
        most = min(UNIFORM_RECORDS, self._count - self._done)
        run = uniform_run(self._data, self._payload, self._at, self._done, most)
        if run is None:
            run = sound_run(self._data, self._at, self._done, min(most, MIXED_RECORDS), _HEADERS_A_RUN)
        if not run.records:
            return 0
        for at, count, end in run.headers:
            if self._headers(at, count, end) != end:
                return 0
        if self._keys_needed and not run.keyed.all():
            raise Malformed(_NO_KEY)
        self._times.add_all(run.deltas)
        self._done += run.records
        self._at = run.end
        return run.records

    def _alone(self, count: int) -> Generator[int, None, None]:
        """The next `count` records, one by one. Raises Malformed."""
        payload, size = self._payload, len(self._payload)
        for index in range(self._done, self._done + count):
            length, at = _number(payload, self._at, size)
            end = at + length
            if length < 0 or end > size:
                raise Malformed(f"record {index} has {length} bytes, {size - at} are left")
            try:
                if at < end and payload[at]:
                    raise Malformed(f"attributes {payload[at]:#04x}, expected 0")
                delta, at = _number(payload, at + 1, end, long=True)
                offset, at = _number(payload, at, end)
                if offset != index:
                    raise Malformed(f"offset delta {offset}, expected {index}")
                key, at = _number(payload, at, end)
                value, at = _number(payload, at + max(key, 0), end)
                headers, at = _number(payload, at + max(value, 0), end)
                if headers:
                    if not 0 < headers <= end - at:
                        raise Malformed(f"{headers} headers, {end - at} bytes are left")
                    while headers > _HEADERS_A_RUN:
                        at = self._headers(at, _HEADERS_A_RUN, end)
                        headers -= _HEADERS_A_RUN
                        yield _HEADERS_A_RUN * _ALONE_US
                    at = self._headers(at, headers, end)
                if at != end:
                    raise Malformed(f"its fields have {abs(end - at)} bytes {'less' if at < end else 'more'} than it")
            except Malformed as error:
                raise Malformed(f"record {index} at byte {self._at}: {error}") from None
            if self._keys_needed and key < 0:
                raise Malformed(_NO_KEY)
            self._times.add(delta)
            self._at = end
        self._done += count

    def _headers(self, at: int, count: int, end: int) -> int:
        """Where `count` headers from `at` on end. Raises Malformed."""
        payload, known = self._payload, self._keys
        for _ in range(count):
            length, at = _number(payload, at, end)
            if length < 0 or at + length > end:
                raise Malformed(f"a header's key of {length} bytes, {end - at} are left")
            key = bytes(payload[at : at + length])
            if key not in known:
                try:
                    key.decode()
                except UnicodeDecodeError as error:
                    raise Malformed(f"a header's key is not UTF-8: {error}") from None
                if len(known) < _KNOWN_KEYS:
                    known.add(key)
            length, at = _number(payload, at + length, end)
            at += max(length, 0)
            if at > end:
                raise Malformed(f"a header's value of {length} bytes goes {at - end} beyond the record's end")
        return at


_NO_KEY = "a record without a key, in a topic whose cleanup.policy is compact"


def _number(data: memoryview, at: int, end: int, *, long: bool = False) -> tuple[int, int]:
    """The varint at `at`, of 32 or 64 bits, and where it ends, which is `end` at most. Raises Malformed."""
    if at < end and (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = shift = 0
    most = 63 if long else 28
    while at < end:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> (64 if long else 32):
                raise Malformed(f"a number of more than {64 if long else 32} bits at byte {at}")
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > most:
            raise Malformed(f"a number of more than {64 if long else 32} bits at byte {at}")
    raise Malformed(f"a number goes beyond byte {end}")
