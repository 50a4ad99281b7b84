"""A simulated machine's disk: an in-memory disk that outlives its broker's processes, and its faults.

A killed process leaves what it had written to the machine, which syncs it later. What the machine had not synced is
lost when it loses power. A broken disk refuses every change and still serves reads, because what was written stays
there; so does a single broken directory. A slow disk makes its caller wait for each change, and a broker has one
thread.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.storage.disk_memory import MemoryDisk


def _ignore_wait(_for_ms: float) -> None:
    pass


class SimulatedDisk(MemoryDisk):
    """`a_change_ms`: the duration of each change; `waits` is called with that time, after which the caller goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.a_change_ms = 0.0
        self.waits: Callable[[float], None] = _ignore_wait
        self._broken_directories: tuple[str, ...] = ()
        self._broken_for_good: tuple[str, ...] = ()

    def touch(self, path: str) -> None:
        broken = self._broken_directories
        if broken and any((path + "/").startswith(directory + "/") for directory in broken):
            raise OSError("the directory has failed")
        super().touch(path)
        if self.a_change_ms:
            self.waits(self.a_change_ms)

    @property
    def broken(self) -> bool:
        """As a whole, or a directory of it."""
        return self.fail_after is not None or bool(self._broken_directories)

    def fail(self) -> None:
        self.fail_after = self.changes

    @property
    def broken_directories(self) -> tuple[str, ...]:
        return self._broken_directories

    def fail_directory(self, directory: str, *, for_good: bool = False) -> None:
        self._broken_directories += (directory,)
        if for_good:
            self._broken_for_good += (directory,)

    def repair(self) -> None:
        self.fail_after = None
        self.a_change_ms = 0.0
        self._broken_directories = self._broken_for_good

    def process_ended(self) -> None:
        """Whoever had it open has not any more."""
        self.locks.clear()
        self.waits = _ignore_wait
