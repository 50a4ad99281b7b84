"""Settings of Python's cyclic garbage collector for runs that keep nearly everything they allocate.

A simulated world keeps what it makes: collections, which look through all of it again and again, took a fourth of a
run's time.
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
