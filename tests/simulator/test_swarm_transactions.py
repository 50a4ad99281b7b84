"""Transactions in the swarm: clean plans hold, planted faults are found, and a drawn plan is its file."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from controller.broker.transactions.transaction import TRANSACTIONS_TOPIC
from controller.scenarios.faults import ChangeProducer, CreateTopic, Kill
from controller.scenarios.files import ScenarioError, parse_plan, plan_text
from controller.scenarios.language import Happening, Plan
from controller.simulator.plan_generator import LEDGER, TRANSACTION_COORDINATOR, draw_plan
from controller.simulator.swarm import PlanWorld, run_plan
from controller.zookeeper import paths
from tests.broker.test_planted_transaction_faults import marker_lost
from tests.simulator import test_swarm_groups


def plan(*happenings: Happening, transform: bool = False) -> Plan:
    groups = test_swarm_groups.plan(
        CreateTopic(at_ms=1_050.0, topic=LEDGER, partitions=2, replication_factor=3), *happenings
    )
    assert groups.records is not None
    records = replace(
        groups.records,
        ledger=LEDGER,
        writers=2,
        transform=transform,
        transaction_timeout_ms=2_000,
        members=2 if transform else 0,
    )
    settings = {
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
    }
    cluster = replace(groups.cluster, settings=dict(groups.cluster.settings) | settings)
    return replace(groups, records=records, cluster=cluster)


CHANGES: tuple[Happening, ...] = (
    ChangeProducer(at_ms=3_000.0, producer=0, how="die", for_ms=1_000.0),
    Kill(at_ms=4_000.0, node=TRANSACTION_COORDINATOR, for_ms=500.0),
    ChangeProducer(at_ms=6_000.0, producer=1, how="replace", for_ms=1_000.0),
    ChangeProducer(at_ms=8_000.0, producer=0, how="die"),
)


def refused_clients(world: PlanWorld) -> list[str]:
    """What is found against a run in which a writer is refused for good."""
    history, records = world.host.history(), world.records
    assert history is not None
    assert records is not None
    refused = dataclasses.replace(history, troubles=("writer-0: INVALID_PRODUCER_ID_MAPPING",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.host, "history", lambda: refused)
        return [one.invariant for one in records._troubles()]


def test_transactions_of_writers_and_of_members_are_judged() -> None:
    world = PlanWorld(plan(*CHANGES, transform=True))
    rested_ms = world.finish()
    assert refused_clients(world) == ["clients-served"]
    world.safety_checker.data_loss.broken.add(paths.partition_state(TRANSACTIONS_TOPIC, 0))
    assert refused_clients(world) == []  # found by the swarm (10539): its coordinator had lost power, and the record
    history = world.host.history()
    run = world.result(rested_ms)
    assert run.violation is None, str(run.violation)
    assert history is not None
    assert history.transactions is not None
    assert len(history.transactions.transactions) > 20
    assert len(history.transactions.incarnations) > 4
    assert len(history.transactions.offsets) > 5


def test_a_fault_in_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    marker_lost(monkeypatch)
    assert run_plan(plan(Kill(at_ms=4_000.0, node=f"leader:{LEDGER}:0", for_ms=500.0))).violation is not None


def test_a_drawn_plan_with_transactions_is_the_same_read_back() -> None:
    drawn = next(one for one in map(draw_plan, range(100)) if one.records is not None and one.records.ledger)
    assert parse_plan(plan_text(drawn), "it") == drawn
    assert any(isinstance(one, CreateTopic) and one.topic == LEDGER for one in drawn.happenings)


def test_members_that_transform_need_a_group_and_a_topic() -> None:
    wrong = plan(transform=True)
    assert wrong.records is not None
    text = plan_text(replace(wrong, records=replace(wrong.records, members=0)))
    with pytest.raises(ScenarioError, match="transform: expected members"):
        parse_plan(text, "it")
