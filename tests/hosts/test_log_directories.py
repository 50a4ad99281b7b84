"""A broker process's log directories: how they are left, and what one that can't be used leaves of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from controller.broker.settings import parse_settings
from controller.hosts.broker_id import kept_broker_id
from controller.hosts.local_cluster import BrokerChild, BrokerDied, LocalCluster, ask_metadata
from controller.hosts.process import COULD_NOT_RUN, STOPPED
from controller.storage.checkpoints import CLEAN_SHUTDOWN
from tests.processes import DEADLINE_S, eventually


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, session_timeout_ms=10_000) as running:
        yield running


def start(cluster: LocalCluster, folder: Path, *directories: Path, broker_id: int = 7) -> BrokerChild:
    settings = cluster.brokers[1].settings | {
        "log.dirs": ",".join(map(str, directories)),
        "replica.high.watermark.checkpoint.interval.ms": "600000",  # what a test breaks is found by what it does next
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }
    broker = BrokerChild(broker_id, settings, folder)
    broker.start()
    return broker


def unusable(folder: Path) -> Path:
    """A directory that can't be made: its parent is a file."""
    (folder / "file").write_bytes(b"")
    return folder / "file" / "logs"


def await_ready(broker: BrokerChild) -> None:
    eventually(lambda: broker.ready_at() is not None or not broker.running, "the broker is ready")
    broker.require_running()


def test_a_stop_leaves_the_logs_clean_and_a_kill_does_not(cluster: LocalCluster, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    broker = start(cluster, tmp_path, logs)
    await_ready(broker)
    assert broker.stop() == STOPPED
    assert (logs / CLEAN_SHUTDOWN).exists()
    broker.start()
    await_ready(broker)
    assert "0 logs, closed cleanly" in broker.log_file.read_text()
    assert not (logs / CLEAN_SHUTDOWN).exists()
    broker.kill()
    assert not (logs / CLEAN_SHUTDOWN).exists()


def test_a_directory_that_can_not_be_used_is_told_and_the_broker_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    bad, good = unusable(tmp_path), tmp_path / "logs"
    broker = start(cluster, tmp_path, bad, good)
    await_ready(broker)
    assert f"log directory {bad} is offline" in broker.log_file.read_text()
    assert broker.stop() == STOPPED
    assert (good / CLEAN_SHUTDOWN).exists()


def state_of(cluster: LocalCluster, topic: str) -> tuple[int, list[int]]:
    """Leader and ISR of its partition 0, as broker 1 knows them."""
    address = cluster.brokers[1].ready_at()
    assert address is not None
    (found,) = [one for one in ask_metadata(address, DEADLINE_S).topics if one.name == topic]
    return found.partitions[0].leader_id, sorted(found.partitions[0].isr_nodes)


def test_a_directory_that_fails_loses_its_leaders_and_its_broker_lives(cluster: LocalCluster, tmp_path: Path) -> None:
    """S53's beginning. Partitions are spread: the first and the third lie in the directory that breaks."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    broker = start(cluster, tmp_path, bad, good)
    await_ready(broker)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})

    def create(topic: str) -> None:
        client.create_topics([NewTopic(topic, 1, replica_assignment=[[7, 1]])])[topic].result(DEADLINE_S)

    for topic in ("first", "second"):
        create(topic)
        eventually(lambda topic=topic: state_of(cluster, topic) == (7, [1, 7]), "it is led by 7")  # type: ignore[misc]
    eventually(lambda: (bad / "first-0").is_dir() and (good / "second-0").is_dir(), "it has made both logs")
    bad.rename(tmp_path / "gone")
    bad.write_bytes(b"")  # nothing can be made below it any more
    create("third")
    for topic in ("first", "third"):
        eventually(lambda topic=topic: state_of(cluster, topic) == (1, [1]), "it is led by 1")  # type: ignore[misc]
    assert state_of(cluster, "second") == (7, [1, 7])
    assert f"log directory {bad} is offline" in broker.log_file.read_text()
    assert broker.stop() == STOPPED


def test_a_broker_without_a_directory_that_can_be_used_does_not_start(cluster: LocalCluster, tmp_path: Path) -> None:
    bad = unusable(tmp_path)
    broker = start(cluster, tmp_path, bad)
    eventually(lambda: not broker.running, "it ends", DEADLINE_S)
    with pytest.raises(BrokerDied, match=f"log directory {bad} is offline"):
        broker.require_running()
    assert broker.exit_status == COULD_NOT_RUN


def test_two_brokers_do_not_share_a_directory(cluster: LocalCluster, tmp_path: Path) -> None:
    theirs = Path(cluster.brokers[1].settings["log.dirs"])
    broker = start(cluster, tmp_path, theirs, broker_id=1)
    eventually(lambda: not broker.running, "it ends")
    assert broker.exit_status == COULD_NOT_RUN
    assert "another process has this log directory" in broker.log_file.read_text()
    other = start(cluster, tmp_path, theirs)
    eventually(lambda: not other.running, "it ends")
    assert "broker.id=7: expected 1, which the log directories are of" in other.log_file.read_text()


def test_an_id_that_can_not_be_read_is_none_that_is_kept(tmp_path: Path) -> None:
    given = {"zookeeper.connect": "127.0.0.1:1", "broker.id": "3", "log.dirs": str(unusable(tmp_path))}
    assert kept_broker_id(parse_settings(given)).broker_id == 3
