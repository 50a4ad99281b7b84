"""Fetch sessions (KIP-227): a client that fetches the same partitions repeatedly names only the changed ones, and its
answers contain only the changed ones.

No I/O; time is read from the clock. The number of sessions is bounded. When all slots are taken, a new session evicts
one that has not been used for long, or a smaller one that has existed for long; otherwise the client gets no session,
and names all its partitions each time. Rules: Kafka 2.8's FetchManager and FetchSessionCache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from controller.broker.partition import NEVER_MS, FollowerState, Partition
from controller.clock import Clock
from controller.few import Few
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_DIVERGENCE,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_SESSION,
    READ_COMMITTED,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopicData,
)
from controller.protocol.framing import IN_MEMORY
from controller.storage import FileRange, PartitionLog, StorageError
from controller.zookeeper.codecs_columns import TOPIC_NAME_LENGTH_MAX

EPOCH_MAX = 2**31 - 1
Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class FetchParams:
    """What holds for all partitions of a fetch. `min_bytes` is what it waits for; `only_leader`: it may not be answered
    from a follower's log."""

    replica_id: int
    replica_epoch: int
    version: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    whole_first_batch: bool
    only_leader: bool
    from_follower: bool = field(init=False)
    committed_only: bool = field(init=False)
    """A consumer's that reads up to the last stable offset."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "from_follower", self.replica_id >= 0)  # asked for each partition, several times
        committed_only = self.isolation_level == READ_COMMITTED and not self.from_follower
        object.__setattr__(self, "committed_only", committed_only)

    def end(self, partition: Partition, log: PartitionLog) -> int:
        """The offset up to which it may read."""
        if self.from_follower:
            return log.log_end_offset
        return partition.last_stable_offset if self.committed_only else partition.high_watermark


class LogReadResult(msgspec.Struct, frozen=True):
    """One partition's part of the answer. `size_bytes`: what there is of it, up to what is allowed; of this, `data` has
    the batches that are complete. `ends_the_wait`: an error or a divergence, which is answered at once.
    `partition`, its `log` and `leader_epoch` are those at the time of the read, where it was read."""

    topic: str
    data: FetchPartitionData
    size_bytes: int = 0
    ends_the_wait: bool = False
    partition: Partition | None = None
    log: PartitionLog | None = None
    leader_epoch: int = NO_LEADER_EPOCH

    def is_still_there(self, ask: FetchParams) -> bool:
        """Whether who asks may go on reading this very log."""
        partition = self.partition
        return (
            partition is not None
            and partition.log is self.log
            and partition.leader_epoch == self.leader_epoch
            and (partition.leading is not None or not ask.only_leader)
        )

    def is_still_empty(self, ask: FetchParams, asked: FetchPartition) -> bool:
        """Whether reading anew would find nothing, and the same in everything else."""
        partition, log, data = self.partition, self.log, self.data
        if partition is None or log is None or self.size_bytes or data.high_watermark != partition.high_watermark:
            return False
        return (
            asked.fetch_offset == ask.end(partition, log)
            and data.log_start_offset == log.log_start_offset
            and self.is_still_there(ask)
        )


class CachedPartition(msgspec.Struct, eq=False):
    """A partition of a session (Kafka's CachedPartition): the client's question, its last answer, and the offsets that
    the client was last sent. Partitions are read in the order of `turn`. `is_active`: among its session's `active`."""

    session: FetchSession
    topic: str
    asked: FetchPartition
    turn: int
    before: LogReadResult | None = None
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    partition: Partition | None = None
    follower: FollowerState | None = None
    is_active: bool = False

    @property
    def watch_key(self) -> Key:
        return self.session.watch_key

    @property
    def last_fetch_ms(self) -> float:
        return self.session.last_fetch_ms

    def is_new(self, data: FetchPartitionData) -> bool:
        """Record an answer and return whether the client must be sent it. After an error, the next one always is."""
        failed = data.error_code != ErrorCode.NONE
        changed_results = (
            failed
            or bool(data_bytes(data))
            or (data.diverging_epoch is not NO_DIVERGENCE and data.diverging_epoch != NO_DIVERGENCE)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        self.high_watermark = NO_OFFSET if failed else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return changed_results

    def mark_dirty(self) -> None:
        """Let the next fetch read it."""
        if not self.is_active:
            self.is_active = True
            session = self.session
            if session.active:
                session.active.append(self)
            else:
                session.active = [self]  # a list that grows takes room for four
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.mark_dirty(self.session)

    def park(self, ask: FetchParams) -> bool:
        """Skip the partition in further fetches until it changes; return False if that is not allowed. A follower that
        is not in the ISR may not be parked: each of its fetches is an occasion to propose it."""
        known = self.before
        if known is None or not known.is_still_empty(ask, self.asked) or known.partition is None:
            return False
        if ask.from_follower:
            leading = known.partition.leading
            follower = None if leading is None else leading.followers.get(ask.replica_id)
            if leading is None or follower is None or ask.replica_id not in leading.isr:
                return False
            if follower.log_end_offset != self.asked.fetch_offset or follower.broker_epoch != ask.replica_epoch:
                return False
            follower.parked_in, self.follower = self.session, follower
        self.attach_to(known.partition)
        return True

    def leave(self) -> None:
        """It is in the session no more."""
        self.mark_dirty()
        self.attach_to(None)

    def attach_to(self, partition: Partition | None) -> None:
        """Let changes of that partition mark this one dirty from now on."""
        if partition is self.partition:
            return
        if self.partition is not None and self.partition.readers is not None:
            self.partition.readers = tuple(one for one in self.partition.readers if one is not self) or None
        self.partition = partition
        if partition is not None:
            partition.readers = (*(partition.readers or ()), self)


class FetchSession(msgspec.Struct, eq=False):
    """`epoch` is the one that the next request must have; `active` are the partitions that are not parked;
    `last_fetch_ms`: when the last request arrived."""

    id: int
    from_follower: bool
    created_ms: float
    used_ms: float
    epoch: int = INITIAL_SESSION_EPOCH + 1
    last_fetch_ms: float = NEVER_MS
    partitions: Few[Key, CachedPartition] = msgspec.field(default_factory=Few)
    active: list[CachedPartition] = msgspec.field(default_factory=list)
    _turn: int = 0
    _asked: FetchParams | None = None

    @property
    def watch_key(self) -> Key:
        """Where a fetch of it waits: no topic has that name."""
        return "", self.id

    def update(self, request: FetchRequest) -> None:
        for topic in request.topics:
            for asked in topic.partitions:
                cached = self.partitions.get((topic.topic, asked.partition))
                if cached is None:
                    name = sys.intern(topic.topic)
                    cached = CachedPartition(self, name, one_question(asked), self._next_turn())
                    self.partitions[name, asked.partition] = cached
                else:
                    cached.asked, cached.before = asked, None
                cached.mark_dirty()
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                cached = self.partitions.pop((forgotten.topic, index))
                if cached is not None:
                    cached.leave()
                    cached.is_active = False
        if request.forgotten_topics_data:
            self._drop_parked()

    def ask(self, ask: FetchParams) -> None:
        """Partitions are parked for fetches with the same parameters only."""
        before, self._asked = self._asked, ask
        if before is not ask and (before is None or not _ask_alike(before, ask)):
            for cached in self.partitions.values():
                cached.mark_dirty()

    def dirty_partitions(self) -> list[CachedPartition]:
        """Return the partitions that are not parked, in their order."""
        if len(self.active) < 2:
            return list(self.active)
        return sorted(self.active, key=attrgetter("turn"))

    def changed_results(self, readings: Sequence[LogReadResult], ask: FetchParams | None) -> list[LogReadResult]:
        """Return the readings that the client must be sent. Their partitions go to the end of the order, so that the
        others come first in the next answer: an answer may be too small for all."""
        changed = []
        parked = False
        for reading in readings:
            cached = self.partitions.get((reading.topic, reading.data.partition_index))
            if cached is None:
                continue
            cached.before = None if reading.size_bytes else reading  # records' files are not held on to
            if cached.is_new(reading.data):
                changed.append(reading)
                cached.turn = self._next_turn()
            if ask is not None and cached.park(ask):
                cached.is_active, parked = False, True
        if parked:
            self._drop_parked()
        return changed

    def _drop_parked(self) -> None:
        self.active = [cached for cached in self.active if cached.is_active]

    def end(self) -> None:
        """Release all partitions of an ended session."""
        for cached in self.partitions.values():
            cached.leave()

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


def _ask_alike(one: FetchParams, other: FetchParams) -> bool:
    """Return whether a partition parked for one is parked for the other."""
    return (
        one.replica_id == other.replica_id
        and one.replica_epoch == other.replica_epoch
        and one.version == other.version
        and one.isolation_level == other.isolation_level
    )


@lru_cache(maxsize=512)  # clients choose the values: six integers each
def one_question(asked: FetchPartition) -> FetchPartition:
    """Return one object for equal questions: of idle partitions many are asked the same."""
    return asked


def next_epoch(epoch: int) -> int:
    """From 2^31 - 1 on to 1: 0 would begin anew."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def data_bytes(data: FetchPartitionData) -> int:
    """Bytes of its records."""
    records = data.records
    if records is None:
        return 0
    return len(records) if isinstance(records, IN_MEMORY) else records.length


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

    def asks(self, ask: FetchParams) -> None:
        """Before all else."""

    def partitions(self) -> Sequence[Asked]:
        """Those that are to be looked at now: those that were before, and whatever was to be looked at since."""

    def before(self) -> Sequence[LogReadResult | None]:
        """What the same was answered last, for each of them."""

    def found(self, readings: Sequence[LogReadResult]) -> None:
        """What there was of each of them when the fetch came."""

    def keys(self) -> Sequence[Key]:
        """Of what news are waited for."""

    def joined(self) -> Sequence[tuple[FetchPartition, LogReadResult]]:
        """What is to be looked at besides, since `partitions` was asked, or this: what was found of it last."""

    def read_again(self, read: Callable[[], Sequence[LogReadResult]]) -> Sequence[LogReadResult]:
        """What `read` finds of the partitions now, after the wait."""

    def response(self, readings: Sequence[LogReadResult]) -> FetchResponse: ...

    def throttled(self) -> FetchResponse:
        """Nothing, in place of `response`: what there is will be there at the next fetch."""


SHARED_BYTES = 16 * 1024
"""Fewer records than this are read once for all fetches that share them; the server would read them for each."""


def in_memory(reading: LogReadResult) -> LogReadResult:
    """Return the same with its records in memory, if they are few."""
    records = reading.data.records
    if not isinstance(records, FileRange) or records.length >= SHARED_BYTES:
        return reading
    try:
        data = records.read()
    except (OSError, StorageError):
        return reading  # the server finds the same, which closes the connection; a request without an answer is worse
    if len(data) != records.length:
        return reading  # cut off meanwhile, which closes the connection
    return replace(reading, data=replace(reading.data, records=data))


class FullFetch(msgspec.Struct, eq=False):
    """One that names all its partitions; `sessions` where it asks for a session.

    Fetches of many consumers that ask the same and find nothing may share one, and then what they find in the end."""

    _request: FetchRequest
    _sessions: FetchSessionCache | None = None
    _ask: FetchParams | None = None
    _before: Sequence[LogReadResult | None] | None = None
    _partitions: Sequence[Asked] | None = None
    _keys: tuple[Key, ...] | None = None
    _read_at: tuple[object, ...] | None = None
    _again: Sequence[LogReadResult] = ()
    _response: FetchResponse | None = None

    def waits_for(self, key: Key) -> bool:
        """Return whether news of that partition may complete it."""
        return key in self.keys()

    def finds_as_much_as(self, other: FetchContext, ask: FetchParams) -> bool:
        """Return whether `other`, a fetch by a consumer that begins now with the parameters `ask`, would find nothing,
        as this one did."""
        if not isinstance(other, FullFetch) or other._sessions is not self._sessions or ask is not self._ask:
            return False
        mine, others = self._request, other._request
        if mine.topics != others.topics or mine.forgotten_topics_data or others.forgotten_topics_data:
            return False
        return not ask.from_follower and all(
            reading is not None and reading.is_still_empty(ask, asked)
            for (_, asked), reading in zip(self.partitions(), self.before(), strict=True)
        )

    @property
    def is_empty(self) -> bool:
        return not any(topic.partitions for topic in self._request.topics)

    def asks(self, ask: FetchParams) -> None:
        self._ask = ask

    def partitions(self) -> Sequence[Asked]:
        """One that is named several times is read once, as it was asked for last (as in Kafka)."""
        if self._partitions is None:
            topics = self._request.topics
            named = {(topic.topic, asked.partition): asked for topic in topics for asked in topic.partitions}
            self._partitions = [(topic, asked) for (topic, _), asked in named.items()]
        return self._partitions

    def before(self) -> Sequence[LogReadResult | None]:
        return [None] * len(self.partitions()) if self._before is None else self._before

    def found(self, readings: Sequence[LogReadResult]) -> None:
        self._before = readings

    def keys(self) -> Sequence[Key]:
        if self._keys is None:
            found = self._before or ()
            keys = tuple(one.partition.key for one in found if one is not None and one.partition is not None)
            self._keys = (
                keys if len(keys) == len(found) else tuple((name, one.partition) for name, one in self.partitions())
            )
        return self._keys

    def joined(self) -> Sequence[tuple[FetchPartition, LogReadResult]]:
        return ()

    def read_again(self, read: Callable[[], Sequence[LogReadResult]]) -> Sequence[LogReadResult]:
        """Read once for all who share this, as long as nothing about the partition has changed."""
        at = self._state()
        if at is None or at != self._read_at:
            self._again, self._read_at, self._response = read(), at, None
        return self._again

    def _state(self) -> tuple[object, ...] | None:
        """Return what a consumer's reading depends on, or None where it is not shared."""
        ask, before = self._ask, self._before
        if ask is None or before is None or len(before) != 1 or ask.from_follower:
            return None
        reading = before[0]
        if reading is None or reading.log is None or not reading.is_still_there(ask):
            return None
        log, partition = reading.log, reading.partition
        assert partition is not None
        return log.log_start_offset, log.log_end_offset, partition.high_watermark

    def response(self, readings: Sequence[LogReadResult]) -> FetchResponse:
        session = None if self._sessions is None else self._sessions.made_for(self._request)
        if session is not None:
            if self._ask is not None:
                session.ask(self._ask)
            session.changed_results(readings, self._ask)
            return FetchResponse(by_topic(readings), session_id=session.id)
        if readings is not self._again:
            return FetchResponse(by_topic(readings))
        if self._response is None:
            self._response = FetchResponse(by_topic([in_memory(reading) for reading in readings]))
        return self._response

    def throttled(self) -> FetchResponse:
        return FetchResponse(())


class _Incremental:
    """`epoch`: what the session's is as long as no other request has come in it."""

    __slots__ = ("_ask", "_epoch", "_partitions", "_session")

    is_empty = False

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._epoch = session.epoch
        self._ask: FetchParams | None = None
        self._partitions: tuple[CachedPartition, ...] = ()

    def asks(self, ask: FetchParams) -> None:
        self._ask = ask
        self._session.ask(ask)

    def partitions(self) -> Sequence[Asked]:
        self._partitions = tuple(self._session.dirty_partitions())
        return [(cached.topic, cached.asked) for cached in self._partitions]

    def before(self) -> Sequence[LogReadResult | None]:
        return [cached.before for cached in self._partitions]

    def found(self, readings: Sequence[LogReadResult]) -> None:
        for cached, reading in zip(self._partitions, readings, strict=True):
            cached.before = None if reading.size_bytes else reading
            cached.attach_to(reading.partition)

    def keys(self) -> Sequence[Key]:
        return (self._session.watch_key,)

    def joined(self) -> Sequence[tuple[FetchPartition, LogReadResult]]:
        if len(self._session.active) == len(self._partitions):
            return ()
        known = set(self._partitions)
        more = [cached for cached in self._session.active if cached not in known]
        self._partitions += tuple(more)
        return [(cached.asked, cached.before) for cached in more if cached.before is not None]

    def read_again(self, read: Callable[[], Sequence[LogReadResult]]) -> Sequence[LogReadResult]:
        return read()

    def throttled(self) -> FetchResponse:
        stale = self._session.epoch != self._epoch
        return FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH if stale else 0, self._session.id)

    def response(self, readings: Sequence[LogReadResult]) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            return self.throttled()
        return FetchResponse(by_topic(session.changed_results(readings, self._ask)), session_id=session.id)


class FetchSessionCache:
    """`slots`: max.incremental.fetch.session.cache.slots. Ids go on from the wall clock's time, so that one of an
    earlier life of this broker is not met again."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots = slots
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}  # the one that was used longest ago first
        self._last_id = clock.wall_ms() % ID_MAX

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest) -> FetchContext:
        """SessionRefused."""
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            self._drop(request.session_id)
            return FullFetch(request, self if request.session_epoch == INITIAL_SESSION_EPOCH else None)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise SessionRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if len(session.partitions) + _named(request) > SESSION_PARTITIONS_MAX:
            self._drop(session.id)
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request)
        del self._sessions[session.id]
        if not session.partitions:
            return FullFetch(request)
        self._sessions[session.id] = session
        session.used_ms = session.last_fetch_ms = self._clock.now_ms()
        session.epoch = next_epoch(session.epoch)
        return _Incremental(session)

    def made_for(self, request: FetchRequest) -> FetchSession | None:
        """A new session with the partitions of a full fetch; None if there is no place for it, or nothing to keep."""
        held = sum(len(one.partitions) for one in self._sessions.values())
        named = _named(request)
        if named > SESSION_PARTITIONS_MAX or held + named > ALL_PARTITIONS_MAX:
            return None
        now_ms = self._clock.now_ms()
        session = FetchSession(NO_SESSION, request.replica_id >= 0, now_ms, now_ms)
        session.update(request)
        if not session.partitions or not (len(self._sessions) < self._slots or self._made_room(session)):
            return None
        session.id = self._new_id()
        self._sessions[session.id] = session
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def clear(self) -> None:
        """Forget all sessions and what they refer to; the broker is dead."""
        for session in self._sessions.values():
            session.partitions, session.active = Few(), []
        self._sessions.clear()

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % ID_MAX + 1
            if self._last_id not in self._sessions:
                return self._last_id

    def _made_room(self, newcomer: FetchSession) -> bool:
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


def _worth(session: FetchSession) -> tuple[bool, int]:
    return session.from_follower, len(session.partitions)


def by_topic(readings: Sequence[LogReadResult]) -> tuple[FetchTopicData, ...]:
    """Neighbours of one topic together."""
    topics: list[tuple[str, list[FetchPartitionData]]] = []
    for reading in readings:
        if not topics or topics[-1][0] != reading.topic:
            topics.append((reading.topic, []))
        topics[-1][1].append(reading.data)
    return tuple(FetchTopicData(topic, tuple(partitions)) for topic, partitions in topics)
