"""Batches from a producer whose length and CRC are right: what is appended can be read by the clients that others use,
and what they could not read is refused, whichever way the records are looked at."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable, Mapping, Sequence

import cramjam
import pytest
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record import MemoryRecords as KafkaRecords

from controller.machine.disk import MemoryDisk
from controller.storage import (
    BadBatches,
    BatchTooLarge,
    InvalidBatch,
    InvalidTimestamp,
    LogSettings,
    PartitionLog,
    UnsupportedCompression,
    log_validator,
)
from controller.storage.batches import Record, encode_batch, encode_record, headers_of, zigzag
from controller.storage.compression import decompressing
from controller.storage.log_validator import checking, done
from tests.storage.batches import START_MS, Clock, batch, remade

ONE, COLUMNS = 10**9, 0
"""Values of ALONE: every record on its own; as many as possible at once."""


@pytest.fixture(params=[ONE, COLUMNS], ids=["one by one", "in columns"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_validator, "ALONE", request.param)


def opened(settings: LogSettings | None = None) -> PartitionLog:
    disk = MemoryDisk()
    disk.make_directory("t-0")
    return PartitionLog(disk, "t-0", settings or LogSettings(), Clock())


def lz4(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


def xerial(data: bytes) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 100])) for at in range(0, len(data), 100)]
    head = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"
    return head + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


CODECS: Mapping[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy-java": (2, xerial),
    "lz4": (3, lz4),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


def body(*fields: bytes) -> bytes:
    joined = b"".join(fields)
    return zigzag(len(joined)) + joined


def record(
    index: int, *, delta_ms: int = 0, key: bytes = b"\x01", value: bytes = b"\x02v", headers: bytes = b"\0"
) -> bytes:
    """The bytes of one record; `key` and `value` with their lengths, `headers` with their count."""
    return body(b"\0", zigzag(delta_ms), zigzag(index), key, value, headers)


def holding(*records: bytes, count: int | None = None, **changed: int) -> bytes:
    number = len(records) if count is None else count
    return remade(batch(), payload=b"".join(records), count=number, last_delta=number - 1, **changed)


def sound(rng: random.Random, count: int) -> list[Record]:
    """Records of all shapes that clients make: of one size or not, with headers or not."""
    kind = rng.randrange(4)
    size, made = rng.choice((0, 1, 60, 130, 9_000)) if count < 100 else rng.choice((0, 1, 60, 130)), []
    for number in range(count):
        if kind == 1:
            size = rng.randrange(200)
        key = None if rng.random() < 0.5 and kind != 0 else b"k" * (size % 70)
        headers = (("name", b"x"), ("n\u00e4me", None)) if kind == 2 and rng.random() < 0.5 else ()
        step_ms = rng.choice((-70, 0, 1, 100_000)) if kind == 3 else number // 50
        made.append(Record(number, START_MS + step_ms, key, bytes(size), headers))
    return made


def alike(rng: random.Random, count: int) -> list[Record]:
    """Records of one shape, and from some on of another, as their times or offsets have more bytes."""
    key = rng.choice((None, b"", b"k", b"k" * 7, b"k" * 8, b"k" * 70))
    value = rng.choice((None, b"", b"v", b"v" * 6, b"v" * 20, b"v" * 150))
    later_ms = rng.choice((0, 1, 63, 64, -64, 9_000, 1 << 20))
    return [Record(n, START_MS + (later_ms + n % 2) * (n >= 17), key, value, ()) for n in range(count)]


def padded(number: int, size: int) -> bytes:
    """The number as a varint of so many bytes, which may be more than it takes."""
    raw = (number << 1) ^ (number >> 63)
    return bytes((raw >> 7 * at & 0x7F) | (0x80 if at < size - 1 else 0) for at in range(size))


def padded_record(index: int, widths: Sequence[int], length: int = 20) -> bytes:
    """`widths`: of its time, offset, key's and value's length, and of its own. `length`: what it says of its value."""
    numbers = (padded(number, size) for number, size in zip((5, index, -1, length), widths, strict=True))
    fields = b"\0" + b"".join(numbers) + bytes(20) + b"\0"
    return padded(len(fields), widths[-1]) + fields


def changed(rng: random.Random, records: Sequence[Record]) -> bytes:
    """Their bytes, one of which is another: any, or among the first or the last of a record. Some end too early; the
    numbers of some have more bytes than they take."""
    encoded = [bytearray(encode_record(one, 0, records[0].timestamp_ms)) for one in records]
    if rng.random() < 0.2:
        widths = rng.choice(((3, 3, 3, 3), [rng.randrange(2, 4) for _ in range(4)]))
        encoded = [bytearray(padded_record(index, widths)) for index in range(len(records))]
    one = encoded[rng.choice((0, 64, -1, rng.randrange(len(records)))) % len(records)]
    place = rng.choice((rng.randrange(len(one)), rng.randrange(min(16, len(one))), len(one) - 1))
    one[place] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, one[place] ^ 1 << rng.randrange(8)))
    joined = b"".join(encoded)
    return joined[: -rng.randrange(1, 160)] if rng.random() < 0.2 else joined


def read_by_others(data: bytes) -> list[list[tuple[int, int, bytes | None, bytes | None]]]:
    """(offset, timestamp, key, value) as kafka-python and aiokafka read them."""
    found: list[list[tuple[int, int, bytes | None, bytes | None]]] = []
    for kind in (KafkaRecords, AioRecords):
        records = kind(data)
        found.append([])
        while (one := records.next_batch()) is not None:
            found[-1] += [(each.offset, each.timestamp, each.key, each.value) for each in one]
    return found


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 3, 17, 64, 65, 200, 9_000])
def test_what_clients_make_is_taken_and_read_as_it_was_made(codec: str, count: int) -> None:
    number, compress = CODECS[codec]
    rng = random.Random(count)
    for _ in range(6 if count < 9_000 else 1):
        records = sound(rng, count)
        payload = compress(b"".join(encode_record(one, 0, records[0].timestamp_ms) for one in records))
        data = encode_batch(records, attributes=number, payload=payload)
        log = opened(settings=LogSettings(max_message_bytes=2**31 - 1))
        log.append_as_leader(batch(2), 0)
        log.append_as_leader(data, 0)
        assert log.log_end_offset == 2 + count
        expected = [(2 + one.offset, one.timestamp_ms, one.key, one.value) for one in records]
        stored = log.read(2, 2**31 - 1).read()
        assert read_by_others(stored) == [expected, expected]


SPOILED: Mapping[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[:-3],
    "followed by a byte": lambda data: data + b"\0",
    "empty": lambda _data: b"",
}
BAD: Mapping[str, tuple[bytes, type[BadBatches]]] = {
    "no records in it": (holding(count=1), InvalidBatch),
    "garbage": (holding(b"\xff" * 50, count=1), InvalidBatch),
    "fewer records than announced": (holding(*map(record, range(30)), count=31), InvalidBatch),
    "2^31 - 1 records announced": (holding(record(0), count=2**31 - 1), InvalidBatch),
    "more records than announced": (holding(*map(record, range(30)), count=29), InvalidBatch),
    "a byte after the last": (holding(*map(record, range(30)), b"\0", count=30), InvalidBatch),
    "the last cut off": (holding(*map(record, range(30)), record(30)[:-1], count=31), InvalidBatch),
    "an offset left out": (holding(*map(record, range(20)), *map(record, range(21, 31))), InvalidBatch),
    "an offset twice": (holding(*map(record, range(20)), *map(record, range(19, 30))), InvalidBatch),
    "offsets from 1": (holding(*map(record, range(1, 31))), InvalidBatch),
    "a negative length": (holding(zigzag(-1) * 7), InvalidBatch),
    "a length too small": (holding(body(record(0)[1:] + b"\0")), InvalidBatch),
    "a length too large": (holding(zigzag(20) + record(0)[1:]), InvalidBatch),
    "a key beyond the record": (holding(record(0, key=zigzag(40)), record(1)), InvalidBatch),
    "a value beyond the record": (holding(record(0, value=zigzag(2**31 - 1))), InvalidBatch),
    "a number without end": (holding(body(b"\0" + b"\xff" * 20)), InvalidBatch),
    "a number of 33 bits": (holding(record(0, value=b"\x80\x80\x80\x80\x7f")), InvalidBatch),
    "attributes": (holding(*map(record, range(20)), body(b"\xff", *[b"\0"] * 2, b"\x01\x01\0")), InvalidBatch),
    "attributes of all": (holding(*(body(b"\x01\0", zigzag(n), b"\x01\x01\0") for n in range(30))), InvalidBatch),
    "a null key of 33 bits": (holding(record(0, key=b"\xff\xff\xff\xff\x6b")), InvalidBatch),
    "a negative count of headers": (holding(record(0, headers=zigzag(-1))), InvalidBatch),
    "2^31 - 1 headers": (holding(record(0, headers=zigzag(2**31 - 1))), InvalidBatch),
    "a header too few": (holding(record(0, headers=zigzag(2) + zigzag(1) + b"k" + zigzag(-1))), InvalidBatch),
    "a header without a key": (holding(record(0, headers=zigzag(1) + zigzag(-1) + zigzag(-1))), InvalidBatch),
    "a header's key that is no text": (holding(record(0, headers=zigzag(1) + zigzag(1) + b"\xff\x01")), InvalidBatch),
    "a header's value too long": (holding(record(0, headers=zigzag(1) + zigzag(1) + b"k" + zigzag(9))), InvalidBatch),
    "a timestamp beyond 64 bits": (holding(record(0, delta_ms=1), base_ms=2**63 - 1), InvalidTimestamp),
    "timestamps by append": (remade(batch(), attributes=8), InvalidTimestamp),
    "a control batch": (remade(batch(), attributes=0x20), InvalidBatch),
    "a transactional batch": (remade(batch(), attributes=0x10), InvalidBatch),
    "codec 5": (remade(batch(), attributes=5), UnsupportedCompression),
    "not what gzip makes": (remade(batch(), attributes=1), InvalidBatch),
    "not what snappy makes": (remade(batch(), attributes=2), InvalidBatch),
    "not what lz4 makes": (remade(batch(), attributes=3), InvalidBatch),
    "not what zstd makes": (remade(batch(), attributes=4), InvalidBatch),
    "lz4 in linked blocks": (
        remade(batch(), attributes=3, payload=bytes(cramjam.lz4.compress(record(0)))),
        InvalidBatch,
    ),
    "two frames of lz4": (
        remade(batch(2), attributes=3, payload=lz4(record(0)) + lz4(record(1))),
        InvalidBatch,
    ),
} | {
    f"{codec}: {what}": (remade(batch(), attributes=number, payload=spoil(compress(record(0)))), InvalidBatch)
    for codec, (number, compress) in CODECS.items()
    if number
    for what, spoil in SPOILED.items()
}  # fmt: skip


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("name", BAD)
def test_what_clients_could_not_read_is_refused(name: str) -> None:
    data, error = BAD[name]
    log = opened()
    with pytest.raises(BadBatches, match="batch at byte 0: ") as raised:
        log.append_as_leader(data, 0)
    assert type(raised.value) is error
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_a_bomb_is_refused_without_its_memory(codec: str) -> None:
    """256 MiB from a megabyte or less (snappy: 13 MiB), at a limit of 4 MiB."""
    limit = 4 << 20
    number, compress = CODECS[codec]
    piece = compress(bytes(64 << 20)) if codec != "snappy-java" else b""
    if codec == "snappy-java":
        block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
        piece = xerial(b"") + (len(block).to_bytes(4, "big") + block) * 64
    settings = LogSettings(max_message_bytes=limit, decompressed_bytes_max=limit)
    data = remade(batch(), attributes=number, payload=piece)
    assert len(data) < limit
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge, match=f"more than {limit} bytes when decompressed"):
            done(checking(data, settings, START_MS))
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()


def test_a_limit_is_met_to_the_byte() -> None:
    for number, compress in CODECS.values():
        if number:
            payload = memoryview(compress(bytes(5_000)))
            assert bytes(done(decompressing(number, payload, 5_000))) == bytes(5_000)
            with pytest.raises(Exception, match="more than 4999 bytes"):
                done(decompressing(number, payload, 4_999))


@pytest.mark.usefixtures("_way")
def test_each_records_time_counts_and_the_headers_is_put_right() -> None:
    now_ms = START_MS
    near = LogSettings(timestamp_difference_max_ms=1_000)
    late = holding(*(record(n, delta_ms=5_000 if n == 25 else 0) for n in range(30)), max_ms=START_MS)
    with pytest.raises(InvalidTimestamp, match=r"is 5000 ms from now, expected 1000 at most"):
        done(checking(late, near, now_ms))
    early = holding(*(record(n, delta_ms=-5_000 if n == 25 else 0) for n in range(30)), max_ms=START_MS)
    with pytest.raises(InvalidTimestamp):
        done(checking(early, near, now_ms))
    done(checking(early, LogSettings(timestamp_difference_max_ms=1_000, log_append_time=True), now_ms))
    early = holding(*(record(n, delta_ms={25: 0, 26: 6}.get(n, START_MS + 1)) for n in range(30)), base_ms=-1)
    with pytest.raises(InvalidTimestamp, match="timestamp 5 of"):
        done(checking(early, near, now_ms))
    without = holding(*(record(n, delta_ms=-1 - START_MS if n % 2 else 5) for n in range(30)))
    assert list(done(checking(without, near, now_ms)).latest_ms) == [START_MS + 5], "-1 is no time"
    log = opened()
    log.append_as_leader(late, 0)
    (header,) = headers_of(log.read(0, 1 << 20).read())
    assert header.max_timestamp_ms == START_MS + 5_000
    none = remade(batch(2, timestamp_ms=-1), max_ms=77)
    assert list(done(checking(none, near, now_ms)).latest_ms) == [-1]


@pytest.mark.usefixtures("_way")
def test_a_compacted_topic_needs_keys() -> None:
    compacted = LogSettings().with_topic({"cleanup.policy": "delete, compact"})
    with_keys = [record(n, key=zigzag(0)) for n in range(30)]
    done(checking(holding(*with_keys), compacted, START_MS))
    for place in (0, 29):
        keys = [*with_keys[:place], record(place), *with_keys[place + 1 :]]
        done(checking(holding(*keys), LogSettings(), START_MS))
        with pytest.raises(InvalidBatch, match="without a key"):
            done(checking(holding(*keys), compacted, START_MS))


def test_both_ways_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte changed anywhere in batches of all shapes, and bytes missing at their end."""
    rng = random.Random(1)
    told: set[bool] = set()
    for _ in range(4_000):
        records = rng.choice((sound, alike, alike))(rng, rng.choice((1, 20, 66, 100)))
        data = encode_batch(records, payload=changed(rng, records))
        outcomes: list[object] = []
        for way in (ONE, COLUMNS):
            monkeypatch.setattr(log_validator, "ALONE", way)
            try:
                outcomes.append(done(checking(data, LogSettings(), START_MS)).latest_ms)
            except BadBatches as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1], data.hex()
        told.add(isinstance(outcomes[0], list))
    assert told == {True, False}


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("widths", [(1, 1, 1, 2), (3, 3, 3, 2), (3, 3, 3, 3)], ids=str)
def test_each_byte_in_front_of_a_value_counts_however_long_its_numbers_are(widths: tuple[int, ...]) -> None:
    records = [padded_record(index, widths) for index in range(60)]
    assert done(checking(holding(*records), LogSettings(), START_MS)).latest_ms == [START_MS + 5]
    longer = 20 + (1 << 7 * widths[-1] - 2)  # another last byte of the value's length
    records[30] = padded_record(30, widths, length=longer)
    with pytest.raises(InvalidBatch):
        done(checking(holding(*records), LogSettings(), START_MS))


def test_large_work_is_done_in_small_pieces() -> None:
    """Counts, not time: no piece of the smallest records, or of headers, has more than some thousands of them."""
    smallest = encode_batch([Record(n, START_MS, None, None) for n in range(60_000)])
    header = zigzag(1) + b"k" + zigzag(-1)
    headers = holding(record(0, headers=zigzag(50_000) + header * 50_000))
    for data, pieces in ((smallest, 4), (headers, 40)):
        assert sum(1 for _ in checking(data, LogSettings(), START_MS)) >= pieces


def test_a_few_records_left_are_estimated_as_a_few() -> None:
    """Too high an estimate takes a batch off the network's loop. The last of such small ones is looked at alone."""
    smallest = encode_batch([Record(n, START_MS, None, b"v") for n in range(200)])
    *_, last_us = checking(smallest, LogSettings(), START_MS)
    assert last_us <= 10
