"""Where a command is to write: looked at before anything is started, and named where it can't be."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.values import output_file, output_folder

FOLDERS = (
    "chaos broker-kill --report",
    "chaos broker-kill --keep",
    "simulate broker-kill --report",
    "analyze . --report",
    "campaign broker-kill --report",
    "cluster --data",
    "zookeeper --data",
    "bench controller --plots",
    "bench purgatory --plots",
    "bench schemes --plots",
    "bench timer --plots",
)
FILES = (
    "simulate swarm --log",
    "simulate swarm --plan",
    "simulate swarm --shrink",
    "state --save",
    "whatif --heat-map",
)


def refused(words: str, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said; as of bad usage."""
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), str(place)])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert f"argument {words.split()[-1]}: " in said.err
    return said.err


@pytest.mark.parametrize("words", FOLDERS)
def test_a_file_is_no_folder(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "file"
    place.write_text("")
    assert f"{place}: {place} is not a directory" in refused(words, place, capsys)
    below = place / "one" / "two"
    assert f"{below}: {place} is not a directory" in refused(words, below, capsys)
    assert place.read_text() == ""


@pytest.mark.parametrize("words", FILES)
def test_a_folder_is_no_file_and_a_file_needs_one(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{tmp_path} is a directory: expected the name of a file" in refused(words, tmp_path, capsys)
    place = tmp_path / "nowhere" / "file"
    assert f"{place}: no such directory: {place.parent}" in refused(words, place, capsys)
    assert [*tmp_path.iterdir()] == []


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks the disk for it: to root, whom tests may run as, everything is allowed."""
    there = tmp_path / "there"
    there.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for kind, place in ((output_folder, tmp_path / "new"), (output_file, tmp_path / "new"), (output_file, there)):
        with pytest.raises(ArgumentTypeError, match="is not writable"):
            kind(str(place))


def test_what_can_be_written_is_taken_as_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("")
    assert output_folder("a/b/c") == Path("a/b/c")
    assert output_folder(".") == Path()
    assert output_file("new") == Path("new")
    assert output_file("there") == Path("there")
    assert [path.name for path in tmp_path.iterdir()] == ["there"], "nothing is made before it is needed"
