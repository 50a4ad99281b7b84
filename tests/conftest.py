"""What the whole suite shares: the flag that rewrites golden logs, and which examples property tests see.

A run of the suite tells of the tree, not of the day: every run draws the same examples, and a failure seen anywhere is
seen again by the same command. `--hypothesis-profile=explore` draws new ones each time. No example has a time limit: a
machine that does other things too is not a fault of the tree.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

INTEROP = Path(__file__).parent / "interop"

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="writes the expected logs of tests/simulator/golden anew"
    )
    parser.addoption(
        "--every-moment",
        action="store_true",
        help="tests/cli/test_interrupts.py: more moments of each command",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/interop needs a real Kafka: it is collected where it, or a file of it, is named, and not with the rest."""
    if collection_path != INTEROP:
        return None
    named = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return None if any(one == INTEROP or INTEROP in one.parents for one in named) else True
