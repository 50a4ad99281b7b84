"""What is decided without a disk: epochs, producers' sequences, retention and verdicts, as tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from controller.storage import CorruptLog, EpochStart, LogSettings, ProducerFenced, SequenceOutOfOrder, headers_of
from controller.storage.batches import INT_MAX, BatchHeader
from controller.storage.checkpoints import LeaderEpochs, decode_epochs, decode_offsets, decode_topic_id
from controller.storage.producer_states import ProducerStates
from controller.storage.recovery import RecoveryVerdict, verdict_on
from controller.storage.segment import RollReason, deletable, roll_jitter_ms, roll_reason
from tests.storage.batches import START_MS, batch


@dataclass(frozen=True, slots=True)
class Facts:
    base_offset: int = 0
    next_offset: int = 10
    size_bytes: int = 100
    created_ms: int = 0
    first_timestamp_ms: int = -1
    latest_ms: int = 0
    offset_entries: int = 0
    time_entries: int = 0


SETTINGS = LogSettings(segment_bytes=1000, roll_ms=50, index_size_max_bytes=120)


@pytest.mark.parametrize(
    ("facts", "size_bytes", "last_offset", "timestamp_ms", "now_ms", "reason"),
    [
        (Facts(size_bytes=900), 100, 10, -1, 50, None),
        (Facts(size_bytes=901), 100, 10, -1, 50, RollReason.SIZE),
        (Facts(), 100, 10, -1, 51, RollReason.AGE),
        (Facts(size_bytes=0), 2000, 10, -1, 51, None),
        (Facts(first_timestamp_ms=100), 100, 10, 150, 1000, None),
        (Facts(first_timestamp_ms=100), 100, 10, 151, 0, RollReason.AGE),
        (Facts(offset_entries=14, time_entries=8), 100, 10, -1, 0, None),
        (Facts(offset_entries=15), 100, 10, -1, 0, RollReason.INDEX_FULL),
        (Facts(time_entries=9), 100, 10, -1, 0, RollReason.INDEX_FULL),
        (Facts(base_offset=5), 100, 5 + INT_MAX, -1, 0, None),
        (Facts(base_offset=5, size_bytes=0), 100, 6 + INT_MAX, -1, 0, RollReason.OFFSET),
    ],
)
def test_when_a_segment_is_rolled(
    facts: Facts, size_bytes: int, last_offset: int, timestamp_ms: int, now_ms: int, reason: RollReason | None
) -> None:
    assert roll_reason(facts, size_bytes, last_offset, timestamp_ms, SETTINGS, now_ms) is reason


def segments(*sizes: int) -> list[Facts]:
    return [
        Facts(base_offset=10 * n, next_offset=10 * n + 10, size_bytes=size, latest_ms=100 * n)
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "start", "high_watermark", "retention_bytes", "retention_ms", "count"),
    [
        ((50, 50, 50), 0, 30, -1, -1, 0),
        ((50, 50, 50), 0, 30, 100, -1, 1),
        ((50, 50, 50), 0, 30, 99, -1, 1),
        ((50, 50, 50), 0, 30, 50, -1, 2),
        ((50, 50, 50), 0, 19, 50, -1, 1),
        ((50, 50, 50), 0, 30, 0, -1, 3),
        ((50, 50, 0), 0, 30, 0, -1, 2),
        ((50, 50, 50), 0, 30, -1, 450, 1),
        ((50, 50, 50), 0, 30, -1, 299, 3),
        ((50, 50, 50), 20, 30, -1, -1, 2),
        ((50, 50, 50), 19, 30, -1, -1, 1),
        ((50, 50, 50), 30, 30, -1, -1, 2),
        ((50, 50, 50), 20, 5, -1, -1, 0),
    ],
)
def test_which_segments_retention_lets_go(
    sizes: tuple[int, ...], start: int, high_watermark: int, retention_bytes: int, retention_ms: int, count: int
) -> None:
    settings = LogSettings(retention_bytes=retention_bytes, retention_ms=retention_ms)
    assert deletable(segments(*sizes), start, high_watermark, settings, now_ms=500) == count


@pytest.mark.parametrize(
    ("sound_until", "damaged", "recovery_point", "verdict"),
    [
        (10, False, 10, RecoveryVerdict.SOUND),
        (12, False, 10, RecoveryVerdict.SOUND),
        (10, True, 10, RecoveryVerdict.CUT),
        (9, True, 10, RecoveryVerdict.LOST),
        (9, False, 10, RecoveryVerdict.LOST),
    ],
)
def test_what_damage_means(sound_until: int, damaged: bool, recovery_point: int, verdict: RecoveryVerdict) -> None:
    assert verdict_on(sound_until, damaged, recovery_point) is verdict


@pytest.mark.parametrize(
    ("assigned", "entries"),
    [
        ([(0, 0), (2, 10), (2, 15)], [(0, 0), (2, 10)]),
        ([(0, 0), (2, 10), (3, 10)], [(0, 0), (3, 10)]),
        ([(0, 0), (2, 10), (3, 20), (2, 12)], [(0, 0), (2, 12)]),
        ([(0, 0), (2, 10), (3, 5)], [(0, 0), (3, 5)]),
        ([(5, 10), (5, 8)], [(5, 8)]),
        ([(-1, 0), (0, -1)], []),
    ],
)
def test_epochs_only_grow_and_later_word_wins(assigned: list[tuple[int, int]], entries: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs()
    for epoch, start in assigned:
        epochs.assign(epoch, start)
    assert epochs.entries() == tuple(EpochStart(*entry) for entry in entries)


@pytest.mark.parametrize(
    ("start", "end", "entries"),
    [
        (0, 30, [(0, 0), (2, 10), (3, 20)]),
        (0, 20, [(0, 0), (2, 10)]),
        (0, 10, [(0, 0)]),
        (0, 0, []),
        (5, 30, [(0, 5), (2, 10), (3, 20)]),
        (10, 30, [(2, 10), (3, 20)]),
        (25, 30, [(3, 25)]),
    ],
)
def test_epochs_shrink_with_their_log(start: int, end: int, entries: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(2, 10), EpochStart(3, 20)])
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    assert [(one.epoch, one.start_offset) for one in epochs.entries()] == entries
    assert epochs.changed is (entries != [(0, 0), (2, 10), (3, 20)])


def sent(epoch: int, sequence: int, count: int = 1) -> BatchHeader:
    return headers_of(batch(count, producer=(1, epoch, sequence)))[0]


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ([], sent(0, 7), None),
        ([sent(0, 0, 5)], sent(0, 5), None),
        ([sent(0, 0, 5)], sent(0, 6), SequenceOutOfOrder),
        ([sent(0, 0, 5)], sent(0, 4), SequenceOutOfOrder),
        ([sent(0, INT_MAX)], sent(0, 0), None),
        ([sent(0, INT_MAX - 1, 3)], sent(0, 1), None),
        ([sent(0, 0)], sent(1, 0), None),
        ([sent(0, 0)], sent(1, 1), SequenceOutOfOrder),
        ([sent(1, 0)], sent(0, 1), ProducerFenced),
    ],
)
def test_which_sequence_a_producer_goes_on_with(
    before: list[BatchHeader], after: BatchHeader, error: type[Exception] | None
) -> None:
    states = ProducerStates()
    for header in before:
        states.update(header)
    if error is None:
        states.check(after)
    else:
        with pytest.raises(error):
            states.check(after)


def test_batches_of_one_append_follow_each_other() -> None:
    states = ProducerStates()
    states.check_all([sent(0, 3, 2), sent(0, 5), headers_of(batch())[0], sent(0, 6)])
    with pytest.raises(SequenceOutOfOrder, match="sequence 6 after 4"):
        states.check_all([sent(0, 3, 2), sent(0, 6)])


def test_a_snapshot_keeps_each_producers_last_batch() -> None:
    states = ProducerStates()
    for sequence in range(4):
        states.update(sent(2, sequence))
    data = states.encode()
    again = ProducerStates.decode("snapshot", data)
    assert again.encode() == data
    assert again.duplicate_of(sent(2, 3)) is not None
    assert again.duplicate_of(sent(2, 2)) is None
    again.check(sent(2, 4))
    for broken in (data[:-1], data[:8], data[:20] + b"\x77" + data[21:], b"\x00\x07" + data[2:]):
        with pytest.raises(CorruptLog):
            ProducerStates.decode("snapshot", broken)


def test_a_producer_that_is_silent_is_forgotten() -> None:
    states = ProducerStates()
    states.update(sent(0, 0))
    states.expire(START_MS + 999, 1000)
    assert len(states) == 1
    states.expire(START_MS + 1000, 1000)
    assert len(states) == 0


def test_settings_are_read_under_kafkas_names() -> None:
    settings = LogSettings.from_broker(
        {"log.segment.bytes": "5000", "log.retention.hours": "2", "log.retention.minutes": "3", "log.roll.hours": "1"}
    )
    assert (settings.segment_bytes, settings.retention_ms, settings.roll_ms) == (5000, 180_000, 3_600_000)
    topic = settings.with_topic(
        {"segment.ms": "7", "message.timestamp.type": "LogAppendTime", "min.insync.replicas": "2"}
    )
    assert (topic.roll_ms, topic.segment_bytes, topic.log_append_time) == (7, 5000, True)
    assert LogSettings.from_broker({"log.retention.hours": "-1"}).retention_ms == -1


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"log.segment.bytes": "13"}, "log.segment.bytes=13: expected 14 to"),
        ({"log.roll.ms": "x"}, "log.roll.ms=x: expected a whole number"),
        ({"log.message.timestamp.type": "Never"}, "expected CreateTime or LogAppendTime"),
    ],
)
def test_a_setting_out_of_range_is_named(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LogSettings.from_broker(properties)


def test_a_topic_id_of_another_length_is_refused() -> None:
    with pytest.raises(CorruptLog, match="expected 16 bytes"):
        decode_topic_id("metadata", b"version: 0\ntopic_id: AAAA")


@pytest.mark.parametrize(
    ("decode", "entry"),
    [
        (decode_offsets, f"t 0 {2**63 - 2**31 + 1}"),
        (decode_offsets, f"t {2**31} 0"),
        (decode_epochs, f"{2**31} 0"),
        (decode_epochs, f"0 {2**63 - 2**31 + 1}"),
    ],
)
def test_numbers_in_checkpoints_that_no_answer_can_hold_are_refused(decode: Callable[..., object], entry: str) -> None:
    with pytest.raises(CorruptLog, match="expected at most"):
        decode("checkpoint", f"0\n1\n{entry}\n".encode())


@pytest.mark.parametrize(
    ("decode", "text"), [(decode_offsets, b"0\n2\nt 0 7\nt 25 21\n"), (decode_epochs, b"0\n2\n0 0\n3 21\n")]
)
def test_a_checkpoint_that_is_cut_off_anywhere_is_refused(decode: Callable[..., object], text: bytes) -> None:
    """Also within the last number, where what is left is a number too: a recovery point of 2 in place of 21."""
    decode("checkpoint", text)
    for size in range(len(text)):
        with pytest.raises(CorruptLog):
            decode("checkpoint", text[:size])


def test_a_segments_jitter_is_less_than_both_limits_and_its_own() -> None:
    settings = LogSettings(roll_ms=1000, roll_jitter_ms=600)
    drawn = [roll_jitter_ms("/logs/t-0", base, settings) for base in range(500)]
    assert min(drawn) < 20
    assert 580 < max(drawn) < 600
    assert drawn == [roll_jitter_ms("/logs/t-0", base, settings) for base in range(500)], "the same after a restart"
    assert roll_jitter_ms("/logs/t-0", 7, settings) != roll_jitter_ms("/logs/t-1", 7, settings)
    assert max(roll_jitter_ms("/logs/t-0", base, replace(settings, roll_ms=100)) for base in range(500)) < 100
    assert roll_jitter_ms("/logs/t-0", 7, LogSettings()) == 0


def test_a_segment_is_rolled_earlier_by_its_jitter() -> None:
    assert roll_reason(Facts(), 100, 10, -1, SETTINGS, 41, jitter_ms=10) is RollReason.AGE
    assert roll_reason(Facts(), 100, 10, -1, SETTINGS, 40, jitter_ms=10) is None
