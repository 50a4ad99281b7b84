"""An appender killed in the middle of its work, its unflushed bytes torn: the log goes on from what was flushed."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.storage import recovery, segment
from tests.storage import crash


def test_twenty_kills_lose_nothing_that_was_flushed(tmp_path: Path) -> None:
    tally = crash.run(str(tmp_path / "logs"), 20, 7)
    assert tally.kills == 20
    # The kills were worth something: bytes were torn, and recovery had to cut.
    assert tally.torn >= 5
    assert tally.cut >= 3


def test_a_recovery_that_looks_at_no_crc_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "crc_holds", lambda *_: True)
    monkeypatch.setattr(crash, "TEARS", (crash._garble,))
    with pytest.raises(Exception, match=r"seed 7, life \d+|CRC-32C"):
        crash.run(str(tmp_path / "logs"), 20, 7)


def test_a_log_that_forgets_a_flushed_segment_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = recovery.open_files

    def forgetful(*arguments: object) -> object:
        found = opened(*arguments)  # type: ignore[arg-type]
        del found.segments[1:]
        return found

    monkeypatch.setattr("controller.storage.log.open_files", forgetful)
    with pytest.raises(AssertionError, match="seed 7, life"):
        crash.run(str(tmp_path / "logs"), 20, 7)
