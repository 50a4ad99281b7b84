"""How a transaction ends: markers are written to all its partitions, by whichever brokers lead them.

The coordinator sends WriteTxnMarkers to the leaders, one request at a time to each broker. A partition that can't have
its marker now (no leader, another leader, too few replicas in sync, no answer) is tried again, after a back-off and for
as long as this broker coordinates the transaction. A partition that the metadata does not know has been deleted, and
needs none; but metadata may lag behind, so that counts only after `DELETED_AFTER_MS`. Once every partition has its
marker the transaction is complete. Source: Kafka 2.8's TransactionMarkerChannelManager and
TransactionMarkerRequestCompletionHandler.

What is kept is bounded by the transactions that are coordinated here: each has one `Ending` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from controller.backoff import backoff_ms
from controller.broker.metadata import MetadataCache
from controller.broker.ports import Peers
from controller.broker.request_context import on_broker_thread
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Future
from controller.core.channels import PeerConnection, PeerError
from controller.protocol.codec import ApiKey, control_versions, decode_response_body, encode_request_body
from controller.protocol.control import NO_LEADER
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

FIRST_BACKOFF_MS = 20.0
LONGEST_BACKOFF_MS = 1_000.0
DELETED_AFTER_MS = 5_000.0
"""So long must a partition be missing in the metadata before it counts as deleted."""
MARKERS_AT_ONCE = 200
"""Transactions in one request to a broker."""
Key = tuple[str, int]
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_NONE_NEEDED = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
_WORTH_NAMING = 8


class Ending(msgspec.Struct):
    """A transaction whose markers are being written. `left`: the partitions without one. `ended(fenced)` is called
    once: when none is left, or with True when a leader knows a later epoch of the producer or the coordinator, so that
    this one is not to write any more. `is_wanted`: whether this broker still coordinates it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commits: bool
    coordinator_epoch: int
    left: dict[Key, None]
    ended: Callable[[bool], None]
    is_wanted: Callable[[], bool]
    failures: int = 0
    missing_since_ms: float | None = None
    in_flight: int = 0
    """Requests that carry markers of it."""
    is_over: bool = False

    def marker(self, keys: Iterable[Key]) -> WritableTxnMarker:
        topics: dict[str, list[int]] = {}
        for topic, index in keys:
            topics.setdefault(topic, []).append(index)
        named = tuple(WritableTxnMarkerTopic(topic, tuple(indexes)) for topic, indexes in topics.items())
        return WritableTxnMarker(self.producer_id, self.producer_epoch, self.commits, named, self.coordinator_epoch)


class _Channel:
    """To one broker: what is to be sent, and what is under way."""

    __slots__ = ("address", "connection", "queued", "sent")

    def __init__(self) -> None:
        self.queued: list[tuple[Ending, tuple[Key, ...]]] = []
        self.sent: list[tuple[Ending, tuple[Key, ...]]] = []
        self.connection: PeerConnection | None = None
        self.address: tuple[str, int] | None = None


@dataclass(eq=False)
class MarkerChannels:
    """`write_here` writes the markers whose partitions this broker leads itself, and answers once."""

    _settings: BrokerSettings
    _metadata: MetadataCache
    _peers: Peers
    _clock: Clock
    _write_here: Callable[[WriteTxnMarkersRequest, Callable[[WriteTxnMarkersResponse], None]], None]
    _note: Callable[[str, str], None]

    def __post_init__(self) -> None:
        self._version = 1 if control_versions(self._settings.inter_broker_protocol).topic_ids else 0
        self._channels: dict[int, _Channel] = {}
        self._endings: dict[str, Ending] = {}

    @property
    def under_way(self) -> int:
        """Transactions whose markers are being written."""
        return len(self._endings)

    def send(self, ending: Ending) -> None:
        """Write the markers. An earlier ending of the same transactional id is given up."""
        before = self._endings.pop(ending.transactional_id, None)
        if before is not None:
            before.is_over = True
        self._endings[ending.transactional_id] = ending
        self._route(ending)

    def forget(self, transactional_ids: Iterable[str]) -> None:
        """This broker coordinates them no more."""
        for transactional_id in transactional_ids:
            ending = self._endings.pop(transactional_id, None)
            if ending is not None:
                ending.is_over = True

    def metadata_changed(self) -> None:
        """A broker that is gone, or has another address, does not answer any more: what it was sent is sent again."""
        for broker, channel in self._channels.items():
            if channel.connection is not None and self._address(broker) != channel.address:
                channel.connection.close()

    def close(self) -> None:
        """Close the connections; what is left unanswered is the next coordinator's to write."""
        self.forget(list(self._endings))
        for channel in self._channels.values():
            if channel.connection is not None:
                channel.connection.close()

    def _address(self, broker: int) -> tuple[str, int] | None:
        endpoint = self._metadata.snapshot.endpoint(broker, self._settings.inter_broker_listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _route(self, ending: Ending) -> None:
        """Queue each partition for its present leader."""
        if ending.is_over:
            return
        if not ending.is_wanted():
            self.forget([ending.transactional_id])
            return
        if not ending.left:
            self._end(ending, fenced=False)
            return
        by_leader: dict[int, list[Key]] = {}
        missing = []
        topics = self._metadata.snapshot.topics
        for key in ending.left:
            state = topics.get(key[0], {}).get(key[1])
            if state is None:
                missing.append(key)
            elif state.leader > NO_LEADER:
                by_leader.setdefault(state.leader, []).append(key)
        self._pass_over_deleted(ending, missing)
        for leader, keys in by_leader.items():
            ending.in_flight += 1
            channel = self._channels.setdefault(leader, _Channel())
            channel.queued.append((ending, tuple(keys)))
            self._pump(leader, channel)
        if not ending.in_flight:
            self._again(ending)

    def _pass_over_deleted(self, ending: Ending, missing: Sequence[Key]) -> None:
        now_ms = self._clock.now_ms()
        if not missing:
            ending.missing_since_ms = None
        elif ending.missing_since_ms is None:
            ending.missing_since_ms = now_ms
        elif now_ms - ending.missing_since_ms >= DELETED_AFTER_MS:
            names = ", ".join(f"{topic}-{index}" for topic, index in missing[:_WORTH_NAMING])
            self._note("info", f"transactional id {ending.transactional_id}: no markers for {names}: deleted")
            for key in missing:
                ending.left.pop(key, None)

    def _again(self, ending: Ending) -> None:
        """All that was sent is answered: whatever is left is sent once more, after a while."""
        if ending.is_over:
            return
        if not ending.left:
            self._route(ending)
            return
        ending.failures += 1
        delay_ms = backoff_ms(ending.failures, FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)
        self._clock.call_later(delay_ms, lambda: self._route(ending))

    def _end(self, ending: Ending, *, fenced: bool) -> None:
        ending.is_over = True
        if self._endings.get(ending.transactional_id) is ending:
            del self._endings[ending.transactional_id]
        ending.ended(fenced)

    # One broker.

    def _pump(self, broker: int, channel: _Channel) -> None:
        if channel.sent or not channel.queued:
            return
        channel.sent, channel.queued = channel.queued[:MARKERS_AT_ONCE], channel.queued[MARKERS_AT_ONCE:]
        markers = tuple(ending.marker(keys) for ending, keys in channel.sent if not ending.is_over)
        request = WriteTxnMarkersRequest(markers)
        if not markers:
            self._clock.call_later(0.0, lambda: self._answered(broker, channel, None))
        elif broker == self._settings.broker_id:
            # Not before this call has returned: the answer may queue more.
            def here(response: WriteTxnMarkersResponse) -> None:
                self._clock.call_later(0.0, lambda: self._answered(broker, channel, response))

            self._write_here(request, here)
        else:
            self._ask(broker, channel, request)

    def _ask(self, broker: int, channel: _Channel, request: WriteTxnMarkersRequest) -> None:
        connection = self._connected(broker, channel)
        if connection is None:
            self._clock.call_later(0.0, lambda: self._answered(broker, channel, None))
            return
        body = encode_request_body(ApiKey.WRITE_TXN_MARKERS, self._version, request)
        # Longer than the leader waits for its followers.
        timeout_ms = 2.0 * self._settings.request_timeout_ms
        answer = connection.request(ApiKey.WRITE_TXN_MARKERS, self._version, body, timeout_ms)
        on_broker_thread(answer, self._clock, lambda: self._received(broker, channel, answer))

    def _connected(self, broker: int, channel: _Channel) -> PeerConnection | None:
        address = self._address(broker)
        if channel.connection is not None and channel.address != address:
            channel.connection.close()
            channel.connection = None
        if channel.connection is None and address is not None:
            channel.connection = self._peers.connect(*address)
        channel.address = address
        return channel.connection

    def _received(self, broker: int, channel: _Channel, answer: Future[bytes]) -> None:
        response: WriteTxnMarkersResponse | None = None
        try:
            decoded = decode_response_body(ApiKey.WRITE_TXN_MARKERS, self._version, answer.result())
            assert isinstance(decoded, WriteTxnMarkersResponse)
            response = decoded
        except (PeerError, ProtocolError) as error:
            self._note("info", f"broker {broker} did not answer WriteTxnMarkers, which is sent again: {error}")
            if channel.connection is not None:
                channel.connection.close()
            channel.connection = None
        self._answered(broker, channel, response)

    def _answered(self, broker: int, channel: _Channel, response: WriteTxnMarkersResponse | None) -> None:
        sent, channel.sent = channel.sent, []
        results = {} if response is None else _results(response)
        for ending, keys in sent:
            ending.in_flight -= 1
            if not ending.is_over:
                self._take(ending, keys, results.get(ending.producer_id, {}))
            if not ending.in_flight:
                self._again(ending)
        self._pump(broker, channel)

    def _take(self, ending: Ending, keys: Sequence[Key], errors: Mapping[Key, ErrorCode]) -> None:
        for key in keys:
            error = errors.get(key)
            if error is ErrorCode.NONE or error in _NONE_NEEDED:
                ending.left.pop(key, None)
            elif error in _FENCED:
                words = f"transactional id {ending.transactional_id}: no marker for {key[0]}-{key[1]}: {error.name}"
                self._note("info", f"{words}; a later epoch is known there")
                self._end(ending, fenced=True)
                return


def _results(response: WriteTxnMarkersResponse) -> dict[int, dict[Key, ErrorCode]]:
    found: dict[int, dict[Key, ErrorCode]] = {}
    for marker in response.markers:
        errors = found.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for one in topic.partitions:
                errors[topic.name, one.partition_index] = ErrorCode(one.error_code)
    return found
