"""Python's search for garbage, where nearly all that is made stays or goes by itself: looked for seldom, or not at all.

A simulated world keeps what it makes, and the search would go through it again and again: a fourth of a run's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MADE = 50_000
"""The threshold of the youngest generation: allocations minus deallocations that start a collection."""
OLDER, OLDEST = 20, 50


@contextmanager
def seldom_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(MADE, OLDER, OLDEST)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def collector_off() -> Iterator[None]:
    """What was garbage before is searched for first."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
