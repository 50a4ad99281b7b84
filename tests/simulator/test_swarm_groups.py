"""Consumer groups in the swarm: clean plans hold, planted faults are found, and what the swarm found stays fixed."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from controller.clock import VirtualClock, spawn
from controller.protocol import ApiKey, ErrorCode
from controller.protocol.client import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from controller.protocol.codec import encode_response_body
from controller.protocol.fetch import FetchPartitionData, FetchResponse, FetchTopicData
from controller.scenarios.faults import ChangeMember, CreateTopic, Kill, Pause
from controller.scenarios.files import parse_plan, plan_text
from controller.scenarios.language import ClusterSpec, Happening, Plan, PlanRecords
from controller.simulator.consumer import SimulatedConsumer
from controller.simulator.plan_generator import COORDINATOR, draw_plan
from controller.simulator.routes import NOBODY, Routes
from controller.simulator.swarm import PlanWorld, run_plan
from controller.storage.batches import Record, encode_batch
from tests.simulator.planted_groups import GROUP_FAULTS


def plan(*happenings: Happening, static: bool = False) -> Plan:
    return Plan(
        name="groups",
        seed=2,
        cluster=ClusterSpec(
            brokers=3,
            session_timeout_ms=1_000,
            settings={
                "log.dirs": "/logs",
                "replica.lag.time.max.ms": "1000",
                "group.min.session.timeout.ms": "100",
                "group.initial.rebalance.delay.ms": "0",
                "offsets.topic.num.partitions": "1",
                "offsets.topic.replication.factor": "3",
            },
        ),
        core=(1, 2, 3),
        calm_ms=9_000.0,
        records=PlanRecords(
            topic="r", rate_per_s=40.0, idempotent=True, members=3, group_session_ms=800, static_members=static
        ),
        happenings=(CreateTopic(at_ms=1_000.0, topic="r", partitions=3, replication_factor=3), *happenings),
    )


CHANGES: dict[str, tuple[Happening, ...]] = {
    "nothing": (),
    "members": (
        ChangeMember(at_ms=3_000.0, member=4, how="join"),
        ChangeMember(at_ms=4_000.0, member=0, how="die", for_ms=2_000.0),
        ChangeMember(at_ms=5_000.0, member=1, how="pause", for_ms=1_500.0),
        ChangeMember(at_ms=7_500.0, member=2, how="replace", for_ms=1_000.0),
        ChangeMember(at_ms=8_700.0, member=4, how="die"),
    ),
    "a death": (ChangeMember(at_ms=6_000.0, member=1, how="die"),),
    "coordinators": (
        Kill(at_ms=3_500.0, node=COORDINATOR, for_ms=500.0),
        Pause(at_ms=6_000.0, node=COORDINATOR, for_ms=1_700.0),
    ),
}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_group_reads_everything_and_comes_to_rest(what: str, static: bool) -> None:
    world = PlanWorld(plan(*CHANGES[what], static=static))
    rested_ms = world.finish()
    history = world.host.history()
    run = world.result(rested_ms)
    assert run.violation is None, str(run.violation)
    assert history is not None
    assert history.group is not None
    assert history.group.settled
    assert sum(bool(commit.acknowledged) for commit in history.group.commits) > 20


FOUND: dict[str, str] = {
    "group-generation-unchecked": "members",
    "group-commit-never-written": "coordinators",
    "group-offsets-lost-at-load": "coordinators",
    "group-heartbeat-never-expires": "a death",
    "group-two-leaders-of-a-group": "nothing",
}


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_in_the_coordinator_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    GROUP_FAULTS[fault](monkeypatch)
    assert run_plan(plan(*CHANGES[FOUND[fault]])).violation is not None


def test_a_drawn_plan_with_a_group_is_the_same_read_back() -> None:
    drawn = next(one for one in map(draw_plan, range(100)) if one.records is not None and one.records.members)
    assert parse_plan(plan_text(drawn), "it") == drawn
    assert any(isinstance(one, ChangeMember) for one in drawn.happenings)


def test_a_plan_without_a_group_says_nothing_of_one() -> None:
    without = plan()
    assert without.records is not None
    text = plan_text(replace(without, records=replace(without.records, members=0, group_session_ms=6_000)))
    assert "member" not in text
    assert "group_session" not in text


def test_metadata_of_an_older_leader_epoch_is_passed_over() -> None:
    """Found by the swarm: a former leader, cut off, named itself, and had less than the consumer had read."""
    routes = Routes(lambda _: pytest.fail("dialled"), VirtualClock(), Random(0), {1: ("a", 1), 2: ("b", 2)}, [("t", 0)])

    def take(leader: int, epoch: int) -> list[int]:
        partition = MetadataResponsePartition(0, 0, leader, (1, 2), (1, 2), epoch)
        brokers = tuple(MetadataResponseBroker(node, "b", 9092) for node in (1, 2))
        answer = MetadataResponse(brokers, (MetadataResponseTopic(0, "t", (partition,)),))
        routes._take(encode_response_body(ApiKey.METADATA, 9, answer))
        return routes.leaders

    assert take(1, 6) == [1]
    assert take(2, 3) == [1]
    routes.leaders = [NOBODY]
    assert take(2, 3) == [NOBODY]
    assert take(2, 7) == [2]
    (topic,) = SimulatedConsumer(0, routes)._request([0]).topics
    assert topic.partitions[0].current_leader_epoch == 7


def test_an_answer_for_a_position_that_was_set_back_is_not_read() -> None:
    """Found by the swarm: a former leader, cut off, had answered that the offset is out of range; the leader's answer
    to an earlier request then looked like a gap."""
    clock = VirtualClock()
    routes = Routes(lambda _: pytest.fail("dialled"), clock, Random(0), {}, [("t", 0)])
    consumer = SimulatedConsumer(0, routes)
    data = FetchPartitionData(0, ErrorCode.NONE, 16, encode_batch([Record(0, 0, None, b"x")]), 16, 0)
    body = encode_response_body(ApiKey.FETCH, 11, FetchResponse((FetchTopicData("t", (data,)),)))
    assert spawn(consumer._take(body, {0: 15})).result()
    assert not consumer.log.offset
    assert spawn(consumer._take(body, {0: 0})).result()
    assert list(consumer.log.offset) == [0]
