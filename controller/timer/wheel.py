"""The hierarchical timing wheel: buckets of tasks on wheels of ever coarser ticks, and a queue of the buckets.

A wheel of `size` buckets, each a tick wide, holds what is due within `size` ticks. What is due later goes to the
wheel above, whose tick is the whole span of this one, made when first needed. When a coarse bucket's time comes, its
tasks go down to finer ones, until they are in a bucket of one tick, and fire with it. A heap holds the buckets in use
(never the tasks), so the driver of the wheel knows when it is next due and sleeps until then.

A task that is started goes to the end of one list, and into its bucket when the clock is about to move. Most delayed
operations are over soon: what is cancelled within the tick that it was started in never sees a bucket. Start is four
links and a comparison, placing a comparison a wheel and a division (once for all that stand together and are due
together), cancel four links, however many there are.

Nothing here reads a clock, takes a lock or calls a task: `turn` and `take` say what is to be run, and drivers run it.

Order: tasks fire tick by tick, and within a tick in the order in which they were started. Of two tasks for one tick
the one on the coarser wheel was started first, since what is started later has less far to go. So tasks that come
down are put before those that were there already, and this order costs nothing. Where several buckets begin at
one time, the finer goes down before the coarser, whose tasks so come to stand before them; one of a single tick, which
fires, comes last.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

T = TypeVar("T")

COMPILED: Final = not __file__.endswith(".py")
"""Whether this is mypyc's build."""

if TYPE_CHECKING:
    from mypy_extensions import i64

try:
    from mypy_extensions import mypyc_attr as mypyc_attr
except ImportError:  # only the compiler, which brings it, evaluates it

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[T], T]:
        return lambda cls: cls


NEVER_MS: Final = 1 << 62
"""Later than anything: `next_ms` of a wheel in which nothing is started."""
MAX_DELAY_MS: Final = 1 << 44
"""557 years; a task that is started for later than that is pending until it is cancelled, and never runs."""
MAX_WHEEL_SIZE: Final = 1 << 16
FIRES_LAST: Final = 1 << 30
LOOKED_AT: Final = 32
"""A bucket of more tasks goes down when it begins: there is much to wake for then anyway."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """Something to be done once, later. Give it a callback, or override `run`; a timer may call a callback without
    asking `run`.

    It may be started again (on any timer) once it has run or been cancelled, and it may be in one timer at a time.
    """

    __slots__ = ("_callback", "_due_ms", "_next", "_previous")
    # Not set until the task is started: a fifth of what it costs to make one and start it. Nor is their type said in
    # `__init__`, where the interpreter would do something for it.
    _due_ms: i64
    _previous: TimerTask  # `NOWHERE` again while the task is in no timer, lest it keep its neighbour

    def __init__(self, callback: Callable[[], None] | None = None) -> None:
        self._callback = callback
        self._next: TimerTask | None = None  # None exactly while the task is in no timer

    def run(self) -> None:
        """Called once for each start that was not cancelled; the task is in no timer then, and may be started again."""
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        """As `TimingWheel.cancel`, whichever wheel it is in."""
        following = self._next
        if following is not None:
            previous = self._previous
            previous._next = following
            following._previous = previous
            self._next = None
            self._previous = NOWHERE

    @property
    def pending(self) -> bool:
        """Started, and neither run nor cancelled."""
        return self._next is not None

    @property
    def due_ms(self) -> int:
        """When it is due, on its timer's clock, before clipping to a tick; when it was, if it is pending no more.
        AttributeError before its first start."""
        return self._due_ms


NOWHERE: Final = TimerTask()
"""Before a task that is in no timer."""
DUE_BEFORE_ALL_MS: Final = -(1 << 62)


class Bucket(TimerTask):
    """A ring of tasks. It is due before any of them, which ends an iteration over tasks that are due together."""

    __slots__ = ("level", "queued")

    def __init__(self, level: int) -> None:
        super().__init__()
        self._previous = self
        self._next = self
        self._due_ms = DUE_BEFORE_ALL_MS
        self.level = level
        self.queued = False  # in the queue of buckets; one that holds tasks always is

    @property
    def empty(self) -> bool:
        return self._next is self

    def count(self) -> int:
        counted = 0
        task = self._next
        while task is not None and task is not self:
            counted += 1
            task = task._next
        return counted


class TimerError(Exception):
    """What a timer was asked for can't be done."""


class AlreadyStarted(TimerError):
    """A task was started that is in a timer already; `restart` moves it."""


class Wheel:
    """One level: `size` buckets of `tick_ms` each. `limit_ms`: what is due from there on goes to the wheel above.

    The topmost of wheels whose sizes are given reaches a bucket further: the bucket in which the clock stands is empty
    there, and stands for the next turn as well.
    """

    __slots__ = ("above", "below", "buckets", "level", "limit_ms", "now_ms", "reach_ms", "size", "span_ms", "tick_ms")

    def __init__(
        self, level: int, tick_ms: int, size: int, now_ms: int, below: Wheel | None = None, topmost: bool = False
    ) -> None:
        self.level = level
        self.tick_ms: i64 = tick_ms
        self.size: i64 = size
        self.span_ms: i64 = tick_ms * size
        self.reach_ms: i64 = self.span_ms + tick_ms if topmost else self.span_ms
        self.now_ms: i64 = now_ms - now_ms % tick_ms
        self.limit_ms: i64 = self.now_ms + self.reach_ms
        self.buckets = [Bucket(level) for _ in range(size)]
        self.above: Wheel | None = None
        self.below = below

    def finer_end_ms(self) -> int:
        """What is due from there on is not on a finer wheel."""
        return 0 if self.below is None else self.below.limit_ms


@dataclass(frozen=True)
class WheelCounts:
    """What the clock of a wheel has done since the wheel was made.

    `polls`: buckets taken off the queue, `empty_polls` of which held nothing, since everything in them was cancelled.
    `advances`: how often the clock moved to a bucket that held tasks. `ticks`: how often a clock that ticks would have
    moved.
    """

    polls: int
    empty_polls: int
    advances: int
    ticks: int

    @property
    def advances_saved(self) -> int:
        return self.ticks - self.advances


class TimingWheel:
    """`tick_ms` is how finely time is cut: a task fires at the start of the tick in which it is due, so up to
    `tick_ms` - 1 early, as in Kafka. `wheel_size` trades buckets for cascades; the order of firing does not depend
    on it. Times are whole milliseconds on an axis that begins at `start_ms`. ValueError.

    Where `wheel_size` is a sequence, it has the size of each wheel from the lowest up, as 60, 60, 24, 100 for seconds,
    minutes, hours and days. Delays of up to `longest_ms`, the ticks of all together, fit then, and longer ones never
    run; an integer is the size of as many wheels as are needed.
    """

    __slots__ = (
        "_advances",
        "_began_ms",
        "_beyond",
        "_empty_polls",
        "_fresh",
        "_lowest",
        "_polls",
        "_queue",
        "_ready",
        "_sizes",
        "_soonest_ms",
        "longest_ms",
        "next_ms",
        "now_ms",
        "tick_ms",
        "wheel_size",
    )

    def __init__(self, tick_ms: int = 1, wheel_size: int | Sequence[int] = 20, start_ms: int = 0) -> None:
        if tick_ms < 1:
            raise ValueError(f"tick_ms {tick_ms}: expected 1 or more")
        sizes: tuple[int, ...] = (wheel_size,) if isinstance(wheel_size, int) else tuple(wheel_size)
        if not sizes:
            raise ValueError("wheel_size: no wheel, expected the size of one or more")
        span_ms = tick_ms
        for size in sizes:
            if not 2 <= size <= MAX_WHEEL_SIZE:
                raise ValueError(f"wheel_size {size}: expected 2 to {MAX_WHEEL_SIZE}")
            span_ms *= size
        if span_ms > MAX_DELAY_MS:
            raise ValueError(
                f"tick_ms {tick_ms}, wheel_size {wheel_size}: expected a span of {MAX_DELAY_MS} ms at most"
            )
        self.tick_ms = tick_ms
        self.wheel_size = sizes[0]
        self._sizes: tuple[int, ...] = () if isinstance(wheel_size, int) else sizes  # () if all have one size
        self.longest_ms: i64 = span_ms if self._sizes else MAX_DELAY_MS
        self.now_ms: i64 = start_ms
        self.next_ms: i64 = NEVER_MS
        """A driver that has turned the wheel up to now need not come back earlier. Nothing may be due then either."""
        self._began_ms: i64 = start_ms
        self._polls: i64 = 0
        self._empty_polls: i64 = 0
        self._advances: i64 = 0
        self._lowest = Wheel(0, tick_ms, sizes[0], start_ms, None, len(self._sizes) == 1)
        self._queue: list[tuple[int, int, Bucket]] = []  # by time, then as the last paragraph above says
        self._fresh = Bucket(0)  # started, in no bucket of a wheel yet
        self._ready = Bucket(0)  # to be run
        self._beyond = Bucket(0)  # never to be run
        self._soonest_ms: i64 = NEVER_MS  # the first tick for which anything waits; always after the current one

    def __len__(self) -> int:
        """Tasks that were started and neither cancelled nor taken to be run. They are counted now, all of them: a
        number kept at each start and cancel would be an eighth of their cost. Drivers with a host keep one."""
        buckets = [self._fresh, self._ready, self._beyond]
        wheel: Wheel | None = self._lowest
        while wheel is not None:
            buckets += wheel.buckets
            wheel = wheel.above
        return sum(bucket.count() for bucket in buckets)

    def start(self, task: TimerTask, delay_ms: int) -> None:
        """The task will be run `delay_ms` from `now_ms`; if that is in the current tick or before, at once.

        AlreadyStarted: it is pending, here or elsewhere.
        """
        if task._next is not None:
            raise AlreadyStarted(f"{task!r} is started already, due at {task._due_ms} ms")
        due_ms: i64 = self.now_ms + delay_ms
        task._due_ms = due_ms
        if due_ms < self._soonest_ms and self._sooner(task, delay_ms):
            return
        fresh = self._fresh
        last = fresh._previous
        task._previous = last
        task._next = fresh
        fresh._previous = last._next = task

    def cancel(self, task: TimerTask) -> bool:
        """True: it was pending in this timer, and will not run. False: it has run, is running or was cancelled."""
        following = task._next
        if following is None:
            return False
        previous = task._previous
        previous._next = following
        following._previous = previous
        task._next = None
        task._previous = NOWHERE
        return True

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        """As `start`, wherever in this timer the task is now; it goes behind what was started before."""
        self.cancel(task)
        self.start(task, delay_ms)

    def turn(self, limit_ms: int) -> bool:
        """Moves the clock to the next tick in which tasks fire, which are then ready to be taken. False: there is
        none up to `limit_ms`, where the clock now stands (unless it was beyond it)."""
        self._place()
        queue = self._queue
        while queue and queue[0][0] <= limit_ms:
            at_ms, _, bucket = heapq.heappop(queue)
            bucket.queued = False
            self._polls += 1
            if bucket.empty:
                self._empty_polls += 1
                continue
            if at_ms > self.now_ms:
                self._advances += 1
                self._clock_to(at_ms)
            if bucket.level == 0:
                self._make_ready(bucket)
                self._soonest_ms = queue[0][0] if queue else NEVER_MS
                self.next_ms = at_ms
                return True
            below = self._lowest
            while below.level < bucket.level - 1:
                assert below.above is not None
                below = below.above
            self._bring_down(below, bucket)
        while queue and queue[0][2].empty:  # all of it was cancelled: no need to wake for it
            heapq.heappop(queue)[2].queued = False
            self._polls += 1
            self._empty_polls += 1
        if limit_ms > self.now_ms:
            self._clock_to(limit_ms)
        self._soonest_ms = self._first_due_ms()
        self.next_ms = self._soonest_ms if self._ready.empty else self.now_ms
        return False

    def _first_due_ms(self) -> int:
        """The first tick in which anything is due, or an earlier one: when a coarse bucket's tasks are to go down they
        need not, until one of them is due or another bucket begins. That is a wake-up less for each level."""
        queue = self._queue
        if not queue:
            return NEVER_MS
        begin_ms, _, bucket = queue[0]
        if bucket.level == 0:
            return begin_ms
        first_ms: i64 = min(queue[1:3])[0] if len(queue) > 1 else NEVER_MS
        task = bucket._next
        for _ in range(LOOKED_AT + 1):
            assert task is not None
            if task is bucket:
                return first_ms - first_ms % self.tick_ms
            first_ms = min(first_ms, task._due_ms)
            task = task._next
        return begin_ms

    @property
    def next_bucket_ms(self) -> int:
        """When the next bucket begins, whose tasks fire or go down. NEVER_MS if there is none."""
        return self._queue[0][0] if self._queue else NEVER_MS

    def counts(self, now_ms: int) -> WheelCounts:
        """Count the polls and advances of the clock so far, and the ticks up to `now_ms`, which it may not have come to
        since nothing was due."""
        ticks = now_ms // self.tick_ms - self._began_ms // self.tick_ms
        return WheelCounts(self._polls, self._empty_polls, self._advances, ticks)

    def take(self) -> TimerTask | None:
        """The next task to be run, no longer pending; None if none is ready."""
        ready = self._ready
        task = ready._next
        assert task is not None
        if task is ready:
            return None
        following = task._next
        assert following is not None
        ready._next = following
        following._previous = ready
        task._next = None
        task._previous = NOWHERE
        return task

    def _due_at_once(self) -> None:
        """A task that is due was started: a driver that can run it now does so here."""

    def _sooner(self, task: TimerTask, delay_ms: int) -> bool:
        """Of all that is started, this is due first. True: at once, and it has been put with what is ready."""
        if delay_ms > MAX_DELAY_MS:  # a sum beyond 64 bits looks as if it were due
            task._due_ms = NEVER_MS
            return False
        due_ms: i64 = task._due_ms
        if due_ms >= self._lowest.now_ms + self.tick_ms:
            self._soonest_ms = due_ms - due_ms % self.tick_ms
            self.next_ms = min(self.next_ms, self._soonest_ms)
            return False
        ready = self._ready
        last = ready._previous
        task._previous = last
        task._next = ready
        ready._previous = last._next = task
        self.next_ms = self.now_ms
        self._due_at_once()
        return True

    def _place(self) -> None:
        """What was started since the clock last moved, first come first, to the ends of its buckets. Requests have
        one timeout, mostly, so those that come in one tick are due in one: a run of such moves as a whole."""
        fresh = self._fresh
        lowest = self._lowest
        furthest_ms: i64 = self.now_ms + self.longest_ms
        task = fresh._next
        while task is not fresh:
            assert task is not None
            due_ms: i64 = task._due_ms
            last = task
            following = last._next
            assert following is not None
            while following._due_ms == due_ms:
                last = following
                following = last._next
                assert following is not None
            if due_ms > furthest_ms:
                bucket = self._beyond
            else:
                wheel = lowest
                while due_ms >= wheel.limit_ms:
                    wheel = wheel.above or self._wheel_above(wheel)
                bucket = wheel.buckets[due_ms // wheel.tick_ms % wheel.size]
                if not bucket.queued:
                    self._queue_bucket(bucket, due_ms - due_ms % wheel.tick_ms)
            end = bucket._previous
            end._next = task
            task._previous = end
            last._next = bucket
            bucket._previous = last
            task = following
        fresh._next = fresh._previous = fresh

    def _bring_down(self, wheel: Wheel, bucket: Bucket) -> None:
        """Each task of a bucket of the wheel above `wheel` to its bucket on a finer one, last first, before what is
        there; a run that is due in one tick moves as a whole. Most go to `wheel` itself."""
        lowest = self._lowest
        tick_ms, size, buckets = wheel.tick_ms, wheel.size, wheel.buckets
        finer_end_ms: i64 = wheel.finer_end_ms()
        task = bucket._previous
        while task is not bucket:
            due_ms: i64 = task._due_ms
            head = task
            previous = head._previous
            while previous._due_ms == due_ms:
                head = previous
                previous = head._previous
            if due_ms >= finer_end_ms:
                finer = buckets[due_ms // tick_ms % size]
                if not finer.queued:
                    self._queue_bucket(finer, due_ms - due_ms % tick_ms)
            else:
                own = lowest
                while due_ms >= own.limit_ms:
                    assert own.above is not None
                    own = own.above
                finer = own.buckets[due_ms // own.tick_ms % own.size]
                if not finer.queued:
                    self._queue_bucket(finer, due_ms - due_ms % own.tick_ms)
            first = finer._next
            assert first is not None
            head._previous = finer
            finer._next = head
            task._next = first
            first._previous = task
            task = previous
        bucket._next = bucket._previous = bucket

    def _make_ready(self, bucket: Bucket) -> None:
        """The whole ring, behind what is ready already."""
        ready = self._ready
        first, last, tail = bucket._next, bucket._previous, ready._previous
        assert first is not None
        tail._next = first
        first._previous = tail
        last._next = ready
        ready._previous = last
        bucket._next = bucket._previous = bucket

    def _queue_bucket(self, bucket: Bucket, at_ms: i64) -> None:
        bucket.queued = True
        heapq.heappush(self._queue, (at_ms, bucket.level or FIRES_LAST, bucket))

    def _wheel_above(self, wheel: Wheel) -> Wheel:
        level, sizes = wheel.level + 1, self._sizes
        size = sizes[level] if sizes else wheel.size
        wheel.above = Wheel(level, wheel.span_ms, size, self.now_ms, wheel, level + 1 == len(sizes))
        return wheel.above

    def _clock_to(self, now_ms: i64) -> None:
        self.now_ms = now_ms
        wheel: Wheel | None = self._lowest
        while wheel is not None and now_ms >= wheel.now_ms + wheel.tick_ms:
            wheel.now_ms = now_ms - now_ms % wheel.tick_ms
            wheel.limit_ms = wheel.now_ms + wheel.reach_ms
            wheel = wheel.above
