"""AllocateProducerIds: a broker's next block of producer ids, as a controller of Kafka 3 gives it. Brokers up to
inter-broker protocol 2.8 take their blocks from the same znode themselves; both go on from whatever is the last.
"""

from __future__ import annotations

from controller.core.events import AllocateProducerIdsRequested
from controller.core.leadership import Term
from controller.core.znode_changes import NeverStill, change_znode
from controller.protocol.control import AllocateProducerIdsResponse
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import ProducerIdBlock, decode_producer_id_block, encode_producer_id_block
from controller.zookeeper.operations import DamagedZnode, Znode

IDS_A_BLOCK = 1_000
LAST_ID = 2**63 - 1


class IdsExhausted(Exception):
    """No block is left below 2**63."""


async def allocate_producer_ids(term: Term, event: AllocateProducerIdsRequested) -> None:
    """Allocate a block of ids that no other broker gets: a block whose write had an unknown outcome is skipped."""
    asked = event.value
    known = term.context.broker(asked.broker_id)
    if known is None:
        event.refuse(ErrorCode.BROKER_ID_NOT_REGISTERED)
        return
    if known.epoch != asked.broker_epoch:
        event.refuse(ErrorCode.STALE_BROKER_EPOCH)
        return
    block = ProducerIdBlock(asked.broker_id, 0, IDS_A_BLOCK - 1)

    def next_block(row: Znode | None) -> bytes:
        nonlocal block
        start = 0 if row is None or not row.data else decode_producer_id_block(row.path, row.data).block_end + 1
        if start > LAST_ID - IDS_A_BLOCK:
            raise IdsExhausted(f"{paths.PRODUCER_ID_BLOCK}: the last block ends at {start - 1}")
        block = ProducerIdBlock(asked.broker_id, start, start + IDS_A_BLOCK - 1)
        return encode_producer_id_block(block)

    try:
        await change_znode(term, paths.PRODUCER_ID_BLOCK, next_block)
    except (DamagedZnode, IdsExhausted, NeverStill) as error:
        term.note("error", f"no producer ids for broker {asked.broker_id}: {error}")
        event.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        return
    event.respond(AllocateProducerIdsResponse(int(ErrorCode.NONE), block.block_start, IDS_A_BLOCK))
