"""What operators do besides creating and moving, in a drawn plan: elections asked for, configs, pauses of the
controller, topics that grow or go while their partitions move; and brokers with several log directories, one of which
fails.

Drawn from a stream of their own and added to a plan that is drawn already, so that a plan without any is the one it was
before there were any. Each kind is on in some runs, and off in most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import msgspec

from controller.simulator.plan import (
    UNCLEAN,
    AddPartitions,
    BreakLogDirectory,
    CreateTopic,
    DeleteController,
    DeleteTopic,
    ElectLeaders,
    Happening,
    Kill,
    LosePower,
    PauseController,
    Plan,
    Reassign,
    SetConfig,
)
from controller.simulator.randomness import Streams

BETWEEN_MS = (400.0, 3_000.0)
"""How far apart those of a kind are, on average; drawn for each kind of each run."""
ELECTIONS, CONFIGS, PAUSES, WHILE_MOVING = 0.25, 0.15, 0.15, 0.4
"""The chance of each kind to be on; of the last, in a run with reassignments."""
BALANCED_OFTEN = 0.15
"""The chance that the clock looks at the balance every second."""
DIRECTORIES = 0.5
"""The chance of a run with logs to have several log directories."""
BROKEN_DIRECTORY = 0.6
"""The chance of such a run that one of them fails now and then."""
BY_ZNODE = 0.3
MEANWHILE_MS = (0.0, 60.0)
WHILE_PAUSED_MS = ((20.0, 200.0), (250.0, 600.0), (250.0, 600.0))
"""How long after the beginning of a pause the controller changes, and what the pause forbids is asked for."""
MISSED_MS = (20.0, 300.0)
AT_ANY_PRICE, MOST_ASKED = 0.4, 8
LOG_DIRECTORIES = ("/logs/a", "/logs/b")


def with_operations(plan: Plan) -> Plan:
    """The plan with more of what operators do, or as it was."""
    rng = Streams(plan.seed).stream("swarm-operations")
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    settings = dict(plan.cluster.settings)
    happenings: list[Happening] = []
    if rng.random() < ELECTIONS:
        happenings += _each(rng, plan, lambda at_ms: _election(rng, plan, created, at_ms))
        happenings += _where_leaders_died(rng, plan, created)
    if rng.random() < CONFIGS:
        happenings += _each(rng, plan, lambda at_ms: _config(rng, plan, created, at_ms))
    if rng.random() < PAUSES:
        for pause in [*_each(rng, plan, lambda at_ms: _pause(rng, at_ms))]:
            happenings += [pause, *_during(rng, plan, created, pause)]
    if rng.random() < WHILE_MOVING:
        happenings += [_meanwhile(rng, each, plan) for each in plan.happenings if isinstance(each, Reassign)]
    if rng.random() < BALANCED_OFTEN:
        settings["leader.imbalance.check.interval.seconds"] = "1"
    if "log.dirs" in settings and rng.random() < DIRECTORIES:
        settings["log.dirs"] = ",".join(LOG_DIRECTORIES)
        if rng.random() < BROKEN_DIRECTORY:
            happenings += _each(rng, plan, lambda at_ms: _broken_directory(rng, plan, at_ms))
    if not happenings and settings == plan.cluster.settings:
        return plan
    return msgspec.structs.replace(
        plan,
        cluster=msgspec.structs.replace(plan.cluster, settings=settings),
        happenings=tuple(sorted((*plan.happenings, *happenings), key=lambda each: each.at_ms)),
    )


def _each(rng: Random, plan: Plan, draw: Callable[[float], Happening]) -> Iterator[Happening]:
    """One after the other, from when the first topic is there."""
    at_ms, mean_ms = 1_000.0, rng.uniform(*BETWEEN_MS)
    while (at_ms := at_ms + rng.expovariate(1.0 / mean_ms)) < plan.calm_ms:
        yield draw(round(at_ms, 1))


def _election(rng: Random, plan: Plan, created: list[CreateTopic], at_ms: float) -> Happening:
    """Never unclean where clients write: what they were promised would not hold."""
    topic = rng.choice(created)
    znode, unclean = rng.random() < BY_ZNODE, rng.random() < 0.3
    return ElectLeaders(
        at_ms=at_ms,
        topic=topic.topic,
        partition=rng.randrange(topic.partitions),
        unclean=unclean and not znode and not _is_written(plan, topic),
        znode=znode,
    )


def _config(rng: Random, plan: Plan, created: list[CreateTopic], at_ms: float) -> Happening:
    topic = rng.choice(created)
    choices = [{"min.insync.replicas": "1"}, {"min.insync.replicas": "2"}, {UNCLEAN: "true"}, {UNCLEAN: "false"}]
    config = {"retention.ms": "86400000"} if _is_written(plan, topic) else rng.choice(choices)
    return SetConfig(at_ms=at_ms, topic=topic.topic, config=config)


def _is_written(plan: Plan, topic: CreateTopic) -> bool:
    return plan.records is not None and topic.topic == plan.records.topic


def _pause(rng: Random, at_ms: float) -> Happening:
    return PauseController(at_ms=at_ms, for_ms=rng.choice((0.0, 300.0, 1_000.0, 3_000.0)))


def _during(rng: Random, plan: Plan, created: list[CreateTopic], pause: Happening) -> Iterator[Happening]:
    """A pause matters to a controller that finds it, and where somebody wants what it forbids."""
    moments = [min(plan.calm_ms, round(pause.at_ms + rng.uniform(*span), 1)) for span in WHILE_PAUSED_MS]
    topic = rng.choice(created)
    if rng.random() < 0.6:
        yield DeleteController(at_ms=moments[0])
    partition = rng.randrange(topic.partitions)
    yield ElectLeaders(at_ms=moments[1], topic=topic.topic, partition=partition)
    replicas = rng.sample(list(plan.cluster.nodes), rng.choice((1, 2, 3)))
    yield Reassign(at_ms=moments[2], topic=topic.topic, partition=partition, replicas=replicas)


def _where_leaders_died(rng: Random, plan: Plan, created: list[CreateTopic]) -> Iterator[Happening]:
    """A little after brokers are missed somebody asks for a leader at any price."""
    topics = [each for each in created if not _is_written(plan, each)]
    killed = [each for each in plan.happenings if isinstance(each, Kill | LosePower)]
    for kill in killed[:MOST_ASKED]:
        at_ms = round(kill.at_ms + plan.cluster.session_timeout_ms + rng.uniform(*MISSED_MS), 1)
        if topics and at_ms < plan.calm_ms and rng.random() < AT_ANY_PRICE:
            topic = rng.choice(topics)
            for partition in range(min(topic.partitions, 2)):
                yield ElectLeaders(at_ms=at_ms, topic=topic.topic, partition=partition, unclean=True)


def _meanwhile(rng: Random, move: Reassign, plan: Plan) -> Happening:
    """A little after a partition was sent on its way: its topic grows, or goes, or is moved by the old way too."""
    at_ms = min(plan.calm_ms, round(move.at_ms + rng.uniform(*MEANWHILE_MS), 1))
    draw = rng.random()
    written = plan.records is not None and move.topic == plan.records.topic
    if draw < 0.3:
        return AddPartitions(at_ms=at_ms, topic=move.topic, partitions=rng.randint(2, 9))
    if draw < 0.5 and not written:
        return DeleteTopic(at_ms=at_ms, topic=move.topic)
    replicas = rng.sample(list(plan.cluster.nodes), rng.choice((1, 2, 3)))
    return Reassign(at_ms=at_ms, topic=move.topic, partition=move.partition, replicas=replicas, znode=True)


def _broken_directory(rng: Random, plan: Plan, at_ms: float) -> Happening:
    return BreakLogDirectory(
        at_ms=at_ms,
        node=rng.choice(list(plan.cluster.nodes)),
        directory=rng.choice(LOG_DIRECTORIES),
        for_ms=rng.choice((500.0, 2_000.0, 4_000.0) if plan.records is not None else (0.0, 500.0, 2_000.0, 4_000.0)),
    )
