"""Each checker passes a sound run and catches the faults planted in it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from controller.scenarios.host import PartitionView, Snapshot
from controller.scenarios.invariants import INVARIANTS
from controller.trace import (
    ControllerElected,
    ControllerResigned,
    FaultInjected,
    RequestAnswered,
    RequestSent,
    TraceEvent,
)
from controller.trace_records import OBSERVER
from tests.scenarios.evidence import AFTER_KILL, SNAPSHOT, SOUND, VIEW, evidence, written

LATER = msgspec.structs.replace(
    AFTER_KILL, why="alter isr", zk_version=2, isr=(2, 3, 1), previous_isr=(2, 3), live=(1, 2, 3)
)

PLANTED: list[tuple[str, str, tuple[float, int, TraceEvent]]] = [
    ("one-writer-an-epoch", "won by 2 and by 3", (2115.0, 3, ControllerElected(2, 2, 0xC))),
    ("one-writer-an-epoch", "won after epoch", (2300.0, 3, ControllerElected(0, 2, 0xC))),
    ("one-writer-an-epoch", "which was won by 2", (2300.0, 3, LATER)),
    ("one-writer-an-epoch", "no controller", (2300.0, 3, msgspec.structs.replace(LATER, controller_epoch=9))),
    ("one-writer-an-epoch", "written in epoch 1", (2300.0, 1, msgspec.structs.replace(LATER, controller_epoch=1))),
    ("no-write-after-resignation", "resigned at", (2120.0, 2, ControllerResigned(2, "lease"))),
    ("no-write-after-resignation", "its process ended", (102.0, 1, RequestSent(1, 2, 50, "UpdateMetadata", 1, 1))),
    ("partition-states-sound", "ISR is empty", (2300.0, 2, msgspec.structs.replace(LATER, isr=(), leader=-1))),
    ("partition-states-sound", "not in the ISR", (2300.0, 2, msgspec.structs.replace(LATER, isr=(3,)))),
    ("partition-states-sound", "not within the assignment", (2300.0, 2, msgspec.structs.replace(LATER, isr=(2, 7)))),
    ("partition-states-sound", "leader epoch 0", (2300.0, 2, msgspec.structs.replace(LATER, leader_epoch=0))),
    ("partition-states-sound", "leader epoch 1", (2300.0, 2, msgspec.structs.replace(LATER, why="preferred"))),
    ("leaders-in-assignment-order", "expected 3", (2300.0, 2, msgspec.structs.replace(
        AFTER_KILL, assignment=(1, 3, 2), zk_version=2, leader_epoch=2))),
    ("leaders-in-assignment-order", "expected 1", (2300.0, 2, written(zk_version=5, leader=2))),
    ("leaders-in-assignment-order", "order kept", (2300.0, 2, msgspec.structs.replace(
        AFTER_KILL, zk_version=2, leader_epoch=2, isr=(3, 2)))),
    ("requests-in-order", "number 0 after 0", (13.0, 1, RequestSent(1, 2, 50, "UpdateMetadata", 0, 1))),
    ("requests-in-order", "RequestAnswered", (13.0, 1, RequestAnswered(1, 2, "UpdateMetadata", 0, 0))),
    ("recovered", "not seen to go", (2500.0, OBSERVER, FaultInjected("kill", "3"))),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(INVARIANTS))
def test_a_sound_run_holds(name: str) -> None:
    assert INVARIANTS[name](evidence()).held is True


@pytest.mark.parametrize(("name", "said", "event"), PLANTED, ids=[f"{name}: {said}" for name, said, _ in PLANTED])
def test_a_planted_fault_is_caught(name: str, said: str, event: tuple[float, int, TraceEvent]) -> None:
    finding = INVARIANTS[name](evidence(event))
    assert finding.held is False
    assert said in finding.detail


def test_a_process_may_act_until_the_signal_has_reached_it() -> None:
    """The fault is recorded at 100 ms, before the signal is sent; the step ends at 101 ms, when the process has."""
    acted = (100.5, 1, RequestSent(1, 2, 50, "UpdateMetadata", 1, 1))
    assert INVARIANTS["no-write-after-resignation"](evidence(acted)).held is True


def _snapshot(**changes: object) -> Snapshot:
    return replace(SNAPSHOT, **changes)  # type: ignore[arg-type]


OTHER_LEADER = replace(VIEW, leader=3)
LEADERLESS = PartitionView(leader=-1, isr=(2, 3), assignment=(1, 2, 3))


@pytest.mark.parametrize(
    ("name", "said", "snapshot"),
    [
        ("metadata-agrees", "leader 3", _snapshot(metadata={2: {("t", 0): VIEW}, 3: {("t", 0): OTHER_LEADER}})),
        ("metadata-agrees", "nothing", _snapshot(metadata={2: {("t", 0): VIEW}, 3: {}})),
        ("metadata-agrees", "no metadata", _snapshot(metadata={2: {("t", 0): VIEW}})),
        ("metadata-agrees", "ZooKeeper nothing", _snapshot(
            metadata={2: {("t", 0): VIEW}, 3: {("t", 0): VIEW, ("u", 0): VIEW}})),
        ("converged", "the controller is -1", _snapshot(controller=-1)),
        ("converged", "has no state", _snapshot(partitions={})),
        ("converged", "is live and in the ISR", _snapshot(partitions={("t", 0): LEADERLESS})),
    ],
)  # fmt: skip
def test_a_fault_in_the_last_look_is_caught(name: str, said: str, snapshot: Snapshot) -> None:
    finding = INVARIANTS[name](evidence(snapshot=snapshot))
    assert finding.held is False
    assert said in finding.detail


@pytest.mark.parametrize("name", ["metadata-agrees", "converged"])
def test_without_a_last_look_nothing_is_claimed(name: str) -> None:
    assert INVARIANTS[name](evidence(snapshot=None)).held is None


def test_a_partition_that_nobody_may_lead_is_no_violation() -> None:
    lost = PartitionView(leader=-1, isr=(1,), assignment=(1,))
    finding = INVARIANTS["converged"](evidence(snapshot=_snapshot(partitions={("t", 0): lost})))
    assert finding.held is True
    assert "1 have no live replica in sync" in finding.detail  # clients without service have this reason


def test_a_slow_recovery_and_one_that_never_came_are_caught() -> None:
    assert INVARIANTS["recovered"](evidence(bound_ms=40.0)).held is False
    unserved = tuple(event for event in SOUND if event[0] < 2150.0)
    finding = INVARIANTS["recovered"](evidence(base=unserved))
    assert finding.held is False
    assert "no complete metadata" in finding.detail


def test_an_unclean_leader_is_the_first_live_one_of_the_assignment() -> None:
    unclean = written(
        why="offline", leader=3, isr=(3,), previous_isr=(1,), live=(3, 2), assignment=(1, 3, 2), unclean=True,
        leader_epoch=2, zk_version=2, controller_epoch=2,
    )  # fmt: skip
    check = INVARIANTS["leaders-in-assignment-order"]
    assert check(evidence((2300.0, 2, unclean))).held is True
    assert check(evidence((2300.0, 2, msgspec.structs.replace(unclean, leader=2, isr=(2,))))).held is False
    assert check(evidence((2300.0, 2, msgspec.structs.replace(unclean, previous_isr=(1, 2))))).held is False, (
        "2 is in sync and lives"
    )
