"""`camerlengo cluster` as a process: its two lines, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import confluent_kafka.admin
import pytest

from controller.broker.settings import address, parse_properties
from controller.cli.main import main
from controller.cli.running import announced, running
from controller.hosts.local_cluster import ask_metadata, shifted
from controller.hosts.zookeeper_access import connection_to
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.operations import ANY_VERSION, Create, MultiFailed, NoAuth, SetData
from tests.processes import eventually, running_with

DEADLINE_S = 60.0


class Command:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.errors: IO[bytes] = (folder.parent / "errors").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "controller.cli", "cluster", "--data", str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"XDG_RUNTIME_DIR": str(folder.parent)},
        )

    def line(self) -> str:
        """What it says once it is complete. AssertionError with why it ended, if it says nothing."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.said()
        return line

    def said(self) -> str:
        return (self.folder.parent / "errors").read_text()

    def children(self) -> list[str]:
        """ZooKeeper's and the brokers' processes: each has the folder in its command line."""
        return [line for line in running_with(str(self.folder)) if " cluster --data" not in line]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Command]:
    """A cluster of two brokers; indirect parameters are further options."""
    options = getattr(request, "param", ())
    begun = Command(tmp_path / "data", "--brokers", "2", "--session-timeout-ms", "10000", *options)
    yield begun
    begun.close()


@pytest.mark.parametrize("command", [(), ("--zookeeper=java",)], ids=["python", "java"], indirect=True)
def test_it_says_where_and_is_complete_by_then(command: Command) -> None:
    line = command.line()
    assert re.fullmatch(r"bootstrap\.servers=127\.0\.0\.1:\d+,127\.0\.0\.1:\d+", line)
    for text in line.removeprefix("bootstrap.servers=").split(","):
        seen = ask_metadata(address(text), DEADLINE_S)
        assert sorted(broker.node_id for broker in seen.brokers) == [1, 2]
        assert seen.controller_id in (1, 2)
    assert len(command.children()) == 3
    assert re.fullmatch(r"zookeeper\.connect=127\.0\.0\.1:\d+", command.line())


def test_other_commands_find_it_and_its_ports_are_those_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    port = two_free_ports()
    command = Command(tmp_path / "data", "--brokers", "2", "--session-timeout-ms", "10000", "--port", str(port))
    try:
        assert command.line() == f"bootstrap.servers=127.0.0.1:{port},127.0.0.1:{port + 1}"
        connect = command.line().removeprefix("zookeeper.connect=")
        assert [each.zookeeper_connect for each in running()] == [connect]
        assert main(["state", "--json"]) == 0
        state = json.loads(capsys.readouterr().out)
        assert [broker["id"] for broker in state["brokers"]] == [1, 2]
        assert main(["explain"]) == 0
        assert main(["pause", "--reason", "a test"]) == 0
        assert "paused: a test" in capsys.readouterr().out
        with announced("127.0.0.1:1"):
            assert main(["state"]) == 2
        said = capsys.readouterr().err
        assert "2 clusters are running on this machine" in said
        assert f"--zookeeper {connect}" in said
    finally:
        command.close()
    eventually(lambda: running() == [], "a cluster that was killed is not found")
    assert main(["pause"]) == 2
    assert "no `camerlengo cluster` of this user is running on this machine" in capsys.readouterr().err


ENSEMBLE = pytest.param(("--secure", "--zookeeper-servers", "3"), marks=pytest.mark.programs)


@pytest.mark.parametrize("command", [("--secure",), ENSEMBLE], ids=["python", "java"], indirect=True)
def test_a_secured_cluster_says_how_to_connect_and_its_keys_go_with_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography", reason="the extra `secure`")
    options = dict(command.line().split("=", 1) for _ in range(7))
    connect = options.pop("zookeeper.connect")
    secrets = command.folder / "secrets"
    assert options["ssl.ca.location"] == str(secrets / "authority.crt")
    assert command.line().startswith("# kafka-python: bootstrap_servers=")
    assert f"sasl.password={options['sasl.password']}" in (secrets / "client.conf").read_text().splitlines()
    topic = confluent_kafka.admin.NewTopic("t", 1, 2)
    client = confluent_kafka.admin.AdminClient(options | {"log_level": 0})
    client.create_topics([topic])["t"].result(DEADLINE_S)
    producer = confluent_kafka.Producer(options | {"log_level": 0, "acks": "all"})
    errors: list[object] = []
    producer.produce("t", b"x", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None]
    with_secrets = [path for path in secrets.iterdir() if path.name != "authority.crt"]
    with_secrets += command.folder.glob("broker-*.properties")
    # Four keys, two files for each of three users, two brokers' settings, what is for ZooKeeper.
    assert len(with_secrets) == 14
    assert {stat.S_IMODE(path.stat().st_mode) for path in with_secrets} == {0o600}
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(command.folder.parent))
    assert main(["pause", "--reason", "a test"]) == 0
    assert "paused: a test" in capsys.readouterr().out
    config = str(secrets / "zookeeper.properties")
    assert main(["state", "--json", "--zookeeper", connect, "--zookeeper-config", config]) == 0
    assert [broker["id"] for broker in json.loads(capsys.readouterr().out)["brokers"]] == [1, 2]
    check_zookeeper(connect, secrets)
    command.process.send_signal(signal.SIGTERM)
    assert command.process.wait(DEADLINE_S) == 0
    assert not secrets.exists()


def check_zookeeper(connect: str, secrets: Path) -> None:
    """A client of the authority that does not log in sees no credentials, and changes nothing."""
    given = parse_properties((secrets / "zookeeper.properties").read_text())
    given = {name: text for name, text in given.items() if name.startswith("zookeeper.ssl.")}
    stranger = connection_to(connect, ThreadClock(), 18_000, given, lambda _level, _line: None)
    try:
        wait(stranger.start(), DEADLINE_S)
        assert wait(stranger.read(["/brokers/ids"]), DEADLINE_S).rows[0] is not None
        with pytest.raises(NoAuth):
            wait(stranger.read(["/config/users/admin"]), DEADLINE_S)
        for write in (Create("/brokers/ids/9", b""), SetData("/kafka-acl/Topic/*", b"", ANY_VERSION)):
            with pytest.raises(MultiFailed) as failed:
                wait(stranger.multi([write]), DEADLINE_S)
            assert isinstance(failed.value.error, NoAuth)
    finally:
        wait(stranger.close(), DEADLINE_S)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("zookeeper.ssl.client.enable=true", "expected a PEM file with whom to trust"),
        ("camerlengo.zookeeper.sasl=broker", "camerlengo.zookeeper.sasl: expected USER:PASSWORD"),
        (None, "No such file"),
    ],
)
def test_a_wrong_config_of_zookeeper_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    config = tmp_path / "zookeeper.properties"
    if text is not None:
        config.write_text(text)
    assert main(["state", "--zookeeper", "127.0.0.1:1", "--zookeeper-config", str(config)]) == 2
    assert says in capsys.readouterr().err


def two_free_ports() -> int:
    """The first of two neighbours that nobody listens on, below those that systems give out."""
    for port in range(20_000 + os.getpid() % 5_000, 30_000, 2):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


def test_a_port_that_is_taken_is_named_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["cluster", "--brokers", "1", "--override", f"listeners=PLAINTEXT://127.0.0.1:{port}"]) == 3
        assert f"broker 1 can't listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "first", "third"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, "PLAINTEXT://:9092", "PLAINTEXT://:9094"),
        ({"listeners": "A://[::1]:0,B://h:90"}, "A://[::1]:0,B://h:90", "A://[::1]:0,B://h:92"),
    ],
)
def test_each_brokers_ports_are_one_higher(settings: dict[str, str], first: str, third: str) -> None:
    assert [shifted(settings["listeners"], by) for by in (0, 2)] == [first, third]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_is_left_behind(command: Command, number: int, status: int) -> None:
    command.line()
    assert command.children()
    command.process.send_signal(number)
    assert command.process.wait(DEADLINE_S) == status
    eventually(lambda: command.children() == [], "everything it started is gone")


def test_nothing_is_left_of_one_that_was_killed_while_it_started(command: Command) -> None:
    eventually(lambda: bool(command.children()), "ZooKeeper starts")
    command.process.kill()
    eventually(lambda: command.children() == [], "everything it started is gone")


def test_a_broker_that_ends_by_itself_ends_it_all(command: Command) -> None:
    command.line()
    broker = next(line for line in command.children() if "broker-1.properties" in line)
    victim = int(broker.partition(":")[0])
    subprocess.run(["kill", "-9", str(victim)], check=True)
    assert command.process.wait(DEADLINE_S) == 3
    assert "broker 1 ended by itself, status -9" in command.said()
    eventually(lambda: command.children() == [], "everything it started is gone")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--brokers", "0"], "--brokers: expected an integer from 1 to 1000, got '0'"),
        (["--override", "broker.rac=x"], "broker.rac is no setting"),
        (["--override", "num.partitions"], "expected NAME=VALUE"),
        (["--override", "log.dirs=/tmp/x"], "log.dirs can't be overridden"),
        (["--override", "broker.id=3"], "broker.id can't be overridden"),
        (["--port", "19092", "--override", "listeners=PLAINTEXT://127.0.0.1:19092"], "expected one of them"),
        (["--session-timeout-ms", "0"], "--session-timeout-ms: expected an integer from 100 to 120000, got '0'"),
    ],
)
def test_bad_usage_is_named(arguments: list[str], told: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "controller.cli", "cluster", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr
