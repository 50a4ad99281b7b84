"""`camerlengo state`: what it prints of a file and of a live cluster, and how it fails."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from controller.cli import state
from controller.cli.main import main
from controller.clock import Future
from controller.zookeeper.cluster_state import Tree, load
from controller.zookeeper.embedded import EmbeddedZooKeeper

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
TREE = str(DATA / "znodes.txt")


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    """Holds the real cluster's znodes below /kafka."""
    with EmbeddedZooKeeper(fsync=False) as server:
        client = KazooClient(server.connect_string, timeout=10.0)
        client.start(30)
        client.create("/kafka")
        for path, row in load(DATA / "znodes.txt").nodes.items():
            if path != "/":
                client.create("/kafka" + path, row.data or b"")
        client.stop()
        client.close()
        yield server


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["state", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> str:
    assert main(["state", *words]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_a_person_reads_the_summary_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--tree", TREE)
    lines = text.splitlines()
    summary = {line[:20].strip(): line[20:].strip() for line in lines[: lines.index("")]}
    assert summary == {
        "cluster": "QhpdYtSjQZCx4lNcGYNXLw",
        "controller": "broker 3, epoch 2",
        "brokers": "2 of 3 live (not registered: 1)",
        "partitions": "14 in 2 topics",
        "offline": "0",
        "under-replicated": "14",
        "off preferred leader": "4 (0 could move back now)",
        "reassigning": "0",
        "topics being deleted": "0",
        "damaged znodes": "0",
    }
    titles = [line for line in lines if line and not line.startswith(" ")][len(summary) :]
    assert titles == ["brokers", "partitions with problems", "topics"]
    assert "  proof-3               2       2      2,3  1,2,3       under-replicated, off preferred leader" in lines
    assert "  proof: 6 partitions, 3 replicas each, 6 under-replicated, 2 off preferred leader" in lines


def test_a_program_reads_json(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(said(capsys, "--tree", TREE, "--json"))
    assert document["format"] == 1
    assert document["controller"] == {"broker_id": 3, "live": True, "timestamp_ms": 1795248335511}
    assert document["controller_epoch"] == 2
    assert document["summary"]["under_replicated"] == 14
    assert [(broker["id"], broker["live"]) for broker in document["brokers"]] == [(2, True), (3, True), (1, False)]
    proof = next(topic for topic in document["topics"] if topic["name"] == "proof")
    assert proof["topic_id"] == "JUNfP4VSTOWZ_6Tfc-zTPA"
    assert proof["partitions"][0] == {
        "partition": 0,
        "leader": 3,
        "leader_epoch": 2,
        "isr": [3, 2],
        "assignment": [1, 3, 2],
        "controller_epoch": 2,
        "zk_version": 2,
        "problems": ["under_replicated", "off_preferred"],
    }


def test_a_live_cluster_is_shown_as_its_file_is_and_saved(
    zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    live = said(capsys, "--zookeeper", f"{zookeeper.connect_string}/kafka", "--json", "--save", str(saved))
    again = said(capsys, "--tree", str(saved), "--json")
    assert live == again
    file = json.loads(said(capsys, "--tree", TREE, "--json"))
    found = json.loads(live)
    for broker in [*file["brokers"], *found["brokers"]]:
        broker.pop("broker_epoch", None)
        broker.pop("session", None)
    for topic in [*file["topics"], *found["topics"]]:
        for partition in topic["partitions"]:
            partition.pop("zk_version")
    assert found == file


def test_zookeeper_without_a_cluster_is_named(zookeeper: EmbeddedZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (zookeeper.connect_string, f"{zookeeper.connect_string}/not/there"):
        complaint = refused(capsys, 3, "--zookeeper", place)
        assert f"{place}: no Kafka cluster" in complaint


def test_a_zookeeper_that_does_not_answer_is_given_up_on(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = refused(capsys, 3, "--zookeeper", "127.0.0.1:1", "--timeout", "0.3")
    assert "127.0.0.1:1: no ZooKeeper answered within 0.3 s" in complaint


@pytest.mark.parametrize(
    ("each_wait", "answered"),
    [(["answer"], True), (["progress", "progress", "answer"], True), (["progress", "silence"], False)],
)
def test_reading_goes_on_while_something_comes_and_no_longer(
    each_wait: list[str], answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = load(DATA / "znodes.txt")
    told: list[Callable[[int], None]] = []

    async def reading(_client: Any, _clock: Any, _pause_ms: float, progress: Callable[[int], None]) -> Tree:
        told.append(progress)
        await Future[None]()
        return tree

    def wait(_pending: Future[Tree], timeout_s: float) -> Tree:
        what = each_wait.pop(0)
        if what == "answer":
            return tree
        if what == "progress":
            told[0](500)
        raise TimeoutError(f"not answered within {timeout_s} s")

    monkeypatch.setattr(state, "read_cluster_tree", reading)
    monkeypatch.setattr(state, "wait", wait)
    nothing: Any = None
    if answered:
        assert state._read_while_answered(nothing, nothing, 1.0, 1.0) is tree
    else:
        with pytest.raises(TimeoutError):
            state._read_while_answered(nothing, nothing, 1.0, 1.0)
    assert each_wait == []


@pytest.mark.parametrize(
    "content", [None, b"", b"something else", b'{"json":1}', b"/hbase\n    data=None\n    version=0\n"]
)
def test_a_file_that_is_no_cluster_is_named(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some-file"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in refused(capsys, 2, "--tree", str(path))


def test_a_place_to_save_that_turns_out_to_be_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be seen before, `test_output.py` has."""

    def full(_tree: object, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(state, "save", full)
    said = refused(capsys, 2, "--tree", TREE, "--save", str(tmp_path / "saved"))
    assert f"{tmp_path / 'saved'}: No space left on device" in said


@pytest.mark.parametrize(
    "words",
    [[], ["--tree", "a", "--zookeeper", "b"], ["--zookeeper", "b", "--timeout", "0"], ["--zookeeper", "h:port:x"]],
)
def test_words_that_make_no_sense_are_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["state", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "controller.cli", "state", "--tree", TREE]
    ran = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_what_is_wrong_and_what_is_pending_is_shown_to_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stat = "    version=1 czxid=5 ephemeralOwner=0x1"
    znodes = {
        "/brokers/ids/1": b"{",
        "/brokers/ids/2": b'{"version":4,"endpoints":["SSL://[::1]:9093"],"rack":"r1"}',
        "/brokers/topics/t": b'{"version":3,"partitions":{"0":[2,1],"1":[1]},"adding_replicas":{"0":[2]}}',
        "/brokers/topics/t/partitions/0/state": b'{"controller_epoch":1,"leader":-1,"leader_epoch":3,"isr":[1]}',
        "/brokers/topics/u": b"[]",
        "/admin/delete_topics/old": None,
        "/admin/reassign_partitions": b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[2]}]}',
    }
    path = tmp_path / "tree"
    path.write_text("".join(f"{name}\n    data={data!r}\n{stat}\n" for name, data in znodes.items()))
    text = said(capsys, "--tree", str(path))
    for expected in (
        "controller            none (no epoch)",
        "cluster               no id",
        "offline               2",
        "damaged znodes        2",
        "/brokers/ids/1: expected a broker registration",
        "damaged registration",
        "SSL://[::1]:9093",
        "no state yet",
        "u: damaged",
        "delete topic old",
        "reassign t-0: adding 2, removing -",
        "asked for: reassign t-1 to 2",
    ):
        assert expected in text


def test_a_large_cluster_is_shown_without_each_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stat = "    version=1 czxid=5"
    assignment = ",".join(f'"{partition}":[1]' for partition in range(501))
    path = tmp_path / "tree"
    path.write_text(f"/brokers/topics/t\n    data=b'{{\"partitions\":{{{assignment}}}}}'\n{stat}\n")
    text = said(capsys, "--tree", str(path))
    assert "t: 501 partitions, 1 replicas each, 501 offline" in text
    assert "... and 461 more (--json lists them all)" in text
    assert len(text.splitlines()) < 70
