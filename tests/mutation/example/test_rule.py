"""The tests of the example, which leave one hole open."""

from __future__ import annotations

from tests.mutation.example.rule import countdown, within


def test_within() -> None:
    assert [within(2), within(4)] == [True, False]


def test_countdown() -> None:
    assert countdown(5) == 5


def test_of_nothing() -> None:
    assert within.__name__ == "within"
