"""Turns a coroutine over Pendings into a Pending, driven by the answers themselves.

For what must be *already sent* when it is handed out, and yet takes several requests (a read that is made again, a
read in many batches). Knows no thread: the coroutine runs on the caller's until its first unanswered request, then on
whichever thread answers, so it must not block.
"""

from __future__ import annotations

from typing import TypeVar

from controller.pending import Pending, Task

T = TypeVar("T")


def drive(task: Task[T]) -> Pending[T]:
    """Runs `task` up to its first unanswered request at once, and on from there as answers come."""
    outcome: Pending[T] = Pending()

    def resume() -> None:
        try:
            waited_for = task.send(None)
        except StopIteration as ended:
            outcome.resolve(ended.value)
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits the outcome
            outcome.fail(error)
        else:
            waited_for.on_done(resume)

    resume()
    return outcome
