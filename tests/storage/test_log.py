"""A log in use: appending, rolling, reading, look-ups, truncation, retention, deletion."""

from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path

import pytest

from controller.machine.disk import MemoryDisk
from controller.storage import (
    BadBatches,
    BatchesTooLarge,
    BatchTooLarge,
    EpochEnd,
    InvalidBatch,
    InvalidTimestamp,
    LogOffline,
    LogSettings,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    PartitionLog,
    ProducerFenced,
    SequenceOutOfOrder,
    headers_of,
)
from controller.storage.batches import Record, encode_batch, encode_record
from controller.storage.disk_files import FileDisk
from controller.storage.segment import HeaderReader, Segment
from tests.storage.batches import START_MS, Clock, batch, offset_for_timestamp

SIZE = len(batch())
SMALL = LogSettings(segment_bytes=SIZE * 4, index_interval_bytes=SIZE, retention_ms=-1)


def log_with(settings: LogSettings = SMALL, clock: Clock | None = None, disk: MemoryDisk | None = None) -> PartitionLog:
    disk = disk or MemoryDisk()
    disk.make_directory("log")
    return PartitionLog(disk, "log", settings, clock or Clock())


def filled(count: int, settings: LogSettings = SMALL, clock: Clock | None = None) -> PartitionLog:
    """One record a batch; epoch 0 for ten offsets, then 1, and so on; the timestamp is START_MS and the offset."""
    log = log_with(settings, clock)
    for offset in range(count):
        log.append_as_leader(batch(timestamp_ms=START_MS + offset), offset // 10)
    return log


# Appending


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("stamped", [False, True])
def test_a_leader_gives_offsets_and_its_epoch_and_leaves_the_buffer_alone(
    kind: type, batches: int, stamped: bool
) -> None:
    settings = LogSettings(log_append_time=stamped)
    log = log_with(settings=settings)
    log.append_as_leader(batch(2), 0)
    theirs = kind(b"".join(batch(3, value=b"value %d" % number) for number in range(batches)))
    before = bytes(theirs)
    appended = log.append_as_leader(theirs, 5)
    assert bytes(theirs) == before
    assert (appended.base_offset, appended.last_offset, log.log_end_offset) == (2, 1 + 3 * batches, 2 + 3 * batches)
    found = log.read(2, 10_000).read()
    headers = headers_of(found)
    assert [(one.base_offset, one.leader_epoch) for one in headers] == [(2 + 3 * at, 5) for at in range(batches)]
    assert len(found) == len(before)
    if not stamped:
        assert [one.crc for one in headers] == [one.crc for one in headers_of(before)]


def test_many_batches_are_one_append_and_one_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = PartitionLog(FileDisk(), str(tmp_path), LogSettings(), Clock())
    writes: list[int] = []
    write = os.write

    def noted(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    appended = log.append_as_leader(batch(2) + batch(3) + batch(1), 0)
    assert (appended.base_offset, appended.last_offset) == (0, 5)
    assert writes == [len(batch(2) + batch(3) + batch(1))]


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("first", [10, 61, 100])
def test_a_write_that_takes_only_a_part_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batches: int, first: int
) -> None:
    log = PartitionLog(FileDisk(), str(tmp_path), LogSettings(), Clock())
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: max(1, len(data) // 3)]))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: write(fd, b"".join(buffers)[:first]))
    log.append_as_leader(batch(20) * batches, 0)
    assert [one.record_count for one in headers_of(log.read(0, 10_000).read())] == [20] * batches


def test_nothing_is_left_of_a_write_of_two_buffers_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    log = PartitionLog(FileDisk(), str(tmp_path), LogSettings(), Clock())
    log.append_as_leader(batch(1), 0)
    with monkeypatch.context() as patch:
        write = os.write
        patch.setattr(os, "writev", lambda fd, buffers: write(fd, b"".join(buffers)[:70]))
        patch.setattr(os, "write", full)
        with pytest.raises(LogOffline):
            log.append_as_leader(batch(20), 0)
    assert sum(one.stat().st_size for one in tmp_path.glob("*.log")) == len(batch(1))


REFUSED = (
    (InvalidBatch, batch(2, attributes=0x20), "control"),
    (InvalidBatch, batch(2, attributes=0x10), "transactional"),
    (InvalidBatch, batch(2, attributes=0x07), "codec 7"),
    (InvalidBatch, batch(2, producer=(5, 0, -1)), "sequence -1"),
    (InvalidBatch, encode_batch([Record(0, 0, None, b""), Record(2, 0, None, b"")]), "2 records"),
    (BatchTooLarge, batch(1, value=bytes(5000)), "max.message.bytes"),
    (BatchesTooLarge, batch(30) * 2, "a segment has"),
    (InvalidTimestamp, batch(timestamp_ms=START_MS - 2000), "2000 ms from now"),
    (BadBatches, b"", "no batch"),
)


@pytest.mark.parametrize(("kind", "data", "words"), REFUSED, ids=[one[2] for one in REFUSED])
def test_what_a_producer_may_not_send_is_refused_and_changes_nothing(
    kind: type[BadBatches], data: bytes, words: str
) -> None:
    log = log_with(LogSettings(max_message_bytes=3000, segment_bytes=900, timestamp_difference_max_ms=1000))
    log.append_as_leader(batch(), 0)
    with pytest.raises(kind, match=words):
        log.append_as_leader(data, 0)
    assert (log.log_end_offset, log.size_bytes) == (1, SIZE)


def test_log_append_time_stamps_the_batch_and_its_crc() -> None:
    clock = Clock()
    log = log_with(LogSettings(log_append_time=True), clock)
    assert log.append_as_leader(batch(3, timestamp_ms=5), 0).log_append_time_ms == clock.now_ms
    header = headers_of(log.read(0, 1000).read())[0]
    assert (header.max_timestamp_ms, header.attributes & 8) == (clock.now_ms, 8)
    found = offset_for_timestamp(log, clock.now_ms)
    assert found is not None
    assert found.offset == 0


@pytest.mark.parametrize(
    ("offsets", "position"), [([0], 0), ([2, 2], SIZE), ([3, 2], SIZE)], ids=["known", "twice", "back"]
)
def test_a_follower_takes_offsets_upwards_only(offsets: list[int], position: int) -> None:
    log = log_with()
    log.append_as_follower(batch(2))
    with pytest.raises(OffsetsOutOfOrder) as refused:
        log.append_as_follower(b"".join(batch(base_offset=offset) for offset in offsets))
    assert refused.value.position == position
    assert log.log_end_offset == 2


def test_a_follower_of_a_compacted_log_takes_gaps() -> None:
    log = log_with()
    log.append_as_follower(batch(base_offset=3) + batch(base_offset=10))
    assert log.log_end_offset == 11
    assert headers_of(log.read(5, 1000).read())[0].base_offset == 10


def test_a_follower_that_begins_within_a_batch_begins_with_the_whole_batch() -> None:
    log = log_with()
    log.restart_at(7)
    log.append_as_follower(batch(5, base_offset=5))
    assert (log.log_start_offset, log.log_end_offset) == (5, 10)


# Producers


def test_a_batch_sent_again_is_answered_as_before_for_the_last_five() -> None:
    log = log_with(LogSettings())
    sent = [batch(2, producer=(9, 0, 2 * n)) for n in range(7)]
    for data in sent:
        log.append_as_leader(data, 0)
    for number in range(2, 7):
        again = log.append_as_leader(sent[number], 0)
        assert (again.base_offset, again.last_offset, again.duplicate) == (2 * number, 2 * number + 1, True)
    with pytest.raises(SequenceOutOfOrder, match="sequence 2, expected 14"):
        log.append_as_leader(sent[1], 0)
    with pytest.raises(SequenceOutOfOrder, match="sequence 16, expected 14"):
        log.append_as_leader(batch(producer=(9, 0, 16)), 0)
    log.append_as_leader(batch(producer=(9, 1, 0)), 0)
    with pytest.raises(ProducerFenced, match="epoch 0, seen 1"):
        log.append_as_leader(batch(producer=(9, 0, 14)), 0)
    assert log.log_end_offset == 15


def test_producers_are_known_again_after_a_restart_and_after_a_crash() -> None:
    disk = MemoryDisk()
    log = log_with(SMALL, disk=disk)
    for number in range(10):
        log.append_as_leader(batch(producer=(9, 0, number)), 0)
    for closes in (True, False):
        if closes:
            log.close()
        log = log_with(SMALL, disk=disk)
        assert log.append_as_leader(batch(producer=(9, 0, 9)), 0).duplicate
    log.truncate_to(6)
    log.append_as_leader(batch(producer=(9, 0, 6)), 0)


# Rolling


def test_a_log_rolls_by_size_and_each_file_is_named_by_its_first_offset() -> None:
    log = filled(10)
    assert log.segment_offsets == (0, 4, 8)


def test_a_log_rolls_by_the_records_time_and_by_its_own_where_they_have_none() -> None:
    clock = Clock()
    log = log_with(LogSettings(roll_ms=1000), clock)
    for at in (0, 1000, 1001):
        log.append_as_leader(batch(timestamp_ms=START_MS + at), 0)
    assert log.segment_offsets == (0, 2)
    log = log_with(LogSettings(roll_ms=1000), clock)
    for at in (0, 1000, 1001):
        clock.now_ms = START_MS + at
        log.append_as_leader(batch(timestamp_ms=-1), 0)
    assert log.segment_offsets == (0, 2)


def test_a_log_rolls_when_an_index_is_full() -> None:
    log = log_with(LogSettings(index_interval_bytes=0, index_size_max_bytes=36))
    for _ in range(12):
        log.append_as_leader(batch(timestamp_ms=-1), 0)
    assert log.segment_offsets == (0, 5, 10)
    log = filled(12, LogSettings(index_interval_bytes=0, index_size_max_bytes=48))
    assert log.segment_offsets == (0, 4, 8)


def test_a_log_rolls_where_its_indexes_can_not_count_on() -> None:
    log = log_with()
    log.append_as_follower(batch(base_offset=0))
    log.append_as_follower(batch(base_offset=2**31 - 1))
    log.append_as_follower(batch(base_offset=2**31))
    assert log.segment_offsets == (0, 2**31)
    empty = log_with()
    empty.append_as_follower(batch(base_offset=2**40))
    assert empty.segment_offsets == (2**40,)


# Reading


def test_every_offset_is_read_up_to_every_limit() -> None:
    log = filled(10)
    for offset in range(11):
        for up_to in range(offset, 12):
            data = log.read(offset, 1 << 20, up_to).read()
            found = [header.base_offset for header in headers_of(data)]
            # One segment at a time: 0 to 3, 4 to 7, 8 and 9.
            segment_end = min((offset // 4 + 1) * 4, 10)
            assert found == list(range(offset, min(up_to, segment_end)))


def test_a_limit_within_a_batch_leaves_the_whole_batch_out() -> None:
    log = log_with(LogSettings())
    log.append_as_leader(batch(2), 0)
    log.append_as_leader(batch(5), 0)
    assert log.read(0, 1000, up_to=4).length == len(batch(2))
    assert log.read(3, 1000, up_to=4).length == 0


def test_the_first_batch_comes_whole_and_others_are_left_out_rather_than_cut() -> None:
    log = filled(4)
    assert log.read(1, 10).length == SIZE
    assert log.read(1, 10, whole_first_batch=False).length == 10
    found = log.read(1, SIZE + 10)
    assert (found.length, found.cut_bytes) == (SIZE, 10)
    assert (log.read(1, 2 * SIZE).length, log.read(1, 2 * SIZE).cut_bytes) == (2 * SIZE, 0)


@pytest.mark.parametrize("index_interval_bytes", [0, 150, 4096])
def test_what_is_read_ends_with_a_batch_wherever_the_limit_is(index_interval_bytes: int) -> None:
    log = log_with(LogSettings(index_interval_bytes=index_interval_bytes))
    ends = [0]
    for records in (1, 7, 2, 1, 30, 1, 1, 4):
        data = batch(records)
        log.append_as_leader(data, 0)
        ends.append(ends[-1] + len(data))
    for max_bytes in range(ends[1], ends[-1] + 5):
        found = log.read(0, max_bytes)
        assert found.length == max(end for end in ends if end <= max_bytes)
        assert found.length + found.cut_bytes == min(max_bytes, ends[-1])


@pytest.mark.parametrize(("entry", "expected"), [((4, 20), 0), ((3, "second"), 0), ((9, "second"), "second")])
def test_a_wrong_index_entry_is_not_taken_for_the_end_of_a_batch(
    entry: tuple[int, int | str], expected: int | str
) -> None:
    disk = MemoryDisk()
    disk.make_directory("log")
    segment = Segment(disk, "log", 0, 0, 0)
    batches = [batch(5, base_offset=base) for base in (0, 5)]
    for data in batches:
        segment.append(data, headers_of(data))
    at: dict[int | str, int] = {"second": len(batches[0]), 20: 20, 0: 0}
    segment.offsets.clear()
    segment.offsets.append(entry[0], at[entry[1]])
    assert segment.last_batch_end(0, at["second"] + 30, HeaderReader(segment.file)) == at[expected]


def test_a_reader_that_goes_on_where_its_read_ended_finds_the_place_without_a_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = log_with(LogSettings())
    for _ in range(100):
        log.append_as_leader(batch(2), 0)
    found = log.read(0, 10 * len(batch(2)) + 1)
    assert found.length == 10 * len(batch(2))
    monkeypatch.setattr(Segment, "headers_from", lambda _segment, offset: pytest.fail(f"a scan for {offset}"))
    again = log.read(20, 10)
    assert again.position == found.length


@pytest.mark.parametrize("offset", [-1, 3, 11])
def test_an_offset_that_is_not_there_is_told_with_what_is(offset: int) -> None:
    log = filled(10)
    log.delete_records_before(4, 10)
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset}: the log has 4 to 10"):
        log.read(offset, 100)


def test_a_range_can_be_sent_by_the_system_and_outlives_its_segment(tmp_path: Path) -> None:
    log = PartitionLog(FileDisk(), str(tmp_path), SMALL, Clock())
    for _ in range(10):
        log.append_as_leader(batch(), 0)
    before = log.read(1, 1000)
    expected = before.read()
    log.delete_records_before(8, 10)
    assert log.apply_retention(10) == 2
    for _ in range(10):
        log.append_as_leader(batch(value=b"other"), 0)
    read_end, write_end = os.pipe()
    try:
        sent = os.sendfile(write_end, before.file.fileno(), before.position, before.length)
        assert os.read(read_end, 1000) == expected
        assert sent == before.length == 3 * SIZE
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_timestamp_finds_the_first_record_of_its_time_or_later() -> None:
    log = filled(10)
    for at in range(-3, 10):
        found = offset_for_timestamp(log, START_MS + at)
        assert found is not None
        offset = max(at, 0)
        assert (found.offset, found.timestamp_ms, found.leader_epoch) == (offset, START_MS + offset, 0)
    assert offset_for_timestamp(log, START_MS + 10) is None
    log.delete_records_before(6, 10)
    found = offset_for_timestamp(log, START_MS)
    assert found is not None
    assert found.offset == 6


def test_a_timestamp_in_a_compressed_batch_needs_who_can_decompress() -> None:
    records = [Record(n, START_MS + n, None, b"value") for n in range(5)]
    payload = gzip.compress(b"".join(encode_record(one, 0, START_MS) for one in records))
    log = log_with()
    log.append_as_leader(encode_batch(records, attributes=1, payload=payload), 0)
    found = offset_for_timestamp(log, START_MS + 3, lambda codec, data: gzip.decompress(data) if codec == 1 else None)
    assert found is not None
    assert found.offset == 3
    found = offset_for_timestamp(log, START_MS + 3)
    assert found is not None
    assert found.offset == 0


# Epochs and truncation


@pytest.mark.parametrize(
    ("epoch", "end"),
    [
        (-1, EpochEnd(-1, -1)),
        (0, EpochEnd(0, 10)),
        (1, EpochEnd(1, 20)),
        (2, EpochEnd(2, 25)),
        (3, EpochEnd(2, 30)),
        (5, EpochEnd(5, 32)),
        (6, EpochEnd(-1, -1)),
    ],
)
def test_the_end_of_an_epoch_is_where_the_next_one_began(epoch: int, end: EpochEnd) -> None:
    log = filled(25)
    if epoch >= 3:
        log.append_as_leader(batch(5), 2)
        log.append_as_leader(batch(2), 5)
    assert log.end_offset_for_epoch(epoch) == end


@pytest.mark.parametrize("offset", [0, 1, 4, 7, 8, 11, 12])
def test_a_truncated_log_is_one_that_never_went_on(offset: int) -> None:
    log, shorter = filled(12), filled(offset)
    assert log.truncate_to(offset) is (offset < 12)
    for one in (log, shorter):
        one.append_as_leader(batch(3), 9)
    assert log.log_end_offset == shorter.log_end_offset
    assert log.epochs.entries() == shorter.epochs.entries()
    for at in range(log.log_end_offset):
        assert log.read(at, 1).read() == shorter.read(at, 1).read()


def test_a_batch_is_truncated_whole() -> None:
    log = log_with()
    log.append_as_leader(batch(2), 0)
    log.append_as_leader(batch(5), 0)
    assert log.truncate_to(4)
    assert log.log_end_offset == 2


def test_a_truncation_below_the_start_begins_anew() -> None:
    log = filled(12)
    log.delete_records_before(9, 12)
    log.apply_retention(12)
    assert log.truncate_to(5)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (5, 5, 0)
    assert log.epochs.entries() == ()


# Retention


def test_retention_by_size_keeps_at_least_that_much_and_never_what_is_not_committed() -> None:
    log = filled(14, LogSettings(segment_bytes=SIZE * 4, retention_ms=-1, retention_bytes=SIZE * 6))
    assert [*log.segment_offsets] == [0, 4, 8, 12]
    assert log.apply_retention(high_watermark=3) == 0
    assert log.apply_retention(high_watermark=14) == 2
    assert [*log.segment_offsets] == [8, 12]
    assert log.log_start_offset == 8
    assert log.epochs.entries()[0].start_offset == 8


def test_retention_by_time_takes_even_the_last_segment() -> None:
    clock = Clock()
    log = filled(10, LogSettings(segment_bytes=SIZE * 4, retention_ms=1000), clock)
    clock.now_ms = START_MS + 1005
    assert log.apply_retention(10) == 1
    clock.now_ms = START_MS + 5000
    assert log.apply_retention(10) == 2
    assert (log.segment_offsets, log.log_start_offset, log.log_end_offset) == ((10,), 10, 10)
    assert log.apply_retention(10) == 0
    assert log.append_as_leader(batch(), 3).base_offset == 10


def test_records_are_deleted_by_request_up_to_the_high_watermark() -> None:
    log = filled(10)
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(9, high_watermark=8)
    assert log.delete_records_before(6, 8)
    assert not log.delete_records_before(5, 8)
    assert log.apply_retention(8) == 1
    assert (log.log_start_offset, log.segment_offsets) == (6, (4, 8))


# Flushing


def test_a_flush_is_due_after_so_many_messages() -> None:
    log = log_with(LogSettings(flush_messages=3))
    points = []
    for _ in range(7):
        log.append_as_leader(batch(), 0)
        points.append(log.recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_an_epoch_in_which_nothing_was_appended_goes_even_where_nothing_else_is_to_be_cut() -> None:
    """A leader for a moment puts its epoch down; as a follower it must not go on telling the next leader of it."""
    log = filled(12)
    log.assign_epoch(9, 12)
    assert log.truncate_to(12) is False
    assert log.epochs.entries() == filled(12).epochs.entries()
