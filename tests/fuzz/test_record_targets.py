"""The targets with logs find what is planted where records are taken, looked through and handed out."""

from __future__ import annotations

import pytest

from controller.storage import PartitionLog
from tests.fuzz.crash import Crash
from tests.fuzz.record_targets import BatchTarget, RecordTarget, record_frames, repaired, sound_batches


def fail(*_given: object, **_named: object) -> None:
    raise KeyError("planted")


@pytest.mark.parametrize("method", ["append_checked", "offset_for_timestamp", "read"])
def test_a_fault_on_the_way_of_a_batch_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = BatchTarget()
    assert [target.feed(one) for one in sound_batches()] == ["taken"] * len(sound_batches())
    monkeypatch.setattr(PartitionLog, method, fail)
    with pytest.raises(Crash, match="planted"):
        target.feed(sound_batches()[0])


def feed_all(target: RecordTarget, frames: list[bytes]) -> None:
    for frame in frames:
        target.feed(frame)


@pytest.mark.parametrize(
    "where",
    [
        "controller.broker.configs.configs.Configs._describe",
        "controller.broker.configs.configs.Configs._alter_each",
        "controller.broker.records.delete_records.DeleteRecords._delete",
        "controller.broker.producer_ids.ProducerIds._arrived",
        "controller.broker.records.epoch_offsets.EpochOffsets._result",
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
