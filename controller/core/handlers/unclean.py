"""A config changed that may let a partition be led by a replica that is not in its ISR: what waits is tried again.

Whether it is allowed is read at each election, of each topic that needs it, so that the event need say nothing.
"""

from __future__ import annotations

import numpy as np

from controller.core import state_changes
from controller.core.events import TopicConfigChange, UncleanLeaderElectionEnabled
from controller.core.leadership import Term
from controller.core.request_batch import RequestBatch
from statemachines.partition import PartitionState


async def unclean_election_may_be_allowed(term: Term, event: UncleanLeaderElectionEnabled | TopicConfigChange) -> None:
    rows = term.context.rows_to_elect(PartitionState.Offline)
    if event.topic is not None:
        topic = term.context.partitions.topic_named(event.topic)
        rows = rows[:0] if topic is None else np.intersect1d(rows, topic.rows)
    batch = RequestBatch(term)
    await state_changes.bring_partitions_online(term, rows, batch)
    batch.send()
