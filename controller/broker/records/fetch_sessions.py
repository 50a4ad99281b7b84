"""Fetch sessions (KIP-227): a client that asks for the same partitions again and again names only what changed, and is
told only of what changed.

No I/O; time is asked of the clock. The number of sessions is bounded: when all places are taken, a newcomer gets one
from who has not used it for long, or from a smaller one that has had it for long; otherwise it goes without, and names
all its partitions each time. Rules: Kafka 2.8's FetchManager and FetchSessionCache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from controller.broker.records.fetch_reading import Ask, Reading
from controller.broker.records.fetch_session import Key, Place, Session, next_epoch
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch_values import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
)
from controller.zookeeper.znode_sense import TOPIC_NAME_LENGTH_MAX

EVICTABLE_AFTER_MS = 120_000.0
"""How long a session is safe from newcomers, after it was made or used last (Kafka's)."""
ID_MAX = 2**31 - 1
SESSION_PARTITIONS_MAX = 10_000
"""A client that fetches more partitions at once, or names what no topic can be called, has no session, and names all of
them each time: a fetch in a session takes a moment, however many partitions are in it."""
ALL_PARTITIONS_MAX = 1_000_000
"""Partitions of all sessions together: half a gigabyte."""

Asked: TypeAlias = tuple[str, FetchPartition]


class SessionRefused(Exception):
    """FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH: the client begins anew, with all its partitions."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error)
        self.error = error


class FetchContext(Protocol):
    """Which partitions a fetch means, and how it is answered."""

    @property
    def is_empty(self) -> bool:
        """It means none at all."""

    def asks(self, ask: Ask) -> None:
        """Before all else."""

    def partitions(self) -> Sequence[Asked]:
        """Those that are to be looked at now: those that were before, and whatever was to be looked at since."""

    def before(self) -> Sequence[Reading | None]:
        """What the same was answered last, for each of them."""

    def found(self, readings: Sequence[Reading]) -> None:
        """What there was of each of them when the fetch came."""

    def keys(self) -> Sequence[Key]:
        """Of what news are waited for."""

    def joined(self) -> Sequence[tuple[FetchPartition, Reading]]:
        """What is to be looked at besides, since `partitions` was asked, or this: what was found of it last."""

    def response(self, readings: Sequence[Reading]) -> FetchResponse: ...


class _Full:
    """One that names all its partitions; `sessions` where it asks for a session."""

    __slots__ = ("_ask", "_before", "_partitions", "_request", "_sessions")

    def __init__(self, request: FetchRequest, sessions: FetchSessions | None = None) -> None:
        self._request = request
        self._sessions = sessions
        self._ask: Ask | None = None
        self._before: Sequence[Reading | None] | None = None
        self._partitions: Sequence[Asked] | None = None

    @property
    def is_empty(self) -> bool:
        return not any(topic.partitions for topic in self._request.topics)

    def asks(self, ask: Ask) -> None:
        self._ask = ask

    def partitions(self) -> Sequence[Asked]:
        """One that is named several times is read once, as it was asked for last (as in Kafka)."""
        if self._partitions is None:
            topics = self._request.topics
            named = {(topic.topic, asked.partition): asked for topic in topics for asked in topic.partitions}
            self._partitions = [(topic, asked) for (topic, _), asked in named.items()]
        return self._partitions

    def before(self) -> Sequence[Reading | None]:
        return [None] * len(self.partitions()) if self._before is None else self._before

    def found(self, readings: Sequence[Reading]) -> None:
        self._before = readings

    def keys(self) -> Sequence[Key]:
        found = self._before or ()
        keys = [one.partition.key for one in found if one is not None and one.partition is not None]
        return keys if len(keys) == len(found) else [(topic, asked.partition) for topic, asked in self.partitions()]

    def joined(self) -> Sequence[tuple[FetchPartition, Reading]]:
        return ()

    def response(self, readings: Sequence[Reading]) -> FetchResponse:
        session = None if self._sessions is None else self._sessions.made_for(self._request)
        if session is not None:
            if self._ask is not None:
                session.ask(self._ask)
            session.news(readings, self._ask)
        return FetchResponse(by_topic(readings), session_id=NO_SESSION if session is None else session.id)


class _Incremental:
    """`epoch`: what the session's is as long as no other request has come in it."""

    __slots__ = ("_ask", "_epoch", "_places", "_session")

    is_empty = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self._epoch = session.epoch
        self._ask: Ask | None = None
        self._places: tuple[Place, ...] = ()

    def asks(self, ask: Ask) -> None:
        self._ask = ask
        self._session.ask(ask)

    def partitions(self) -> Sequence[Asked]:
        self._places = tuple(self._session.looked_at())
        return [(place.topic, place.asked) for place in self._places]

    def before(self) -> Sequence[Reading | None]:
        return [place.before for place in self._places]

    def found(self, readings: Sequence[Reading]) -> None:
        for place, reading in zip(self._places, readings, strict=True):
            place.before = None if reading.size_bytes else reading
            place.stand_in(reading.partition)

    def keys(self) -> Sequence[Key]:
        return (self._session.watch_key,)

    def joined(self) -> Sequence[tuple[FetchPartition, Reading]]:
        if len(self._session.active) == len(self._places):
            return ()
        known = set(self._places)
        more = [place for place in self._session.active if place not in known]
        self._places += tuple(more)
        return [(place.asked, place.before) for place in more if place.before is not None]

    def response(self, readings: Sequence[Reading]) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            return FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id)
        return FetchResponse(by_topic(session.news(readings, self._ask)), session_id=session.id)


class FetchSessions:
    """`slots`: max.incremental.fetch.session.cache.slots. Ids go on from the wall clock's time, so that one of an
    earlier life of this broker is not met again."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: dict[int, Session] = {}  # the one that was used longest ago first
        self._last_id = clock.wall_ms() % ID_MAX

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest) -> FetchContext:
        """SessionRefused."""
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            self._drop(request.session_id)
            return _Full(request, self if request.session_epoch == INITIAL_SESSION_EPOCH else None)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise SessionRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if len(session.places) + _named(request) > SESSION_PARTITIONS_MAX:
            self._drop(session.id)
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request)
        del self._sessions[session.id]
        if not session.places:
            return _Full(request)
        self._sessions[session.id] = session
        session.used_ms = session.heard_ms = self._clock.now_ms()
        session.epoch = next_epoch(session.epoch)
        return _Incremental(session)

    def made_for(self, request: FetchRequest) -> Session | None:
        """A new session with the partitions of a full fetch; None if there is no place for it, or nothing to keep."""
        held = sum(len(one.places) for one in self._sessions.values())
        named = _named(request)
        if named > SESSION_PARTITIONS_MAX or held + named > ALL_PARTITIONS_MAX:
            return None
        session = Session(NO_SESSION, request.replica_id >= 0, self._clock.now_ms())
        session.update(request)
        if not session.places or not (len(self._sessions) < self._slots or self._made_room(session)):
            return None
        session.id = self._new_id()
        self._sessions[session.id] = session
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % ID_MAX + 1
            if self._last_id not in self._sessions:
                return self._last_id

    def _made_room(self, newcomer: Session) -> bool:
        """A follower's session is worth more than a consumer's, a large one more than a small one."""
        now_ms = self._clock.now_ms()
        longest_unused = next(iter(self._sessions.values()), None)
        if longest_unused is None:
            return False
        if now_ms - longest_unused.used_ms > EVICTABLE_AFTER_MS:
            self._drop(longest_unused.id)
            return True
        evictable = [
            one
            for one in self._sessions.values()
            if now_ms - one.created_ms > EVICTABLE_AFTER_MS or (newcomer.from_follower and not one.from_follower)
        ]
        least = min(evictable, key=_worth, default=None)
        if least is None or _worth(newcomer) <= _worth(least):
            return False
        self._drop(least.id)
        return True


def _named(request: FetchRequest) -> int:
    """How many partitions; more than any session has where a name is too long for a topic's: sessions keep names."""
    if any(len(topic.topic) > TOPIC_NAME_LENGTH_MAX for topic in request.topics):
        return SESSION_PARTITIONS_MAX + 1
    return sum(len(topic.partitions) for topic in request.topics)


def _worth(session: Session) -> tuple[bool, int]:
    return session.from_follower, len(session.places)


def by_topic(readings: Sequence[Reading]) -> tuple[FetchTopicData, ...]:
    """Neighbours of one topic together."""
    topics: list[tuple[str, list[FetchPartitionData]]] = []
    for reading in readings:
        if not topics or topics[-1][0] != reading.topic:
            topics.append((reading.topic, []))
        topics[-1][1].append(reading.data)
    return tuple(FetchTopicData(topic, tuple(partitions)) for topic, partitions in topics)
