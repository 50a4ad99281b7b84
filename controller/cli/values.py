"""The values that options take, as types for argparse: a wrong one is refused before anything is done.

argparse puts the option's name before what these say, and ends with exit status 2. No option uses `int` or `float`
itself: these accept negative numbers, numbers without bounds, infinity and NaN.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable

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
