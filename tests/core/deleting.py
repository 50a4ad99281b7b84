"""A cluster whose topics are deleted: how it is asked, what brokers answer, and what was said and left of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.core.leadership import ControllerSettings
from controller.protocol.codec import ApiKey, RequestHeader, encode_response, response_body
from controller.protocol.control import (
    LEADER_DURING_DELETE,
    StopReplicaPartitionError,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.operations import Create, Write
from tests.core.driving import Cluster, Host, Sent, answer_to


def answering(*brokers: int, settings: ControllerSettings | None = None) -> tuple[Cluster, Host]:
    """The first is the controller; all answer."""
    cluster = Cluster()
    cluster.register(*brokers[1:])
    host = cluster.new_host(brokers[0], settings)
    host.answering = True
    host.start()
    cluster.settle()
    return cluster, host


def ask(cluster: Cluster, *topics: str) -> None:
    """As an admin tool asks."""
    for topic in topics:
        cluster.write(Create(paths.delete_topic(topic), None))
    cluster.settle()


def left_of(cluster: Cluster, topic: str) -> list[str]:
    heads = (paths.topic(topic), paths.config_topic(topic), paths.delete_topic(topic))
    return [row.path for row in cluster.server.rows() if f"{row.path}/".startswith(tuple(f"{head}/" for head in heads))]


def told(sent: Sequence[Sent]) -> dict[int, list[str]]:
    """What each broker was told, in order, in a word a request."""
    words: dict[int, list[str]] = {}
    for one in sent:
        words.setdefault(one.broker, []).append(word_of(one))
    return words


def word_of(sent: Sent) -> str:
    states = sent.states()
    if sent.api is ApiKey.STOP_REPLICA:
        deletes = {state.delete_partition for state in states.values()}
        return ("delete " if deletes == {True} else "stop ") + " ".join(sorted(states))
    if sent.api is ApiKey.UPDATE_METADATA:
        forgotten = sorted(name for name, state in states.items() if state.leader == LEADER_DURING_DELETE)
        others = sorted(name for name in states if name not in forgotten)
        return " ".join([f"forget {' '.join(forgotten)}" if forgotten else "update", *others])
    return " ".join([sent.api.name, *sorted(states)])


def recorded_writes(host: Host) -> list[list[Write]]:
    """The multis that this host sends from now on."""
    sent: list[list[Write]] = []
    multi = host.connection.multi

    def noted(operations: Sequence[Write]) -> Any:
        sent.append(list(operations))
        return multi(operations)

    host.connection.multi = noted  # type: ignore[method-assign]
    return sent


def silent_about_deletion(api: ApiKey, request: Any) -> Any:
    deletes = api is ApiKey.STOP_REPLICA and any(
        state.delete_partition for topic in request.topic_states for state in topic.partition_states
    )
    return None if deletes else answer_to(api, request)


def answer(host: Host, sent: Sent, error: ErrorCode = ErrorCode.NONE, whole: ErrorCode = ErrorCode.NONE) -> None:
    """As the broker of this request answers, with `error` for each replica or, without a word of any, `whole`."""
    errors = tuple(
        StopReplicaPartitionError(topic.topic_name, state.partition_index, int(error))
        for topic in sent.value.topic_states
        for state in topic.partition_states
    )
    value = StopReplicaResponse(int(whole), () if whole else errors)
    frame = encode_response(RequestHeader(ApiKey.STOP_REPLICA, 3, 0, "test"), value)
    host.events.put(sent.response_event(response_body(ApiKey.STOP_REPLICA, 3, frame)[1]))


def answer_metadata(host: Host, sent: Sent) -> None:
    frame = encode_response(RequestHeader(ApiKey.UPDATE_METADATA, 7, 0, "test"), UpdateMetadataResponse(0))
    host.events.put(sent.response_event(response_body(ApiKey.UPDATE_METADATA, 7, frame)[1]))
