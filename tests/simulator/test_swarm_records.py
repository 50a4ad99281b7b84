"""Records and disks in the swarm: what is promised holds, what ends a promise is known, planted faults are found."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from controller.machine.disk import SimulatedDisk
from controller.scenarios.faults import BreakDisk, CreateTopic, ElectZooKeeper, Isolate, Kill, LosePower, SlowDisk
from controller.scenarios.files import ScenarioError, parse_plan, plan_text
from controller.scenarios.language import ClusterSpec, Happening, Outside, Plan, PlanRecords
from controller.scenarios.records.history import ACKNOWLEDGED, FinalRead
from controller.simulator.liveness_checker import Unmet
from controller.simulator.plan_generator import RECORDS, draw_plan
from controller.simulator.record_clients import read_to_the_end
from controller.simulator.record_run import RecordRun
from controller.simulator.safety_checker import DataLossModel
from controller.simulator.swarm import PlanWorld, run_plan
from tests.simulator.planted_records import RECORD_FAULTS


def plan(*happenings: Happening, acks: int = -1, brokers: int = 3, min_insync: int = 2) -> Plan:
    return Plan(
        name="records",
        seed=2,
        cluster=ClusterSpec(
            brokers=brokers,
            session_timeout_ms=1_000,
            settings={"log.dirs": "/logs", "replica.lag.time.max.ms": "1000"},
        ),
        core=(1, 2, 3),
        calm_ms=6_000.0,
        records=PlanRecords(topic="r", rate_per_s=40.0, acks=acks, idempotent=acks == -1, in_flight=5),
        happenings=(
            CreateTopic(
                at_ms=1_000.0,
                topic="r",
                partitions=2,
                replication_factor=3,
                config={"min.insync.replicas": str(min_insync)},
            ),
            *happenings,
        ),
    )


STRICKEN: dict[str, tuple[Happening, ...]] = {
    "nothing": (),
    "kills": (Kill(at_ms=2_500.0, node=1, for_ms=300.0), Kill(at_ms=3_000.0, node=2, for_ms=50.0)),
    "power": (LosePower(at_ms=2_500.0, node=1, for_ms=1_500.0), LosePower(at_ms=4_500.0, node=3, for_ms=1_500.0)),
    "a broken disk": (BreakDisk(at_ms=2_500.0, node=1, for_ms=1_500.0), BreakDisk(at_ms=5_000.0, node=2)),
    "slow disks": (
        SlowDisk(at_ms=2_000.0, node=1, a_change_ms=20.0),
        SlowDisk(at_ms=2_000.0, node=2, a_change_ms=90.0),
    ),
    "cut off": (Isolate(at_ms=2_500.0, node=1, for_ms=1_500.0), Kill(at_ms=3_500.0, node=2, for_ms=100.0)),
}


@pytest.mark.parametrize("what", STRICKEN)
def test_what_was_acknowledged_stays_and_producers_are_served(what: str) -> None:
    world = PlanWorld(plan(*STRICKEN[what]))
    rested_ms = world.finish()
    history = world.host.history()
    run = world.result(rested_ms)
    assert run.violation is None, str(run.violation)
    assert history is not None
    assert len(history.finals) == 2
    assert Counter(history.sends.outcome.tolist()) == {ACKNOWLEDGED: len(history.sends)}
    assert len(history.sends) > 150
    assert len(history.reads) > len(history.sends)


@pytest.mark.parametrize("acks", [1, 0])
def test_those_who_wait_for_less_are_promised_less(acks: int) -> None:
    run = run_plan(plan(*STRICKEN["power"], acks=acks))
    assert run.violation is None, str(run.violation)


def test_records_below_min_insync_are_not_waited_for_at_rest() -> None:
    """The one broker that is left can't serve whoever wants two: its clients' requests are not held against it."""
    alone = replace(plan(), core=(1,))
    run = run_plan(alone)
    assert run.violation is None, str(run.violation)


def test_a_plan_with_records_is_the_same_read_back() -> None:
    drawn = next(one for one in map(draw_plan, range(100)) if one.records is not None)
    assert parse_plan(plan_text(drawn), "it") == drawn
    assert any(isinstance(one, CreateTopic) and one.topic == RECORDS for one in drawn.happenings)
    with pytest.raises(ScenarioError, match="acks"):
        parse_plan(plan_text(plan()).replace("acks = -1", "acks = 2"), "it")


# -- the final read, with a former leader that is cut off from everybody but clients


def with_a_former_leader(outside: int, seed: int) -> Plan:
    core = tuple(node for node in (1, 2, 3) if node != outside)
    return replace(plan(), seed=seed, core=core, outside=Outside.CUT_OFF)


@pytest.mark.parametrize(("outside", "seed"), [(1, 3), (2, 2)])
def test_the_final_reader_asks_nobody_who_is_cut_off(outside: int, seed: int) -> None:
    """Found by the swarm's seed 533: it answers with a log that ends where it was cut off."""
    run = run_plan(with_a_former_leader(outside, seed))
    assert run.violation is None, str(run.violation)


def test_what_the_core_has_lost_is_found_though_others_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PlanWorld(with_a_former_leader(1, seed=3))
    judge = RecordRun.judge
    found: list[Unmet | None] = []

    async def read_after_a_loss(*read: Any) -> list[FinalRead]:
        for node in world.plan.core:
            inside = world.liveness_checker.node(node)
            assert inside is not None
            for held in inside.broker.replicas.partitions():
                assert held.log is not None
                held.log.truncate_to(held.log.log_end_offset - 1)
                held.high_watermark = held.log.log_end_offset
        return await read_to_the_end(*read)

    monkeypatch.setattr("controller.simulator.record_clients.read_to_the_end", read_after_a_loss)
    monkeypatch.setattr(RecordRun, "judge", lambda self: found.append(judge(self)))
    world.result(world.finish())
    (loss,) = found
    assert loss is not None
    assert loss.invariant in ("lost-write", "reads-kept"), loss  # a consumer had read it, too


# -- when a promise ends


def test_a_broker_that_leads_without_having_left_the_isr_breaks_the_promise() -> None:
    data_loss = DataLossModel()
    data_loss.state_written("p", (1, 2))
    data_loss.lost_power(1)
    data_loss.became_leader(2, "p")
    assert not data_loss.broken
    data_loss.became_leader(1, "p")
    assert data_loss.broken == {"p"}


def test_a_broker_that_left_the_isr_and_came_back_is_as_good_as_any() -> None:
    data_loss = DataLossModel()
    data_loss.state_written("p", (1, 2))
    data_loss.lost_power(1)
    data_loss.state_written("p", (2,))
    data_loss.state_written("p", (2, 1))
    data_loss.became_leader(1, "p")
    assert not data_loss.broken


def test_a_broker_that_lost_power_does_not_lead_on_before_it_is_registered_again() -> None:
    """Found by the swarm, and shrunk: a new controller finds the registration of the life before, and its LeaderAndIsr
    the broker that is back. It would give other records the offsets and the epoch of those that it has forgotten."""
    stricken = Plan(
        name="back too early",
        seed=1043,
        cluster=ClusterSpec(
            brokers=3,
            session_timeout_ms=2_000,
            settings={"log.dirs": "/logs", "replica.lag.time.max.ms": "1000"},
        ),
        core=(1, 2, 3),
        calm_ms=4_243.0,
        records=PlanRecords(topic="records", rate_per_s=5.0, acks=1, idempotent=False, in_flight=1),
        happenings=(
            CreateTopic(
                at_ms=782.0, topic="records", partitions=1, replication_factor=2, config={"min.insync.replicas": "1"}
            ),
            ElectZooKeeper(at_ms=3_720.5),
            LosePower(at_ms=4_117.7, node=3, for_ms=40.0),
        ),
    )
    world = PlanWorld(stricken)
    rested_ms = world.finish()
    broken = set(world.safety_checker.data_loss.broken)
    run = world.result(rested_ms)
    assert run.violation is None, str(run.violation)
    assert not broken


def test_all_of_an_isr_without_power_at_once_may_lose_and_the_swarm_knows() -> None:
    at_once = [LosePower(at_ms=4_000.0, node=node, for_ms=200.0) for node in (1, 2, 3)]
    world = PlanWorld(plan(*at_once))
    rested_ms = world.finish()
    broken = set(world.safety_checker.data_loss.broken)
    assert world.result(rested_ms).violation is None
    assert broken


# -- disks


def test_a_kill_leaves_what_was_written_and_a_loss_of_power_what_was_synced() -> None:
    disk = SimulatedDisk()
    disk.make_directory("d")
    file = disk.open("d/f")
    disk.sync_names("d")
    file.append(b"synced")
    file.sync()
    file.append(b"not")
    disk.lock("d/lock")
    disk.process_ended()
    disk.lock("d/lock")
    assert disk.read("d/f") == b"syncednot"
    for seed in range(20):
        disk.crash(random.Random(seed))
    assert disk.read("d/f")[:6] == b"synced"


def test_a_broken_disk_answers_reads_and_refuses_changes_until_it_is_mended() -> None:
    disk = SimulatedDisk()
    file = disk.open("f")
    file.append(b"before")
    disk.fail()
    assert disk.broken
    with pytest.raises(OSError, match="failed"):
        file.append(b"after")
    assert file.read_at(0, 6) == b"before"
    disk.repair()
    file.append(b"after")
    assert file.size() == 11


def test_whoever_changes_something_on_a_slow_disk_waits() -> None:
    disk = SimulatedDisk()
    waits: list[float] = []
    disk.waits = waits.append
    disk.open("f").append(b"quick")
    disk.a_change_ms = 30.0
    disk.open("f").append(b"slow")
    assert waits == [30.0]


# -- planted faults

SIMPLE = {
    "high-watermark-one-too-far": "slow disks",
    "leader-waits-for-nobody": "slow disks",
    "acknowledged-before-replication": "slow disks",
    "produce-never-completed": "nothing",
    "consumers-read-to-the-end": "slow disks",
}


@pytest.mark.parametrize("fault", SIMPLE)
def test_a_fault_in_the_way_of_records_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RECORD_FAULTS[fault](monkeypatch)
    assert run_plan(plan(*STRICKEN[SIMPLE[fault]])).violation is not None
