"""The seven timer schemes of Varghese and Lauck behind one interface, to be compared.

    scheme = UnorderedHashedWheel(256)
    timer = scheme.start(1_000, lambda: print("late"))   # expires 1,000 ticks from now
    scheme.stop(timer)                                   # True: it was pending
    scheme.restart(timer, 500)
    scheme.advance_to(500)                               # tick by tick; returns how many expired

Source: "Hashed and Hierarchical Timing Wheels", 1987 and 1997, with its operations START_TIMER, STOP_TIMER,
PER_TICK_BOOKKEEPING and EXPIRY_PROCESSING. `CATALOGUE` lists all schemes with their published costs. The product uses
the seventh, in `controller.timer`.

Time is a count of ticks that moves when `tick` is called. A scheme holds no lock and reads no clock. A tick has two
halves: the bookkeeping gathers every timer that is due in one list, then each of them is taken off that list and its
action is called. So an action may start, stop or restart any timer, its own and others of the same tick included.
Within a tick, timers expire in the order in which they were started.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from controller.labs.search_tree import SearchTree, TreeNode
from controller.timer.wheel import TimerTask, TimingWheel


class RingNode:
    """A node, or the sentinel of a list. Alone (in no list, or an empty list), it is its own neighbour."""

    __slots__ = ("next", "previous")

    def __init__(self) -> None:
        self.next: RingNode = self
        self.previous: RingNode = self


def insert_after(place: RingNode, link: RingNode) -> None:
    following = place.next
    link.previous = place
    link.next = following
    place.next = link
    following.previous = link


def append(sentinel: RingNode, link: RingNode) -> None:
    insert_after(sentinel.previous, link)


def unlink(link: RingNode) -> None:
    """Out of whatever list it is in; harmless for a link that is alone."""
    link.previous.next = link.next
    link.next.previous = link.previous
    link.next = link.previous = link


def take_all(source: RingNode, target: RingNode) -> None:
    """Everything in the list of `source`, in order, to the end of the list of `target`, in constant time."""
    first, last = source.next, source.previous
    if first is source:
        return
    before = target.previous
    before.next = first
    first.previous = before
    last.next = target
    target.previous = last
    source.next = source.previous = source


class IntervalError(ValueError):
    """An interval that a scheme can't take; `interval` in ticks."""

    def __init__(self, interval: int, message: str) -> None:
        super().__init__(message)
        self.interval = interval


class IntervalTooShort(IntervalError):
    def __init__(self, interval: int) -> None:
        super().__init__(interval, f"interval {interval}: expected 1 tick or more")


class IntervalTooLong(IntervalError):
    """Beyond the `maximum` (in ticks) of a scheme whose memory bounds its intervals."""

    def __init__(self, scheme: str, interval: int, maximum: int) -> None:
        super().__init__(interval, f"{scheme}: interval {interval} is beyond its maximum of {maximum} ticks")
        self.maximum = maximum


class TickFromAction(RuntimeError):
    """`tick` was called by an expiry action: the tick that it runs in has not ended."""

    def __init__(self, scheme: str, now_tick: int) -> None:
        super().__init__(f"{scheme}: tick called by an expiry action of tick {now_tick}")


class SchemeTimer(RingNode):
    """One timer of one scheme, from `start` on.

    `due_tick`: when it expires, or did, or would have. `pending`: neither expired nor stopped. `number`: how many had
    been started before. `place`: the scheme's own note (rounds left, index in a heap).
    """

    __slots__ = ("action", "due_tick", "number", "pending", "place")

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action
        self.due_tick = 0
        self.number = 0
        self.pending = False
        self.place = 0


class Scheme(ABC):
    """Subclasses keep the pending timers in a structure of their own: `_insert`, `_remove` and `_collect`."""

    def __init__(self) -> None:
        self.now_tick = 0
        self._outstanding = 0
        self._started = 0
        self._expired = RingNode()
        self._expiring = False

    def __len__(self) -> int:
        """Timers that are pending."""
        return self._outstanding

    def start(self, interval: int, action: Callable[[], object]) -> SchemeTimer:
        """Calls `action` once, `interval` ticks (1 or more) from now. Raises IntervalError."""
        timer = self._new(action)
        self.restart(timer, interval)
        return timer

    def stop(self, timer: SchemeTimer) -> bool:
        """True if the action was yet to come, and now won't; False if it has been called or was stopped before."""
        if not timer.pending:
            return False
        timer.pending = False
        self._outstanding -= 1
        if self._expiring and timer.due_tick == self.now_tick:
            unlink(timer)
        else:
            self._remove(timer)
        return True

    def restart(self, timer: SchemeTimer, interval: int) -> None:
        """The timer anew, `interval` ticks (1 or more) from now, whether it is pending or not. Raises IntervalError,
        and then the timer is as it was."""
        self._check(interval)
        if timer.pending:
            self.stop(timer)
        timer.due_tick = self.now_tick + interval
        timer.number = self._started
        self._started += 1
        timer.pending = True
        self._outstanding += 1
        self._insert(timer, interval)

    def tick(self) -> int:
        """One tick passes: the number of timers that expired in it.

        Raises ExceptionGroup with what actions raised, after all that were due have been called.
        """
        if self._expiring:
            raise TickFromAction(type(self).__name__, self.now_tick)
        self.now_tick += 1
        self._collect()
        return self._expire() if self._expired.next is not self._expired else 0

    def advance_to(self, tick: int) -> int:
        """Tick by tick until `now_tick` is `tick`: the number of timers that expired. As `tick`, and if that raises,
        time stands at the tick that did."""
        fired = 0
        while self.now_tick < tick:
            fired += self.tick()
        return fired

    def _expire(self) -> int:
        expired, fired = self._expired, 0
        errors: list[Exception] = []
        self._expiring = True
        try:
            # The head anew each time: the action may stop the timer that was to be next.
            while (timer := expired.next) is not expired:
                assert isinstance(timer, SchemeTimer)
                unlink(timer)
                timer.pending = False
                self._outstanding -= 1
                fired += 1
                try:
                    timer.action()
                except Exception as error:  # noqa: BLE001 - raised below, when the others have had their turn
                    errors.append(error)
        finally:
            self._expiring = False
        if errors:
            raise ExceptionGroup(f"{type(self).__name__}: actions of tick {self.now_tick}", errors)
        return fired

    def _due(self, timer: SchemeTimer) -> None:
        """For `_collect`: a timer that the structure has let go joins those that expire in this tick."""
        append(self._expired, timer)

    def _new(self, action: Callable[[], object]) -> SchemeTimer:
        return SchemeTimer(action)

    def _check(self, interval: int) -> None:
        if interval < 1:
            raise IntervalTooShort(interval)

    @abstractmethod
    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        """Takes in a timer whose `due_tick` is `interval` ticks away."""

    def _remove(self, timer: SchemeTimer) -> None:
        """Lets go of a timer that was inserted and not collected."""
        unlink(timer)

    @abstractmethod
    def _collect(self) -> None:
        """Hands every timer due at `now_tick` to `_due`, out of the structure, in the order of their numbers."""


class UnorderedList(Scheme):
    """Scheme 1. Start O(1), stop O(1), a tick O(n)."""

    def __init__(self) -> None:
        super().__init__()
        self._timers = RingNode()

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._timers, timer)

    def _collect(self) -> None:
        sentinel, now_tick = self._timers, self.now_tick
        link = sentinel.next
        while link is not sentinel:
            timer, link = link, link.next
            assert isinstance(timer, SchemeTimer)
            if timer.due_tick == now_tick:
                unlink(timer)
                self._due(timer)


class OrderedList(UnorderedList):
    """Scheme 2. Start O(n), stop O(1), a tick O(1).

    The place of a new timer is searched from the rear: what starts later is mostly due later.
    """

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        insert_in_order(self._timers, timer)

    def _collect(self) -> None:
        while (timer := first_due(self._timers, self.now_tick)) is not None:
            unlink(timer)
            self._due(timer)


def insert_in_order(sentinel: RingNode, timer: SchemeTimer) -> None:
    """Behind all that are due no later than it."""
    due_tick = timer.due_tick
    place = sentinel.previous
    while isinstance(place, SchemeTimer) and place.due_tick > due_tick:
        place = place.previous
    insert_after(place, timer)


def first_due(sentinel: RingNode, now_tick: int) -> SchemeTimer | None:
    """The head of a list in order, if it is due at `now_tick`."""
    head = sentinel.next
    return head if isinstance(head, SchemeTimer) and head.due_tick == now_tick else None


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


class _TimerInTree(SchemeTimer):
    __slots__ = ("node",)
    node: TreeNode[SchemeTimer]  # where it was inserted last


class TreeOfTimers(Scheme):
    """Start and stop O(log n) in a balanced tree, a tick O(1) and O(log n) for each timer that expires; in a plain one,
    `balanced` False, a start is O(n) at worst: with equal intervals, each."""

    def __init__(self, balanced: bool = True) -> None:
        super().__init__()
        self._tree = SearchTree[SchemeTimer](balanced)

    def _new(self, action: Callable[[], object]) -> SchemeTimer:
        return _TimerInTree(action)

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        assert isinstance(timer, _TimerInTree)
        timer.node = self._tree.insert(timer.due_tick, timer)

    def _remove(self, timer: SchemeTimer) -> None:
        assert isinstance(timer, _TimerInTree)
        self._tree.remove(timer.node)

    def _collect(self) -> None:
        tree = self._tree
        while (first := tree.first) is not None and first.due_tick <= self.now_tick:
            tree.remove(first)
            self._due(first.item)


class SlotWheel(Scheme):
    """`slots` buckets; time stands in bucket `now_tick` modulo `slots`. Raises ValueError without a slot."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        if slots < 1:
            raise ValueError(f"{type(self).__name__}: {slots} slots, expected 1 or more")
        self._buckets = [RingNode() for _ in range(slots)]

    def _bucket(self, tick: int) -> RingNode:
        return self._buckets[tick % len(self._buckets)]

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        append(self._bucket(timer.due_tick), timer)


class SimpleWheel(SlotWheel):
    """Scheme 4. Start, stop and tick O(1); intervals up to the number of slots. A new timer may go into the bucket in
    which time stands: what was due there has been collected, and time comes back in `slots` ticks."""

    def _check(self, interval: int) -> None:
        super()._check(interval)
        if interval > len(self._buckets):
            raise IntervalTooLong("simple wheel", interval, len(self._buckets))

    def _collect(self) -> None:
        take_all(self._bucket(self.now_tick), self._expired)


class OrderedHashedWheel(SlotWheel):
    """Scheme 5. Start O(n) at worst, but O(1) on the average while there are no more timers than slots and their ticks
    spread over these; stop and tick O(1). `place` is the turn of the wheel in which a timer is due: within a slot, that
    is the order."""

    def _turn_and_slot(self, tick: int) -> tuple[int, int]:
        return divmod(tick, len(self._buckets))

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        turn, slot = self._turn_and_slot(timer.due_tick)
        timer.place = turn
        sentinel = self._buckets[slot]
        place = sentinel.previous
        while isinstance(place, SchemeTimer) and place.place > turn:
            place = place.previous
        insert_after(place, timer)

    def _collect(self) -> None:
        turn, slot = self._turn_and_slot(self.now_tick)
        bucket = self._buckets[slot]
        while isinstance(head := bucket.next, SchemeTimer) and head.place == turn:
            unlink(head)
            self._due(head)


class MaskedHashedWheel(OrderedHashedWheel):
    """Scheme 5 as published for a table whose size is a power of two, 2**k: the low k bits of the due time are the
    slot, which a mask takes, and the rest, by a shift, is what the list of the slot is ordered by. ValueError: another
    number of slots."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        if slots & (slots - 1):
            raise ValueError(f"{type(self).__name__}: {slots} slots, expected a power of two")
        self._mask = slots - 1
        self._bits = self._mask.bit_length()

    def _turn_and_slot(self, tick: int) -> tuple[int, int]:
        return tick >> self._bits, tick & self._mask


class UnorderedHashedWheel(SlotWheel):
    """Scheme 6. Start and stop O(1); a tick O(n) at worst, n divided by the number of slots on the average: every
    timer is visited once in each turn of the wheel. `place` counts the visits that are still to pass it by."""

    def _rounds(self, interval: int) -> int:
        return (interval - 1) // len(self._buckets)

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        timer.place = self._rounds(interval)
        super()._insert(timer, interval)

    def _collect(self) -> None:
        sentinel = self._bucket(self.now_tick)
        link = sentinel.next
        while link is not sentinel:
            timer, link = link, link.next
            assert isinstance(timer, SchemeTimer)
            if timer.place:
                timer.place -= 1
            else:
                unlink(timer)
                self._due(timer)


class _Task(TimerTask):
    __slots__ = ("timer",)

    def __init__(self, timer: SchemeTimer) -> None:
        super().__init__()
        self.timer = timer


class _TimerWithTask(SchemeTimer):
    """The task is the wheel's node; the links of the timer itself serve among the expired alone."""

    __slots__ = ("task",)

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(action)
        self.task = _Task(self)


CLOCK_UNITS = (60, 60, 24, 100)
"""Sizes of wheels of seconds, minutes, hours and days, for intervals of up to 100 days in ticks of a second."""


class HierarchicalWheels(Scheme):
    """Scheme 7. Start O(m), stop O(1), a tick O(1) on the average: a timer migrates at most once from each of the m
    wheels. `sizes`: buckets of each wheel, 2 or more (ValueError). A number is the size of as many wheels as the
    longest interval needs. A sequence has the size of each, from the lowest up, such as `CLOCK_UNITS`; intervals of up
    to the product of all fit then."""

    def __init__(self, sizes: int | Sequence[int] = 20) -> None:
        super().__init__()
        self._wheel = TimingWheel(1, sizes)
        self._longest = None if isinstance(sizes, int) else math.prod(sizes)

    def _check(self, interval: int) -> None:
        super()._check(interval)
        if self._longest is not None and interval > self._longest:
            raise IntervalTooLong("hierarchical wheels", interval, self._longest)

    def _new(self, action: Callable[[], object]) -> SchemeTimer:
        return _TimerWithTask(action)

    def _insert(self, timer: SchemeTimer, interval: int) -> None:
        self._wheel.start(_task_of(timer), interval)
        # The wheel leaves the search for the bucket to the next tick. As published, it is the start that pays for it.
        self._wheel.turn(self.now_tick)

    def _remove(self, timer: SchemeTimer) -> None:
        self._wheel.cancel(_task_of(timer))

    def _collect(self) -> None:
        wheel = self._wheel
        if not wheel.turn(self.now_tick):
            return
        while (task := wheel.take()) is not None:
            assert isinstance(task, _Task)
            self._due(task.timer)


def _task_of(timer: SchemeTimer) -> TimerTask:
    assert isinstance(timer, _TimerWithTask)
    return timer.task


class RequestOutstanding(ValueError):
    """A timer was started for a request that has one already."""

    def __init__(self, request: Hashable) -> None:
        super().__init__(f"request {request!r}: its timer is outstanding, expected to be stopped or expired")


class RequestTimers:
    """Timers by request id on any scheme, as published: START_TIMER(interval, request id, action) and
    STOP_TIMER(request id). PER_TICK_BOOKKEEPING is the scheme's `tick`. An id is free again once its timer is stopped
    or its action is called."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self._timers: dict[Hashable, SchemeTimer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start_timer(self, interval: int, request: Hashable, action: Callable[[], object]) -> None:
        """Call `action` once, `interval` ticks from now. Raises RequestOutstanding, IntervalError."""
        if request in self._timers:
            raise RequestOutstanding(request)

        def expired() -> None:
            del self._timers[request]
            action()

        self._timers[request] = self.scheme.start(interval, expired)

    def stop_timer(self, request: Hashable) -> bool:
        """Whether the request had a timer, which now does not expire."""
        timer = self._timers.pop(request, None)
        return timer is not None and self.scheme.stop(timer)


@dataclass(frozen=True, slots=True)
class Entry:
    """One scheme in one form. `start`, `stop` and `tick` are its published costs: n timers, M slots, m wheels.

    `make(longest, slots)` builds it for intervals up to `longest` ticks, where its memory depends on them, with
    `slots` buckets in all where it has a choice.
    """

    number: int
    name: str
    structure: str
    start: str
    stop: str
    tick: str
    make: Callable[[int, int], Scheme]


def wheels_needed(longest: int, slots: int) -> int:
    """m: how many wheels it takes for intervals up to `longest` ticks, if `slots` are dealt out evenly over them.

    Raises ValueError if no number of wheels of 2 slots or more reaches that far.
    """
    for wheels in range(1, slots // 2 + 1):
        if (slots // wheels) ** wheels >= longest:
            return wheels
    raise ValueError(f"{slots} slots: no number of wheels of 2 slots or more spans {longest} ticks")


def _hierarchy(longest: int, slots: int) -> Scheme:
    return HierarchicalWheels(slots // wheels_needed(longest, slots))


CATALOGUE: tuple[Entry, ...] = (
    Entry(1, "unordered list", "a list", "O(1)", "O(1)", "O(n)", lambda longest, slots: UnorderedList()),
    Entry(2, "ordered list", "a list by due tick", "O(n)", "O(1)", "O(1)", lambda longest, slots: OrderedList()),
    Entry(3, "heap, lazy stop", "heapq", "O(log n)", "O(1)", "O(1)", lambda longest, slots: LazyHeap()),
    Entry(3, "heap, indexed", "a heap", "O(log n)", "O(log n)", "O(1)", lambda longest, slots: IndexedHeap()),
    Entry(
        3,
        "tree, unbalanced",
        "a binary search tree",
        "worst O(n), mean O(log n)",
        "worst O(n), mean O(1)",
        "O(1)",
        lambda longest, slots: TreeOfTimers(balanced=False),
    ),
    Entry(3, "tree, balanced", "an AVL tree", "O(log n)", "O(log n)", "O(1)", lambda longest, slots: TreeOfTimers()),
    Entry(4, "simple wheel", "a slot a tick", "O(1)", "O(1)", "O(1)", lambda longest, slots: SimpleWheel(longest)),
    Entry(
        5,
        "hashed wheel, ordered",
        "M slots, each a list by due tick",
        "worst O(n), mean O(1) if n < M",
        "O(1)",
        "O(1)",
        lambda longest, slots: OrderedHashedWheel(slots),
    ),
    Entry(
        5,
        "hashed wheel, 2^k slots",
        "2^k slots, slot by mask, turn by shift",
        "worst O(n), mean O(1) if n < M",
        "O(1)",
        "O(1)",
        lambda longest, slots: MaskedHashedWheel(1 << (slots.bit_length() - 1)),
    ),
    Entry(
        6,
        "hashed wheel, unordered",
        "M slots, each a list",
        "O(1)",
        "O(1)",
        "worst O(n), mean O(n/M)",
        lambda longest, slots: UnorderedHashedWheel(slots),
    ),
    Entry(7, "hierarchical wheels", "m wheels, M slots in all", "O(m)", "O(1)", "O(1)", _hierarchy),
)


def table_text() -> str:
    """The catalogue as a Markdown table that ends with a line break."""
    rows = ["| | scheme | structure | start | stop | tick |", "| --- | --- | --- | --- | --- | --- |"]
    for entry in CATALOGUE:
        cells = (str(entry.number), entry.name, entry.structure, entry.start, entry.stop, entry.tick)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
