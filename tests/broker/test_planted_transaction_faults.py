"""Each fault that is planted in transactions is found by a test of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from controller.broker.groups.group import ConsumerGroup
from controller.broker.partition import Partition
from controller.broker.transactions import coordinator as coordinators
from controller.broker.transactions.coordinator import TransactionCoordinator
from controller.broker.transactions.markers import Ending, MarkerChannels
from controller.broker.transactions.transaction import TransactionMetadata
from controller.storage.producer_states import ProducerStates
from controller.storage.transactions import Marker, TransactionIndex
from statemachines.transaction import Ongoing
from tests.broker import test_transactions as of_brokers
from tests.broker.test_transactions import TransactionBroker
from tests.storage import test_transactions as of_logs

Patch = pytest.MonkeyPatch


def coordinator_does_not_fence(patch: Patch) -> None:
    right = TransactionCoordinator.add_partitions

    def any_epoch(self: TransactionCoordinator, name: str, producer: Any, partitions: Any, answer: Any) -> None:
        found = self.transaction(name)
        if isinstance(found, TransactionMetadata):
            producer = coordinators.ProducerIdAndEpoch(producer.id, found.producer_epoch)
        right(self, name, producer, partitions, answer)

    patch.setattr(TransactionCoordinator, "add_partitions", any_epoch)


def log_does_not_fence(patch: Patch) -> None:
    patch.setattr(ProducerStates, "_check_epoch", lambda self, header, producer, position: None)


def stable_offset_off_by_one(patch: Patch) -> None:
    right = ProducerStates.first_unstable_offset

    def one_more(self: ProducerStates, high_watermark: int) -> int | None:
        first = right(self, high_watermark)
        return None if first is None else first + 1

    patch.setattr(ProducerStates, "first_unstable_offset", one_more)


def reads_to_the_high_watermark(patch: Patch) -> None:
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def unreplicated_marker_counts(patch: Patch) -> None:
    def at_once(self: ProducerStates, high_watermark: int) -> int | None:
        return next(iter(self._open), None)

    patch.setattr(ProducerStates, "first_unstable_offset", at_once)


def marker_lost(patch: Patch) -> None:
    """A marker that a leader did not write counts as written."""
    right = MarkerChannels._take

    def taken(self: MarkerChannels, ending: Ending, keys: Any, errors: Any) -> None:
        for key in keys:
            ending.left.pop(key, None)
        right(self, ending, keys, errors)

    patch.setattr(MarkerChannels, "_take", taken)


def marker_of_another_epoch(patch: Patch) -> None:
    right = Ending.marker

    def earlier(self: Ending, keys: Any) -> Any:
        self.producer_epoch -= 1
        return right(self, keys)

    patch.setattr(Ending, "marker", earlier)


def marker_of_another_outcome(patch: Patch) -> None:
    right = ProducerStates.end_transaction

    def commits(self: ProducerStates, header: Any, marker: Marker) -> Any:
        return right(self, header, Marker(True, marker.coordinator_epoch))

    patch.setattr(ProducerStates, "end_transaction", commits)


def index_not_truncated(patch: Patch) -> None:
    patch.setattr(TransactionIndex, "cut", lambda self, offset: None)


def index_not_remade(patch: Patch) -> None:
    patch.setattr(TransactionIndex, "begin_anew", lambda self: None)


def timeout_does_not_abort(patch: Patch) -> None:
    patch.setattr(TransactionCoordinator, "_timed_out", lambda self, partition, transaction: None)


def offsets_count_at_once(patch: Patch) -> None:
    def at_once(self: ConsumerGroup, producer_id: int, offsets: Any) -> None:
        self.offsets.update(offsets)

    patch.setattr(ConsumerGroup, "commit_open", at_once)


def decision_not_carried_out(patch: Patch) -> None:
    """A new coordinator leaves what its predecessor has decided."""
    expect = TransactionCoordinator._expect_end

    def only_open(self: TransactionCoordinator, partition: Any) -> None:
        for transaction in partition.entries.values():
            if transaction.state is Ongoing:
                expect(self, partition, transaction)

    patch.setattr(TransactionCoordinator, "_loaded", only_open)


def open_producer_forgotten(patch: Patch) -> None:
    def any_of_them(self: ProducerStates, count: int) -> None:
        while len(self) > count:
            _, producer = self._known.popitem(last=False)
            self._open.pop(producer.first_offset, None)

    patch.setattr(ProducerStates, "keep_newest", any_of_them)


def of_broker(test: Callable[..., None], **given: Any) -> Callable[[], None]:
    return lambda: test(TransactionBroker(), **given)


FAULTS: Mapping[str, tuple[Callable[[Patch], None], Callable[[], None]]] = {
    "the coordinator does not fence": (
        coordinator_does_not_fence,
        lambda: of_brokers.test_a_zombie_is_fenced_by_its_epoch(TransactionBroker(), 2, of_brokers.FENCED),
    ),
    "a partition does not fence": (log_does_not_fence, of_logs.test_who_is_refused),
    "the stable offset is off by one": (
        stable_offset_off_by_one,
        of_logs.test_an_open_transaction_holds_the_last_stable_offset_at_its_first_record,
    ),
    "a fetch goes up to the high watermark": (
        reads_to_the_high_watermark,
        of_broker(of_brokers.test_a_transaction_from_its_beginning_to_its_end, commits=True),
    ),
    "a marker counts before it is replicated": (
        unreplicated_marker_counts,
        of_logs.test_an_open_transaction_holds_the_last_stable_offset_at_its_first_record,
    ),
    "a marker is lost": (
        marker_lost,
        of_broker(of_brokers.test_markers_go_to_the_leader_and_to_the_next_one_when_it_has_moved),
    ),
    "a marker has another epoch": (
        marker_of_another_epoch,
        of_broker(of_brokers.test_markers_go_to_the_leader_and_to_the_next_one_when_it_has_moved),
    ),
    "an abort marker commits": (
        marker_of_another_outcome,
        of_broker(of_brokers.test_a_transaction_from_its_beginning_to_its_end, commits=False),
    ),
    "the aborted index is not truncated": (index_not_truncated, of_logs.test_what_is_truncated_is_open_again),
    "the aborted index is not made again": (index_not_remade, of_logs.test_recovery_makes_the_index_again),
    "a timeout does not abort": (
        timeout_does_not_abort,
        of_broker(of_brokers.test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced),
    ),
    "offsets count before the marker": (
        offsets_count_at_once,
        of_broker(of_brokers.test_offsets_count_when_their_transaction_has_committed, commits=False, reloads=False),
    ),
    "a decision is not carried out": (
        decision_not_carried_out,
        of_broker(of_brokers.test_the_next_coordinator_carries_out_what_was_decided, commits=True),
    ),
    "a producer with an open transaction is forgotten": (
        open_producer_forgotten,
        of_logs.test_a_producer_with_an_open_transaction_is_not_forgotten,
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_planted_fault_is_found(what: str, monkeypatch: Patch) -> None:
    plant, test = FAULTS[what]
    test()
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, IndexError)):
        test()
