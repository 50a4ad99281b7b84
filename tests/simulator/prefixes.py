"""Operations of several steps on a whole simulated cluster, and the death of the controller after each of its writes.

`carried_out` gives what the cluster is in the end; with `strike` the controller is killed so many milliseconds after
its n-th write: before it can hear that it was made (0), or when it has said so to brokers. Another one goes on, whoever
asked asks again, and the one that was killed comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.clock import Future, spawn
from controller.core.channels import PeerError
from controller.protocol import ApiKey, ErrorCode
from controller.protocol.admin import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeaturesRequest
from controller.scenarios.faults import BreakLogDirectory, ElectLeaders, Reassign, SetConfig
from controller.simulator import Simulation
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    FeatureZnode,
    TopicAssignment,
    decode_feature,
    decode_topic_assignment,
    encode_feature,
    encode_topic_assignment,
)
from controller.zookeeper.operations import ANY_VERSION, Create, SetData, Write
from tests.simulator.stories import Operator

BROKERS = CONTROLLER, A, B, C = (1, 2, 3, 4)
"""Partitions are on A, B and C alone, so that the controller's death moves none of them."""
GIVEN = (("t", 0), ("t", 1))
"""Others' assignments are drawn by whoever is controller."""
SEED = 5
DEAD_MS = 500.0
UNCLEAN = "unclean.leader.election.enable"
REBALANCE = "auto.leader.rebalance.enable"
QUIET = {REBALANCE: "false"}
Answers = list[Future[Any]]


@dataclass(frozen=True, slots=True)
class Strike:
    """At the `at`-th write of the controller's from when the operation began, and how long after it."""

    at: int
    after_ms: float


@dataclass(frozen=True, slots=True)
class Operation:
    """`prepare` gives a world's state to begin from, `begin` asks for it, and `finish` is what has to be so before the
    end is looked at (brokers that are dead by design come back)."""

    name: str
    begin: Callable[[Simulation], Answers]
    prepare: Callable[[Simulation], None] = lambda _world: None
    finish: Callable[[Simulation], None] = lambda _world: None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """Of each partition its assignment (of a drawn one, how many it has), whether the first of it leads, and which of
    the assignment are in the ISR, by place; of the cluster its finalized features."""

    partitions: Mapping[tuple[str, int], tuple[tuple[int, ...] | int, bool, frozenset[int]]]
    features: Mapping[str, Mapping[str, int]]


def made(operation: Operation) -> Simulation:
    """t-0 on A and B, t-1 on B and C; broker 1 is the controller."""
    settings = {**QUIET, **operation.settings}
    world = Simulation(len(BROKERS), seed=SEED, session_timeout_ms=1_000, settings=settings, start=False)
    world.safety_checker.unclean_topics = frozenset({"t"})
    world.start(CONTROLLER)
    world.run_until(lambda: world.controller == CONTROLLER)
    for broker in (A, B, C):
        world.start(broker)
    world.run_until(lambda: len(world.registered) == len(BROKERS))
    assignment = TopicAssignment(None, {0: (A, B), 1: (B, C)})
    Operator(world).write(Create(paths.topic("t"), encode_topic_assignment(assignment)))
    world.run_until(lambda: len(world.partitions()) == len(assignment.partitions))
    world.run_until_rest()
    operation.prepare(world)
    return world


def reassign(world: Simulation, partition: int, replicas: Sequence[int]) -> Reassign:
    return Reassign(at_ms=world.now_ms, topic="t", partition=partition, replicas=list(replicas))


def elect(world: Simulation, partition: int, *, unclean: bool = False, znode: bool = False) -> ElectLeaders:
    return ElectLeaders(at_ms=world.now_ms, topic="t", partition=partition, unclean=unclean, znode=znode)


def moving(world: Simulation) -> dict[str, object]:
    found: dict[str, object] = {}
    for topic in world.zookeeper.children(paths.BROKER_TOPICS) or ():
        row = world.zookeeper.row(paths.topic(topic))
        assert row is not None
        assignment = decode_topic_assignment(row.path, row.data)
        if assignment.adding or assignment.removing:
            found[topic] = (assignment.adding, assignment.removing)
    return found


def carried_out(operation: Operation, strike: Strike | None = None) -> tuple[End, int]:
    """The end, and how many writes controllers made until the operation was over."""
    world = made(operation)
    count = 0

    def committed(by: int, writes: Sequence[Write]) -> None:
        nonlocal count
        world.safety_checker._committed(by, writes)
        if by != world.safety_checker._winner:
            return
        count += 1
        if strike is not None and count == strike.at:
            victim = world.safety_checker._nodes[by]
            world.clock.call_later(strike.after_ms, lambda: world.kill(victim, for_ms=DEAD_MS))

    world.zookeeper.on_commit(committed)
    for answer in operation.begin(world):
        world.answer(answer)
    world.run_for(100)
    world.run_until_rest()
    writes = count
    operation.finish(world)
    world.run_until(lambda: len(world.registered) == len(BROKERS) and not moving(world))
    if operation.settings.get(REBALANCE) == "true":
        world.run_until(lambda: all(found.leader == found.assignment[0] for found in world.partitions().values()))
    world.run_until_rest()
    return end_of(world), writes


def end_of(world: Simulation) -> End:
    partitions = {
        one: (
            found.assignment if one in GIVEN else len(found.assignment),
            found.leader == found.assignment[0],
            frozenset(found.assignment.index(broker) for broker in found.isr),
        )
        for one, found in world.partitions().items()
    }
    row = world.zookeeper.row(paths.FEATURE)
    assert row is not None
    return End(partitions, decode_feature(row.path, row.data).features)


# -- what is prepared


def t0_led_by_the_other(world: Simulation) -> None:
    world.kill(A, for_ms=DEAD_MS)
    world.run_until(lambda: world.partitions()["t", 0].leader == B)
    world.run_until(lambda: A in world.partitions()["t", 0].isr)
    world.run_until_rest()


def t0_waits_for_a_dead_target(world: Simulation) -> None:
    """Sent to A and C, of which C stands still, and dies."""
    world.pause(C)
    world.answer(world.inject(reassign(world, 0, (A, C))))
    assert moving(world)
    world.kill(C)
    world.run_until(lambda: C not in world.registered)
    world.run_for(500)


def t0_without_its_isr(world: Simulation) -> None:
    """A, alone in the ISR, is dead; B lives."""
    world.kill(B)
    world.run_until(lambda: world.partitions()["t", 0].isr == (A,))
    world.kill(A)
    world.run_until(lambda: world.partitions()["t", 0].leader == -1)
    world.start(B)
    world.run_until(lambda: B in world.registered)
    world.run_for(200)


def a_finalized_feature(world: Simulation) -> None:
    data = encode_feature(FeatureZnode(features={"f": {"min_version_level": 1, "max_version_level": 3}}))
    Operator(world).write(SetData(paths.FEATURE, data, ANY_VERSION))


def comes_back(broker: int) -> Callable[[Simulation], None]:
    return lambda world: world.start(broker)


# -- how it is asked for


def happens(happening: Callable[[Simulation], Any]) -> Callable[[Simulation], Answers]:
    return lambda world: [world.inject(happening(world))]


def until_told(key: ApiKey, request: Any, enough: tuple[ErrorCode, ...]) -> Callable[[Simulation], Answers]:
    """Asks whoever is controller, again and again, until it is done, or was done before."""

    async def ask(world: Simulation) -> None:
        while True:
            try:
                if world.controller is not None:
                    answer = await world.ask(world.controller, key, request)
                    if answer.error_code == ErrorCode.NONE and {one.error_code for one in answer.results} <= set(
                        enough
                    ):
                        return
            except PeerError:
                pass  # its broker is gone; the next one is asked
            await world.clock.sleep(50.0)

    return lambda world: [spawn(ask(world))]


def kills(*brokers: int) -> Callable[[Simulation], Answers]:
    def kill(world: Simulation) -> Answers:
        for broker in brokers:
            world.kill(broker, for_ms=DEAD_MS)
        return []

    return kill


def expires(broker: int) -> Callable[[Simulation], Answers]:
    def expire(world: Simulation) -> Answers:
        world.expire(broker)
        return []

    return expire


def stops(broker: int) -> Callable[[Simulation], Answers]:
    def stop(world: Simulation) -> Answers:
        world.stop(broker, for_ms=DEAD_MS)
        return []

    return stop


def to(*replicas: int) -> Callable[[Simulation], Answers]:
    """t-0 is sent there; nowhere: back where it was."""
    return happens(lambda world: reassign(world, 0, replicas))


WITHOUT_F = UpdateFeaturesRequest((FeatureUpdate("f", 0, upgrade_type=SAFE_DOWNGRADE),))
BALANCED = {REBALANCE: "true", "leader.imbalance.check.interval.seconds": "1"}
LOGS = {"log.dirs": "/logs/a,/logs/b", "replica.lag.time.max.ms": "1000"}

OPERATIONS = (
    Operation("failover", kills(CONTROLLER, A), settings=BALANCED),
    Operation("broker failure and return", kills(A), settings=BALANCED),
    Operation("ISR change", expires(B), settings=BALANCED),
    Operation("topic creation", lambda world: [world.create_topic("new", 2, 3)], settings=BALANCED),
    Operation("topic deletion", lambda world: [world.delete_topic("t")]),
    Operation("partition addition", lambda world: [world.add_partitions("t", 3)], settings=BALANCED),
    Operation("reassignment that adds", to(A, B, C)),
    Operation("reassignment that removes", to(A)),
    Operation("reassignment that reorders", to(B, A)),
    Operation("reassignment to others", to(C)),
    Operation("cancellation", to(), t0_waits_for_a_dead_target, comes_back(C), LOGS),
    Operation("override", to(B), t0_waits_for_a_dead_target, comes_back(C), LOGS),
    Operation("preferred election", happens(lambda world: elect(world, 0)), t0_led_by_the_other),
    Operation("preferred election by znode", happens(lambda world: elect(world, 0, znode=True)), t0_led_by_the_other),
    Operation(
        "unclean election", happens(lambda world: elect(world, 0, unclean=True)), t0_without_its_isr, comes_back(A)
    ),
    Operation(
        "config change",
        happens(lambda world: SetConfig(at_ms=world.now_ms, topic="t", config={UNCLEAN: "true"})),
        t0_without_its_isr,
        comes_back(A),
        LOGS,
    ),
    Operation("controlled shutdown", stops(A), settings=BALANCED),
    Operation(
        "log directory failure",
        happens(lambda world: BreakLogDirectory(at_ms=world.now_ms, node=A, directory="/logs/a", for_ms=3_000.0)),
        settings={**BALANCED, **LOGS},
    ),
    Operation(
        "feature update",
        until_told(ApiKey.UPDATE_FEATURES, WITHOUT_F, (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)),
        a_finalized_feature,
    ),
)
