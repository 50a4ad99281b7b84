"""`camerlengo lab latency --experiment E8,...`: experiments on brokers of this machine, each as ratios within one run.

Brokers and clients share few cores here, so latencies say less than ratios, and the brokers' CPU time for a record says
more than both: it does not depend on who else has the core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from controller.chaos.protocol_proxy import Observations
from controller.hosts.local_cluster import LocalCluster
from controller.labs.latency.parts import quantiles_ms
from controller.labs.latency.workload import ConstantPayload, Partitions, ProduceBench, UniformRandomPayload
from controller.system import LOOPBACK, HeldPorts
from tests.benchmarks.common import ROOT, CouldNotRun, progress
from tests.benchmarks.latency import ProxiedCluster, ProxyThread, WorkloadFigures, run_workload
from tests.benchmarks.latency_calibrate import cpu_ns

VALUE_BYTES = 512
LARGE_BYTES = 10_000_000
SETTINGS = {
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": "11000000",
    "replica.fetch.max.bytes": "12000000",
}


class Bench:
    """A cluster that runs, whose cases are measured one after the other. `seen`: None without proxies."""

    def __init__(self, cluster: LocalCluster, arguments: argparse.Namespace, seen: Observations | None) -> None:
        self.cluster = cluster
        self.arguments = arguments
        self.seen = seen
        self._topics = 0

    def case(
        self,
        *,
        producer: Mapping[str, str] | None = None,
        common: Mapping[str, str] | None = None,
        payload: Any = None,
        arrivals: str = "poisson",
        consume: Mapping[str, Any] | None = None,
        bootstrap: str | None = None,
        beside: Callable[[str], Any] | None = None,
        produce: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure a workload on a topic of its own. `beside`: from the name of the topic to a context manager of what
        else runs while records are produced."""
        self._topics += 1
        topic, rate = f"lab-{self._topics}", self.arguments.rate
        conf = {"acks": "all", "linger.ms": "5", "batch.size": "16384", "compression.type": "none"}
        workload = ProduceBench(
            rate,
            10**9,
            {topic: Partitions(3, min(3, self.arguments.brokers))},
            producer_conf=conf | dict(producer or {}),
            common_client_conf={"log_level": "0"} | dict(common or {}),
            value_generator=payload or UniformRandomPayload(VALUE_BYTES),
        )
        words = argparse.Namespace(seconds=self.arguments.seconds, arrivals=arrivals)
        expected = int(0.9 * rate * words.seconds)
        cpu_s: list[float] = []

        @contextmanager
        def producing() -> Iterator[None]:
            with beside(topic) if beside is not None else nullcontext():
                before_s = self._cpu_s()
                yield
                cpu_s.append(self._cpu_s() - before_s)

        found = run_workload(
            bootstrap or self.cluster.bootstrap_servers,
            workload,
            words,
            self.seen,
            self.arguments.seed,
            consume={"expected": expected, "patience_s": 3.0} | dict(consume or {}),
            producing=producing,
            produce=produce,
            admin=self.cluster.bootstrap_servers,
        )
        return self._row(topic, found, cpu_s[0])

    def _cpu_s(self) -> float:
        return sum(cpu_ns(child.pid) for child in self.cluster.brokers.values()) / 1e9

    def _row(self, topic: str, found: WorkloadFigures, cpu_s: float) -> dict[str, Any]:
        latency_ms = found.end_to_end_ms[len(found.end_to_end_ms) // 5 :]
        if not len(latency_ms):
            raise CouldNotRun(f"topic {topic}: no record came")
        sent = sum(one["sent"] for one in found.producers)
        row: dict[str, Any] = {
            "p50 ms": round(float(np.quantile(latency_ms, 0.5)), 2),
            "p99 ms": round(float(np.quantile(latency_ms, 0.99)), 2),
            "records": sent,
            "brokers' CPU us a record": round(cpu_s / sent * 1e6, 1),
        }
        if self.seen is not None:
            produced = [one for (name, _), those in self.seen.produced.items() if name == topic for one in those]
            row["bytes a record"] = round(sum(one.size_bytes for one in produced) / sum(one.count for one in produced))
            row["batches"] = len(produced)
        if found.parts is not None:
            means = {name: row_["mean"] for name, row_ in quantiles_ms(found.parts).items()}
            row["parts, mean ms"] = {name: round(one, 2) for name, one in means.items() if name != "end to end"}
        return row


@contextmanager
def running(kind: str, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A process of `latency_beside`. What it says at its end is in the dictionary then."""
    command = [sys.executable, "-m", "tests.benchmarks.latency_beside", kind, json.dumps(given)]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)
    said: dict[str, Any] = {}
    try:
        assert child.stderr is not None
        if not child.stderr.readline().startswith(b"ready"):
            raise CouldNotRun(f"{kind} did not start: {child.stderr.read().decode()[-1_000:]}")
        yield said
        out, error = child.communicate(timeout=30.0)  # closes its stdin
        if child.returncode:
            raise CouldNotRun(f"{kind} ended with status {child.returncode}: {error.decode()[-1_000:]}")
        said |= json.loads(out)
    finally:
        child.kill()
        child.communicate()


def compression(bench: Bench) -> dict[str, Any]:
    """E8: codecs by the entropy of values: random, a quarter random, constant."""
    payloads = {
        "random": UniformRandomPayload(VALUE_BYTES),
        "a quarter random": UniformRandomPayload(VALUE_BYTES, padding=VALUE_BYTES * 3 // 4),
        "constant": ConstantPayload(VALUE_BYTES),
    }
    return {
        "rows": {
            f"{codec}, {name}": bench.case(producer={"compression.type": codec}, payload=payload)
            for name, payload in payloads.items()
            for codec in ("none", "lz4", "zstd")
        }
    }


def interference(bench: Bench) -> dict[str, Any]:
    """E9: requests of 10 MB beside, a storm of metadata requests, bursts with and without linger."""
    servers = bench.cluster.bootstrap_servers
    rows = {"alone": bench.case()}
    large = {"servers": servers, "topic": "", "bytes": LARGE_BYTES, "every_s": 0.3}
    rows["10 MB requests to the same partition"] = bench.case(
        beside=lambda topic: running("large", large | {"topic": topic}), consume={"ignore_bytes": LARGE_BYTES}
    )
    storm = {"servers": servers, "connections": 20}
    rows["metadata storm"] = bench.case(beside=lambda _: running("metadata", storm))
    for linger_ms in ("0", "5"):
        rows[f"bursts, linger {linger_ms}"] = bench.case(producer={"linger.ms": linger_ms}, arrivals="trogdor")
    rows["regular, linger 0"] = bench.case(producer={"linger.ms": "0"})
    return {"rows": rows}


def commits(bench: Bench) -> dict[str, Any]:
    """E10: members of a consumer group that commit often or rarely, on the measured topic."""
    rows = {}
    for consumers in (1, 8):
        for every_ms in (5_000, 100, 10):
            name = f"g-{consumers}-{every_ms}"
            given = {"servers": bench.cluster.bootstrap_servers, "group": name, "consumers": consumers}

            def beside(topic: str, given: Mapping[str, Any] = given, every_ms: int = every_ms) -> Any:
                return running("group", {**given, "topic": topic, "every_ms": every_ms})

            rows[f"{consumers} consumers, commit every {every_ms} ms"] = bench.case(beside=beside)
    return {"rows": rows}


def collecting(bench: Bench) -> dict[str, Any]:
    """E12: 40 producers of their own connections, and the same records through one collecting proxy."""
    many = 40
    rows: dict[str, Any] = {f"{many} producers": bench.case(produce={"producers": many})}
    conf = {"acks": "all", "linger.ms": "5", "batch.size": "16384", "compression.type": "none"}
    held = HeldPorts(1)
    (port,) = held.numbers

    def collector(topic: str) -> Any:
        given = {"servers": bench.cluster.bootstrap_servers, "topic": topic, "port": port, "config": conf}
        return running("collector", given)

    rows[f"{many} producers, collected"] = bench.case(produce={"producers": many, "collector": port}, beside=collector)
    held.release()
    return {"rows": rows}


def slow_consumer(bench: Bench) -> dict[str, Any]:
    """E13: a consumer that takes longer for a record than its producer, for 5 s (or half of the run)."""
    seconds = bench.arguments.seconds
    slow_s = min(5.0, seconds / 2)
    a_record_s = 2.0 / bench.arguments.rate
    rows = {
        "as fast as its producer": bench.case(),
        f"half as fast for {slow_s:g} s": bench.case(consume={"slow": (seconds / 5, slow_s, a_record_s)}),
    }
    return {"rows": rows}


def encryption(arguments: argparse.Namespace) -> dict[str, Any]:
    """E11: clients with and without TLS on the same brokers, which replicate without."""
    from tests.hosts.certificates import Authority

    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        keys = authority.sign("broker", "/CN=broker")
        with TlsBesides(arguments.brokers, keys) as cluster:
            bench = Bench(cluster, arguments, None)
            tls = {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate)}
            for number in (1, 2):  # twice, so that what drifts shows
                rows[f"plain, run {number}"] = bench.case()
                rows[f"TLS, run {number}"] = bench.case(common=tls, bootstrap=cluster.tls_servers)
    return {"rows": rows}


class TlsBesides(LocalCluster):
    """A cluster with a second listener, for TLS."""

    def __init__(self, brokers: int, keys: Path) -> None:
        super().__init__(brokers, settings=SETTINGS)
        self._keys = keys
        self._tls_ports = HeldPorts(brokers)

    @property
    def tls_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{port}" for port in self._tls_ports.numbers)

    def _broker_settings(self, number: int) -> dict[str, str]:
        settings = super()._broker_settings(number)
        return settings | {
            "listeners": f"{settings['listeners']},SSL://{LOOPBACK}:{self._tls_ports.numbers[number - 1]}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keys),
        }

    def close(self) -> None:
        super().close()
        self._tls_ports.release()


ON_BROKERS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "E8": compression,
    "E9": interference,
    "E10": commits,
    "E12": collecting,
    "E13": slow_consumer,
}
NAMES = ("E8", "E9", "E10", "E11", "E12", "E13")


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the experiments that `arguments.experiment` names. Raises CouldNotRun for an unknown name."""
    names = NAMES if arguments.experiment == "all" else arguments.experiment.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise CouldNotRun(f"experiment {unknown[0]!r}: expected {', '.join(NAMES)}, or all")
    if arguments.quick:
        arguments.brokers = 1
    arguments.seconds = arguments.seconds or (1.0 if arguments.quick else 2.0)
    found: dict[str, Any] = {}
    on_brokers = [name for name in names if name in ON_BROKERS]
    with ExitStack() as stack:
        if on_brokers:
            proxies = stack.enter_context(ProxyThread())
            cluster = stack.enter_context(ProxiedCluster(arguments.brokers, proxies, SETTINGS))
            bench = Bench(cluster, arguments, proxies.proxies.observations)
        for name in on_brokers:
            progress(f"{name}, load average {os.getloadavg()[0]:.1f}")
            found[name] = ON_BROKERS[name](bench) | {"load average": round(os.getloadavg()[0], 1)}
    if "E11" in names:
        found["E11"] = encryption(arguments) | {"load average": round(os.getloadavg()[0], 1)}
    return {name: found[name] for name in names}
