"""The embedded servers of both kinds: started, stopped, killed, paused, restarted and ended with their parent.

What they need is named where it is missing."""

from __future__ import annotations

import importlib.util
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from controller.system import LOOPBACK, HeldPorts
from controller.zookeeper import embedded
from controller.zookeeper.embedded import (
    KINDS,
    DataDirectoryError,
    EmbeddedZooKeeper,
    JarsNotFound,
    JavaNotFound,
    ServerDied,
    ZooKeeperKind,
    find_jars,
    find_java,
    four_letter_word,
)
from tests.processes import eventually
from tests.zookeeper.processes import gone


@pytest.fixture(scope="module", params=KINDS)
def standalone(request: pytest.FixtureRequest) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(kind=request.param, fsync=False) as zookeeper:
        yield zookeeper


def client(zookeeper: EmbeddedZooKeeper) -> Any:
    connection = KazooClient(zookeeper.connect_string, timeout=10.0)
    connection.start(30)
    return connection


def closed(connection: Any) -> None:
    connection.stop()
    connection.close()


def put(zookeeper: EmbeddedZooKeeper, path: str, data: bytes) -> None:
    connection = client(zookeeper)
    connection.create(path, data)
    closed(connection)


def get(zookeeper: EmbeddedZooKeeper, path: str) -> bytes:
    connection = client(zookeeper)
    data: bytes = connection.get(path)[0]
    closed(connection)
    return data


def modes_of(zookeeper: EmbeddedZooKeeper) -> list[str | None]:
    """One look, in which a busy server has more than the tenth of a second that `modes` gives it."""
    return [server.mode(5.0) for server in zookeeper.servers]


def test_a_server_serves_once_start_returns(standalone: EmbeddedZooKeeper) -> None:
    assert modes_of(standalone) == ["standalone"]
    eventually(lambda: (standalone.modes(), standalone.leader()) == (("standalone",), 0), "and says so at once")
    assert standalone.connect_string == standalone.hosts[0]
    put(standalone, "/one", b"1")
    assert get(standalone, "/one") == b"1"


def test_data_and_port_survive_a_kill_and_a_stop(standalone: EmbeddedZooKeeper) -> None:
    put(standalone, "/kept", b"data")
    hosts = standalone.hosts
    for end in (standalone.kill, standalone.stop):
        end()
        assert standalone.modes() == (None,)
        assert standalone.servers[0].pid is None
        standalone.start()
        assert standalone.hosts == hosts
        assert get(standalone, "/kept") == b"data"


def test_a_paused_server_says_nothing_until_it_is_resumed(standalone: EmbeddedZooKeeper) -> None:
    standalone.pause()
    assert standalone.leader() is None
    standalone.resume()
    eventually(lambda: standalone.leader() == 0, "the resumed server serves")


def test_the_granted_session_timeout_follows_the_settings(standalone: EmbeddedZooKeeper) -> None:
    settings = four_letter_word(standalone.servers[0].port, "conf", 5.0)
    assert "minSessionTimeout=1000\n" in settings
    assert "tickTime=500\n" in settings


def test_an_ensemble_elects_again_and_is_whole_again_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(servers=3, data_dir=tmp_path, fsync=False) as zookeeper:
        whole = ["follower", "follower", "leader"]
        eventually(
            lambda: sorted(map(str, zookeeper.modes())) == whole, "a busy machine's servers elect again by themselves"
        )
        put(zookeeper, "/kept", b"by three")
        first = modes_of(zookeeper).index("leader")
        zookeeper.servers[first].kill()
        eventually(lambda: zookeeper.leader() not in (None, first), "a new leader")
        zookeeper.restart(first)
        assert modes_of(zookeeper)[first] == "follower"
    # Other ports, the same data.
    with EmbeddedZooKeeper(servers=3, data_dir=tmp_path, fsync=False) as zookeeper:
        assert get(zookeeper, "/kept") == b"by three"
    for kind in KINDS:
        with pytest.raises(DataDirectoryError, match="holds the data of 3 server"):
            EmbeddedZooKeeper(kind=kind, data_dir=tmp_path)


PARENT = """
import signal, sys, time
from controller.zookeeper.embedded import EmbeddedZooKeeper
zookeeper = EmbeddedZooKeeper(kind=sys.argv[3], fsync=False, data_dir=sys.argv[2])
zookeeper.start()
if sys.argv[1] == "stopped":
    zookeeper.pause()
print(zookeeper.servers[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server_is", ["running", "stopped"])
def test_a_server_is_gone_when_its_parent_is_killed(server_is: str, kind: ZooKeeperKind, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, server_is, str(tmp_path), kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert not gone(server)
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: gone(server), "the server is gone")


def test_a_temporary_data_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    temporary = EmbeddedZooKeeper()
    assert temporary.data_dir.is_dir()
    temporary.close()
    temporary.close()
    assert not temporary.data_dir.exists()

    kept = EmbeddedZooKeeper(data_dir=tmp_path / "new" / "place")
    with pytest.raises(DataDirectoryError, match="in use"):
        EmbeddedZooKeeper(data_dir=tmp_path / "new" / "place")
    kept.close()
    assert kept.data_dir.is_dir()
    with pytest.raises(DataDirectoryError, match=r"holds the data of the server in Python .*--zookeeper=python"):
        EmbeddedZooKeeper(kind="java", data_dir=kept.data_dir)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, "python"),
        ({"kind": "java"}, "java"),
        ({"servers": 3}, "java"),
        ({"java_options": ["-Xmx64m"]}, "java"),
    ],
)
def test_apache_zookeeper_is_chosen_where_it_is_needed(arguments: dict[str, Any], kind: ZooKeeperKind) -> None:
    zookeeper = EmbeddedZooKeeper(**arguments)
    assert zookeeper.kind == kind
    zookeeper.close()


def test_a_server_that_dies_at_its_start_shows_its_log() -> None:
    zookeeper = EmbeddedZooKeeper(java_options=["-XX:NoSuchOption"])
    with pytest.raises(ServerDied, match="NoSuchOption"), zookeeper:
        pass
    assert not zookeeper.data_dir.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_taken_meanwhile_is_replaced_by_another(kind: ZooKeeperKind, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        number = taken.getsockname()[1]
        made: list[HeldPorts] = []

        class Unlucky(HeldPorts):
            def __init__(self, count: int, first: int = 0) -> None:
                super().__init__(count, first)
                if not made:
                    self.numbers = (number, *self.numbers[1:])
                made.append(self)

        monkeypatch.setattr(embedded, "HeldPorts", Unlucky)
        with EmbeddedZooKeeper(kind=kind, fsync=False) as zookeeper:
            assert len(made) == 2
            assert zookeeper.servers[0].port != number


def test_held_ports_are_distinct_and_given_to_nobody_else() -> None:
    first, second = HeldPorts(50), HeldPorts(50)
    assert len({*first.numbers, *second.numbers}) == 100
    first.release()
    second.release()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"servers": 2}, "1 server or 3"),
        ({"kind": "python", "servers": 3}, "3 servers need --zookeeper=java"),
        ({"kind": "python", "jars": "jars"}, "jars needs --zookeeper=java"),
        ({"kind": "python", "java_options": ["-Xmx64m"]}, "no java_options"),
        ({"min_session_timeout_ms": 9000, "max_session_timeout_ms": 8000}, "9000 to 8000 ms"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EmbeddedZooKeeper(**arguments)


def fake_java(home: Path, version: str) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_where_there_is_no_java_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFound) as caught:
        EmbeddedZooKeeper(kind="java")
    for word in ("Debian", "Fedora", "macOS", "apt-get install openjdk-17"):
        assert word in str(caught.value)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaNotFound, match=r"JAVA_HOME is .*nowhere"):
        find_java()


@pytest.mark.parametrize(
    ("version", "accepted"), [("1.8.0_392", False), ("10.0.2", False), ("11.0.2", True), ("17", True), ("25-ea", True)]
)
def test_java_must_be_recent_enough(
    version: str, accepted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        assert find_java() == tmp_path / "bin" / "java"
    else:
        with pytest.raises(JavaNotFound, match="is Java"):
            find_java()


def test_jars_are_matched_by_name_and_what_is_missing_is_named(tmp_path: Path) -> None:
    names = ["zookeeper-3.9.5.jar", "zookeeper-3.10.0.jar", "zookeeper-jute-3.9.5.jar", "slf4j-api-2.0.17.jar"]
    for name in [*names, "zookeeper-docs.jar", "snappy-java-1.1.10.8.jar"]:
        (tmp_path / name).touch()
    with pytest.raises(JarsNotFound, match=r"no metrics-core-VERSION\.jar .*camerlengo\[zookeeper\]"):
        find_jars(tmp_path)
    (tmp_path / "metrics-core-4.2.37.jar").touch()
    found = find_jars(tmp_path)
    assert found.required[0].name == "zookeeper-3.10.0.jar"
    assert found.logging == ()
    with pytest.raises(JarsNotFound, match="no such directory"):
        find_jars(tmp_path / "nowhere")


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JarsNotFound, match=r"pip install 'camerlengo\[zookeeper\]'"):
        find_jars()


def test_the_jars_are_found_without_importing_pyspark() -> None:
    program = (
        "import sys; from controller.zookeeper.embedded import find_jars; find_jars(); print('pyspark' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.strip() == b"False"
