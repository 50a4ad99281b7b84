"""The partitions of one fetcher, and what its leader's answers make of each: records taken, logs cut, waits, the end.

Between a question and its answer partitions may come and go, and the same partition may come back in another leader
epoch: an answer counts only for what is followed by the same `Followed` as when it was asked. What goes wrong with one
is its own trouble. When something is asked is `fetcher.py`'s. Rules: Kafka 2.8's AbstractFetcherThread and
ReplicaFetcherThread.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from controller.backoff import backoff_ms
from controller.broker.configs.settings import BrokerSettings
from controller.broker.following.fetcher_link import LeaderLink
from controller.broker.following.fetcher_logs import FollowerLogs
from controller.broker.following.fetcher_queue import FetcherQueue
from controller.broker.following.fetcher_requests import (
    Offsets,
    end_offsets_of,
    error_of,
    list_offsets_request,
    offset_for_leader_epoch_request,
    offsets_of,
)
from controller.broker.following.fetcher_session import FetchSession
from controller.broker.following.fetcher_states import Followed, Key
from controller.broker.following.truncation import Cut, LeadersRange, Restart, after_out_of_range
from controller.broker.metadata.metadata_cache import MetadataCache
from controller.broker.ports import Peers
from controller.broker.replication_throttle import Quota
from controller.clock import Clock
from controller.protocol.api_keys import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartitionData,
    FetchResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
)
from controller.protocol.versions import ControlVersions
from controller.storage import BadBatches, LogOffline, OutOfResources
from controller.trace import Noted, Trace

T = TypeVar("T")
PASSING_FIRST_MS = 10.0
"""How long the first wait is for a leader that does not know yet; each next one is twice as long."""


@dataclass(frozen=True, slots=True)
class FetcherTools:
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
    drops: Callable[[FetcherPartitions], None]
    """Hears of a fetcher that follows something no more by itself."""


class FetcherPartitions:
    """Of the fetcher with that `number` to the leader `leader`. A base class, and no object of its own: a broker has
    as many as it has leaders to follow."""

    __slots__ = ("_link", "_queue", "_session", "_tools")

    def __init__(self, leader: int, number: int, tools: FetcherTools) -> None:
        self._tools = tools
        self._session = FetchSession()
        self._queue = FetcherQueue(
            self._session, tools.settings.replica_fetch_max_bytes, tools.versions.truncation_on_fetch
        )
        self._link = LeaderLink(leader, number, tools.settings, tools.metadata, tools.peers)

    @property
    def idle(self) -> bool:
        """It follows nothing."""
        return self._queue.is_empty

    def add(self, followed: Followed) -> None:
        self._queue.add(followed)
        if self._is_held(followed):
            self._delay(followed)

    def remove(self, key: Key) -> None:
        self._queue.remove(key)

    # -- where logs part, below Fetch 12

    async def _agree(self, asked: Mapping[Key, Followed]) -> None:
        """Asks where the latest epoch of each ends at the leader, and cuts what the leader has not."""
        request = offset_for_leader_epoch_request(self._tools.settings.broker_id, asked.values())
        response = await self._link.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, self._tools.versions.offset_for_leader_epoch, request
        )
        assert isinstance(response, OffsetForLeaderEpochResponse)
        for followed, end in self._answers(asked, end_offsets_of(response)):
            self._do(followed, partial(self._tools.logs.agree, followed, end))

    # -- what a fetch brings

    def _take(self, response: FetchResponse) -> dict[Key, Followed]:
        """What came for what is still followed. Gives back those whose log's end is out of the leader's range."""
        astray: dict[Key, Followed] = {}
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
                    astray[key] = followed
                else:
                    self._refused(followed, error)
        if is_throttled:
            for followed in self._queue.all():
                if self._is_held(followed):
                    self._delay(followed)
        return astray

    # -- held back by follower.replication.throttled.rate

    def _count(self, followed: Followed, data: FetchPartitionData) -> None:
        followed.is_behind = followed.log.log_end_offset < data.high_watermark
        if isinstance(data.records, bytes | memoryview):
            self._tools.throttle.count(*followed.key, len(data.records))

    def _is_held(self, followed: Followed) -> bool:
        """Whether it has to wait for its turn. One that has all that is committed never has."""
        return followed.is_behind and self._tools.throttle.is_exceeded(*followed.key)

    # -- out of range

    async def _return_to_range(self, astray: Mapping[Key, Followed]) -> None:
        """The leader ends before these logs do, or begins after them."""
        logs = self._tools.logs
        beyond: dict[Key, tuple[Followed, int]] = {}
        for followed, end in self._answers(astray, await self._offsets(astray, LATEST_TIMESTAMP)):
            found = after_out_of_range(followed.log.log_end_offset, LeadersRange(end))
            if isinstance(found, Cut):
                self._do(followed, partial(logs.cut, followed, found.offset, f"the leader ends at {end}"))
            else:
                beyond[followed.key] = (followed, end)
        if not beyond:
            return
        behind = {key: followed for key, (followed, _) in beyond.items()}
        for followed, start in self._answers(behind, await self._offsets(behind, EARLIEST_TIMESTAMP)):
            end = beyond[followed.key][1]
            found = after_out_of_range(followed.log.log_end_offset, LeadersRange(end, start))
            if isinstance(found, Restart):
                self._do(followed, partial(logs.restart, followed, found.offset))
            else:
                self._note("debug", f"{followed}: refused as out of range, and within {start} to {end}")
                self._delay(followed)

    async def _offsets(self, partitions: Mapping[Key, Followed], timestamp: int) -> Offsets:
        request = list_offsets_request(self._tools.settings.broker_id, partitions.values(), timestamp)
        response = await self._link.ask(ApiKey.LIST_OFFSETS, self._tools.versions.list_offsets, request)
        assert isinstance(response, ListOffsetsResponse)
        return offsets_of(response)

    # -- one partition

    def _answers(
        self, asked: Mapping[Key, Followed], answers: Mapping[Key, tuple[ErrorCode, T]]
    ) -> Iterator[tuple[Followed, T]]:
        """What was answered without an error to what is still followed. The others are looked after."""
        for key, followed in asked.items():
            if self._queue.follows(followed):
                error, value = answers.get(key, _UNANSWERED)
                if error is ErrorCode.NONE:
                    yield followed, value
                else:
                    self._refused(followed, error)

    def _do(self, followed: Followed, action: Callable[[], None]) -> None:
        """Something on the log, after which its question is another. What goes wrong is this partition's trouble, and
        no other's."""
        followed.refusals = 0
        try:
            action()
            self._queue.ask(followed)
        except LogOffline as offline:
            self._drop(followed, "error", str(offline))
        except OutOfResources as shortage:
            self._note("warning", f"{followed}: {shortage}; fetched again in a while")
            self._delay(followed)
        except BadBatches as error:
            self._note("warning", f"{followed} at {followed.log.log_end_offset}: {error}; fetched again in a while")
            self._delay(followed)
        except Exception:  # noqa: BLE001 - told with its place; the other partitions go on
            self._drop(followed, "error", f"failed\n{traceback.format_exc()}")

    def _refused(self, followed: Followed, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            self._drop(followed, "info", f"leader epoch {followed.leader_epoch} is over, the next one is waited for")
            return
        level = "debug" if error in _PASSING else "warning"
        self._note(level, f"{followed}: {error.name} in leader epoch {followed.leader_epoch}")
        if error in _PASSING:
            # In an election one of the two hears of it first, by milliseconds, and whoever waits for the ISR waits for
            # this.
            followed.refusals += 1
            self._delay(followed, backoff_ms(followed.refusals, PASSING_FIRST_MS, math.inf))
        else:
            self._delay(followed)

    def _delay(self, followed: Followed, delay_ms: float = math.inf) -> None:
        """At most `replica.fetch.backoff.ms`."""
        delay_ms = min(delay_ms, self._tools.settings.replica_fetch_backoff_ms)
        self._queue.delay(followed, self._tools.clock.now_ms() + delay_ms)

    def _drop(self, followed: Followed, level: str, why: str) -> None:
        """Until somebody adds it again."""
        self._note(level, f"{followed} is not followed any more: {why}")
        if self._queue.follows(followed):
            self._queue.remove(followed.key)
            self._tools.drops(self)

    def _note(self, level: str, message: str) -> None:
        if self._tools.trace.enabled:
            name = f"fetcher {self._link.number} to broker {self._link.leader}"
            self._tools.trace.emit(Noted(level, f"{name}: {message}"))


_UNANSWERED: Any = (ErrorCode.UNKNOWN_SERVER_ERROR, None)
_PASSING = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    )
)
"""The leader, or this broker, is about to hear of a change."""
