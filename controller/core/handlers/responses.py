"""Brokers' responses to the controller's requests.

Most errors in them are ignored: partition errors of stale leader epochs are common with every change
(docs/protocol.md).
"""

from __future__ import annotations

from controller.core import topic_deletion
from controller.core.events import (
    LeaderAndIsrResponseReceived,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from controller.core.handlers.log_directories import replicas_answered
from controller.core.handlers.topic_deletion import stop_replica_answered
from controller.core.leadership import EpochRefused, Term
from controller.core.request_batch import NAMES
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode

Response = LeaderAndIsrResponseReceived | UpdateMetadataResponseReceived | StopReplicaResponseReceived
_API = {
    LeaderAndIsrResponseReceived: NAMES[ApiKey.LEADER_AND_ISR],
    UpdateMetadataResponseReceived: NAMES[ApiKey.UPDATE_METADATA],
    StopReplicaResponseReceived: NAMES[ApiKey.STOP_REPLICA],
}


async def response(term: Term, event: Response) -> None:
    """An answer to an earlier term is not this one's; a broker that refuses the whole request knows better than we do,
    and the fence or the next look at its registration will say what.

    Raises EpochRefused if the broker has seen a higher controller epoch. Another controller may lead; if it does not,
    /controller_epoch was lowered by hand, and no request of this term would ever be taken.
    """
    if event.controller_epoch != term.epoch:
        return
    api, error = _API[type(event)], event.body.error_code
    term.trace_answered(event.broker, event.broker_epoch, api, error)
    if error != ErrorCode.NONE:
        term.note("warning", f"broker {event.broker} refused {api}: {_name(error)}")
    if error == ErrorCode.STALE_CONTROLLER_EPOCH:
        raise EpochRefused(term.epoch, event.broker)
    if isinstance(event, UpdateMetadataResponseReceived):
        await topic_deletion.complete(term)
    if isinstance(event, StopReplicaResponseReceived):
        await stop_replica_answered(term, event)
    if isinstance(event, LeaderAndIsrResponseReceived):
        await replicas_answered(term, event)


def _name(error: int) -> str:
    known = {int(code): code.name for code in ErrorCode}
    return known.get(error, str(error))
