"""Processes as tests see them: who still runs, by what stands in their command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 60.0


def running_with(text: str) -> list[str]:
    """The command lines of running processes that hold `text` (zombies have none)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if text in command:
                found.append(f"{entry.name}: {command}")
    return found


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Waits until `condition` holds. AssertionError naming `what` if it does not in time."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.02)
