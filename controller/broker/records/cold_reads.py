"""What would wait for a disk: a job of the device reads bytes in or changes files, and the broker's thread tries again.

The broker's thread must not wait for a disk (KAFKA-7504: one consumer of old records delays all clients). It asks for
what is in memory. If that is not enough, the steps yield a job for what is missing. The read itself is always done on
the broker's thread, since a log belongs to it. Likewise a change of a log is begun, and its result taken, on the
broker's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from controller.broker.request_context import Drive, Job, Steps, Yielded, finish
from controller.storage import DeviceUnavailable, FileRange, PartitionLog
from controller.storage.devices import NotDone
from controller.storage.disk import Device, NotCached

T = TypeVar("T")

ATTEMPTS = 10
"""A read needs two indexes, some headers and the records: more attempts than that are lost to a shortage of memory."""
COLD_BYTES = 1024 * 1024
"""Of one partition's records that are not in memory, as far as one answer has them."""
AHEAD_FROM_BYTES = 64 * 1024
"""A smaller answer costs less than the question whether what follows it is in memory."""
KEEP_MS = 60_000.0
AHEAD_MAX = 64
"""Reads ahead that a device has at once; with more readers some do without."""


def read_in(cold: NotCached, at_least: int = 0) -> Generator[Yielded, Any, bool]:
    """Read in what is missing, and `at_least` so many bytes from there on. False: that failed, and the read is to be
    done on the broker's thread, where the error, if it comes again, is the log's or the HDD's to judge. Raises
    DeviceUnavailable."""
    try:
        size_bytes = max(cold.size_bytes, at_least)
        order = cold.order if isinstance(cold, NotDone) else ""
        yield Job(partial(cold.read_in, at_least), cold.device, order, size_bytes, what=str(cold))
    except OSError:
        return False
    except DeviceUnavailable:
        if isinstance(cold, NotDone):
            cold.change.give_up()
        raise
    return True


class ReadAhead:
    """Reads in, in the background, what lies behind a large answer, as much again: who reads a log from one end to the
    other asks for it next, and does not wait for the device then. What is there already is kept there: else it may be
    evicted just before it is asked for, and so may all that follows. `is_on`: something was missing within `KEEP_MS`.

    What follows an answer is read once at a time, and for `AHEAD_MAX` answers of a device at most: whatever clients ask
    for again and again, or at once, must not take the places of fetches in the device's queue."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self.drive: Drive = finish
        self._now_ms = now_ms
        self._missed_ms = -KEEP_MS
        self._under_way: dict[Device, set[tuple[str, int, int]]] = {}

    @property
    def is_on(self) -> bool:
        return self._now_ms() - self._missed_ms < KEEP_MS

    def missed(self) -> None:
        """What a fetch asked for, or what follows it, is not in memory."""
        self._missed_ms = self._now_ms()

    def answered(self, topic: str, partition: int, offset: int, found: FileRange) -> None:
        """A fetch from this offset on was answered with this range, which is not all that there is, while it `is_on`:
        where all is in memory, to ask after each answer would cost for nothing."""
        length = min(found.left_bytes, found.length)
        try:
            found.file.require_cached(found.position + found.length, length)
            wanted = found.file.keeping(found.position + found.length, length)
        except NotCached as missing:
            wanted = missing
            self.missed()
        except OSError:  # its file was closed meanwhile
            return
        answer, under_way = (topic, partition, offset), self._under_way.setdefault(wanted.device, set())
        if answer not in under_way and len(under_way) < AHEAD_MAX:
            under_way.add(answer)
            self.drive(_read_ahead(wanted, partial(under_way.discard, answer)))


def _read_ahead(wanted: NotCached, ended: Callable[[], None]) -> Steps:
    try:
        with suppress(OSError, DeviceUnavailable):  # the fetch that needs it finds out
            # Of no size: it counts by `AHEAD_MAX`, and holds no memory of its own.
            yield Job(wanted.read_in, wanted.device, what=f"ahead: {wanted}", is_last=True)
    finally:
        ended()


def until_done(attempt: Callable[[bool], T], attempts: int = ATTEMPTS) -> Generator[Yielded, Any, T]:
    """The result of `attempt(False)`, with what it would wait for read in or changed before; after many attempts that
    of `attempt(True)`, which waits. Raises DeviceUnavailable."""
    for _ in range(attempts):
        try:
            return attempt(False)
        except NotCached as cold:
            missing = cold
        if not (yield from read_in(missing)):
            break
    return attempt(True)


def until_cached(
    log: PartitionLog, read: Callable[[], T], otherwise: Callable[[], T] | None = None
) -> Generator[Yielded, Any, T]:
    """`until_done` for `read`, a call of the log, and `otherwise` (`read`, if not given), which waits."""

    def attempt(may_wait: bool) -> T:
        return (otherwise or read)() if may_wait else log.attempt(False, read)

    return until_done(attempt, ATTEMPTS + 3 * len(log.segment_offsets))
