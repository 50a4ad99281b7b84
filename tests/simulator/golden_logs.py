"""A log that is expected whole, in a file, and words that it must show in their order whatever else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def hold(log: str, file: Path, words: Sequence[str], *, rewrite: bool) -> None:
    if rewrite:
        file.write_text(log)
    assert log == file.read_text()
    at = 0
    for shown in words:
        found = log.find(shown, at)
        assert found >= 0, f"{shown!r} is not in the log, or not in its place"
        at = found + len(shown)
