"""The broker's view of the cluster, built from the controller's UpdateMetadata requests.

Each request makes a new snapshot that shares unchanged parts with the old one, so that a snapshot shows one consistent
state to its readers. Values only: no I/O, no clock; epochs are checked before (`replica_manager.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from controller.protocol.control_values import (
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

Partitions: TypeAlias = Mapping[int, UpdateMetadataPartitionState]
Key: TypeAlias = tuple[str, int]
T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """`topics`: name to partition to state. `controller_id`: -1 if unknown. `brokers`: the live ones, by id."""

    controller_id: int = -1
    brokers: Mapping[int, UpdateMetadataBroker] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, Partitions] = field(default_factory=lambda: MappingProxyType({}))
    topic_ids: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))

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
    next one; `named` returns the partitions that a request names. A host of many brokers may replace either by a
    function that returns the same object for all of them."""

    __slots__ = ("_broker_epoch", "_complete_in", "_partitions_follow", "named", "snapshot", "updated")

    def __init__(self) -> None:
        self.snapshot = NOTHING_KNOWN
        self.updated: Callable[[MetadataSnapshot, UpdateMetadataRequest], MetadataSnapshot] = MetadataSnapshot.updated
        self.named: Callable[[UpdateMetadataRequest], NamedPartitions] = named_by
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
