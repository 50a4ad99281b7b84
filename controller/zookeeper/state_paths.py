"""The paths of very many state znodes, as topics and numbers: a str is created only on access.

A controller reads the states of every partition, and writes those of many. Their paths differ in a topic's name and a
number, and a request's bytes are built from these topic by topic (`jute_requests.multi_read_states`,
`jute_requests.multi_set_states`). Code that needs str accesses the paths as a sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

from controller.zookeeper import paths


class StatePaths(Sequence[str]):
    """`topics`: (name, partitions) in the order of the paths, partitions in theirs. A run of them is such a sequence
    too, found without a walk over all topics."""

    __slots__ = ("_ends", "topics")

    def __init__(self, topics: Sequence[tuple[str, list[int]]]) -> None:
        self.topics = topics
        self._ends = list(accumulate(len(partitions) for _, partitions in topics))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        for name, partitions in self.topics:
            yield from paths.partition_states(name, partitions)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._run(start, stop) if step == 1 else list(self)[place]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(f"path {place} of {len(self)}")
        number = bisect_right(self._ends, at)
        name, partitions = self.topics[number]
        return paths.partition_state(name, partitions[at - self._ends[number]])  # counted from the topic's end

    def _run(self, start: int, stop: int) -> StatePaths:
        if (start, stop) == (0, len(self)):
            return self
        topics: list[tuple[str, list[int]]] = []
        number = bisect_right(self._ends, start)
        while start < stop:
            (name, partitions), end = self.topics[number], self._ends[number]
            first = end - len(partitions)
            topics.append((name, partitions[start - first : stop - first]))
            start, number = end, number + 1
        return StatePaths(topics)
