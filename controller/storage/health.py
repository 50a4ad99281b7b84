"""Whether a log directory can be trusted, shared by the directory and all of its logs.

The first OSError or CorruptLog takes all of them offline, for good: after a failed write or sync nobody knows what the
files hold, and a second sync may well succeed without having written anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from controller.storage.errors import CorruptLog, LogOffline


class Health:
    __slots__ = ("_on_failure", "cause", "directory")

    def __init__(self, directory: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        self.directory = directory
        self.cause: Exception | None = None
        self._on_failure = on_failure

    def check(self) -> None:
        if self.cause is not None:
            raise LogOffline(self.directory, self.cause)

    def fail(self, cause: Exception) -> LogOffline:
        """Takes the directory offline; `on_failure` hears of the first cause alone."""
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
    """For what touches the disk: raises LogOffline at once when offline, and instead of an OSError or CorruptLog."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        health = self.health
        if health.cause is not None:
            raise LogOffline(health.directory, health.cause)
        try:
            return method(self, *args, **kwargs)
        except (OSError, CorruptLog) as error:
            raise health.fail(error) from error

    return run
