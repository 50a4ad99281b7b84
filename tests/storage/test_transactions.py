"""Transactions in one log: markers, the last stable offset, and the index of what was aborted."""

from __future__ import annotations

import pytest

from controller.machine.disk import MemoryDisk
from controller.storage import CoordinatorFenced, InvalidBatch, InvalidTransactionState, LogSettings, ProducerFenced
from controller.storage.log import PartitionLog
from controller.storage.log_validator import done
from controller.storage.producer_states import ProducerStates
from controller.storage.recovery import LogCheckpoint
from controller.storage.transactions import TRANSACTIONAL, AbortedRange, Marker, Origin, encode_marker
from tests.storage.batches import START_MS, Clock, batch

COMMIT, ABORT = Marker(True, 3), Marker(False, 3)
PATH = "log/00000000000000000000.txnindex"


class Transactions:
    """A log that producers write transactions to."""

    def __init__(self, settings: LogSettings | None = None) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("log")
        self.settings = settings or LogSettings()
        self.log = PartitionLog(self.disk, "log", self.settings, Clock())
        self._next: dict[int, int] = {}

    def send(self, producer: int, count: int = 1, *, epoch: int = 0) -> int:
        sequence = self._next.get(producer, 0)
        self._next[producer] = sequence + count
        data = batch(count, producer=(producer, epoch, sequence), attributes=TRANSACTIONAL)
        return self.log.append_as_leader(data, 0).base_offset

    def end(self, producer: int, marker: Marker, *, epoch: int = 0) -> int:
        data = encode_marker(producer, epoch, marker, START_MS)
        checked = done(self.log.checking(data, Origin.COORDINATOR))
        return self.log.append_checked(checked, 0, Origin.COORDINATOR).base_offset

    def aborted(self, offset: int = 0) -> list[AbortedRange]:
        return self.log.aborted_transactions(offset, self.log.log_end_offset)

    def stable(self, high_watermark: int | None = None) -> int:
        return self.log.last_stable_offset(self.log.log_end_offset if high_watermark is None else high_watermark)

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.log.close()
        known = LogCheckpoint(self.log.recovery_point, 0, clean)
        self.log = PartitionLog(self.disk, "log", self.settings, Clock(), known=known)


def test_an_open_transaction_holds_the_last_stable_offset_at_its_first_record() -> None:
    one = Transactions()
    one.log.append_as_leader(batch(2), 0)
    assert (one.send(7, 3), one.stable()) == (2, 2)
    one.log.append_as_leader(batch(1), 0)
    assert one.stable() == 2
    marker = one.end(7, COMMIT)
    assert (one.stable(marker), one.stable(marker + 1)) == (2, marker + 1), "only once its marker is replicated"
    assert one.aborted() == []


def test_the_first_of_several_open_transactions_counts() -> None:
    one = Transactions()
    one.send(1), one.send(2), one.send(1)
    one.end(1, ABORT)
    assert one.stable() == 1
    assert one.aborted() == [AbortedRange(1, 0, 3, 1)]
    one.end(2, ABORT)
    assert one.stable() == 5
    assert one.aborted() == [AbortedRange(1, 0, 3, 1), AbortedRange(2, 1, 4, 5)]
    assert one.aborted(4) == [AbortedRange(2, 1, 4, 5)]
    assert one.log.aborted_transactions(0, 1) == [AbortedRange(1, 0, 3, 1)]


def test_a_marker_without_records_ends_nothing() -> None:
    one = Transactions()
    one.end(9, ABORT)
    assert (one.aborted(), one.stable()) == ([], 1)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_is_opened_again_knows_the_same(clean: bool) -> None:
    one = Transactions(LogSettings(segment_bytes=400))
    one.send(1), one.end(1, ABORT), one.send(2), one.send(3), one.end(3, ABORT), one.send(4), one.end(4, COMMIT)
    before = one.aborted(), one.stable()
    assert len(one.log.segment_offsets) > 1
    one.reopen(clean=clean)
    assert (one.aborted(), one.stable()) == before == (one.aborted(), 2)
    one.end(2, ABORT)
    assert one.aborted()[-1] == AbortedRange(2, 2, 7, 8)
    one.reopen(clean=clean)
    assert one.aborted()[-1] == AbortedRange(2, 2, 7, 8)


def test_recovery_makes_the_index_again() -> None:
    one = Transactions()
    one.send(1), one.end(1, ABORT)
    one.log.close()
    one.disk.replace(PATH, b"\x00" * 68)
    one.reopen(clean=False)
    assert one.aborted() == [AbortedRange(1, 0, 1, 2)]


def test_what_is_truncated_is_open_again() -> None:
    one = Transactions()
    one.send(1, 2), one.end(1, ABORT), one.send(2), one.end(2, ABORT)
    one.log.truncate_to(4)
    assert one.aborted() == [AbortedRange(1, 0, 2, 3)]
    assert one.stable() == 3
    one.reopen(clean=True)
    assert one.aborted() == [AbortedRange(1, 0, 2, 3)]
    one.log.truncate_to(0)
    assert (one.aborted(), one.stable()) == ([], 0)


def test_the_index_file_is_kafkas_and_goes_with_its_segment() -> None:
    one = Transactions()
    one.send(1), one.end(1, ABORT)
    one.log.close()
    expected = b"".join(number.to_bytes(8, "big") for number in (1, 0, 1, 2))
    assert one.disk.read(PATH) == b"\x00\x00" + expected
    one.reopen(clean=True)
    one.log.restart_at(9)
    assert all(not name.endswith(".txnindex") for name in one.disk.names("log"))


def test_a_snapshot_keeps_open_transactions() -> None:
    one = Transactions()
    one.send(2), one.send(1)
    one.end(2, COMMIT)
    decoded = ProducerStates.decode("file", one.log.producers.encode())
    assert decoded.first_unstable_offset(3) == 1
    known = decoded.producer(2)
    assert known is not None
    assert (known.first_offset, known.coordinator_epoch) == (-1, 3)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    one = Transactions(LogSettings(producer_ids_max=1))
    one.send(1)
    for other in range(2, 5):
        one.log.append_as_leader(batch(producer=(other, 0, 0)), 0)
    one.log.producers.expire(START_MS * 2, 1)
    assert one.stable() == 0
    one.end(1, COMMIT)
    assert one.stable() == 5


def test_who_is_refused() -> None:
    one = Transactions()
    one.send(1)
    with pytest.raises(InvalidTransactionState):
        one.log.append_as_leader(batch(producer=(1, 0, 1)), 0)
    one.end(1, ABORT, epoch=1)  # the coordinator has fenced it
    with pytest.raises(ProducerFenced):
        one.send(1)
    with pytest.raises(ProducerFenced):
        one.end(1, COMMIT)
    with pytest.raises(CoordinatorFenced):
        one.end(1, Marker(True, 2), epoch=1)
    with pytest.raises(InvalidBatch, match="only coordinators"):
        one.log.append_as_leader(encode_marker(1, 1, COMMIT, START_MS), 0)
    with pytest.raises(InvalidBatch, match="without a producer id"):
        one.log.append_as_leader(batch(attributes=TRANSACTIONAL), 0)
    assert one.log.log_end_offset == 2
