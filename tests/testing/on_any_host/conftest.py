"""One suite for every host of `--kafka`. It needs three brokers for the session: `--kafka-brokers 3` collects it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--kafka-brokers") >= 3 else True
