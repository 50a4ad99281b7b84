"""`camerlengo explain`: what it says of the real cluster's znodes, as text and as JSON, and how it fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main

DATA = Path(__file__).parent.parent / "data" / "kafka-2.8.2"
KILLED = str(DATA / "znodes.txt")
"""Broker 1 is gone, which was the controller."""
ADMINISTERED = str(DATA / "znodes-after-admin.txt")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    document = json.loads(said(capsys, *words, "--json"))
    assert document["format"] == 1
    found: list[dict[str, Any]] = document["findings"]
    return found


def test_a_partition_whose_preferred_leader_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--tree", KILLED, "proof-3").splitlines()
    assert lines[0] == "partition proof-3: 1 under-replicated, 1 off its preferred leader"
    assert "  why    broker 2 leads, 1 is preferred and is not registered" in lines
    assert "  change broker 1 registers and comes into sync" in lines


def test_the_real_clusters_trouble_is_one_dead_broker(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, "--tree", KILLED)
    assert [one["what"] for one in found].count("under-replicated") == 14
    assert {tuple(one["changes"]) for one in found if one["what"] == "under-replicated"} == {
        ("broker 1 registers and catches up",)
    }
    (broker,) = findings(capsys, "--tree", KILLED, "1")
    assert broker["what"] == "not registered"
    assert broker["why"].startswith("it has 14 replicas; 0 partitions without a leader")
    assert said(capsys, "--tree", KILLED, "2") == "broker 2: ok\n"


def test_the_cluster_after_its_administration_explains_what_state_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "--tree", ADMINISTERED, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    counts = [one["what"] for one in findings(capsys, "--tree", ADMINISTERED)]
    assert counts.count("offline") == summary["offline"]
    assert counts.count("under-replicated") == summary["under_replicated"]
    assert counts.count("off its preferred leader") == summary["off_preferred"]


def test_the_controller_of_a_sound_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--tree", ADMINISTERED, "controller") == "the controller: ok\n"
    document = json.loads(said(capsys, "--tree", ADMINISTERED, "controller", "--json"))
    assert document["subject"] == {"kind": "controller"}


def test_the_document_names_its_subject(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "--tree", KILLED, "proof-3", "--json"))["subject"] == {
        "kind": "partition",
        "name": "proof",
        "partition": 3,
    }
    assert json.loads(said(capsys, "--tree", KILLED, "--json"))["subject"] == {"kind": "cluster"}


def test_long_answers_are_cut_as_text_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.cli.explain.SHOWN", 3)
    assert said(capsys, "--tree", KILLED).splitlines()[-1] == "... and 15 more (--json has them all)"
    assert len(findings(capsys, "--tree", KILLED)) == 18


@pytest.mark.parametrize("subject", ["nothing", "proof-99", "broker:99"])
def test_what_is_not_there_is_a_usage_error(capsys: pytest.CaptureFixture[str], subject: str) -> None:
    assert main(["explain", "--tree", KILLED, subject]) == 2
    assert subject in capsys.readouterr().err


def test_a_zookeeper_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--zookeeper", "127.0.0.1:1", "--timeout", "0.2", "t"]) == 3
    assert "no ZooKeeper answered" in capsys.readouterr().err


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """A broker's settings and files: the oldest segment on an HDD alone, one on both, one being copied, the active."""
    for name, size in {
        "hdd/proof-3-tier/00000000000000000000.log": 100,
        "hdd/proof-3-tier/00000000000000000010.log": 200,
        "hdd/proof-3-tier/00000000000000000020.log.copying": 50,
        "ssd/proof-3/00000000000000000010.log": 200,
        "ssd/proof-3/00000000000000000020.log": 300,
        "ssd/proof-3/00000000000000000030.log": 400,
        "ssd/proof-3/00000000000000000040.log": 0,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "ssd/proof-3/tier-checkpoint").write_text(f"0\nsegment 0 {tmp_path}/hdd\n")
    dirs = f"log.dirs={tmp_path}/ssd,{tmp_path}/hdd\nlog.dirs.tiers=ssd,hdd\n"
    (tmp_path / "server.properties").write_text(f"broker.id=1\nzookeeper.connect=zk:2181\n{dirs}")
    return tmp_path


def of_tiers(capsys: pytest.CaptureFixture[str], tiered: Path) -> dict[str, str]:
    config = str(tiered / "server.properties")
    found = findings(capsys, "--tree", KILLED, "proof-3", "--config", config)
    return {one["what"]: one["why"].replace(str(tiered), "") for one in found}


def test_which_segments_are_on_which_tier(capsys: pytest.CaptureFixture[str], tiered: Path) -> None:
    found = of_tiers(capsys, tiered)
    assert found["being copied"] == "50 of 300 bytes of 20 are on /hdd; waiting: segment 30, 400 bytes"
    assert found["on two tiers"] == (
        "/ssd has 4 segments (10 to 40), 900 bytes; also on /hdd: segment 10; /hdd alone has segment 0, 100 bytes"
    )
    assert "under-replicated" in found


def test_what_a_lost_device_took(capsys: pytest.CaptureFixture[str], tiered: Path) -> None:
    (tiered / "hdd").rename(tiered / "lost")
    assert of_tiers(capsys, tiered)["without its oldest records on this broker"] == (
        "segment 0, up to offset 10, lost: on /hdd, which can't be read"
    )
    (tiered / "ssd/proof-3/tier-checkpoint").write_text(f"0\nsegment 50 {tiered}/hdd\n")
    assert "offline on this broker" in of_tiers(capsys, tiered)
    (tiered / "ssd/proof-3/tier-checkpoint").write_text("1\n")
    assert "tier-checkpoint at 1" in of_tiers(capsys, tiered)["damaged"]
    (tiered / "lost").rename(tiered / "hdd")
    (tiered / "ssd").rename(tiered / "lost")
    assert of_tiers(capsys, tiered)["offline on this broker"] == "the SSD /ssd can't be read; /hdd has copies"
    (tiered / "ssd").mkdir()
    assert of_tiers(capsys, tiered)["not on this broker's SSDs"] == "no directory in /ssd"


@pytest.mark.parametrize("words", [("1",), ("proof",), ()])
def test_tiers_are_explained_of_a_partition(words: tuple[str, ...], tiered: Path) -> None:
    assert main(["explain", "--tree", KILLED, *words, "--config", str(tiered / "server.properties")]) == 2


def test_a_config_without_tiers_is_named(capsys: pytest.CaptureFixture[str], tiered: Path) -> None:
    config = tiered / "server.properties"
    config.write_text("broker.id=x\n")
    assert main(["explain", "--tree", KILLED, "proof-3", "--config", str(config)]) == 2
    assert f"--config {config}" in capsys.readouterr().err


@contextmanager
def broker_metrics(text: str) -> Iterator[str]:
    """The address where a broker's metrics are shown."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def stages(request: str = "Produce", **ms: float) -> str:
    name = 'kafka_network_requestmetrics_{}timems{{request="{}",quantile="0.99"}} {:.12g}\n'
    return "".join(name.format(stage, request, value) for stage, value in ms.items())


def test_where_a_topics_requests_spend_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    text = stages(requestqueue=0.5, local=1.0, remote=6.25, total=7.5) + stages("FetchConsumer", remote=500.0)
    with broker_metrics(text) as busy, broker_metrics(stages(requestqueue=0.0, local=0.0)) as idle:
        words = ("--tree", KILLED, "latency", "proof", "--metrics", f"2={busy},3={idle}")
        slow, none = findings(capsys, *words)
        assert (slow["subject"], slow["what"]) == ("proof on broker 2", "slowest in RemoteTimeMs")
        assert slow["why"].endswith("in ms: RequestQueueTimeMs 0.5, LocalTimeMs 1.0, RemoteTimeMs 6.2")
        assert "every in-sync replica" in slow["rule"]
        assert (none["subject"], none["what"]) == ("proof on broker 3", "idle")
        assert "proof on broker 2 is slowest in RemoteTimeMs" in said(capsys, *words)
    assert findings(capsys, *words)[0]["what"] == "of unknown latency"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("latency", "proof", "--metrics", "2=127.0.0.1:1"), "broker 3 leads 3 partitions of proof: expected"),
        (("latency", "elsewhere"), "elsewhere"),
        (("proof", "proof"), "expected one subject, or `latency TOPIC`"),
    ],
)
def test_latency_needs_a_topic_and_its_leaders(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--tree", KILLED, *words]) == 2
    assert named in capsys.readouterr().err


def test_metrics_addresses_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--tree", KILLED, "latency", "proof", "--metrics", "127.0.0.1:80"])
    assert "127.0.0.1:80: expected ID=HOST:PORT" in capsys.readouterr().err
