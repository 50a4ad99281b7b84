"""A fault planted in each kind of scheme is found by holding it to the sorted list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from controller.labs.schemes import (
    HierarchicalWheels,
    IndexedHeap,
    LazyHeap,
    MaskedHashedWheel,
    OrderedHashedWheel,
    OrderedList,
    RingNode,
    SchemeTimer,
    SimpleWheel,
    TreeOfTimers,
    UnorderedHashedWheel,
    UnorderedList,
    append,
    insert_after,
    unlink,
)
from controller.labs.search_tree import SearchTree, TreeNode
from controller.timer.wheel import Bucket, TimingWheel
from tests.timer.scheme_subject import Make, hold_to_model


class DueATickEarly(UnorderedList):
    """Compares with the tick after."""

    def _collect(self) -> None:
        self.now_tick += 1
        super()._collect()
        self.now_tick -= 1


class OrderLost(OrderedList):
    """New timers go to the rear wherever they belong."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._timers, timer)


class TiesReversed(OrderedList):
    """Before those that are due in the same tick."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        place = self._timers.previous
        while isinstance(place, SchemeTimer) and place.due_tick >= timer.due_tick:
            place = place.previous
        insert_after(place, timer)


class StaleEntriesExpire(LazyHeap):
    """The entry that a restart left behind is taken for the timer."""

    def _collect(self) -> None:
        while self._heap and self._heap[0][0] <= self.now_tick:
            timer = self._heap.pop(0)[2]
            self._heap.sort(key=lambda entry: entry[:2])
            if timer.pending and timer.next is timer:
                self._due(timer)


class SinksOnly(IndexedHeap):
    """What fills the hole of a stopped timer is never moved up. (As `_remove`, without the first of two cases.)"""

    def _rise(self, timer: SchemeTimer, hole: int) -> None:
        if self._heap[hole] is timer:
            super()._rise(timer, hole)
        else:
            self._sink(timer, hole)


class _ForgetfulTree(SearchTree[SchemeTimer]):
    """The right child of a node is lost where another takes its place."""

    def _put_successor(self, node: TreeNode[SchemeTimer]) -> TreeNode[SchemeTimer]:
        assert node.right is not None
        kept = node.right.right
        changed = super()._put_successor(node)
        if kept is not None and kept.above is not None:
            kept.above.right = None
        return changed


class _HastyTree(SearchTree[SchemeTimer]):
    """The parent of the first is taken for the next, also where the first has a right child."""

    def remove(self, node: TreeNode[SchemeTimer]) -> None:
        hasty = node is self.first
        above = node.above
        super().remove(node)
        if hasty:
            self.first = above


class SuccessorsChildLost(TreeOfTimers):
    def __init__(self) -> None:
        super().__init__()
        self._tree = _ForgetfulTree(balanced=False)


class NextIsTheParent(TreeOfTimers):
    def __init__(self) -> None:
        super().__init__()
        self._tree = _HastyTree(balanced=True)


class MaskOneShort(MaskedHashedWheel):
    """Shifts by a bit more than the mask takes: two turns are one."""

    def _turn_and_slot(self, tick: int) -> tuple[int, int]:
        return tick >> (self._bits + 1), tick & self._mask


class NextSlot(SimpleWheel):
    """The bucket's index is one too high."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._bucket(timer.due_tick + 1), timer)


class BucketsWithoutOrder(OrderedHashedWheel):
    """Looks at the head as if the bucket were in order, which it is not."""

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        timer.place, slot = self._turn_and_slot(timer.due_tick)
        append(self._buckets[slot], timer)


class RoundsOneShort(UnorderedHashedWheel):
    def _rounds(self, interval: int) -> int:
        return max(super()._rounds(interval) - 1, 0)


class RoundsByDivision(UnorderedHashedWheel):
    """A multiple of the wheel's size waits a turn too long."""

    def _rounds(self, interval: int) -> int:
        return interval // len(self._buckets)


class WholeTurnCollected(UnorderedHashedWheel):
    """Rounds are not looked at."""

    def _collect(self) -> None:
        sentinel: RingNode = self._bucket(self.now_tick)
        while isinstance(timer := sentinel.next, SchemeTimer):
            unlink(timer)
            self._due(timer)


class _DroppingWheel(TimingWheel):
    """A coarse bucket's first task does not come down with the others."""

    def _bring_down(self, *arguments: Any) -> None:
        bucket = _bucket_of(arguments)
        first = bucket._next
        assert first is not None
        if first is not bucket:
            self.cancel(first)
        super()._bring_down(*arguments)


class _FlatWheel(TimingWheel):
    """A coarse bucket's tasks fire when it is reached, as if it were of the finest wheel."""

    def _bring_down(self, *arguments: Any) -> None:
        self._make_ready(_bucket_of(arguments))


def _bucket_of(arguments: Sequence[object]) -> Bucket:
    """Of what a wheel hands on inside itself, this alone is of interest here."""
    return next(one for one in arguments if isinstance(one, Bucket))


class MigrationDropped(HierarchicalWheels):
    def __init__(self, wheel_size: int) -> None:
        super().__init__(wheel_size)
        self._wheel = _DroppingWheel(1, wheel_size)


class MigrationLeftOut(HierarchicalWheels):
    def __init__(self, wheel_size: int) -> None:
        super().__init__(wheel_size)
        self._wheel = _FlatWheel(1, wheel_size)


class OneTickPastTheTop(HierarchicalWheels):
    """The topmost wheel reaches no further than the others of its kind: the longest intervals are never due."""

    def __init__(self) -> None:
        super().__init__((6, 10, 4))
        self._wheel.longest_ms -= 1


FAULTS: dict[str, tuple[Make, int]] = {
    fault.__name__: (make, longest)
    for fault, make, longest in (
        (DueATickEarly, DueATickEarly, 600),
        (OrderLost, OrderLost, 600),
        (TiesReversed, TiesReversed, 600),
        (StaleEntriesExpire, StaleEntriesExpire, 600),
        (SinksOnly, SinksOnly, 600),
        (SuccessorsChildLost, SuccessorsChildLost, 600),
        (NextIsTheParent, NextIsTheParent, 600),
        (MaskOneShort, partial(MaskOneShort, 8), 600),
        (OneTickPastTheTop, OneTickPastTheTop, 240),
        (NextSlot, partial(NextSlot, 8), 8),
        (BucketsWithoutOrder, partial(BucketsWithoutOrder, 8), 600),
        (RoundsOneShort, partial(RoundsOneShort, 8), 600),
        (RoundsByDivision, partial(RoundsByDivision, 8), 600),
        (WholeTurnCollected, partial(WholeTurnCollected, 8), 600),
        (MigrationDropped, partial(MigrationDropped, 8), 600),
        (MigrationLeftOut, partial(MigrationLeftOut, 8), 600),
    )
}


@pytest.mark.parametrize(("make", "longest"), FAULTS.values(), ids=list(FAULTS))
def test_a_planted_fault_is_found(make: Make, longest: int) -> None:
    with pytest.raises(AssertionError):
        hold_to_model(make, longest, 400)
