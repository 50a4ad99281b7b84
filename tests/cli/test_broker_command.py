"""`camerlengo broker` as a process: its one line, its exit statuses, its signals, and what it leaves in ZooKeeper."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from controller.hosts.local_cluster import BrokerChild, ask_metadata
from controller.system import HeldPorts
from controller.trace import BrokerRegistered, SessionEnded
from controller.trace_records import decode_record
from controller.zookeeper.embedded import EmbeddedZooKeeper
from controller.zookeeper.launch import launch, stop
from controller.zookeeper.server.server import ZooKeeperServer
from tests.hosts.certificates import Authority
from tests.processes import eventually

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-m", "controller.cli", "broker"]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tick_ms=200) as server:
        yield server


@pytest.fixture
def broker(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BrokerChild]:
    settings = {
        "zookeeper.connect": f"{zookeeper.connect_string}/{tmp_path.name}",
        "zookeeper.session.timeout.ms": "1500",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "camerlengo.trace.file": str(tmp_path / "trace.jsonl"),
    }
    process = BrokerChild(1, settings, tmp_path)
    yield process
    process.close()


def start(broker: BrokerChild) -> tuple[str, int]:
    broker.start()
    return broker.await_ready(time.monotonic() + DEADLINE_S)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def override(**settings: str) -> list[str]:
    return [part for name, value in settings.items() for part in ("--override", f"{name.replace('_', '.')}={value}")]


def test_a_lone_broker_serves_under_a_chroot_and_goes_when_asked(broker: BrokerChild, tmp_path: Path) -> None:
    address = start(broker)
    eventually(lambda: ask_metadata(address, DEADLINE_S).controller_id == 1, "it is controller")
    (node,) = ask_metadata(address, DEADLINE_S).brokers
    assert (node.node_id, (node.host, node.port)) == (1, address), "an ephemeral port is advertised as it was bound"
    assert broker.stop(DEADLINE_S) == 0
    log = broker.log_file.read_text()
    assert "everything was moved" in log
    assert "Traceback" not in log
    events = [decode_record(line).event for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    assert sum(isinstance(event, BrokerRegistered) for event in events) == 1
    assert isinstance(events[-1], SessionEnded), "it ended its session itself: its ephemerals are gone at once"


def test_what_it_makes_is_its_own_where_acls_are_set_and_tls_carries_it(broker: BrokerChild, tmp_path: Path) -> None:
    """zookeeper.set.acl: the world reads, but not what is sensitive, and whoever has the digest writes."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("zookeeper", "/CN=zookeeper"))
    with ZooKeeperServer(tls=context) as server:
        hosts = f"localhost:{server.port}/{tmp_path.name}"
        broker.settings |= {
            "zookeeper.connect": hosts,
            "zookeeper.set.acl": "true",
            "camerlengo.zookeeper.digest": "kafka:secret",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(authority.certificate),
            "zookeeper.ssl.truststore.type": "PEM",
        }
        start(broker)
        tls: dict[str, Any] = {"use_ssl": True, "ca": str(authority.certificate)}
        stranger, friend = KazooClient(hosts, **tls), KazooClient(hosts, auth_data=[("digest", "kafka:secret")], **tls)
        try:
            for client in (stranger, friend):
                client.start(DEADLINE_S)
            assert stranger.get("/brokers/ids/1")[0]
            with pytest.raises(NoAuthError):
                stranger.set("/brokers/ids/1", b"{}")
            with pytest.raises(NoAuthError):
                stranger.get("/config/users")
            friend.set("/brokers/seqid", b"")
        finally:
            for client in (stranger, friend):
                client.stop()
                client.close()
        assert broker.stop(DEADLINE_S) == 0
    assert "everyone may change" not in broker.log_file.read_text()


def test_a_broker_that_was_killed_comes_back_in_a_new_life(broker: BrokerChild, tmp_path: Path) -> None:
    """Its former session still holds /brokers/ids/1 (S06): it waits until that has ended, and registers."""
    start(broker)
    broker.kill()
    start(broker)
    events = [decode_record(line).event for line in (tmp_path / "trace.jsonl").read_bytes().splitlines()]
    first, second = [event.broker_epoch for event in events if isinstance(event, BrokerRegistered)]
    assert second > first


def test_an_id_that_another_broker_lives_under_is_refused(broker: BrokerChild, tmp_path: Path) -> None:
    start(broker)
    (tmp_path / "other").mkdir()
    other = BrokerChild(1, broker.settings, tmp_path / "other")
    try:
        other.start()
        eventually(lambda: not other.running, "the second one gave up")
    finally:
        other.close()
    assert other.exit_status == 3
    assert "broker id 1 is in use" in other.log_tail()
    assert broker.running


def test_an_interrupt_is_a_shutdown_too(broker: BrokerChild) -> None:
    start(broker)
    os.kill(broker.pid, signal.SIGINT)
    eventually(lambda: not broker.running, "it is gone")
    assert broker.exit_status == 0


def test_s20_a_shutdown_without_zookeeper_ends(tmp_path: Path) -> None:
    """KAFKA-9189: the controller is asked where the metadata says, a bounded number of times; nothing waits for
    ZooKeeper, which is stopped in its tracks here."""
    with EmbeddedZooKeeper(tick_ms=200) as lost:
        broker = BrokerChild(
            1,
            {
                "zookeeper.connect": lost.connect_string,
                "zookeeper.session.timeout.ms": "1500",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "controlled.shutdown.retry.backoff.ms": "100",
            },
            tmp_path,
        )
        try:
            address = start(broker)
            eventually(lambda: ask_metadata(address, DEADLINE_S).controller_id == 1, "it is controller")
            lost.pause()
            assert broker.stop(DEADLINE_S) == 0
        finally:
            lost.resume()
            broker.close()


def test_without_zookeeper_it_says_so_and_ends() -> None:
    ports = HeldPorts(1)
    ended = run(
        *override(
            broker_id="1",
            zookeeper_connect=f"127.0.0.1:{ports.numbers[0]}",
            listeners="PLAINTEXT://127.0.0.1:0",
            zookeeper_connection_timeout_ms="500",
        )
    )
    ports.release()
    assert ended.returncode == 3
    assert re.search(r"no connection to ZooKeeper at 127\.0\.0\.1:\d+ in 0\.5 s", ended.stderr)
    assert ended.stdout == ""


def test_a_port_that_is_taken_is_named() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listener = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        ended = run(*override(broker_id="1", zookeeper_connect="127.0.0.1:1", listeners=listener))
    assert ended.returncode == 3
    assert f"{listener}: Address already in use" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "zookeeper.connect is required"),
        (["--override", "broker.id"], "expected NAME=VALUE"),
        (["--override", "brker.id=1"], "brker.id is no setting; did you mean broker.id?"),
        (["--config", "/nowhere/server.properties"], "/nowhere/server.properties: No such file or directory"),
        (override(zookeeper_connect="h:1", broker_id="-1"), "log.dirs, where a generated id can be kept"),
    ],
)
def test_bad_usage_is_named(arguments: list[str], told: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert told in ended.stderr


def test_an_override_goes_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("broker.id=1\nzookeeper.connect=127.0.0.1:2181\nnum.partitions=4\n")
    ended = run("--config", str(config), "--override", "num.partitions=0")
    assert ended.returncode == 2
    assert "num.partitions=0: expected a whole number, 1 or more" in ended.stderr


def test_a_generated_id_is_kept(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    settings = override(
        zookeeper_connect=f"{zookeeper.connect_string}/generated",
        listeners="PLAINTEXT://127.0.0.1:0",
        log_dirs=str(tmp_path / "logs"),
    )
    ids = []
    for _ in range(2):
        log = tmp_path / "out"
        with log.open("wb") as out:
            process = launch([*COMMAND, *settings], stdout=out, stderr=out)
        eventually(lambda log=log: b" ready at " in log.read_bytes(), "it is ready")  # type: ignore[misc]
        ids.append(re.search(r"broker (\d+) ready", log.read_text()))
        assert stop(process, DEADLINE_S) == 0
    assert [found and found[1] for found in ids] == ["1001", "1001"]
    kept = (tmp_path / "logs" / "meta.properties").read_text()
    assert re.fullmatch(r"version=0\nbroker\.id=1001\ncluster\.id=[\w-]{22}\n", kept)
