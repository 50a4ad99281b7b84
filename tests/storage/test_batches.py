"""Batches and records: our bytes held against another's codec, and any bytes at all against the one typed error."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from controller.machine.disk import MemoryDisk
from controller.storage import (
    BadBatches,
    CorruptBatch,
    LogSettings,
    PartitionLog,
    UnsupportedMagic,
    headers_of,
    whole_bytes,
)
from controller.storage.batches import (
    HEADER_BYTES,
    Record,
    decode_records,
    encode_batch,
    record_columns,
    record_spans,
    record_times,
)
from tests.storage.batches import Clock, batch

MAYBE = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**41),
        MAYBE,
        MAYBE,
        st.lists(st.tuples(st.text(max_size=5), MAYBE), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


def numbered(records: list[Record], base_offset: int) -> list[Record]:
    return [Record(base_offset + n, one.timestamp_ms, one.key, one.value, one.headers) for n, one in enumerate(records)]


def log_in_memory(log_settings: LogSettings | None = None) -> PartitionLog:
    disk = MemoryDisk()
    disk.make_directory("log")
    return PartitionLog(disk, "log", log_settings or LogSettings(), Clock())


@given(RECORDS, st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_records_are_read_as_they_were_written_by_us_and_by_kafka_python(given_records: list[Record], at: int) -> None:
    records = numbered(given_records, at)
    data = encode_batch(records, leader_epoch=3)
    header = headers_of(data)[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (at, at + len(records) - 1, len(records))
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert [*decode_records(header, data[HEADER_BYTES:])] == records
    assert [*record_times(header, data[HEADER_BYTES:])] == [(one.timestamp_ms, one.offset) for one in records]
    columns = record_columns(data[HEADER_BYTES:], len(records))
    spans = record_spans(data[HEADER_BYTES:], len(records))
    assert columns.keys == [one.key for one in records]
    assert columns.without_value == [place for place, one in enumerate(records) if one.value is None]
    assert [
        *zip(columns.starts, columns.timestamp_deltas, columns.offset_deltas, columns.starts[1:], strict=False)
    ] == [(span.start, span.timestamp_delta, span.offset_delta, span.end) for span in spans]
    theirs = MemoryRecords(data).next_batch()
    assert theirs.validate_crc()
    assert [(one.offset, one.timestamp, one.key, one.value) for one in theirs] == [
        (one.offset, one.timestamp_ms, one.key, one.value) for one in records
    ]


@given(RECORDS)
@settings(max_examples=60, deadline=None)
def test_what_kafka_python_writes_is_ours_to_the_byte(given_records: list[Record]) -> None:
    records = numbered(given_records, 0)
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for one in records:
        builder.append(timestamp=one.timestamp_ms, key=one.key, value=one.value, headers=list(one.headers))
    builder.close()
    theirs = bytes(builder.buffer())
    ours = encode_batch(records)
    # Its builder says leader epoch -1 or 0, as it likes: no client's word counts.
    assert theirs[:12] + theirs[16:] == ours[:12] + ours[16:]


def flip(position: int) -> Callable[[bytearray], object]:
    return lambda data: data.__setitem__(position, data[position] ^ 0x10)


@pytest.mark.parametrize("position", [17, 21, 23, 27, 35, 43, 51, 53, 57, 61, 70, -1])
def test_every_part_that_the_crc_covers_is_covered(position: int) -> None:
    data = bytearray(batch(2))
    flip(position)(data)
    with pytest.raises(CorruptBatch):
        headers_of(data)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_set_is_told_apart(magic: int) -> None:
    data = bytearray(batch())
    data[16] = magic
    with pytest.raises(UnsupportedMagic, match=f"magic {magic}"):
        headers_of(data)


def test_an_answer_that_ends_within_a_batch_is_whole_up_to_there() -> None:
    data = batch(3) + batch(2)
    first = len(batch(3))
    for end in range(len(data) + 1):
        assert whole_bytes(data[:end]) == (len(data) if end == len(data) else first if end >= first else 0)
    with pytest.raises(CorruptBatch):
        whole_bytes(bytes(100))


BYTES = st.binary(max_size=300) | st.builds(
    lambda data, at, value: data[: at % len(data)] + bytes([value]) + data[at % len(data) + 1 :],
    st.sampled_from([batch(1), batch(3) + batch(2), batch(1, producer=(1, 0, 0))]),
    st.integers(0, 1000),
    st.integers(0, 255),
)


@given(BYTES)
@settings(max_examples=600, deadline=None)
def test_no_bytes_bring_anything_but_an_append_or_the_typed_error(data: bytes) -> None:
    log = log_in_memory()
    for as_leader in (True, False):
        before = (log.log_end_offset, log.size_bytes)
        try:
            log.append_as_leader(data, 1) if as_leader else log.append_as_follower(data)
        except BadBatches:
            assert (log.log_end_offset, log.size_bytes) == before
        else:
            assert log.log_end_offset > before[0]
    assert log.health.cause is None


@given(BYTES)
@settings(max_examples=200, deadline=None)
def test_no_bytes_in_a_file_stop_a_log_from_opening(data: bytes) -> None:
    disk = MemoryDisk()
    disk.make_directory("log")
    disk.open(f"log/{0:020d}.log").append(data)
    log = PartitionLog(disk, "log", LogSettings(), Clock())
    assert log.size_bytes + log.cut_bytes == len(data)


@given(st.binary(max_size=200), st.integers(0, 10))
@settings(max_examples=200, deadline=None)
def test_no_bytes_as_records_bring_anything_but_the_typed_error(payload: bytes, count: int) -> None:
    header = headers_of(batch())[0]._replace(record_count=count)
    with contextlib.suppress(CorruptBatch):
        assert len(record_columns(payload, count).keys) == count
    with contextlib.suppress(CorruptBatch):
        assert len([*record_times(header, payload)]) == count
    with contextlib.suppress(CorruptBatch):
        records = [*decode_records(header, payload)]
        assert [*record_times(header, payload)] == [(one.timestamp_ms, one.offset) for one in records]
        assert len(records) == count


def test_a_length_that_lies_takes_no_memory() -> None:
    data = bytearray(batch())
    data[8:12] = (2**31 - 1).to_bytes(4)
    disk = MemoryDisk()
    disk.make_directory("log")
    disk.open(f"log/{0:020d}.log").append(bytes(data))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            headers_of(data)
        assert PartitionLog(disk, "log", LogSettings(), Clock()).log_end_offset == 0
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
