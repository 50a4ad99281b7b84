"""meta.properties: read as Kafka's, refused by name if damaged; a broker stays in the cluster of its logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from controller.broker.settings import BadSettings, parse_settings
from controller.hosts.broker_id import MetaProperties, keep, kept_broker_id, unreadable
from controller.hosts.local_cluster import BrokerChild
from controller.hosts.process import COULD_NOT_RUN, STOPPED
from controller.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import DEADLINE_S, eventually

KAFKAS = "#\n#Mon Nov 23 01:06:30 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nversion=0\nbroker.id=3\n"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def kept(*directories: Path, broker_id: str = "3") -> tuple[int, str | None]:
    log_dirs = ",".join(map(str, directories))
    given = {"zookeeper.connect": "127.0.0.1:1", "broker.id": broker_id, "log.dirs": log_dirs}
    settings = kept_broker_id(parse_settings(given))
    return settings.broker_id, settings.cluster_id


def directory(path: Path, content: str | bytes) -> Path:
    path.mkdir()
    (path / "meta.properties").write_bytes(content if isinstance(content, bytes) else content.encode("latin-1"))
    return path


def test_kafkas_own_file_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    logs = directory(tmp_path / "logs", KAFKAS)
    assert kept(logs, broker_id="-1") == (3, CLUSTER)
    keep(str(logs), MetaProperties(3, CLUSTER))
    assert (logs / "meta.properties").read_text() == KAFKAS


@pytest.mark.parametrize("content", ["version=0\nbroker.id=3\n", "broker.id = 3", "", " \n"])
def test_a_file_without_a_cluster_id_gets_one(tmp_path: Path, content: str) -> None:
    logs = directory(tmp_path / "logs", content)
    assert kept(logs) == (3, None)
    keep(str(logs), MetaProperties(3, CLUSTER))
    assert kept(logs) == (3, CLUSTER)
    assert [path.name for path in logs.iterdir()] == ["meta.properties"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xff\xfe\x00garbage", "neither broker.id nor cluster.id"),
        (b"\x00" * 60, "neither broker.id nor cluster.id"),
        ("version=1\nnode.id=3\ncluster.id=x\n", "version=1: expected 0"),
        ("broker.id=three\n", "broker.id=three: expected a whole number"),
        ("broker.id=\n", "broker.id=: expected a whole number"),
        ("broker.id=3\ncluster.id=\\u00e9\n", "expected printable ASCII"),
        ("broker.id=3\ncluster.id=\\u12\n", "is damaged"),
        ("broker.id=\xb3\n", "expected a whole number"),
    ],
)
def test_a_damaged_file_is_refused_by_name_with_the_way_out(tmp_path: Path, content: str | bytes, what: str) -> None:
    logs = directory(tmp_path / "logs", content)
    with pytest.raises(BadSettings) as refused:
        kept(logs)
    assert f"{logs}/meta.properties is damaged" in str(refused.value)
    assert what in str(refused.value)
    assert "restore the file" in str(refused.value)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    one = directory(tmp_path / "one", KAFKAS)
    other = directory(tmp_path / "other", KAFKAS.replace(CLUSTER, "AnotherAnotherAnotherA"))
    with pytest.raises(BadSettings, match="of different clusters"):
        kept(one, other)
    assert kept(one, directory(tmp_path / "new", "version=0\nbroker.id=3\n")) == (3, CLUSTER)


def test_a_directory_whose_file_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs" / "meta.properties").mkdir(parents=True)
    found = unreadable([str(tmp_path / "logs"), str(tmp_path / "none")])
    assert [*found] == [str(tmp_path / "logs")]


# A broker's process


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tick_ms=2_000) as server:
        yield server


def broker(zookeeper: EmbeddedZooKeeper, folder: Path, chroot: str) -> BrokerChild:
    settings = {
        "zookeeper.connect": f"{zookeeper.connect_string}/{folder.name}-{chroot}",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": f"{folder / 'one'},{folder / 'two'}",
    }
    return BrokerChild(7, settings, folder)


def test_a_broker_stays_in_the_cluster_that_its_logs_are_of(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """On another ZooKeeper, or one that has lost its data, it would offer another cluster's records, or none."""
    directory(tmp_path / "one", "version=0\nbroker.id=7\n")
    own = broker(zookeeper, tmp_path, "own")
    try:
        own.start()
        own.await_ready(time.monotonic() + DEADLINE_S)
        assert own.stop() == STOPPED
    finally:
        own.close()
    files = {(tmp_path / name / "meta.properties").read_text() for name in ("one", "two")}
    (text,) = files
    cluster_id = dict(line.split("=", 1) for line in text.splitlines())["cluster.id"]
    assert text == f"version=0\nbroker.id=7\ncluster.id={cluster_id}\n"
    client = KazooClient(zookeeper.connect_string)
    client.start(DEADLINE_S)
    try:
        client.create(f"/{tmp_path.name}-other/cluster/id", b'{"version":"1","id":"another"}', makepath=True)
        for chroot, said in (("other", "is of cluster another"), ("empty", "has no cluster id")):
            stranger = broker(zookeeper, tmp_path, chroot)
            try:
                stranger.start()
                eventually(lambda one=stranger: not one.running, "it ends")  # type: ignore[misc]
            finally:
                stranger.close()
            assert stranger.exit_status == COULD_NOT_RUN
            assert f"are of cluster {cluster_id}" in stranger.log_tail()
            assert said in stranger.log_tail()
            assert "Set zookeeper.connect to the ZooKeeper of cluster" in stranger.log_tail()
            assert client.exists(f"/{tmp_path.name}-{chroot}/brokers") is None, "nothing was written there"
    finally:
        client.stop()
        client.close()
    own.start()
    try:
        own.await_ready(time.monotonic() + DEADLINE_S)
    finally:
        own.close()
