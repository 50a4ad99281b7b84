"""What a controller moves by choice though it may not is noticed, and what it may do is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from controller.scenarios.faults import CreateTopic, Cut, ElectLeaders, Kill, PauseController, Reassign
from controller.scenarios.language import ClusterSpec, Happening, Plan
from controller.simulator.faults import paused
from controller.simulator.safety_checker import ALL_MOVED, GIVEN_BACK, AssignedReplicas, ByChoice
from controller.simulator.swarm import PlanWorld, run_plan
from controller.trace import ControllerElected, Noted, PartitionMoved, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.operations import ANY_VERSION, Check, Delete, SetData
from tests.core.driving import Cluster
from tests.simulator import planted


class Watched(ByChoice):
    """With what it found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        super().__init__(self._take)

    def _take(self, invariant: str, nodes: Sequence[int], detail: str) -> None:
        self.found.append(detail)


def topic(*, moving: bool) -> SetData:
    assignment = TopicAssignment(None, {0: (1, 2)}, adding={0: (2,)} if moving else {})
    return SetData(paths.topic("t"), encode_topic_assignment(assignment), ANY_VERSION)


def given_back(epoch: int, why: str = "preferred") -> PartitionStateWritten:
    return PartitionStateWritten(epoch, "t", 0, why, 1, 1, (1, 2), 1, (1, 2), (1, 2), (1, 2), unclean=False)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], ["t-0 (reassignment): assignment [1, 3], and the replica on broker 3 has no state"]),
        (["New"], []),
        (["New", "Offline", "DeletionStarted", "DeletionSuccessful", "NonExistent", "New"], []),
        (["New", "NonExistent"], ["t-0 (reassignment): assignment [1, 3], and the replica on broker 3 has no state"]),
    ],
)
def test_each_assigned_replica_has_a_state(steps: Sequence[str], expected: Sequence[str]) -> None:
    found: list[str] = []
    checker = AssignedReplicas(lambda invariant, nodes, detail: found.append(detail))
    checker.elected(1, ControllerElected(4, 1, 0xA))
    written = PartitionStateWritten(4, "t", 0, "offline", 1, 1, (1,), 1, (1, 2), (1, 2), (1, 2), unclean=False)
    checker.written(1, written)  # the first of the term: 1 and 2 are known from then on
    checker.moved(2, PartitionMoved(3, "t", 0, 3, "NonExistent", "New"))  # of an earlier term
    for step in steps:
        checker.moved(1, PartitionMoved(4, "t", 0, 3, "", step))
    checker.written(1, replace(written, why="reassignment", assignment=(1, 3)))
    assert found == expected


@pytest.mark.parametrize(("isr", "expected"), [((1,), False), ((1, 2), True), ((1, 1, 2), False)])
def test_who_leaves_an_assignment_is_out_of_the_isr(isr: tuple[int, ...], expected: bool) -> None:
    """A state of no sense is nobody's to change."""
    cluster, found = Cluster(), Watched()
    cluster.topic("t", {0: (1, 2)})
    cluster.state("t", 0, 1, isr)
    for replicas in ((1, 2), (1,)):
        written = encode_topic_assignment(TopicAssignment(None, {0: replicas}))
        found.committed(SetData(paths.topic("t"), written, ANY_VERSION), 1, 1, cluster.server)
    assert found.found == (["t-0 leaves broker 2, which is in the ISR [1, 2] still"] if expected else [])


@pytest.mark.parametrize(
    ("epoch", "before", "ended", "expected"),
    [
        (2, False, False, True),
        (1, False, False, False),
        (2, True, False, False),
        (2, False, True, False),
    ],
    ids=["begun in a later term", "in the term of the pause", "on its way before", "the pause is over"],
)
def test_a_reassignment_that_begins_during_a_pause(epoch: int, before: bool, ended: bool, expected: bool) -> None:
    watched = Watched()
    if before:
        watched.committed(topic(moving=True), 1, 3)
    watched.committed(paused(), 1, 3)
    if ended:
        watched.committed(Delete(paths.CONTROLLER_PAUSE, ANY_VERSION), 1, 3)
    watched.committed(topic(moving=True), epoch, 3)
    assert bool(watched.found) == expected


def test_a_topic_that_is_only_checked_is_still_there() -> None:
    """As whoever asks for its deletion checks it, while a partition of it is on its way (the swarm's seed 1218)."""
    watched = Watched()
    watched.committed(topic(moving=True), 1, 3)
    watched.committed(paused(), 1, 3)
    watched.committed(Check(paths.topic("t"), ANY_VERSION), 1, 3)
    watched.committed(topic(moving=True), 2, 3)
    assert watched.found == []


@pytest.mark.parametrize(("epoch", "why", "expected"), [(2, "preferred", 1), (1, "preferred", 0), (2, "offline", 0)])
def test_a_leader_given_back_during_a_pause(epoch: int, why: str, expected: int) -> None:
    watched = Watched()
    watched.committed(paused(), 1, 3)
    watched.state_written(3, given_back(epoch, why))
    assert len(watched.found) == expected


@pytest.mark.parametrize("moving", [True, False])
@pytest.mark.parametrize("winner", [3, 1])
def test_the_clock_gives_leaders_back_while_partitions_move(moving: bool, winner: int) -> None:
    """What a deposed controller says of itself is not held against it."""
    watched = Watched()
    watched.committed(topic(moving=moving), 1, winner)
    world = PlanWorld(plan())
    watched.noted(3, Noted("info", f"[controller 3, epoch 1] 1 {GIVEN_BACK}"), 1, winner, world.simulation.zookeeper)
    assert bool(watched.found) == (moving and winner == 3)


def plan(*happenings: Happening) -> Plan:
    created = CreateTopic(at_ms=1_500.0, topic="t", partitions=1, replication_factor=2)
    return Plan(
        name="choices",
        seed=4,
        cluster=ClusterSpec(brokers=3, session_timeout_ms=1_000, settings={"log.dirs": "/logs"}),
        core=(1, 2, 3),
        calm_ms=6_000.0,
        happenings=(created, *happenings),
    )


def test_who_is_told_that_everything_was_moved_leads_nothing() -> None:
    world = PlanWorld(plan())
    world.run_to(4_000.0)
    ((key, state),) = world.liveness_checker.partitions().items()
    watched = Watched()
    said = Noted("info", f"[controller 3, epoch 1] broker {state.leader} is shutting down")
    told = Noted("info", ALL_MOVED)
    zookeeper = world.simulation.zookeeper
    watched.noted(state.leader, told, 1, 3, zookeeper)
    assert not watched.found, "nobody has said that it is leaving"
    watched.noted(3, said, 1, 3, zookeeper)
    watched.noted(state.leader, told, 2, 3, zookeeper)
    assert not watched.found, "another controller may have elected it since"
    watched.noted(state.leader, told, 1, 3, zookeeper)
    assert f"{key[0]}-{key[1]}" in watched.found[0]


def test_a_pause_outlasts_the_calm_and_what_waits_for_its_end_may() -> None:
    """A dead leader is replaced all the same."""
    asked: list[Happening] = [
        PauseController(at_ms=2_500.0),
        Reassign(at_ms=3_000.0, topic="t", partition=0, replicas=[3, 1], znode=True),
        ElectLeaders(at_ms=3_100.0, topic="t", partition=0, znode=True),
        Kill(at_ms=3_500.0, node=2, for_ms=2_000.0),
    ]
    world = PlanWorld(plan(*asked))
    rest_ms = world.finish()
    zookeeper = world.simulation.zookeeper
    assert [zookeeper.row(path) is not None for path in (paths.REASSIGN_PARTITIONS, paths.PREFERRED_ELECTION)] == [
        True,
        True,
    ]
    run = world.result(rest_ms)
    assert run.violation is None, str(run.violation)


def test_who_was_sent_somewhere_and_is_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.FAULTS["reassignment-override-mixes"](monkeypatch)
    sent: list[Happening] = [
        Cut(at_ms=2_000.0, source=2, target=3),
        Reassign(at_ms=3_500.0, topic="t", partition=0, replicas=[2], znode=True),
        Reassign(at_ms=4_000.0, topic="t", partition=0, replicas=[1]),
    ]
    violation = run_plan(plan(*sent)).violation
    assert violation is not None
    assert violation.invariant == "acknowledged-operations"


FOUND_SOON = {
    "pause-not-looked-at": 5,
    "elects-nobody-while-paused": 11,
    "shutdown-leaves-leaders": 14,
    "reassignment-adding-left": 0,
}
"""By the seed that found it when last looked for."""


@pytest.mark.parametrize("fault", FOUND_SOON)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The whole table is in docs/swarm-faults.md."""
    found = planted.search(fault, range(FOUND_SOON[fault], FOUND_SOON[fault] + 15))
    assert found.violation is not None, f"not in {found.seeds} seeds"
