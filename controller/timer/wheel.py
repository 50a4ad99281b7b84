"""The hierarchical timing wheel: buckets of tasks on wheels of ever coarser ticks, and a queue of the buckets.

A wheel of `size` buckets, each a tick wide, holds what is due within `size` ticks. What is due later goes to the
wheel above, whose tick is the whole span of this one, made when first needed. When a coarse bucket's time comes, its
tasks go down to finer ones, until they are in a bucket of one tick, and fire with it. A heap holds the buckets in use
(never the tasks), so whoever drives the wheel knows when it is wanted next and sleeps until then.

Start and cancel are constant in the number of timers: a comparison a wheel, a division, four links.

Nothing here reads a clock, takes a lock or calls a task: `turn` and `take` say what is to be run, and drivers run it.

Order: tasks fire tick by tick, and within a tick in the order in which they were started. Of two tasks for one tick
the one on the coarser wheel was started first, since what is started later has less far to go. So tasks that come
down are put before those that were there already, and this order costs nothing.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from controller.timer.task import Bucket, TimerTask

if TYPE_CHECKING:
    from mypy_extensions import i64

NEVER_MS: Final = 1 << 62
"""Later than anything: `next_ms` of a wheel in which nothing is started."""
MAX_SPAN_MS: Final = 1 << 60
FIRES_LAST: Final = 1 << 30


class TimerError(Exception):
    """What a timer was asked for can't be done."""


class AlreadyStarted(TimerError):
    """A task was started that is in a timer already; `restart` moves it."""


class TooFar(TimerError):
    """A delay beyond what any wheel spans (2**60 ms)."""


class Wheel:
    """One level: `size` buckets of `tick_ms` each."""

    __slots__ = ("above", "buckets", "level", "limit_ms", "now_ms", "size", "span_ms", "tick_ms")

    def __init__(self, level: int, tick_ms: int, size: int, now_ms: int) -> None:
        self.level = level
        self.tick_ms: i64 = tick_ms
        self.size: i64 = size
        self.span_ms: i64 = tick_ms * size
        self.now_ms: i64 = now_ms - now_ms % tick_ms
        self.limit_ms: i64 = self.now_ms + self.span_ms  # what is due from here on goes to the wheel above
        self.buckets = [Bucket(level) for _ in range(size)]
        self.above: Wheel | None = None


class TimingWheel:
    """`tick_ms` is how finely time is cut: a task fires at the start of the tick in which it is due, so up to
    `tick_ms` - 1 early, as in Kafka. `wheel_size` trades buckets for cascades; the order of firing does not depend
    on it. Times are whole milliseconds on an axis that begins at `start_ms`. ValueError: below 1 (`wheel_size`: 2).
    """

    __slots__ = ("_lowest", "_outstanding", "_queue", "_ready", "next_ms", "now_ms", "tick_ms", "wheel_size")

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        if tick_ms < 1:
            raise ValueError(f"tick_ms {tick_ms}: expected 1 or more")
        if wheel_size < 2:
            raise ValueError(f"wheel_size {wheel_size}: expected 2 or more")
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.now_ms: i64 = start_ms
        self.next_ms: i64 = NEVER_MS  # nothing is to be done before; there may be nothing to do then either
        self._lowest = Wheel(0, tick_ms, wheel_size, start_ms)
        self._queue: list[tuple[int, int, Bucket]] = []  # by time, then as the last paragraph above says
        self._ready = Bucket(0)
        self._outstanding: i64 = 0

    def __len__(self) -> int:
        """Tasks that were started and neither cancelled nor taken to be run."""
        return self._outstanding

    def start(self, task: TimerTask, delay_ms: int) -> None:
        """The task will be run `delay_ms` from `now_ms`; if that is in the current tick or before, at once.

        AlreadyStarted: it is pending, here or elsewhere. TooFar.
        """
        if task._next is not None:
            raise AlreadyStarted(f"{task!r} is started already, due at {task._due_ms} ms")
        due_ms: i64 = self.now_ms + delay_ms
        wheel = self._lowest
        while due_ms >= wheel.limit_ms:
            wheel = wheel.above or self._wheel_above(wheel)
        if due_ms < self._lowest.now_ms + self.tick_ms:
            bucket = self._ready
            self.next_ms = self.now_ms
        else:
            bucket = wheel.buckets[due_ms // wheel.tick_ms % wheel.size]
            if not bucket.queued:
                self._queue_bucket(bucket, due_ms - due_ms % wheel.tick_ms)
        last = bucket._previous
        assert last is not None
        task._due_ms = due_ms
        task._previous = last
        task._next = bucket
        last._next = task
        bucket._previous = task
        self._outstanding += 1
        if bucket is self._ready:
            self._due_at_once()

    def cancel(self, task: TimerTask) -> bool:
        """True: it was pending in this timer, and will not run. False: it has run, is running or was cancelled."""
        following, previous = task._next, task._previous
        if following is None or previous is None:
            return False
        previous._next = following
        following._previous = previous
        task._next = task._previous = None
        self._outstanding -= 1
        return True

    def restart(self, task: TimerTask, delay_ms: int) -> None:
        """As `start`, wherever in this timer the task is now; it goes behind what was started before. TooFar."""
        self.cancel(task)
        self.start(task, delay_ms)

    def turn(self, limit_ms: int) -> bool:
        """Moves the clock to the next tick in which tasks fire, which are then ready to be taken. False: there is
        none up to `limit_ms`, where the clock now stands (unless it was beyond it)."""
        queue = self._queue
        while queue and queue[0][0] <= limit_ms:
            at_ms, _, bucket = heapq.heappop(queue)
            bucket.queued = False
            if bucket.empty:
                continue
            self._clock_to(at_ms)
            if bucket.level:
                self._bring_down(bucket)
            else:
                self._make_ready(bucket)
                self.next_ms = at_ms
                return True
        if limit_ms > self.now_ms:
            self._clock_to(limit_ms)
        while queue and queue[0][2].empty:  # all of it was cancelled: nobody needs to wake for it
            heapq.heappop(queue)[2].queued = False
        if self._ready.empty:
            self.next_ms = queue[0][0] if queue else NEVER_MS
        return False

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
        task._next = task._previous = None
        self._outstanding -= 1
        return task

    def _due_at_once(self) -> None:
        """A task that is due was started: a driver that can run it now does so here."""

    def _wheel_above(self, wheel: Wheel) -> Wheel:
        if wheel.span_ms > MAX_SPAN_MS // wheel.size:
            raise TooFar(f"beyond {wheel.limit_ms} ms, {MAX_SPAN_MS} ms in all")
        wheel.above = Wheel(wheel.level + 1, wheel.span_ms, wheel.size, self.now_ms)
        return wheel.above

    def _queue_bucket(self, bucket: Bucket, at_ms: i64) -> None:
        bucket._due_ms = at_ms
        bucket.queued = True
        heapq.heappush(self._queue, (at_ms, bucket.level or FIRES_LAST, bucket))
        if at_ms < self.next_ms:
            self.next_ms = at_ms

    def _clock_to(self, now_ms: i64) -> None:
        self.now_ms = now_ms
        wheel: Wheel | None = self._lowest
        while wheel is not None and now_ms >= wheel.now_ms + wheel.tick_ms:
            wheel.now_ms = now_ms - now_ms % wheel.tick_ms
            wheel.limit_ms = wheel.now_ms + wheel.span_ms
            wheel = wheel.above

    def _bring_down(self, bucket: Bucket) -> None:
        """Each task to its bucket on a finer wheel, last first, before what is there."""
        while not bucket.empty:
            task = bucket._previous
            assert task is not None
            previous = task._previous
            assert previous is not None
            previous._next = bucket
            bucket._previous = previous
            due_ms = task._due_ms
            wheel = self._lowest
            while due_ms >= wheel.limit_ms:
                assert wheel.above is not None
                wheel = wheel.above
            finer = wheel.buckets[due_ms // wheel.tick_ms % wheel.size]
            if not finer.queued:
                self._queue_bucket(finer, due_ms - due_ms % wheel.tick_ms)
            first = finer._next
            assert first is not None
            task._previous = finer
            task._next = first
            first._previous = task
            finer._next = task

    def _make_ready(self, bucket: Bucket) -> None:
        """The whole ring, behind what is ready already."""
        ready = self._ready
        first, last, tail = bucket._next, bucket._previous, ready._previous
        assert first is not None
        assert last is not None
        assert tail is not None
        tail._next = first
        first._previous = tail
        last._next = ready
        ready._previous = last
        bucket._next = bucket._previous = bucket
