"""Restart of replicas after their broker's start or bounce.

The replicas are sent their partitions' states. Then the controller tries to elect a leader for all partitions that wait
for one, since a restarted replica may be electable.
"""

from __future__ import annotations

from controller.core import partition_moves, replica_moves, topic_deletion
from controller.core.context import Replicas
from controller.core.request_batch import RequestBatch
from controller.core.term import Term


async def restart_replicas(term: Term, replicas: Replicas) -> None:
    """Bring the replicas online, except those whose brokers were asked to delete them, and elect missing leaders."""
    batch = RequestBatch(term)
    replica_moves.bring_online(term, topic_deletion.not_deleted(term, replicas), batch)
    batch.send()
    batch = RequestBatch(term)
    await partition_moves.elect_offline_and_new(term, batch)
    batch.send()
