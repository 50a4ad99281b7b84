"""Whether a process is gone."""

from __future__ import annotations

import os
from pathlib import Path


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
