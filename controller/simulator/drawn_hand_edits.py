"""Hand-edited /controller and /controller_epoch in a drawn plan.

Drawn from a stream of their own and added to a plan that is drawn already, so that a plan without any is the one it was
before there were any.
"""

from __future__ import annotations

from random import Random
from typing import get_args

import msgspec

from controller.simulator.plan import ControllerEdit, EditController, EditControllerEpoch, EpochEdit, Happening, Plan
from controller.simulator.randomness import Streams

ON = 0.2
"""The chance of a run to have any."""
EPOCH = 0.5
"""The chance of one to be of /controller_epoch."""
BETWEEN_MS = (800.0, 4_000.0)
"""How far apart they are, on average; drawn for each run."""
SESSIONS = (0.2, 1.0, 2.0)
"""How long one lasts, in session timeouts."""
WITH_ELECTION = 0.5
"""The chance that /controller is edited right after the epoch, so that the next election meets both."""


def with_hand_edits(plan: Plan) -> Plan:
    """Return the plan with edits, or as it was."""
    rng = Streams(plan.seed).stream("swarm-hand-edits")
    if rng.random() >= ON:
        return plan
    happenings: list[Happening] = [*plan.happenings]
    at_ms, mean_ms = 1_000.0, rng.uniform(*BETWEEN_MS)
    while (at_ms := at_ms + rng.expovariate(1.0 / mean_ms)) < plan.calm_ms:
        for_ms = round(plan.cluster.session_timeout_ms * rng.choice(SESSIONS) * rng.uniform(0.7, 1.3))
        if rng.random() < EPOCH:
            how: EpochEdit = rng.choice(get_args(EpochEdit))
            happenings.append(EditControllerEpoch(at_ms=round(at_ms, 1), how=how, for_ms=for_ms))
            if rng.random() >= WITH_ELECTION:
                continue
        happenings.append(_of_controller(rng, plan, round(at_ms, 1), for_ms))
    return msgspec.structs.replace(plan, happenings=tuple(sorted(happenings, key=lambda each: each.at_ms)))


def _of_controller(rng: Random, plan: Plan, at_ms: float, for_ms: float) -> EditController:
    how: ControllerEdit = rng.choice(get_args(ControllerEdit))
    return EditController(at_ms=at_ms, how=how, node=rng.choice(list(plan.cluster.nodes)), for_ms=for_ms)
