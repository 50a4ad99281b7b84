"""The timers that `camerlengo bench timer` compares, each with its own calls for the same work: the wheel, heapq with
lazy deletion and with purging, asyncio's `call_later`, and `sched`.

Each peer has its own loop, so that no adapter's call is timed. Delays are milliseconds; asyncio's peer is handed
seconds, made beforehand. Times are virtual for all: asyncio's loop has a selector that jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import sched
import selectors
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeAlias

from controller.labs.virtual_timer import VirtualTimer
from controller.timer import TimerTask

Handles: TypeAlias = "list[Any]"


def nothing() -> None:
    """What every timer calls."""


class Peer(Protocol):
    """One empty timer at 0 ms. `due` below is delays as this peer wants them (`delays_for`)."""

    cancels_in_constant_time: bool

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[Any]: ...

    def add(self, due: Sequence[Any], into: Handles) -> None:
        """Starts one a delay; their handles go to the same places in `into`."""

    def cancel(self, handles: Sequence[Any]) -> None: ...

    def add_and_cancel(self, due: Sequence[Any]) -> None:
        """Each is cancelled before the next is started."""

    def replace(self, due: Sequence[Any], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        """Cancels the timer in a slot and starts another there, `a_tick` times a millisecond of the clock."""

    def expire(self, limit_ms: int) -> None:
        """Runs all that is due within `limit_ms`, the clock moving on."""


class WheelPeer:
    cancels_in_constant_time = True

    def __init__(self, wheel_size: int = 20) -> None:
        self.timer = VirtualTimer(1, wheel_size)

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[int]:
        return delays_ms

    def add(self, due: Sequence[int], into: Handles) -> None:
        call_later = self.timer.call_later
        for index, delay_ms in enumerate(due):
            into[index] = call_later(delay_ms, nothing)

    def cancel(self, handles: Sequence[TimerTask]) -> None:
        cancel = self.timer.cancel
        for task in handles:
            cancel(task)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        call_later, cancel = self.timer.call_later, self.timer.cancel
        for delay_ms in due:
            cancel(call_later(delay_ms, nothing))

    def replace(self, due: Sequence[int], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        timer = self.timer
        call_later, cancel = timer.call_later, timer.cancel
        for first in range(0, len(due), a_tick):
            for delay_ms, slot in zip(due[first : first + a_tick], slots[first : first + a_tick], strict=True):
                cancel(handles[slot])
                handles[slot] = call_later(delay_ms, nothing)
            timer.advance_to(timer.now_ms + 1)

    def expire(self, limit_ms: int) -> None:
        self.timer.advance_to(limit_ms)


class TaskPeer(WheelPeer):
    """A wheel with tasks that its caller constructs, as a subclass of TimerTask requires."""

    def add(self, due: Sequence[int], into: Handles) -> None:
        start = self.timer.start
        for index, delay_ms in enumerate(due):
            into[index] = task = TimerTask(nothing)
            start(task, delay_ms)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        start, cancel = self.timer.start, self.timer.cancel
        for delay_ms in due:
            task = TimerTask(nothing)
            start(task, delay_ms)
            cancel(task)


class HeapTimer:
    """A timer on heapq as in the documentation of heapq: a cancelled entry stays until it comes to the top.

    With `purge`, cancelled entries are removed once they are more than half of all, as in asyncio.
    """

    __slots__ = ("cancelled", "heap", "now_ms", "numbers", "purge")

    def __init__(self, purge: bool) -> None:
        self.heap: list[list[Any]] = []
        self.numbers = count()
        self.now_ms = 0
        self.purge = purge
        self.cancelled = 0

    def start(self, delay_ms: int, callback: Callable[[], None]) -> list[Any]:
        entry = [self.now_ms + delay_ms, next(self.numbers), callback]
        heapq.heappush(self.heap, entry)
        return entry

    def cancel(self, entry: list[Any]) -> None:
        if self.purge and entry[2] is not None:
            self.cancelled += 1
            if self.cancelled > 100 and self.cancelled > len(self.heap) // 2:
                entry[2] = None
                self.heap = [one for one in self.heap if one[2] is not None]
                heapq.heapify(self.heap)
                self.cancelled = 0
        entry[2] = None

    def advance_to(self, now_ms: int) -> None:
        while self.heap and self.heap[0][0] <= now_ms:
            due_ms, _, callback = entry = heapq.heappop(self.heap)
            if callback is None:
                self.cancelled -= 1
                continue
            entry[2] = None
            self.now_ms = due_ms
            callback()
        self.now_ms = now_ms


class HeapPeer:
    cancels_in_constant_time = True

    def __init__(self, purge: bool) -> None:
        self.timer = HeapTimer(purge)

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[int]:
        return delays_ms

    def add(self, due: Sequence[int], into: Handles) -> None:
        start = self.timer.start
        for index, delay_ms in enumerate(due):
            into[index] = start(delay_ms, nothing)

    def cancel(self, handles: Sequence[list[Any]]) -> None:
        cancel = self.timer.cancel
        for entry in handles:
            cancel(entry)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        start, cancel = self.timer.start, self.timer.cancel
        for delay_ms in due:
            cancel(start(delay_ms, nothing))

    def replace(self, due: Sequence[int], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        timer = self.timer
        start, cancel = timer.start, timer.cancel
        for first in range(0, len(due), a_tick):
            for delay_ms, slot in zip(due[first : first + a_tick], slots[first : first + a_tick], strict=True):
                cancel(handles[slot])
                handles[slot] = start(delay_ms, nothing)
            timer.advance_to(timer.now_ms + 1)

    def expire(self, limit_ms: int) -> None:
        self.timer.advance_to(limit_ms)


class JumpingSelector(selectors.SelectSelector):
    """Never waits: time goes on by as much as it was to wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += max(timeout or 0.0, 0.0)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class AsyncioPeer:
    cancels_in_constant_time = True

    def __init__(self) -> None:
        self.loop = JumpingLoop()

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[float]:
        return [delay_ms / 1_000 for delay_ms in delays_ms]

    def add(self, due: Sequence[float], into: Handles) -> None:
        call_later = self.loop.call_later
        for index, delay_s in enumerate(due):
            into[index] = call_later(delay_s, nothing)

    def cancel(self, handles: Sequence[asyncio.TimerHandle]) -> None:
        for handle in handles:
            handle.cancel()

    def add_and_cancel(self, due: Sequence[float]) -> None:
        call_later = self.loop.call_later
        for delay_s in due:
            call_later(delay_s, nothing).cancel()

    def replace(self, due: Sequence[float], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        loop = self.loop
        call_later = loop.call_later
        for first in range(0, len(due), a_tick):
            for delay_s, slot in zip(due[first : first + a_tick], slots[first : first + a_tick], strict=True):
                handles[slot].cancel()
                handles[slot] = call_later(delay_s, nothing)
            loop.call_later(0.001, loop.stop)
            loop.run_forever()

    def expire(self, limit_ms: int) -> None:
        self.loop.call_at(limit_ms / 1_000, self.loop.stop)
        self.loop.run_forever()


class SchedPeer:
    """A cancel searches the whole queue and heapifies it: quadratic where there are many."""

    cancels_in_constant_time = False

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.limit_ms = 0.0
        self.timer = sched.scheduler(lambda: self.now_ms, self._pass)

    def _pass(self, by_ms: float) -> None:
        self.now_ms += by_ms

    def delays_for(self, delays_ms: Sequence[int]) -> Sequence[int]:
        return delays_ms

    def add(self, due: Sequence[int], into: Handles) -> None:
        enter = self.timer.enter
        for index, delay_ms in enumerate(due):
            into[index] = enter(delay_ms, 0, nothing)

    def cancel(self, handles: Sequence[sched.Event]) -> None:
        cancel = self.timer.cancel
        for event in handles:
            cancel(event)

    def add_and_cancel(self, due: Sequence[int]) -> None:
        enter, cancel = self.timer.enter, self.timer.cancel
        for delay_ms in due:
            cancel(enter(delay_ms, 0, nothing))

    def replace(self, due: Sequence[int], slots: Sequence[int], handles: Handles, a_tick: int) -> None:
        raise TypeError("a cancel of sched's is linear: it is not asked to do this")

    def expire(self, limit_ms: int) -> None:
        self.timer.run()


PEERS: Mapping[str, Callable[[], Peer]] = {
    "wheel": WheelPeer,
    "wheel, task and start": TaskPeer,
    "wheel, size 256": lambda: WheelPeer(256),
    "heapq, lazy": lambda: HeapPeer(purge=False),
    "heapq, purging": lambda: HeapPeer(purge=True),
    "asyncio": AsyncioPeer,
    "sched": SchedPeer,
}
