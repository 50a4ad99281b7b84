"""Answers and time as the code sees them: futures, coroutines over them, and the clock, a port and its virtual form.

A `Future` is what every port returns: a request that has been sent, and the answer it will have. Making one is the
request; awaiting it only waits for the answer, so a coroutine can hold several and keep them all in flight. `await`
yields the Future itself to the driver of the coroutine, and only while it is unanswered; the driver (an event thread
that blocks, a scheduler of virtual time) resumes the coroutine once it is done. This module knows no thread and no
event loop.

`spawn` turns a coroutine over Futures into a Future, for what takes several requests (a read that is made again, a read
in many batches). The coroutine runs on the caller's thread until its first unanswered request, then on whichever thread
answers, so it must not block.

Times are milliseconds as floats, on a monotonic axis whose zero means nothing (`now_ms`); wall time is asked for
apart, and only to be written down (`wall_ms`). Nothing below the hosts reads another clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

Coro = Coroutine["Future[Any]", None, T]
"""A coroutine over ports: what it yields are the Futures that it waits for, and it is sent None."""


class Future(Generic[T]):
    """One answer, given exactly once, as a value (`resolve`) or as an error (`fail`).

    May be answered on one thread and awaited on another: list append and pop are atomic, which is all that the
    callbacks rely on. Callbacks run on the thread that answers (or at once, when it is answered already); they
    must not block and must not raise.
    """

    __slots__ = ("_answered", "_callbacks", "_error", "_value")

    def __init__(self) -> None:
        self._answered = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    @classmethod
    def resolved(cls, value: T) -> Future[T]:
        """A Future that is answered already."""
        pending: Future[T] = cls()
        pending.resolve(value)
        return pending

    @classmethod
    def failed(cls, error: BaseException) -> Future[T]:
        pending: Future[T] = cls()
        pending.fail(error)
        return pending

    @property
    def done(self) -> bool:
        return self._answered

    @property
    def error(self) -> BaseException | None:
        """The error it was answered with; None when it was answered with a value, or is not answered yet."""
        return self._error

    def resolve(self, value: T) -> None:
        if self._answered:
            self._answer(value, None)  # which refuses
        self._value = value
        self._answered = True
        if self._callbacks:
            self._run_callbacks()

    def fail(self, error: BaseException) -> None:
        self._answer(None, error)

    def _answer(self, value: T | None, error: BaseException | None) -> None:
        if self._answered:
            raise RuntimeError(f"answered twice: first {self._error or self._value!r}, then {error or value!r}")
        self._value, self._error = value, error
        self._answered = True
        self._run_callbacks()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when the answer is there (at once if it is already)."""
        self._callbacks.append(callback)
        if self._answered:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # the other thread took the last one
                return
            callback()

    def result(self) -> T:
        """The answer. Raises the error it was answered with; RuntimeError while there is none."""
        if not self._answered:
            raise RuntimeError("not answered yet")
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error's traceback would refer to what has the error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self._answered:
            yield self
        try:
            return self.result()
        finally:
            del self  # as above


def spawn(task: Coro[T]) -> Future[T]:
    """Runs `task` up to its first unanswered request at once, and on from there as answers come."""
    driven = _Driven(task)
    driven.resume()
    return driven.outcome


class _Driven(Generic[T]):
    """A task that is under way. A function that names itself would be garbage that only a search finds."""

    __slots__ = ("_task", "outcome")

    def __init__(self, task: Coro[T]) -> None:
        self._task = task
        self.outcome: Future[T] = Future()

    def resume(self) -> None:
        try:
            waited_for = self._task.send(None)
        except StopIteration as ended:
            self.outcome.resolve(ended.value)
        except Exception as error:  # noqa: BLE001 - passed on to the code that awaits the outcome
            self.outcome.fail(error)
        else:
            waited_for.on_done(self.resume)


class Timer(Protocol):
    """The handle that `call_later` returns."""

    def cancel(self) -> None:
        """The callback will not run, if it has not yet. Safe to call twice."""


class Clock(Protocol):
    def now_ms(self) -> float:
        """Monotonic time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for what is written down; never compared with `now_ms`."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Runs `callback` once, `delay_ms` from now. It must not block."""

    def sleep(self, delay_ms: float) -> Future[None]:
        """Answered `delay_ms` from now."""


SWEPT_FROM = 16_384
"""So many moments are kept, whatever has been cancelled."""


class _VirtualTimer:
    """`callback` is None once it was cancelled, or has fired."""

    __slots__ = ("callback",)
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Virtual time, which passes only when it is advanced. Timers fire in order of due time, then of being set.

    `wall_ms` is `epoch_ms` plus the virtual time, so that what is written down is repeatable too.

    The heap holds moments, each once, and is compared by them alone; what is due at one stands in `_due`: a timer, or
    several in the order of being set. A timer that is cancelled stays until its moment has come, or until there are
    half as many moments again as the last sweep has left.
    """

    def __init__(self, now_ms: float = 0.0, epoch_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._epoch_ms = epoch_ms
        self._moments: list[float] = []
        self._due: dict[float, _VirtualTimer | deque[_VirtualTimer]] = {}
        self._sweep_beyond = SWEPT_FROM

    def now_ms(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return self._epoch_ms + int(self._now_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        if delay_ms < 0:
            raise ValueError(f"delay_ms {delay_ms}: expected 0 or more")
        timer = _VirtualTimer()
        timer.callback = callback
        due_ms = self._now_ms + delay_ms
        there = self._due.setdefault(due_ms, timer)
        if there is timer:
            heappush(self._moments, due_ms)
            if len(self._moments) > self._sweep_beyond:
                self._sweep()
        elif isinstance(there, deque):
            there.append(timer)
        else:
            self._due[due_ms] = deque((there, timer))
        return timer

    def _sweep(self) -> None:
        """Forgets what was cancelled: of a world's many requests each has a deadline, which is over with its answer."""
        left: dict[float, _VirtualTimer | deque[_VirtualTimer]] = {}
        for due_ms, there in self._due.items():
            if isinstance(there, _VirtualTimer):
                if there.callback is not None:
                    left[due_ms] = there
            else:
                timers = deque(timer for timer in there if timer.callback is not None)
                if timers:
                    left[due_ms] = timers if len(timers) > 1 else timers[0]
        self._due.clear()  # both stay the objects that they are: `run_until` holds them
        self._due.update(left)
        self._moments[:] = left
        heapify(self._moments)
        self._sweep_beyond = max(len(left) + len(left) // 2, SWEPT_FROM)

    def sleep(self, delay_ms: float) -> Future[None]:
        pending: Future[None] = Future()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending

    def next_due_ms(self) -> float | None:
        """Return the due time of the next timer, or None if none is set."""
        moments = self._moments
        while moments:
            due_ms = moments[0]
            there = self._due[due_ms]
            if isinstance(there, _VirtualTimer):
                if there.callback is not None:
                    return due_ms
            else:
                while there and there[0].callback is None:
                    there.popleft()
                if there:
                    return due_ms
            del self._due[due_ms]
            heappop(moments)
        return None

    def step(self) -> bool:
        """Moves to the next timer and fires it. False when none is set."""
        due_ms = self.next_due_ms()
        if due_ms is not None:
            self._fire_first(due_ms)
        return due_ms is not None

    def _fire_first(self, due_ms: float) -> None:
        """The first of those due at the next moment, which is not cancelled."""
        there = self._due[due_ms]
        timer = there if isinstance(there, _VirtualTimer) else there.popleft()
        if timer is there or not there:
            del self._due[due_ms]
            heappop(self._moments)
        callback, timer.callback = timer.callback, None
        if due_ms > self._now_ms:
            self._now_ms = due_ms
        assert callback is not None
        callback()

    def advance_to(self, now_ms: float) -> None:
        """Fires everything that is due up to and including `now_ms`, and ends there."""
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            self._fire_first(due_ms)
        self._now_ms = max(self._now_ms, now_ms)

    def run_until(self, condition: Callable[[], bool], limit_ms: float) -> bool:
        """Fires timers one by one until `condition` holds (True), none is left or `limit_ms` is reached (False)."""
        moments, due, pop = self._moments, self._due, heappop
        while not condition():
            if not moments:
                return False
            due_ms = moments[0]
            if due_ms > limit_ms:
                return False
            timer = due[due_ms]
            if type(timer) is not _VirtualTimer:
                next_ms = self.next_due_ms()
                if next_ms is None or next_ms > limit_ms:
                    return False
                self._fire_first(next_ms)
                continue
            # A timer alone at its moment, as nearly all are: as `_fire_first`, without a call of our own.
            del due[due_ms]
            pop(moments)
            callback, timer.callback = timer.callback, None
            if callback is None:
                continue  # it was cancelled
            if due_ms > self._now_ms:
                self._now_ms = due_ms
            callback()
        return True
