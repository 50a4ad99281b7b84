"""What a real Kafka 2.8.2 cluster was recorded doing, for tests that hold ours against it: requests by broker, each
without what belongs to one cluster alone (hosts, ports, broker epochs), and the log of a deletion, which has no frames.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from controller.core.loading import topic_id_text
from controller.protocol.codec import ApiKey, decode_request, decode_response
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    PartitionStateZnode,
    TopicAssignment,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.operations import Create, Delete, SetData, Write

DATA = Path(__file__).parent / "data" / "kafka-2.8.2"
WIRE = DATA / "wire.jsonl"
CONTROL = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)

# Lines of the recording, by number from 0.
Lines = Sequence[int]
FIRST_BROKERS: tuple[tuple[int, Lines], ...] = ((1, (0,)), (3, (1, 2)), (2, (3, 4, 5)))
NEW_TOPICS: tuple[tuple[str, Lines], ...] = (
    ("pay", (11, 12, 13, 14, 18, 25)),
    ("orders", (16, 19, 21, 26, 29, 31)),
    ("__consumer_offsets", range(74, 80)),
)
MORE_PARTITIONS = range(105, 111)
REASSIGNMENT_ASKED, REASSIGNMENT_LISTED = 116, 114
REASSIGNMENT_BEGUN = range(117, 127)
REASSIGNMENT_IN_SYNC = (128, (129, 130, 131))
"""The leader's request, and what was sent then."""
REASSIGNMENT_DONE = range(132, 147)
SHUTDOWN_OF_2 = range(152, 166)
DEATH_OF_2 = range(166, 170)
RETURN_OF_2 = (*range(170, 178), 192, 195, 196)
ALTER_ISRS = ((181, (184, 185, 197)), (183, (187, 188, 198)), (186, (190, 191, 199)), (189, (193, 194, 200)))
"""Each leader's request, and what was sent then."""
FAILOVER = (*range(217, 230), 231)
SHUTDOWNS = ((3, 247, range(249, 258)), (2, 248, ()), (3, 258, (259, *range(261, 265))), (2, 260, ()))
"""Which broker asked, on which line, and what was sent then."""
PREFERRED_ELECTION = (237, 238, 239, 240)
"""What the controller moved by itself, five seconds after the failover and before the shutdowns."""

Request = tuple[str, tuple[int, int], tuple[int, ...], dict[str, Any]]
"""API, controller and epoch, brokers that are said to be alive or to lead, and topic id and state by partition."""


@cache
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in WIRE.read_text().splitlines()]


def value_of(line: int) -> Any:
    return decode_request(bytes.fromhex(lines()[line]["request"])).value


def response_of(line: int) -> Any:
    request = decode_request(bytes.fromhex(lines()[line]["request"])).header
    frame = bytes.fromhex(lines()[line]["response"])
    return decode_response(request.api_key, request.api_version, frame)[1]


@cache
def recorded_versions() -> dict[ApiKey, int]:
    """The one version of each control request that the controllers sent."""
    sent = {(ApiKey(line["api_key"]), line["version"]) for line in lines() if line["api_key"] in CONTROL}
    versions = dict(sent)
    assert len(versions) == len(sent) == len(CONTROL)
    return versions


def seen(api: ApiKey, value: Any) -> Request:
    """A request without what belongs to one cluster alone."""
    if api is ApiKey.STOP_REPLICA:
        named: tuple[int, ...] = ()
    elif api is ApiKey.LEADER_AND_ISR:
        assert value.type == 0
        named = tuple(sorted(leader.broker_id for leader in value.live_leaders))
    else:
        named = tuple(sorted(broker.id for broker in value.live_brokers))
    states = {
        f"{topic.topic_name}-{state.partition_index}": (getattr(topic, "topic_id", None), state)
        for topic in value.topic_states
        for state in topic.partition_states
    }
    return api.name, (value.controller_id, value.controller_epoch), named, states


def recorded(chosen: Any) -> dict[int, list[Request]]:
    """What each broker got in these lines of the recording."""
    by_broker: dict[int, list[Request]] = {}
    for number in chosen:
        line = lines()[number]
        api = ApiKey(line["api_key"])
        if api not in CONTROL:
            continue  # a client's, between them
        by_broker.setdefault(line["to_broker"], []).append(seen(api, value_of(number)))
    return by_broker


def recorded_failover() -> dict[int, list[Request]]:
    """What each broker got in the recorded failover, with its three batches as one: of a partition's states the last.

    Kafka sends what the term found, then the ISRs without dead replicas, then the elected leaders.
    """
    return {broker: _in_one_batch(requests) for broker, requests in recorded(FAILOVER).items()}


def _in_one_batch(requests: list[Request]) -> list[Request]:
    first, *others = requests
    together: dict[str, Request] = {}
    for api, sender, named, states in others:
        _, _, named_before, states_before = together.get(api, (api, sender, (), {}))
        together[api] = (api, sender, tuple(sorted({*named_before, *named})), {**states_before, **states})
    return [first, *together.values()]


def recorded_states(chosen: Any) -> dict[tuple[str, int], tuple[bytes, Any]]:
    """Topic id and state of each partition that these UpdateMetadata or LeaderAndIsr requests name."""
    return {
        (topic.topic_name, state.partition_index): (topic.topic_id, state)
        for line in chosen
        for topic in value_of(line).topic_states
        for state in topic.partition_states
    }


FlatWrite = tuple[str, str, Any]
"""What, where, and the state that was set."""


def flat_write(write: Write) -> FlatWrite:
    if isinstance(write, SetData):
        return "setData", write.path, json.loads(write.data or b"null")
    assert isinstance(write, Delete)
    return "delete", write.path, None


def deletion_requests() -> dict[int, list[tuple[str, int]]]:
    """Which requests the recorded controller said it sent to each broker, and of how many partitions."""
    found: dict[int, list[tuple[str, int]]] = {1: [], 2: [], 3: []}
    for line in (DATA / "deletion-state-change.log").read_text().splitlines():
        if match := re.search(r"Sending UpdateMetadata request to brokers HashSet\((.+)\) for (\d+) part", line):
            for broker in match[1].split(", "):
                found[int(broker)].append(("UPDATE_METADATA", int(match[2])))
        elif match := re.search(r"Sending StopReplica request for (\d+) replicas to broker (\d+)", line):
            found[int(match[2])].append(("STOP_REPLICA", int(match[1])))
    return found


def deletion_writes() -> list[FlatWrite]:
    """What the recorded controller did in ZooKeeper, in order: what, where, and the state that it set."""
    found = []
    for line in (DATA / "deletion-transactions.txt").read_text().splitlines():
        match = re.search(r"multi check: /controller_epoch ;(setData|delete): (\S+)(?: (\{.+\}))?", line)
        if match:
            found.append((match[1], match[2], json.loads(match[3]) if match[3] else None))
    return found


def before_the_shutdown() -> dict[tuple[str, int], tuple[bytes, Any]]:
    """As the topics had been created, and one partition as its reassignment had left it."""
    states = recorded_states((11, 12, 13, 16, 74, 75, 76, 105, 106, 107))
    states.update(recorded_states((137, 139)))
    return states


def before_the_reassignment() -> dict[tuple[str, int], tuple[bytes, Any]]:
    """As the topics had been created."""
    return recorded_states((11, 12, 13, 16, 74, 75, 76, 105, 106, 107))


def writes_of(states: dict[tuple[str, int], tuple[bytes, Any]]) -> Iterator[Write]:
    """Topics and states as they were, versions and controller epochs included: a write at a time, in order."""
    topics: dict[str, tuple[bytes, dict[int, tuple[int, ...]]]] = {}
    for (topic, partition), (topic_id, state) in states.items():
        topics.setdefault(topic, (topic_id, {}))[1][partition] = state.replicas
    for topic, (topic_id, assignment) in topics.items():
        data = encode_topic_assignment(TopicAssignment(topic_id_text(topic_id), dict(sorted(assignment.items()))))
        yield Create(paths.topic(topic), data)
        yield Create(paths.partitions(topic), None)
    for (topic, partition), (_, state) in states.items():
        path = paths.partition_state(topic, partition)
        data = encode_partition_state(
            PartitionStateZnode(state.leader, state.leader_epoch, state.isr, state.controller_epoch)
        )
        yield Create(paths.partition(topic, partition), None)
        yield Create(path, data)
        for version in range(state.zk_version):
            yield SetData(path, data, version)
