"""CreateTopics and CreatePartitions: handed to the controller's events, answered when this broker's metadata shows
every leader, or when the request's time is up.

What may be created, and where its replicas go, the controller decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from controller.broker.metadata.metadata_wait import MetadataWait, without_leaders
from controller.broker.topics.asking import ask_controller
from controller.clock import Clock
from controller.core.events import CreatePartitionsRequested, CreateTopicsRequested
from controller.core.ports import EventSink
from controller.protocol.client_values import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from controller.protocol.errors import ErrorCode

TOO_LATE = "The topic's leaders were not known to this broker in time; it may have been created all the same."
R = TypeVar("R", CreatableTopicResult, CreatePartitionsTopicResult)


@dataclass(frozen=True, slots=True)
class _Asked(Generic[R]):
    """One request under way. `partitions_of`: how many partitions a topic that was created must show."""

    topics: tuple[str, ...]
    refused: tuple[R, ...]
    timeout_ms: int
    deadline_ms: float
    validate_only: bool
    late: Callable[[str], R]
    partitions_of: Callable[[R], int]
    answer: Callable[[tuple[R, ...]], None]


class Creation:
    def __init__(self, events: EventSink, waits: MetadataWait, clock: Clock) -> None:
        self._events = events
        self._waits = waits
        self._clock = clock

    def create_topics(
        self, request: CreateTopicsRequest, version: int, answer: Callable[[CreateTopicsResponse], None]
    ) -> None:
        twice = _named_twice(topic.name for topic in request.topics)
        topics = tuple(topic for topic in request.topics if topic.name not in twice)
        asked = _Asked(
            topics=tuple(topic.name for topic in topics),
            refused=tuple(CreatableTopicResult(name, ErrorCode.INVALID_REQUEST, _TWICE) for name in twice),
            timeout_ms=request.timeout_ms,
            deadline_ms=self._clock.now_ms() + request.timeout_ms,
            validate_only=request.validate_only,
            late=lambda name: CreatableTopicResult(name, ErrorCode.REQUEST_TIMED_OUT, TOO_LATE),
            partitions_of=lambda result: result.num_partitions,
            answer=lambda results: answer(CreateTopicsResponse(results)),
        )
        self._ask(
            asked,
            lambda respond: CreateTopicsRequested(
                replace(request, topics=topics), version, lambda response: respond(response.topics)
            ),
        )

    def create_partitions(
        self, request: CreatePartitionsRequest, answer: Callable[[CreatePartitionsResponse], None]
    ) -> None:
        twice = _named_twice(topic.name for topic in request.topics)
        topics = tuple(topic for topic in request.topics if topic.name not in twice)
        counts = {topic.name: topic.count for topic in topics}
        asked = _Asked(
            topics=tuple(counts),
            refused=tuple(CreatePartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, _TWICE) for name in twice),
            timeout_ms=request.timeout_ms,
            deadline_ms=self._clock.now_ms() + request.timeout_ms,
            validate_only=request.validate_only,
            late=lambda name: CreatePartitionsTopicResult(name, ErrorCode.REQUEST_TIMED_OUT, TOO_LATE),
            partitions_of=lambda result: counts[result.name],
            answer=lambda results: answer(CreatePartitionsResponse(results)),
        )
        self._ask(
            asked,
            lambda respond: CreatePartitionsRequested(
                replace(request, topics=topics), lambda response: respond(response.results)
            ),
        )

    def _ask(self, asked: _Asked[R], event: Callable[[Callable[[Sequence[R]], None]], object]) -> None:
        if not asked.topics:
            asked.answer(asked.refused)
            return
        ask_controller(
            self._events,
            self._clock,
            asked.timeout_ms,
            event,
            lambda results: self._wait_for_leaders(asked, results),
            lambda: asked.answer(asked.refused + tuple(asked.late(name) for name in asked.topics)),
        )

    def _wait_for_leaders(self, asked: _Asked[R], results: Sequence[R]) -> None:
        created = [result for result in results if result.error_code == ErrorCode.NONE]
        if asked.validate_only or not created:
            asked.answer(asked.refused + tuple(results))
            return

        def answer(missing: frozenset[str]) -> None:
            asked.answer(
                asked.refused
                + tuple(asked.late(result.name) if result.name in missing else result for result in results)
            )

        if asked.timeout_ms <= 0:
            answer(frozenset(result.name for result in created))
            return
        wanted = [(result.name, asked.partitions_of(result)) for result in created]
        self._waits.wait(without_leaders(wanted), asked.deadline_ms, answer)


_TWICE = "The topic is named more than once in the request."


def _named_twice(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, count in Counter(names).items() if count > 1)
