"""A request whose answer takes a coroutine: driven to its end, its answer brought back to the broker's thread, once."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from controller.clock import Clock
from controller.pending import Pending, Task
from controller.protocol.errors import ErrorCode
from controller.trace import Noted, Trace
from controller.zookeeper.drive import drive
from controller.zookeeper.errors import ZooKeeperError

R = TypeVar("R")


def answer_later(
    task: Task[R], clock: Clock, trace: Trace, answer: Callable[[R], None], failed: Callable[[ErrorCode, str], R]
) -> None:
    """Run `task`, then answer on the broker's thread with its result, or with what `failed` makes of an error.

    The error is REQUEST_TIMED_OUT, which a client retries, if ZooKeeper was unavailable. It is UNKNOWN_SERVER_ERROR
    for a bug, which is logged with its traceback."""
    outcome: Pending[R] = drive(task)

    def on_broker_thread() -> None:
        try:
            value = outcome.result()
        except ZooKeeperError as error:
            trace.emit(Noted("warning", f"a request could not be carried out: {error}"))
            value = failed(ErrorCode.REQUEST_TIMED_OUT, str(error))
        except Exception:  # noqa: BLE001 - logged and answered with an error; other requests are unaffected
            trace.emit(Noted("error", f"a request failed in its handler\n{traceback.format_exc()}"))
            value = failed(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        answer(value)

    outcome.on_done(lambda: _hop(clock, on_broker_thread))


def _hop(clock: Clock, action: Callable[[], None]) -> None:
    clock.call_later(0.0, action)
