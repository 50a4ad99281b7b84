"""Exponential back-off, the one rule for everything that is tried again."""

from __future__ import annotations

MOST_DOUBLINGS = 30


def backoff_ms(failures: int, first_ms: float, longest_ms: float) -> float:
    """Return how long to wait after so many failures in a row: `first_ms` after the first one (and where there was
    none), twice as long after each further one, at most `longest_ms`."""
    return min(first_ms * 2.0 ** min(max(failures - 1, 0), MOST_DOUBLINGS), longest_ms)
