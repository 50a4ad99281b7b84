"""The figures of the code's structure stay within their limits, and a limit is lowered with its figure."""

from __future__ import annotations

import pytest

from tests import structure

SLACK = 1.03
"""How far a limit may be above its figure, beyond one."""


@pytest.mark.parametrize("name", structure.FIGURES)
def test_a_figure_is_within_its_limit_and_near_it(name: str) -> None:
    measure, limit = structure.FIGURES[name]
    figure = measure()
    assert figure <= limit, "make it smaller, or say in the commit why the limit has to be raised"
    assert limit <= figure * SLACK + 1, "lower the limit in tests/structure.py"


def test_a_name_that_several_classes_have_is_justified() -> None:
    assert structure.shared_class_names() == set(structure.SHARED_NAMES)


def test_the_words_that_are_replaced_are_found() -> None:
    for line in ("It is told so.", "nobody = -1", "whoever asks", "trouble: str"):
        assert structure.REPLACED.search(line)
    assert not structure.REPLACED.search("recommend(ed), untold_us, amended")
