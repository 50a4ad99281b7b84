"""Fetch sessions (KIP-227): a client that asks for the same partitions again and again names only what changed, and is
told only of what changed.

No I/O; time is asked of the clock. The number of sessions is bounded: when all places are taken, a newcomer gets one
from who has not used it for long, or from a smaller one that has had it for long; otherwise it goes without, and names
all its partitions each time. Rules: Kafka 2.8's FetchManager and FetchSessionCache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from controller.broker.fetch_reading import Reading
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_DIVERGENCE,
    NO_OFFSET,
    NO_SESSION,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
)

EVICTABLE_AFTER_MS = 120_000.0
"""How long a session is safe from newcomers, after it was made or used last (Kafka's)."""
EPOCH_MAX = 2**31 - 1
ID_MAX = 2**31 - 1

Asked: TypeAlias = tuple[str, FetchPartition]


class SessionRefused(Exception):
    """FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH: the client begins anew, with all its partitions."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error)
        self.error = error


class FetchContext(Protocol):
    """Which partitions a fetch means, and how it is answered."""

    def partitions(self) -> Sequence[Asked]: ...

    def before(self) -> Sequence[Reading | None]:
        """What the same was answered last, for each of them."""

    def response(self, readings: Sequence[Reading]) -> FetchResponse: ...


class _Cached:
    """A partition of a session: what is asked of it, what that was answered last, and what the client was told of."""

    __slots__ = ("asked", "before", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.before: Reading | None = None
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET

    def told(self, data: FetchPartitionData) -> bool:
        """Whether the client must be told. After an error it is told of whatever comes next."""
        failed = data.error_code != ErrorCode.NONE
        news = (
            failed
            or bool(_size(data))
            or data.diverging_epoch != NO_DIVERGENCE
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        self.high_watermark = NO_OFFSET if failed else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return news


class _Session:
    """`epoch` is the one that the next request must have."""

    __slots__ = ("created_ms", "epoch", "from_follower", "id", "partitions", "used_ms")

    def __init__(self, session_id: int, from_follower: bool, now_ms: float) -> None:
        self.id = session_id
        self.from_follower = from_follower
        self.epoch = next_epoch(INITIAL_SESSION_EPOCH)
        self.created_ms = self.used_ms = now_ms
        self.partitions: dict[tuple[str, int], _Cached] = {}

    def update(self, request: FetchRequest) -> None:
        for topic in request.topics:
            for asked in topic.partitions:
                cached = self.partitions.get((topic.topic, asked.partition))
                if cached is None:
                    self.partitions[topic.topic, asked.partition] = _Cached(asked)
                else:
                    cached.asked, cached.before = asked, None
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self.partitions.pop((forgotten.topic, index), None)

    def news(self, readings: Sequence[Reading]) -> list[Reading]:
        """What the client must be told. That goes behind the others, whose turn is first the next time: there may not
        be room for all."""
        told = []
        for reading in readings:
            key = (reading.topic, reading.data.partition_index)
            cached = self.partitions.get(key)
            if cached is None:
                continue
            cached.before = None if reading.size_bytes else reading  # records' files are not held on to
            if cached.told(reading.data):
                told.append(reading)
                self.partitions[key] = self.partitions.pop(key)
        return told


class _Full:
    """One that names all its partitions; `sessions` where it asks for a session."""

    def __init__(self, request: FetchRequest, sessions: FetchSessions | None = None) -> None:
        self._request = request
        self._sessions = sessions

    def partitions(self) -> Sequence[Asked]:
        return [(topic.topic, asked) for topic in self._request.topics for asked in topic.partitions]

    def before(self) -> Sequence[Reading | None]:
        return [None for topic in self._request.topics for _ in topic.partitions]

    def response(self, readings: Sequence[Reading]) -> FetchResponse:
        session = None if self._sessions is None else self._sessions.made_for(self._request)
        if session is not None:
            session.news(readings)
        return FetchResponse(by_topic(readings), session_id=NO_SESSION if session is None else session.id)


class _Incremental:
    """`epoch`: what the session's is as long as no other request has come in it."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._epoch = session.epoch

    def partitions(self) -> Sequence[Asked]:
        return [(topic, cached.asked) for (topic, _), cached in self._session.partitions.items()]

    def before(self) -> Sequence[Reading | None]:
        return [cached.before for cached in self._session.partitions.values()]

    def response(self, readings: Sequence[Reading]) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            return FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id)
        return FetchResponse(by_topic(session.news(readings)), session_id=session.id)


class FetchSessions:
    """`slots`: max.incremental.fetch.session.cache.slots. Ids go on from the wall clock's time, so that one of an
    earlier life of this broker is not met again."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: dict[int, _Session] = {}  # the one that was used longest ago first
        self._last_id = clock.wall_ms() % ID_MAX

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest) -> FetchContext:
        """SessionRefused."""
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            self._sessions.pop(request.session_id, None)
            return _Full(request, self if request.session_epoch == INITIAL_SESSION_EPOCH else None)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise SessionRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.update(request)
        del self._sessions[session.id]
        if not session.partitions:
            return _Full(request)
        self._sessions[session.id] = session
        session.used_ms = self._clock.now_ms()
        session.epoch = next_epoch(session.epoch)
        return _Incremental(session)

    def made_for(self, request: FetchRequest) -> _Session | None:
        """A new session with the partitions of a full fetch; None if there is no place for it, or nothing to keep."""
        session = _Session(NO_SESSION, request.replica_id >= 0, self._clock.now_ms())
        session.update(request)
        if not session.partitions or not (len(self._sessions) < self._slots or self._made_room(session)):
            return None
        session.id = self._new_id()
        self._sessions[session.id] = session
        return session

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % ID_MAX + 1
            if self._last_id not in self._sessions:
                return self._last_id

    def _made_room(self, newcomer: _Session) -> bool:
        """A follower's session is worth more than a consumer's, a large one more than a small one."""
        now_ms = self._clock.now_ms()
        longest_unused = next(iter(self._sessions.values()), None)
        if longest_unused is None:
            return False
        if now_ms - longest_unused.used_ms > EVICTABLE_AFTER_MS:
            del self._sessions[longest_unused.id]
            return True
        evictable = [
            one
            for one in self._sessions.values()
            if now_ms - one.created_ms > EVICTABLE_AFTER_MS or (newcomer.from_follower and not one.from_follower)
        ]
        least = min(evictable, key=_worth, default=None)
        if least is None or _worth(newcomer) <= _worth(least):
            return False
        del self._sessions[least.id]
        return True


def next_epoch(epoch: int) -> int:
    """From 2^31 - 1 on to 1: 0 would begin anew."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _worth(session: _Session) -> tuple[bool, int]:
    return session.from_follower, len(session.partitions)


def _size(data: FetchPartitionData) -> int:
    records = data.records
    if records is None:
        return 0
    return len(records) if isinstance(records, bytes | memoryview) else records.length


def by_topic(readings: Sequence[Reading]) -> tuple[FetchTopicData, ...]:
    """Neighbours of one topic together."""
    topics: list[tuple[str, list[FetchPartitionData]]] = []
    for reading in readings:
        if not topics or topics[-1][0] != reading.topic:
            topics.append((reading.topic, []))
        topics[-1][1].append(reading.data)
    return tuple(FetchTopicData(topic, tuple(partitions)) for topic, partitions in topics)
