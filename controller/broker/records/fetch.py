"""Fetch: who asks, for how much and from where; answered at once, or when there is enough or the time is up.

Rules and codes: Kafka 2.8's KafkaApis.handleFetchRequest and ReplicaManager.fetchMessages. What is read of one
partition is `fetch_reading.py`, what waits is `DelayedFetch`, which partitions an incremental fetch means is
`fetch_sessions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache

from controller.broker.partition import Partition, Reader
from controller.broker.progress import Progress
from controller.broker.records.fetch_reading import Ask, FetchReading, Reading
from controller.broker.records.fetch_sessions import Asked, FetchContext, FetchSessions, SessionRefused
from controller.broker.steps import SLICE, Steps, finish
from controller.protocol.fetch_values import FetchPartition, FetchRequest, FetchResponse
from controller.storage import StorageError
from controller.timer.operation import DelayedOperation
from controller.timer.purgatory import Purgatory


class _Watched:
    """One partition of it. `size_bytes`: what there is of it, counted up to `_seen_end`."""

    __slots__ = ("_ask", "_asked", "_reader", "_reading", "_seen_end", "size_bytes")

    def __init__(
        self, reader: FetchReading, ask: Ask, asked: FetchPartition, reading: Reading, seen_end: int = -1
    ) -> None:
        self._reader = reader
        self._asked = asked
        self._ask = ask
        self._reading = reading
        self._seen_end = seen_end
        self.size_bytes = reading.size_bytes

    @property
    def is_at_end(self) -> bool:
        """True if the partition had no data and the client has everything that it may read."""
        return not self.size_bytes and self._seen_end == self._asked.fetch_offset

    def look(self) -> bool:
        """True: the fetch is to be answered now, whatever the others have. Its role or epoch is another, its log was
        cut or is offline, or it reads a segment that gets no more."""
        partition, log = self._reading.partition, self._reading.log
        if partition is None or log is None or not self._reading.is_still_there(self._ask):
            return True
        end = log.log_end_offset if self._ask.from_follower else partition.high_watermark
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
            self.size_bytes = log.read(offset, self._asked.partition_max_bytes, end).length
        except StorageError:
            return True
        return offset < log.segment_offsets[-1]


class DelayedFetch(DelayedOperation):
    """A fetch that waits for records. `readings` are the first results for `partitions`, none of which completes it.

    While the client is at the end of all partitions, as followers of idle ones are, no state is kept per partition: it
    is rebuilt from the context."""

    __slots__ = ("_answer", "_ask", "_context", "_reader", "_watched")

    def __init__(
        self,
        timeout_ms: int,
        reader: FetchReading,
        ask: Ask,
        context: FetchContext,
        partitions: Sequence[tuple[str, FetchPartition]],
        readings: Sequence[Reading],
        answer: Callable[[FetchResponse], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._reader = reader
        self._ask = ask
        self._context = context
        self._answer = answer
        self._watched: list[_Watched] | None = [
            _Watched(reader, ask, asked, reading) for (_, asked), reading in zip(partitions, readings, strict=True)
        ]

    def try_complete(self) -> bool:
        all_watched = self._all_watched() if self._watched is None else self._watched
        self._watched = all_watched
        for asked, reading in self._context.joined():
            all_watched.append(_Watched(self._reader, self._ask, asked, reading))
        ended, size_bytes = False, 0
        for watched in all_watched:  # all of them: each sees by this how far its partition has come
            ended |= watched.look()
            size_bytes += watched.size_bytes
        if ended or size_bytes >= self._ask.min_bytes:
            return self.force_complete()
        if all(watched.is_at_end for watched in all_watched):
            self._watched = None
        return False

    def _all_watched(self) -> list[_Watched]:
        """As they were when they were let go."""
        return [
            _Watched(self._reader, self._ask, asked, reading, asked.fetch_offset)
            for (_, asked), reading in zip(self._context.partitions(), self._context.before(), strict=True)
            if reading is not None
        ]

    def on_complete(self) -> None:
        partitions = self._context.partitions()
        readings = self._reader.read_again(self._ask, partitions, self._context.before())
        self._answer(self._context.response(readings))


FIRST_VERSION_WITH_SOFT_LIMIT = 3
"""From here on a first batch larger than the limits comes through whole."""
FIRST_VERSION_FOR_FOLLOWERS = 11
"""From here on a consumer may read from a follower (KIP-392)."""


_one_ask = lru_cache(maxsize=1_024)(Ask)  # clients choose the values: eight integers each
"""A follower asks the same with each fetch, and all of its leaders; who waits holds it."""


class Fetch:
    """`waiting` is where fetches wait for records, by partition. `max_bytes`: fetch.max.bytes, the most that a consumer
    is given at once."""

    def __init__(
        self,
        reading: FetchReading,
        progress: Progress,
        waiting: Purgatory[tuple[str, int], DelayedFetch],
        sessions: FetchSessions,
        max_bytes: int,
    ) -> None:
        self._reading = reading
        self._waiting = waiting
        self._sessions = sessions
        self._max_bytes = max_bytes
        progress.of_high_watermarks.append(self._news)
        progress.of_appends.append(self._news)
        progress.of_others.append(self._changed)

    def handle(self, request: FetchRequest, version: int, answer: Callable[[FetchResponse], None]) -> Steps | None:
        try:
            session = self._sessions.begin(request)
        except SessionRefused as refusal:
            answer(FetchResponse((), refusal.error))
            return None
        if session.is_empty:
            answer(session.response(()))
            return None
        ask = self._ask(request, version)
        session.asks(ask)
        partitions = session.partitions()
        reading = self._reading.read(ask, partitions, session.before())
        if len(partitions) > SLICE:
            return self._in_slices(request.max_wait_ms, ask, session, partitions, reading, answer)
        self._answer(request.max_wait_ms, ask, session, partitions, finish(reading), answer)
        return None

    def _in_slices(
        self,
        max_wait_ms: int,
        ask: Ask,
        session: FetchContext,
        partitions: Sequence[Asked],
        reading: Generator[None, None, list[Reading]],
        answer: Callable[[FetchResponse], None],
    ) -> Steps:
        readings = yield from reading
        self._answer(max_wait_ms, ask, session, partitions, readings, answer)

    def _answer(
        self,
        max_wait_ms: int,
        ask: Ask,
        session: FetchContext,
        partitions: Sequence[Asked],
        readings: Sequence[Reading],
        answer: Callable[[FetchResponse], None],
    ) -> None:
        size_bytes, ended = 0, max_wait_ms <= 0
        for one in readings:
            size_bytes += one.size_bytes
            ended = ended or one.ends_the_wait
        if ended or size_bytes >= ask.min_bytes:
            answer(session.response(readings))
            return
        session.found(readings)
        operation = DelayedFetch(max_wait_ms, self._reading, ask, session, partitions, readings, answer)
        self._waiting.try_complete_else_watch(operation, session.keys())

    def _ask(self, request: FetchRequest, version: int) -> Ask:
        from_follower = request.replica_id >= 0
        max_bytes = request.max_bytes if from_follower else min(request.max_bytes, self._max_bytes)
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

    def _news(self, partition: Partition) -> None:
        """Who came first is answered first. Who is woken may ask anew at once, and change who reads."""
        waiting = self._waiting
        if partition.readers:
            readers = sorted(partition.readers, key=_since_ms)
            for reader in readers:
                reader.rouse()
            for reader in readers:
                waiting.check_and_complete(reader.watch_key)
        waiting.check_and_complete(partition.key)

    def _changed(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            for reader in partition.readers or ():
                reader.rouse()


def _since_ms(reader: Reader) -> float:
    return reader.heard_ms
