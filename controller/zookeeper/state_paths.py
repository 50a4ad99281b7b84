"""The paths of very many state znodes, as topics and numbers: a str is made of one only when somebody looks at it.

A new controller asks for the states of every partition. Their paths differ in a topic's name and a number, and a
request's bytes are put together from these topic by topic (`jute.multi_read_states`). Whoever wants a sequence of str
has one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from controller.zookeeper import paths


class StatePaths(Sequence[str]):
    """`topics`: (name, partitions) in the order of the paths, partitions in theirs."""

    __slots__ = ("_count", "topics")

    def __init__(self, topics: Sequence[tuple[str, list[int]]]) -> None:
        self.topics = topics
        self._count = sum(len(partitions) for _, partitions in topics)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for name, partitions in self.topics:
            yield from paths.partition_states(name, partitions)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            whole = place.indices(self._count) == (0, self._count, 1)
            return self if whole else list(self)[place]
        left = place + self._count if place < 0 else place
        for name, partitions in self.topics if left >= 0 else ():
            if left < len(partitions):
                return paths.partition_state(name, partitions[left])
            left -= len(partitions)
        raise IndexError(f"path {place} of {self._count}")
