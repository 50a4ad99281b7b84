"""Every scheme, in several sizes, expires what a sorted list expires, in the same ticks and order, whatever is started,
stopped and restarted meanwhile, by actions too. (What this finds is in test_schemes_faults.py.)"""

from __future__ import annotations

from functools import partial

import pytest

from controller.labs.schemes import (
    HierarchicalWheels,
    IndexedHeap,
    LazyHeap,
    MaskedHashedWheel,
    OrderedHashedWheel,
    OrderedList,
    SimpleWheel,
    TreeOfTimers,
    UnorderedHashedWheel,
    UnorderedList,
)
from tests.timer.scheme_subject import Make, hold_to_model

SCHEMES: dict[str, tuple[Make, int]] = {
    "unordered list": (UnorderedList, 600),
    "ordered list": (OrderedList, 600),
    "lazy heap": (LazyHeap, 600),
    "indexed heap": (IndexedHeap, 600),
    "unbalanced tree": (partial(TreeOfTimers, False), 600),
    "balanced tree": (TreeOfTimers, 600),
    **{f"simple wheel of {size}": (partial(SimpleWheel, size), size) for size in (1, 2, 8, 600)},
    **{f"ordered hashed wheel of {size}": (partial(OrderedHashedWheel, size), 600) for size in (1, 3, 8, 256)},
    **{f"masked hashed wheel of {size}": (partial(MaskedHashedWheel, size), 600) for size in (1, 2, 8, 256)},
    **{f"unordered hashed wheel of {size}": (partial(UnorderedHashedWheel, size), 600) for size in (1, 3, 8, 256)},
    **{f"hierarchy of {size}": (partial(HierarchicalWheels, size), 600) for size in (2, 3, 8, 20, 700)},
    **{
        f"hierarchy of {' x '.join(map(str, sizes))}": (partial(HierarchicalWheels, sizes), longest)
        for sizes, longest in (((8,), 8), ((2, 300), 600), ((6, 10, 4), 240), ((60, 2, 3, 5), 600))
    },
}
"""How each is made, and the longest interval that it is given."""


@pytest.mark.parametrize(("make", "longest"), SCHEMES.values(), ids=list(SCHEMES))
def test_a_scheme_expires_what_a_sorted_list_expires(make: Make, longest: int) -> None:
    hold_to_model(make, longest, 40)
