"""The broker's view of the cluster, built from UpdateMetadata requests, and the answers to Metadata requests from it.

Each UpdateMetadata makes a new snapshot that shares unchanged parts with the old one, so that a snapshot shows one
consistent state to its readers. Epochs are checked before (`replica_manager.py`). Metadata requests are answered from a
snapshot, as Kafka 2.8 answers each version. No I/O.

`MetadataWait` delays an answer until the metadata is as the client asked, or the request's time is up: created
partitions have leaders, deleted topics are removed (Kafka's DelayedCreateTopics, DelayedCreatePartitions and
DelayedDeleteTopics). It runs on the broker's one thread, as its timer does.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import msgspec

from controller.broker.request_context import Job, Yielded
from controller.clock import Clock
from controller.protocol.client import (
    NO_AUTHORIZED_OPERATIONS,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from controller.protocol.codec import ApiKey, encode_metadata_partition, encode_response_body
from controller.protocol.control import (
    LEADER_DURING_DELETE,
    NO_BROKER_EPOCH,
    NO_LEADER,
    NO_TOPIC_ID,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.primitives import written
from controller.timer.purgatory import DelayedOperation, Purgatory
from controller.zookeeper.codecs_columns import TOPIC_NAME_LENGTH_MAX

Partitions: TypeAlias = Mapping[int, UpdateMetadataPartitionState]
Key: TypeAlias = tuple[str, int]
T = TypeVar("T")


class BrokerIdentity(msgspec.Struct):
    """What a broker learns of itself from ZooKeeper. `broker_epoch` is its latest registration's czxid, -1 before."""

    broker_epoch: int = NO_BROKER_EPOCH
    cluster_id: str | None = None


def endpoint_of(broker: UpdateMetadataBroker, listener: str) -> UpdateMetadataEndpoint | None:
    """The broker's endpoint of that listener's name, if it has one."""
    for endpoint in broker.endpoints:
        if endpoint.listener == listener:
            return endpoint
    return None


class NamedPartitions:
    """The partitions that an UpdateMetadata names, by topic and index. Computed once, on first use: one object may
    serve all brokers that receive the same request."""

    __slots__ = ("_going", "_keys", "_topics")

    def __init__(self, topics: Sequence[UpdateMetadataTopicState]) -> None:
        self._topics = topics
        self._keys: dict[Key, None] | None = None
        self._going: dict[Key, tuple[int, ...]] = {}

    @property
    def going(self) -> Mapping[Key, tuple[int, ...]]:
        """Of those that are on their way out, the assignments."""
        self._look()
        return self._going

    def __contains__(self, key: Key) -> bool:
        return key in self._look()

    def among(self, held: Mapping[Key, T]) -> list[T]:
        """What is held of them: found by whichever is the shorter way, in its order."""
        keys = self._look()
        if len(keys) > len(held):
            return [one for key, one in held.items() if key in keys]
        return [held[key] for key in keys if key in held]

    def _look(self) -> dict[Key, None]:
        if self._keys is None:
            self._keys = {
                (topic.topic_name, state.partition_index): None
                for topic in self._topics
                for state in topic.partition_states
            }
            self._going = {
                (topic.topic_name, state.partition_index): state.replicas
                for topic in self._topics
                for state in topic.partition_states
                if state.leader == LEADER_DURING_DELETE
            }
        return self._keys


class MetadataSnapshot(msgspec.Struct, frozen=True):
    """`topics`: name to partition to state. `controller_id`: -1 if unknown. `brokers`: the live ones, by id."""

    controller_id: int = -1
    brokers: Mapping[int, UpdateMetadataBroker] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, Partitions] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    topic_ids: Mapping[str, bytes] = msgspec.field(default_factory=lambda: MappingProxyType({}))

    def endpoint(self, broker_id: int, listener: str) -> UpdateMetadataEndpoint | None:
        """Where a live broker's listener of that name is reached."""
        broker = self.brokers.get(broker_id)
        return endpoint_of(broker, listener) if broker else None

    def has_leader(self, topic: str, partition: int) -> bool:
        state = self.topics.get(topic, {}).get(partition)
        return state is not None and state.leader not in (NO_LEADER, LEADER_DURING_DELETE)

    def only(self, names: Collection[str]) -> MetadataSnapshot:
        """Without the topics that are not among `names`, brokers and controller."""
        topics = {name: self.topics[name] for name in names if name in self.topics}
        if not topics:
            return NOTHING_KNOWN
        ids = {name: self.topic_ids[name] for name in topics if name in self.topic_ids}
        return MetadataSnapshot(topics=topics, topic_ids=ids)

    def updated(self, request: UpdateMetadataRequest) -> MetadataSnapshot:
        """Return a snapshot with the request's live brokers, controller and named partitions, and everything else
        unchanged. A partition whose leader is LEADER_DURING_DELETE is removed."""
        topics = dict(self.topics)
        topic_ids = dict(self.topic_ids)
        for topic in request.topic_states:
            partitions = dict(topics.get(topic.topic_name, {}))
            for state in topic.partition_states:
                if state.leader == LEADER_DURING_DELETE:
                    partitions.pop(state.partition_index, None)
                else:
                    partitions[state.partition_index] = state
            if partitions:
                topics[topic.topic_name] = partitions
                if topic.topic_id != NO_TOPIC_ID:
                    topic_ids[topic.topic_name] = topic.topic_id
            else:
                topics.pop(topic.topic_name, None)
                topic_ids.pop(topic.topic_name, None)
        return MetadataSnapshot(
            controller_id=max(request.controller_id, -1),
            brokers={broker.id: broker for broker in request.live_brokers},
            topics=topics,
            topic_ids=topic_ids,
        )


NOTHING_KNOWN = MetadataSnapshot()


def named_by(request: UpdateMetadataRequest) -> NamedPartitions:
    return NamedPartitions(request.topic_states)


class MetadataCache:
    """Holds the current snapshot. Only the broker calls `update`; any thread may read `snapshot`. `updated` makes the
    next one; `named` returns the partitions that a request names. A host of many brokers may pass functions that return
    the same object for all of them."""

    __slots__ = ("_broker_epoch", "_complete_in", "_partitions_follow", "named", "snapshot", "updated")

    def __init__(
        self,
        updated: Callable[[MetadataSnapshot, UpdateMetadataRequest], MetadataSnapshot] = MetadataSnapshot.updated,
        named: Callable[[UpdateMetadataRequest], NamedPartitions] = named_by,
    ) -> None:
        self.snapshot = NOTHING_KNOWN
        self.updated = updated
        self.named = named
        self._broker_epoch = NO_BROKER_EPOCH
        self._complete_in = 0
        """The latest controller epoch of which a request with `complete_but` was taken in."""
        self._partitions_follow = False

    @property
    def for_clients(self) -> MetadataSnapshot:
        """Return the snapshot for clients. It is empty while a new controller has sent the brokers alone and this
        broker knew no partition before: clients then turn to another broker, whereas they would believe an answer
        without topics."""
        return NOTHING_KNOWN if self._partitions_follow else self.snapshot

    def next(self, request: UpdateMetadataRequest) -> Callable[[], MetadataSnapshot]:
        """What makes the snapshot that `update` takes. It changes nothing, so that a job may call it; no other update
        may come before that one."""
        before, updated, kept = self.snapshot, self.updated, self.kept(request)
        if kept is None:
            return lambda: updated(before, request)
        return lambda: updated(before.only(kept), request)  # each request says anew who lives and who is controller

    def kept(self, request: UpdateMetadataRequest) -> Collection[str] | None:
        """Return None if topics that the request does not name stay as they are; otherwise all of them are removed,
        except those returned.

        The first partitions that a controller sends to a new registration of this broker are all that it knows. Topics
        from before that do not exist any more are removed, or this broker would show them for good. (A broker can
        outlive its session, and no controller sends it the deletions of that time.)

        With `complete_but` the same holds without a new registration, except for the topics listed there. While a
        registration can't be used, no controller knows the broker, and afterwards it is still the same registration. A
        controller sends it once in its term. A second one was sent before over a connection that broke, and arrives
        after requests that came later: it may not take away what those named.
        """
        is_complete = request.complete_but is not None
        if request.broker_epoch > self._broker_epoch and (request.topic_states or is_complete):
            return ()
        return request.complete_but if request.controller_epoch > self._complete_in else None

    def update(
        self, request: UpdateMetadataRequest, snapshot: MetadataSnapshot | None = None
    ) -> Collection[str] | None:
        """Takes the request in. `snapshot`: what `next` made for it. Returns what `kept` returned for it."""
        made, kept = self.next(request)() if snapshot is None else snapshot, self.kept(request)
        self._partitions_follow = request.partitions_follow and not self.snapshot.topics
        if kept is not None:
            self._broker_epoch = max(self._broker_epoch, request.broker_epoch)
        if request.complete_but is not None:
            self._complete_in = max(self._complete_in, request.controller_epoch)
        self.snapshot = made
        return kept


Lacking: TypeAlias = Callable[[MetadataSnapshot], frozenset[str]]
"""Of the topics waited for, those that are not yet as they were asked to be."""


def without_leaders(wanted: Sequence[tuple[str, int]]) -> Lacking:
    """`wanted`: (topic, number of partitions). Lacking is a topic of which a partition has no leader."""
    return lambda snapshot: frozenset(
        topic
        for topic, partitions in wanted
        if not all(snapshot.has_leader(topic, partition) for partition in range(partitions))
    )


def still_there(topics: Sequence[str]) -> Lacking:
    return lambda snapshot: frozenset(topic for topic in topics if topic in snapshot.topics)


class DelayedTopics(DelayedOperation):
    """`done` is given the topics that are lacking when it ends."""

    __slots__ = ("_done", "_lacking", "_metadata")

    def __init__(
        self, timeout_ms: int, lacking: Lacking, metadata: MetadataCache, done: Callable[[frozenset[str]], None]
    ) -> None:
        super().__init__(timeout_ms)
        self._lacking = lacking
        self._metadata = metadata
        self._done = done

    def try_complete(self) -> bool:
        return not self._lacking(self._metadata.snapshot) and self.force_complete()

    def on_complete(self) -> None:
        self._done(self._lacking(self._metadata.snapshot))


class MetadataWait:
    """`on_error` is called if an answer could not be made; the others are still made."""

    def __init__(
        self, metadata: MetadataCache, clock: Clock, on_error: Callable[[DelayedOperation, Exception], None]
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self.purgatory: Purgatory[str, DelayedTopics] = Purgatory(clock, on_error=on_error)

    def __len__(self) -> int:
        return self.purgatory.delayed

    def wait(self, lacking: Lacking, deadline_ms: float, done: Callable[[frozenset[str]], None]) -> None:
        """Calls `done` once, with the topics that are lacking: none when there are none (at once if it is so
        already), else those when `deadline_ms` came."""
        left_ms = math.ceil(deadline_ms - self._clock.now_ms())
        operation = DelayedTopics(left_ms, lacking, self._metadata, done)
        if left_ms <= 0:
            operation.force_complete()
        else:
            self.purgatory.try_complete_else_watch(operation, (_METADATA,))

    def metadata_changed(self) -> None:
        self.purgatory.check_and_complete(_METADATA)


_METADATA = "metadata"
"""One key for all: requests about topics are few, and a snapshot may change in any of its topics at once."""


INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
BODIES_KEPT = 4
KEPT_TOPICS = 1_000
"""Answers to requests that name more topics, or one that no topic can have, are not kept."""
SLICE = 500
"""Topics and partitions of an answer that are made between two yields; most partitions are encoded already."""
ROWS_KEPT = 20_000
_Asked: TypeAlias = tuple[int, MetadataRequest, int, str, str | None]
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")

# With no authorizer everybody may do what there is to do; one bit for each AclOperation's code.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


def is_legal_topic(name: str) -> bool:
    return name not in (".", "..") and len(name) <= TOPIC_NAME_LENGTH_MAX and _LEGAL_TOPIC.fullmatch(name) is not None


def metadata_response(
    snapshot: MetadataSnapshot,
    request: MetadataRequest,
    version: int,
    listener: str,
    cluster_id: str | None,
    rows: MetadataRows | None = None,
) -> Generator[None, Any, MetadataResponse]:
    """Make a Metadata response, in slices. `listener` is the one that the request arrived on; brokers without it are
    left out. With `rows` the response is for the encoder alone: partitions that were encoded before are reused. A topic
    that is named several times is answered once, as in Kafka: the cluster's size bounds the answer.

    While no broker is known, no topic is answered, not even as unknown: clients ask again then. For topics without
    brokers librdkafka (2.10 to 2.16) gives up every broker that it knows, and asks none any more."""
    answer = _Answer(snapshot, version, listener, request.include_topic_authorized_operations, rows)
    named = None if request.topics is None else dict[MetadataRequestTopic, None]()
    topics: list[MetadataResponseTopic] = []
    done = 0  # topics and partitions since the last yield
    asked: Iterable[str | MetadataRequestTopic] = snapshot.topics if request.topics is None else request.topics
    for one in asked if snapshot.brokers else ():
        if isinstance(one, str):
            topics.append(answer.topic(one, snapshot.topics[one]))
        elif named is not None and one not in named:
            named[one] = None
            topics.append(answer.asked_for(one))
        else:
            done += 1
            continue
        done += 1 + len(topics[-1].partitions)
        if done >= SLICE:
            done = 0
            yield None
    brokers = [
        MetadataResponseBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
        for broker in snapshot.brokers.values()
        if (endpoint := endpoint_of(broker, listener)) is not None
    ]
    return MetadataResponse(
        brokers=tuple(brokers),
        topics=tuple(topics),
        cluster_id=cluster_id,
        controller_id=snapshot.controller_id,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
        ),
    )


class MetadataBodies:
    """Answers' bodies, encoded once for all that ask the same of one snapshot: after a failure every client does. Of a
    snapshot that is another only what has changed is encoded anew. Who hosts many brokers may give all of them one."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[_Asked, tuple[MetadataSnapshot, bytes]] = OrderedDict()
        self._rows = MetadataRows()

    def body(
        self, snapshot: MetadataSnapshot, request: MetadataRequest, version: int, listener: str, cluster_id: str | None
    ) -> Generator[Yielded, Any, bytes]:
        """Made in slices. UnencodableValue."""
        if not _may_be_kept(request):
            value = yield from metadata_response(snapshot, request, version, listener, cluster_id, self._rows)
            return (yield Job(lambda: encode_response_body(ApiKey.METADATA, version, value)))  # type: ignore[no-any-return]
        key = (id(snapshot), request, version, listener, cluster_id)
        known = self._bodies.get(key)
        if known is not None:
            return known[1]
        making = metadata_response(snapshot, request, version, listener, cluster_id, self._rows)
        sliced = False
        while True:
            try:
                next(making)
            except StopIteration as end:
                value = end.value
                break
            sliced = True
            yield None
        if sliced:
            body: bytes = yield Job(lambda: encode_response_body(ApiKey.METADATA, version, value))
        else:
            body = encode_response_body(ApiKey.METADATA, version, value)
        self._bodies[key] = (snapshot, body)
        if len(self._bodies) > BODIES_KEPT:
            self._bodies.popitem(last=False)
        return body


def _may_be_kept(request: MetadataRequest) -> bool:
    """Whether what a client named is small: the answer repeats the names."""
    return request.topics is None or (
        len(request.topics) <= KEPT_TOPICS
        and all(one.name is None or len(one.name) <= TOPIC_NAME_LENGTH_MAX for one in request.topics)
    )


class MetadataRows:
    """Partitions as they were encoded last, by topic and version: each for as long as its state is the very same, and
    its leader is reached as before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], dict[int, tuple[UpdateMetadataPartitionState, ErrorCode, bytes]]] = {}
        self._count = 0

    def of(self, answer: _Answer, topic: str, partitions: Partitions, version: int) -> list[bytes]:
        """UnencodableValue."""
        if self._count > ROWS_KEPT:
            self._known, self._count = {}, 0
        known = self._known.setdefault((topic, version), {})
        before = len(known)
        found = []
        for index, state in partitions.items():
            row = known.get(index)
            error = answer.reached[state.leader]
            if row is None or row[0] is not state or row[1] is not error:
                row = known[index] = (state, error, encode_metadata_partition(version, answer.partition(state)))
            found.append(row[2])
        self._count += len(known) - before
        return found


class _Reached(dict[int, ErrorCode]):
    """The error that a client gets for each leader (NONE: it is reachable), determined once per leader."""

    def __init__(self, snapshot: MetadataSnapshot, listener: str, knows_listener_error: bool) -> None:
        super().__init__()
        self._brokers = snapshot.brokers
        self._listener = listener
        self._knows_listener_error = knows_listener_error

    def __missing__(self, leader: int) -> ErrorCode:
        broker = self._brokers.get(leader)
        if broker is None:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif endpoint_of(broker, self._listener) is not None:
            error = ErrorCode.NONE
        else:
            error = ErrorCode.LISTENER_NOT_FOUND if self._knows_listener_error else ErrorCode.LEADER_NOT_AVAILABLE
        self[leader] = error
        return error


class _Answer:
    """What holds for all topics of one response."""

    def __init__(
        self,
        snapshot: MetadataSnapshot,
        version: int,
        listener: str,
        with_operations: bool,
        rows: MetadataRows | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._version = version
        # Version 0 leaves out replicas that can't be reached; from 6 on a client knows LISTENER_NOT_FOUND.
        self._only_reachable = version == 0
        self._rows = None if self._only_reachable else rows
        self.reached = _Reached(snapshot, listener, knows_listener_error=version >= 6)
        self._operations = TOPIC_OPERATIONS if with_operations else NO_AUTHORIZED_OPERATIONS

    def asked_for(self, topic: MetadataRequestTopic) -> MetadataResponseTopic:
        if topic.name is None:
            # Asking by id is of version 12; the field that versions 10 and 11 have for it is refused by Kafka 2.8.
            return MetadataResponseTopic(ErrorCode.UNSUPPORTED_VERSION, "", (), topic.topic_id)
        partitions = self._snapshot.topics.get(topic.name)
        if partitions is not None:
            return self.topic(topic.name, partitions)
        legal = is_legal_topic(topic.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error, topic.name, (), is_internal=topic.name in INTERNAL_TOPICS)

    def topic(self, name: str, partitions: Partitions) -> MetadataResponseTopic:
        if self._rows is None:
            shown = tuple(self.partition(state) for state in partitions.values())
        else:
            shown = written(self._rows.of(self, name, partitions, self._version))
        return MetadataResponseTopic(
            ErrorCode.NONE,
            name,
            shown,
            self._snapshot.topic_ids.get(name, NO_TOPIC_ID),
            name in INTERNAL_TOPICS,
            self._operations,
        )

    def partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        replicas, isr = state.replicas, state.isr
        if self._only_reachable:
            replicas = tuple(one for one in replicas if self.reached[one] is ErrorCode.NONE)
            isr = tuple(one for one in isr if self.reached[one] is ErrorCode.NONE)
        leader, error = state.leader, self.reached[state.leader]
        if error is not ErrorCode.NONE:
            leader = NO_LEADER
        elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
            error = ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            error, state.partition_index, leader, replicas, isr, state.leader_epoch, state.offline_replicas
        )
