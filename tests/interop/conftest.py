"""Needs a real Kafka 2.8: `KAFKA_HOME=... .venv/bin/pytest tests/interop`. See docs/interop.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.kafka import Kafka, jars_of
from tests.interop.mixed import Kind, MixedCluster


def pytest_configure(config: pytest.Config) -> None:
    try:
        jars_of(os.environ.get("KAFKA_HOME"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    return Kafka(jars_of(os.environ.get("KAFKA_HOME")), tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="module")
def cluster(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """One cluster for a file's tests; each chooses its controller."""
    with MixedCluster(kafka, tmp_path_factory.mktemp("mixed")) as running:
        running.start(Kind.OURS)
        yield running
