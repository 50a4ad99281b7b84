"""The values of a controller's gauges, and the outcomes of its events.

After each event the controller publishes `ControllerGauges`, one value that any thread may read, so that no thread
reads a context while an event changes it. Each number is updated as states change. Only the
numbers of replicas of topics that are being deleted are counted anew, and only while there are such topics.
"""

from __future__ import annotations

import msgspec
import numpy as np

from controller.clock import Clock
from controller.core.controller_states import STATES, ControllerState, state_of
from controller.core.measures import Histogram
from controller.core.partition_table import NO_BROKER
from controller.core.term import Term
from statemachines.replica import ReplicaState


class ControllerGauges(msgspec.Struct, frozen=True):
    """All 0 of a broker that is not the active controller, but for `unclean_elections`, which is of all its terms."""

    active: bool = False
    brokers: int = 0
    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    preferred_replica_imbalance: int = 0
    topics_to_delete: int = 0
    topics_ineligible_to_delete: int = 0
    replicas_to_delete: int = 0
    replicas_ineligible_to_delete: int = 0
    unclean_elections: int = 0
    paused: bool = False
    quarantined: int = 0


def figures_of(term: Term, unclean_elections: int) -> ControllerGauges:
    context, table = term.context, term.context.partitions
    imbalance, to_delete, ineligible = table.off_preferred, 0, 0
    if context.deletions.queued:
        topics = [found for name in sorted(context.deletions.queued) if (found := table.topic_named(name)) is not None]
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(topic.rows for topic in topics)])
        imbalance -= int(np.count_nonzero(table.are_off_preferred(rows)))
        real = table.assignment[rows] != NO_BROKER
        to_delete = int(np.count_nonzero(real))
        ineligible = int(np.count_nonzero(real & (table.replica_state[rows] == ReplicaState.DeletionIneligible)))
    return ControllerGauges(
        active=True,
        brokers=len(context.broker_ids),
        topics=len(table.topics),
        partitions=len(table),
        offline_partitions=context.offline_partitions,
        preferred_replica_imbalance=imbalance,
        topics_to_delete=len(context.deletions.queued),
        topics_ineligible_to_delete=len(context.deletions.ineligible),
        replicas_to_delete=to_delete,
        replicas_ineligible_to_delete=ineligible,
        unclean_elections=unclean_elections,
        paused=context.paused is not None,
        quarantined=len(context.quarantine),
    )


class ControllerMetrics:
    """Receives the start and the end of each event from the controller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = 0.0
        self._unclean_before = 0
        self.state = ControllerState.Idle
        self.figures = ControllerGauges()
        self.timers: dict[ControllerState, Histogram] = {
            state: Histogram() for state in ControllerState if state.timer is not None
        }

    def began(self, event: object) -> None:
        self._began_ms = self._clock.now_ms()
        self.state = state_of(event)

    def ended(self, term: Term | None) -> None:
        now_ms = self._clock.now_ms()
        timer = self.timers.get(self.state)
        if timer is not None:
            timer.update(now_ms - self._began_ms, now_ms)
        self.state = ControllerState.Idle
        self.publish(term)

    def publish(self, term: Term | None) -> None:
        if term is None:
            self._unclean_before = self.figures.unclean_elections
            self.figures = ControllerGauges(unclean_elections=self._unclean_before)
        else:
            self.figures = figures_of(term, self._unclean_before + term.context.unclean_elections)


__all__ = ["STATES", "ControllerGauges", "ControllerMetrics", "figures_of"]
