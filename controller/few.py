"""A mapping for a few: in order of coming, without the table that a dict has from its first entry on.

For what there is one of for each of a broker's many peers, most of them with an entry or two. Once it has more it is a
dict, and stays one. Imports nothing of this project.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 4


class Few(Generic[K, V]):
    """What it does it does as a dict. Keys are compared one after the other while there are no more than `FEW`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: tuple[Any, ...] | dict[K, V] = ()
        """Each key and its value, one after the other."""

    def _at(self, held: tuple[Any, ...], key: K) -> int:
        """Return the index of the key, or -1 if it is absent."""
        for at in range(0, len(held), 2):
            if held[at] == key:
                return at
        return -1

    def get(self, key: K) -> V | None:
        held: Any = self._held
        if type(held) is dict:
            return held.get(key)
        if held and held[0] == key:  # most have one
            value: V | None = held[1]
        else:
            at = self._at(held, key)
            value = None if at < 0 else held[at + 1]
        return value

    def __contains__(self, key: K) -> bool:
        held = self._held
        return key in held if isinstance(held, dict) else self._at(held, key) >= 0

    def __setitem__(self, key: K, value: V) -> None:
        held = self._held
        if isinstance(held, dict):
            held[key] = value
            return
        at = self._at(held, key)
        if at >= 0:
            self._held = (*held[: at + 1], value, *held[at + 2 :])
        elif len(held) < 2 * FEW:
            self._held = (*held, key, value)
        else:
            self._held = {**dict(self.items()), key: value}

    def pop(self, key: K) -> V | None:
        """None if it was not there."""
        held = self._held
        if isinstance(held, dict):
            return held.pop(key, None)
        at = self._at(held, key)
        if at < 0:
            return None
        value: V = held[at + 1]
        self._held = held[:at] + held[at + 2 :]
        return value

    def __len__(self) -> int:
        held = self._held
        return len(held) if isinstance(held, dict) else len(held) // 2

    def __iter__(self) -> Iterator[K]:
        """Of what is there now."""
        held = self._held
        return iter(tuple(held) if isinstance(held, dict) else held[::2])

    def values(self) -> tuple[V, ...]:
        held = self._held
        return tuple(held.values()) if isinstance(held, dict) else held[1::2]

    def items(self) -> tuple[tuple[K, V], ...]:
        held = self._held
        return tuple(held.items()) if isinstance(held, dict) else tuple(zip(held[::2], held[1::2], strict=True))
