"""A pytest plugin: clusters and judged runs as fixtures, and what happened in the report of a failed test.

| fixture | |
| --- | --- |
| `kafka` | a cluster of the test's own |
| `kafka_session`, `kafka_topic` | one cluster for the session (of each pytest-xdist worker), a new topic on it |
| `zookeeper` | a ZooKeeper server of the test's own |
| `simulation` | runs of the simulator, with a verdict |
| `chaos` | runs of scenarios with real clients, with a verdict |

A mark of the fixture's name takes its arguments:

    @pytest.mark.kafka(brokers=3, seed=7, settings={"min.insync.replicas": 2})
    def test_my_consumer(kafka): ...

The file is loaded by every run of pytest: it imports pytest alone, and the rest once a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from controller.testing.cluster import HostFactory, Kafka
    from controller.testing.runs import ChaosRuns, SimulationRuns
    from controller.testing.zookeeper import ZooKeeper

MEMORY, PROCESS, DOCKER = "memory", "process", "docker"
KAFKA_OPTIONS = ("brokers", "seed", "settings", "security", "session_timeout_ms", "timeout_s", "directory", "requires")
"""What the mark `kafka` takes: arguments of `Kafka`, and `requires`."""
ZOOKEEPER_OPTIONS = ("tick_ms", "max_session_timeout_ms")
SIMULATION_OPTIONS = ("seed", "settings")
CHAOS_OPTIONS = ("settings", "host")
DEFAULT_COMPOSE_FILE = "docker/compose.yaml"


class Reported(Protocol):
    """What the report of a failed test shows: a heading with a text, and pages that are written into a directory."""

    def sections(self) -> list[tuple[str, str]]: ...

    def write_pages(self, directory: Path, name: str) -> list[Path]: ...


class _ReportedCluster:
    def __init__(self, cluster: Kafka) -> None:
        self.cluster = cluster

    def sections(self) -> list[tuple[str, str]]:
        logs = self.cluster.logs()
        return [("Kafka cluster", self.cluster.timeline())] + ([("Kafka logs", logs)] if logs else [])

    def write_pages(self, directory: Path, name: str) -> list[Path]:
        return [self.cluster.report(directory, name=name, verdict="fail")]


_REPORTED = pytest.StashKey[list[Reported]]()
_topics = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("camerlengo", "Kafka clusters for tests")
    group.addoption(
        "--kafka",
        choices=(MEMORY, PROCESS, DOCKER),
        default=MEMORY,
        help="what runs the brokers of fixtures: this process (memory), a process each, or a container each (docker)",
    )
    group.addoption("--kafka-brokers", type=int, default=1, metavar="N", help="brokers of a cluster without a mark (1)")
    group.addoption("--kafka-seed", type=int, default=None, metavar="N", help="seed of clusters and runs without one")
    group.addoption(
        "--kafka-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="how long a call of a cluster waits, seconds (30)",
    )
    group.addoption(
        "--kafka-reports", default=None, metavar="DIR", help="write an HTML report of each failed test's runs to DIR"
    )
    group.addoption(
        "--kafka-compose",
        action="append",
        default=[],
        metavar="FILE",
        help=f"with --kafka=docker: a compose file, may be repeated ({DEFAULT_COMPOSE_FILE})",
    )
    group.addoption(
        "--kafka-compose-env", default=None, metavar="FILE", help="with --kafka=docker: the compose files' variables"
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "kafka(brokers=1, seed=None, settings={}, requires=[], ...): what the fixture kafka is like",
        "zookeeper(tick_ms=100, ...): what the fixture zookeeper is like",
        "simulation(seed=0, settings={}): what the runs of the fixture simulation are like",
        "chaos(settings={}, host='process'): what the runs of the fixture chaos are like",
    ):
        config.addinivalue_line("markers", line)


def _marked(node: pytest.Item, mark: str, options: tuple[str, ...]) -> dict[str, Any]:
    """The keywords of the marks of that name, the nearest to the test first. pytest.UsageError for an unknown one."""
    found: dict[str, Any] = {}
    for one in reversed(list(node.iter_markers(mark))):
        wrong = sorted(set(one.kwargs) - set(options))
        if one.args or wrong:
            raise pytest.UsageError(
                f"mark {mark}: {wrong or list(one.args)}: expected keywords among {', '.join(options)}"
            )
        found |= one.kwargs
    return found


def _arguments(node: pytest.Item | None, config: pytest.Config) -> dict[str, Any]:
    """The arguments of `Kafka`: those of the mark first."""
    found: dict[str, Any] = {
        "brokers": config.getoption("--kafka-brokers", 1),
        "seed": config.getoption("--kafka-seed", None),
        "timeout_s": config.getoption("--kafka-timeout", 30.0),
    }
    if node is not None:
        found |= _marked(node, "kafka", KAFKA_OPTIONS)
    return found


def make_host(config: pytest.Config) -> HostFactory:
    """What makes a cluster's host, by the option --kafka."""
    kind = config.getoption("--kafka", MEMORY)
    if kind == PROCESS:
        from controller.testing.process_host import ProcessHost

        return ProcessHost
    if kind == DOCKER:
        from controller.testing.docker_host import DockerHost

        named = config.getoption("--kafka-compose") or [str(config.rootpath / DEFAULT_COMPOSE_FILE)]
        files = [Path(one).absolute() for one in named]
        missing = [str(one) for one in files if not one.is_file()]
        if missing:
            raise pytest.UsageError(f"--kafka=docker: no file {missing[0]}: expected a compose file in --kafka-compose")
        variables = config.getoption("--kafka-compose-env")
        return partial(DockerHost, files=files, variables=None if variables is None else Path(variables).absolute())
    from controller.testing.memory_host import MemoryHost

    return MemoryHost


def _cluster(arguments: dict[str, Any], config: pytest.Config) -> Kafka:
    from controller.testing.cluster import Kafka

    requires = arguments.pop("requires", ())
    cluster = Kafka(**arguments, host=make_host(config))
    cluster.requires(*requires)
    return cluster


def _shown_on_failure(request: pytest.FixtureRequest, reported: Reported) -> None:
    request.node.stash.setdefault(_REPORTED, []).append(reported)


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A cluster of the test's own; see the mark `kafka`."""
    cluster = _cluster(_arguments(request.node, request.config), request.config)
    _shown_on_failure(request, _ReportedCluster(cluster))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def _kafka_of_session(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    with _cluster(_arguments(None, request.config), request.config) as cluster:
        yield cluster


@pytest.fixture
def kafka_session(request: pytest.FixtureRequest, _kafka_of_session: Kafka) -> Iterator[Kafka]:
    """The session's cluster. After each test the faults of requests end, and brokers that do not run are started."""
    _shown_on_failure(request, _ReportedCluster(_kafka_of_session))
    yield _kafka_of_session
    _kafka_of_session.restore()


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_session: Kafka) -> str:
    """A new topic with one partition on the session's cluster, named after the test."""
    name = f"{_plain(request.node.name, r'[^a-zA-Z0-9._-]+')[:200].strip('-.')}-{next(_topics)}"
    kafka_session.create_topic(name)
    return name


@pytest.fixture
def zookeeper(request: pytest.FixtureRequest) -> Iterator[ZooKeeper]:
    """A ZooKeeper server of the test's own, with clients and faults; see the mark `zookeeper`."""
    from controller.testing.zookeeper import ZooKeeper

    server = ZooKeeper(**_marked(request.node, "zookeeper", ZOOKEEPER_OPTIONS))
    _shown_on_failure(request, server)
    with server:
        yield server


@pytest.fixture
def simulation(request: pytest.FixtureRequest, tmp_path: Path) -> SimulationRuns:
    """Runs in virtual time; see the mark `simulation`."""
    from controller.testing.runs import SimulationRuns

    runs = SimulationRuns(tmp_path, **_with_seed(request, _marked(request.node, "simulation", SIMULATION_OPTIONS)))
    _shown_on_failure(request, runs)
    return runs


@pytest.fixture
def chaos(request: pytest.FixtureRequest, tmp_path: Path) -> ChaosRuns:
    """Scenarios on real processes; see the mark `chaos`."""
    from controller.testing.runs import ChaosRuns

    runs = ChaosRuns(tmp_path, **_marked(request.node, "chaos", CHAOS_OPTIONS))
    _shown_on_failure(request, runs)
    return runs


def _with_seed(request: pytest.FixtureRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    seed = request.config.getoption("--kafka-seed", None)
    return arguments if seed is None else {"seed": seed, **arguments}


def _plain(text: str, other: str) -> str:
    return re.sub(other, "-", text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what happened to the report of a failed phase."""
    report = yield
    if report.failed:
        directory = item.config.getoption("--kafka-reports", None)
        name = _plain(item.nodeid, r"[^a-zA-Z0-9._-]+").strip("-")
        shown: list[Reported] = item.stash.get(_REPORTED, [])
        for number, reported in enumerate(shown):
            place = None if directory is None else Path(directory) / (name if number == 0 else f"{name}-{number + 1}")
            report.sections += _sections(reported, place, item.nodeid)
    return report


def _sections(reported: Reported, directory: Path | None, name: str) -> list[tuple[str, str]]:
    """What is reported. An error here does not hide the test's own."""
    parts: list[Callable[[], list[tuple[str, str]]]] = [reported.sections]
    if directory is not None:
        parts.append(lambda: [("Kafka report", str(page)) for page in reported.write_pages(directory, name)])
    found: list[tuple[str, str]] = []
    for part in parts:
        try:
            found += part()
        except Exception as error:  # noqa: BLE001 - the test's own failure is the one to show
            found.append(("Kafka report", f"could not be made: {error!r}"))
    return found
