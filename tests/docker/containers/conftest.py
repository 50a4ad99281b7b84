"""One cluster of containers for all tests of this folder, whole at the beginning of each.

They need a Docker engine, so they are collected only where a path to them is given (`pytest tests/docker`); there they
fail, and are not skipped, if the engine or the cluster does not come up. When one fails, what all containers said is
part of its report.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.docker.containers import machine
from tests.docker.containers.client import make_admin
from tests.docker.containers.cluster import COMPOSE_FILE, SKELETON_FILE, Cluster, compose_words, run

HERE = Path(__file__).parent
PROJECT = "camerlengo-test"
_CLUSTER = pytest.StashKey[Cluster]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [Path(os.path.abspath(word.split("::")[0])) for word in config.args]
    asked_for = any(path == HERE.parent or path.is_relative_to(HERE) for path in named)
    return None if asked_for else True


@pytest.fixture(scope="session")
def compose_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The user's compose file, the override, and this machine's mounts."""
    mounts = tmp_path_factory.mktemp("compose") / "mounts.json"
    mounts.write_text(machine.mounts_file(), encoding="utf-8")
    return COMPOSE_FILE, SKELETON_FILE, mounts


@pytest.fixture(scope="session")
def variables_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compose") / "variables.env"
    path.write_text(machine.variables_file(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def docker_compose_command(variables_file: Path) -> str:
    return f'docker compose --env-file "{variables_file}"'


@pytest.fixture(scope="session")
def docker_compose_file(compose_files: tuple[Path, Path, Path]) -> list[str]:
    return [str(path) for path in compose_files]


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    return PROJECT


@pytest.fixture(scope="session")
def image() -> None:
    """The image of all containers; made where the engine lacks it."""
    if not run("docker", "images", "--quiet", machine.IMAGE):
        run("docker", "import", "-", machine.IMAGE, stdin=machine.skeleton())


@pytest.fixture(scope="session")
def docker_setup(
    pytestconfig: pytest.Config, compose_files: tuple[Path, Path, Path], variables_file: Path, image: None
) -> list[str]:
    """Ends what a run that was broken off left behind, then starts all and waits until all are healthy."""
    # Known before anything is started, so that a start that fails can be looked into.
    pytestconfig.stash[_CLUSTER] = Cluster(compose_words(compose_files, PROJECT, variables_file), PROJECT)
    return ["down --volumes --timeout 0", "up --wait --wait-timeout 200"]


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down --volumes --timeout 0"]


@pytest.fixture(scope="session")
def started(pytestconfig: pytest.Config, docker_services: object) -> Cluster:
    return pytestconfig.stash[_CLUSTER]


@pytest.fixture(scope="session")
def admin(started: Cluster) -> Any:
    """A real client (librdkafka) on this machine, that knows the published ports alone."""
    return make_admin(started.bootstrap)


@pytest.fixture
def topic(started: Cluster) -> str:
    """A new topic in a cluster that is whole."""
    started.mend()
    started.await_settled(None)
    name = f"topic-{uuid.uuid4().hex[:8]}"
    started.create(name)
    return name


@pytest.fixture
def cluster(started: Cluster, topic: str) -> Cluster:
    """Whole, with `topic` in it."""
    return started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    found = item.config.stash.get(_CLUSTER, None)
    if report.failed and found is not None:
        try:
            said = found.logs()
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"could not be had: {error}"
        report.sections.append(("what the containers said", said))
    return report
