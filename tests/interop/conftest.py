"""Needs a real Kafka 2.8: `KAFKA_HOME=... .venv/bin/pytest tests/interop`. See docs/interop.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interop.kafka import Kafka, jars_of
from tests.interop.mixed import Kind, MixedCluster
from tests.interop.workload import abandon_writers


class Findings:
    """What a run found, for docs/interop.md: printed when it ends."""

    def __init__(self) -> None:
        self._tools: dict[tuple[str, str], dict[str, bool]] = {}
        self._figures: list[str] = []

    def tool(self, tool: str, operation: str, controller: str, held: bool) -> None:
        self._tools.setdefault((tool, operation), {})[controller] = held

    def figure(self, text: str) -> None:
        self._figures.append(text)

    def lines(self) -> list[str]:
        kinds = [kind.value for kind in Kind]
        rows = [
            f"| {tool} | {operation} | "
            + " | ".join({True: "ok", False: "FAILED", None: ""}[held.get(one)] for one in kinds)
            for (tool, operation), held in self._tools.items()
        ]
        return [*self._figures, *(f"{row} |" for row in rows)]


_FINDINGS = Findings()


@pytest.fixture(autouse=True)
def _no_writer_is_left() -> Iterator[None]:
    yield
    abandon_writers()


@pytest.fixture(scope="session")
def findings() -> Findings:
    return _FINDINGS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _FINDINGS.lines():
        terminalreporter.write_line(line)


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
