"""`camerlengo bench compaction`: what the table says of the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.storage.checkpoints import encode_offsets
from tests.benchmarks.common import markdown
from tests.benchmarks.compaction import HEAD, cleaned_to, figures, rows


def test_the_ratio_is_that_of_all_rounds_together_and_of_each() -> None:
    times: dict[str, Any] = {"mb": 20.0, "seconds": 10.0, "cpu_s": 1.0, "covered": 0.5}
    found = figures(
        [
            {**times, "alone_ms": [1.0] * 99 + [2.0], "beside_ms": [1.0] * 98 + [3.0] * 2},
            {**times, "alone_ms": [2.0] * 100, "beside_ms": [3.0] * 100, "seconds": 5.0},
        ]
    )
    assert found["mb_per_s"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert (found["ratio"], found["ratios"]) == (1.5, [3.0, 1.5])
    assert found["covered_percent"] == 50
    table = markdown(HEAD, rows({"sides": {"camerlengo": found}}))
    assert table[-1].startswith("| camerlengo | 3.0 | 50.0 | 2.00 | 3.00 | 1.50 (3.0, 1.5) |")


def test_a_checkpoint_that_is_not_there_or_empty_is_none(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    assert cleaned_to(tmp_path, "t") == 0
    path.write_bytes(b"")
    assert cleaned_to(tmp_path, "t") == 0
    path.write_bytes(encode_offsets({("t", 0): 7}))
    assert cleaned_to(tmp_path, "t") == 7
