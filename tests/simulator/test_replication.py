"""Leaders and followers together, through elections that not all have heard of, kills, power cuts and cut links: what
was acknowledged stays, and in the calm all logs are the same. Faults planted in either side are found by some seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from controller.broker.fetcher import ReplicaFetcherManager
from controller.broker.fetcher_state import FetchedPartition, FetcherQueue, FollowerLogs
from controller.broker.partition import LeaderState, Partition
from controller.storage import EpochEnd, PartitionLog
from tests.simulator.replicating import World, run

SEEDS = range(15)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_stays_and_all_logs_become_the_same(seed: int) -> None:
    run(seed)


def test_without_trouble_records_are_with_all_replicas_at_once_and_nothing_is_cut() -> None:
    world = run(1, steps=0)
    for machine in world.machines.values():
        assert not any("truncated" in note for note in machine.trace.notes("info"))
        assert machine.trace.notes("warning") == []


def test_after_an_election_records_are_acknowledged_at_once_whoever_hears_of_it_first() -> None:
    """With Kafka's times: a follower that came before its leader must not wait for a second (docs/following.md)."""
    for seed in range(20):
        world = World(seed, settings={})
        world.pass_ms(200.0)
        world.produce(world.machines[1])
        world.pass_ms(50.0)
        world.machines[1].die(None)
        world.elect()
        hearers = world.draw.sample((2, 3), 2)
        world.send_leader_and_isr(hearers[0])
        world.pass_ms(world.draw.uniform(0.0, 10.0))
        world.send_leader_and_isr(hearers[1])
        before = len(world.acknowledged)
        world.produce(world.machines[world.leader])
        world.pass_ms(50.0)
        assert len(world.acknowledged) > before, f"seed {seed}"


Plant = Callable[[pytest.MonkeyPatch], None]


def truncation_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def agree(_: FollowerLogs, followed: FetchedPartition, leader: EpochEnd) -> None:
        followed.agreed = True

    patch.setattr(FollowerLogs, "agree", agree)


def every_follower_begins_at_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    begun = ReplicaFetcherManager._begun

    def cut_first(self: ReplicaFetcherManager, partition: Partition, log: PartitionLog) -> FetchedPartition | None:
        followed = begun(self, partition, log)
        assert followed is not None
        self._logs.cut(followed, max(partition.high_watermark, log.log_start_offset), "planted")
        return followed

    patch.setattr(ReplicaFetcherManager, "_begun", cut_first)


def answers_are_taken_whoever_leads_by_now(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetcherQueue, "asked", lambda self, key: self._followed.get(key))


def the_leader_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "high_watermark", lambda self, log_end, *_: log_end)


@pytest.mark.parametrize(
    ("plant", "likely"),
    [
        (truncation_is_skipped, 5),
        (every_follower_begins_at_its_high_watermark, 14),
        (answers_are_taken_whoever_leads_by_now, 0),
        (the_leader_waits_for_nobody, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_found(plant: Plant, likely: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`likely`: the seed that found it when last looked for; any will do."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_all((likely, *range(200)))


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run(seed)
