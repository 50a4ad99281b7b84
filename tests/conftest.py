"""What the whole suite shares: the flag that rewrites golden logs, and which examples property tests see.

A run of the suite tells of the tree, not of the day: every run draws the same examples, and a failure seen anywhere is
seen again by the same command. `--hypothesis-profile=explore` draws new ones each time. No example has a time limit: a
machine that does other things too is not a fault of the tree.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="writes the expected logs of tests/simulator/golden anew"
    )
