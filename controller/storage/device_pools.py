"""`DevicePools`: the port `DeviceJobs` on daemon threads, a bounded pool and queue for each device.

Each job is answered exactly once: with its result, at its limit, when it is refused, or when the pools are closed,
whichever is first. Whatever a job or a callback raises, the thread goes on. A job that never returns keeps its thread
and nothing else: threads are daemons, so that they do not keep the process from ending, and those that wait behind it
are answered at their own limits. The broker's core must not import this module.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from controller import system
from controller.storage.devices import DeviceLimits, DeviceStats, JobOutcome, Then, outcome_of, unavailable
from controller.storage.disk import Device, is_shortage, state_of

IDLE_S = 30.0
"""A thread ends after so long without a job."""
CHECK_S, CHECK_IDLE_S = 0.5, 1.0
"""How often jobs are compared with their limits, while there are any; while there are none, each look wakes a processor
for nothing."""
SILENT_LIMIT_S = 1.0
"""The limit of a job, if it has none of its own, while the device is silent: the next to come need not wait as long."""
OVERDUE_S = 2.0
"""From then on an operation that has no order, which is a read of 1 MiB at most, takes long, if no read has
ended meanwhile: a device that has much to read is not one that hangs. Or half of its limit."""


class _Job:
    __slots__ = ("answered", "began_s", "call", "due_s", "order", "size_bytes", "submitted_s", "then", "what")

    def __init__(
        self, call: Callable[[], Any], then: Then, order: str, size_bytes: int, now_s: float, limit_s: float, what: str
    ) -> None:
        self.call = call
        self.then = then
        self.order = order
        self.size_bytes = size_bytes
        self.submitted_s = now_s
        self.due_s = now_s + limit_s
        self.what = what
        self.began_s: float | None = None
        self.answered = False


class _Pool:
    """One device's. All fields are under `changed`; callbacks are called without it."""

    def __init__(
        self, device: Device, limits: DeviceLimits, now_s: Callable[[], float], note: Callable[[str], None]
    ) -> None:
        self._note = note
        self._state = state_of(device)
        self._is_asked = False
        self.is_silent = False
        """A job was answered at its limit, and none has ended since."""
        self.device = device
        self.changed = threading.Condition()
        self._limits = limits
        self._now_s = now_s
        self._ready: deque[_Job] = deque()
        self._behind: dict[str, deque[_Job]] = {}
        """By order, while a job of it is ready or running: those that wait for that one."""
        self._running: dict[_Job, None] = {}
        self._unanswered: dict[_Job, None] = {}
        self._threads = self._idle = 0
        self._bytes = 0
        self._done = self._expired = self._refused = 0
        self._busy_s = 0.0
        self._read_s = 0.0
        """When a read of what was missing ended last. Other jobs may end although the device does not answer."""
        self._closed = False

    def submit(self, job: _Job) -> None:
        with self.changed:
            why = self._refusal(job)
            if why is None:
                self._unanswered[job] = None
                self._bytes += job.size_bytes
                self._queue(job)
                return
            self._refused += 1
            job.answered = True
        _call(job, unavailable(self.device, job.what, why))

    def _refusal(self, job: _Job) -> str | None:
        limits = self._limits
        if self._closed:
            return "the broker shuts down"
        if self._is_hung(self._now_s()):
            return "the device does not answer"
        if len(self._unanswered) >= limits.queued_jobs:
            return f"{limits.queued_jobs} jobs wait for the device"
        if self._bytes and self._bytes + job.size_bytes > limits.queued_bytes:
            return f"jobs of {self._bytes} bytes wait for the device"
        return None

    def _is_hung(self, now_s: float) -> bool:
        running = self._running
        return len(running) >= self._limits.threads and all(job.due_s <= now_s for job in running)

    def _queue(self, job: _Job) -> None:
        if job.order:
            behind = self._behind.get(job.order)
            if behind is not None:
                behind.append(job)
                return
            self._behind[job.order] = deque()
        self._make_ready(job)

    def _make_ready(self, job: _Job) -> None:
        self._ready.append(job)
        if len(self._ready) <= self._idle:  # a thread that was notified counts as idle until it runs
            self.changed.notify()
        elif self._threads < self._limits.threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"disk-{self.device}", daemon=True).start()

    def _work(self) -> None:
        system.give_way()
        while (job := self._next()) is not None:
            outcome = outcome_of(job.call)
            with self.changed:
                self._busy_s += self._now_s() - (job.began_s or 0.0)
                self._done += 1
                if job.size_bytes and not job.order:
                    self._read_s = self._now_s()
                del self._running[job]
                self._follow(job)
                is_first = self._take_answer(job)
                was_silent, self.is_silent = self.is_silent, False
                self._state.overdue.discard(id(self))
                self._notify_closing()
            if was_silent:
                self._note(f"device {self.device} answers again")
            if is_first:
                _call(job, outcome)
            del job, outcome  # not held while this waits

    def _notify_closing(self) -> None:
        """`close` waits for the answers. Threads without a job do not: all of them would wake up for each."""
        if self._closed:
            self.changed.notify_all()

    def _next(self) -> _Job | None:
        with self.changed:
            until_s = time.monotonic() + IDLE_S
            while not self._ready:
                left_s = until_s - time.monotonic()
                if self._closed or left_s <= 0.0:
                    self._threads -= 1
                    return None
                self._idle += 1
                self.changed.wait(left_s)
                self._idle -= 1
            job = self._ready.popleft()
            job.began_s = self._now_s()
            self._running[job] = None
            return job

    def _follow(self, job: _Job) -> None:
        """The job has ended, or is not run: the next of its order may."""
        if not job.order:
            return
        behind = self._behind[job.order]
        if behind:
            self._make_ready(behind.popleft())
        else:
            del self._behind[job.order]

    def _take_answer(self, job: _Job) -> bool:
        if job.answered:
            return False
        job.answered = True
        del self._unanswered[job]
        self._bytes -= job.size_bytes
        return True

    def expire(self, now_s: float) -> bool:
        """Answer the jobs whose limit is over. True if there are others."""
        return self._answer_instead(lambda job: job.due_s <= now_s, now_s, "no answer from the device", silent=True)

    def look(self, now_s: float, ask: Callable[[Device], None] | None) -> None:
        """See whether an operation takes long. A device that is written to is asked for one if it has none."""
        with self.changed:
            overdue_s = min(OVERDUE_S, self._limits.limit_ms / 2_000.0)
            began_s = [job.began_s for job in self._running if job.began_s is not None and not job.order]
            if self._closed:
                return
            if self.is_silent or any(now_s - max(each, self._read_s) >= overdue_s for each in began_s):
                self._state.overdue.add(id(self))
            if ask is None or self._is_asked or not self._state.is_written:
                return
            self._is_asked, self._state.is_written = True, False
        what = f"a read to see whether {self.device} answers"
        limit_s = self._limits.limit_ms / 1_000.0
        self.submit(_Job(partial(ask, self.device), self._has_answered, "", 0, now_s, limit_s, what))

    def _has_answered(self, _outcome: JobOutcome) -> None:
        self._is_asked = False

    def _answer_instead(self, applies: Callable[[_Job], bool], now_s: float, why: str, *, silent: bool = False) -> bool:
        with self.changed:
            over = [job for job in self._unanswered if applies(job)]
            for job in over:
                self._take_answer(job)
                self._expired += 1
            self._notify_closing()
            dropped = {job for job in over if job not in self._running}
            if dropped:
                self._drop(dropped)
            left = bool(self._unanswered)
            if is_new := silent and bool(over) and not self.is_silent:
                self.is_silent = True
        if is_new:
            job = over[0]
            waited = f"{job.what or 'a job'}: {why} in {now_s - job.submitted_s:.1f} s"
            self._note(f"device {self.device} does not answer, what needs it is refused: {waited}")
        for job in over:
            _call(job, unavailable(self.device, job.what, f"{why} in {now_s - job.submitted_s:.1f} s"))
        return left

    def _drop(self, dropped: set[_Job]) -> None:
        """These are not run."""
        for behind in self._behind.values():
            kept = [job for job in behind if job not in dropped]
            behind.clear()
            behind.extend(kept)
        ready = [job for job in self._ready if job in dropped]
        if ready:
            kept = [job for job in self._ready if job not in dropped]
            self._ready.clear()
            self._ready.extend(kept)
            for job in ready:
                self._follow(job)

    def close(self, until_s: float) -> list[str]:
        """Take no further job, wait for those that are there, and answer those that are left. Their names."""
        with self.changed:
            self._closed = True
            self._state.overdue.discard(id(self))
            self.changed.notify_all()
            while self._unanswered and (left_s := until_s - self._now_s()) > 0.0:
                self.changed.wait(left_s)
            left = [f"device {self.device}: {job.what or 'a job'}" for job in self._unanswered]
        self._answer_instead(lambda _: True, self._now_s(), "the broker shuts down; not done")
        return left

    def stats(self) -> DeviceStats:
        with self.changed:
            running = len(self._running)
            return DeviceStats(
                self.device,
                running,
                len(self._unanswered.keys() - self._running.keys()),
                self._bytes,
                self._done,
                self._expired,
                self._refused,
                self._busy_s,
                self._is_hung(self._now_s()),
            )


def _call(job: _Job, outcome: JobOutcome) -> None:
    try:
        job.then(outcome)
    except Exception:  # noqa: BLE001 - a defect of the caller, which must not end the thread
        from controller.log import logger  # slow to import, and not needed where no callback has a defect

        logger.exception("disk: the answer to {} failed", job.what or "a job")


class DevicePools:
    """See `DeviceJobs`. Threads start with the first job. Safe on any thread. `note` is called, on any thread, when a
    device stops to answer and when it answers again."""

    def __init__(
        self,
        limits: DeviceLimits | None = None,
        now_s: Callable[[], float] = time.monotonic,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._note = note
        self._limits = limits or DeviceLimits()
        self._now_s = now_s
        self._changed = threading.Condition()
        self._pools: dict[Device, _Pool] = {}
        self._closed = False
        self._watching = False
        self._ask: Callable[[Device], None] | None = None

    def watch(self, devices: Iterable[Device], ask: Callable[[Device], None]) -> None:
        """From now on ask these devices for an operation now and then, while they are written to: `ask` returns when a
        device has answered one, which no cache may do for it."""
        for device in devices:
            self._begin(device)
        self._ask = ask
        self._begin_to_watch()

    def submit(
        self,
        device: Device,
        call: Callable[[], Any],
        then: Then,
        *,
        order: str = "",
        size_bytes: int = 0,
        limit_ms: float | None = None,
        what: str = "",
    ) -> None:
        pool = self._pools.get(device)
        if pool is None:
            pool = self._begin(device)
        limit_s = (self._limits.limit_ms if limit_ms is None else limit_ms) / 1_000.0
        if limit_ms is None and pool is not None and pool.is_silent:
            limit_s = min(limit_s, SILENT_LIMIT_S)
        job = _Job(call, then, order, size_bytes, self._now_s(), limit_s, what)
        if pool is None:
            job.answered = True
            _call(job, unavailable(device, what, "the broker shuts down"))
            return
        pool.submit(job)
        if not self._watching:
            self._begin_to_watch()

    def _begin(self, device: Device) -> _Pool | None:
        with self._changed:
            if self._closed:
                return None
            return self._pools.setdefault(device, _Pool(device, self._limits, self._now_s, self._note))

    def _begin_to_watch(self) -> None:
        with self._changed:
            if not (self._watching or self._closed):
                self._watching = True
                threading.Thread(target=self._watch, name="disk-watch", daemon=True).start()

    def _watch(self) -> None:
        idle_since_s = time.monotonic()
        wait_s = CHECK_S
        while True:
            with self._changed:
                self._changed.wait(wait_s)
                if self._closed:
                    return
            now_s = time.monotonic()
            wait_s = CHECK_IDLE_S
            if self.expire():
                wait_s, idle_since_s = CHECK_S, now_s
            elif self._ask is None and now_s - idle_since_s > IDLE_S:
                self._watching = False  # first: a job that is submitted after the next look begins another thread
                if not self.expire():
                    return
                with self._changed:
                    if self._watching:
                        return
                    self._watching = True

    def expire(self) -> bool:
        """Answer the jobs whose limit is over, as a thread does from time to time. True if others were
        there already."""
        now_s = self._now_s()
        pools = list(self._pools.values())
        left = [pool.expire(now_s) for pool in pools]
        for pool in pools:
            pool.look(now_s, self._ask)
        return any(left)

    def close(self, limit_s: float) -> list[str]:
        """Take no further job, and wait for those that are there, `limit_s` at most. Those that are left are answered
        with DeviceUnavailable. Returns their names. Safe to call twice."""
        until_s = self._now_s() + limit_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return [name for pool in list(self._pools.values()) for name in pool.close(until_s)]

    def stats(self) -> list[DeviceStats]:
        return [pool.stats() for pool in list(self._pools.values())]


AGAIN_S = 0.5


Content = TypeVar("Content")


class Later(Generic[Content]):
    """`write` replaces a file, durably; called on a thread of its own, one file at a time. An OSError of its is raised
    to the next who asks for that file."""

    def __init__(self, write: Callable[[str, Content], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._waiting: dict[str, Content] = {}
        self._writing: str | None = None
        self._errors: dict[str, OSError] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def stop(self) -> None:
        """End the thread, once it has written what waits. It starts again with the next `put`."""
        with self._changed:
            thread, self._stopping = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        self._thread, self._stopping = None, False

    def put(self, path: str, data: Content) -> None:
        """It will be written. OSError: the last time it failed."""
        with self._changed:
            self._raise_for(path)
            self._waiting[path] = data
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="disk-later", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, path: str) -> None:
        """Nothing that was put is written to this file once this returned: what waits is dropped, what is being written
        is waited for. OSError: the last time it failed."""
        with self._changed:
            self._waiting.pop(path, None)
            while self._writing == path:
                self._changed.wait()
            self._waiting.pop(path, None)  # what was being written, and was put back for want of descriptors
            self._raise_for(path)

    def settle_below(self, directory: str) -> None:
        """`settle` for each file in a directory; what failed is not raised."""
        inside = directory + "/"
        with self._changed:
            while self._writing is not None and self._writing.startswith(inside):
                self._changed.wait()
            for path in [one for one in self._waiting if one.startswith(inside)]:
                del self._waiting[path]

    def _raise_for(self, path: str) -> None:
        error = self._errors.pop(path, None)
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._stopping:
                        return
                    self._changed.wait()
                path = self._writing = next(iter(self._waiting))
                data = self._waiting.pop(path)
            error: OSError | None = None
            try:
                self._write(path, data)
            except OSError as raised:
                error = raised
            with self._changed:
                self._writing = None
                self._changed.notify_all()
                if error is not None and is_shortage(error):
                    self._waiting.setdefault(path, data)
                    self._changed.wait(AGAIN_S)
                elif error is not None:
                    self._errors[path] = error
