"""What the whole suite shares: the flag that rewrites golden logs."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="writes the expected logs of tests/simulator/golden anew"
    )
