"""The log cleaner's rules, and lives of compacted logs with crashes at every step."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from controller.machine.disk import MemoryDisk
from controller.storage import LogSettings
from controller.storage.batches import LONG_MAX, Record, RecordColumns, encode_batch, headers_of, record_columns
from controller.storage.compaction import CleanerLimits, Cleaning, OffsetMapTooSmall
from controller.storage.compaction_filter import BatchFilter, CleanedTransactions, note_keys
from controller.storage.compaction_rules import dirty_range, first_dirty_offset, groups, is_due, pause_ms
from controller.storage.offset_map import OffsetMap, keys_within
from controller.storage.segment import Segment
from tests.storage.compacting import Compacting, records_in, run

SEEDS = range(40)


class Piece:
    def __init__(self, base_offset: int, size_bytes: int = 100, latest_timestamp_ms: int = -1) -> None:
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.latest_timestamp_ms = latest_timestamp_ms


LOG = [Piece(0), Piece(100), Piece(200), Piece(300)]


def test_what_is_dirty_ends_where_the_segment_of_the_first_unstable_offset_begins() -> None:
    dirty = dirty_range(LOG, 100, 250, LogSettings(), 0)
    assert (dirty.first_dirty, dirty.end, dirty.clean_bytes, dirty.dirty_bytes) == (100, 200, 100, 100)
    assert dirty.ratio == 0.5


def test_the_active_segment_is_never_dirty() -> None:
    assert dirty_range(LOG, 0, 1000, LogSettings(), 0).end == 300


def test_segments_with_records_younger_than_the_lag_are_left() -> None:
    young = [Piece(0, latest_timestamp_ms=10), Piece(100, latest_timestamp_ms=60), Piece(200, latest_timestamp_ms=20)]
    assert dirty_range(young, 0, 1000, LogSettings(min_compaction_lag_ms=50), 100).end == 100


def test_a_log_is_due_above_its_dirty_ratio_or_once_it_is_overdue() -> None:
    settings = LogSettings(max_compaction_lag_ms=50)
    assert not is_due(dirty_range(LOG, 200, 1000, settings, 100, [60]), settings)
    assert is_due(dirty_range(LOG, 200, 1000, settings, 100, [40]), settings)
    assert is_due(dirty_range(LOG, 100, 1000, settings, 100, [60]), settings)
    assert not is_due(dirty_range(LOG, 300, 1000, settings, 100, [40]), settings)


@pytest.mark.parametrize(("cleaned_to", "expected"), [(-1, 10), (5, 10), (20, 20), (31, 10)])
def test_a_cleaning_begins_where_the_last_one_ended_if_that_is_in_the_log(cleaned_to: int, expected: int) -> None:
    assert first_dirty_offset(cleaned_to, 10, 30) == expected


def test_segments_are_put_together_up_to_the_size_of_one() -> None:
    found = groups(LOG, 400, LogSettings(segment_bytes=250))
    assert [[one.base_offset for one in group] for group in found] == [[0, 100], [200, 300]]
    far = [Piece(0), Piece(2**31)]
    assert len(groups(far, 2**31 + 10, LogSettings())) == 2


def test_the_throttle_waits_for_what_the_rate_allows() -> None:
    assert pause_ms(1000, 100, 2000) == 400
    assert pause_ms(1000, 600, 2000) == 0
    assert pause_ms(1000, 0, 1.7e308) == pytest.approx(0)


def test_the_offset_map_distinguishes_short_keys_from_digests_and_is_bounded() -> None:
    offsets = OffsetMap(2)
    offsets.put(b"short", 1)
    offsets.put(b"a key of more than sixteen bytes", 2)
    assert offsets.is_full
    assert (offsets.get(b"short"), offsets.get(b"a key of more than sixteen bytes")) == (1, 2)
    assert offsets.get(b"another") == -1
    assert keys_within(134_217_728, 0.9) == 471_859
    assert keys_within(1, 0.9) == 1


# Single batches


def filtered(records: list[Record], latest: dict[bytes, int], now_ms: int = 0, retention_ms: int = 100) -> bytes | None:
    offsets = OffsetMap(100)
    for key, offset in latest.items():
        offsets.put(key, offset)
    offsets.latest_offset = 1000
    batch = memoryview(encode_batch(records))
    rules = BatchFilter(offsets, CleanedTransactions(()), now_ms, retention_ms, 1 << 20)
    left = rules.filtered(headers_of(batch)[0], batch, None)
    return None if left is None else bytes(left[0])


def test_a_batch_of_which_all_is_kept_is_not_rewritten() -> None:
    records = [Record(5, 10, b"a", b"1"), Record(6, 11, b"b", b"2")]
    assert filtered(records, {b"a": 5, b"b": 6}) == encode_batch(records)


def test_offsets_times_and_headers_of_what_is_kept_stay() -> None:
    records = [Record(5, 10, b"a", b"1"), Record(6, 8, b"b", b"2", (("h", b"x"),)), Record(7, 30, b"c", b"3")]
    left = filtered(records, {b"a": 5, b"b": 6, b"c": 99})
    assert left is not None
    (header,), kept = records_in(left)
    assert kept == records[:2]
    assert (header.base_offset, header.last_offset, header.max_timestamp_ms) == (5, 7, 10)


def test_a_tombstone_gets_a_horizon_and_goes_once_it_has_passed() -> None:
    records = [Record(5, 10, b"a", None), Record(6, 12, b"b", b"2")]
    first = filtered(records, {b"a": 5, b"b": 6}, now_ms=1000)
    assert first is not None
    (header,), kept = records_in(first)
    assert kept == records
    assert (header.delete_horizon_ms, header.max_timestamp_ms, header.attributes) == (1100, 12, 0x40)
    rules = BatchFilter(_map({b"a": 5, b"b": 6}), CleanedTransactions(()), 1099, 100, 1 << 20)
    again = rules.filtered(header, memoryview(first), None)
    assert again is not None
    assert bytes(again[0]) == first
    rules = BatchFilter(_map({b"a": 5, b"b": 6}), CleanedTransactions(()), 1100, 100, 1 << 20)
    last = rules.filtered(header, memoryview(first), None)
    assert last is not None
    assert records_in(bytes(last[0]))[1] == records[1:]


def _map(latest: dict[bytes, int]) -> OffsetMap:
    offsets = OffsetMap(100)
    for key, offset in latest.items():
        offsets.put(key, offset)
    offsets.latest_offset = 1000
    return offsets


def _filtered_log(seed: int, *, decode_all: bool) -> list[bytes | None]:
    """What is left of each batch of a log with few keys, some records of which have no value."""
    random_ = Random(seed)
    batches: list[bytes] = []
    offset = 0
    for _ in range(30):
        records = []
        for _ in range(random_.choice((1, 2, 5, 80))):
            key = bytes(random_.choice((1, 20))) + random_.randrange(40).to_bytes(2, "big")
            value = None if random_.random() < 0.02 else bytes(random_.choice((0, 1, 100, 9_000)))
            records.append(Record(offset, random_.randrange(10_000), key, value, (("h", b"x"),) * random_.randrange(2)))
            offset += random_.choice((1, 1, 90))
        batches.append(encode_batch(records))
    offsets, transactions, first = OffsetMap(100), CleanedTransactions(()), random_.choice((0, offset // 3))
    headers = [headers_of(batch)[0] for batch in batches]
    for header, batch in zip(headers, batches, strict=True):
        if header.last_offset >= first and header.next_offset < 0.8 * offset:
            assert note_keys(header, memoryview(batch), offsets, transactions, first, 1 << 20)
    for _ in offsets.latest_offsets():
        pass
    rules = BatchFilter(offsets, transactions, 50, 100, 1 << 20, LONG_MAX if decode_all else first)
    left = [rules.filtered(one, memoryview(batch), None) for one, batch in zip(headers, batches, strict=True)]
    return [None if one is None else bytes(one[0]) for one in left]


def test_batches_that_the_map_decides_alone_become_what_they_do_when_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [_filtered_log(seed, decode_all=True) for seed in range(12)]
    decoded: list[int] = []

    def counted(payload: bytes, count: int) -> RecordColumns:
        decoded.append(count)
        return record_columns(payload, count)

    monkeypatch.setattr("controller.storage.compaction_filter.record_columns", counted)
    assert [_filtered_log(seed, decode_all=False) for seed in range(12)] == expected
    alone = 2 * 12 * 30 - len(decoded)
    assert alone > 120, "some of each are decided alone: all records gone, and all kept"
    monkeypatch.setattr(OffsetMap, "note_without_value", lambda self, base_offset: None)
    assert [_filtered_log(seed, decode_all=False) for seed in range(12)] != expected, "a horizon is missed"


def test_a_job_gives_way_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[int] = []
    monkeypatch.setattr(MemoryDisk, "give_way", lambda self: ways.append(1))
    one = Compacting(3)
    one.go(60)
    assert len(ways) > 20


# Lives


@pytest.mark.parametrize("seed", SEEDS)
def test_a_compacted_log_has_the_last_value_of_each_key_whatever_happens(seed: int) -> None:
    assert run(seed) > 0


def test_a_batch_with_more_keys_than_the_map_holds_is_an_error() -> None:
    one = Compacting(3, limits=CleanerLimits(keys_max=1))
    with pytest.raises(OffsetMapTooSmall, match="more than 1 keys"):
        one.go(200)


def _found_by_some_seed() -> bool:
    for seed in range(80, 200):  # the first one has a crash within a swap
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def _overflow_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetMap, "is_full", property(lambda self: False))
    whole: Callable[[OffsetMap, bytes, int], None] = OffsetMap.put

    def put(self: OffsetMap, key: bytes, offset: int) -> None:
        if len(self) < self.keys_max:
            whole(self, key, offset)

    monkeypatch.setattr(OffsetMap, "put", put)


def _swap_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cleaning, "_seal", staticmethod(Segment.seal))


def _log_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Cleaning.steps

    def without(self: Cleaning):  # type: ignore[no-untyped-def]
        every = steps(self)
        result = None
        while True:
            try:
                work = every.send(result)
            except StopIteration:
                return
            is_sync = getattr(getattr(work, "func", None), "__name__", "") == "_sync"
            result = None if is_sync else (yield work)

    monkeypatch.setattr(Cleaning, "steps", without)


def _tombstone_dropped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchFilter, "_is_over", lambda self, header: True)


def _last_batch_of_producer_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.storage.compaction.last_batches", lambda producers: {})


def _aborted_records_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CleanedTransactions, "data", lambda self, header: False)


def _old_files_removed_before_the_swap_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(self: Cleaning, group: list[Segment], new: Segment):  # type: ignore[no-untyped-def]
        new.next_offset = group[-1].next_offset
        self._new = new
        for old in group:
            old.remove()
        yield lambda: self._disk.sync_names(self._log.directory)
        swap = new.rename(".swap")
        self._log.replace_segments(group, swap)
        self._take_names(swap)
        yield lambda: self._disk.sync_names(self._log.directory)

    monkeypatch.setattr(Cleaning, "_replace", replace)


@pytest.mark.parametrize(
    "plant",
    [
        _overflow_ignored,
        _swap_not_synced,
        _log_not_synced,
        _tombstone_dropped_early,
        _last_batch_of_producer_dropped,
        _aborted_records_kept,
        _old_files_removed_before_the_swap_is_complete,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert _found_by_some_seed()
