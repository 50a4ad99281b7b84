"""CreateTopics and CreatePartitions: handed to the controller's events, answered when this broker's metadata shows
every leader, or when the request's time is up.

What may be created, and where its replicas go, the controller decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from controller.broker.configs.settings import BrokerSettings
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.metadata.metadata_wait import MetadataWait, without_leaders
from controller.broker.topics.asking import ask_controller
from controller.clock import Clock
from controller.core.events import CreatePartitionsRequested, CreateTopicsRequested
from controller.core.ports import EventSink
from controller.core.topic_rules import name_fault
from controller.protocol.client_values import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from controller.protocol.errors import ErrorCode

UNSET = -1
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


@dataclass(frozen=True, slots=True)
class CreationLimits:
    """Partitions that one topic may have, and that one request may create. `default`: of a topic whose creator does
    not say."""

    topic: int
    request: int
    default: int

    @classmethod
    def of(cls, settings: BrokerSettings) -> CreationLimits:
        return cls(settings.topic_partitions_max, settings.request_partitions_max, settings.num_partitions)

    def faults(self, wanted: Iterable[tuple[str, int, int]]) -> dict[str, tuple[ErrorCode, str]]:
        """What is refused of (topic, partitions that it would have, partitions that are added): a topic with too many,
        and whatever would bring the request above its limit."""
        found: dict[str, tuple[ErrorCode, str]] = {}
        added = 0
        for topic, partitions, more in wanted:
            if partitions > self.topic:
                limit = f"camerlengo.topic.partitions.max={self.topic}"
                found[topic] = ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions: expected at most {limit}"
            elif added + max(more, 0) > self.request:
                limit = f"camerlengo.request.partitions.max={self.request}"
                found[topic] = (
                    ErrorCode.POLICY_VIOLATION,
                    f"The request creates more partitions than {limit}: ask for fewer at once",
                )
            else:
                added += max(more, 0)
        return found


class Creation:
    """Handles CreateTopics and CreatePartitions. Requests beyond `limits` are refused without asking the controller."""

    def __init__(
        self, events: EventSink, waits: MetadataWait, clock: Clock, limits: CreationLimits, metadata: MetadataCache
    ) -> None:
        self._events = events
        self._waits = waits
        self._clock = clock
        self._limits = limits
        self._metadata = metadata

    def create_topics(
        self, request: CreateTopicsRequest, version: int, answer: Callable[[CreateTopicsResponse], None]
    ) -> None:
        refused = _named_twice(topic.name for topic in request.topics)
        counts = ((topic.name, len(topic.assignments) or topic.num_partitions) for topic in request.topics)
        numbers = ((name, self._limits.default if count == UNSET else count) for name, count in counts)
        refused |= self._limits.faults((name, count, count) for name, count in numbers if name not in refused)
        topics = tuple(topic for topic in request.topics if topic.name not in refused)
        asked = _Asked(
            topics=tuple(topic.name for topic in topics),
            refused=tuple(CreatableTopicResult(name, *why) for name, why in refused.items()),
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
        refused = _named_twice(topic.name for topic in request.topics)
        known = self._metadata.snapshot.topics
        refused |= {
            topic.name: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")
            for topic in request.topics
            if topic.name not in refused and name_fault(topic.name) is not None
        }
        refused |= self._limits.faults(
            (topic.name, topic.count, topic.count - len(known.get(topic.name, ())))
            for topic in request.topics
            if topic.name not in refused
        )
        topics = tuple(topic for topic in request.topics if topic.name not in refused)
        counts = {topic.name: topic.count for topic in topics}
        asked = _Asked(
            topics=tuple(counts),
            refused=tuple(CreatePartitionsTopicResult(name, *why) for name, why in refused.items()),
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


def _named_twice(names: Iterable[str]) -> dict[str, tuple[ErrorCode, str]]:
    return {name: (ErrorCode.INVALID_REQUEST, _TWICE) for name, count in Counter(names).items() if count > 1}
