"""Replication by followers: `Fetcher` fetches from one leader, `ReplicaFetcherManager` assigns partitions to fetchers.

A fetcher is a coroutine over one lasting connection, on the broker's thread: one long poll after another. No coroutine
exists while a fetch is in flight, which is nearly always. A partition is in one fetcher at most, and is removed from
its old one before anything else happens. Rules: Kafka 2.8's AbstractFetcherThread, ReplicaFetcherThread and
ReplicaFetcherManager.
"""

from __future__ import annotations

import math
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec

from controller.backoff import backoff_ms
from controller.broker.fetcher_state import (
    FetchedPartition,
    FetcherQueue,
    FetchSessionHandler,
    FollowerLogs,
    Key,
    LeadersRange,
    Offsets,
    RestartAt,
    TruncateTo,
    after_out_of_range,
    end_offsets_of,
    error_of,
    fetch_request,
    list_offsets_request,
    offset_for_leader_epoch_request,
    offsets_of,
)
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition
from controller.broker.ports import Peers
from controller.broker.records.cold_reads import until_done
from controller.broker.replica_manager import Quota
from controller.broker.request_context import Drive, Steps, finish
from controller.broker.settings import BrokerSettings
from controller.clock import Clock, Future, spawn
from controller.core.channels import PeerConnection, PeerError, PeerUnreachable
from controller.protocol.codec import (
    ApiKey,
    ControlVersions,
    control_versions,
    decode_response_body,
    encode_request_body,
)
from controller.protocol.control import NO_BROKER_EPOCH, UpdateMetadataBroker, UpdateMetadataEndpoint
from controller.protocol.errors import ErrorCode, ProtocolError
from controller.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartitionData,
    FetchResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)
from controller.protocol.schema import RequestValue, ResponseValue
from controller.storage import BadBatches, DeviceUnavailable, LogOffline, OutOfResources, PartitionLog
from controller.storage.disk import NotCached
from controller.trace import Noted, Trace


class LeaderLink:
    """The connection to one leader. `number` identifies the fetcher among those that follow this leader."""

    __slots__ = ("_connection", "_endpoint", "_metadata", "_peers", "_settings", "_unanswered", "leader", "number")

    def __init__(
        self, leader: int, number: int, settings: BrokerSettings, metadata: MetadataCache, peers: Peers
    ) -> None:
        self.leader = leader
        self.number = number
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._connection: PeerConnection | None = None
        self._endpoint: UpdateMetadataEndpoint | None = None
        self._unanswered: tuple[RequestValue | None, bytes] | None = None
        """What was asked last, once a connection was given up without an answer: the same is asked again."""

    async def ask(self, api_key: ApiKey, version: int, request: RequestValue) -> ResponseValue:
        """PeerError or MalformedFrame, after which `close` is due."""
        return decode_response_body(api_key, version, await self.sent(api_key, version, request))

    def sent(self, api_key: ApiKey, version: int, request: RequestValue) -> Future[bytes]:
        """The body of its answer. PeerError, as its answer too, after which `close` is due."""
        body = self._encoded(api_key, version, request)
        return self._connected().request(api_key, version, body, self._settings.replica_socket_timeout_ms)

    def _encoded(self, api_key: ApiKey, version: int, request: RequestValue) -> bytes:
        """Encode a request, once for all retries to a failed leader. While the leader answers, nothing is cached."""
        if self._unanswered is not None and self._unanswered[0] == request:
            return self._unanswered[1]
        body = encode_request_body(api_key, version, request)
        if self._unanswered is not None:
            self._unanswered = (request, body)
        return body

    def answered(self) -> None:
        """The leader is there: what is asked next is something else."""
        self._unanswered = None

    def moved(self) -> bool:
        """Whether the metadata has the leader at another address than where it was last looked for. Where it has none
        any more, what is open stays."""
        endpoint = self._known()
        return endpoint is not None and endpoint != self._endpoint

    def close(self) -> bool:
        """False if nothing was open. The next question opens another."""
        connection, self._connection = self._connection, None
        if connection is None:
            return False
        self._unanswered = self._unanswered or _NOTHING
        connection.close()
        return True

    def _connected(self) -> PeerConnection:
        if self._connection is None:
            self._endpoint = endpoint = self._known()
            if endpoint is None:
                raise PeerUnreachable(f"broker {self.leader} has no address here")
            client_id = _client_id(self._settings.broker_id, self.number)
            self._connection = self._peers.connect(endpoint.host, endpoint.port, client_id)
        return self._connection

    def _known(self) -> UpdateMetadataEndpoint | None:
        return self._metadata.snapshot.endpoint(self.leader, self._settings.inter_broker_listener)


_NOTHING = (None, b"")


@lru_cache(maxsize=1_024)
def _client_id(broker: int, number: int) -> str:
    return f"broker-{broker}-fetcher-{number}"


T = TypeVar("T")
PASSING_FIRST_MS = 10.0
"""How long the first wait is for a leader that does not know yet; each next one is twice as long."""
JOBS_MS = 10.0
"""How long the partitions of a leader are not fetched while jobs of some have not ended: mostly they end sooner."""
BUSY_MS = 100.0
"""How long the leader may wait with its answer while jobs have not ended: what waits for them is fetched after it."""


class FetcherTools(msgspec.Struct, frozen=True):
    """What all fetchers of a broker share."""

    settings: BrokerSettings
    versions: ControlVersions
    metadata: MetadataCache
    peers: Peers
    logs: FollowerLogs
    clock: Clock
    trace: Trace
    broker_epoch: Callable[[], int]
    throttle: Quota
    drive: Drive
    drops: Callable[[Fetcher], None]
    """Called when a fetcher stops following a partition on its own."""


_UNANSWERED: Any = (ErrorCode.UNKNOWN_SERVER_ERROR, None)
_PASSING = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)
"""Transient errors: the leader, or this broker, is about to learn of a change."""


@dataclass(slots=True, eq=False, repr=False)
class Fetcher:
    """Replicates partitions from the leader `leader`. `number` identifies it among the fetchers that follow this leader
    (num.replica.fetchers). Runs from `start` to `close`; a job that ends after that changes nothing."""

    leader: InitVar[int]
    number: InitVar[int]
    _tools: FetcherTools
    _session: FetchSessionHandler = field(default_factory=FetchSessionHandler)
    _queue: FetcherQueue = field(init=False)
    _link: LeaderLink = field(init=False)
    _wakeup: Future[None] | None = None
    _fetching: Future[bytes] | None = None
    """A fetch that is not answered: all goes on with its answer."""
    _refusals: int = 0
    _rechecks_all: bool = False
    """Something has changed without the fetcher."""
    _reconnects_now: bool = False
    """The connection that is about to fail was given up here: the next one need not wait."""
    _begins_jobs: bool = False
    """A partition of the last answer waits for jobs."""
    _busy: int = 0
    """How many wait for jobs."""
    _started: bool = False
    _closed: bool = False

    def __post_init__(self, leader: int, number: int) -> None:
        settings, truncates = self._tools.settings, self._tools.versions.truncation_on_fetch
        self._queue = FetcherQueue(self._session, settings.replica_fetch_max_bytes, truncates)
        self._link = LeaderLink(leader, number, settings, self._tools.metadata, self._tools.peers)

    # -- for the owner that assigns partitions to it

    def start(self) -> None:
        """Takes up what was added, now or with its next request."""
        if not self._started:
            self._started = True
            spawn(self._run())
        else:
            self._wake()

    def endpoint_changed(self) -> None:
        """The metadata may have the leader elsewhere. One that the metadata has lost is still talked to."""
        if self._link.moved():
            self._reconnects_now = self._disconnect()
            self._wake()

    def logs_changed(self) -> None:
        """Logs may begin elsewhere, by their own retention: the next request says so."""
        self._rechecks_all = True

    def close(self) -> None:
        self._closed = True
        self._queue.clear()
        self._disconnect()
        self._wake()

    # -- the loop

    def __call__(self) -> None:
        """A fetch was answered."""
        answer, self._fetching = self._fetching, None
        if answer is None or self._closed or not isinstance(answer.error, PeerError):
            spawn(self._run(answer))
        else:
            self._go_on_after("debug", str(answer.error))

    def _go_on_after(self, level: str, message: str) -> None:
        if self._given_up(level, message):
            self._wait(self._tools.settings.replica_fetch_backoff_ms).on_done(self._again)
        else:
            spawn(self._run())

    def _again(self) -> None:
        """Run the next round without a coroutine if it consists of one fetch. All followers of a failed broker retry
        over and over until they learn of another leader."""
        if self._closed or self._rechecks_all or not self._queue.is_all_asked:
            spawn(self._run())
            return
        try:
            self._fetch()
        except Exception as error:  # noqa: BLE001 - logged as an error of any round
            self._go_on_after(*self._failure(error))
            return
        assert self._fetching is not None
        self._fetching.on_done(self)

    async def _run(self, answer: Future[bytes] | None = None) -> None:
        """Until it is closed, or has a fetch under way. `answer`: that of the fetch before."""
        while not self._closed:
            failure = await self._round(answer)
            answer = None
            if self._fetching is not None:
                if not self._fetching.done:
                    self._fetching.on_done(self)
                    return
                answer, self._fetching = self._fetching, None
                continue
            if failure is None or self._closed:
                continue
            if self._given_up(*failure):
                await self._wait(self._tools.settings.replica_fetch_backoff_ms)

    def _given_up(self, level: str, message: str) -> bool:
        """The connection, for what went wrong with it. Whether the next one has to wait."""
        self._note(level, message)
        self._disconnect()
        hurried, self._reconnects_now = self._reconnects_now, False
        return not hurried

    async def _round(self, answer: Future[bytes] | None) -> tuple[str, str] | None:
        """What came of the last fetch, or one question about everything that is due, or a rest if nothing is. What went
        wrong, if that ends the connection: a level and a sentence."""
        queue = self._queue
        try:
            if answer is not None:
                await self._fetched(answer.result())
                await self._jobs()
                return None
            if queue.is_empty:
                self._disconnect()
            self._apply_changes()
            if queue.truncating:
                await self._find_divergence(dict(queue.truncating))
                await self._jobs()
            elif queue.has_questions:
                self._fetch()
            else:
                await self._wait(self._until_due_ms())
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the partitions wait for the next round
            return self._failure(error)
        return None

    def _failure(self, error: Exception) -> tuple[str, str]:
        """Return level and text for the exception that ended a round, while it is handled. An exception that the leader
        did not cause is a bug."""
        if isinstance(error, PeerError | ProtocolError):
            return "debug", str(error)
        self._rechecks_all = True
        return "error", f"failed\n{traceback.format_exc()}"

    def _apply_changes(self) -> None:
        now_ms = self._tools.clock.now_ms()
        self._queue.apply_changes(now_ms, self._hold_ms)
        if self._rechecks_all:
            self._rechecks_all = False
            self._queue.ask_all()

    def _until_due_ms(self) -> float | None:
        """None: nothing will be."""
        due_ms = self._queue.next_due_ms()
        return None if due_ms is None else max(due_ms - self._tools.clock.now_ms(), 0.0)

    def _wait(self, delay_ms: float | None) -> Future[None]:
        """Return a future that is completed after `delay_ms` (None: never), or when the fetcher is woken."""
        resting: Future[None] = Future()
        if delay_ms is not None:
            timer = self._tools.clock.call_later(delay_ms, self._wake)
            resting.on_done(timer.cancel)
        self._wakeup = resting
        return resting

    def _wake(self) -> None:
        resting, self._wakeup = self._wakeup, None
        if resting is not None:
            resting.resolve(None)

    # -- fetching

    def _fetch(self) -> None:
        request = fetch_request(
            self._tools.settings, self._session.next(), self._until_due_ms(), self._tools.broker_epoch()
        )
        self._fetching = self._link.sent(ApiKey.FETCH, self._tools.versions.fetch, request)

    async def _fetched(self, answer: bytes) -> None:
        self._link.answered()
        response = decode_response_body(ApiKey.FETCH, self._tools.versions.fetch, answer)
        assert isinstance(response, FetchResponse)
        if not self._session.answered(response):
            self._refusals += 1
            if self._refusals > 1:
                raise PeerUnreachable(f"fetch refused with error {response.error_code}")
            return
        self._refusals = 0
        out_of_range = self._take(response)
        if out_of_range:
            await self._return_to_range(out_of_range)

    def _disconnect(self) -> bool:
        """False if there was no connection."""
        if not self._link.close():
            return False
        self._session.lost()
        return True

    # -- what answers make of each partition

    @property
    def idle(self) -> bool:
        """It follows nothing."""
        return self._queue.is_empty

    def add(self, followed: FetchedPartition) -> None:
        self._queue.add(followed)
        if followed.unflushed:
            self._done(followed)
        if self._is_held(followed):
            self._delay(followed)

    def remove(self, key: Key) -> None:
        self._queue.remove(key)

    # -- where logs part, below Fetch 12

    async def _find_divergence(self, asked: Mapping[Key, FetchedPartition]) -> None:
        """Asks where the latest epoch of each ends at the leader, and cuts what the leader has not."""
        request = offset_for_leader_epoch_request(self._tools.settings.broker_id, asked.values())
        response = await self._link.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, self._tools.versions.offset_for_leader_epoch, request
        )
        assert isinstance(response, OffsetForLeaderEpochResponse)
        for followed, end in self._answers(asked, end_offsets_of(response)):
            self._do(followed, partial(self._tools.logs.agree, followed, end))

    # -- what a fetch brings

    def _take(self, response: FetchResponse) -> dict[Key, FetchedPartition]:
        """What came for what is still followed. Gives back those whose log's end is out of the leader's range."""
        out_of_range: dict[Key, FetchedPartition] = {}
        is_throttled = self._tools.throttle.rate() is not None
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic, data.partition_index)
                followed = self._queue.asked(key)
                if followed is None:
                    continue
                error = error_of(data.error_code)
                if error is ErrorCode.NONE:
                    self._do(followed, partial(self._tools.logs.take, followed, data))
                    if is_throttled:
                        self._count(followed, data)
                elif error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range[key] = followed
                else:
                    self._refused(followed, error)
        if is_throttled:
            for followed in self._queue.all():
                if self._is_held(followed):
                    self._delay(followed)
        return out_of_range

    # -- held back by follower.replication.throttled.rate

    def _count(self, followed: FetchedPartition, data: FetchPartitionData) -> None:
        followed.is_behind = followed.log.log_end_offset < data.high_watermark
        if isinstance(data.records, bytes | memoryview):
            self._tools.throttle.count(*followed.key, len(data.records))

    def _is_held(self, followed: FetchedPartition) -> bool:
        """Whether it has to wait for its turn. One that has all that is committed never has."""
        return followed.is_behind and self._tools.throttle.is_exceeded(*followed.key)

    def _hold_ms(self, followed: FetchedPartition) -> float:
        """How long it has to wait, at least; 0 if it has not."""
        if followed.is_busy:
            return BUSY_MS
        return self._tools.settings.replica_fetch_backoff_ms if self._is_held(followed) else 0.0

    # -- out of range

    async def _return_to_range(self, out_of_range: Mapping[Key, FetchedPartition]) -> None:
        """The leader ends before these logs do, or begins after them."""
        logs = self._tools.logs
        beyond: dict[Key, tuple[FetchedPartition, int]] = {}
        for followed, end in self._answers(out_of_range, await self._offsets(out_of_range, LATEST_TIMESTAMP)):
            found = after_out_of_range(followed.log.log_end_offset, LeadersRange(end))
            if isinstance(found, TruncateTo):
                self._do(followed, partial(logs.cut, followed, found.offset, f"the leader ends at {end}"))
            else:
                beyond[followed.key] = (followed, end)
        if not beyond:
            return
        behind = {key: followed for key, (followed, _) in beyond.items()}
        for followed, start in self._answers(behind, await self._offsets(behind, EARLIEST_TIMESTAMP)):
            end = beyond[followed.key][1]
            found = after_out_of_range(followed.log.log_end_offset, LeadersRange(end, start))
            if isinstance(found, RestartAt):
                self._do(followed, partial(logs.restart, followed, found.offset))
            else:
                self._note("debug", f"{followed}: refused as out of range, and within {start} to {end}")
                self._delay(followed)

    async def _offsets(self, partitions: Mapping[Key, FetchedPartition], timestamp: int) -> Offsets:
        request = list_offsets_request(self._tools.settings.broker_id, partitions.values(), timestamp)
        response = await self._link.ask(ApiKey.LIST_OFFSETS, self._tools.versions.list_offsets, request)
        assert isinstance(response, ListOffsetsResponse)
        return offsets_of(response)

    # -- one partition

    def _answers(
        self, asked: Mapping[Key, FetchedPartition], answers: Mapping[Key, tuple[ErrorCode, T]]
    ) -> Iterator[tuple[FetchedPartition, T]]:
        """What was answered without an error to what is still followed. The others are looked after."""
        for key, followed in asked.items():
            if self._queue.follows(followed):
                error, value = answers.get(key, _UNANSWERED)
                if error is ErrorCode.NONE:
                    yield followed, value
                else:
                    self._refused(followed, error)

    def _do(self, followed: FetchedPartition, action: Callable[[bool], None]) -> None:
        """Run an action on the log, then queue the partition's next request. What the action would wait for is done by
        jobs first, if it is not called with True. An error affects this partition alone."""
        followed.refusals = 0
        try:
            action(False)
        except NotCached:
            followed.is_busy = True
            self._busy += 1
            self._tools.drive(self._do_after_jobs(followed, action))
            if followed.is_busy:
                self._begins_jobs = True
                self._delay(followed, BUSY_MS)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the other partitions are unaffected
            self._failed(followed, error)
        else:
            self._done(followed)

    def _do_after_jobs(self, followed: FetchedPartition, action: Callable[[bool], None]) -> Steps:
        def attempt(may_wait: bool) -> None:
            if self._queue.follows(followed):
                action(may_wait)

        failure: Exception | None = None
        try:
            yield from until_done(attempt)
        except Exception as error:  # noqa: BLE001 - as above
            failure = error
        self._busy -= 1
        if failure is None:
            self._go_on_with(followed)
        else:
            followed.is_busy = False
            self._failed(followed, failure)
        if not self._busy:
            self._wake()

    def _done(self, followed: FetchedPartition) -> None:
        if followed.unflushed and self._queue.follows(followed):
            self._do(followed, partial(self._tools.logs.flush, followed))
        else:
            self._queue.resume(followed)

    def _go_on_with(self, followed: FetchedPartition) -> None:
        """It had to wait for jobs, and may have to wait for its turn, too."""
        followed.is_busy = False
        self._done(followed)
        if self._is_held(followed):
            self._delay(followed)

    async def _jobs(self) -> None:
        """Wait a moment for jobs that the last answer has begun."""
        if self._begins_jobs:
            self._begins_jobs = False
            await self._wait(JOBS_MS)

    def _failed(self, followed: FetchedPartition, error: Exception) -> None:
        match error:
            case LogOffline():
                self._drop(followed, "error", str(error))
            case OutOfResources():
                self._note("warning", f"{followed}: {error}; fetched again in a while")
                # An SSD may have room after the next look at it; a back-off would take the replica out of the ISR.
                self._delay(followed, self._tools.settings.tiers.interval_ms)
            case DeviceUnavailable():
                self._note("debug", f"{followed}: {error}; fetched again in a while")  # the device's is the warning
                self._delay(followed)
                if followed.unflushed:
                    followed.is_busy = True  # it is not fetched before
                    delay_ms = self._tools.settings.replica_fetch_backoff_ms
                    self._tools.clock.call_later(delay_ms, lambda: self._go_on_with(followed))
            case BadBatches():
                self._note("warning", f"{followed} at {followed.log.log_end_offset}: {error}; fetched again in a while")
                self._delay(followed)
            case _:
                self._drop(followed, "error", f"failed\n{''.join(traceback.format_exception(error))}")

    def _refused(self, followed: FetchedPartition, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            self._drop(followed, "info", f"leader epoch {followed.leader_epoch} is over, the next one is waited for")
            return
        level = "debug" if error in _PASSING else "warning"
        self._note(level, f"{followed}: {error.name} in leader epoch {followed.leader_epoch}")
        if error in _PASSING:
            # In an election, leader and follower learn of the new epoch some milliseconds apart. A short delay matters,
            # because requests that wait for the ISR wait for this fetch.
            followed.refusals += 1
            self._delay(followed, backoff_ms(followed.refusals, PASSING_FIRST_MS, math.inf))
        else:
            self._delay(followed)

    def _delay(self, followed: FetchedPartition, delay_ms: float = math.inf) -> None:
        """At most `replica.fetch.backoff.ms`."""
        delay_ms = min(delay_ms, self._tools.settings.replica_fetch_backoff_ms)
        self._queue.delay(followed, self._tools.clock.now_ms() + delay_ms)

    def _drop(self, followed: FetchedPartition, level: str, why: str) -> None:
        """Stop following the partition until it is added again."""
        self._note(level, f"{followed} is not followed any more: {why}")
        if self._queue.follows(followed):
            self._queue.remove(followed.key)
            self._tools.drops(self)

    def _note(self, level: str, message: str) -> None:
        if self._tools.trace.enabled:
            name = f"fetcher {self._link.number} to broker {self._link.leader}"
            self._tools.trace.emit(Noted(level, f"{name}: {message}"))


class ReplicaFetcherManager:
    """Assigns followed partitions to fetchers.

    `appended` is called with each followed partition after its log or high watermark has changed. `broker_epoch`
    returns the epoch of this broker's current registration. `throttle` limits the rate at which lagging replicas catch
    up. `drive` runs steps."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        peers: Peers,
        clock: Clock,
        trace: Trace,
        appended: Callable[[Partition], None],
        throttle: Quota,
        broker_epoch: Callable[[], int] = lambda: NO_BROKER_EPOCH,
    ) -> None:
        self._count = settings.num_replica_fetchers
        self._metadata = metadata
        self._brokers: Mapping[int, UpdateMetadataBroker] = {}  # as the metadata had them when it was looked at last
        self._trace = trace
        self.drive: Drive = finish
        self._logs = FollowerLogs(appended, trace)
        versions = control_versions(settings.inter_broker_protocol)
        self._truncation_on_fetch = versions.truncation_on_fetch
        self._losing: list[Fetcher] = []
        self._tools = FetcherTools(
            settings,
            versions,
            metadata,
            peers,
            self._logs,
            clock,
            trace,
            broker_epoch,
            throttle,
            self._run,
            self._drops,
        )
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._placed: dict[Key, Fetcher] = {}

    def _run(self, steps: Steps) -> None:
        self.drive(steps)

    def __len__(self) -> int:
        """Fetchers, each with a leader of its own or one of several with one."""
        return len(self._fetchers)

    def follow(self, partitions: Sequence[Partition]) -> None:
        """Each from its own log's end, as the follower of `partition.leader` in `partition.leader_epoch`. One without a
        log is not followed."""
        given: dict[tuple[int, int], Fetcher] = {}
        for partition in partitions:
            key = partition.key
            self._take_out(key)
            followed = None if partition.log is None else self._begun(partition, partition.log)
            if followed is not None:
                place = (partition.leader, (zlib.crc32(key[0].encode()) + key[1]) % self._count)
                fetcher = self._fetchers.get(place) or Fetcher(*place, self._tools)
                fetcher.add(followed)
                self._placed[key] = fetcher
                given[place] = self._fetchers[place] = fetcher
        self._close_idle()
        for fetcher in given.values():
            fetcher.start()

    def leave(self, partitions: Sequence[Partition]) -> None:
        """Stop following: this broker leads the partitions now or was asked to stop, or they were removed or are
        offline."""
        for partition in partitions:
            self._take_out(partition.key)
        self._close_idle()

    def leaders_changed(self) -> None:
        """Handle new metadata: a leader's endpoint may have changed. A leader whose metadata is the same object as
        before has not changed."""
        before, self._brokers = self._brokers, self._metadata.snapshot.brokers
        changed = {broker for broker, value in self._brokers.items() if before.get(broker) is not value}
        if not changed:
            return
        for fetcher in [one for (leader, _), one in self._fetchers.items() if leader in changed]:
            fetcher.endpoint_changed()

    def logs_changed(self) -> None:
        """Some may begin elsewhere than before."""
        for fetcher in self._fetchers.values():
            fetcher.logs_changed()

    def close(self) -> None:
        """Nothing is followed any more; no answer is taken from here on."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._placed.clear()

    def _take_out(self, key: Key) -> None:
        fetcher = self._placed.pop(key, None)
        if fetcher is not None:  # one that has dropped all it had by itself was closed as idle since, and has it not
            fetcher.remove(key)
            self._losing.append(fetcher)

    def _drops(self, fetcher: Fetcher) -> None:
        self._losing.append(fetcher)

    def _close_idle(self) -> None:
        """There is none unless something was taken out, here or by a fetcher itself."""
        losing, self._losing = self._losing, []
        if not any(fetcher.idle for fetcher in losing):
            return
        for place, fetcher in tuple(self._fetchers.items()):
            if fetcher.idle:
                del self._fetchers[place]
                fetcher.close()

    def _begun(self, partition: Partition, log: PartitionLog) -> FetchedPartition | None:
        """A log that knows epochs is compared with the leader's by them: by what the leader says to a fetch, or before
        the first one where fetches don't tell. One that knows none keeps what is committed, as before there were
        any."""
        knows_epochs = log.epochs.latest >= 0
        followed = FetchedPartition(
            partition, log, partition.leader_epoch, agreed=self._truncation_on_fetch or not knows_epochs
        )
        try:
            log.health.check()
            if not knows_epochs:
                kept = max(partition.high_watermark, log.log_start_offset)
                if log.log_end_offset > kept:
                    self._logs.cut(followed, kept, "its records have no leader epochs")
        except LogOffline as offline:
            self._trace.emit(Noted("error", f"{followed} is not followed: {offline}"))
            return None
        if log.has_unflushed_records:  # the wait for a flush's job ended with an earlier leadership
            followed.unflushed = log.log_end_offset
        return followed
