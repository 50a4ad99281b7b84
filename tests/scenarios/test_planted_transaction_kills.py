"""Faults planted in transactions, each found by a scenario with transactional clients.

`python -m tests.scenarios.test_planted_transaction_kills` plants all of them, and prints what each scenario violates;
the suite plants some. The same runs pass without a fault (`tests.simulator.transactions`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from controller.broker.groups import coordinator as groups
from controller.broker.groups.coordinator import GroupCoordinator
from controller.broker.transactions import coordinator as coordinators
from controller.broker.transactions.coordinator import TransactionCoordinator
from controller.broker.transactions.transaction import COMPLETE
from controller.protocol.errors import ErrorCode
from controller.scenarios.files import load_scenario
from controller.simulator.run import simulate
from tests.broker import test_planted_transaction_faults as of_brokers

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
KILL, ZOMBIE, ONCE = "transaction-kill", "zombie-producer", "exactly-once"


def no_epoch_is_checked(patch: Patch) -> None:
    """Neither the coordinator nor a partition fences a producer."""
    of_brokers.coordinator_does_not_fence(patch)
    of_brokers.log_does_not_fence(patch)
    right = coordinators._end_refusal

    def any_epoch(transaction: Any, producer_id: int, epoch: int, **given: Any) -> Any:
        return right(transaction, producer_id, max(epoch, transaction.producer_epoch), **given)

    patch.setattr(coordinators, "_end_refusal", any_epoch)


def partitions_not_written(patch: Patch) -> None:
    """The partitions of a transaction are in the coordinator's memory alone."""

    def in_memory(self: TransactionCoordinator, name: str, producer: Any, partitions: Any, answer: Any) -> None:
        found = self._found(name)
        if not isinstance(found, ErrorCode) and found[1] is not None and found[1].pending is None:
            transaction = found[1]
            if transaction.state not in COMPLETE and transaction.producer_epoch == producer.epoch:
                transaction.complete(transaction.prepare_partitions(partitions, self._clock.wall_ms()))
                answer(ErrorCode.NONE)
                return
        right(self, name, producer, partitions, answer)

    right = TransactionCoordinator.add_partitions
    patch.setattr(TransactionCoordinator, "add_partitions", in_memory)


def commit_for_abort(patch: Patch) -> None:
    """A client that aborts is answered so, and its transaction is committed."""
    right = TransactionCoordinator.end

    def commits(self: TransactionCoordinator, name: str, producer: Any, *, commits: bool, answer: Any) -> None:
        right(self, name, producer, commits=True, answer=answer)

    patch.setattr(TransactionCoordinator, "end", commits)


def group_does_not_check_generations(patch: Patch) -> None:
    """TxnOffsetCommit counts whatever generation it is of."""
    patch.setattr(groups, "_transaction_refusal", lambda *_: None)


def offsets_of_transactions_lost_at_load(patch: Patch) -> None:
    """Offsets of transactions that end at the next coordinator of the group do not count."""
    patch.setattr(GroupCoordinator, "end_transaction", lambda self, index, producer_id, *, commits: None)


FAULTS: Mapping[str, tuple[Plant, str]] = {
    "a partition does not fence": (of_brokers.log_does_not_fence, ZOMBIE),
    "no epoch is checked": (no_epoch_is_checked, ZOMBIE),
    "the stable offset is off by one": (of_brokers.stable_offset_off_by_one, f"{KILL} records=1"),
    "a fetch goes up to the high watermark": (of_brokers.reads_to_the_high_watermark, KILL),
    "a marker is lost": (of_brokers.marker_lost, KILL),
    "a marker has another epoch": (of_brokers.marker_of_another_epoch, KILL),
    "an abort marker commits": (of_brokers.marker_of_another_outcome, KILL),
    "offsets count before the marker": (of_brokers.offsets_count_at_once, ONCE),
    "a decision is not carried out": (of_brokers.decision_not_carried_out, KILL),
    "partitions are not written": (partitions_not_written, KILL),
    "an abort is answered, and commits": (commit_for_abort, KILL),
    "offsets of any generation": (group_does_not_check_generations, ONCE),
    "offsets of transactions never count": (offsets_of_transactions_lost_at_load, ONCE),
}


def violations(name: str, seeds: range) -> set[str]:
    """The invariants that the first failing seed violates."""
    name, _, setting = name.partition(" ")
    settings = dict([setting.split("=")]) if setting else {}
    for seed in seeds:
        found = simulate(load_scenario(name, settings), seed).report.judgement.invariants
        wrong = {each.name for each in found if each.held is False}
        if wrong:
            return wrong
    return set()


@pytest.mark.parametrize(
    "what",
    ["no epoch is checked", "the stable offset is off by one"],
)
def test_a_planted_fault_is_found(what: str, monkeypatch: Patch) -> None:
    plant, name = FAULTS[what]
    plant(monkeypatch)
    assert violations(name, range(1))


def main(chosen: list[str]) -> int:
    missed = 0
    for what in chosen or FAULTS:
        plant, name = FAULTS[what]
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = violations(name, range(3))
        missed += not found
        print(f"{what}: {name}: {', '.join(sorted(found)) or 'NOT FOUND'}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
