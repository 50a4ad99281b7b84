"""An appender to a log on two tiers killed in the middle of copies and evictions: nothing that was flushed is lost."""

from __future__ import annotations

from pathlib import Path

from tests.storage import tiered_crash


def test_five_kills_leave_every_segment_whole_where_its_state_says(tmp_path: Path) -> None:
    states, _, batches = tiered_crash.run(str(tmp_path), 5, 7)
    assert batches > 100
    assert states["WithoutCache"]
