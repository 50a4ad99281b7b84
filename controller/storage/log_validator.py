"""Validation of the batches that a producer sends, as Kafka 2.8's LogValidator: headers, then the records inside.

Pure. `checking` checks headers, `checking_records` the records. Three rules go beyond Kafka: an uncompressed batch's
offset deltas must be 0, 1, 2 ... (Kafka checks those of compressed batches only); a header's key must be UTF-8, since
clients that decode it fail otherwise; and a record's attributes must be 0, as no bit of them is defined and
kafka-python misreads others.

The work is a generator: before each piece it yields an estimate of the microseconds that the piece takes, so that the
caller can do a small batch at once and a large one in pieces, away from the event loop. `sound_run` and `uniform_run`
prove in NumPy columns that a run of records is well formed. They accept only the records that clients usually send;
`_Walk` checks the others one by one and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from controller.storage.batches import HEADER_BYTES, LONG_MAX, NO_TIMESTAMP, BatchHeader, Bytes, headers_of
from controller.storage.compression import BadCompression, TooMuchOutput, decompressing
from controller.storage.errors import (
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    InvalidBatch,
    InvalidTimestamp,
    UnsupportedCompression,
)
from controller.storage.settings import LogSettings
from controller.storage.transactions import Origin


class Checked(NamedTuple):
    """Batches that may be appended: their headers, and the largest timestamp of each one's records."""

    batches: Bytes
    headers: Sequence[BatchHeader]
    latest_ms: Sequence[int]


T = TypeVar("T")


def done(work: Generator[int, None, T]) -> T:
    """Do all of the work here and now; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as over:
            result: T = over.value
            return result


def checking(
    batches: Bytes, settings: LogSettings, now_ms: int, origin: Origin = Origin.CLIENT
) -> Generator[int, None, Checked]:
    """Check batches that a client sent, or this broker's coordinators, with all their records.

    A generator: before each piece of work it yields an estimate of the microseconds that the piece takes. Another
    thread may drive it, as long as `batches` stays as it is.

    Raises:
        BadBatches: CorruptBatch, InvalidBatch, UnsupportedCompression, InvalidTimestamp, BatchTooLarge or
            BatchesTooLarge, for the first batch that is not as it must be.
    """
    headers = headers_of(batches)
    _check_headers(headers, len(batches), settings, origin)
    latest: list[int] = []
    position = 0
    view = memoryview(batches)
    for header in headers:
        end = position + header.size_bytes
        latest.append((yield from checking_records(header, view[position:end], position, settings, now_ms)))
        position = end
    return Checked(batches, headers, latest)


def _check_headers(headers: Sequence[BatchHeader], size_bytes: int, settings: LogSettings, origin: Origin) -> None:
    if not headers:
        raise BadBatches(0, "no batch")
    position = 0
    for header in headers:
        _check(position, header, settings, origin)
        position += header.size_bytes
    if size_bytes > settings.segment_bytes:
        raise BatchesTooLarge(0, f"{size_bytes} bytes, a segment has {settings.segment_bytes} at most")


def _check(position: int, header: BatchHeader, settings: LogSettings, origin: Origin) -> None:
    if header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        raise InvalidBatch(
            position, f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    attributes = header.attributes  # 0 as a rule: neither compressed nor transactional
    if attributes and header.is_control and origin is Origin.CLIENT:
        raise InvalidBatch(position, "a control batch: only coordinators write them")
    if attributes and header.is_transactional and header.producer_id < 0:
        raise InvalidBatch(position, "a transactional batch without a producer id")
    if attributes and header.codec > 4:
        raise UnsupportedCompression(position, f"compression codec {header.codec}: expected 0 to 4")
    numbered = header.base_sequence >= 0 or origin is Origin.COORDINATOR
    if header.producer_id >= 0 and (not numbered or header.producer_epoch < 0):
        raise InvalidBatch(
            position,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )
    if header.size_bytes > settings.max_message_bytes:
        raise BatchTooLarge(position, f"{header.size_bytes} bytes, max.message.bytes is {settings.max_message_bytes}")
    if attributes and header.is_log_append_time:
        raise InvalidTimestamp(position, "timestamp type LogAppendTime, which is a broker's to set")


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

    def add_all(self, raw: npt.NDArray[Any]) -> None:
        """The deltas, as they are before zigzag."""
        if self._none < 0 and not np.bitwise_or.reduce(raw) & 1:  # none is negative, as a rule
            self.add(int(np.minimum.reduce(raw)) >> 1)
            self.add(int(np.maximum.reduce(raw)) >> 1)
            return
        raw = raw.astype(np.int64)
        deltas = (raw >> 1) ^ -(raw & 1)
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
            if self._count - self._done < UNIFORM_FROM or (self._run() < UNIFORM_FROM and self._done < self._count):
                some = min(_ALONE_RECORDS, self._count - self._done)
                yield some * _ALONE_US
                yield from self._alone(some)
            if self._done < self._count:
                yield _RUN_US
        if self._at != size:
            raise Malformed(f"{size - self._at} bytes after the last of {self._count} records")

    def _run(self) -> int:
        """The next records in columns; how many were sound."""
        most = min(UNIFORM_RECORDS, self._count - self._done)
        run = uniform_run(self._payload, self._at, self._done, most)
        if run is None:
            if self._data is None:
                self._data = np.frombuffer(self._payload, np.uint8)
            run = sound_run(self._data, self._at, self._done, min(most, MIXED_RECORDS), _HEADERS_A_RUN)
        if not run.records:
            return 0
        for at, count, end in run.headers:
            if self._headers(at, count, end) != end:
                return 0
        if self._keys_needed and not run.keyed.all():
            raise Malformed(_NO_KEY)
        self._times.add_all(run.times)
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


Bytes8: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

UNIFORM_RECORDS, MIXED_RECORDS = 16_384, 2_048
"""As many as a caller should ask for at once: about half a millisecond."""

_BEYOND = 1 << 48
"""A position past every record's end."""
UNIFORM_FROM = 16
"""Fewer records of one size are not worth a comparison."""


class Run(NamedTuple):
    """The first `records` of them, up to `end`. Their timestamp deltas before zigzag, which of them have a key, and
    the place and number of the headers of those that have any."""

    records: int
    end: int
    times: npt.NDArray[Any]
    keyed: npt.NDArray[np.bool_]
    headers: list[tuple[int, int, int]]
    """(where the first begins, how many, where the record ends)."""


def sound_run(data: Bytes8, start: int, first: int, count: int, headers_max: int) -> Run:
    """Look at up to `count` records from `start`, of which the first is to have the offset delta `first`.

    Headers, of which a run has `headers_max` at most, are left to the caller: the records before and after them are
    sound if each record's headers end where the record does.
    """
    marks = _marks(data, start, count)
    begins, ends = marks[:-1], marks[1:]
    lengths, at = _numbers(data, begins)
    attributes = data.take(at, mode="clip")
    times, at = _numbers(data, at + 1, shift_max=42)
    offsets, at = _numbers(data, at)
    keys, at = _field(data, at)
    _, at = _field(data, at)
    headers, at = _numbers(data, at)
    good = (offsets == np.arange(2 * first, 2 * (first + len(begins)), 2)) & (lengths & 1 == 0) & (attributes == 0)
    found: list[tuple[int, int, int]] = []
    if headers.any():
        # Numbers are zigzag, so a header's count is twice itself and each has two bytes at least.
        good &= (headers & 1 == 0) & (at + headers <= ends) & (np.cumsum(headers) <= 2 * headers_max)
        good &= (headers > 0) | (at == ends)
    else:
        good &= at == ends
    sound = len(good) if good.all() else int(good.argmin())
    if headers.any():
        some = np.flatnonzero(headers[:sound])
        found = list(zip(at[some].tolist(), (headers[some] >> 1).tolist(), ends[some].tolist(), strict=True))
    return Run(sound, int(marks[sound]), times[:sound], keys[:sound] & 1 == 0, found)


def _field(data: Bytes8, at: Integers) -> tuple[Integers, Integers]:
    """The zigzag lengths of fields, and where the fields end. One of negative length is null, and has no bytes."""
    lengths, at = _numbers(data, at)
    return lengths, at + np.where(lengths & 1, 0, lengths >> 1)


def _numbers(data: Bytes8, at: Integers, shift_max: int = 21) -> tuple[Integers, Integers]:
    """The varints at these places, as they are before zigzag, and where they end. _BEYOND: one of more bytes than
    those up to the one that is shifted by `shift_max`."""
    byte = data.take(at, mode="clip")
    raw = byte.astype(np.int64)
    at = at + 1
    more = byte > 127
    if not more.any():
        return raw, at
    raw &= 0x7F
    shift = 7
    while more.all() and shift <= shift_max and len(more):
        byte = data.take(at, mode="clip")
        raw |= (byte & 0x7F).astype(np.int64) << shift
        at += 1
        shift += 7
        more = byte > 127
    left = np.flatnonzero(more)
    while left.size and shift <= shift_max:
        byte = data.take(at[left], mode="clip")
        raw[left] |= (byte & 0x7F).astype(np.int64) << shift
        at[left] += 1
        shift += 7
        left = left[byte > 127]
    at[left] = _BEYOND
    return raw, at


def _marks(data: Bytes8, start: int, count: int) -> Integers:
    """Where up to `count` records begin by their lengths, and where the last of them ends."""
    view = data.data
    marks = [start]
    add = marks.append
    at = start
    try:
        for _ in range(count):
            byte = view[at]
            if byte < 0x80:
                at += (byte >> 1) + 1
            elif (second := view[at + 1]) < 0x80:
                at += ((byte & 0x7F | second << 7) >> 1) + 2
            else:
                third = view[at + 2]
                at += ((byte & 0x7F | (second & 0x7F) << 7 | third << 14) >> 1) + 3
            add(at)
    except IndexError:
        pass  # the bytes end within a length
    found = np.array(marks, np.int64)
    return found[: int(np.searchsorted(found, len(view), "right"))]


# Records of one size


class _Shape(NamedTuple):
    """Where the fields of a record begin, from its own beginning, where each number ends with its bytes. The last byte
    is the count of headers, which is 0."""

    time: int
    offset: int
    key: int
    head_end: int
    """Where the numbers in front of the key's bytes end, or the value's if there is no key."""
    value: int
    value_end: int
    total: int
    has_key: bool


_WORD, _WORD_MAX = 8, 2**64 - 1
_PAIR = np.dtype("V16")


def uniform_run(view: memoryview, start: int, first: int, count: int) -> Run | None:
    """As `sound_run`, for records that all have the shape of the one at `start`, and no headers. This is much faster:
    sixteen bytes of each are compared at once. None if there is no such run of some length."""
    shape = _shape(view, start, first)
    if shape is None or shape.total < _WORD or shape.head_end >= 2 * _WORD:  # numbers in more bytes than they take
        return None
    total, offset = shape.total, shape.offset
    offsets = _offsets(shape.key - offset, offset + 1)[2 * (first + 1) :]
    left = len(view) - start
    more = min(count - 1, left // total - 1, (left - 2 * _WORD + 1) // total, len(offsets) // 2)
    if more + 1 < UNIFORM_FROM or view[start + total] != view[start]:
        return None
    # The first record is sound. Of each other one, the bytes from the one before it on: the last of the one before.
    same, but_offset = _masks(shape)
    words = np.ndarray(more, _PAIR, view, start + total - 1, (total,)).copy().view("<u8")  # since they are not aligned
    words ^= offsets[: 2 * more]
    known = (int.from_bytes(view[start : start + 2 * _WORD - 1], "little") << 8) & but_offset
    if int.from_bytes(words[:2].tobytes(), "little") & same != known:
        return None
    differs = words[2:] ^ words[:-2]  # from one to the next
    low, high = same & _WORD_MAX, same >> 8 * _WORD
    last = more  # of those that begin as they should
    if int(np.bitwise_or.reduce(differs[::2])) & low or int(np.bitwise_or.reduce(differs[1::2])) & high:
        last = 1 + int(((differs[::2] & low | differs[1::2] & high) != 0).argmax())
    if shape.value >= shape.head_end:  # behind a key
        at = min(shape.value, total - _WORD)
        same = (1 << 8 * (shape.value_end - at)) - (1 << 8 * (shape.value - at))
        known = int.from_bytes(view[start + at : start + at + _WORD], "little") & same
        wrong = (np.ndarray(last, "<u8", view, start + total + at, (total,)).copy() & same) != known
        last = int(wrong.argmax()) if wrong.any() else last
    sound = last + (view[start + (last + 1) * total - 1] == 0)
    if sound < UNIFORM_FROM:
        return None
    raw: Any = np.ndarray(sound, np.uint8, view, start + shape.time, (total,)).copy()
    if offset - shape.time > 1:
        raw = (raw & 0x7F).astype(np.int64)
        for at in range(1, offset - shape.time):
            column = np.ndarray(sound, np.uint8, view, start + shape.time + at, (total,))
            raw |= (column & 0x7F).astype(np.int64) << 7 * at
    return Run(sound, start + sound * total, raw, _KEYED[shape.has_key], [])


_KEYED = (np.array([False]), np.array([True]))


@lru_cache(256)
def _masks(shape: _Shape) -> tuple[int, int]:
    """Of the byte before a record and those up to `head_end`: the bits that are the same in all records once their
    offsets are taken out, and those without the bits of the offset."""
    same = (1 << 8 * (shape.head_end + 1)) - 1
    same -= int.from_bytes(b"\x7f" * (shape.offset - shape.time), "little") << 8 * (shape.time + 1)
    return same, same - ((1 << 8 * (shape.key + 1)) - (1 << 8 * (shape.offset + 1)))


def _shape(view: memoryview, start: int, first: int) -> _Shape | None:
    """Of the record at `start`, whose offset delta is to be `first`."""
    try:
        length, at = _short_number(view, start)
        end = at + length
        time = at + 1  # past the attributes
        offset = time + 1 if view[time] < 0x80 else _short_number(view, time)[1]
        number, key = _short_number(view, offset)
        key_length, key_end = (-1, key + 1) if view[key] == 1 else _short_number(view, key)
        value = key_end + max(key_length, 0)
        value_length, value_end = _short_number(view, value)
        if length < 0 or number != first or view[at] or value_end + max(value_length, 0) != end - 1 or view[end - 1]:
            return None
    except IndexError:
        return None
    head_end = value_end if value == key_end else key_end
    return _Shape(
        time - start, offset - start, key - start, head_end - start, value - start, value_end - start, end - start,
        key_length >= 0,
    )  # fmt: skip


def _short_number(view: memoryview, at: int) -> tuple[int, int]:
    """The number of up to three bytes at `at`, and where it ends. IndexError: it has more, or the bytes end."""
    raw = view[at]
    if raw > 0x7F:
        raw = raw & 0x7F | view[at + 1] << 7
        at += 1
        if raw > 0x3FFF:
            raw = raw & 0x3FFF | view[at + 1] << 14
            at += 1
            if raw > 0x1FFFFF:
                raise IndexError(at)
    return (raw >> 1) ^ -(raw & 1), at + 1


@lru_cache
def _offsets(width: int, place: int) -> npt.NDArray[np.uint64]:
    """The offset deltas from 0 on, as they are when written in `width` bytes, the first of them the lowest, and behind
    `place` other bytes: two words for each."""
    raw = np.arange(0, 2 * min(1 << 7 * width - 1, 1 << 17), 2, dtype=np.uint64)
    written = np.zeros_like(raw)
    for byte in range(width):
        written |= (raw >> 7 * byte & 0x7F | (0x80 if byte < width - 1 else 0)) << 8 * byte
    low = written << 8 * place if place < _WORD else np.zeros_like(raw)
    return np.stack((low, written >> 8 * (_WORD - place)), 1).ravel()
