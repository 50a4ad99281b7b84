"""The network thread: one asyncio loop for everything that touches a socket of Kafka's protocol, and its scheduling.

The callbacks of all of the process's timers, which are on one timing wheel, run there too.

The loop handles all sockets, so any work on it delays every client. `LoopScheduler` gives connections with waiting
requests their turns, some requests each. Requests that need several slices take turns among themselves, one slice in
each iteration of the loop. Jobs of a lane run one after the other on the lane's threads. All methods are called on the
loop.

`OffLoop` runs long work on one thread beside the loop: generators that yield, before each piece, an estimate of the
microseconds that the piece takes. Between pieces the thread releases the GIL, so that the loop waits for one piece at
most. Some of the work takes turns, so that a long one does not delay the others; the rest waits, since each may hold
much memory.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from threading import get_ident
from typing import Any, TypeVar

from controller.broker.request_context import Job, JobLane, Steps, Yielded
from controller.clock import Future, Timer
from controller.protocol.framing import FrameMemory
from controller.storage.device_pools import DevicePools
from controller.storage.devices import DeviceJobs, JobOutcome, outcome_of
from controller.storage.disk import Device
from controller.timer.wheel import MAX_DELAY_MS, NEVER_MS, NOWHERE, TimerTask, TimingWheel, WheelCounts

T = TypeVar("T")

AT_ONCE = 1_000
"""How many timers run before the loop's other callbacks have their turn."""
SOON_S = 0.001
"""How long timers without a delay run, and those that they start, before the loop's other callbacks have theirs."""


PIECE_BYTES = 256 * 1024
"""Of a large answer: about 0.1 ms of sendfile where the page cache has small folios."""
REST_AFTER_S = 0.02
"""A loop that had no pause for so long makes one. It lets go of the interpreter in each round, but takes it back before
a thread that waits for it has woken up."""
REST_S = 0.00005
LOOKED_EACH = 8
"""Rounds of the loop of which one is looked at for a pause."""
LOOKED_AT = 16
"""Sockets that `_CountingSelector.others_ask` looks at, at most."""


class _CountingSelector(selectors.DefaultSelector):
    """`rounds`: how often the loop has looked at its sockets. `ready`: how many were ready the last time."""

    _look = selectors.DefaultSelector.select

    def __init__(self) -> None:
        super().__init__()
        self.rounds = self.ready = 0
        self._rested_s = 0.0
        self.waker = -1
        """What other threads wake the loop by, which is ready until the loop has come round."""
        if sys.platform == "linux":
            self._same = select.epoll.fromfd(os.dup(self.fileno()))

    def others_ask(self, fd: int, sent_bytes: int) -> bool:
        """Whether something has arrived on another socket than `fd`, which has sent so many bytes in its turn: at least
        a piece for each socket that was ready, since a round takes that much longer. False where that cannot be asked
        for cheaply."""
        if sys.platform != "linux" or sent_bytes < PIECE_BYTES * max(self.ready, 1):
            return False
        return any(
            event & select.EPOLLIN and one not in (fd, self.waker) for one, event in self._same.poll(0, LOOKED_AT)
        )

    def close(self) -> None:
        super().close()
        if sys.platform == "linux":
            self._same.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.rounds = rounds = self.rounds + 1
        if rounds % LOOKED_EACH:
            found = self._look(timeout)
            self.ready = len(found)
            return found
        began_s = time.perf_counter()
        found = self._look(timeout)
        self.ready, now_s = len(found), time.perf_counter()
        if now_s - began_s >= REST_S:
            self._rested_s = now_s
        elif now_s - self._rested_s >= REST_AFTER_S:
            time.sleep(REST_S)
            self._rested_s = time.perf_counter()
        return found


class NetworkThread:
    """Runs from `start` to `stop`. `call` and `run` may be used by any other thread; the loop's own uses asyncio. It is
    a selector loop, since Windows' default loop watches no sockets, which servers here need."""

    def __init__(
        self,
        name: str = "network",
        loop_on: Callable[[selectors.BaseSelector], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop,
    ) -> None:
        self._selector = _CountingSelector()
        self.loop = loop_on(self._selector)
        self._selector.waker = next(iter(self._selector.get_map()), -1)  # so far the loop watches nothing else
        self.others_ask = self._selector.others_ask
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.ident: int | None = None
        """The thread's, once it runs."""
        self.clock = RealClock(self)
        self.memory = FrameMemory()
        """For what arrives on the loop."""

    def start(self) -> None:
        self._thread.start()

    @property
    def rounds(self) -> int:
        """How often the loop has come round."""
        return self._selector.rounds

    @property
    def ready(self) -> int:
        """How many sockets were ready when the loop last came round."""
        return self._selector.ready

    def on_loop(self) -> bool:
        return threading.get_ident() == self.ident

    def call(self, action: Callable[[], object]) -> None:
        """Run `action` on the loop: at once if called from the loop's thread, otherwise as soon as the loop is free.

        After `stop` the action is dropped: no connection is left to respond to.
        """
        if self.on_loop():
            action()
            return
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, task: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """The result of an asyncio coroutine, waited for on the calling thread. TimeoutError."""
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(task, self.loop)
        return future.result(timeout_s)

    def stop(self, limit_s: float = 2.0) -> bool:
        """Cancels every task, runs what that takes, and ends the loop; whether it did in time. Safe to call twice."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        self.ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
            self.ident = None  # another thread may get it


def monotonic_ms() -> float:
    return time.monotonic() * 1_000.0


class RealClock:
    """The monotonic clock. Any thread may set timers; their callbacks run on the loop, which is also the broker's
    thread: `call_later(0, f)` runs `f` there.

    Timers are on one `TimingWheel` with a resolution of 1 ms, driven by one timer of asyncio's for the next bucket in
    use. A timer never fires early: its due time is rounded up to a millisecond. One without a delay is not on the
    wheel; the loop runs it in its next iteration, and at once those that it leads to: a look at the sockets between
    them would take longer than most of them do. The wheel is touched on the loop's thread only.
    """

    def __init__(self, network: NetworkThread, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self.now_ms = now_ms
        self._network = network
        self._loop = network.loop
        self._wheel = TimingWheel(start_ms=int(self.now_ms()))
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ms = NEVER_MS
        self._soon: deque[_WheelTimer] = deque()
        self.wakes = 0
        """How often the loop was woken for the wheel."""

    @property
    def wheel_counts(self) -> WheelCounts:
        """The wheel's polls and advances up to now. To be called on the loop."""
        return self._wheel.counts(int(self.now_ms()))

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = _WheelTimer(self._network, callback)
        here = get_ident() == self._network.ident
        if delay_ms <= 0.0:
            if here:
                self._call_soon(timer)
            else:
                self._network.call(partial(self._call_soon, timer))
            return timer
        # The way to the loop is not added to the delay.
        due_ms = ceil(self.now_ms() + delay_ms) if delay_ms < MAX_DELAY_MS else NEVER_MS
        if not here:
            self._network.call(partial(self._start, timer, due_ms))
            return timer
        wheel = self._wheel  # as `_start`
        wheel.start(timer, due_ms - wheel.now_ms)
        if wheel.next_ms < self._armed_ms:
            self._arm()
        return timer

    def sleep(self, delay_ms: float) -> Future[None]:
        pending: Future[None] = Future()
        self.call_later(delay_ms, lambda: pending.resolve(None))
        return pending

    # -- on the loop

    def _call_soon(self, timer: _WheelTimer) -> None:
        self._soon.append(timer)
        if len(self._soon) == 1:
            self._loop.call_soon(self._run_soon)

    def _run_soon(self) -> None:
        """Run the timers without a delay. One stays first in the queue while it runs, so that those that it starts
        are run here too."""
        soon, until = self._soon, time.perf_counter() + SOON_S
        try:
            while soon and time.perf_counter() < until:
                try:
                    soon[0].run()
                finally:
                    soon.popleft()
        finally:
            if soon:
                self._loop.call_soon(self._run_soon)

    def _start(self, timer: _WheelTimer, due_ms: int) -> None:
        if timer.callback is None:  # cancelled on its way to the loop
            return
        wheel = self._wheel
        wheel.start(timer, due_ms - wheel.now_ms)
        if wheel.next_ms < self._armed_ms:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed_ms = self._wheel.next_ms
        self._handle = self._loop.call_at(self._armed_ms / 1_000.0, self._run) if self._armed_ms < NEVER_MS else None

    def _run(self) -> None:
        """Run the timers that are due."""
        self._handle = None
        self.wakes += 1
        self._armed_ms = -1  # what is started meanwhile needs not arm
        wheel = self._wheel
        try:
            for _ in range(AT_ONCE):
                while (timer := wheel.take()) is None:
                    if not wheel.turn(int(self.now_ms())):
                        return
                try:
                    timer.run()
                except Exception as error:  # noqa: BLE001 - whatever a callback raises, the others run
                    self._loop.call_exception_handler({"message": f"a timer failed: {timer!r}", "exception": error})
        finally:
            self._arm()


class _WheelTimer(TimerTask):
    """`callback` None is what says, on any thread, that it will not run."""

    __slots__ = ("__weakref__", "_network", "callback")

    def __init__(self, network: NetworkThread, callback: Callable[[], None]) -> None:
        self._next = None
        self._network = network
        self.callback: Callable[[], None] | None = callback

    def run(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        """From any thread; the wheel's links are the loop's alone."""
        if self.callback is None:
            return
        self.callback = None
        if get_ident() != self._network.ident:
            self._network.call(super().cancel)
            return
        following = self._next  # as `TimerTask.cancel`
        if following is not None:
            previous = self._previous
            previous._next = following
            following._previous = previous
            self._next = None
            self._previous = NOWHERE


TAKE_TURNS = 3
"""Jobs that are under way at once."""
TURN_US = 5_000


class OffLoop:
    """The thread starts with the first job and ends with the process."""

    def __init__(self, network: NetworkThread) -> None:
        self._network = network
        self._waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Generator[int, None, None], then: Callable[[Exception | None], None]) -> None:
        """Do the work, then call `then` on the loop, with what the work raised. To be called on the loop."""
        self._waiting.put(_Job(work, then))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="off-loop", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        under_way: deque[_Job] = deque()
        while True:
            if not under_way:
                under_way.append(self._waiting.get())
            while len(under_way) < TAKE_TURNS and not self._waiting.empty():
                under_way.append(self._waiting.get())
            job = under_way.popleft()
            if not job.turn():
                under_way.append(job)
                continue
            self._network.call(partial(job.then, job.error))


class _Job:
    __slots__ = ("_work", "error", "then")

    def __init__(self, work: Generator[int, None, None], then: Callable[[Exception | None], None]) -> None:
        self._work = work
        self.then = then
        self.error: Exception | None = None

    def turn(self) -> bool:
        """Run pieces of the work for about TURN_US, and return True if the work is complete."""
        spent_us = 0
        try:
            while spent_us < TURN_US:
                spent_us += next(self._work)
                time.sleep(0)  # lets go of the GIL
        except StopIteration:
            return True
        except Exception as error:  # noqa: BLE001 - passed to the submitter of the job
            self.error = error
            return True
        return False


TURN_S = 0.002
"""The time slice of one connection's requests, or of one request's slices, before others get the loop."""
ROUND_S = 0.006
"""How long turns are given before the loop looks at its sockets again, and how long what came in by sockets is taken up
before turns are given."""
THREADS = {JobLane.CODEC: 1, JobLane.RECORDS: 1}
"""The codec's has to be one: see `Entries`."""


class RunningSteps:
    """Steps under way. `ended` is called once, when there are none left."""

    __slots__ = ("abandoned", "ended", "outcome", "steps", "yielded")

    def __init__(self, steps: Steps, ended: Callable[[], None]) -> None:
        self.steps = steps
        self.ended = ended
        self.yielded: Yielded = None
        self.outcome: JobOutcome | None = None
        self.abandoned = False

    def step(self) -> bool:
        """Runs one slice; False if it was the last."""
        outcome, self.outcome = self.outcome, None
        try:
            if outcome is None:
                self.yielded = self.steps.send(None)
            elif outcome.error is not None:
                self.yielded = self.steps.throw(outcome.error)
            else:
                self.yielded = self.steps.send(outcome.result)
        except StopIteration:
            return False
        return True


class LoopScheduler:
    """A queue of steps. `on_error` is called with an exception that steps raise; these steps end then. `devices` runs
    the jobs that name a device; they go on when this is closed, and are not its own to end."""

    def __init__(
        self, network: NetworkThread, on_error: Callable[[Exception], None], devices: DeviceJobs | None = None
    ) -> None:
        self._network = network
        self._devices: DeviceJobs = devices or DevicePools()
        self._on_error = on_error
        self._waiting: deque[Callable[[], None]] = deque()
        self._arrived: deque[Callable[[], None]] = deque()
        self._arrivals_in = -1
        self._arrivals_until = 0.0
        self._working: deque[RunningSteps] = deque()
        self._pools: dict[JobLane, ThreadPoolExecutor] = {}
        self._scheduled = self._closed = False

    def wait(self, turn: Callable[[], None]) -> None:
        """Calls `turn` once, when its turn has come."""
        self._waiting.append(turn)
        self._schedule()

    def arrive(self, turn: Callable[[], None]) -> None:
        """Calls `turn` once: now, or, where much else has arrived since the loop last came round, before those that
        `wait`. It is to be short: what a connection has been sent is read, and one request handled."""
        now, rounds = time.perf_counter(), self._network.rounds
        if rounds != self._arrivals_in:  # asked for, since a callback of the loop's own would cost it a round
            self._arrivals_in, self._arrivals_until = rounds, now + ROUND_S
        if now < self._arrivals_until and not self._arrived:
            turn()
        else:
            self._arrived.append(turn)
            self._schedule()

    def give_way(self, turn: Callable[[], None]) -> None:
        """Call `turn` once: now if nothing else has arrived or waits, otherwise after all of that."""
        if self._network.ready <= 1 and not (self._waiting or self._arrived or self._working):
            turn()
        else:
            self.wait(turn)

    def work(self, steps: Steps, ended: Callable[[], None]) -> RunningSteps:
        """Runs the steps, beginning in a later round. They are closed instead once they are `abandoned`."""
        working = RunningSteps(steps, ended)
        self._go_on(working)
        return working

    def drive(self, steps: Steps) -> None:
        """Like `work`, but start at once: mostly there is one slice. Any thread may call this."""
        self._network.call(lambda: self._step(RunningSteps(steps, lambda: None)))

    def _go_on(self, working: RunningSteps) -> None:
        self._working.append(working)
        self._schedule()

    def close(self) -> None:
        """Start no further job. A running job ends by itself and is not waited for."""
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed and (self._waiting or self._working or self._arrived):
            self._scheduled = True
            self._network.loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        until = time.perf_counter() + ROUND_S
        # One slice of one request and one connection that waits whatever else there is, and then as many connections as
        # there is time for.
        if self._working:
            self._step(self._working.popleft())
        while self._arrived and time.perf_counter() < until:
            self._arrived.popleft()()
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if time.perf_counter() >= until:
                break
        self._schedule()

    def _step(self, working: RunningSteps) -> None:
        until = time.perf_counter() + TURN_S
        while True:
            if working.abandoned:
                working.steps.close()
                return
            try:
                goes_on = working.step()
            except Exception as error:  # noqa: BLE001 - reported; the steps of other requests go on
                self._on_error(error)
                goes_on = False
            if not goes_on:
                working.ended()
                return
            if isinstance(working.yielded, Job):
                self._submit(working, working.yielded)
                return
            if working.yielded is not None and not working.yielded.enter(lambda: self._go_on(working)):
                return
            if time.perf_counter() >= until:
                self._go_on(working)
                return

    def _submit(self, working: RunningSteps, job: Job) -> None:
        def resume(outcome: JobOutcome) -> None:
            if job.is_last:
                working.outcome = outcome
                self._step(working)
            else:
                self._network.call(lambda: self._resume(working, outcome))

        if self._closed:
            working.steps.close()
            working.ended()
            return
        lane = job.lane
        if isinstance(lane, Device):
            self._devices.submit(
                lane, job.call, resume, order=job.order, size_bytes=job.size_bytes, limit_ms=job.limit_ms, what=job.what
            )
            return
        pool = self._pools.get(lane)
        if pool is None:
            pool = self._pools[lane] = ThreadPoolExecutor(THREADS[lane], lane.value)
        pool.submit(outcome_of, job.call).add_done_callback(
            lambda done: resume(JobOutcome(error=RuntimeError("shut down")) if done.cancelled() else done.result())
        )

    def _resume(self, working: RunningSteps, outcome: JobOutcome) -> None:
        working.outcome = outcome
        self._go_on(working)
