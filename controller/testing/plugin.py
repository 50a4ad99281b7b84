"""A pytest plugin: clusters as fixtures, and the timeline of a failed test's cluster in its report.

`kafka` is a cluster of the test's own. `kafka_session` is one cluster for the whole session (of each worker under
pytest-xdist), for tests that create topics and inject no lasting faults; `kafka_topic` is the name of a new topic on
it. The mark `kafka` sets what a test's cluster is like:

    @pytest.mark.kafka(brokers=3, seed=7, settings={"min.insync.replicas": 2})
    def test_my_consumer(kafka): ...

The file is loaded by every run of pytest: it imports pytest alone, and clusters once a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from controller.testing.cluster import Kafka

MARK = "kafka"
OPTIONS = ("brokers", "seed", "settings", "session_timeout_ms", "timeout_s", "directory")
"""What the mark takes: arguments of `Kafka`."""
_CLUSTERS = pytest.StashKey[list["Kafka"]]()
_topics = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("camerlengo", "Kafka clusters inside the test process")
    group.addoption("--kafka-brokers", type=int, default=1, metavar="N", help="brokers of a cluster without a mark (1)")
    group.addoption("--kafka-seed", type=int, default=None, metavar="N", help="seed of clusters without one")
    group.addoption(
        "--kafka-reports", default=None, metavar="DIR", help="write an HTML report of each failed test's cluster to DIR"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kafka(brokers=1, seed=None, settings={}, ...): what the fixture kafka is like")


def _arguments(node: pytest.Item | None, config: pytest.Config) -> dict[str, Any]:
    """The arguments of `Kafka`: of the mark nearest to the test first. Raises pytest.UsageError for an unknown one."""
    found: dict[str, Any] = {
        "brokers": config.getoption("--kafka-brokers", 1),
        "seed": config.getoption("--kafka-seed", None),
    }
    for mark in reversed(list(node.iter_markers(MARK))) if node is not None else ():
        wrong = sorted(set(mark.kwargs) - set(OPTIONS))
        if mark.args or wrong:
            given = wrong or list(mark.args)
            raise pytest.UsageError(f"mark kafka: {given}: expected keywords among {', '.join(OPTIONS)}")
        found |= mark.kwargs
    return found


def _shown_on_failure(request: pytest.FixtureRequest, cluster: Kafka) -> None:
    request.node.stash.setdefault(_CLUSTERS, []).append(cluster)


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A cluster of the test's own; see the mark `kafka`."""
    from controller.testing.cluster import Kafka

    cluster = Kafka(**_arguments(request.node, request.config))
    _shown_on_failure(request, cluster)
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def _kafka_of_session(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    from controller.testing.cluster import Kafka

    with Kafka(**_arguments(None, request.config)) as cluster:
        yield cluster


@pytest.fixture
def kafka_session(request: pytest.FixtureRequest, _kafka_of_session: Kafka) -> Iterator[Kafka]:
    """The session's cluster. After each test the faults of requests end, and brokers that do not run are started."""
    _shown_on_failure(request, _kafka_of_session)
    yield _kafka_of_session
    _kafka_of_session.restore()


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_session: Kafka) -> str:
    """A new topic with one partition on the session's cluster, named after the test."""
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:200].strip("-.") + f"-{next(_topics)}"
    kafka_session.create_topic(name)
    return name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the timelines of the test's clusters to the report of a failed phase."""
    report = yield
    if report.failed:
        for cluster in item.stash.get(_CLUSTERS, []):
            report.sections.append(("Kafka cluster", cluster.timeline()))
            directory = item.config.getoption("--kafka-reports", None)
            if directory is not None:
                name = re.sub(r"[^a-zA-Z0-9._-]+", "-", item.nodeid).strip("-")
                page = cluster.report(Path(directory) / name, name=item.nodeid, verdict="fail")
                report.sections.append(("Kafka report", str(page)))
    return report
