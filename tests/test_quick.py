"""Frozen values that are made quickly are what they were: equal, hashed, shown, copied and refused the same way."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import typing

import pytest

from controller.quick import maker, quick, twin
from controller.trace import RequestRefused, TraceEvent


@dataclasses.dataclass(frozen=True, slots=True)
class Slow:
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()
    d: int = 4
    e: int = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Quick:
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()
    d: int = 4
    e: int = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Small:
    a: int
    b: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Looking:
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("below 0")


@dataclasses.dataclass(frozen=True, slots=True)
class Making:
    a: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Changing:
    a: int


quick(Quick)
quick(Small)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, "x"), {"e": 7}), ((), {"a": 1, "d": 3}), ((1, "x", (2,), 3, 4), {})],
)
def test_a_value_holds_and_shows_what_the_slow_one_does(
    args: tuple[typing.Any, ...], kwargs: dict[str, typing.Any]
) -> None:
    made, slow = Quick(*args, **kwargs), Slow(*args, **kwargs)
    assert dataclasses.astuple(made) == dataclasses.astuple(slow)
    assert repr(made) == repr(slow).replace("Slow", "Quick")
    assert hash(made) == hash(slow)
    assert made == Quick(*args, **kwargs)
    assert made != Quick(2)
    assert type(made) is Quick


@pytest.mark.parametrize("value", [Quick(1, "x"), Small(1)])
def test_nobody_can_change_it_and_everybody_can_copy_it(value: typing.Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.a
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.replace(value, a=3).a == 3


@pytest.mark.parametrize("args", [(), (1, "b", (), 4, 5, 6)])
def test_wrong_arguments_are_refused(args: tuple[typing.Any, ...]) -> None:
    with pytest.raises(TypeError):
        Quick(*args)


@pytest.mark.parametrize("kind", [Looking, Changing, int])
def test_what_does_more_than_to_set_frozen_slots_has_no_twin(kind: type) -> None:
    assert twin(kind) is None


@pytest.mark.parametrize("kind", [Looking, Changing, Making])
def test_what_can_not_be_made_quickly_is_left_alone(kind: typing.Any) -> None:
    before = kind.__init__
    quick(kind)
    assert kind.__init__ is before
    assert kind().a == [] if kind is Making else kind(1).a == 1


@pytest.mark.parametrize("kind", [Slow, Quick, Small])
def test_a_maker_makes_what_its_class_makes(kind: typing.Any) -> None:
    make = maker(kind)
    assert make is not kind
    for args, named in (((1,), {}), ((1, 5), {}), ((), {"b": 7, "a": 2})):
        made = make(*args, **named)
        assert made == kind(*args, **named)
        assert type(made) is kind
        assert hash(made) == hash(kind(*args, **named))
        assert pickle.loads(pickle.dumps(made)) == made
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.a = 2
    with pytest.raises(TypeError):
        make()
    with pytest.raises(TypeError):
        make(1, z=2)


@pytest.mark.parametrize("kind", [Looking, Changing, Making])
def test_what_can_not_be_made_quickly_is_made_by_its_class(kind: typing.Any) -> None:
    assert maker(kind) is kind


def test_the_events_of_a_trace_are_made_quickly() -> None:
    for kind in typing.get_args(TraceEvent):
        assert kind.__init__.__code__.co_filename == f"<quick {kind.__name__}>", kind
    assert RequestRefused("a", 1, 2, "b") == RequestRefused(api="a", controller_epoch=1, error_code=2, reason="b")
