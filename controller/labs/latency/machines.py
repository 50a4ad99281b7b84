"""Virtual time, and machines whose threads share cores as Linux's fair scheduler has it.

A thread that wakes takes a free core, or that of the thread with the most runtime if it has used up a granularity less.
Otherwise it waits, and a running thread gives up its core at the end of its slice to the waiting one with the least
runtime. A thread that slept gets at most half a period of credit. A thread that has more work goes on with it.

The constants are those of CFS (kernel/sched/fair.c, Linux 2.6.38 to 6.5), which scales them by the number of cores. All
cores of a machine have one queue here, where Linux has one for each and balances them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

PERIOD_S, GRANULARITY_S, WAKEUP_S = 0.006, 0.00075, 0.001
"""sched_latency, sched_min_granularity and sched_wakeup_granularity of one core."""


class VirtualTime:
    """Events in order of time, then of their making. Seconds."""

    __slots__ = ("_events", "_number", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, time_s: float, call: Callable[..., None], *words: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, call, words))

    def run_until(self, end_s: float) -> int:
        """Return the number of events that ran."""
        events, pop = self._events, heapq.heappop
        before = len(events) - self._number
        while events and events[0][0] <= end_s:
            self.now_s, _, call, words = pop(events)
            call(*words)
        self.now_s = end_s
        return self._number - len(events) + before


class Station:
    """A queue, first come first served, with one server."""

    __slots__ = ("_free_s",)

    def __init__(self) -> None:
        self._free_s = 0.0

    def submit(self, now_s: float, service_s: float) -> float:
        """Return when the service ends."""
        self._free_s = max(now_s, self._free_s) + service_s
        return self._free_s


Work = tuple[float, Callable[[], None] | None, Callable[..., None], tuple[Any, ...]]
"""Service, what is called at its begin and at its end, and words for the latter."""


class Thread:
    """One thread, and the work that it has. `runtime_s`: CPU time with the credit for sleep, by which threads are
    ordered. `stint_s`: since when it has its core; `from_s`: since when `left_s` of its work is to be done. `stint`
    numbers events that are no longer valid."""

    __slots__ = ("from_s", "left_s", "owner", "runtime_s", "sliced", "stint", "stint_s", "work")

    def __init__(self, owner: Threads) -> None:
        self.owner = owner
        self.runtime_s = self.from_s = self.left_s = self.stint_s = 0.0
        self.stint = 0
        self.sliced = False
        self.work: Work = (0.0, None, owner.ended, ())


class Cores:
    """Those of a machine, shared by its threads. `busy_s`: work done."""

    def __init__(self, time: VirtualTime, count: int) -> None:
        self._time = time
        self.count = count
        scale = min(count, 8).bit_length()  # 1 + log2
        self._period_s, self._granularity_s, self._wakeup_s = (
            scale * one for one in (PERIOD_S, GRANULARITY_S, WAKEUP_S)
        )
        self._running: list[Thread] = []
        self._ready: list[tuple[float, int, Thread]] = []
        self._number = 0
        self._least_s = 0.0  # of the runtimes of threads with work, and never less than before
        self._ending: Thread | None = None  # its core is not taken while what it did is reported
        self.busy_s = 0.0

    def wake(self, thread: Thread) -> None:
        """A thread that slept has work."""
        thread.left_s = thread.work[0]
        running, now_s = self._running, self._time.now_s
        runtimes = [(one.runtime_s + now_s - one.from_s, nth) for nth, one in enumerate(running)]
        if runtimes:
            least_s = min(runtimes)[0]
            self._least_s = max(self._least_s, min(least_s, self._ready[0][0]) if self._ready else least_s)
        thread.runtime_s = max(thread.runtime_s, self._least_s - self._period_s / 2)
        if len(running) < self.count:
            self._start(thread)
            return
        most_s, most = max((one for one in runtimes if running[one[1]] is not self._ending), default=(0.0, 0))
        if most_s - thread.runtime_s > self._wakeup_s:
            self._stop(running[most])
            self._start(thread)
        else:
            self._wait(thread)
        self._slice_all()

    def _wait(self, thread: Thread) -> None:
        self._number += 1
        heapq.heappush(self._ready, (thread.runtime_s, self._number, thread))

    def _start(self, thread: Thread) -> None:
        self._running.append(thread)
        thread.stint_s = self._time.now_s
        self._go_on(thread)

    def _go_on(self, thread: Thread) -> None:
        now_s = self._time.now_s
        thread.from_s = now_s
        thread.stint += 1
        thread.sliced = False
        begun = thread.work[1]
        if begun is not None and thread.left_s == thread.work[0]:
            begun()
        self._time.at(now_s + thread.left_s, self._ended, thread, thread.stint)

    def _account(self, thread: Thread) -> None:
        done_s = self._time.now_s - thread.from_s
        thread.runtime_s += done_s
        thread.left_s -= done_s
        thread.from_s += done_s
        self.busy_s += done_s

    def _stop(self, thread: Thread) -> None:
        self._account(thread)
        thread.stint += 1
        self._running.remove(thread)
        self._wait(thread)

    def _slice_s(self) -> float:
        """How long a thread keeps its core if others wait: the period by the threads of a core."""
        share = (len(self._running) + len(self._ready)) / self.count
        return max(self._period_s / share, self._granularity_s)

    def _slice_all(self) -> None:
        """Threads wait: those that run end with their slices."""
        slice_s = self._slice_s()
        for thread in self._running:
            end_s = max(thread.stint_s + slice_s, self._time.now_s)
            if not thread.sliced and end_s < thread.from_s + thread.left_s:
                thread.sliced = True
                self._time.at(end_s, self._sliced, thread, thread.stint)

    def _sliced(self, thread: Thread, stint: int) -> None:
        if thread.stint != stint:
            return
        thread.sliced = False
        if self._ready:
            if self._time.now_s - thread.stint_s >= self._slice_s() - 1e-9:
                self._stop(thread)
                self._next()
            else:
                self._slice_all()

    def _next(self) -> None:
        if self._ready:
            self._start(heapq.heappop(self._ready)[2])
            if self._ready:
                self._slice_all()

    def _ended(self, thread: Thread, stint: int) -> None:
        if thread.stint != stint:
            return
        self._account(thread)
        thread.stint += 1
        self._ending = thread
        _, _, call, words = thread.work
        call(*words)
        self._ending = None
        if not thread.owner.next_work(thread):
            self._running.remove(thread)
            self._least_s = max(self._least_s, thread.runtime_s if not self._running else 0.0)
            self._next()
            return
        thread.left_s = thread.work[0]
        if self._ready and self._gives_way(thread):
            self._running.remove(thread)
            self._wait(thread)
            self._next()
        else:
            self._go_on(thread)
            if self._ready:
                self._slice_all()

    def _gives_way(self, thread: Thread) -> bool:
        """Its slice is over, or it would have been preempted by what it woke."""
        over = self._time.now_s - thread.stint_s >= self._slice_s()
        return over or thread.runtime_s - self._ready[0][0] > self._wakeup_s


class Threads:
    """A queue, first come first served, of some threads. `wake_s`: what work that was queued takes less. `occupied_s`:
    time in which threads had work, with what they waited for a core."""

    __slots__ = ("_cores", "_idle", "_queue", "_since_s", "_time", "_wake_s", "count", "occupied_s")

    def __init__(self, time: VirtualTime, count: int, cores: Cores | None = None, wake_s: float = 0.0) -> None:
        self._wake_s = wake_s
        self._time = time
        self._cores = cores
        self.count = count
        self._idle = deque(Thread(self) for _ in range(count))
        self._queue: deque[Work] = deque()
        self._since_s = 0.0
        self.occupied_s = 0.0

    def busy_until(self, now_s: float) -> float:
        """Time that one thread had work until now, on average."""
        self._account(now_s)
        return self.occupied_s / self.count

    def _account(self, now_s: float) -> None:
        self.occupied_s += (self.count - len(self._idle)) * (now_s - self._since_s)
        self._since_s = now_s

    def submit(
        self, service_s: float, call: Callable[..., None], *words: Any, begun: Callable[[], None] | None = None
    ) -> None:
        """`call` at the end of the service, `begun` at its begin."""
        if not self._idle:
            self._queue.append((max(service_s - self._wake_s, 0.0), begun, call, words))
            return
        self._account(self._time.now_s)
        thread = self._idle.popleft()
        thread.work = (service_s, begun, call, words)
        if self._cores is not None:
            self._cores.wake(thread)
        else:
            self._begin(thread)

    def _begin(self, thread: Thread) -> None:
        """On a core of its own."""
        service_s, begun, _, _ = thread.work
        if begun is not None:
            begun()
        self._time.at(self._time.now_s + service_s, self.ended, thread)

    def ended(self, thread: Thread) -> None:
        _, _, call, words = thread.work
        call(*words)
        if self.next_work(thread):
            self._begin(thread)

    def next_work(self, thread: Thread) -> bool:
        """Give a thread the work that waits; it is idle if there is none."""
        if self._queue:
            thread.work = self._queue.popleft()
            return True
        self._account(self._time.now_s)
        self._idle.append(thread)
        return False
