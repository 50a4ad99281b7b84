"""The controller's event queue and event loop: one event at a time, its handler's coroutine resumed as answers come.

Before each resume, while the handler waits, and when there is nothing to do, the loop asks whether the term is void
(the lease ran out, or the session ended). Then `Resign` is thrown into the handler at its current await, or, when
idle, the controller resigns at once and stands for election again. Watches, responses and timers only queue events and
call `wake`; no thread waits for this loop while it holds a lock (KAFKA-6517, KAFKA-6879).

A host supplies the executor, which runs one action after another: a thread of its own on the real host, virtual time in
the simulator, where each action also waits for a time that is drawn from a seed, so that whatever else happens in the
cluster can happen at every await.

Many threads put events, one place takes them, and each caller gets an answer. Equal pending events that coalesce are
queued once (KAFKA-5502). The limit is for events with a callback: over it they are refused at once. What a watch saw is
never refused, and need not be: it coalesces, so that there are at most as many of those as there are watches. Callbacks
are answered outside the lock. The host brings the lock and what wakes the taker.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from controller import sync_points
from controller.clock import Coro, Future, Timer
from controller.core.channels import Resign, require_event_handler
from controller.core.events import Event, Reelect, is_answerable
from controller.core.metrics import Histogram


class EventQueue:
    """First in, first out. `limit`: how many events may wait before those with a callback are refused.

    `lock` guards every change (a plain lock is enough; none on a host with one thread); `wake` is called after each
    event that was queued, without the lock.
    """

    def __init__(
        self,
        limit: int,
        lock: AbstractContextManager[Any] | None = None,
        wake: Callable[[], None] = lambda: None,
        now_ms: Callable[[], float] | None = None,
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit {limit}: expected 1 or more")
        self._limit = limit
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._wake = wake
        self._now_ms = now_ms
        self._since_ms: deque[float] = deque()
        self.waited_ms = Histogram()
        """How long events that were taken had waited; kept if `now_ms` is given."""
        self._waiting: deque[Event] = deque()
        self._pending: set[Event] = set()  # asked whether it holds an event, never walked
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event) -> None:
        """Queue an event, from any thread, unless an equal one that coalesces is pending.

        An event with a callback is refused when `limit` events wait or the queue is closed. An event without a callback
        is dropped only when the queue is closed, since nothing will process it.
        """
        refused = False
        with self._lock:
            if event.coalesces:
                if self._closed or event in self._pending:
                    return
                self._pending.add(event)
            elif is_answerable(event):
                refused = self._closed or len(self._waiting) >= self._limit
            elif self._closed:
                return
            if not refused:
                self._waiting.append(event)
                self._since_ms.append(0.0 if self._now_ms is None else self._now_ms())
        if refused:
            assert is_answerable(event)
            event.refuse()
            return
        self._wake()

    def take(self) -> Event | None:
        """The oldest event, None if there is none. From here on an equal one is queued again: what it speaks of may
        change while this one is handled."""
        with self._lock:
            if not self._waiting:
                return None
            event, since_ms = self._waiting.popleft(), self._since_ms.popleft()
            if self._now_ms is not None:
                now_ms = self._now_ms()
                self.waited_ms.update(now_ms - since_ms, now_ms)
            if event.coalesces:
                self._pending.discard(event)
            return event

    def close_callbacks(self) -> None:
        """The term is over: answers every queued callback with its refusal, and takes those events out (S19)."""
        with self._lock:
            refused = [event for event in self._waiting if is_answerable(event)]
            kept = [
                (event, since_ms)
                for event, since_ms in zip(self._waiting, self._since_ms, strict=True)
                if not is_answerable(event)
            ]
            self._waiting = deque(event for event, _ in kept)
            self._since_ms = deque(since_ms for _, since_ms in kept)
        for event in refused:
            event.refuse()

    def close(self) -> None:
        """Close the queue: answer every queued callback, and from now on every new one at once."""
        with self._lock:
            self._closed = True
        self.close_callbacks()


_JUST_AFTER_MS = 1e-3
"""Added to the wait for the end of a lease, so that a rounding does not end it too early."""


class Executor(Protocol):
    """Runs actions one at a time, in the order in which they were submitted."""

    def now_ms(self) -> float:
        """Return the monotonic time."""

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run `action` when its turn comes. May be called from any thread, and never blocks."""

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        """Run `action` after the delay. Called from actions only."""


class TermControl(Protocol):
    """The event loop's view of the controller's term."""

    def void_reason(self) -> str | None:
        """Return why the term is over, None while it lasts or when there is none."""

    def lease_until_ms(self) -> float:
        """Return when the lease runs out, as far as is known now; infinity when there is no term."""

    def resign(self, reason: str) -> None:
        """End the term between two events."""


class Events(Protocol):
    """The event loop's view of the event queue."""

    def take(self) -> Event | None:
        """Return the next event; None when there is none."""

    def put(self, event: Event) -> None:
        """Queue an event."""


class EventHandler(Protocol):
    """Protocol of a handler driven by the event loop: a broker node, or another server with its own controller."""

    @property
    def events(self) -> Events: ...

    @property
    def controller(self) -> TermControl: ...

    def process(self, event: Any) -> Coro[None]:
        """Return the coroutine that handles one event."""


OnError = Callable[[Event, BaseException], None]
"""Called with an event whose handler raised, which no handler may do. It may raise, which ends the action."""


class EventLoop:
    """`wake` is given to the event queue; `start` once there is something to run, `stop` at the end, both on the
    executor's thread."""

    def __init__(self, executor: Executor, on_error: OnError) -> None:
        self._executor = executor
        self._on_error = on_error
        self._handler: EventHandler | None = None
        self._event: Event | None = None
        self._task: Coro[None] | None = None
        self._waiting: Future[Any] | None = None
        self._scheduled = False
        self._lease_timer: Timer | None = None
        self._lease_due_ms = math.inf

    def start(self, handler: EventHandler) -> None:
        """Handle what is queued from now on. Raises TypeError for an object that is no EventHandler."""
        require_event_handler(handler)
        self._handler = handler
        self.wake()

    def wake(self) -> None:
        """Look at the event queue soon. May be called from any thread, after an event was put there."""
        if self._handler is not None and self._task is None and not self._scheduled:
            self._schedule(self._next_event)

    def doing(self) -> str:
        """Return a description of the event that is being handled."""
        if self._task is None:
            return "none is being handled"
        return f"{self._event} is being handled" + (", waiting for an answer" if self._waiting is not None else "")

    def stop(self) -> None:
        """Begin no event and resume no handler any more. A handler that waits is closed at its await."""
        self._handler = None
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.close()

    def _schedule(self, step: Callable[[], None]) -> None:
        self._scheduled = True

        def turn() -> None:
            self._scheduled = False
            if self._handler is not None:
                step()

        self._executor.call_soon(turn)

    def _next_event(self) -> None:
        if self._task is not None:
            return  # begun already: a turn that was granted to the handler before it resigned let another be asked for
        handler = self._started()
        self._resign_if_void(handler)
        self._event = event = handler.events.take()
        if event is None:
            self._watch_lease(handler)
            return
        self._task = handler.process(event)
        self._resume(None)

    def _resume(self, void_reason: str | None) -> None:
        """Run the handler to its next await, or to its end. A reason is thrown into it as `Resign`."""
        handler, task = self._started(), self._task
        assert task is not None
        self._waiting = None
        try:
            waiting = task.send(None) if void_reason is None else task.throw(Resign(void_reason))
        except StopIteration:
            self._ended(handler)
            return
        except (Exception, Resign) as error:  # noqa: BLE001 - the host decides what it means
            assert self._event is not None
            self._on_error(self._event, error)
            self._ended(handler)
            return
        self._waiting = waiting
        waiting.on_done(lambda: self._answered(waiting))
        self._watch_lease(handler)
        if not waiting.done:
            sync_points.reach("event loop: waits")

    def _ended(self, handler: EventHandler) -> None:
        self._task = None
        if self._handler is not None:
            self._schedule(self._next_event)

    def _answered(self, waiting: Future[Any]) -> None:
        """Continue the handler, unless it had to resign and waits for something else by now. On any thread."""
        if self._handler is not None and self._waiting is waiting:
            self._schedule(lambda: self._go_on(waiting))

    def _go_on(self, waiting: Future[Any]) -> None:
        if self._waiting is waiting:
            sync_points.reach("event loop: before the check")
            reason = self._started().controller.void_reason()
            sync_points.reach("event loop: before resume")
            self._resume(reason)

    def _resign_if_void(self, handler: EventHandler) -> None:
        reason = handler.controller.void_reason()
        if reason is not None:
            handler.controller.resign(reason)
            handler.events.put(Reelect())

    def _watch_lease(self, handler: EventHandler) -> None:
        """Set the timer for the end of the lease as it stands now; an acknowledged ping extends it unnoticed."""
        until_ms = handler.controller.lease_until_ms()
        if until_ms == math.inf or (self._lease_timer is not None and self._lease_due_ms <= until_ms):
            return
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._lease_due_ms = max(until_ms, self._executor.now_ms())
        delay_ms = self._lease_due_ms - self._executor.now_ms() + _JUST_AFTER_MS
        self._lease_timer = self._executor.call_later(delay_ms, self._lease_due)

    def _lease_due(self) -> None:
        self._lease_timer, self._lease_due_ms = None, math.inf
        handler = self._handler
        if handler is None:
            return
        reason = handler.controller.void_reason()
        if reason is None:
            self._watch_lease(handler)
        elif self._waiting is not None:
            self._resume(reason)
        elif self._task is None:
            self._resign_if_void(handler)
            self._watch_lease(handler)

    def _started(self) -> EventHandler:
        assert self._handler is not None
        return self._handler
