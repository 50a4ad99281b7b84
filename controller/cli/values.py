"""The values that options take, as types for argparse: a wrong one is refused before anything is done.

argparse puts the option's name before what these say, and ends with exit status 2. No option uses `int` or `float`
itself: these accept negative numbers, numbers without bounds, infinity and NaN.

Output paths are checked so that no long run ends without a place to write its results. Nothing is created: where a new
file would be made, one without a name is made and dropped, since some file systems (/proc) refuse what their permission
bits allow.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

LARGEST_SEED = 2**63 - 1
MOST_SEEDS = 1_000_000_000
MOST = 1_000_000_000
"""The default maximum of an integer option. No meaningful count is larger."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def integer(least: int = 0, most: int = MOST) -> Callable[[str], int]:
    """Return the type of an integer from `least` to `most`."""

    def parse(text: str) -> int:
        if _INTEGER.fullmatch(text.strip()) is None or not least <= int(text) <= most:
            raise ArgumentTypeError(f"expected an integer from {least} to {most}, got {text!r}")
        return int(text)

    return parse


def number(above: float = 0.0, most: float = float(MOST)) -> Callable[[str], float]:
    """Return the type of a number above `above` and up to `most`."""
    return _real(lambda value: above < value <= most, f"above {above:g} and up to {most:g}")


def number_from(least: float = 0.0, most: float = float(MOST)) -> Callable[[str], float]:
    """Return the type of a number from `least` to `most`."""
    return _real(lambda value: least <= value <= most, f"from {least:g} to {most:g}")


def _real(allowed: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not allowed(value):
            raise ArgumentTypeError(f"expected a number {expected}, got {text!r}")
        return value

    return parse


seed = integer(0, LARGEST_SEED)
port = integer(1, 65_535)
jobs = integer(1, 1_024)
session_timeout_ms = integer(100, 120_000)
"""The session timeouts that an embedded ZooKeeper grants. It replaces a shorter or longer one with the nearest."""


def seeds(text: str) -> range:
    """Return the seeds from A to B, B included, for `A..B`."""
    first, dots, last = text.partition("..")
    if not dots or not all(_INTEGER.fullmatch(word) for word in (first, last)):
        raise ArgumentTypeError(f"expected A..B with two seeds, got {text!r}")
    found = range(int(first), int(last) + 1)
    if not 0 <= found.start <= found.stop - 1 <= LARGEST_SEED:
        raise ArgumentTypeError(f"expected A..B with 0 <= A <= B <= {LARGEST_SEED}, got {text!r}")
    if found.stop - found.start > MOST_SEEDS:
        raise ArgumentTypeError(f"expected at most {MOST_SEEDS} seeds, got {text!r}")
    return found


def output_folder(text: str) -> Path:
    """Return the path of a directory that exists or can be created. Raises ArgumentTypeError otherwise."""
    path = Path(text)
    _require_writable_folder(path, text)
    return path


def output_file(text: str) -> Path:
    """Return the path of a file that can be created or overwritten. Raises ArgumentTypeError otherwise."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{text} is a directory: expected the name of a file")
    if not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: no such directory: {path.parent}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ArgumentTypeError(f"{text} is not writable")
    if not path.exists():
        _require_writable_folder(path.parent, text)
    return path


def _require_writable_folder(folder: Path, text: str) -> None:
    """Require that `folder`, or its nearest existing parent, is a writable directory."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}") from error
    if not there.is_dir():
        raise ArgumentTypeError(f"{text}: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text}: {there} is not writable")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {there} is not writable: {error.strerror}") from error
