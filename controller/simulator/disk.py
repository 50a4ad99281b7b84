"""A simulated machine's disk: one in memory that outlives its broker's processes, and its faults.

A process that is killed leaves what it had written to the machine, which writes it down in its time. What the machine
had not written down goes with its power. A disk that is broken refuses every change, and answers reads still: what was
written stays there; so does a directory of it that is broken alone. A slow one makes whoever changes something wait,
and a broker has one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.storage.disk_memory import MemoryDisk


def _ignore_wait(_for_ms: float) -> None:
    pass


class SimulatedDisk(MemoryDisk):
    """`a_change_ms`: how long each change takes; `waits` is told of that time, after which the caller goes on."""

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
