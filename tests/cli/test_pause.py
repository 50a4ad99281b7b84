"""`camerlengo pause` against a ZooKeeper server: what it writes, what it says, and how it fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from controller.cli.main import main
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_pause
from controller.zookeeper.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedZooKeeper(fsync=False) as server:
        yield server.connect_string


def said(capsys: pytest.CaptureFixture[str], servers: str, *words: str) -> str:
    assert main(["pause", "--zookeeper", f"{servers}/kafka", *words]) == 0
    return capsys.readouterr().out


def test_a_pause_is_kept_with_its_reason_until_it_is_lifted(capsys: pytest.CaptureFixture[str], servers: str) -> None:
    admin = KazooClient(servers, timeout=10.0)
    admin.start(30)
    try:
        assert main(["pause", "--zookeeper", f"{servers}/kafka", "--reason", "x"]) == 3
        assert "not a Kafka cluster: /admin does not exist" in capsys.readouterr().err
        admin.create(f"/kafka{paths.ADMIN}", makepath=True)
        assert said(capsys, servers) == "not paused\n"
        assert said(capsys, servers, "--reason", " a rack moves ") == "paused: a rack moves\n"
        pause = decode_pause(paths.CONTROLLER_PAUSE, admin.get(f"/kafka{paths.CONTROLLER_PAUSE}")[0])
        assert pause.reason == "a rack moves"
        assert pause.since_ms > 1_600_000_000_000
        assert said(capsys, servers, "--reason", "another") == "paused: another\n"
        assert said(capsys, servers) == "paused: another\n"
        admin.set(f"/kafka{paths.CONTROLLER_PAUSE}", b"{")
        assert said(capsys, servers).startswith(f"paused: {paths.CONTROLLER_PAUSE}")
        assert said(capsys, servers, "--resume") == "not paused\n"
        assert said(capsys, servers, "--resume") == "not paused\n"
    finally:
        admin.stop()
        admin.close()


def test_words_that_make_no_sense_and_a_zookeeper_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--reason", " "], ["--reason", "x", "--resume"]):
        with pytest.raises(SystemExit) as refused:
            main(["pause", "--zookeeper", "127.0.0.1:1", *words])
        assert refused.value.code == 2
    assert main(["pause", "--zookeeper", "127.0.0.1:1", "--timeout", "0.2"]) == 3
    assert "no ZooKeeper answered" in capsys.readouterr().err
