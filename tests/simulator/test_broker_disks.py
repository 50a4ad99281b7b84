"""Simulated brokers that hold records: the scenarios pass as without logs, a seed is a run, and a disk outlives its
broker's lives but for what was not synced."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from controller.broker.request_context import Job, Steps
from controller.clock import Future, VirtualClock
from controller.machine.disk import SimulatedDisk, SlowedDevice
from controller.protocol import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from controller.scenarios.faults import SlowDevice
from controller.scenarios.files import load_scenario
from controller.scenarios.language import Scenario
from controller.simulator import Simulation
from controller.simulator.broker_process import DeviceSteps
from controller.simulator.run import simulate
from controller.storage.batches import Record, encode_batch
from controller.storage.disk import Device
from statemachines.device_model import DeviceQueue, ssd_model


def with_logs(name: str) -> Scenario:
    scenario = load_scenario(name)
    settings = {**scenario.cluster.settings, "log.dirs": "/logs"}
    return msgspec.structs.replace(scenario, cluster=msgspec.structs.replace(scenario.cluster, settings=settings))


@pytest.mark.parametrize("name", ["broker-kill", "rolling-restart", "zookeeper-cut"])
@pytest.mark.parametrize("seed", range(2))
def test_brokers_with_logs_pass_and_a_seed_is_a_run(name: str, seed: int) -> None:
    first, again = (simulate(with_logs(name), seed) for _ in range(2))
    assert first.report.verdict == "pass", [each.detail for each in first.report.judgement.invariants if not each.held]
    assert first.trace_hash == again.trace_hash


PARTITIONS, ROLL_MS, SECONDS = 40, 8_000, 40


def rolls_by_second(jitter_ms: int) -> list[int]:
    """How many segments one broker begins in each virtual second, under a steady load on all of its partitions."""
    made = Simulation(
        1, seed=1, settings={"log.dirs": "/logs", "log.roll.ms": str(ROLL_MS), "log.roll.jitter.ms": str(jitter_ms)}
    )
    made.run_until(lambda: len(made.registered) == 1)
    assert made.answer(made.create_topic("t", PARTITIONS, 1)) == "done"
    made.run_until_rest()
    rolls, before = [], PARTITIONS
    for _ in range(SECONDS):
        for _ in range(4):
            batch = encode_batch([Record(0, made.clock.wall_ms(), None, b"value")])
            data = tuple(ProducePartition(one, batch) for one in range(PARTITIONS))
            made.ask(1, ApiKey.PRODUCE, ProduceRequest(1, 1_000, (ProduceTopic("t", data),)))
            made.run_for(250)
        node = made.node(1)
        assert node is not None
        assert node.services is not None
        logs = [log for directory in node.services.logs.directories for log in directory.logs.values()]
        now = sum(len(log.segment_offsets) for log in logs)
        rolls.append(now - before)
        before = now
    return rolls


def test_roll_jitter_spreads_the_rolls_of_partitions_that_were_created_together() -> None:
    at_once, spread = rolls_by_second(0), rolls_by_second(ROLL_MS)
    assert max(at_once) == PARTITIONS, "without jitter all partitions roll in the same second"
    assert max(spread) <= PARTITIONS / 2
    assert sum(one > 0 for one in spread) >= 3 * sum(one > 0 for one in at_once)


def test_a_slow_device_slows_its_own_partitions_alone() -> None:
    """Each append is flushed. Those on the slow device wait for one another; past the limit they have no answer."""
    settings = {
        "log.dirs": "/logs/a,/logs/b",
        "log.flush.interval.messages": "1",
        "camerlengo.device.timeout.ms": "1000",
    }
    made = Simulation(1, seed=1, settings=settings)
    made.run_until(lambda: len(made.registered) == 1)
    assert made.answer(made.create_topic("t", 2, 1)) == "done"
    made.run_until_rest()
    node = made.node(1)
    assert node is not None
    assert node.services is not None
    slow, fast = (next(index for _, index in directory.logs) for directory in node.services.logs.directories)

    def produced(index: int) -> Future[Any]:
        batch = encode_batch([Record(0, made.clock.wall_ms(), None, b"value")])
        part = ProduceTopic("t", (ProducePartition(index, batch),))
        return made.ask(1, ApiKey.PRODUCE, ProduceRequest(1, 10_000, (part,)), timeout_ms=20_000.0)

    def error_and_ms(pending: Future[Any]) -> tuple[ErrorCode, float]:
        began_ms = made.now_ms
        response = made.answer(pending)
        return ErrorCode(response.responses[0].partition_responses[0].error_code), made.now_ms - began_ms

    assert error_and_ms(produced(slow))[1] < 50.0
    made.inject(SlowDevice(at_ms=made.now_ms, node=1, directory="/logs/a", a_seek_ms=200.0))
    made.run_for(1)
    waiting = [produced(slow) for _ in range(3)]
    for _ in range(5):
        error, took_ms = error_and_ms(produced(fast))
        assert error is ErrorCode.NONE
        assert took_ms < 50.0
    outcomes = [error_and_ms(one) for one in waiting]
    assert [error for error, _ in outcomes] == [ErrorCode.NONE] * 3, outcomes
    assert sum(took_ms for _, took_ms in outcomes) > 200.0
    made.inject(SlowDevice(at_ms=made.now_ms, node=1, directory="/logs/a", a_seek_ms=3_000.0, for_ms=2_000.0))
    made.run_for(1)
    error, took_ms = error_and_ms(produced(slow))
    assert error is ErrorCode.KAFKA_STORAGE_ERROR
    assert 1_000.0 <= took_ms < 1_100.0
    made.run_for(4_000)
    assert error_and_ms(produced(slow))[0] is ErrorCode.NONE
    log = node.services.logs.get("t", slow)
    assert log is not None
    assert log.recovery_point == log.log_end_offset == 6


def test_jobs_behind_those_that_end_with_a_slow_device_do_not_overtake_them() -> None:
    disk, clock = SimulatedDisk(), VirtualClock()
    device = disk.devices["/logs"] = SlowedDevice(DeviceQueue("/logs", ssd_model()))
    steps = DeviceSteps(disk, clock, clock.now_ms, 1_000.0)
    done: list[int] = []

    def each(number: int) -> Steps:
        yield Job(partial(done.append, number), Device("/logs"))

    steps.drive(each(1))
    steps.drive(each(2))
    device.end()
    disk.let_go("/logs")
    steps.drive(each(3))
    clock.advance_to(clock.now_ms())
    assert done == [1, 2, 3]
    assert not disk.devices
    steps.drive(each(4))
    assert done == [1, 2, 3, 4], "takes no time"


def test_repaired_disks_have_no_slow_device() -> None:
    """At the calm of a swarm run, which may come before the end of the fault."""
    disk = SimulatedDisk()
    disk.a_change_ms, disk.devices["/logs"] = 5.0, SlowedDevice(DeviceQueue("/logs", ssd_model()))
    disk.repair()
    assert (disk.a_change_ms, disk.devices) == (0.0, {})
