"""What a Spark session's processes use: its JVM, and Python's workers below it. From /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time since the start, those of workers that ended included, and resident MB now: the JVM's,
    and the largest worker's."""

    jvm_cpu_s: float
    python_cpu_s: float
    jvm_mb: float
    python_mb: float


def descendants(root: int) -> list[int]:
    """`root` first, then all processes below it."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int(_stat(int(folder.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [root]
    for pid in found:  # grows as it goes
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def used(jvm: int) -> Used:
    own = _stat(jvm)
    cpu_s = 0.0
    largest = 0.0
    for pid in descendants(jvm)[1:]:
        try:
            fields = _stat(pid)
            cpu_s += sum(map(int, fields[11:15])) / _TICKS
            largest = max(largest, _resident_mb(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Used(sum(map(int, own[11:13])) / _TICKS, cpu_s, _resident_mb(jvm), largest)


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Sampler:
    """The most memory that was seen while it was entered."""

    def __init__(self, jvm: int) -> None:
        self.jvm_mb = self.python_mb = 0.0
        self._jvm = jvm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        for now in self._samples():
            self.jvm_mb, self.python_mb = max(self.jvm_mb, now.jvm_mb), max(self.python_mb, now.python_mb)

    def _samples(self) -> Iterator[Used]:
        while not self._over.wait(_EVERY_S):
            yield used(self._jvm)
