"""The administrator of a simulated cluster: it creates, changes, moves and deletes topics, and records the outcomes.

It sends each operation to the broker that metadata names as controller, with a few retries. From the responses follows
what must hold at the end (`must_exist`, `must_be_gone`): what was acknowledged and cannot have been undone since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from controller.clock import Clock
from controller.core.channels import PeerError
from controller.protocol import (
    SUPPORTED,
    ApiKey,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ErrorCode,
    MetadataRequest,
    decode_response_body,
    encode_request_body,
)
from controller.protocol.admin import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    OPERATION_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ReassignablePartition,
    ReassignableTopic,
)
from controller.protocol.client import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.control import AlterIsrPartition, AlterIsrRequest, AlterIsrResponse, AlterIsrTopic
from controller.scenarios.faults import (
    AddPartitions,
    AskIsr,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Operation,
    Reassign,
    SetConfig,
)
from controller.simulator.network import Address
from controller.simulator.requests import BrokerConnection
from controller.zookeeper import paths
from controller.zookeeper.codecs_columns import sound_partition_state
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import DamagedZnode

DONE = "done"
"""The outcome of an operation that was acknowledged."""
ATTEMPTS = 20
BETWEEN_MS = 150.0
TIMEOUT_MS = 5_000
PATIENCE_MS = TIMEOUT_MS + 2_000.0
"""How long the client waits: longer than the broker may take, which answers when its time is up."""

_METADATA_VERSION = 9
_METADATA = encode_request_body(ApiKey.METADATA, _METADATA_VERSION, MetadataRequest((), False))
_AGAIN = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
)
"""Errors that may be gone a moment later: the broker asked is behind, or others are not there yet, or not gone yet."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation from when it was asked for to when nothing can come of it any more (infinity: who knows)."""

    operation: Operation
    began_ms: float
    ended_ms: float = math.inf
    acknowledged: bool = False


class Administrator:
    """`brokers`: where each is reached."""

    def __init__(
        self, connect: Callable[[Address], BrokerConnection], clock: Clock, rng: Random, brokers: Mapping[int, Address]
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._brokers = dict(brokers)
        self.asked: list[Asked] = []

    async def carry_out(self, operation: Operation) -> str:
        """Asks for it. What came of it, in words."""
        place = len(self.asked)
        asked = Asked(operation, self._clock.now_ms())
        self.asked.append(asked)
        settled, problem = True, "no controller was found"
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._clock.sleep(BETWEEN_MS)
            controller = await self._controller()
            if controller is None:
                continue
            try:
                error = await self._ask(controller, operation)
            except PeerError as lost:
                settled, problem = False, str(lost)
                continue
            if error == ErrorCode.NONE:
                self.asked[place] = replace(asked, ended_ms=self._clock.now_ms(), acknowledged=True)
                return DONE
            problem = f"error {error}"
            settled = settled and error != ErrorCode.REQUEST_TIMED_OUT
            if error not in _AGAIN:
                break
        if settled:
            self.asked[place] = replace(asked, ended_ms=self._clock.now_ms())
        return problem

    async def ask_isr(self, fault: AskIsr, request: AlterIsrRequest) -> str | None:
        """Return what is wrong with the controller's answer; None: nothing, or there is no answer."""
        controller = await self._controller()
        if controller is None:
            return None
        body = encode_request_body(ApiKey.ALTER_ISR, fault.version, request)
        connection = self._connect(controller)
        try:
            await connection.open(500.0)
            answer = await connection.ask(ApiKey.ALTER_ISR, fault.version, body, PATIENCE_MS)
        except PeerError:
            return None
        finally:
            connection.close()
        response = decode_response_body(ApiKey.ALTER_ISR, fault.version, answer)
        assert isinstance(response, AlterIsrResponse)
        return _stray_isr_error(fault, request, response)

    async def _controller(self) -> Address | None:
        """Where the controller is, as some broker has it."""
        connection = self._connect(self._brokers[self._rng.choice(list(self._brokers))])
        try:
            await connection.open(500.0)
            body = await connection.ask(ApiKey.METADATA, _METADATA_VERSION, _METADATA, 500.0)
        except PeerError:
            return None
        finally:
            connection.close()
        answer: Any = decode_response_body(ApiKey.METADATA, _METADATA_VERSION, body)
        return self._brokers.get(answer.controller_id)

    async def _ask(self, controller: Address, operation: Operation) -> int:
        api_key, request = _request(operation)
        version = SUPPORTED[api_key].last
        connection = self._connect(controller)
        try:
            await connection.open(500.0)
            body = await connection.ask(api_key, version, encode_request_body(api_key, version, request), PATIENCE_MS)
        finally:
            connection.close()
        answer: Any = decode_response_body(api_key, version, body)
        return _error(api_key, answer)

    # -- what follows from the answers

    def must_exist(self) -> dict[str, int]:
        """Topics that must be there in the end, with how many partitions at least."""
        found: dict[str, int] = {}
        for asked in self.asked:
            topic = asked.operation.topic
            if asked.acknowledged and not self._may_have(DeleteTopic, topic, asked.began_ms):
                if isinstance(asked.operation, CreateTopic):
                    found[topic] = max(found.get(topic, 0), asked.operation.partitions)
                elif isinstance(asked.operation, AddPartitions) and topic in found:
                    found[topic] = max(found[topic], asked.operation.partitions)
        return found

    def must_be_gone(self) -> tuple[str, ...]:
        """Topics that must not be there in the end."""
        return tuple(
            asked.operation.topic
            for asked in self.asked
            if asked.acknowledged
            and isinstance(asked.operation, DeleteTopic)
            and not self._may_have(CreateTopic, asked.operation.topic, asked.began_ms)
        )

    def must_be_on(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Where partitions must be in the end, if they have arrived anywhere: sent there, and nowhere else since."""
        found = {}
        for asked in self.asked:
            move = asked.operation
            if isinstance(move, Reassign) and asked.acknowledged and move.replicas:
                others = [
                    one
                    for one in self.asked
                    if one is not asked and one.operation.topic == move.topic and one.ended_ms > asked.began_ms
                ]
                if not any(_may_undo(one.operation, move) for one in others):
                    found[move.topic, move.partition] = tuple(move.replicas)
        return found

    def _may_have(self, kind: type[Operation], topic: str, since_ms: float) -> bool:
        """Whether an operation of that kind may have taken effect after that moment."""
        return any(
            isinstance(asked.operation, kind) and asked.operation.topic == topic and asked.ended_ms > since_ms
            for asked in self.asked
        )


def _may_undo(operation: Operation, move: Reassign) -> bool:
    if isinstance(operation, Reassign):
        return operation.partition == move.partition
    return isinstance(operation, CreateTopic | DeleteTopic)


def _error(api_key: ApiKey, answer: Any) -> int:
    error: int
    if api_key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        error = answer.error_code or answer.responses[0].partitions[0].error_code
    elif api_key is ApiKey.ELECT_LEADERS:
        results = answer.replica_election_results
        error = answer.error_code or results[0].partition_result[0].error_code
    else:
        kind = next(name for name in ("topics", "results", "responses") if hasattr(answer, name))
        error = getattr(answer, kind)[0].error_code
    return error


def _request(operation: Operation) -> tuple[ApiKey, Any]:
    if isinstance(operation, CreateTopic):
        configs = tuple(CreatableTopicConfig(name, value) for name, value in operation.config.items())
        topic = CreatableTopic(operation.topic, operation.partitions, operation.replication_factor, configs=configs)
        return ApiKey.CREATE_TOPICS, CreateTopicsRequest((topic,), TIMEOUT_MS)
    if isinstance(operation, DeleteTopic):
        return ApiKey.DELETE_TOPICS, DeleteTopicsRequest((DeleteTopicState(operation.topic),), TIMEOUT_MS)
    if isinstance(operation, Reassign):
        wanted = ReassignablePartition(operation.partition, tuple(operation.replicas) or None)
        topics = (ReassignableTopic(operation.topic, (wanted,)),)
        return ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics, TIMEOUT_MS)
    if isinstance(operation, ElectLeaders):
        kind = ELECTION_UNCLEAN if operation.unclean else ELECTION_PREFERRED
        elected = ElectLeadersTopic(operation.topic, (operation.partition,))
        return ApiKey.ELECT_LEADERS, ElectLeadersRequest((elected,), TIMEOUT_MS, kind)
    if isinstance(operation, SetConfig):
        changes = tuple(AlterableConfig(name, OPERATION_SET, value) for name, value in operation.config.items())
        resource = IncrementalAlterConfigsResource(RESOURCE_TOPIC, operation.topic, changes)
        return ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest((resource,))
    assert isinstance(operation, AddPartitions)
    added = CreatePartitionsTopic(operation.topic, operation.partitions)
    return ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest((added,), TIMEOUT_MS)


AHEAD_EPOCHS = 1_000
"""By how many leader epochs: no controller gets there while the request is on its way."""
STRAY_ISRS = "stray-isrs-refused"


def stray_isr_request(zookeeper: InMemoryZooKeeper, fault: AskIsr) -> AlterIsrRequest | None:
    """Return the AlterIsr request of an `ask-isr`: as of the partition's present leader, which does not send it now.

    Kafka's leaders send one that is ahead to a controller that was deposed and does not know it. A controller of the
    swarm is never that far behind, because it reads a state again before it refuses. A leader that receives a fenced
    response waits for a LeaderAndIsr that no controller sends, and its ISR stays as it is (KAFKA-14154). One that is
    behind arrives after those that the leader sent later; if it were carried out, the leader would not know its ISR.

    None: there is no leader, or it is not registered, or there is no ISR to ask for that the leader would not.
    """
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
        asked = AlterIsrPartition(fault.partition, state.leader_epoch + AHEAD_EPOCHS, state.isr, row.stat.version)
    elif len(state.isr) > 1:
        # In the other order, so that it is no ISR that anybody else writes in this leader epoch.
        asked = AlterIsrPartition(fault.partition, state.leader_epoch, state.isr[::-1], row.stat.version - 1)
    else:
        return None
    return AlterIsrRequest(state.leader, (AlterIsrTopic(fault.topic, (asked,)),), leader.stat.czxid)


def _stray_isr_error(fault: AskIsr, request: AlterIsrRequest, answer: AlterIsrResponse) -> str | None:
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
