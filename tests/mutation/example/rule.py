"""Mutants of each outcome: see `tests/mutation/test_mutation.py`."""

from __future__ import annotations

LIMIT = 3


def within(number: int) -> bool:
    """The test does not try the limit itself."""
    return number < LIMIT


def countdown(number: int) -> int:
    """Without its last line it never ends."""
    steps = 0
    while number > 0:
        steps += 1
        number -= 1
    return steps


def unused(number: int) -> int:
    """No test calls it."""
    return number + 1
