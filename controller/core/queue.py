"""The controller's event queue: many threads put, one place takes, and no caller is left without an answer.

Equal pending events that coalesce are queued once (KAFKA-5502). The limit is for events with a callback: over it they
are refused at once. What a watch saw is never refused, and need not be: it coalesces, so that there are at most as
many of those as there are watches. Callbacks are answered outside the lock. Knows no thread: the host brings the lock
and what wakes the taker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from controller.core.events import Event, is_answerable
from controller.core.measures import Histogram


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
