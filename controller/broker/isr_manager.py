"""ISR changes: which ISR a leader wants, and how it proposes the change to the controller.

The policy is `by_metadata` in a broker without logs, where no replica can lag, and `by_replication` with logs: the
followers' fetches decide. Changes go through AlterIsr or AlterPartition requests to the controller (KIP-497), or
through writes to ZooKeeper below inter-broker protocol 2.7 (`IsrZnodes`).

A partition has one slot: from the moment a change is proposed until it is settled, or until a newer leader epoch makes
it void, nothing else is proposed for it (KAFKA-12686, KAFKA-12751). A proposal whose answer is lost is sent again
unchanged, so that the controller recognises a change that it has already made. Until a proposal is settled it is
unknown which of the two ISRs is in effect, and both hold back the partition's high watermark. One request is in flight
at a time and carries all waiting proposals. Runs on the broker's one thread, as its timers and its peers' answers do.

`ControllerLink` is the connection to the controller that the metadata names. ApiVersions is sent when it is opened
(Kafka's BrokerToControllerChannelManager), so the negotiated versions hold for as long as the connection lasts.
"""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from controller.backoff import backoff_ms
from controller.broker.fetcher_state import error_of
from controller.broker.metadata import BrokerIdentity, MetadataCache
from controller.broker.partition import Partition, PartitionEvents, Role
from controller.broker.ports import Peers
from controller.broker.replica_manager import ReplicaManager
from controller.broker.request_context import SLICE, Steps, on_broker_thread
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Future, Timer, spawn
from controller.core.channels import PeerConnection, PeerError, PeerUnreachable
from controller.protocol.client import ApiVersionsRequest, ApiVersionsResponse
from controller.protocol.codec import (
    SUPPORTED,
    ApiKey,
    VersionRange,
    control_versions,
    decode_response_body,
    encode_request_body,
)
from controller.protocol.control import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    AlterIsrPartition,
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopic,
    IsrMember,
    LeaderAndIsrRequest,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
)
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.schema import RequestValue, ResponseValue
from controller.trace import IsrProposed, Noted, Trace
from controller.zookeeper.broker_writes import BrokerDataWrites
from controller.zookeeper.codecs import PartitionStateZnode
from controller.zookeeper.operations import DamagedZnode, ZooKeeperError

InSync: TypeAlias = Callable[[Partition, int], bool]
WantedIsr: TypeAlias = Callable[[Partition], tuple[int, ...]]
"""Of a partition that this broker leads, the ISR that it should have: never without the leader."""


def live_followers(metadata: MetadataCache) -> InSync:
    """Return a check whether a replica is live and not shutting down, by metadata of the leader's own epoch."""

    def live(partition: Partition, broker: int) -> bool:
        snapshot = metadata.snapshot
        state = snapshot.topics.get(partition.topic, {}).get(partition.index)
        return (
            state is not None
            and state.leader_epoch == partition.leader_epoch
            and broker in snapshot.brokers
            and broker not in state.offline_replicas
        )

    return live


def by_metadata(metadata: MetadataCache) -> WantedIsr:
    """Return the policy that treats every live replica as in sync; the controller removes the others from the ISR."""
    live = live_followers(metadata)

    def wanted(partition: Partition) -> tuple[int, ...]:
        joining = (one for one in partition.replicas if one not in partition.isr and live(partition, one))
        return (*partition.isr, *joining)

    return wanted


def by_replication(metadata: MetadataCache, now_ms: Callable[[], float], lag_max_ms: float) -> WantedIsr:
    """Return the policy that follows the followers' fetches. It removes a replica that has not been caught up for
    `lag_max_ms`. It adds one that has all committed records, is fetching, and is live by the metadata: of a replica
    that has just failed, only its last fetch is known here."""
    live = live_followers(metadata)

    def wanted(partition: Partition) -> tuple[int, ...]:
        leading, log = partition.leading, partition.log
        if leading is None or log is None:
            return partition.isr
        at_ms = now_ms()
        if leading.keeps_isr(log.log_end_offset, partition.high_watermark, at_ms, lag_max_ms):
            return partition.isr
        behind = leading.behind(log.log_end_offset, at_ms, lag_max_ms)
        caught_up = leading.caught_up(partition.high_watermark, at_ms, lag_max_ms)
        staying = tuple(broker for broker in partition.isr if broker not in behind)
        return (*staying, *(broker for broker in caught_up if live(partition, broker)))

    return wanted


_WHO = ApiVersionsRequest("camerlengo", "1")


class ControllerLink:
    def __init__(self, settings: BrokerSettings, metadata: MetadataCache, peers: Peers) -> None:
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._connection: PeerConnection | None = None
        self._to: tuple[int, UpdateMetadataEndpoint] | None = None
        self._offered: Mapping[int, VersionRange] | None = None

    async def offered(self) -> Mapping[int, VersionRange]:
        """What the broker answers to that is the controller now, by API key: nothing if it does not know this
        ApiVersions. PeerError, MalformedFrame."""
        connection = self._connected()
        if self._offered is None:
            version = SUPPORTED[ApiKey.API_VERSIONS].last
            body = encode_request_body(ApiKey.API_VERSIONS, version, _WHO)
            answer = await connection.request(ApiKey.API_VERSIONS, version, body, self._timeout_ms)
            response = decode_response_body(ApiKey.API_VERSIONS, version, answer)
            assert isinstance(response, ApiVersionsResponse)
            api_keys = response.api_keys if response.error_code == ErrorCode.NONE else ()
            self._offered = MappingProxyType(
                {one.api_key: VersionRange(one.min_version, one.max_version) for one in api_keys}
            )
        return self._offered

    async def ask(self, api_key: ApiKey, version: int, request: RequestValue) -> ResponseValue:
        """Send a request over the connection that `offered` opened, even if the controller has moved since.

        Raises: PeerError, MalformedFrame."""
        if self._connection is None:
            raise PeerUnreachable("nothing is open to a controller")
        body = encode_request_body(api_key, version, request)
        answer = await self._connection.request(api_key, version, body, self._timeout_ms)
        return decode_response_body(api_key, version, answer)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._offered = None
        if connection is not None:
            connection.close()

    @property
    def _timeout_ms(self) -> float:
        return self._settings.controller_socket_timeout_ms

    def _connected(self) -> PeerConnection:
        snapshot = self._metadata.snapshot
        controller = snapshot.controller_id
        endpoint = snapshot.endpoint(controller, self._settings.inter_broker_listener)
        if endpoint is None:
            raise PeerUnreachable(f"controller {controller} has no address here")
        if self._connection is None or self._to != (controller, endpoint):
            self.close()
            self._to = (controller, endpoint)
            self._connection = self._peers.connect(endpoint.host, endpoint.port)
        return self._connection


Key: TypeAlias = tuple[str, int]
NAMED_BY_ID = 2
"""The version from which on topics have ids instead of names."""
WITH_BROKER_EPOCHS = 3
"""The version from which on each member is sent with its broker epoch."""


class Proposal(msgspec.Struct, frozen=True, gc=False):
    """The proposed ISR, the state that it was decided on, and the broker epochs of the member incarnations that
    qualified for it (empty: unknown). `rejected_by`: a controller with newer state, which is not asked again."""

    leader_epoch: int
    zk_version: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...] = ()
    topic_id: bytes = NO_TOPIC_ID
    rejected_by: int | None = None


def version_to_ask(least: int, known: VersionRange, offered: VersionRange | None, proposals: Iterable[Proposal]) -> int:
    """The newest that both ends know and in which these can be said (Kafka's AlterPartitionRequest.Builder).

    `least`: what the inter-broker protocol has; it is what a controller is asked in that offers nothing, or nothing
    that is known here.
    """
    if offered is None:
        return least
    named = all(one.topic_id != NO_TOPIC_ID for one in proposals)
    newest = min(known.last, offered.last, known.last if named else NAMED_BY_ID - 1)
    return newest if newest >= max(known.first, offered.first) else least


def request_of(broker: int, broker_epoch: int, proposals: Mapping[Key, Proposal], version: int) -> AlterIsrRequest:
    topics: dict[tuple[str, bytes], list[AlterIsrPartition]] = {}
    for (topic, index), one in proposals.items():
        of_topic = ("", one.topic_id) if version >= NAMED_BY_ID else (topic, NO_TOPIC_ID)
        topics.setdefault(of_topic, []).append(_asked(index, one, version))
    named = tuple(AlterIsrTopic(name, tuple(asked), topic_id) for (name, topic_id), asked in topics.items())
    return AlterIsrRequest(broker, named, broker_epoch)


def _asked(index: int, one: Proposal, version: int) -> AlterIsrPartition:
    if version < WITH_BROKER_EPOCHS:
        return AlterIsrPartition(index, one.leader_epoch, one.isr, one.zk_version, one.broker_epochs)
    broker_epochs = one.broker_epochs or (NO_BROKER_EPOCH,) * len(one.isr)
    members = tuple([IsrMember(broker, life) for broker, life in zip(one.isr, broker_epochs, strict=True)])
    return AlterIsrPartition(index, one.leader_epoch, current_isr_version=one.zk_version, new_isr_with_epochs=members)


def results_of(
    response: AlterIsrResponse, proposals: Mapping[Key, Proposal], version: int
) -> dict[Key, AlterIsrPartitionResult]:
    """By what was asked, not by what the metadata has by now; of topics that were not asked for nothing is taken."""
    names = {one.topic_id: topic for (topic, _), one in proposals.items()}
    found: dict[Key, AlterIsrPartitionResult] = {}
    for topic in response.topics:
        name = names.get(topic.topic_id, "") if version >= NAMED_BY_ID else topic.name
        found.update(
            {(name, one.partition_index): one for one in topic.partitions if (name, one.partition_index) in proposals}
        )
    return found


class ProposalOutcome(enum.Enum):
    """The outcome of a proposal. Until it is made or dropped, it is unknown which of the two ISRs is in effect."""

    MADE = "made"
    DROP = "drop"
    """Certainly not made: the version was found unchanged. The old ISR remains in effect; another may be proposed."""
    KEEP = "keep"
    """The controller knows better, and says it: by a LeaderAndIsr of a newer epoch, or metadata of a newer version."""
    RETRY = "retry"
    """It may or may not be made: sent again as it is, so that it is recognised if it was."""


_VERDICTS: Mapping[int, ProposalOutcome] = MappingProxyType(
    {
        ErrorCode.NONE: ProposalOutcome.MADE,
        ErrorCode.OPERATION_NOT_ATTEMPTED: ProposalOutcome.DROP,
        ErrorCode.INELIGIBLE_REPLICA: ProposalOutcome.DROP,
        ErrorCode.INVALID_REQUEST: ProposalOutcome.DROP,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProposalOutcome.KEEP,
        ErrorCode.UNKNOWN_TOPIC_ID: ProposalOutcome.KEEP,
        ErrorCode.FENCED_LEADER_EPOCH: ProposalOutcome.KEEP,
        ErrorCode.INVALID_UPDATE_VERSION: ProposalOutcome.KEEP,
        ErrorCode.NEW_LEADER_ELECTED: ProposalOutcome.KEEP,
    }
)


def verdict(error_code: int) -> ProposalOutcome:
    """As Partition.handleAlterPartitionError has it in Kafka 3.9, but for INVALID_REQUEST: there it waits for metadata,
    here it is decided anew, since an ISR that a leader of ours asks for is found invalid only after its epoch and its
    version were found right."""
    return _VERDICTS.get(error_code, ProposalOutcome.RETRY)


NO_CONTROLLER = -1
RETRY_FIRST_MS = 50.0
RETRY_LAST_MS = 1_000.0
_NONE: Mapping[int, UpdateMetadataPartitionState] = MappingProxyType({})
_UNSEEN: Any = object()


CHECK_MS = 2_500.0
LINGER_MS = 5_000.0
"""No change for so long, and what changed is notified of."""
DELAY_MAX_MS = 60_000.0
"""The last notification is so old, and what changed is notified of although changes go on."""
WRITES_AT_ONCE = 100

Results: TypeAlias = dict[Key, AlterIsrPartitionResult]


StateFound: TypeAlias = tuple[PartitionStateZnode, int] | None
"""The state that stands and its version, None if there is none."""


class IsrZnodes:
    """`controller_epoch` gives that of a partition's latest LeaderAndIsr, which the state keeps."""

    def __init__(
        self, broker: int, writes: BrokerDataWrites, controller_epoch: Callable[[Key], int], clock: Clock, trace: Trace
    ) -> None:
        self._broker = broker
        self._writes = writes
        self._controller_epoch = controller_epoch
        self._clock = clock
        self._trace = trace
        self._changed: dict[Key, None] = {}
        self._changed_ms = self._notified_ms = clock.now_ms()
        self._timer: Timer | None = None

    def change(self, proposals: Mapping[Key, Proposal], done: Callable[[Future[Results]], None]) -> None:
        """Writes the proposed ISRs, and calls `done` with what came of each, in the terms of AlterIsr's answer."""
        states = {
            key: PartitionStateZnode(self._broker, one.leader_epoch, one.isr, self._controller_epoch(key))
            for key, one in proposals.items()
        }
        answer = spawn(self._change(proposals, states))
        on_broker_thread(answer, self._clock, lambda: self._settle(proposals, answer, done))

    async def _change(self, proposals: Mapping[Key, Proposal], states: Mapping[Key, PartitionStateZnode]) -> Results:
        results: Results = {}
        keys = list(proposals)
        for start in range(0, len(keys), WRITES_AT_ONCE):
            sent = [
                (key, spawn(self._writes.change_isr(*key, states[key], proposals[key].zk_version)))
                for key in keys[start : start + WRITES_AT_ONCE]
            ]
            for key, written in sent:
                try:
                    results[key] = _result(key, proposals[key], self._broker, await written)
                except DamagedZnode:
                    results[key] = _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)
        return results

    def _settle(
        self, proposals: Mapping[Key, Proposal], answer: Future[Results], done: Callable[[Future[Results]], None]
    ) -> None:
        try:
            results = answer.result()
        except ZooKeeperError:
            results = {}  # some may be written all the same; they are found so, or written, when they are tried again
        for key, result in results.items():
            if result.error_code == ErrorCode.NONE and result.current_isr_version > proposals[key].zk_version:
                self._changed[key] = None
                self._changed_ms = self._clock.now_ms()
        self._check_later()
        done(answer)

    # -- the controller's notification

    def _check_later(self) -> None:
        if self._changed and self._timer is None:
            self._timer = self._clock.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        if now_ms - self._changed_ms <= LINGER_MS and now_ms - self._notified_ms <= DELAY_MAX_MS:
            self._check_later()
            return
        keys, self._changed = tuple(self._changed), {}
        self._notified_ms = now_ms
        notified = spawn(self._writes.notify_of_isr_changes(keys))
        on_broker_thread(notified, self._clock, lambda: self._notified(keys, notified))

    def _notified(self, keys: tuple[Key, ...], notified: Future[None]) -> None:
        try:
            notified.result()
        except ZooKeeperError as error:
            self._trace.emit(
                Noted("warning", f"the controller is not notified of {len(keys)} ISR changes yet: {error}")
            )
            self._changed = dict.fromkeys(keys) | self._changed
        self._check_later()


def _result(key: Key, proposal: Proposal, broker: int, found: StateFound) -> AlterIsrPartitionResult:
    if found is None:
        return _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)
    state, version = found
    if (state.leader, state.leader_epoch) != (broker, proposal.leader_epoch):
        return _error(key, ErrorCode.FENCED_LEADER_EPOCH)
    if broker not in state.isr or len(set(state.isr)) < len(state.isr):
        return _error(key, ErrorCode.UNKNOWN_SERVER_ERROR)  # retried: an operator may repair the znode
    return AlterIsrPartitionResult(key[1], ErrorCode.NONE, state.leader, state.leader_epoch, state.isr, version)


def _error(key: Key, error: ErrorCode) -> AlterIsrPartitionResult:
    return AlterIsrPartitionResult(key[1], error)


class NotAnswered(Exception):
    """The controller did not take the request as a whole; says why."""


class IsrManager:
    """Call `metadata_changed` after it has, `roles_changed` after a LeaderAndIsr was applied. With the
    `partition_events` of a broker with logs, followers' fetches decide, and not the metadata. Below inter-broker
    protocol 2.7, `writes` changes the ISR in ZooKeeper."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: BrokerIdentity,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        peers: Peers,
        clock: Clock,
        trace: Trace,
        partition_events: PartitionEvents | None = None,
        writes: BrokerDataWrites | None = None,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._replicas = replicas
        self._metadata = metadata
        self._link = ControllerLink(settings, metadata, peers)
        self._known = SUPPORTED[ApiKey.ALTER_ISR]
        self._clock = clock
        self._trace = trace
        self._wanted = by_metadata(metadata)
        self._partition_events = partition_events
        self._version = control_versions(settings.inter_broker_protocol).alter_isr
        self._znodes: IsrZnodes | None = None
        """Where there is no AlterIsr."""
        if self._version is None and writes is not None:
            self._znodes = IsrZnodes(settings.broker_id, writes, replicas.latest_controller_epoch, clock, trace)
        # Led here, with an ISR that lacks a replica or a change of it that was refused.
        self._open: dict[Key, Partition] = {}
        # What the metadata had of each of them when it was looked at last, and who was live then.
        self._seen: dict[Key, UpdateMetadataPartitionState | None] = {}
        self._live: Set[int] = frozenset()
        self._slots: dict[Key, Proposal] = {}
        self._asking = False
        self._failures = 0
        self._again: Timer | None = None
        self._asked = NO_CONTROLLER
        replicas.of_stops.append(self._stopped)
        if partition_events is not None:
            self._follow(partition_events)

    @property
    def _can_change(self) -> bool:
        return self._version is not None or self._znodes is not None

    def proposal(self, topic: str, index: int) -> Proposal | None:
        """What is asked for of a partition and not answered yet."""
        return self._slots.get((topic, index))

    def roles_changed(self, request: LeaderAndIsrRequest) -> Steps:
        """The partitions that the request names are what they are now; a newer leader epoch empties their slots.

        A proposal that the controller did not know better than after all, such as one for a partition that it could
        not read for a while, is sent again.
        """
        topics = request.topic_states
        keys = ((topic.topic_name, state.partition_index) for topic in topics for state in topic.partition_states)
        for done, key in enumerate(keys, 1):
            self._watch(key)
            if (slot := self._slots.get(key)) is not None and slot.rejected_by is not None:
                self._slots[key] = msgspec.structs.replace(slot, rejected_by=None)
            if done % SLICE == 0:
                yield None

    def _stopped(self, partitions: Sequence[Partition]) -> None:
        """Their slots are emptied: a partition that is led again may be so in the same leader epoch."""
        for partition in partitions:
            self._watch(partition.key)

    def _watch(self, key: Key) -> None:
        self._seen.pop(key, None)
        partition, slot = self._replicas.partition(*key), self._slots.get(key)
        leads = partition is not None and partition.role is Role.LEADER
        if slot is not None and (partition is None or not leads or not _is_of(slot, partition)):
            self._empty_slot(key, partition)
        if partition is not None and leads and len(partition.isr) < len(partition.replicas):
            self._open[key] = partition
        else:
            self._open.pop(key, None)

    def check_open(self) -> None:
        """Proposes for every partition that lacks a replica the ISR that it should have."""
        if not self._can_change:
            return
        self._check_partitions(list(self._open.items()))

    def metadata_changed(self) -> None:
        """As `check_open`, for the partitions whose metadata has changed since the last check."""
        if not self._can_change:
            return
        snapshot = self._metadata.snapshot
        if self._asking and snapshot.controller_id != self._asked:
            self._link.close()  # a controller that stands still would be waited for as long as a request may take
        live = snapshot.brokers.keys()  # of a value that does not change
        if live != self._live:
            self._live = live
            self._seen.clear()
        topics, seen_of = snapshot.topics, self._seen.get
        opened = self._open.items()
        self._check_partitions(
            [one for one in opened if seen_of(one[0], _UNSEEN) is not topics.get(one[0][0], _NONE).get(one[0][1])]
        )

    def _check_partitions(self, opened: Sequence[tuple[Key, Partition]]) -> None:
        topics, seen = self._metadata.snapshot.topics, self._seen
        find = self._replicas.partition
        for key, partition in opened:
            topic, index = key
            if find(topic, index) is not partition:
                self._watch(key)
                continue
            state = topics.get(topic, _NONE).get(index)
            try:
                self._check_one(key, partition, state)
            except Exception:  # noqa: BLE001 - logged with its place; the other partitions are looked at
                self._note_failed(partition)
                continue
            seen[key] = state
        self._ask()

    def _check_one(self, key: Key, partition: Partition, state: UpdateMetadataPartitionState | None) -> None:
        log = partition.log
        if log is not None and partition.high_watermark < log.log_end_offset:
            self._changed(partition)  # a dead replica outside the ISR is not waited for any more
        slot = self._slots.get(key)
        if slot is not None:
            if slot.rejected_by is None or not self._caught_up(partition, state):
                return
            self._empty_slot(key, partition)
        self._propose(key, partition, state)

    def _note_failed(self, partition: Partition) -> None:
        what = f"{partition.topic}-{partition.index}: its ISR could not be looked at"
        self._trace.emit(Noted("error", f"{what}\n{traceback.format_exc()}"))

    def _state_of(self, key: Key) -> UpdateMetadataPartitionState | None:
        return self._metadata.snapshot.topics.get(key[0], _NONE).get(key[1])

    def _follow(self, partition_events: PartitionEvents) -> None:
        """Let followers' fetches decide. All led partitions are also checked twice in `replica.lag.time.max.ms`: a
        follower that sends nothing gives no other occasion."""
        lag_max_ms = self._settings.replica_lag_time_max_ms
        self._wanted = by_replication(self._metadata, self._clock.now_ms, lag_max_ms)
        partition_events.of_followers.append(self._follower_fetched)
        self._clock.call_later(lag_max_ms / 2, self._check_all)

    def _follower_fetched(self, partition: Partition, broker: int) -> None:
        if broker in partition.isr or not self._can_change:
            return
        key = partition.key
        if key not in self._slots:
            self._propose(key, partition, self._state_of(key))
            self._ask()

    def _check_all(self) -> None:
        # First: whatever fails in a partition, all of them are looked at again.
        self._clock.call_later(self._settings.replica_lag_time_max_ms / 2, self._check_all)
        for partition in list(self._replicas.partitions()):
            if partition.leading is not None and not partition.is_settled:
                try:
                    self._check_by_time(partition)
                except Exception:  # noqa: BLE001 - logged with its place; the other partitions are looked at
                    self._note_failed(partition)
        self._ask()

    def _check_by_time(self, partition: Partition) -> None:
        self._changed(partition)  # what held the high watermark back may be over with time
        key = partition.key
        if self._can_change and len(partition.replicas) > 1 and key not in self._slots:
            self._propose(key, partition, self._state_of(key))

    def _changed(self, partition: Partition) -> None:
        if self._partition_events is not None:
            self._partition_events.advance(partition)

    def _isr_changed(self, partition: Partition) -> None:
        if self._partition_events is not None:
            self._partition_events.isr_changed(partition)

    def _propose(self, key: Key, partition: Partition, state: UpdateMetadataPartitionState | None) -> None:
        """`state`: what the metadata has of it."""
        self._caught_up(partition, state)
        wanted = self._wanted(partition)
        if wanted is not partition.isr and set(wanted) != set(partition.isr):
            broker_epochs, epoch = self._member_epochs(partition, wanted), partition.leader_epoch
            self._slots[key] = Proposal(epoch, partition.zk_version, wanted, broker_epochs, partition.topic_id)
            partition.propose_isr(wanted)
            if self._trace.enabled:
                self._trace.emit(IsrProposed(*key, epoch, partition.isr, wanted))

    def _member_epochs(self, partition: Partition, members: tuple[int, ...]) -> tuple[int, ...]:
        """Nothing to tell where the metadata decides: there is nothing that one could have lost."""
        if self._partition_events is None or partition.leading is None:
            return ()
        return partition.leading.broker_epochs_of(members, self._identity.broker_epoch)

    def _empty_slot(self, key: Key, partition: Partition | None) -> None:
        del self._slots[key]
        if partition is not None:
            partition.propose_isr(None)

    def _caught_up(self, partition: Partition, state: UpdateMetadataPartitionState | None) -> bool:
        """A change whose answer never came, or that another made, is in the metadata of the same leader epoch. Whether
        there was one."""
        if state is None or state.leader_epoch != partition.leader_epoch or state.zk_version <= partition.zk_version:
            return False
        changed = partition.change_isr(state.isr, state.zk_version)
        if changed:
            self._isr_changed(partition)
        return changed

    # -- asking

    def _ask(self) -> None:
        """Everything that waits for an answer, unless a request is under way, or the same controller was asked in vain
        a moment ago."""
        if not self._can_change or self._asking or not self._slots:
            return
        controller = self._metadata.snapshot.controller_id
        if self._again is not None and controller == self._asked:
            return
        sent = {key: slot for key, slot in self._slots.items() if slot.rejected_by != controller}
        if not sent:
            return
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._asking, self._asked = True, controller
        if self._znodes is not None:
            self._znodes.change(sent, lambda answer: self._answered(sent, answer))
            return
        answer = spawn(self._exchange(sent))
        answer.on_done(lambda: self._answered(sent, answer))

    async def _exchange(self, sent: Mapping[Key, Proposal]) -> dict[Key, AlterIsrPartitionResult]:
        """The controller is the one that the metadata names. Raises NotAnswered, PeerError, ProtocolError."""
        assert self._version is not None
        offered = await self._link.offered()
        version = version_to_ask(self._version, self._known, offered.get(ApiKey.ALTER_ISR), sent.values())
        request = request_of(self._settings.broker_id, self._identity.broker_epoch, sent, version)
        response = await self._link.ask(ApiKey.ALTER_ISR, version, request)
        assert isinstance(response, AlterIsrResponse)
        if response.error_code != ErrorCode.NONE:
            raise NotAnswered(f"controller {self._asked} answered with error {response.error_code}")
        return results_of(response, sent, version)

    def _answered(self, sent: Mapping[Key, Proposal], answer: Future[dict[Key, AlterIsrPartitionResult]]) -> None:
        self._asking = False
        try:
            results = answer.result()
        except (NotAnswered, PeerError, ProtocolError, ZooKeeperError) as error:
            self._link.close()
            self._retry(f"ISR changes are not made yet: {error}")
            return
        except Exception:  # noqa: BLE001 - a bug, logged with its traceback; the proposals wait for the next attempt
            self._link.close()
            self._trace.emit(Noted("error", f"asking for ISR changes failed\n{traceback.format_exc()}"))
            self._retry("ISR changes are not made yet")
            return
        refused = [key for key, slot in sent.items() if not self._settle(key, slot, results.get(key))]
        if refused:
            (topic, index), first = refused[0], results.get(refused[0])
            why = "passed over" if first is None else error_of(first.error_code).name
            self._retry(f"ISR changes refused for now, {len(refused)} of {len(sent)}; {topic}-{index}: {why}")
            return
        self._failures = 0
        self.check_open()

    def _settle(self, key: Key, slot: Proposal, result: AlterIsrPartitionResult | None) -> bool:
        """One answer. False: to be decided again in a while. An answer to what is void by now says nothing."""
        if self._slots.get(key) is not slot:
            return True
        meaning = ProposalOutcome.RETRY if result is None else verdict(result.error_code)
        if meaning is ProposalOutcome.RETRY:
            return False
        partition = self._replicas.partition(*key)
        if meaning is ProposalOutcome.KEEP:
            self._slots[key] = msgspec.structs.replace(slot, rejected_by=self._asked)
        else:
            self._empty_slot(key, partition)
        if (
            meaning is ProposalOutcome.MADE
            and result is not None
            and partition is not None
            and result.leader_epoch == partition.leader_epoch
        ):
            partition.change_isr(result.isr, result.current_isr_version)
            self._isr_changed(partition)
        self._watch(key)
        if meaning is not ProposalOutcome.MADE and partition is not None:
            self._open[key] = partition
        return meaning is not ProposalOutcome.DROP

    def _retry(self, why: str) -> None:
        """Looks, and asks, again after a while, longer each time."""
        self._trace.emit(Noted("debug", why))
        self._failures += 1
        delay_ms = backoff_ms(self._failures, RETRY_FIRST_MS, RETRY_LAST_MS)
        if self._again is None:
            self._again = self._clock.call_later(delay_ms, self._check_again)

    def _check_again(self) -> None:
        self._again = None
        self.check_open()


def _is_of(slot: Proposal, partition: Partition) -> bool:
    """Return whether the proposal is for the partition's current leadership. A topic that was deleted and recreated
    starts with the same leader epoch. A topic id may arrive after the role."""
    same_topic = slot.topic_id in (NO_TOPIC_ID, partition.topic_id)
    return same_topic and slot.leader_epoch == partition.leader_epoch
