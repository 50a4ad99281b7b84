"""A fetch that waits until there are as many bytes as it wants.

News of a partition are looked at by offsets: only where the end that the asker may read to has moved are its bytes
counted again, so that a fetch of a thousand partitions costs little each time one of them grows. When the wait is
over, what has changed is read anew. Source: Kafka 2.8's DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.broker.records.fetch_reading import Ask, FetchReading, Reading
from controller.broker.records.fetch_sessions import FetchContext
from controller.protocol.fetch_values import FetchPartition, FetchResponse
from controller.storage import StorageError
from controller.timer.operation import DelayedOperation


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
        """There was nothing of it, and whoever asks has all that may be read."""
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
    """`readings` is what there was of `partitions` when it came, nothing of which ends the wait. While it has all of
    each, as followers of idle partitions do, nothing is held for each: the context tells it again."""

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
