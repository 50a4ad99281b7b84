"""The targets with logs find what is planted where records are taken, looked through and handed out."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from controller.storage import BatchHeader, PartitionLog
from tests.fuzz.campaign import Failure, campaign
from tests.fuzz.content_targets import ContentTarget, sound_contents
from tests.fuzz.crash import Crash
from tests.fuzz.record_targets import BatchTarget, RecordTarget, record_frames, repaired, sound_batches
from tests.fuzz.targets import Target
from tests.storage.batches import START_MS


def fail(*_given: object, **_named: object) -> None:
    raise KeyError("planted")


@pytest.mark.parametrize("method", ["append_checked", "batch_for_timestamp", "read"])
def test_a_fault_on_the_way_of_a_batch_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = BatchTarget()
    assert [target.feed(one) for one in sound_batches()] == ["taken"] * len(sound_batches())
    monkeypatch.setattr(PartitionLog, method, fail)
    with pytest.raises(Crash, match="planted"):
        target.feed(sound_batches()[0])


def believed(header: BatchHeader, *_given: object) -> Generator[int, None, int]:
    """In place of `checking_records`: the header's word is taken."""
    yield 0
    return header.max_timestamp_ms


def keys_unread(_walk: object, at: int, count: int, end: int) -> int:
    """In place of the look at headers: they end where they should."""
    return end


@pytest.mark.parametrize(
    ("where", "instead"),
    [
        ("controller.storage.log_validator.checking_records", believed),
        ("controller.storage.log_validator._Walk._headers", keys_unread),
        ("controller.storage.log_validator._checked_times", lambda *_given: START_MS),
    ],
    ids=["records", "headers", "timestamps"],
)
def test_a_check_of_records_that_is_left_out_is_found(
    where: str, instead: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, instead)
    with pytest.raises(Failure, match="contents of a batch"):
        campaign(3_000, 1, [Target("contents of a batch", sound_contents(), ContentTarget().feed)])


def feed_all(target: RecordTarget, frames: list[bytes]) -> None:
    for frame in frames:
        target.feed(frame)


@pytest.mark.parametrize(
    "where",
    [
        "controller.broker.config_requests.ConfigHandler._describe",
        "controller.broker.config_requests.ConfigHandler._alter_each",
        "controller.broker.records.writes.DeleteRecordsHandler._delete",
        "controller.broker.zookeeper_services.ProducerIds._arrived",
        "controller.broker.records.list_offsets.LeaderEpochHandler._result",
    ],
)
def test_a_fault_in_a_handler_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, fail)
    with pytest.raises((Crash, KeyError), match="planted"):
        feed_all(RecordTarget(), record_frames())


def test_a_batch_is_repaired_as_far_as_it_can_be() -> None:
    (one, *_) = sound_batches()
    assert repaired(one) == one
    assert repaired(one[:60]) == one[:60]
    torn = bytes(len(one))
    assert repaired(torn)[16] == 2
    assert BatchTarget().feed(torn) == "refused"
