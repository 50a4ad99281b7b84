"""Reassignments in a drawn plan: partitions sent to other brokers, on to others while they are on their way, and back.

Drawn from a stream of their own and added to a plan that is drawn already, so that a plan without any is the one it
was before there were any.
"""

from __future__ import annotations

from random import Random

import msgspec

from controller.simulator.plan import CreateTopic, Happening, Plan, Reassign
from controller.simulator.randomness import Streams

ON = 0.4
"""The chance of a run to have any."""
BETWEEN_MS = (250.0, 2_500.0)
"""How far apart they are, on average; drawn for each run."""
BACK = 0.2
"""The chance of one to take a partition back where it was."""
ONE_AT_A_TIME = 0.25
"""The chance that one partition alone may gain replicas: the others wait in ZooKeeper."""


def with_reassignments(plan: Plan) -> Plan:
    """The plan with reassignments of the topics that it creates, or as it was."""
    rng = Streams(plan.seed).stream("swarm-reassignments")
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    if rng.random() >= ON or not created:
        return plan
    settings = dict(plan.cluster.settings)
    if rng.random() < ONE_AT_A_TIME:
        settings["camerlengo.reassignments.in.cluster"] = "1"
    happenings: list[Happening] = [*plan.happenings]
    at_ms, mean_ms = min(each.at_ms for each in created), rng.uniform(*BETWEEN_MS)
    while True:
        at_ms += rng.expovariate(1.0 / mean_ms)
        if at_ms >= plan.calm_ms:
            break
        happenings.append(_reassign(rng, round(at_ms, 1), rng.choice(created), plan.cluster.brokers))
    return msgspec.structs.replace(
        plan,
        cluster=msgspec.structs.replace(plan.cluster, settings=settings),
        happenings=tuple(sorted(happenings, key=lambda each: each.at_ms)),
    )


def _reassign(rng: Random, at_ms: float, topic: CreateTopic, brokers: int) -> Reassign:
    """Choose among few partitions, so that a partition is moved again while it is being reassigned."""
    wanted = [] if rng.random() < BACK else rng.sample(range(1, brokers + 1), rng.choice((1, 2, 2, 3)))
    return Reassign(at_ms=at_ms, topic=topic.topic, partition=rng.randrange(min(topic.partitions, 2)), replicas=wanted)
