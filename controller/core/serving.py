"""Replicas that their brokers serve again, after a start or a bounce: told what their partitions' states are, and then
whatever waits for a leader is tried, for one of them may be it."""

from __future__ import annotations

from controller.core import partition_moves, replica_moves, topic_deletion
from controller.core.context import Replicas
from controller.core.request_batch import RequestBatch
from controller.core.term import Term


async def serve_again(term: Term, replicas: Replicas) -> None:
    """Those that were told to be deleted stay out."""
    batch = RequestBatch(term)
    replica_moves.bring_online(term, topic_deletion.not_deleted(term, replicas), batch)
    batch.send()
    batch = RequestBatch(term)
    await partition_moves.elect_offline_and_new(term, batch)
    batch.send()
