"""Znode values that are JSON of a kind, and make no sense: sound ones with numbers, sets and texts no cluster has."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

INTS = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 9, 99, 127, 1_001, 2**20, 2**30, 2**31 - 2, 2**31 - 1, 2**31, 2**53, 2**63)
TEXTS = ("", ".", "..", "/", "\0", "\n", "t\n", "null", "-1", "a/b", "\u00e9", "\ud800", "x" * 250, "h" * 40_000)
OTHERS: tuple[Any, ...] = (None, True, False, 0.5, 1e308, [], {}, [[]], [None], {"0": 0}, [{}])
RAW = (None, b"", b"null", b"[]", b"{}", b"0", b'"x"', b"{", b"\xff", b"\0" * 40, b'{"a":' * 2_000, b" " * 5_000)

LONGEST = 900_000

Value = Any
Change = Callable[[random.Random, Value], Value]


def _broker_ids(rng: random.Random) -> list[Any]:
    kind = rng.randrange(7)
    if kind == 0:
        return [rng.choice((1, 2, 3))] * rng.choice((2, 3, 40))
    if kind == 1:
        return list(range(rng.choice((127, 130, 300))))
    if kind == 2:
        return []
    if kind == 3:
        return [1, 2, rng.choice(INTS)]
    if kind == 4:
        return [rng.choice(INTS) for _ in range(rng.randrange(5))]
    if kind == 5:
        return [1, rng.choice(OTHERS)]
    return rng.sample(range(1, 8), rng.randint(1, 5))


def _any(rng: random.Random) -> Any:
    kind = rng.randrange(5)
    if kind < 2:
        return rng.choice(INTS)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return _broker_ids(rng)
    return rng.choice(OTHERS)


def _like(rng: random.Random, value: Value) -> Value:
    """Another value of the same type, mostly."""
    if isinstance(value, bool) or rng.random() < 0.15:
        return _any(rng)
    if isinstance(value, int):
        return rng.choice(INTS)
    if isinstance(value, str):
        return rng.choice(TEXTS)
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return _broker_ids(rng)
    return _any(rng)


def _change_within(rng: random.Random, value: Value) -> Value:
    """Changes one place somewhere below."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        changed = dict(value)
        kind = rng.random()
        if kind < 0.08:
            del changed[name]
        elif kind < 0.2:
            key = str(rng.choice(INTS)) if name.isdigit() else rng.choice(TEXTS)
            changed[key] = _change_within(rng, changed.pop(name)) if rng.random() < 0.5 else changed[name]
        else:
            changed[name] = _change_within(rng, value[name])
        return changed
    if isinstance(value, list) and value and not isinstance(value[0], int) and rng.random() < 0.8:
        changed_list = list(value)
        place = rng.randrange(len(value))
        if rng.random() < 0.2:
            copies = rng.choice((2, 50))
            # Fifty copies of fifty of a long name would be hundreds of megabytes, which no znode holds.
            return changed_list * copies if copies * len(json.dumps(changed_list)) <= LONGEST else changed_list
        changed_list[place] = _change_within(rng, value[place])
        return changed_list
    return _like(rng, value)


def senseless(rng: random.Random, sound: Mapping[str, Value]) -> bytes | None:
    """A value for a znode that holds `sound`; some of them do make sense by chance."""
    if rng.random() < 0.08:
        return rng.choice(RAW)
    value: Value = sound
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _change_within(rng, value)
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    return data if len(data) <= LONGEST else b"[" * LONGEST  # no administrator can write more than a server takes
