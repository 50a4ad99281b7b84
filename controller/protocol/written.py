"""Items of an array that were written before: what goes out again and again, in the same version, is encoded once.

Only ever in a value on its way out, in the place of the items themselves. Knows no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Written:
    """`items` are the bytes of each, as the array's own writer makes them in the version of the message around it."""

    __slots__ = ("content", "count")

    def __init__(self, items: Sequence[bytes]) -> None:
        self.count = len(items)
        self.content = b"".join(items)

    def __len__(self) -> int:
        return self.count


def written(items: Sequence[bytes]) -> Any:
    """In the place of the tuple that a value is declared to have."""
    return Written(items)
