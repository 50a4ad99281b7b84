"""A request that has already been sent, and the answer it will have.

A `Future` is what every port hands back. It is *already sent*: making one is the request, awaiting it only waits
for the answer, so a coroutine can hold several and keep them all in flight. `await` yields the Future itself to
the driver of the coroutine, and only while it is unanswered; the driver (an event thread that blocks, a scheduler
of virtual time) resumes the coroutine once it is done. This module knows no thread and no event loop.

`spawn` turns a coroutine over Futures into a Future, for what must be already sent when it is handed out and yet
takes several requests (a read that is made again, a read in many batches). The coroutine runs on the caller's thread
until its first unanswered request, then on whichever thread answers, so it must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

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
            raise self._error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self._answered:
            yield self
        return self.result()


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
