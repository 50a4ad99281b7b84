"""Colour and progress: rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest

from controller.cli.terminal import ProgressBar, show

TEXT = "failover  count\n--------  -----\nbroker    2\n\nheld      no-defects: none\nVIOLATED  x\n\nverdict: fail"


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_piped_text_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    show(TEXT)
    assert capsys.readouterr().out == TEXT + "\n"


def test_a_terminal_has_colour_and_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(TEXT)
    written = terminal.getvalue()
    assert "\x1b[1;31mVIOLATED" in written
    assert "\x1b[1mfailover  count" in written
    assert re.sub(r"\x1b\[[0-9;]*m", "", written) == TEXT + "\n"


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(7, 3) as bar:
        for done in [*range(1, 8), 7]:
            bar.update(done, f"{done} of 7")
    assert capsys.readouterr().err.splitlines() == ["3 of 7", "6 of 7", "7 of 7"]


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with ProgressBar(2, 1) as bar:
        bar.update(1, "1 of 2 [seeds]")
    assert "1 of 2 [seeds]" in terminal.getvalue()
    assert "━" in terminal.getvalue()


def test_rich_is_not_imported_for_piped_output() -> None:
    program = "import sys\nfrom controller.cli.terminal import show\nshow('x')\nprint('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "x\nFalse\n"
