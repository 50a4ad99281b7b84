"""The writes of very many state znodes, and their results, as columns; objects are created only on access.

When a broker fails that led ten thousand partitions, as many states are written, and the partitions have no leader
until then. A request's bytes are built from these columns topic by topic (`jute_requests.multi_set_states`), and only
the versions are used of the reply. Code that needs single operations and stats (the in-memory ZooKeeper, the check of a
failed batch) accesses them here as sequences. Plain values: no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import overload

import numpy as np
import numpy.typing as npt

from controller.quick import maker
from controller.zookeeper import paths
from controller.zookeeper.operations import Check, SetData, Stat, Write, WriteResult


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


_set_data = maker(SetData)
Int32s = npt.NDArray[np.int32]


class StateSets(Sequence[SetData]):
    """Place by place: `paths`, `data`, and `versions` (int32[n]), at which each was read."""

    __slots__ = ("data", "paths", "versions")

    def __init__(self, paths: StatePaths, data: Sequence[bytes], versions: Int32s) -> None:
        if not len(paths) == len(data) == len(versions):
            raise ValueError(f"{len(paths)} paths, {len(data)} states and {len(versions)} versions")
        self.paths = paths
        self.data = data
        self.versions = versions

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[SetData]:
        return map(_set_data, self.paths, self.data, self.versions.tolist())

    @overload
    def __getitem__(self, place: int) -> SetData: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[SetData]: ...

    def __getitem__(self, place: int | slice) -> SetData | Sequence[SetData]:
        if not isinstance(place, slice):
            return SetData(self.paths[place], self.data[place], int(self.versions[place]))
        paths = self.paths[place]
        if not isinstance(paths, StatePaths):
            return list(self)[place]
        return StateSets(paths, self.data[place], self.versions[place])


class FencedSets(Sequence[Write]):
    """One multi: the `fence`, and the `sets` behind it."""

    __slots__ = ("fence", "sets")

    def __init__(self, fence: Check, sets: StateSets) -> None:
        self.fence = fence
        self.sets = sets

    def __len__(self) -> int:
        return 1 + len(self.sets)

    def __iter__(self) -> Iterator[Write]:
        yield self.fence
        yield from self.sets

    @overload
    def __getitem__(self, place: int) -> Write: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Write]: ...

    def __getitem__(self, place: int | slice) -> Write | Sequence[Write]:
        if isinstance(place, slice):
            return list(self)[place]
        at = place + len(self) if place < 0 else place
        return self.fence if at == 0 else self.sets[at - 1]


class SetResults(Sequence[WriteResult]):
    """The results of sets, behind those of `checks` checks, which have none. `versions` (int32[n]) are the sets' alone,
    and so is what `stat_of` counts."""

    __slots__ = ("_checks", "_stat_of", "versions")

    def __init__(self, checks: int, versions: Int32s, stat_of: Callable[[int], Stat]) -> None:
        self._checks = checks
        self._stat_of = stat_of
        self.versions = versions

    def __len__(self) -> int:
        return self._checks + len(self.versions)

    @overload
    def __getitem__(self, place: int) -> WriteResult: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[WriteResult]: ...

    def __getitem__(self, place: int | slice) -> WriteResult | Sequence[WriteResult]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if (stop, step) == (len(self), 1) and start <= self._checks:
                return SetResults(self._checks - start, self.versions, self._stat_of)
            return [self[at] for at in range(start, stop, step)]
        at = place + len(self) if place < 0 else place
        if not 0 <= at < len(self):
            raise IndexError(f"result {place} of {len(self)}")
        return None if at < self._checks else self._stat_of(at - self._checks)
