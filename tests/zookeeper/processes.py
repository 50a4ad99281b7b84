"""What tests of processes need: whether one is gone, and waiting for a condition with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_SECONDS = 60.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """No such process, or only its entry in the process table is left (nobody may be there to reap it)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return status.parent.parent.exists()  # it went between the two questions, if /proc is there to be asked
