"""The fault `ask-isr`: an AlterIsr request as from a partition's leader, which the leader does not send at that moment.

ahead     in a leader epoch that no controller has written. Kafka's leaders send such a request to a controller that
          was deposed and does not know it. A controller of the swarm is never that far behind, because it reads a state
          again before it refuses. A leader that receives a fenced response waits for a LeaderAndIsr that no controller
          sends, and its ISR stays as it is (KAFKA-14154).
behind    for an older version of the state, as a request that arrives after those that the leader sent later. If it
          were carried out, the leader would not know its ISR.
"""

from __future__ import annotations

from controller.protocol import ApiKey, ErrorCode
from controller.protocol.control_values import AlterIsrPartition, AlterIsrRequest, AlterIsrResponse, AlterIsrTopic
from controller.simulator.plan import AskIsr
from controller.zookeeper import paths
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.znode_sense import sound_partition_state

AHEAD = 1_000
"""By how many leader epochs: no controller gets there while the request is on its way."""
INVARIANT = "stray-isrs-refused"
API_KEY = ApiKey.ALTER_ISR


def request_of(zookeeper: InMemoryZooKeeper, fault: AskIsr) -> AlterIsrRequest | None:
    """Return the request as of the partition's present leader. None: there is no leader, or it is not registered, or
    there is no ISR to ask for that the leader would not."""
    row = zookeeper.row(paths.partition_state(fault.topic, fault.partition))
    if row is None:
        return None
    try:
        state = sound_partition_state(row.path, row.data)
    except DamagedZnode:
        return None
    leader = zookeeper.row(paths.broker(state.leader))
    if leader is None:
        return None
    if fault.how == "ahead":
        asked = AlterIsrPartition(fault.partition, state.leader_epoch + AHEAD, state.isr, row.stat.version)
    elif len(state.isr) > 1:
        # In the other order, so that it is no ISR that anybody else writes in this leader epoch.
        asked = AlterIsrPartition(fault.partition, state.leader_epoch, state.isr[::-1], row.stat.version - 1)
    else:
        return None
    return AlterIsrRequest(state.leader, (AlterIsrTopic(fault.topic, (asked,)),), leader.stat.czxid)


def wrong_in(fault: AskIsr, request: AlterIsrRequest, answer: AlterIsrResponse) -> str | None:
    """Return what is wrong with the answer; None: nothing."""
    asked = request.topics[0].partitions[0]
    for topic in answer.topics:
        for one in topic.partitions:
            is_made = one.error_code == ErrorCode.NONE and one.isr == asked.new_isr
            is_fenced = fault.how == "ahead" and one.error_code == ErrorCode.FENCED_LEADER_EPOCH
            if is_fenced or is_made:
                came = "the leader is fenced" if is_fenced else "the ISR was changed"
                return f"{fault.topic}-{fault.partition}, asked for the ISR {list(asked.new_isr)} ({fault.how}): {came}"
    return None
