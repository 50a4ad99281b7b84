"""Partitions that move in simulated clusters: while brokers and controllers go, and with faults planted in our code."""

from __future__ import annotations

import pytest

from controller.scenarios.faults import CreateTopic, Depose, Kill, Reassign, Stop
from controller.scenarios.files import parse_plan, plan_text
from controller.scenarios.language import ClusterSpec, Happening, Plan
from controller.simulator.plan_generator import draw_plan, with_reassignments
from controller.simulator.swarm import PlanRun, run_plan
from controller.trace import PartitionStateWritten
from tests.simulator import planted

LOGS = {"log.dirs": "/logs", "replica.lag.time.max.ms": "3000"}
ONE_AT_A_TIME = {"camerlengo.reassignments.in.cluster": "1"}


def plan(*happenings: Happening, settings: dict[str, str] | None = None) -> Plan:
    created = CreateTopic(at_ms=4_500.0, topic="t", partitions=2, replication_factor=2)
    return Plan(
        name="moves",
        seed=1,
        cluster=ClusterSpec(brokers=4, session_timeout_ms=1_000, settings=settings or {}),
        core=(1, 2, 3, 4),
        calm_ms=10_000.0,
        happenings=(created, *happenings),
    )


def moves(partition: int, *replicas: int, at_ms: float) -> Reassign:
    return Reassign(at_ms=at_ms, topic="t", partition=partition, replicas=list(replicas))


def last_states(run: PlanRun) -> dict[int, PartitionStateWritten]:
    return {
        record.event.partition: record.event
        for record in run.records
        if isinstance(record.event, PartitionStateWritten)
    }


@pytest.mark.parametrize("settings", [{}, LOGS, LOGS | ONE_AT_A_TIME], ids=["no logs", "logs", "one at a time"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        (),
        (Kill(at_ms=5_510.0, node=4, for_ms=1_500.0),),
        (Stop(at_ms=5_505.0, node=3, for_ms=500.0), Depose(at_ms=5_520.0, for_ms=300.0)),
    ],
    ids=["undisturbed", "a target dies", "controllers go"],
)
def test_partitions_arrive_whatever_happens_meanwhile(
    meanwhile: tuple[Happening, ...], settings: dict[str, str]
) -> None:
    run = run_plan(plan(moves(0, 4, 3, at_ms=5_500.0), moves(1, 3, 4, at_ms=5_500.5), *meanwhile, settings=settings))
    assert run.violation is None, str(run.violation)
    assert {partition: set(state.isr) for partition, state in last_states(run).items()} == {0: {3, 4}, 1: {3, 4}}


def test_a_plan_with_reassignments_is_written_and_read_again() -> None:
    moving = plan(moves(0, 4, 3, at_ms=5_500.0), Reassign(at_ms=5_600.0, topic="t", partition=0))
    assert parse_plan(plan_text(moving), "a test") == moving


def test_plans_that_draw_none_are_what_they_were() -> None:
    drawn = [draw_plan(seed) for seed in range(60)]
    without = [one for one in drawn if not any(isinstance(each, Reassign) for each in one.happenings)]
    assert 20 < len(without) < 50
    assert all(with_reassignments(one) is one for one in without)


FOUND_SOON = {
    "reassignment-leader-left-behind": 14,
    "reassignment-removed-left-running": 0,
    "reassignment-arrival-not-persisted": 0,
    "reassignment-led-by-the-targets-last": 0,
    "reassignment-no-new-epoch": 5,
}
"""By the seed that found it when last looked for."""


@pytest.mark.parametrize("fault", FOUND_SOON)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The whole table is in docs/swarm-faults.md."""
    found = planted.search(fault, range(FOUND_SOON[fault], FOUND_SOON[fault] + 12))
    assert found.violation is not None, f"not in {found.seeds} seeds"
