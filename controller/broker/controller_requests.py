"""Client requests that the active controller answers: topics, elections, reassignments.

Each is put into the events of this process's controller, which decides on its own thread. Its answer is brought back
to the broker's thread; one that arrives after the request's timeout is dropped. CreateTopics, CreatePartitions,
DeleteTopics and ElectLeaders are answered when this broker's metadata shows the result, or when the time is up (Kafka's
DelayedCreateTopics, DelayedDeleteTopics and DelayedElectLeader); what was asked may still be done after that.
AlterPartitionReassignments is answered when the reassignments have begun, as by Kafka. No I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from controller.broker.metadata import (
    INTERNAL_TOPICS,
    MetadataCache,
    MetadataSnapshot,
    MetadataWait,
    Partitions,
    is_legal_topic,
    still_there,
    without_leaders,
)
from controller.broker.ports import Peers
from controller.broker.request_context import SLICE, Job, Steps
from controller.broker.settings import BrokerSettings
from controller.clock import Clock
from controller.core.channels import PeerError
from controller.core.events import (
    AlterReassignmentsRequested,
    CreatePartitionsRequested,
    CreateTopicsRequested,
    DeleteTopicsRequested,
    ElectionKind,
    ElectLeadersRequested,
    ListReassignmentsRequested,
    Outcomes,
    TopicPartition,
)
from controller.core.topic_settings import name_fault
from controller.protocol.admin import (
    ELECTION_PREFERRED,
    ELECTION_UNCLEAN,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectedPartition,
    ElectedTopic,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from controller.protocol.client import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    MetadataRequest,
)
from controller.protocol.codec import ApiKey, decode_response_body, encode_request_body
from controller.protocol.control import NO_TOPIC_ID
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.timer.purgatory import DelayedOperation, Purgatory
from controller.zookeeper.client import EventSink

A = TypeVar("A")


def ask_controller(
    events: EventSink,
    clock: Clock,
    timeout_ms: int,
    event: Callable[[Callable[[A], None]], object],
    answered: Callable[[A], None],
    too_late: Callable[[], None],
) -> None:
    """Puts `event(respond)`; calls either `answered` with what was responded or, after `timeout_ms` (0 or less: never),
    `too_late`."""
    over = False

    def late() -> None:
        nonlocal over
        over = True
        too_late()

    def on_broker_thread(answer: A) -> None:
        if over:
            return
        if timer is not None:
            timer.cancel()
        answered(answer)

    timer = clock.call_later(timeout_ms, late) if timeout_ms > 0 else None

    def respond(answer: A) -> None:
        clock.call_later(0.0, lambda: on_broker_thread(answer))

    events.put(event(respond))


UNSET = -1
TOO_LATE = "The topic's leaders were not known to this broker in time; it may have been created all the same."
R = TypeVar("R", CreatableTopicResult, CreatePartitionsTopicResult)


class _Asked(msgspec.Struct, Generic[R], frozen=True):
    """One request under way. `partitions_of`: how many partitions a topic that was created must show."""

    topics: tuple[str, ...]
    refused: tuple[R, ...]
    timeout_ms: int
    deadline_ms: float
    validate_only: bool
    late: Callable[[str], R]
    partitions_of: Callable[[R], int]
    answer: Callable[[tuple[R, ...]], None]


class CreationLimits(msgspec.Struct, frozen=True):
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


class CreateTopicsHandler:
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


class AutoTopicCreation:
    """Creates topics that a Metadata request names and that do not exist (`auto.create.topics.enable`).

    As Kafka's DefaultAutoTopicCreationManager: a topic has the partitions and the replication factor of the broker that
    is asked, one that is being created is UNKNOWN_TOPIC_OR_PARTITION, and one that has been created is
    LEADER_NOT_AVAILABLE, so that the client asks again. Kafka's brokers without forwarding write the topic to
    ZooKeeper themselves; here the controller is asked, as with forwarding. Internal topics are not created.
    """

    def __init__(
        self, settings: BrokerSettings, metadata: MetadataCache, peers: Peers, creation: CreateTopicsHandler
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._creation = creation
        self._under_way: set[str] = set()

    def missing(self, request: MetadataRequest) -> list[str]:
        """The topics of a request that are to be created, each once."""
        if not request.allow_auto_topic_creation or request.topics is None:
            return []
        known = self._metadata.snapshot.topics
        names = dict.fromkeys(topic.name for topic in request.topics if topic.name is not None)
        return [name for name in names if name not in known and is_legal_topic(name) and name not in INTERNAL_TOPICS]

    def create(
        self, names: Sequence[str], is_controller: bool, then: Callable[[Mapping[str, ErrorCode]], None]
    ) -> None:
        """Call `then` with the error of each topic, once the controller has answered or could not be reached."""
        partitions, factor = self._settings.num_partitions, self._settings.default_replication_factor
        self.create_topics([CreatableTopic(name, partitions, factor) for name in names], is_controller, then)

    def create_topics(
        self, wanted: Sequence[CreatableTopic], is_controller: bool, then: Callable[[Mapping[str, ErrorCode]], None]
    ) -> None:
        """As `create`, of topics that the caller describes."""
        errors = {topic.name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in wanted}
        topics = tuple(topic for topic in wanted if topic.name not in self._under_way)
        if not topics:
            then(errors)
            return
        new = [topic.name for topic in topics]
        self._under_way.update(new)

        def answered(response: CreateTopicsResponse | None) -> None:
            self._under_way.difference_update(new)
            for result in () if response is None else response.topics:
                error = ErrorCode(result.error_code)
                if error is not ErrorCode.NOT_CONTROLLER:
                    errors[result.name] = ErrorCode.LEADER_NOT_AVAILABLE if error in _CREATED else error
            then(errors)

        # No wait for the leaders: the client asks again until it sees them.
        request = CreateTopicsRequest(topics, timeout_ms=0)
        if is_controller:
            self._creation.create_topics(request, _CREATION_VERSION, answered)
        else:
            self._ask_controller(request, answered)

    def _ask_controller(
        self, request: CreateTopicsRequest, answered: Callable[[CreateTopicsResponse | None], None]
    ) -> None:
        snapshot = self._metadata.snapshot
        endpoint = snapshot.endpoint(snapshot.controller_id, self._settings.inter_broker_listener)
        if endpoint is None:
            answered(None)
            return
        body = encode_request_body(ApiKey.CREATE_TOPICS, _CREATION_VERSION, request)
        answer = self._peers.request(
            endpoint.host,
            endpoint.port,
            ApiKey.CREATE_TOPICS,
            _CREATION_VERSION,
            body,
            self._settings.request_timeout_ms,
        )

        def decoded() -> None:
            try:
                response = decode_response_body(ApiKey.CREATE_TOPICS, _CREATION_VERSION, answer.result())
            except (PeerError, ProtocolError):
                answered(None)
                return
            assert isinstance(response, CreateTopicsResponse)
            answered(response)

        answer.on_done(decoded)


_CREATION_VERSION = 4
"""Controllers of Kafka 2.4 and later know it."""
_CREATED = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)


_TWICE = "The topic is named more than once in the request."


def _named_twice(names: Iterable[str]) -> dict[str, tuple[ErrorCode, str]]:
    return {name: (ErrorCode.INVALID_REQUEST, _TWICE) for name, count in Counter(names).items() if count > 1}


FIRST_VERSION_WITH_DISABLED = 3
"""From here on a client knows TOPIC_DELETION_DISABLED."""
NAME_AND_ID = "Topic name and topic ID can not both be specified."
NO_TOPIC_IDS = "Topic IDs are not supported on the server."
DeletionAnswer = Callable[[DeleteTopicsResponse], None]


def disabled_error(version: int) -> ErrorCode:
    return ErrorCode.TOPIC_DELETION_DISABLED if version >= FIRST_VERSION_WITH_DISABLED else ErrorCode.INVALID_REQUEST


def names_both(request: DeleteTopicsRequest) -> bool:
    """Whether a topic is named and given an id too: Kafka refuses such a request whole."""
    return any(topic.name is not None and topic.topic_id != NO_TOPIC_ID for topic in request.topics)


class DeleteTopicsHandler:
    def __init__(
        self, events: EventSink, metadata: MetadataCache, waits: MetadataWait, clock: Clock, topic_ids: bool
    ) -> None:
        self._events = events
        self._metadata = metadata
        self._waits = waits
        self._clock = clock
        self._topic_ids = topic_ids

    def delete_topics(self, request: DeleteTopicsRequest, answer: DeletionAnswer) -> Steps:
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


ElectionAnswer: TypeAlias = Callable[[Callable[[], ElectLeadersResponse]], None]
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


class ElectLeadersHandler:
    """Handles ElectLeaders. `on_error` is called if an answer
    could not be made."""

    def __init__(
        self,
        events: EventSink,
        metadata: MetadataCache,
        clock: Clock,
        on_error: Callable[[DelayedOperation, Exception], None],
    ) -> None:
        self._events = events
        self._metadata = metadata
        self._clock = clock
        self.purgatory: Purgatory[TopicPartition, DelayedElectLeader] = Purgatory(clock, on_error=on_error)

    def metadata_changed(self) -> None:
        """Those that wait are few and each may wait for many partitions: all are tried once."""
        if self.purgatory.delayed:
            self.purgatory.check_and_complete(_METADATA)

    def elect_leaders(self, request: ElectLeadersRequest, answer: ElectionAnswer) -> Steps:
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

    def refuse(self, request: ElectLeadersRequest, error: ErrorCode, message: str, answer: ElectionAnswer) -> None:
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


CONTROLLER_TOO_LATE = "The controller did not come to the request in time; it may do what was asked all the same."


class ReassignmentsHandler:
    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock

    def alter(
        self, request: AlterPartitionReassignmentsRequest, answer: Callable[[AlterPartitionReassignmentsResponse], None]
    ) -> None:
        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: AlterReassignmentsRequested(request, respond),
            answer,
            lambda: answer(AlterPartitionReassignmentsResponse((), ErrorCode.REQUEST_TIMED_OUT, CONTROLLER_TOO_LATE)),
        )

    def list(
        self, request: ListPartitionReassignmentsRequest, answer: Callable[[ListPartitionReassignmentsResponse], None]
    ) -> None:
        ask_controller(
            self._events,
            self._clock,
            request.timeout_ms,
            lambda respond: ListReassignmentsRequested(request, respond),
            answer,
            lambda: answer(ListPartitionReassignmentsResponse((), ErrorCode.REQUEST_TIMED_OUT, CONTROLLER_TOO_LATE)),
        )
