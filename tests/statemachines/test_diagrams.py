"""The pictures and tables in docs/ are what the machines' tables draw, and no picture draws anything else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from statemachines.diagrams import DIAGRAMS, PARTITION_LAYOUT, DiagramLayout, draw, main, table_text
from statemachines.group import GROUP
from statemachines.log_segment import SEGMENT
from statemachines.partition import PARTITION
from statemachines.reassignment import REASSIGNMENT
from statemachines.replica import REPLICA
from statemachines.transaction import TRANSACTION

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = DOCS / "images"
PAGE = (DOCS / "state-machines.md").read_text(encoding="utf-8")


def test_the_committed_pictures_are_what_the_command_draws(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    drawn = {picture.name: picture.read_text(encoding="utf-8") for picture in tmp_path.iterdir()}
    assert sorted(drawn) == sorted(DIAGRAMS)
    for name, text in drawn.items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, f"draw {name} anew"


def test_the_command_wants_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "DIRECTORY" in capsys.readouterr().err


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_has_a_box_for_each_state_and_an_arrow_for_each_move(name: str) -> None:
    machine, layout = DIAGRAMS[name]
    root = ElementTree.fromstring(draw(machine, layout))
    svg = "{http://www.w3.org/2000/svg}"
    arrows = [title.text for title in root.findall(f"{svg}g/{svg}path/{svg}title")]
    assert sorted(text for text in arrows if text) == sorted(
        f"{source.name} to {target.name}"
        for source in machine.states
        for target in machine.states
        if machine.allowed[source, target]
    )
    words = {text.text for text in root.findall(f"{svg}text")}
    assert {state.name for state in machine.states} <= words


@pytest.mark.parametrize("name", DIAGRAMS)
def test_boxes_keep_apart_and_within_the_picture(name: str) -> None:
    _, layout = DIAGRAMS[name]
    places = list(layout.places.values())
    for one in places:
        assert 88 <= one.x <= layout.width - 88
        assert 28 <= one.y <= layout.height - 28
        for other in places:
            assert one is other or abs(one.x - other.x) >= 200 or abs(one.y - other.y) >= 80


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (machine.name, table_text(machine))
        for machine in (PARTITION, REPLICA, REASSIGNMENT, GROUP, SEGMENT, TRANSACTION)
    ],
)
def test_the_page_shows_the_picture_and_the_table(name: str, table: str) -> None:
    assert f"(images/{name}-machine.svg)" in PAGE
    shown = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == table


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (replace(PARTITION_LAYOUT, places={}), "the layout places"),
        (replace(PARTITION_LAYOUT, bends={("New", "New"): 3.0}), "bends moves that the table does not have"),
    ],
)
def test_a_layout_that_does_not_fit_its_machine_is_refused(layout: DiagramLayout, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(PARTITION, layout)


def test_another_table_draws_another_picture() -> None:
    allowed = PARTITION.allowed.copy()
    allowed[0, 1] = False
    assert draw(replace(PARTITION, allowed=allowed), PARTITION_LAYOUT) != draw(PARTITION, PARTITION_LAYOUT)
