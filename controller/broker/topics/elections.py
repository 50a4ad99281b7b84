"""ElectLeaders: handed to the controller's events, answered when this broker's metadata shows the leaders that were
elected, or when the request's time is up (Kafka's DelayedElectLeader, in a purgatory).

Who may lead the controller decides. Runs on the broker's one thread, jobs apart; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from controller.broker.metadata.metadata_cache import MetadataCache, Partitions
from controller.broker.steps import Job, Steps
from controller.broker.topics.asking import ask_controller
from controller.clock import Clock
from controller.core.events import ElectionKind, ElectLeadersRequested, Outcomes, TopicPartition
from controller.core.ports import EventSink
from controller.protocol.election_values import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from controller.protocol.errors import ErrorCode
from controller.timer.operation import DelayedOperation
from controller.timer.ports import Timer
from controller.timer.purgatory import Purgatory
from controller.timer.task import TimerTask

Answer: TypeAlias = Callable[[Callable[[], ElectLeadersResponse]], None]
"""Takes what makes the response: a job may."""
Errors: TypeAlias = dict[TopicPartition, tuple[ErrorCode, str | None]]

KINDS: Mapping[int, ElectionKind] = {ELECTION_PREFERRED: ElectionKind.PREFERRED, ELECTION_UNCLEAN: ElectionKind.UNCLEAN}


class DelayedElectLeader(DelayedOperation):
    """Waits until the metadata shows each of `expected` led as it was elected. `done` is given those that are not so
    yet when it ends."""

    __slots__ = ("_done", "_metadata", "_waiting")

    def __init__(
        self,
        timeout_ms: int,
        expected: Mapping[TopicPartition, int],
        metadata: MetadataCache,
        done: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._waiting = dict(expected)
        self._metadata = metadata
        self._done = done

    def try_complete(self) -> bool:
        self._look()
        return not self._waiting and self.force_complete()

    def on_complete(self) -> None:
        self._look()
        self._done(self._waiting)

    def _look(self) -> None:
        """One that was seen led as it should be stays so: it may be led by another a moment later."""
        topics = self._metadata.snapshot.topics
        for (topic, partition), leader in list(self._waiting.items()):
            state = topics.get(topic, {}).get(partition)
            if state is not None and state.leader == leader:
                del self._waiting[topic, partition]


class Elections:
    """Handles ElectLeaders. `timer` is shared by all waiting requests of the broker; `on_error` is called if an answer
    could not be made."""

    def __init__(
        self,
        events: EventSink,
        metadata: MetadataCache,
        timer: Timer,
        clock: Clock,
        on_error: Callable[[TimerTask, Exception], None],
    ) -> None:
        self._events = events
        self._metadata = metadata
        self._clock = clock
        self.purgatory: Purgatory[TopicPartition, DelayedElectLeader] = Purgatory(timer, on_error=on_error)

    def metadata_changed(self) -> None:
        """Those that wait are few and each may wait for many partitions: all are tried once."""
        if self.purgatory.delayed:
            self.purgatory.check_and_complete(_METADATA)

    def elect_leaders(self, request: ElectLeadersRequest, answer: Answer) -> Steps:
        """All partitions of the cluster may be asked for: a job collects them, and another makes the answer."""
        kind = KINDS.get(request.election_type)
        if kind is None:
            answer(lambda: ElectLeadersResponse((), int(ErrorCode.INVALID_REQUEST)))
            return
        deadline_ms = self._clock.now_ms() + request.timeout_ms
        topics = self._metadata.snapshot.topics
        partitions: tuple[TopicPartition, ...] = yield Job(lambda: _partitions(request, topics))
        all_of_them = request.topic_partitions is None

        def finish(errors: Callable[[], Errors]) -> None:
            answer(lambda: ElectLeadersResponse(_results(errors(), without_needless=all_of_them)))

        def event(respond: Callable[[Outcomes], None]) -> ElectLeadersRequested:
            return ElectLeadersRequested(kind, partitions, respond)

        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            event,
            lambda outcomes: self._wait(outcomes, deadline_ms, finish),
            lambda: finish(lambda: dict.fromkeys(partitions, (ErrorCode.REQUEST_TIMED_OUT, None))),
        )

    def refuse(self, request: ElectLeadersRequest, error: ErrorCode, message: str, answer: Answer) -> None:
        """Partition by partition, as Kafka does: version 0 has no place for one error of all."""
        topics = self._metadata.snapshot.topics

        def errors() -> Errors:
            return dict.fromkeys(_partitions(request, topics), (error, message))

        answer(lambda: ElectLeadersResponse(_results(errors(), without_needless=False)))

    def _wait(self, outcomes: Outcomes, deadline_ms: float, finish: Callable[[Callable[[], Errors]], None]) -> None:
        expected = {one: outcome.leader for one, outcome in outcomes.items() if outcome.error is ErrorCode.NONE}
        if not expected:
            finish(lambda: _errors(outcomes, ()))
            return

        def done(missing: Iterable[TopicPartition]) -> None:
            late = tuple(missing)
            finish(lambda: _errors(outcomes, late))

        left_ms = max(0, math.ceil(deadline_ms - self._clock.now_ms()))
        operation = DelayedElectLeader(left_ms, expected, self._metadata, done)
        self.purgatory.try_complete_else_watch(operation, (_METADATA,))


_METADATA = ("", -1)
"""One key for all: a snapshot may change in any of its partitions at once."""


def _partitions(request: ElectLeadersRequest, topics: Mapping[str, Partitions]) -> tuple[TopicPartition, ...]:
    """Each once. None asks for all that the broker knows, `topics`."""
    if request.topic_partitions is None:
        return tuple((topic, partition) for topic in sorted(topics) for partition in sorted(topics[topic]))
    named = ((topic.topic, one) for topic in request.topic_partitions for one in topic.partitions)
    return tuple(dict.fromkeys(named))


def _errors(outcomes: Outcomes, late: Iterable[TopicPartition]) -> Errors:
    errors: Errors = {one: (outcome.error, outcome.message) for one, outcome in outcomes.items()}
    errors.update(dict.fromkeys(late, (ErrorCode.REQUEST_TIMED_OUT, None)))
    return errors


def _results(errors: Errors, *, without_needless: bool) -> tuple[ElectedTopic, ...]:
    """Group results by topic. A request for all partitions gets no results for those that needed no election."""
    topics: dict[str, list[ElectedPartition]] = {}
    for (topic, partition), (error, message) in errors.items():
        if not (without_needless and error is ErrorCode.ELECTION_NOT_NEEDED):
            topics.setdefault(topic, []).append(ElectedPartition(partition, int(error), message))
    return tuple(ElectedTopic(topic, tuple(found)) for topic, found in topics.items())
