"""DeleteTopics: checked against this broker's metadata, handed to the controller's events, answered when the metadata
has the topics no more, or when the request's time is up: they go then all the same (Kafka's DelayedDeleteTopics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controller.broker.metadata.metadata_cache import MetadataCache, MetadataSnapshot
from controller.broker.metadata.metadata_wait import MetadataWait, still_there
from controller.broker.steps import SLICE, Steps
from controller.broker.topics.asking import ask_controller
from controller.clock import Clock
from controller.core.events import DeleteTopicsRequested
from controller.core.ports import EventSink
from controller.protocol.client_values import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from controller.protocol.control_values import NO_TOPIC_ID
from controller.protocol.errors import ErrorCode

FIRST_VERSION_WITH_DISABLED = 3
"""From here on a client knows TOPIC_DELETION_DISABLED."""
NAME_AND_ID = "Topic name and topic ID can not both be specified."
NO_TOPIC_IDS = "Topic IDs are not supported on the server."
Answer = Callable[[DeleteTopicsResponse], None]


def disabled_error(version: int) -> ErrorCode:
    return ErrorCode.TOPIC_DELETION_DISABLED if version >= FIRST_VERSION_WITH_DISABLED else ErrorCode.INVALID_REQUEST


def names_both(request: DeleteTopicsRequest) -> bool:
    """Whether a topic is named and given an id too: Kafka refuses such a request whole."""
    return any(topic.name is not None and topic.topic_id != NO_TOPIC_ID for topic in request.topics)


class Deletion:
    def __init__(
        self, events: EventSink, metadata: MetadataCache, waits: MetadataWait, clock: Clock, topic_ids: bool
    ) -> None:
        self._events = events
        self._metadata = metadata
        self._waits = waits
        self._clock = clock
        self._topic_ids = topic_ids

    def delete_topics(self, request: DeleteTopicsRequest, answer: Answer) -> Steps:
        """Checks the topics in slices."""
        snapshot = self._metadata.snapshot
        names_of = {topic_id: name for name, topic_id in snapshot.topic_ids.items()} if self._topic_ids else {}
        checked: list[DeletableTopicResult] = []
        for done, topic in enumerate(request.topics, 1):
            checked.append(self._checked(topic, snapshot, names_of))
            if done % SLICE == 0:
                yield None
        results = tuple(checked)
        names = tuple(dict.fromkeys(_name(one) for one in results if one.error_code == ErrorCode.NONE))
        if not names:
            answer(DeleteTopicsResponse(results))
            return
        deadline_ms = self._clock.now_ms() + request.timeout_ms

        def with_errors(errors: Mapping[str, ErrorCode]) -> None:
            answer(DeleteTopicsResponse(tuple(_with_error(one, errors) for one in results)))

        def asked(errors: Mapping[str, ErrorCode]) -> None:
            going = tuple(name for name in names if errors[name] == ErrorCode.NONE)
            self._waits.wait(
                still_there(going),
                deadline_ms,
                lambda left: with_errors({**errors, **dict.fromkeys(left, ErrorCode.REQUEST_TIMED_OUT)}),
            )

        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: DeleteTopicsRequested(names, respond),
            asked,
            lambda: with_errors(dict.fromkeys(names, ErrorCode.REQUEST_TIMED_OUT)),
        )

    def _checked(
        self, topic: DeleteTopicState, snapshot: MetadataSnapshot, names_of: Mapping[bytes, str]
    ) -> DeletableTopicResult:
        """The topic by its name, with what is wrong with it."""
        if topic.topic_id == NO_TOPIC_ID:
            there = topic.name in snapshot.topics
            error = ErrorCode.NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return DeletableTopicResult(topic.name, error)
        if not self._topic_ids:
            return DeletableTopicResult(None, ErrorCode.UNSUPPORTED_VERSION, NO_TOPIC_IDS, topic.topic_id)
        name = names_of.get(topic.topic_id)
        error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
        return DeletableTopicResult(name, error, None, topic.topic_id)


def _name(result: DeletableTopicResult) -> str:
    assert result.name is not None
    return result.name


def _with_error(result: DeletableTopicResult, errors: Mapping[str, ErrorCode]) -> DeletableTopicResult:
    if result.error_code != ErrorCode.NONE:
        return result
    return replace(result, error_code=errors[_name(result)])
