"""Frozen values that are made as quickly as others.

A frozen dataclass with slots sets its fields through `object.__setattr__`, looked up and checked one by one: ten of
them cost three times as much as in a class that is not frozen. What is made by the hundred thousand (what comes off the
wire, a trace's events) is made here as an instance of a twin, which has the same slots and is not frozen, and becomes
one of its own class once its fields are set. Then it cannot be distinguished from any other instance. This module
imports nothing of this project.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

FEW = 3
"""Up to so many fields are set by their slots' own descriptors, which is cheaper than to change the class twice."""
_MISSING: Any = dataclasses.MISSING
_twins: dict[type[Any], type[Any]] = {}


def twin(kind: type[Any]) -> type[Any] | None:
    """A class of the same layout whose instances may be changed, and may be made `kind`'s by `__class__`. None where
    `kind` is no frozen dataclass with slots, directly below `object`, or does more than to set its fields."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen or kind.__mro__[1:] != (object,) or hasattr(kind, "__post_init__"):
        return None
    slots = kind.__dict__.get("__slots__")
    if slots is None or any(not one.init or one.kw_only for one in dataclasses.fields(kind)):
        return None
    if kind not in _twins:
        _twins[kind] = type(kind.__name__, (), {"__slots__": tuple(slots), "__module__": kind.__module__})
    return _twins[kind]


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """Makes the same as the class does when it is called, with the same arguments, in a third of the time: for where
    the very many are made. The class itself where that can't be."""
    other = twin(kind) if isinstance(kind, type) else None
    fields = dataclasses.fields(kind) if other is not None and isinstance(kind, type) else ()
    if not fields or any(one.default_factory is not _MISSING for one in fields):
        return kind
    names: dict[str, Any] = {"Twin": other, "Kind": kind}
    names |= {f"default_{one.name}": one.default for one in fields}
    given = [one.name if one.default is _MISSING else f"{one.name}=default_{one.name}" for one in fields]
    lines = ["made = Twin()", *(f"made.{one.name} = {one.name}" for one in fields), "made.__class__ = Kind"]
    text = "\n    ".join((f"def make({', '.join(given)}):", *lines, "return made")) + "\n"
    exec(compile(text, f"<maker of {kind.__name__}>", "exec"), names)
    made: Callable[P, T] = names["make"]
    made.__module__ = kind.__module__
    return made


def quick(kind: type[Any]) -> None:
    """Gives the class an `__init__` that does the same in less time, where there is one."""
    other = twin(kind)
    fields = dataclasses.fields(kind) if other is not None else ()
    if not fields or any(one.default_factory is not _MISSING for one in fields):
        return
    names: dict[str, Any] = {"Twin": other, "Kind": kind, "change": object.__setattr__}
    given = []
    for one in fields:
        if one.default is _MISSING:
            given.append(one.name)
        else:
            names[f"default_{one.name}"] = one.default
            given.append(f"{one.name}=default_{one.name}")
    if len(fields) <= FEW:
        names |= {f"set_{one.name}": getattr(kind, one.name).__set__ for one in fields}
        lines = [f"set_{one.name}(self, {one.name})" for one in fields]
    else:
        lines = ["change(self, '__class__', Twin)"]
        lines += [f"self.{one.name} = {one.name}" for one in fields]
        lines += ["self.__class__ = Kind"]
    text = "\n    ".join((f"def __init__(self, {', '.join(given)}):", *lines)) + "\n"
    exec(compile(text, f"<quick {kind.__name__}>", "exec"), names)
    made = names["__init__"]
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    made.__annotations__ = dict(vars(kind)["__init__"].__annotations__)
    type.__setattr__(kind, "__init__", made)
