"""The scheduling of the network loop: requests in slices, connections in turn, and threads for long or blocking work.

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

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from controller.broker.request_context import Job, JobLane, Steps, Yielded
from controller.hosts.network import NetworkThread

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
THREADS = {JobLane.CODEC: 1, JobLane.RECORDS: 1, JobLane.DISK: 2}
"""The codec's has to be one: see `Entries`."""


class RunningSteps:
    """Steps under way. `ended` is called once, when there are none left."""

    __slots__ = ("abandoned", "ended", "outcome", "steps", "yielded")

    def __init__(self, steps: Steps, ended: Callable[[], None]) -> None:
        self.steps = steps
        self.ended = ended
        self.yielded: Yielded = None
        self.outcome: Future[Any] | None = None
        self.abandoned = False

    def step(self) -> bool:
        """Runs one slice; False if it was the last."""
        outcome, self.outcome = self.outcome, None
        try:
            if outcome is None:
                self.yielded = self.steps.send(None)
            elif (error := outcome.exception()) is not None:
                self.yielded = self.steps.throw(error)
            else:
                self.yielded = self.steps.send(outcome.result())
        except StopIteration:
            return False
        return True


class LoopScheduler:
    """A queue of steps. `on_error` is called with an exception that steps raise; these steps end then."""

    def __init__(self, network: NetworkThread, on_error: Callable[[Exception], None]) -> None:
        self._network = network
        self._on_error = on_error
        self._waiting: deque[Callable[[], None]] = deque()
        self._arrived: deque[Callable[[], None]] = deque()
        self._arrivals_until: float | None = None
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
        now = time.perf_counter()
        if self._arrivals_until is None:
            self._arrivals_until = now + ROUND_S
            self._network.loop.call_soon(self._came_round)
        if now < self._arrivals_until and not self._arrived:
            turn()
        else:
            self._arrived.append(turn)
            self._schedule()

    def _came_round(self) -> None:
        self._arrivals_until = None

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
        def resume(outcome: Future[Any]) -> None:
            self._network.call(lambda: self._resume(working, outcome))

        if self._closed:
            return
        pool = self._pools.get(job.lane)
        if pool is None:
            pool = self._pools[job.lane] = ThreadPoolExecutor(THREADS[job.lane], job.lane.value)
        pool.submit(job.call).add_done_callback(resume)

    def _resume(self, working: RunningSteps, outcome: Future[Any]) -> None:
        if not outcome.cancelled():
            working.outcome = outcome
            self._go_on(working)
