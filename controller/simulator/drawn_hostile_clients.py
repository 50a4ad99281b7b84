"""Hostile clients in a drawn plan.

Drawn from a stream of their own and added to a plan that is drawn already, so that a plan without any is the one it was
before there were any.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from controller.simulator.plan import Happening, HostileClient, HostileKind, Operation, Plan
from controller.simulator.randomness import Streams

ON = 0.25
"""The chance of a run to have any."""
ALONE = 0.25
"""The chance that a run with hostile clients has no other fault: then no controller's term may end."""
BETWEEN_MS = (400.0, 2_500.0)
"""How far apart they begin, on average; drawn for each run."""
KINDS: tuple[HostileKind, ...] = ("operations", "operations", *get_args(HostileKind))
"""Operations are the most likely: they alone may reach what a controller does."""
LASTING_MS = (200.0, 1_000.0, 4_000.0)
RATES = (10.0, 40.0, 120.0)
PIPELINED_LESS = 20.0
"""How much rarer they act that send many requests each time."""


def with_hostile_clients(plan: Plan) -> Plan:
    """Return the plan with hostile clients, or as it was."""
    rng = Streams(plan.seed).stream("swarm-hostile-clients")
    if rng.random() >= ON:
        return plan
    is_alone = rng.random() < ALONE
    happenings: list[Happening] = [each for each in plan.happenings if isinstance(each, Operation) or not is_alone]
    at_ms, mean_ms = 800.0, rng.uniform(*BETWEEN_MS)
    while (at_ms := at_ms + rng.expovariate(1.0 / mean_ms)) < plan.calm_ms:
        kind: HostileKind = rng.choice(KINDS)
        for_ms = round(rng.choice(LASTING_MS) * rng.uniform(0.7, 1.3))
        node = rng.choice(list(plan.cluster.nodes))
        rate = rng.choice(RATES) / (PIPELINED_LESS if kind == "drops" else 1.0)
        happenings.append(HostileClient(at_ms=round(at_ms, 1), kind=kind, node=node, for_ms=for_ms, rate=rate))
    return msgspec.structs.replace(plan, happenings=tuple(sorted(happenings, key=lambda each: each.at_ms)))
