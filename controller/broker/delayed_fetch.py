"""A fetch that waits until there are as many bytes as it wants.

News of a partition are looked at by offsets: only where the end that the asker may read to has moved are its bytes
counted again, so that a fetch of a thousand partitions costs little each time one of them grows. When the wait is
over, what has changed is read anew. Source: Kafka 2.8's DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.broker.fetch_reading import Ask, FetchReading, Reading
from controller.broker.fetch_sessions import FetchContext
from controller.protocol.fetch_values import FetchPartition
from controller.storage import StorageError
from controller.timer.operation import DelayedOperation


class _Watched:
    """One partition of it. `size_bytes`: what there is of it, counted up to `_seen_end`."""

    __slots__ = ("_ask", "_asked", "_reader", "_reading", "_seen_end", "size_bytes")

    def __init__(self, reader: FetchReading, ask: Ask, asked: FetchPartition, reading: Reading) -> None:
        self._reader = reader
        self._asked = asked
        self._ask = ask
        self._reading = reading
        self._seen_end = -1
        self.size_bytes = reading.size_bytes

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
    """`readings` is what there was of `partitions` when it came, nothing of which ends the wait."""

    __slots__ = ("_answer", "_ask", "_context", "_reader", "_watched")

    def __init__(
        self,
        timeout_ms: int,
        reader: FetchReading,
        ask: Ask,
        context: FetchContext,
        partitions: Sequence[tuple[str, FetchPartition]],
        readings: Sequence[Reading],
        answer: Callable[[list[Reading]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._reader = reader
        self._ask = ask
        self._context = context
        self._answer = answer
        self._watched = [
            _Watched(reader, ask, asked, reading) for (_, asked), reading in zip(partitions, readings, strict=True)
        ]

    def try_complete(self) -> bool:
        for asked, reading in self._context.joined():
            self._watched.append(_Watched(self._reader, self._ask, asked, reading))
        ended, size_bytes = False, 0
        for watched in self._watched:  # all of them: each sees by this how far its partition has come
            ended |= watched.look()
            size_bytes += watched.size_bytes
        return (ended or size_bytes >= self._ask.min_bytes) and self.force_complete()

    def on_complete(self) -> None:
        partitions = self._context.partitions()
        self._answer(self._reader.read_again(self._ask, partitions, self._context.before()))
