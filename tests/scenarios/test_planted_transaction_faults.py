"""Faults planted in how brokers keep transactions, and in what consumers get, each found by the anomalies of a history.

In simulation, for a few seeds: a fault counts as found when any of them fails, and fails a rule that knows of it. The
same runs pass without a fault (`tests/simulator/test_runs.py`).
`python -m tests.scenarios.test_planted_transaction_faults --seeds 5` tries them all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from controller.broker.groups.group import ConsumerGroup
from controller.broker.partition import Partition
from controller.broker.records import writes
from controller.broker.transactions import store
from controller.broker.transactions.coordinator import TransactionCoordinator
from controller.broker.transactions.handlers import MarkerHandler
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from controller.protocol.transactions import WritableTxnMarker
from controller.scenarios.files import load_scenario
from controller.scenarios.records.history import FINAL
from controller.scenarios.records.workload import ACKS_LEADER
from controller.simulator.consumer import SimulatedConsumer
from controller.simulator.run import simulate
from controller.storage.producer_states import ProducerStates
from tests.broker import test_planted_transaction_faults as of_brokers

Patch = pytest.MonkeyPatch
ZOMBIE, TIMEOUT, ONCE, CUT = "zombie-producer", "transaction-timeout", "exactly-once", "coordinator-cut"


def violations(name: str, seeds: Sequence[int]) -> set[str]:
    """The invariants that the first failing seed violates."""
    for seed in seeds:
        found = simulate(load_scenario(name, {}), seed).report.judgement.invariants
        wrong = {each.name for each in found if each.held is False}
        if wrong:
            return wrong
    return set()


def served_above_the_stable_offset(patch: Patch) -> None:
    """A leader serves committed readers up to its high watermark."""
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def first_open_transaction_forgotten(patch: Patch) -> None:
    """The last stable offset is that of the second transaction that is open."""

    def first_unstable_offset(self: ProducerStates, high_watermark: int) -> int | None:
        opened = [*self._open]
        return opened[1] if len(opened) > 1 else None

    patch.setattr(ProducerStates, "first_unstable_offset", first_unstable_offset)


def aborted_not_listed(patch: Patch) -> None:
    """A fetch of committed records does not say which transactions are aborted."""
    patch.setattr("controller.storage.log.aborted_between", lambda *_: [])


def marker_of_another_kind(patch: Patch) -> None:
    """The leader of a partition 1 writes the marker of an abort, whatever was decided."""
    right = MarkerHandler._write

    def write(self: MarkerHandler, marker: WritableTxnMarker, then: Any) -> None:
        if any(1 in topic.partition_indexes for topic in marker.topics):
            marker = WritableTxnMarker(
                marker.producer_id, marker.producer_epoch, False, marker.topics, marker.coordinator_epoch
            )
        right(self, marker, then)

    patch.setattr(MarkerHandler, "_write", write)


def marker_lost(patch: Patch) -> None:
    """The leader of a partition 1 answers that the marker of a commit is written, and writes none; the next marker of
    the producer ends both transactions."""
    right = MarkerHandler._write

    def write(self: MarkerHandler, marker: WritableTxnMarker, then: Any) -> None:
        lost = marker.transaction_result and any(1 in topic.partition_indexes for topic in marker.topics)
        if not lost:
            right(self, marker, then)
            return
        well = tuple(
            ProduceTopicResult(
                topic.name,
                tuple(ProducePartitionResult(index, ErrorCode.NONE, -1, -1, 0) for index in topic.partition_indexes),
            )
            for topic in marker.topics
        )
        then(ProduceResponse(well))

    patch.setattr(MarkerHandler, "_write", write)


def former_epoch_accepted(patch: Patch) -> None:
    """A partition's leader takes records of a former epoch of their producer."""
    patch.setattr(ProducerStates, "check", lambda self, header, position=0: None)


def timeout_commits(patch: Patch) -> None:
    """What a producer has left open is committed when its place is taken, or its time is up."""
    right = TransactionCoordinator._end

    def end(self: Any, name: str, producer_id: int, epoch: int, commits: bool, answer: Any, *, by_client: bool) -> None:
        right(self, name, producer_id, epoch, commits or not by_client, answer, by_client=by_client)

    patch.setattr(TransactionCoordinator, "_end", end)


def offsets_of_aborted_count(patch: Patch) -> None:
    """The group's coordinator takes the offsets of an aborted transaction."""
    right = ConsumerGroup.end_transaction
    patch.setattr(
        ConsumerGroup, "end_transaction", lambda self, producer_id, *, commits: right(self, producer_id, commits=True)
    )


def offsets_of_committed_lost(patch: Patch) -> None:
    """The group's coordinator drops the offsets of a committed transaction."""
    right = ConsumerGroup.end_transaction
    patch.setattr(
        ConsumerGroup, "end_transaction", lambda self, producer_id, *, commits: right(self, producer_id, commits=False)
    )


def acknowledged_elsewhere(patch: Patch) -> None:
    """A leader acknowledges the offset after the record's."""

    def result(index: int, error: Any, offset: int, *others: Any) -> ProducePartitionResult:
        return ProducePartitionResult(index, error, offset + 1 if offset >= 0 else offset, *others)

    patch.setattr(writes, "ProducePartitionResult", result)


def record_passed_over(patch: Patch) -> None:
    """A consumer does not get one record in seventeen."""
    right = SimulatedConsumer._log

    def log(self: SimulatedConsumer, place: int, offset: int, *others: Any) -> None:
        if offset % 17 != 5 or self.log.reader == FINAL:
            right(self, place, offset, *others)

    patch.setattr(SimulatedConsumer, "_log", log)


def record_given_twice(patch: Patch) -> None:
    """A consumer gets one record in seventeen again."""
    right = SimulatedConsumer._log

    def log(self: SimulatedConsumer, place: int, offset: int, *others: Any) -> None:
        for _ in range(2 if offset % 17 == 5 and self.log.reader != FINAL else 1):
            right(self, place, offset, *others)

    patch.setattr(SimulatedConsumer, "_log", log)


def decision_unreplicated(patch: Patch) -> None:
    """The coordinator counts what it has written itself, whatever its followers have."""
    patch.setattr(store, "ACKS_ALL", ACKS_LEADER)


PLANTED: Mapping[str, tuple[str, Callable[[Patch], None], set[str]]] = {
    "a leader serves above the last stable offset": (TIMEOUT, served_above_the_stable_offset, {"G1a", "G1b"}),
    "an open transaction is not counted": (TIMEOUT, first_open_transaction_forgotten, {"G1a", "G1b"}),
    "aborted transactions are not listed": (TIMEOUT, aborted_not_listed, {"G1a"}),
    "a marker of another kind": (TIMEOUT, marker_of_another_kind, {"transactions-atomic", "lost-write"}),
    "records of a former epoch": (ZOMBIE, former_epoch_accepted, {"fenced-unwritten"}),
    "what is left open is committed": (TIMEOUT, timeout_commits, {"G1a"}),
    "a marker is lost": (TIMEOUT, marker_lost, {"transactions-atomic", "lost-write", "G1a", "G1b"}),
    "offsets of aborted transactions": (ONCE, offsets_of_aborted_count, {"exactly-once"}),
    "offsets of transactions are lost": (ONCE, offsets_of_committed_lost, {"exactly-once", "offsets-atomic"}),
    "acknowledged elsewhere": (TIMEOUT, acknowledged_elsewhere, {"inconsistent-offsets"}),
    "a record is passed over": (TIMEOUT, record_passed_over, {"poll-skip", "int-poll-skip"}),
    "a coordinator alone does not fence": (ZOMBIE, of_brokers.coordinator_does_not_fence, {"fenced-unwritten"}),
    "a timeout does not abort": (TIMEOUT, of_brokers.timeout_does_not_abort, {"timeouts-abort"}),
    "a marker counts before it is replicated": (
        TIMEOUT,
        of_brokers.unreplicated_marker_counts,
        {"markers-replicated"},
    ),
    "a decision counts before it is replicated": (CUT, decision_unreplicated, {"lost-write"}),
    "a record is given twice": (TIMEOUT, record_given_twice, {"nonmonotonic-poll", "int-nonmonotonic-poll"}),
}
"""Scenario, fault, and the invariants of which at least one finds it."""

QUICK = (
    "an open transaction is not counted",
    "a marker of another kind",
    "records of a former epoch",
    "a decision counts before it is replicated",
)


@pytest.mark.parametrize("fault", QUICK)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant, expected = PLANTED[fault]
    plant(monkeypatch)
    assert violations(name, range(1)) & expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--of", default="", help="faults whose name contains this")
    arguments = parser.parse_args()
    for name in dict.fromkeys(name for fault, (name, _, _) in PLANTED.items() if arguments.of in fault):
        print(f"{name}, nothing planted: {sorted(violations(name, range(arguments.seeds)))}", flush=True)
    for fault, (name, plant, expected) in PLANTED.items():
        if arguments.of in fault:
            with pytest.MonkeyPatch.context() as patch:
                plant(patch)
                found = violations(name, range(arguments.seeds))
            print(f"{fault} ({name}): {'found' if found & expected else 'NOT FOUND'} by {sorted(found)}", flush=True)


if __name__ == "__main__":
    main()
