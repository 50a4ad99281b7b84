"""docs/zookeeper.md: its program does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "zookeeper.md"


def test_the_pages_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 1
    exec(compile(programs[0], str(PAGE), "exec"), {"__name__": "page"})
    told = capsys.readouterr().out
    assert "look again: /row-7 changed" in told
    assert "controller epoch 1 is over" in told
