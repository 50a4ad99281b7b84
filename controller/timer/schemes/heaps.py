"""Scheme 3: a priority queue, here a binary heap in two forms.

`LazyHeap` stands on the standard library's `heapq`, as asyncio and `sched` do: a stopped timer stays in the heap until
it comes to the top or too many of its kind are in there. `IndexedHeap` knows where each timer is and takes it out at
once; it is written in Python throughout, as the other schemes are.
"""

from __future__ import annotations

import heapq

from controller.timer.schemes.scheme import Scheme, SchemeTimer

STALE_LEAST = 64
"""A smaller heap is never rebuilt: it is not worth the work."""


class LazyHeap(Scheme):
    """Start O(log n), stop O(1), a tick O(1) and O(log n) for each timer that expires. Never more stale entries than
    pending ones, STALE_LEAST apart."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, SchemeTimer]] = []

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        heapq.heappush(self._heap, (timer.due_tick, timer.number, timer))

    def _remove(self, timer: SchemeTimer) -> None:
        if len(self._heap) > 2 * self._outstanding + STALE_LEAST:
            self._heap = [entry for entry in self._heap if _stands(entry[1], entry[2])]
            heapq.heapify(self._heap)

    def _collect(self) -> None:
        heap = self._heap
        while heap and heap[0][0] <= self.now_tick:
            _, number, timer = heapq.heappop(heap)
            if _stands(number, timer):
                self._due(timer)


def _stands(number: int, timer: SchemeTimer) -> bool:
    """False of an entry that a stop or a restart left behind."""
    return timer.pending and timer.number == number


class IndexedHeap(Scheme):
    """Start O(log n), stop O(log n), a tick O(1) and O(log n) for each timer that expires."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[SchemeTimer] = []

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        self._heap.append(timer)
        self._rise(timer, len(self._heap) - 1)

    def _remove(self, timer: SchemeTimer) -> None:
        heap, hole = self._heap, timer.place
        assert heap[hole] is timer
        last = heap.pop()
        if last is timer:
            return
        if hole and _before(last, heap[(hole - 1) // 2]):
            self._rise(last, hole)
        else:
            self._sink(last, hole)

    def _collect(self) -> None:
        heap = self._heap
        while heap and heap[0].due_tick <= self.now_tick:
            timer = heap[0]
            self._remove(timer)
            self._due(timer)

    def _rise(self, timer: SchemeTimer, hole: int) -> None:
        """`timer` into the hole, or above it as long as what is there comes later."""
        heap = self._heap
        while hole:
            above = (hole - 1) // 2
            parent = heap[above]
            if not _before(timer, parent):
                break
            heap[hole] = parent
            parent.place = hole
            hole = above
        heap[hole] = timer
        timer.place = hole

    def _sink(self, timer: SchemeTimer, hole: int) -> None:
        """`timer` into the hole, or below it as long as what is there comes first."""
        heap, size = self._heap, len(self._heap)
        while (below := 2 * hole + 1) < size:
            if below + 1 < size and _before(heap[below + 1], heap[below]):
                below += 1
            child = heap[below]
            if not _before(child, timer):
                break
            heap[hole] = child
            child.place = hole
            hole = below
        heap[hole] = timer
        timer.place = hole


def _before(one: SchemeTimer, other: SchemeTimer) -> bool:
    return one.due_tick < other.due_tick or (one.due_tick == other.due_tick and one.number < other.number)
