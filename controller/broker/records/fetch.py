"""Fetch: who asks, for how much and from where; answered at once, or when there is enough or the time is up.

Rules and codes: Kafka 2.8's KafkaApis.handleFetchRequest and ReplicaManager.fetchMessages. What is read of one
partition is `fetch_reading.py`, what waits is `delayed_fetch.py`, which partitions an incremental fetch means is
`fetch_sessions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache

from controller.broker.partition import Partition, Reader
from controller.broker.progress import Progress
from controller.broker.records.delayed_fetch import DelayedFetch
from controller.broker.records.fetch_reading import Ask, FetchReading, Reading
from controller.broker.records.fetch_sessions import Asked, FetchContext, FetchSessions, SessionRefused
from controller.broker.steps import SLICE, Steps, finish
from controller.protocol.fetch_values import FetchRequest, FetchResponse
from controller.timer.purgatory import Purgatory

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
