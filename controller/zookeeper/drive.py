"""Turns a coroutine over Pendings into a Pending, driven by the answers themselves.

For what must be *already sent* when it is handed out, and yet takes several requests (a read that is made again, a
read in many batches). Knows no thread: the coroutine runs on the caller's until its first unanswered request, then on
whichever thread answers, so it must not block.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from controller.pending import Pending, Task

T = TypeVar("T")


def drive(task: Task[T]) -> Pending[T]:
    """Runs `task` up to its first unanswered request at once, and on from there as answers come."""
    driven = _Driven(task)
    driven.resume()
    return driven.outcome


class _Driven(Generic[T]):
    """A task that is under way. A function that names itself would be garbage that only a search finds."""

    __slots__ = ("_task", "outcome")

    def __init__(self, task: Task[T]) -> None:
        self._task = task
        self.outcome: Pending[T] = Pending()

    def resume(self) -> None:
        try:
            waited_for = self._task.send(None)
        except StopIteration as ended:
            self.outcome.resolve(ended.value)
        except Exception as error:  # noqa: BLE001 - passed on to the code that awaits the outcome
            self.outcome.fail(error)
        else:
            waited_for.on_done(self.resume)
