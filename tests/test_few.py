"""A mapping for a few is a dict in all that it does, whether there are few or many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.few import FEW, Few

STEPS = st.lists(
    st.tuples(st.sampled_from(("set", "set", "pop", "get")), st.integers(0, 2 * FEW), st.integers(0, 3)), max_size=40
)


@given(STEPS)
def test_it_does_what_a_dict_does(steps: list[tuple[str, int, int]]) -> None:
    few: Few[int, int] = Few()
    plain: dict[int, int] = {}
    for what, key, value in steps:
        if what == "set":
            few[key] = value
            plain[key] = value
        elif what == "pop":
            assert few.pop(key) == plain.pop(key, None)
        assert few.get(key) == plain.get(key)
        assert (key in few) == (key in plain)
        assert len(few) == len(plain)
        assert list(few) == list(plain)
        assert few.values() == tuple(plain.values())
        assert few.items() == tuple(plain.items())


def test_what_it_is_walked_through_may_change_meanwhile() -> None:
    for count in (FEW, 2 * FEW):
        few: Few[int, int] = Few()
        for key in range(count):
            few[key] = key
        for key in few:
            few.pop(key)
        assert len(few) == 0
