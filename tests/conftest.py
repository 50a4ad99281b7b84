"""What the whole suite shares: the flag that rewrites golden logs, which examples property tests see, and which files
come first.

A run of the suite tells of the tree, not of the day: every run draws the same examples, and a failure seen anywhere is
seen again by the same command. `--hypothesis-profile=explore` draws new ones each time.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="writes the expected logs of tests/simulator/golden anew"
    )


SLOWEST_FIRST = (
    "tests/pipeline/test_clusters.py",
    "tests/pipeline/test_analysis.py",
    "tests/timer/test_compiled.py",
    "tests/pipeline/test_on_spark.py",
    "tests/pipeline/",
    "tests/chaos/",
    "tests/simulator/test_determinism.py",
    "tests/cli/",
    "tests/clients/",
    "tests/hosts/",
)
"""With a file at a time in each of some processes, one that takes a minute must not be the last that begins."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next(
            (place for place, start in enumerate(SLOWEST_FIRST) if item.nodeid.startswith(start)), len(SLOWEST_FIRST)
        )

    items.sort(key=rank)
