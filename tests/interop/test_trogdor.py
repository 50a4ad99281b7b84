"""Trogdor's ProduceBench and ConsumeBench on brokers of this project, beside our own run of the same specifications.

KAFKA_HOME=... .venv/bin/pytest tests/interop/test_trogdor.py
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.hosts.local_cluster import LocalCluster
from controller.labs.latency.workload import Partitions
from tests.benchmarks.latency import make_topics
from tests.interop.conftest import Findings
from tests.interop.kafka import QUICK_START, Kafka

WORKLOAD = "org.apache.kafka.trogdor.workload"
RATE, RECORDS, ROUNDS = 1_000, 8_000, 3
NODE = "node0"
TOPIC = {"numPartitions": 3, "replicationFactor": 3}
LIMIT_S = 120.0
_ENDED = re.compile(r"(?:Sent \d+ total record\(s\)|Consumed total number of messages=\d+, bytes=\d+) in (\d+) ms")


FLUSHES, LINGERS = "ProduceBench, flush", "ProduceBench, linger 80 ms"
CONSUMES = "ConsumeBench"


def produce_spec(bootstrap: str, topic: str, *, lingers: bool = False) -> dict[str, Any]:
    """`lingers`: a period's records wait for the linger, which ends before the next period; otherwise for nothing but
    the brokers."""
    return {
        "class": f"{WORKLOAD}.ProduceBenchSpec",
        "durationMs": 600_000,
        "producerNode": NODE,
        "bootstrapServers": bootstrap,
        "targetMessagesPerSec": RATE,
        "maxMessages": RECORDS,
        "valueGenerator": {"type": "uniformRandom", "size": 512},
        "producerConf": {"acks": "all", "linger.ms": "80" if lingers else "5", "batch.size": "65536"},
        "skipFlush": lingers,
        "activeTopics": {topic: TOPIC},
    }


def consume_spec(bootstrap: str, topic: str) -> dict[str, Any]:
    return {
        "class": f"{WORKLOAD}.ConsumeBenchSpec",
        "durationMs": 600_000,
        "consumerNode": NODE,
        "bootstrapServers": bootstrap,
        "targetMessagesPerSec": RATE,
        "maxMessages": RECORDS,
        "activeTopics": [f"{topic}:[0-2]"],
    }


class Bench:
    """A specification of Trogdor's as a client that runs. `figures` waits for its end."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def output(self) -> tuple[str, str]:
        try:
            out, error = self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, f"{out[-2_000:]}\n{error[-2_000:]}"
        return out, error


class Ours(Bench):
    def __init__(self, spec: Path, bootstrap: str) -> None:
        words = ("lab", "latency", "--as-trogdor", "--json", "--spec", str(spec), "--bootstrap", bootstrap)
        super().__init__([sys.executable, "-m", "controller.cli", *words])

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = json.loads(self.output()[0])
        return found


class Trogdors(Bench):
    """An agent of Trogdor's that executes one task."""

    def __init__(self, kafka: Kafka, spec: Path) -> None:
        folder = spec.parent
        log4j = folder / "log4j.properties"
        log4j.write_text(
            f"log4j.rootLogger=WARN, E\nlog4j.logger.{WORKLOAD}=INFO\n"
            "log4j.appender.E=org.apache.log4j.ConsoleAppender\nlog4j.appender.E.Target=System.err\n"
            "log4j.appender.E.layout=org.apache.log4j.PatternLayout\nlog4j.appender.E.layout.ConversionPattern=%m%n\n"
        )
        with socket.create_server(("", 0)) as held:
            port = held.getsockname()[1]
        nodes = {NODE: {"hostname": "localhost", "trogdor.agent.port": port}}
        config = spec.with_suffix(".conf")
        config.write_text(json.dumps({"platform": "org.apache.kafka.trogdor.basic.BasicPlatform", "nodes": nodes}))
        words = ("-n", NODE, "-c", str(config), "--exec", str(spec))
        options = ("-Xmx200m", *QUICK_START, f"-Dlog4j.configuration=file:{log4j}", "-Djava.net.preferIPv4Stack=true")
        jars = f"{kafka.jars}/*:{kafka.jars}/trogdor/*"  # a build from source may keep Trogdor's own beside the others
        super().__init__(["java", *options, "-cp", jars, "org.apache.kafka.trogdor.agent.Agent", *words])

    def figures(self) -> dict[str, float]:
        out, error = self.output()
        status = json.loads(out[out.index("Task succeeded with status ") :].partition("status ")[2])
        found: dict[str, float] = next(iter(status.values())) if "totalSent" not in status else status
        ended = _ENDED.search(error)
        assert ended is not None, error[-2_000:]
        records = found.get("totalSent", found.get("totalMessagesReceived", 0))
        return found | {"records a second": round(records / int(ended[1]) * 1_000.0, 1)}


@pytest.fixture(scope="module")
def ours() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


def runs(kafka: Kafka, cluster: LocalCluster, folder: Path) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """(bench, kind, figures): both kinds in turn, and the same file but for the topic's name. The ConsumeBench reads
    what was sent."""
    bootstrap = cluster.bootstrap_servers
    for number in range(ROUNDS):
        for kind in ("Trogdor", "camerlengo"):
            flushed, lingered = (f"{kind}-{number}-{name}" for name in ("flushed", "lingered"))
            make_topics(bootstrap, dict.fromkeys((flushed, lingered), Partitions(3, 3)))
            specs = {
                FLUSHES: produce_spec(bootstrap, flushed),
                LINGERS: produce_spec(bootstrap, lingered, lingers=True),
                CONSUMES: consume_spec(bootstrap, flushed),
            }
            for at, (name, spec) in enumerate(specs.items()):
                file = folder / f"{kind}-{number}-{at}.json"
                file.write_text(json.dumps(spec))
                bench: Trogdors | Ours = (
                    Trogdors(kafka, file) if kind == "Trogdor" else Ours(file, bootstrap.split(",")[0])
                )
                yield name, kind, bench.figures()


def throughput(bench: str, figures: Mapping[str, float]) -> float:
    """Records a second; of a consumer, after its first batch has come. Its wait is the p99, since it is that of 500 of
    the records."""
    seconds = RECORDS / figures["records a second"]
    return RECORDS / (seconds - figures["p99LatencyMs"] / 1_000.0) if bench == CONSUMES else RECORDS / seconds


def test_trogdor_and_our_clients_agree(kafka: Kafka, ours: LocalCluster, tmp_path: Path, findings: Findings) -> None:
    rates: dict[tuple[str, str], list[float]] = {}
    p50s: dict[tuple[str, str], list[float]] = {}
    for bench, kind, figures in runs(kafka, ours, tmp_path):
        assert RECORDS in (figures.get("totalSent"), figures.get("totalMessagesReceived"))
        rates.setdefault((bench, kind), []).append(throughput(bench, figures))
        p50s.setdefault((bench, kind), []).append(figures["p50LatencyMs"])
        percentiles = ", ".join(f"p{at} {figures[f'p{at}LatencyMs']}" for at in (50, 95, 99))
        findings.figure(f"{bench}, {kind}: {rates[bench, kind][-1]:.1f} records/s, ms: {percentiles}")
    for bench in (FLUSHES, LINGERS, CONSUMES):
        theirs, own = (statistics.median(rates[bench, kind]) for kind in ("Trogdor", "camerlengo"))
        assert own == pytest.approx(theirs, rel=0.1), bench
    theirs, own = (statistics.median(p50s[LINGERS, kind]) for kind in ("Trogdor", "camerlengo"))
    assert own == pytest.approx(theirs, rel=0.1)
    # Brokers' time alone differs by more between equal runs, where others have the cores.
    theirs, own = (statistics.median(p50s[FLUSHES, kind]) for kind in ("Trogdor", "camerlengo"))
    spread = max(max(values) - min(values) for (bench, _), values in p50s.items() if bench == FLUSHES)
    assert abs(own - theirs) <= max(0.1 * theirs, 1.0, spread)
