"""Request handling in slices, so that one request does not keep the broker's thread from all the others.

A handler that may have much to do is a generator. It yields None where others may take their turn, a `Job` for work
that must not run on the broker's thread at all, and a `Gate` where only so many may go on at once. It is resumed with
the job's result, or with its exception. The host decides what runs in between: the real one handles other connections
and has threads for jobs, the simulated one and tests run everything at once (`finish`). State that a generator read
before a yield may have changed after it. No I/O, no clock, no thread.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from controller.clock import Clock
from controller.pending import Pending

SLICE = 100
"""Entries of a request (partitions, topics, resources) that are handled between two yields: about a millisecond."""
SLICE_BYTES = 1024 * 1024
"""Bytes of records that are appended between two yields."""


class Lane(enum.Enum):
    """Which jobs wait for one another."""

    CODEC = "codec"
    """Large requests and answers, read and written one at a time."""
    RECORDS = "records"
    """Records out of their compression."""
    DISK = "disk"
    """Directories and files that are made and synced."""


@dataclass(frozen=True, slots=True)
class Job:
    """A call to run on another thread; it may only read what does not change meanwhile."""

    call: Callable[[], Any]
    lane: Lane = Lane.CODEC


class Gate:
    """Lets `places` steps at a time past a yield of it. Steps that have passed call `leave` once."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, go_on: Callable[[], None]) -> bool:
        """True: the steps may go on. False: `go_on` is called when they may."""
        if self._free:
            self._free -= 1
            return True
        self._waiting.append(go_on)
        return False

    def leave(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


Yielded: TypeAlias = Job | Gate | None
Steps: TypeAlias = Generator[Yielded, Any, Any]
"""What `finish` returns is what they return."""
Drive: TypeAlias = Callable[[Steps], None]
"""Runs steps to their end, now or later."""


def finish(steps: Steps | None) -> Any:
    """Runs all steps at once, jobs included."""
    if steps is None:
        return None
    try:
        yielded = next(steps)
        while True:
            if isinstance(yielded, Job):
                yielded = resumed(steps, yielded)
                continue
            if yielded is not None and not yielded.enter(lambda: None):
                raise RuntimeError("steps that run at once wait for others")
            yielded = steps.send(None)
    except StopIteration as end:
        return end.value


def resumed(steps: Steps, job: Job) -> Yielded:
    """Runs the job here and resumes the steps with what came of it. StopIteration."""
    try:
        result = job.call()
    except Exception as error:  # noqa: BLE001 - handed to the steps that asked for the job
        return steps.throw(error)
    return steps.send(result)


class InTurn:
    """Runs steps one after the other, in the order in which they were added."""

    def __init__(self, drive: Drive = finish) -> None:
        self._drive = drive
        self._waiting: list[Steps] = []
        self._running = False

    def add(self, steps: Steps) -> None:
        self._waiting.append(steps)
        if not self._running:
            self._running = True
            self._drive(self._run())

    def _run(self) -> Steps:
        try:
            while self._waiting:
                yield from self._waiting.pop(0)
        finally:
            self._running = False


def on_broker_thread(pending: Pending[Any], clock: Clock, action: Callable[[], None]) -> None:
    """Call `action` on the broker's thread once `pending` is done, whichever thread completes it."""

    def done() -> None:
        clock.call_later(0.0, action)

    pending.on_done(done)
