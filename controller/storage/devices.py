"""The port by which slow operations run on the devices that log directories lie on.

Each file system of a broker's log directories is a `disk.Device` with a queue, threads and limits of its own, so that a
slow or hung one delays its own partitions alone. `DeviceJobs` is the port: `device_pools.DevicePools` runs jobs on
threads. A request's steps do not call it: they yield a `Job` that names the device
(`controller.broker.request_context`), and are resumed with its result on the broker's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

from controller.storage.disk import Device, NotCached
from controller.storage.errors import DeviceUnavailable


@dataclass(slots=True, eq=False)
class FileChange:
    """A change of a log's files: `call`, on any thread, once. Until it has ended, the log's thread changes nothing that
    `call` uses, except by appends if it `appends`; then it calls `take`, and that `then`."""

    _call: Callable[[], object]
    _then: Callable[[], None]
    what: str
    appends: bool = field(default=False, kw_only=True)
    ended: bool = False
    _not_begun: list[bool] = field(default_factory=lambda: [True])
    _outcome: JobOutcome | None = None

    def __call__(self, at_least: int = 0) -> None:
        if self._claimed():
            self._outcome = outcome_of(self._call)
            self.ended = True

    @property
    def is_done(self) -> bool:
        """It was carried out, or failed."""
        return self._outcome is not None

    def give_up(self) -> bool:
        """It is not carried out any more; False: it has begun."""
        if self._claimed():
            self.ended = True
            return True
        return False

    def take(self) -> None:
        """Raises what `call` raised."""
        if self._outcome is not None:
            if self._outcome.error is not None:
                raise self._outcome.error
            self._then()

    def _claimed(self) -> bool:
        try:
            return self._not_begun.pop()  # of several threads one alone gets it
        except IndexError:
            return False


class NotDone(NotCached):
    """A change of a log must be carried out first, and not by the caller (`Disk.no_wait`): by a job of this `order`. If
    that has no answer, `change.give_up` is called."""

    def __init__(self, device: Device, change: FileChange, order: str) -> None:
        super().__init__(device, change, 0, change.what)
        self.change = change
        self.order = order


class DeviceLimits(msgspec.Struct, frozen=True):
    """The limits of each device.

    `threads`: jobs under way. `queued_jobs`, `queued_bytes`: of the jobs that are not answered; a further one is
    refused. `limit_ms`: the time until a job is answered with DeviceUnavailable, unless it brings its own limit.
    """

    threads: int = 4
    queued_jobs: int = 10_000
    queued_bytes: int = 256 * 1024 * 1024
    limit_ms: float = 15_000.0


CHANGE_LIMIT_MS = 300_000.0
"""For jobs that sync: on a slow device a sync of much data takes minutes, and its caller does not hold up others."""


class JobOutcome(msgspec.Struct, frozen=True):
    """What became of a job: its result, or the error that it raised."""

    result: Any = None
    error: Exception | None = None


Then: TypeAlias = Callable[[JobOutcome], None]


class DeviceJobs(Protocol):
    def submit(
        self,
        device: Device,
        call: Callable[[], Any],
        then: Then,
        *,
        order: str = "",
        size_bytes: int = 0,
        limit_ms: float | None = None,
        what: str = "",
    ) -> None:
        """Run `call` on the device, then call `then` exactly once, on any thread, perhaps before this returns.

        Args:
            order: jobs of a device with the same order, other than "", run one after the other as submitted: a
                partition's directory, where a job changes its files.
            size_bytes: the memory that the job holds, for the device's limit.
            limit_ms: the time until the job is answered, instead of the device's own. A job that has begun is not
                interrupted: what it still does is ignored, and the next of its order waits for it.
            what: names the job in messages.

        The outcome's error is what `call` raised, or DeviceUnavailable: too much waits, the device does not answer, or
        the broker shuts down."""


class DeviceStats(msgspec.Struct, frozen=True):
    """The state of a device now, and its counts since the start. `is_hung`: each thread has a job past its limit."""

    device: Device
    running: int
    queued: int
    queued_bytes: int
    done: int
    expired: int
    refused: int
    busy_s: float
    is_hung: bool


def outcome_of(call: Callable[[], Any]) -> JobOutcome:
    """Run the call. Whatever it raises is in the outcome; a SystemExit or the like as a RuntimeError."""
    try:
        return JobOutcome(call())
    except Exception as error:  # noqa: BLE001 - passed to the submitter of the job
        return JobOutcome(error=error)
    except BaseException as error:  # noqa: BLE001 - as above: the thread must not end, nor the loop
        return JobOutcome(error=RuntimeError(f"a job ended with {error!r}"))


def unavailable(device: Device, what: str, why: str) -> JobOutcome:
    return JobOutcome(error=DeviceUnavailable(device.name, f"{what or 'a job'}: {why}"))
