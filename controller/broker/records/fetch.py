"""Fetch: reads partitions one after another; answers at once, or when there is enough or the time is up.

A consumer reads up to the high watermark, or up to the last stable offset if it wants committed records alone; a
follower up to the leader's log end offset. A follower's fetch also reports
its own log end offset, which is recorded before its records are read, so the high watermark in the answer already
includes it. A fetch without enough data waits as a `DelayedFetch`. `fetch_sessions.py` decides which partitions an
incremental fetch means. Rules and codes: Kafka 2.8's KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages and
readFromLocalLog, and Partition.readRecords.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec

from controller.broker.partition import Partition, PartitionEvents, Reader
from controller.broker.quotas.clients import Charge, ChargedFetch
from controller.broker.records.cold_reads import AHEAD_FROM_BYTES, ATTEMPTS, COLD_BYTES, ReadAhead, read_in
from controller.broker.records.fetch_sessions import (
    Asked,
    FetchContext,
    FetchParams,
    FetchSessionCache,
    FullFetch,
    LogReadResult,
    SessionRefused,
)
from controller.broker.replica_manager import ApiError, RecordAccess, ReplicationThrottle, api_error_of, local_log
from controller.broker.request_context import SLICE, Steps, Yielded, finish, first_of
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    NO_DIVERGENCE,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
)
from controller.protocol.schema import Records
from controller.storage import DeviceUnavailable, FileRange, OffsetOutOfRange, PartitionLog, StorageError
from controller.storage.disk import NotCached
from controller.storage.segment import LOOK_BYTES
from controller.timer.purgatory import DelayedOperation, Purgatory

FIRST_VERSION_WITH_BATCHES = 4
"""Below it there is no record batch of version 2, and nothing is converted here."""


class PartitionReader:
    def __init__(
        self, access: RecordAccess, partition_events: PartitionEvents, clock: Clock, throttle: ReplicationThrottle
    ) -> None:
        self._access = access
        self._throttle = throttle
        self._partition_events = partition_events
        self._clock = clock
        self.ahead = ReadAhead(clock.now_ms)

    def read(
        self, ask: FetchParams, partitions: Sequence[tuple[str, FetchPartition]], before: Sequence[LogReadResult | None]
    ) -> Generator[Yielded, Any, list[LogReadResult]]:
        """In slices, in the order asked for, no more than `max_bytes` in all. `before`: what the very same question
        about that partition was answered the last time, where it was asked: if that was nothing, and nothing has
        changed, it is the answer again."""
        return self._read_all(ask, partitions, before, reports_position=True)

    def read_again(
        self, ask: FetchParams, partitions: Sequence[tuple[str, FetchPartition]], before: Sequence[LogReadResult | None]
    ) -> list[LogReadResult]:
        """Read again for the same fetch after its wait; this does not count as another fetch by the follower. What it
        reads is in memory: it was appended meanwhile, or the fetch has read it before."""
        readings: list[LogReadResult] = finish(self._read_all(ask, partitions, before, reports_position=False))
        return readings

    def holds_back(self, ask: FetchParams, reading: LogReadResult) -> bool:
        """Whether the partition has nothing for who asks only since that goes too fast."""
        partition = reading.partition
        return partition is not None and self._holds_back(ask, partition)

    def _holds_back(self, ask: FetchParams, partition: Partition) -> bool:
        leading = partition.leading
        return (
            ask.from_follower
            and leading is not None
            and self._throttle.holds_back(partition.topic, partition.index, ask.replica_id, leading.isr)
        )

    def _read_all(
        self,
        ask: FetchParams,
        partitions: Sequence[tuple[str, FetchPartition]],
        before: Sequence[LogReadResult | None],
        *,
        reports_position: bool,
    ) -> Generator[Yielded, Any, list[LogReadResult]]:
        left, whole = ask.max_bytes, ask.whole_first_batch
        readings: list[LogReadResult] = []
        fetch_ms = self._clock.now_ms() if reports_position and ask.from_follower and partitions else None
        for done, ((topic, asked), known) in enumerate(zip(partitions, before, strict=True), 1):
            if done % SLICE == 0:
                yield None
            position_ms = fetch_ms
            if known is not None and known.is_still_empty(ask, asked):
                if position_ms is None:
                    readings.append(known)
                    continue
                assert known.partition is not None
                assert known.log is not None
                self._record_position(known.partition, known.log, ask, asked, position_ms)
                position_ms = None
                if known.partition.high_watermark == known.data.high_watermark:  # all that hearing may have moved
                    readings.append(known)
                    continue
            limit = min(max(asked.partition_max_bytes, 0), left)
            reading = self._read(ask, topic, asked, limit, whole, position_ms, may_wait=not reports_position)
            if isinstance(reading, NotCached):
                reading = yield from self._read_cold(ask, topic, asked, limit, whole, reading)
            readings.append(reading)
            if reading.size_bytes:
                left, whole = max(left - reading.size_bytes, 0), False
        return readings

    def _read(
        self,
        ask: FetchParams,
        topic: str,
        asked: FetchPartition,
        max_bytes: int,
        whole_first_batch: bool,
        position_ms: float | None,
        *,
        may_wait: bool = False,
    ) -> LogReadResult | NotCached:
        """Read one partition. `position_ms`: the time of the fetch, if it reports a follower's log end offset.
        `may_wait`: the disk is waited for."""
        try:
            partition = self._access.partition(topic, asked.partition)
            log = local_log(partition, asked.current_leader_epoch, only_leader=ask.only_leader)
            if ask.version < FIRST_VERSION_WITH_BATCHES:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
            if ask.from_follower:
                _require_replica(partition, ask.replica_id, asked)
            divergence = _divergence(log, asked) if asked.last_fetched_epoch != NO_LEADER_EPOCH else None
            if divergence is not None:
                data = _data(ask, asked, partition, log, b"", divergence)
                return LogReadResult(topic, data, ends_the_wait=True)
            if position_ms is not None:
                self._record_position(partition, log, ask, asked, position_ms)
            up_to = ask.end(partition, log)
            if asked.fetch_offset == up_to == log.log_end_offset or self._holds_back(ask, partition):
                log.health.check()
                data = _data(ask, asked, partition, log, b"")
                return LogReadResult(topic, data, 0, False, partition, log, partition.leader_epoch)
            read = log.read if may_wait else log.read_cached
            found = read(asked.fetch_offset, max_bytes, up_to, whole_first_batch=whole_first_batch)
            aborted: tuple[AbortedTransaction, ...] = ()
            if ask.committed_only and found.length and log.may_have_aborted(asked.fetch_offset):
                aborted = log.attempt(may_wait, _aborted, log, asked, partition.last_stable_offset)
            data = _data(ask, asked, partition, log, found if found.length else b"", aborted=aborted)
        except NotCached as cold:
            self.ahead.missed()
            return cold
        except (ApiError, StorageError) as error:
            return _failed(topic, asked, error)
        is_large = found.left_bytes and found.length >= AHEAD_FROM_BYTES
        if is_large and not (may_wait or found.is_recent) and self.ahead.is_on:
            ahead = partial(self.ahead.answered, topic, asked.partition, asked.fetch_offset, found)
            self._clock.call_later(0.0, ahead)  # once the answer has gone out, or begun to
        if ask.from_follower:
            self._throttle.sent(topic, asked.partition, found.length)
        size_bytes = found.length + found.cut_bytes
        return LogReadResult(topic, data, size_bytes, False, partition, log, partition.leader_epoch)

    def _read_cold(
        self,
        ask: FetchParams,
        topic: str,
        asked: FetchPartition,
        max_bytes: int,
        whole_first_batch: bool,
        cold: NotCached,
    ) -> Generator[Yielded, Any, LogReadResult]:
        """Read one partition of which something is not in memory: `cold` to begin with. Meanwhile its leader may have
        changed, so each attempt begins anew; its follower's log end offset was recorded by the first."""
        max_bytes = min(max_bytes, max(COLD_BYTES, ask.min_bytes))
        # Where a header is missing, so are most likely the records and the header after them: one job reads them all.
        for attempt in range(ATTEMPTS):
            try:
                last = not (yield from read_in(cold, max_bytes + LOOK_BYTES)) or attempt == ATTEMPTS - 1
            except DeviceUnavailable as error:
                return _failed(topic, asked, error)
            reading = self._read(ask, topic, asked, max_bytes, whole_first_batch, None, may_wait=last)
            if not isinstance(reading, NotCached):
                return reading
            cold = reading
        raise AssertionError("the last attempt waits for the disk")

    def _record_position(
        self, partition: Partition, log: PartitionLog, ask: FetchParams, asked: FetchPartition, now_ms: float
    ) -> None:
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            raise OffsetOutOfRange(asked.fetch_offset, log.log_start_offset, log.log_end_offset)
        leading = partition.leading
        assert leading is not None
        moved = leading.follower_fetched(
            ask.replica_id, asked.fetch_offset, asked.log_start_offset, log.log_end_offset, now_ms, ask.replica_epoch
        )
        self._partition_events.follower_fetched(partition, ask.replica_id, moved=moved)


def _failed(topic: str, asked: FetchPartition, error: ApiError | StorageError) -> LogReadResult:
    data = FetchPartitionData(asked.partition, api_error_of(error).error, NO_OFFSET, b"")
    return LogReadResult(topic, data, ends_the_wait=True)


def _require_replica(partition: Partition, broker: int, asked: FetchPartition) -> None:
    """A follower that the assignment does not name: it, or this broker, does not know yet of a reassignment. With an
    epoch that agrees it is to try again (as Kafka from 3.3 on; 2.8 answers with nothing)."""
    if partition.leading is None or broker not in partition.leading.followers:
        knows_epoch = asked.current_leader_epoch != NO_LEADER_EPOCH
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _divergence(log: PartitionLog, asked: FetchPartition) -> EpochEndOffset | None:
    """Where the asker's log may still agree with this one, if what it fetched last is not here (KIP-595)."""
    if (
        log.epochs.latest == asked.last_fetched_epoch
        and log.log_start_offset <= asked.fetch_offset <= log.log_end_offset
    ):
        return None  # as nearly always, and the same as below
    end = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end.epoch == NO_LEADER_EPOCH or asked.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRange(asked.fetch_offset, log.log_start_offset, log.log_end_offset)
    if end.epoch < asked.last_fetched_epoch or end.end_offset < asked.fetch_offset:
        return EpochEndOffset(end.epoch, end.end_offset)
    return None


def _data(
    ask: FetchParams,
    asked: FetchPartition,
    partition: Partition,
    log: PartitionLog,
    found: FileRange | bytes,
    divergence: EpochEndOffset = NO_DIVERGENCE,
    aborted: tuple[AbortedTransaction, ...] = (),
) -> FetchPartitionData:
    stable = partition.last_stable_offset
    if found == b"" and divergence is NO_DIVERGENCE:
        return _nothing(asked.partition, partition.high_watermark, stable, log.log_start_offset, ask.committed_only)
    records: Records = found
    return FetchPartitionData(
        asked.partition,
        ErrorCode.NONE,
        partition.high_watermark,
        records,
        last_stable_offset=stable,
        log_start_offset=log.log_start_offset,
        diverging_epoch=divergence,
        aborted_transactions=aborted if ask.committed_only else None,
    )


def _aborted(log: PartitionLog, asked: FetchPartition, stable: int) -> tuple[AbortedTransaction, ...]:
    """Those with records in what is read, and perhaps some that begin later."""
    up_to = min(log.segment_end(asked.fetch_offset), stable)
    found = log.aborted_transactions(asked.fetch_offset, up_to)
    return tuple(AbortedTransaction(one.producer_id, one.first_offset) for one in found)


@lru_cache(maxsize=1_024)
def _nothing(
    index: int, high_watermark: int, last_stable_offset: int, log_start_offset: int, lists_aborted: bool
) -> FetchPartitionData:
    """Return an empty result. Cached, since waiting fetches hold it and nearly all idle partitions have the same."""
    return FetchPartitionData(
        index,
        ErrorCode.NONE,
        high_watermark,
        b"",
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted_transactions=() if lists_aborted else None,
    )


class _Watched(msgspec.Struct, eq=False):
    """One partition of it. `size_bytes`: what there is of it, counted up to `_seen_end`."""

    _reader: PartitionReader
    _ask: FetchParams
    _asked: FetchPartition
    _reading: LogReadResult
    size_bytes: int
    _seen_end: int = -1

    @property
    def is_at_end(self) -> bool:
        """True if the partition had no data and the client has everything that it may read."""
        return not self.size_bytes and self._seen_end == self._asked.fetch_offset

    def check(self) -> bool:
        """True: the fetch is to be answered now, whatever the others have. Its role or epoch is another, its log was
        cut or is offline, or it reads a segment that gets no more."""
        partition, log = self._reading.partition, self._reading.log
        if partition is None or log is None or not self._reading.is_still_there(self._ask):
            return True
        end = self._ask.end(partition, log)
        if end == self._seen_end:
            return False
        shrunk, self._seen_end = end < self._seen_end or log.log_end_offset < self._asked.fetch_offset, end
        if shrunk:
            return True
        if end <= self._asked.fetch_offset or self._reader.holds_back(self._ask, self._reading):
            self.size_bytes = 0
            return False
        if self._ask.min_bytes <= 1:
            self.size_bytes = 1
            return False
        return self._count(end)

    def _count(self, end: int) -> bool:
        log, offset = self._reading.log, self._asked.fetch_offset
        assert log is not None
        try:
            found = log.read(offset, self._asked.partition_max_bytes, end)
        except StorageError:
            return True
        self.size_bytes = found.length + found.cut_bytes
        return offset < log.segment_offsets[-1]


FIRST_WAIT_MS = 4
"""How long a follower's fetch waits at most right after this broker began to lead a partition of it."""


class NewLeaderships:
    """When this broker last began to lead a partition, for each follower of such partitions.

    A follower asks for a partition that it begins to follow in its next fetch, not before the one that waits is
    answered (Kafka's too), and requests with acks=all wait for that. So its fetches that wait are answered at once. It
    may be the last to learn of the leader epoch: until then its fetches wait no longer than the leadership has lasted
    already, so that it asks within twice the time that it needed to learn, and there are few more fetches than usual.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[int, float] = {}

    def begin(self, partitions: Sequence[Partition]) -> list[int]:
        """Record that this broker has begun to lead these. Return their followers."""
        now_ms = self._clock.now_ms()
        followers = sorted({one for each in partitions if each.leading is not None for one in each.leading.followers})
        self._since_ms.update(dict.fromkeys(followers, now_ms))
        return followers

    def since_ms(self, follower: int) -> float | None:
        """None: not lately, or never."""
        return self._since_ms.get(follower)

    def wait_ms(self, follower: int, wanted_ms: int) -> int:
        """Return how long its fetch may wait."""
        since_ms = self._since_ms.get(follower)
        if since_ms is None:
            return wanted_ms
        lasted_ms = self._clock.now_ms() - since_ms
        if lasted_ms >= wanted_ms:
            del self._since_ms[follower]
            return wanted_ms
        return min(wanted_ms, max(FIRST_WAIT_MS, int(lasted_ms)))


KEPT = 4
"""Partitions whose state a follower's fetch keeps while it waits, as there are few followers."""


def _follower_key(replica: int) -> tuple[str, int]:
    """Under which all fetches of a follower wait: no topic has that name, and no session has a number below 0."""
    return "", -1 - replica


class DelayedFetch(DelayedOperation):
    """A fetch that waits for records. `readings` are the first results for `partitions`, none of which completes it.
    `leaderships`: those that end the wait of the follower that asks.

    While the client is at the end of all partitions, as followers of idle ones are, no state is kept per partition
    where there are many, of partitions or of consumers: it is rebuilt from the context."""

    __slots__ = ("_answer", "_ask", "_context", "_leaderships", "_reader", "_since_ms", "_watched")

    def __init__(
        self,
        timeout_ms: int,
        reader: PartitionReader,
        ask: FetchParams,
        context: FetchContext,
        partitions: Sequence[tuple[str, FetchPartition]],
        readings: Sequence[LogReadResult],
        answer: Callable[[FetchResponse], None],
        leaderships: NewLeaderships | None = None,
    ) -> None:
        super().__init__(timeout_ms)
        self._leaderships = leaderships
        self._since_ms = None if leaderships is None else leaderships.since_ms(ask.replica_id)
        self._reader = reader
        self._ask = ask
        self._context = context
        self._answer = answer
        self._watched: list[_Watched] | None = [
            _Watched(reader, ask, asked, reading, reading.size_bytes)
            for (_, asked), reading in zip(partitions, readings, strict=True)
        ]

    def try_complete(self) -> bool:
        all_watched = self._all_watched() if self._watched is None else self._watched
        self._watched = all_watched
        for asked, reading in self._context.joined():
            all_watched.append(_Watched(self._reader, self._ask, asked, reading, reading.size_bytes))
        ended, size_bytes = False, 0
        for watched in all_watched:  # all of them: each sees by this how far its partition has come
            ended |= watched.check()
            size_bytes += watched.size_bytes
        if ended or size_bytes >= self._ask.min_bytes or self._leads_more():
            return self.force_complete()
        keeps = self._ask.from_follower and len(all_watched) <= KEPT
        if not keeps and all(watched.is_at_end for watched in all_watched):
            self._watched = None
        return False

    def _leads_more(self) -> bool:
        return self._leaderships is not None and self._leaderships.since_ms(self._ask.replica_id) != self._since_ms

    def _all_watched(self) -> list[_Watched]:
        """As they were when they were let go."""
        return [
            _Watched(self._reader, self._ask, asked, reading, reading.size_bytes, asked.fetch_offset)
            for (_, asked), reading in zip(self._context.partitions(), self._context.before(), strict=True)
            if reading is not None
        ]

    def on_complete(self) -> None:
        partitions = self._context.partitions()
        read = partial(self._reader.read_again, self._ask, partitions, self._context.before())
        self._answer(self._context.response(self._context.read_again(read)))


FIRST_VERSION_WITH_SOFT_LIMIT = 3
"""From here on a first batch larger than the limits comes through whole."""
FIRST_VERSION_FOR_FOLLOWERS = 11
"""From here on a consumer may read from a follower (KIP-392)."""


_one_ask = lru_cache(maxsize=1_024)(FetchParams)  # clients choose the values: eight integers each
"""A follower asks the same with each fetch, and all of its leaders; who waits holds it."""


FETCHES_AT_ONCE = 100
"""How many waiting fetches of one partition are tried at a time. To complete, encode and send that many takes some
milliseconds, after which the loop looks at its sockets: tens of thousands of consumers may wait for one record."""


class FetchHandler:
    """`waiting` is where fetches wait for records, by partition. `max_bytes`: fetch.max.bytes, the most that a consumer
    is given at once."""

    def __init__(
        self,
        reading: PartitionReader,
        partition_events: PartitionEvents,
        waiting: Purgatory[tuple[str, int], DelayedFetch],
        sessions: FetchSessionCache,
        max_bytes: int,
        clock: Clock,
    ) -> None:
        self._leaderships = NewLeaderships(clock)
        self._reading = reading
        self._waiting = waiting
        self.sessions = sessions
        self._max_bytes = max_bytes
        self._latest: FullFetch | None = None
        """That of the latest fetch that waits: consumers that are at the end of a partition ask the same."""
        partition_events.of_high_watermarks.append(self._partition_changed)
        partition_events.of_appends.append(self._partition_changed)
        partition_events.of_others.append(self._changed)

    def leads(self, partitions: Sequence[Partition]) -> None:
        """This broker has begun to lead these, in a new leader epoch: their followers are to fetch them soon."""
        for follower in self._leaderships.begin(partitions):
            self._waiting.check_and_complete(_follower_key(follower))

    def handle(
        self, request: FetchRequest, version: int, answer: Callable[[FetchResponse], None], charge: Charge | None = None
    ) -> Steps | None:
        """`charge`: of a consumer that may have a quota."""
        try:
            session: FetchContext = self.sessions.begin(request)
        except SessionRefused as refusal:
            answer(FetchResponse((), refusal.error))
            return None
        if session.is_empty:
            answer(session.response(()))
            return None
        if charge is not None:
            session = ChargedFetch(session, charge)
        ask = self._ask(request, version, None if charge is None else charge.most_bytes())
        session.asks(ask)
        latest = self._latest
        if latest is not None and latest.finds_as_much_as(session, ask):
            found = [one for one in latest.before() if one is not None]
            self._answer(request.max_wait_ms, ask, latest, latest.partitions(), found, answer)
            return None
        partitions = session.partitions()
        reading = self._reading.read(ask, partitions, session.before())
        steps = self._in_slices(request.max_wait_ms, ask, session, partitions, reading, answer)
        return steps if len(partitions) > SLICE else first_of(steps)

    def _in_slices(
        self,
        max_wait_ms: int,
        ask: FetchParams,
        session: FetchContext,
        partitions: Sequence[Asked],
        reading: Generator[Yielded, Any, list[LogReadResult]],
        answer: Callable[[FetchResponse], None],
    ) -> Steps:
        readings = yield from reading
        self._answer(max_wait_ms, ask, session, partitions, readings, answer)

    def _answer(
        self,
        max_wait_ms: int,
        ask: FetchParams,
        session: FetchContext,
        partitions: Sequence[Asked],
        readings: Sequence[LogReadResult],
        answer: Callable[[FetchResponse], None],
    ) -> None:
        size_bytes, ended = 0, max_wait_ms <= 0
        for one in readings:
            size_bytes += one.size_bytes
            ended = ended or one.ends_the_wait
        if ended or size_bytes >= ask.min_bytes:
            answer(session.response(readings))
            return
        if session is not self._latest:
            session.found(readings)
            self._latest = session if isinstance(session, FullFetch) and len(readings) == 1 else None
        keys, leaderships = session.keys(), None
        if ask.from_follower:
            keys, leaderships = (*keys, _follower_key(ask.replica_id)), self._leaderships
            max_wait_ms = leaderships.wait_ms(ask.replica_id, max_wait_ms)
        operation = DelayedFetch(max_wait_ms, self._reading, ask, session, partitions, readings, answer, leaderships)
        self._waiting.try_complete_else_watch(operation, keys)

    def _ask(self, request: FetchRequest, version: int, most_bytes: int | None) -> FetchParams:
        from_follower = request.replica_id >= 0
        max_bytes = request.max_bytes if from_follower else min(request.max_bytes, self._max_bytes)
        if most_bytes is not None:
            max_bytes = min(max_bytes, most_bytes)
        return _one_ask(
            request.replica_id,
            request.replica_state.replica_epoch,
            version,
            min(request.min_bytes, max_bytes),
            max(max_bytes, 0),
            request.isolation_level,
            version >= FIRST_VERSION_WITH_SOFT_LIMIT,
            from_follower or version < FIRST_VERSION_FOR_FOLLOWERS,
        )

    def _partition_changed(self, partition: Partition) -> None:
        """Who came first is answered first. Who is woken may ask anew at once, and change who reads."""
        waiting = self._waiting
        if self._latest is not None and self._latest.waits_for(partition.key):
            self._latest = None  # it would keep what is read of the log
        if partition.readers:
            readers = sorted(partition.readers, key=_since_ms)
            for reader in readers:
                reader.mark_dirty()
            for reader in readers:
                waiting.check_and_complete(reader.watch_key)
        waiting.check_and_complete(partition.key)

    def _changed(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            for reader in partition.readers or ():
                reader.mark_dirty()


def _since_ms(reader: Reader) -> float:
    return reader.last_fetch_ms
