"""The picture in docs/timer.md is what the wheel does, the page's table is the code's own, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from controller.labs.schemes import table_text
from controller.labs.wheel_drawing import NAME, UNITS_NAME, Moment, draw, draw_dials, example, main, units_example
from controller.timer.wheel import Bucket, TimingWheel

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "timer.md").read_text(encoding="utf-8")


def test_the_committed_pictures_are_what_the_command_draws(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    for name in (NAME, UNITS_NAME):
        assert (tmp_path / name).read_text(encoding="utf-8") == (DOCS / "images" / name).read_text(encoding="utf-8"), (
            "draw it anew: python -m controller.labs.wheel_drawing docs/images"
        )


def test_the_command_wants_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "DIRECTORY" in capsys.readouterr().err


def test_a_task_due_at_232_is_in_bucket_2_then_3_then_2() -> None:
    """The digits of its time, as each wheel has ten buckets."""
    moments = example()
    assert [moment.now_ms for moment in moments] == [0, 200, 230, 232]
    places = [
        [(level.tick_ms, level.task_at) for level in moment.levels if level.task_at is not None] for moment in moments
    ]
    assert places == [[(100, 2)], [(10, 3)], [(1, 2)], []]


class _FlatWheel(TimingWheel):
    """Fires what it should bring down."""

    def _bring_down(self, *arguments: Any) -> None:
        self._make_ready(next(one for one in arguments if isinstance(one, Bucket)))


def test_another_wheel_draws_another_picture() -> None:
    assert draw(example(_FlatWheel)) != draw(example())


def test_the_picture_has_a_box_for_each_bucket_and_its_words() -> None:
    moments = example()
    root = ElementTree.fromstring(draw(moments))
    svg = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in root.findall(f"{svg}text")]
    for number, moment in enumerate(moments, start=1):
        assert f"{number}. {moment.words}" in words
    boxes = sum(len(level.begins_ms) for moment in moments for level in moment.levels)
    clocks = sum(len(moment.levels) for moment in moments)
    frame_and_key = 3
    assert len(root.findall(f"{svg}rect")) == boxes + clocks + frame_and_key


def test_a_timer_of_1_30_40_is_in_hour_1_then_minute_30_then_second_40() -> None:
    moments = units_example()
    assert [moment.now_ms for moment in moments] == [0, 3_600, 5_400, 5_440]
    places = [
        [(level.tick_ms, level.task_at) for level in moment.levels if level.task_at is not None] for moment in moments
    ]
    assert places == [[(3_600, 1)], [(60, 30)], [(1, 40)], []]
    picture = draw_dials(moments)
    assert picture.count("<polygon") == 4 * 244 + 4 * 4 + 3
    for words in ("at 0:00:00, 1:30:40 left: wheel of hours, slot 1", "at 1:30:40: the slot is reached"):
        assert words in picture
    for words in (
        "At 0:00:00 ",
        "At 1:00:00, with 30:40 left",
        "At 1:30:00, with 40 seconds left",
        "At 1:30:40 it fires",
    ):
        assert words in PAGE


def test_the_page_shows_the_pictures_and_the_table() -> None:
    for image in (NAME, UNITS_NAME, "timer-schemes.png", "timer-crossing.png"):
        assert f"(images/{image})" in PAGE
        assert (DOCS / "images" / image).is_file()
    shown = re.search(r"<!-- table: schemes -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == table_text()


@pytest.mark.parametrize("moment", example(), ids=lambda moment: f"at {moment.now_ms} ms")
def test_the_page_tells_each_moment_of_the_picture(moment: Moment) -> None:
    assert f". At {moment.now_ms} ms " in PAGE


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"example {number}" for number in range(1, len(EXAMPLES) + 1)])
def test_an_example_of_the_page_runs_and_its_assertions_hold(code: str) -> None:
    assert "assert" in code
    exec(compile(code, "docs/timer.md", "exec"), {})
