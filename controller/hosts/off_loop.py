"""Work that would hold up the network's loop, done on one thread beside it.

A job is a generator. Before each piece of its work it yields an estimate of the microseconds that the piece takes;
between pieces the thread lets go of the GIL, so that the loop waits for one piece at most. Some jobs take turns, so
that a long one does not keep the others waiting; the rest wait, since each may hold much memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial

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
