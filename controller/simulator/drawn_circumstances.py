"""Circumstances that a drawn plan hardly ever has by chance, each put together from several happenings:

    late requests      brokers return and partitions move while links are slow and break at one end: a request arrives
                       after those that were sent later over another connection
    unclean elections  the last member of an ISR dies before the others are back, and an unclean election is asked for:
                       two or more live replicas, none of them in sync
    the pause's end    the controller is paused until some seconds after the calm, while a reassignment waits
    registrations      a broker's registration changes while a new controller reads it
    stray ISRs         requests for ISRs as by leaders that do not ask for them (`stray_isrs.py`)

Each is drawn from a stream of its own and added to a plan that is drawn already, so that the plans of other seeds stay
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType

import msgspec

from controller.simulator.plan import (
    AskIsr,
    ChangeRegistration,
    CreateTopic,
    DeleteController,
    ElectLeaders,
    Happening,
    Kill,
    PauseController,
    Plan,
    Reassign,
    Reset,
    Slow,
)
from controller.simulator.randomness import Streams

ON = 0.06
"""The chance of a run to have one of them, each."""
UNCLEAN_TOPIC = "unclean"
SLOWER = 8.0
RESETS_EACH_MS = 18.0
WINDOW_MS = 900.0
LATE_MS = (150.0, 400.0)
RETURN_APART_MS = (30.0, 300.0)
AFTER_CALM_MS = (4_000.0, 10_000.0)
READ_WITHIN_MS = 12.0
"""About how long a new controller takes until it has read the registrations."""


def with_circumstances(plan: Plan) -> Plan:
    """Return the plan with some of them, or as it was."""
    happenings: list[Happening] = []
    for name, draw in CIRCUMSTANCES.items():
        rng = Streams(plan.seed).stream(f"swarm-{name}")
        if rng.random() < ON:
            happenings += draw(rng, plan)
    if not happenings:
        return plan
    return msgspec.structs.replace(
        plan, happenings=tuple(sorted((*plan.happenings, *happenings), key=lambda each: each.at_ms))
    )


def _late_requests(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Two brokers return one after the other, so that a leader asks for two ISRs in one leader epoch; partitions move,
    which raises leader epochs in quick succession."""
    nodes, session_ms = list(plan.cluster.nodes), plan.cluster.session_timeout_ms
    links = [(source, target) for source in nodes for target in nodes]
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    began_ms = 1_500.0
    while (back_ms := began_ms + session_ms) + WINDOW_MS < plan.calm_ms:
        apart_ms = rng.uniform(*RETURN_APART_MS)
        for place, node in enumerate(rng.sample(nodes, 2)):
            yield Kill(at_ms=_rounded(began_ms + place * apart_ms), node=node, for_ms=_rounded(session_ms * 0.9))
        for source, target in links:
            yield Slow(at_ms=_rounded(back_ms), source=source, target=target, slower=SLOWER, for_ms=_rounded(WINDOW_MS))
        for _ in range(3):
            topic = rng.choice(created)
            yield Reassign(
                at_ms=_rounded(back_ms + rng.uniform(0.0, WINDOW_MS)),
                topic=topic.topic,
                partition=rng.randrange(topic.partitions),
                replicas=rng.sample(nodes, min(3, len(nodes))),
            )
        at_ms = back_ms
        while (at_ms := at_ms + rng.expovariate(1.0 / RESETS_EACH_MS)) < back_ms + WINDOW_MS:
            source, target = rng.choice(links)
            yield Reset(at_ms=_rounded(at_ms), source=source, target=target, late_ms=rng.choice(LATE_MS))
        began_ms = back_ms + WINDOW_MS


def _unclean_elections(rng: Random, plan: Plan) -> Iterator[Happening]:
    nodes, session_ms = list(plan.cluster.nodes), plan.cluster.session_timeout_ms
    latest_ms = plan.calm_ms - 3.2 * session_ms - 600.0
    if latest_ms < 1_200.0:
        return
    at_ms = rng.uniform(1_200.0, latest_ms)
    last = rng.choice(nodes)
    replicas = min(3, len(nodes))
    yield CreateTopic(at_ms=_rounded(at_ms - 600.0), topic=UNCLEAN_TOPIC, partitions=4, replication_factor=replicas)
    for node in nodes:
        if node != last:
            yield Kill(at_ms=_rounded(at_ms), node=node, for_ms=_rounded(1.5 * session_ms))
    yield Kill(at_ms=_rounded(at_ms + 1.4 * session_ms), node=last)
    asked_ms = at_ms + 2.5 * session_ms
    while (asked_ms := asked_ms + 150.0) < min(at_ms + 3.2 * session_ms + 500.0, plan.calm_ms):
        for partition in range(4):
            yield ElectLeaders(at_ms=_rounded(asked_ms), topic=UNCLEAN_TOPIC, partition=partition, unclean=True)


def _pause_end(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Only brokers that are in the core are named, so that the reassignment can complete."""
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    at_ms = plan.calm_ms - rng.uniform(300.0, 1_500.0)
    yield PauseController(at_ms=_rounded(at_ms), after_calm_ms=_rounded(rng.uniform(*AFTER_CALM_MS)))
    for _ in range(3):
        topic = rng.choice(created)
        yield Reassign(
            at_ms=_rounded(rng.uniform(at_ms + 50.0, plan.calm_ms)),
            topic=topic.topic,
            partition=rng.randrange(topic.partitions),
            replicas=rng.sample(list(plan.core), rng.choice((1, 2))),
            znode=True,
        )


def _registrations(rng: Random, plan: Plan) -> Iterator[Happening]:
    """Shortly before the calm: a later controller would read them once more."""
    at_ms = plan.calm_ms - rng.uniform(150.0, 700.0)
    yield DeleteController(at_ms=_rounded(at_ms))
    for node in plan.cluster.nodes:
        changed_ms = min(at_ms + rng.expovariate(1.0 / READ_WITHIN_MS), plan.calm_ms)
        yield ChangeRegistration(at_ms=_rounded(changed_ms), node=node, rack=f"rack-{rng.randrange(1_000)}")


def _stray_isrs(rng: Random, plan: Plan) -> Iterator[Happening]:
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    for _ in range(8):
        topic = rng.choice(created)
        yield AskIsr(
            at_ms=_rounded(rng.uniform(1_500.0, plan.calm_ms)),
            topic=topic.topic,
            partition=rng.randrange(topic.partitions),
            how=rng.choice(("ahead", "behind")),
            version=rng.choice((0, 1)),
        )


def _rounded(ms: float) -> float:
    return round(ms, 1)


CIRCUMSTANCES: Mapping[str, Callable[[Random, Plan], Iterator[Happening]]] = MappingProxyType(
    {
        "late-requests": _late_requests,
        "unclean-elections": _unclean_elections,
        "pause-end": _pause_end,
        "registrations": _registrations,
        "stray-isrs": _stray_isrs,
    }
)
