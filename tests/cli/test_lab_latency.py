"""`camerlengo lab latency` on real processes: the parts of every record add up."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from controller.cli.main import main
from controller.labs.latency.service_times import MEASURED


@pytest.mark.parametrize(("brokers", "client"), [(1, "asyncio"), (3, "librdkafka")])
def test_the_parts_of_records_add_up(brokers: int, client: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lab", "latency", "--seconds", "1", "--rate", "300", "--brokers", str(brokers), "--json"]
    words += ["--client", client, "--producers", "3"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["records"] >= 250
    assert figures["parts add up"] >= 0.999
    assert figures["not delivered"] == figures["stamps dropped"] == 0
    assert figures["requests seen, of them produce"][1] * figures["records and bytes of a batch"][0] >= 250
    commit = figures["parts ms"]["commit"]["p50"]
    assert commit > 0 if brokers == 3 else commit == 0


def test_a_running_cluster_is_measured_without_its_replication(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And Trogdor's benches run on it, one client each."""
    from controller.hosts.local_cluster import LocalCluster

    with LocalCluster(2) as cluster:
        words = ["lab", "latency", "--seconds", "1", "--rate", "200", "--brokers", "1", "--json", "--bootstrap"]
        at = cluster.bootstrap_servers.split(",")[1]
        assert main([*words, at]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["parts add up"] >= 0.999
        bench = ["lab", "latency", "--as-trogdor", "--json", "--bootstrap", at, "--spec", str(tmp_path / "spec.json")]
        common = {"targetMessagesPerSec": 2_000, "maxMessages": 500}
        topic = {"bench": {"numPartitions": 2, "replicationFactor": 1}}
        for name, active in (("Produce", topic), ("Consume", ["bench:[0-1]"])):
            spec = {"class": f"org.apache.kafka.trogdor.workload.{name}BenchSpec", "activeTopics": active} | common
            (tmp_path / "spec.json").write_text(json.dumps(spec))
            assert main(bench) == 0
            figures = json.loads(capsys.readouterr().out)
            assert figures.get("totalSent", figures.get("totalMessagesReceived")) == 500
            assert figures["p50LatencyMs"] <= figures["p95LatencyMs"] <= figures["p99LatencyMs"]
        stress = {"class": "org.apache.kafka.trogdor.workload.ConnectionStressSpec", "targetConnectionsPerSec": 20}
        stress |= {"durationMs": 150, "numThreads": 2, "action": "FETCH_METADATA"}
        (tmp_path / "spec.json").write_text(json.dumps(stress))
        assert main(bench) == 0
        figures = json.loads(capsys.readouterr().out)
        assert 2 <= figures["totalConnections"] <= 6
        assert figures["totalFailedConnections"] == 0


def test_a_workload_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "latency", "--spec", "/no/such/file.json"]) == 3
    assert "/no/such/file.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topics", "named"), [("[]", "activeTopics"), ('["t"]', "TOPIC:PARTITION"), ('["t:[0-99999]"]', "100000")]
)
def test_a_bench_that_cannot_run_is_named(
    topics: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(
        f'{{"class": "org.apache.kafka.trogdor.workload.ConsumeBenchSpec", "maxMessages": 1, "activeTopics": {topics}}}'
    )
    assert main(["lab", "latency", "--as-trogdor", "--bootstrap", "127.0.0.1:1", "--spec", str(spec)]) == 3
    assert named in capsys.readouterr().err
    assert main(["lab", "latency", "--as-trogdor", "--spec", str(spec)]) == 3
    assert "--bootstrap" in capsys.readouterr().err


def test_an_experiment_runs_on_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_bytes(msgspec.json.encode(MEASURED["camerlengo"]))
    assert main(["lab", "latency", "--model", "E5", "--quick", "--times", str(times), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["E5"]["largest difference"] <= 0.05


@pytest.mark.parametrize(
    ("words", "named"), [(["--model", "E99"], "E99"), (["--model", "E5", "--times", "/no/file"], "/no/file")]
)
def test_what_the_model_cannot_run_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "latency", *words]) == 3
    assert named in capsys.readouterr().err
