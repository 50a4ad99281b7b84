"""Waiting for a Pending on a thread: for programs and tests that have threads and no host.

The one place of this room, besides the kazoo connection, that knows threads. Never to be called on the connection's
own thread (in a listener or a callback): what it waits for could then never come.
"""

from __future__ import annotations

import threading
from typing import TypeVar

from controller.pending import Pending, Task
from controller.zookeeper.drive import drive

T = TypeVar("T")


def wait(pending: Pending[T], timeout_s: float) -> T:
    """The answer, or the error that it is, within `timeout_s` seconds; TimeoutError after that. A request that was
    not answered in time may be carried out all the same."""
    answered = threading.Event()
    pending.on_done(answered.set)
    if not answered.wait(timeout_s):
        raise TimeoutError(f"not answered within {timeout_s:g} s")
    return pending.result()


def run(task: Task[T], timeout_s: float) -> T:
    """Runs a coroutine over Pendings (as `ZooKeeperClient.commit_rows`) to its end; otherwise as `wait`."""
    return wait(drive(task), timeout_s)
