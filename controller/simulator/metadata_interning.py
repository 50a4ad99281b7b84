"""Metadata requests that the controller sends to many brokers in the same bytes, decoded once for all of them.

On machines of their own a thousand brokers each decode an UpdateMetadata and hold its values. In one process they would
hold the same values a thousand times. So a request whose end is one object for all its receivers (`SharedFrame`) is
decoded once, and brokers that apply the same request to the same snapshot share the next snapshot; a live broker is one
object in all of them. Values are immutable, so that sharing has no effect. Which broker receives what, and when, does
not change.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from msgspec.structs import replace

from controller.broker.metadata import MetadataBodies, MetadataSnapshot, NamedPartitions, named_by
from controller.core.request_batch import UPDATE_METADATA_VERSIONS, common_part
from controller.protocol.codec import ApiKey, Request, decode_request, encode_request_body
from controller.protocol.control import UpdateMetadataBroker, UpdateMetadataRequest, UpdateMetadataTopicState
from controller.simulator.network import SharedFrame

KEPT = 8
"""How many requests, and how many snapshots, are known at a time: brokers lag behind one another by a few."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """`rest` is kept so that no other object can have its identity."""

    rest: bytes
    topic_states: tuple[UpdateMetadataTopicState, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]
    partitions_follow: bool
    complete_but: tuple[str, ...] | None

    def all_of(self, value: UpdateMetadataRequest) -> UpdateMetadataRequest:
        """With what a receiver has of its own."""
        return replace(
            value,
            topic_states=self.topic_states,
            live_brokers=self.live_brokers,
            partitions_follow=self.partitions_follow,
            complete_but=self.complete_but,
        )


_Step: TypeAlias = tuple[MetadataSnapshot, UpdateMetadataRequest, MetadataSnapshot]


class MetadataInterning:
    """One for all brokers of a run."""

    def __init__(self) -> None:
        self._decoded: OrderedDict[int, _Decoded] = OrderedDict()
        self._steps: OrderedDict[tuple[int, int, int, int], _Step] = OrderedDict()
        self._named: OrderedDict[int, tuple[tuple[UpdateMetadataTopicState, ...], NamedPartitions]] = OrderedDict()
        self.metadata_bodies = MetadataBodies()
        self._brokers: dict[UpdateMetadataBroker, UpdateMetadataBroker] = {}

    def request(self, frame: SharedFrame) -> Request:
        """As `decode_request` of the whole frame. What a receiver has of its own stands in the frame's head."""
        key, version = (int.from_bytes(frame.head[at : at + 2], "big", signed=True) for at in (0, 2))
        if key != ApiKey.UPDATE_METADATA or version not in UPDATE_METADATA_VERSIONS:
            return decode_request(frame.joined())
        known = self._decoded.get(id(frame.rest))
        if known is None:
            request = decode_request(frame.joined())
            value = request.value
            assert isinstance(value, UpdateMetadataRequest)
            known = self._decoded[id(frame.rest)] = _Decoded(
                frame.rest,
                self._interned_states(value.topic_states),
                tuple(self._brokers.setdefault(one, one) for one in value.live_brokers),
                value.partitions_follow,
                value.complete_but,
            )
            if len(self._decoded) > KEPT:
                self._decoded.popitem(last=False)
            return Request(request.header, known.all_of(value))
        own = decode_request(frame.head + _nothing_told(version))
        value = own.value
        assert isinstance(value, UpdateMetadataRequest)
        return Request(own.header, known.all_of(value))

    def _interned_states(self, states: tuple[UpdateMetadataTopicState, ...]) -> tuple[UpdateMetadataTopicState, ...]:
        """Share equal states: a new controller sends the same states more than once."""
        return next((one.topic_states for one in self._decoded.values() if one.topic_states == states), states)

    def updated(self, snapshot: MetadataSnapshot, request: UpdateMetadataRequest) -> MetadataSnapshot:
        """As `snapshot.updated(request)`."""
        step = (id(snapshot), id(request.topic_states), id(request.live_brokers), request.controller_id)
        known = self._steps.get(step)
        if known is None:
            known = self._steps[step] = (snapshot, request, snapshot.updated(request))
            if len(self._steps) > KEPT:
                self._steps.popitem(last=False)
        return known[2]

    def named(self, request: UpdateMetadataRequest) -> NamedPartitions:
        """As `named_by(request)`."""
        known = self._named.get(id(request.topic_states))
        if known is None:
            known = self._named[id(request.topic_states)] = (request.topic_states, named_by(request))
            if len(self._named) > KEPT:
                self._named.popitem(last=False)
        return known[1]


@cache
def _nothing_told(version: int) -> bytes:
    """The end of an UpdateMetadata that names no partition and no broker."""
    return common_part(encode_request_body(ApiKey.UPDATE_METADATA, version, UpdateMetadataRequest(0, 0, (), (), 0)))
