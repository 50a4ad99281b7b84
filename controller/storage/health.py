"""Whether a log directory can be trusted, shared by the directory and all of its logs.

The first CorruptLog, or OSError of the disk itself, takes all of them offline, for good: after a failed write or sync
the content of the files is unknown, and a second sync may succeed without having written anything. A shortage of the
process's or the machine's resources does not affect the files: it is OutOfResources, and temporary.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from controller.storage.errors import CorruptLog, LogOffline, OutOfResources

SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
"""Error numbers that are not the disk's. Any other, an unknown one included, is taken for a failed disk: EIO, ENOSPC,
EDQUOT, EROFS, ..., and a file that is missing or may not be opened."""


def is_shortage(error: OSError) -> bool:
    """Whether the process or the machine lacks descriptors or memory, rather than the disk having failed."""
    return error.errno in SHORTAGES


class Health:
    """`warnings`: what the start repaired or left as it was, for the log."""

    __slots__ = ("_on_failure", "cause", "directory", "warnings")

    def __init__(self, directory: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        self.directory = directory
        self.cause: Exception | None = None
        self.warnings: list[str] = []
        self._on_failure = on_failure

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)

    def check(self) -> None:
        if self.cause is not None:
            raise LogOffline(self.directory, self.cause)

    def fail(self, cause: Exception) -> LogOffline:
        """Take the directory offline; `on_failure` is called with the first cause alone."""
        if self.cause is None:
            self.cause = cause
            if self._on_failure is not None:
                self._on_failure(cause)
        return LogOffline(self.directory, self.cause)


class HasHealth(Protocol):
    @property
    def health(self) -> Health: ...


S = TypeVar("S", bound=HasHealth)
P = ParamSpec("P")
R = TypeVar("R")


def on_disk(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """For what touches the disk: raises LogOffline at once when offline, and instead of an OSError or CorruptLog;
    OutOfResources instead of an OSError for want of descriptors or memory. After that the method may be called again:
    each leaves what it had not done yet as it was."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        health = self.health
        if health.cause is not None:
            raise LogOffline(health.directory, health.cause)
        try:
            return method(self, *args, **kwargs)
        except (OSError, CorruptLog) as error:
            if isinstance(error, OSError) and is_shortage(error):
                raise OutOfResources(health.directory, error) from error
            raise health.fail(error) from error

    return run


def or_offline(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Below `on_disk`, for what would leave the log in pieces if it stopped midway: a shortage takes the directory
    offline too."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except (OSError, OutOfResources) as error:
            raise self.health.fail(error) from error

    return run
