"""CreateTopics and CreatePartitions: requests are checked, placed and written to the topic's znode.

The znode's watch then reports the new partitions to `topic_changes`, as it does for writes of any other client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from controller.core.events import CreatePartitionsRequested, CreateTopicsRequested
from controller.core.leadership import Term
from controller.core.loading import new_topic_id, topic_id_text
from controller.core.placement import (
    BadPartitions,
    BadReplicationFactor,
    PlacementError,
    assign_replicas,
    expand_assignment,
)
from controller.core.topic_settings import collisions, config_fault, name_fault
from controller.protocol.client import (
    CONFIG_SOURCE_TOPIC,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
)
from controller.protocol.control import NO_TOPIC_ID
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    REPLICAS_MAX,
    ConfigZnode,
    TopicAssignment,
    encode_config,
    encode_topic_assignment,
)
from controller.zookeeper.codecs_columns import replicas_fault, sound_topic_assignment
from controller.zookeeper.operations import BadVersion, DamagedZnode, NoAuth, NodeExists, NoNode
from controller.zookeeper.row_writes import ZNODE_BYTES_MAX

UNSET = -1
Assignment = Mapping[int, tuple[int, ...]]


class TopicRefused(Exception):
    """The protocol's error for a topic that is not created or expanded."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class TopicPlan(msgspec.Struct, frozen=True):
    """A topic as it is to be made."""

    assignment: Assignment
    config: Mapping[str, str]


async def create_topics(term: Term, event: CreateTopicsRequested) -> None:
    """Answer topic by topic, once the znodes are written; a client that needs leaders waits for metadata."""
    results = []
    for topic in event.value.topics:
        try:
            plan = _plan(term, topic)
            topic_id = NO_TOPIC_ID if event.value.validate_only else await _create(term, topic, plan)
        except TopicRefused as refused:
            results.append(CreatableTopicResult(topic.name, int(refused.error), str(refused)))
        else:
            results.append(_result(topic, plan, topic_id))
    event.respond(CreateTopicsResponse(tuple(results)))


async def _create(term: Term, topic: CreatableTopic, plan: TopicPlan) -> bytes:
    """Create the topic, and return its id."""
    topic_id = new_topic_id(term) if term.settings.versions.topic_ids else NO_TOPIC_ID
    text = topic_id_text(topic_id) if term.settings.versions.topic_ids else None
    assignment = TopicAssignment(text, plan.assignment, version=3 if text else 2)
    try:
        await term.writes.create_topic(
            topic.name, encode_topic_assignment(assignment), encode_config(ConfigZnode(plan.config))
        )
    except NodeExists:
        raise _exists(topic.name) from None
    except NoAuth as error:
        raise _no_access(error) from error
    return topic_id


def _no_access(error: NoAuth) -> TopicRefused:
    return TopicRefused(
        ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper's access list of {error.path} refuses the controller"
    )


def _exists(name: str) -> TopicRefused:
    return TopicRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _result(topic: CreatableTopic, plan: TopicPlan, topic_id: bytes) -> CreatableTopicResult:
    return CreatableTopicResult(
        topic.name,
        int(ErrorCode.NONE),
        topic_id=topic_id,
        num_partitions=len(plan.assignment),
        replication_factor=len(plan.assignment[0]),
        configs=tuple(
            CreatableTopicConfigs(name, value, read_only=False, config_source=CONFIG_SOURCE_TOPIC)
            for name, value in plan.config.items()
        ),
    )


def _plan(term: Term, topic: CreatableTopic) -> TopicPlan:
    if fault := name_fault(topic.name):
        raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    known = term.context.partitions
    if topic.name in known or topic.name in term.context.left_out:
        raise _exists(topic.name)
    if alike := collisions(topic.name, (one.name for one in known.topics)):
        raise TopicRefused(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with existing topics: {', '.join(alike)}"
        )
    if any(config.value is None for config in topic.configs):
        raise TopicRefused(ErrorCode.INVALID_REQUEST, "Null value not supported for topic configs")
    config = {config.name: config.value for config in topic.configs if config.value is not None}
    if fault := config_fault(config):
        raise TopicRefused(ErrorCode.INVALID_CONFIG, fault)
    if (size := len(encode_config(ConfigZnode(config)))) > ZNODE_BYTES_MAX:
        fault = f"the configs have {size} bytes, expected {ZNODE_BYTES_MAX} at most, which is what one znode takes"
        raise TopicRefused(ErrorCode.INVALID_CONFIG, fault)
    assignment = _explicit(topic) if topic.assignments else _placed(term, topic)
    _require_fits(encode_topic_assignment(TopicAssignment("x" * 22, assignment)), len(assignment))
    return TopicPlan(assignment, config)


def _require_room(partitions: int, factor: int, there: int = 0) -> None:
    """Refuses what no znode can hold by its numbers alone, before anything is made of it. `there`: the bytes that a
    topic's znode has already."""
    least = partitions * (len('"0":[],') + 2 * factor - 1)
    if least > ZNODE_BYTES_MAX and least > there:
        raise _too_many(partitions, f"more than {least}")


def _require_fits(data: bytes, partitions: int) -> None:
    if len(data) > ZNODE_BYTES_MAX:
        raise _too_many(partitions, str(len(data)))


def _too_many(partitions: int, size: str) -> TopicRefused:
    return TopicRefused(
        ErrorCode.INVALID_PARTITIONS,
        f"{partitions} partitions take {size} bytes in the topic's znode, expected {ZNODE_BYTES_MAX} at most",
    )


def _placed(term: Term, topic: CreatableTopic) -> Assignment:
    settings = term.settings
    partitions = settings.num_partitions if topic.num_partitions == UNSET else topic.num_partitions
    factor = settings.default_replication_factor if topic.replication_factor == UNSET else topic.replication_factor
    if factor > REPLICAS_MAX:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: expected {REPLICAS_MAX} at most"
        )
    if 0 < factor <= len(term.context.broker_ids):
        _require_room(partitions, factor)
    try:
        return assign_replicas(_brokers(term), partitions, factor, rng=term.rng)
    except PlacementError as error:
        raise _unplaced(error) from error


def _unplaced(error: PlacementError) -> TopicRefused:
    if isinstance(error, BadPartitions):
        return TopicRefused(ErrorCode.INVALID_PARTITIONS, str(error))
    if isinstance(error, BadReplicationFactor):
        return TopicRefused(ErrorCode.INVALID_REPLICATION_FACTOR, str(error))
    return TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error))


def _explicit(topic: CreatableTopic) -> Assignment:
    if topic.num_partitions != UNSET or topic.replication_factor != UNSET:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST,
            "Both numPartitions or replicationFactor and replicasAssignments were set."
            " Both cannot be used at the same time.",
        )
    assignment = {one.partition_index: one.broker_ids for one in topic.assignments}
    if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    _check_replicas(list(assignment.values()))
    return assignment


def _check_replicas(assignments: Sequence[tuple[int, ...]], expected: int | None = None) -> None:
    for replicas in assignments:
        if fault := replicas_fault(replicas):
            raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Bad or duplicate replicas: {fault}")
    if len({len(replicas) for replicas in assignments} | ({expected} if expected else set())) > 1:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions should have the same number of replicas"
        )


def _brokers(term: Term) -> list[tuple[int, str | None]]:
    return [(broker.id, broker.endpoint.rack) for broker in term.context.brokers]


async def create_partitions(term: Term, event: CreatePartitionsRequested) -> None:
    """Answers topic by topic, once the topic's znode names the new partitions."""
    results = []
    for topic in event.value.topics:
        try:
            await _expand(term, topic, event.value.validate_only)
        except TopicRefused as refused:
            results.append(CreatePartitionsTopicResult(topic.name, int(refused.error), str(refused)))
        else:
            results.append(CreatePartitionsTopicResult(topic.name, int(ErrorCode.NONE)))
    event.respond(CreatePartitionsResponse(tuple(results)))


async def _expand(term: Term, topic: CreatePartitionsTopic, validate_only: bool) -> None:
    if fault := name_fault(topic.name):
        raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if topic.name in term.context.deletions.queued:
        raise TopicRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
    path = paths.topic(topic.name)
    row = (await term.zookeeper.read([path])).rows[0]
    if row is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")
    try:
        known = sound_topic_assignment(path, row.data)
    except DamagedZnode as damaged:
        raise TopicRefused(ErrorCode.UNKNOWN_SERVER_ERROR, str(damaged)) from damaged
    if any(known.adding.get(one) or known.removing.get(one) for one in known.partitions):
        raise TopicRefused(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Topic '{topic.name}' is being reassigned.")
    _require_room(topic.count, len(next(iter(known.partitions.values()), ())), len(row.data or b""))
    added = _added(term, topic, known.partitions)
    data = encode_topic_assignment(replace(known, partitions={**known.partitions, **added}))
    _require_fits(data, topic.count)
    if validate_only:
        return
    try:
        await term.writes.add_partitions(topic.name, data, row.stat.version)
    except (BadVersion, NoNode):
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS, f"Topic '{topic.name}' was changed or deleted while partitions were added."
        ) from None
    except NoAuth as error:
        raise _no_access(error) from error


def _added(term: Term, topic: CreatePartitionsTopic, known: Assignment) -> Assignment:
    count, before = topic.count - len(known), len(known)
    if count < 0:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {before} partitions, which is higher than the requested {topic.count}.",
        )
    if count == 0:
        raise TopicRefused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {before} partitions.")
    if sorted(known) != list(range(before)) or not before:
        raise TopicRefused(ErrorCode.INVALID_PARTITIONS, f"Topic '{topic.name}' is not numbered from 0 without a gap.")
    if topic.assignments is None:
        try:
            return expand_assignment(_brokers(term), known, topic.count, rng=term.rng)
        except PlacementError as error:
            raise _unplaced(error) from error
    return _assigned(term, topic, known, count)


def _assigned(term: Term, topic: CreatePartitionsTopic, known: Assignment, count: int) -> Assignment:
    asked = [one.broker_ids for one in topic.assignments or ()]
    if len(asked) != count:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Increasing the number of partitions by {count} but {len(asked)} assignments provided.",
        )
    _check_replicas(asked, expected=len(known[0]))
    unknown = sorted({broker for replicas in asked for broker in replicas} - set(term.context.broker_ids))
    if unknown:
        raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown broker(s) in replica assignment: {unknown}.")
    return {len(known) + place: replicas for place, replicas in enumerate(asked)}
