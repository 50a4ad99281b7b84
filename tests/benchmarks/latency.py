"""`camerlengo lab latency`: the five parts of records' latency, measured between clients and brokers by proxies.

Without --bootstrap it starts a cluster whose brokers advertise the proxies' addresses, so that replication passes them,
too. Producer and consumer are processes of their own (`latency_worker`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from controller.broker.settings import Address, Unfit, address, address_text
from controller.chaos.protocol_proxy import Observations, ProtocolProxies
from controller.cli.requirements import CLIENTS, Need
from controller.cli.values import number
from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.labs.latency.parts import Parts, Received, joined, parts_of, quantiles_ms
from controller.labs.latency.statistics import between_blocks, warm_from
from controller.labs.latency.workload import (
    BadWorkload,
    Partitions,
    ProduceBench,
    UniformRandomPayload,
    Workload,
    read_bench_file,
    read_workload_file,
    topics_of,
)
from tests.benchmarks.common import ROOT, CouldNotRun, add_count, add_output, circumstances, note, plots_needed, show

READY_LIMIT_S = 30.0
ARRIVALS = ("constant", "poisson", "trogdor")


class ProxyThread:
    """Proxies on a loop of their own. A context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.proxies = ProtocolProxies()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> ProxyThread:
        self._thread.start()
        return self

    def port(self, target: Address) -> int:
        return asyncio.run_coroutine_threadsafe(self.proxies.proxy(target), self.loop).result(10.0)

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.proxies.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class ProxiedCluster(LocalCluster):
    """Its brokers advertise proxies: everything but ZooKeeper passes them. Without `proxies` a usual cluster."""

    def __init__(self, brokers: int, proxies: ProxyThread | None, settings: Mapping[str, str]) -> None:
        super().__init__(brokers, settings=dict(settings))
        self._proxies = proxies

    def _broker_settings(self, number: int) -> dict[str, str]:
        settings = super()._broker_settings(number)
        if self._proxies is not None:
            host, _, port = settings["listeners"].rpartition("://")[2].rpartition(":")
            settings["advertised.listeners"] = f"PLAINTEXT://{host}:{self._proxies.port((host, int(port)))}"
        return settings


class WorkloadFigures(msgspec.Struct, frozen=True):
    """What one run of a workload measured. `producers`: the answers of the workers."""

    parts: Parts | None
    producers: tuple[Mapping[str, Any], ...]
    received: int
    seconds: float
    end_to_end_ms: Any
    seen: Observations | None
    rows: Any
    """Of the consumer: place, offset, due, received, in ns."""


def run_workload(
    bootstrap: str,
    workload: Workload,
    arguments: argparse.Namespace,
    seen: Observations | None,
    seed: int,
    *,
    consume: Mapping[str, Any] | None = None,
    produce: Mapping[str, Any] | None = None,
    admin: str | None = None,
    producing: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> WorkloadFigures:
    """Create the topics, run the clients, and join their stamps with the proxies'. `consume` and `produce`: words for
    the clients in place of the usual ones. `admin`: where topics are created, if elsewhere. `producing`:
    a context manager around the time of producing."""
    topics = topics_of(workload)
    followers = make_topics(admin or bootstrap, topics)
    expected = min(workload.max_messages, int(workload.target_messages_per_sec * arguments.seconds))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "received.npy"
        counts = {name: one.num_partitions for name, one in topics.items()}
        consumer = _worker(
            "consume",
            {"servers": bootstrap, "topics": counts, "expected": expected, "output": str(output), "first_s": 60.0}
            | {"patience_s": 5.0, "config": workload.common_client_conf | workload.consumer_conf}
            | dict(consume or {}),
        )
        _await_ready(consumer)
        producer = _worker(
            "produce",
            {"servers": bootstrap, "workload": msgspec.json.encode(workload).decode(), "seed": seed}
            | {"seconds": arguments.seconds, "arrivals": arguments.arrivals}
            | {"config": workload.common_client_conf | workload.producer_conf}
            | dict(produce or {}),
        )
        with producing():
            produced = _answer(producer)
        consumed = _answer(consumer)
        rows = np.load(output)
    places = [(topic, index) for topic, count in counts.items() for index in range(count)]
    parts = None if seen is None else _joined(rows, places, seen, followers)
    latency_ms = (rows[:, 3] - rows[:, 2]) / 1e6
    return WorkloadFigures(parts, (produced,), len(rows), consumed["seconds"], latency_ms, seen, rows)


def _joined(
    rows: Any, places: Sequence[tuple[str, int]], seen: Observations, followers: Mapping[tuple[str, int], Sequence[int]]
) -> Parts | None:
    found = []
    for number_, place in enumerate(places):
        own = rows[rows[:, 0] == number_]
        if len(own):
            received = Received(own[:, 1], own[:, 2] / 1e9, own[:, 3] / 1e9)
            parts = parts_of(
                received, seen.produced[place], seen.fetched[place], seen.positions[place], followers[place]
            )
            found.append(parts)
    return joined(found) if found else None


def make_topics(bootstrap: str, topics: Mapping[str, Partitions]) -> Mapping[tuple[str, int], Sequence[int]]:
    """Create those that are missing; return each partition's followers, once all have a leader and are in sync."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    known = admin.list_topics(timeout=READY_LIMIT_S).topics
    made = [
        NewTopic(name, one.num_partitions, one.replication_factor, config=dict(one.configs))
        for name, one in topics.items()
        if name not in known
    ]
    for future in (admin.create_topics(made) if made else {}).values():
        future.result(READY_LIMIT_S)
    until_s = time.monotonic() + READY_LIMIT_S
    while True:
        listed = admin.list_topics(timeout=READY_LIMIT_S).topics
        found = {
            (name, index): [one for one in part.isrs if one != part.leader]
            for name in topics.keys() & listed.keys()
            for index, part in listed[name].partitions.items()
            if part.leader >= 0 and len(part.isrs) == len(part.replicas)
        }
        if len(found) == sum(one.num_partitions for one in topics.values()):
            return found
        if time.monotonic() > until_s:
            raise CouldNotRun(f"topics {', '.join(topics)}: not all partitions were in sync in {READY_LIMIT_S:g} s")
        time.sleep(0.1)


def _worker(kind: str, given: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.latency_worker", kind, json.dumps(given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


def _await_ready(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stderr is not None
    if not worker.stderr.readline().startswith(b"assigned"):
        raise CouldNotRun(f"the consumer did not start: {worker.stderr.read().decode()[-2_000:]}")


def _answer(worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, error = worker.communicate(timeout=600.0)
    if worker.returncode:
        raise CouldNotRun(f"a client ended with status {worker.returncode}: {error.decode()[-2_000:]}")
    answer: dict[str, Any] = json.loads(out)
    return answer


# -- the command


def _host_port(text: str) -> str:
    try:
        address(text)
    except Unfit as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from None
    return text


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measures the parts of records' latency from the due time of send() to poll(): produce, publish, commit,"
        " catch-up, fetch. Proxies between clients and brokers take the stamps; the cluster needs no change. Without"
        " --bootstrap a cluster on loopback is started, whose brokers replicate through the proxies, too."
    )
    parser.add_argument(
        "--bootstrap", type=_host_port, metavar="HOST:PORT", help="a running cluster; its replication is not observed"
    )
    parser.add_argument("--spec", type=Path, metavar="FILE", help="workload: a JSON specification of Trogdor's")
    parser.add_argument(
        "--seconds", type=number(0.0), metavar="S", help="length of the workload (10) or of the model's runs (2)"
    )
    parser.add_argument(
        "--client", choices=("librdkafka", "asyncio"), default="librdkafka", help="the producers (librdkafka)"
    )
    add_count(parser, "--producers", 1, "producers, which send in turn")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson", help="when records are due (poisson)")
    parser.add_argument(
        "--as-trogdor",
        action="store_true",
        help="run the client of --spec alone, as Trogdor does, and print Trogdor's status of it (with --bootstrap)",
    )
    parser.add_argument(
        "--own-stamps", action="store_true", help="brokers in this process; each part has two stamps of its own"
    )
    parser.add_argument("--kill-leader", action="store_true", help="kill a leader halfway (with --own-stamps)")
    parser.add_argument(
        "--experiment", metavar="E8,...", help="run experiments on brokers of this machine: E8 to E13, or all"
    )
    parser.add_argument("--fit", action="store_true", help="fit the model to half of some settings, predict the rest")
    parser.add_argument("--no-proxy", action="store_true", help="end-to-end latency and throughput alone, no proxies")
    parser.add_argument("--calibrate", choices=("camerlengo", "kafka"), help="measure a broker's service times instead")
    parser.add_argument(
        "--model",
        metavar="E1,...",
        help="run the published experiments on the queueing model instead: E1 to E9, E12, E13, or all",
    )
    parser.add_argument(
        "--times",
        default="kafka",
        metavar="NAME|FILE",
        help="the model's service times: kafka (default), camerlengo, FILE",
    )
    add_count(parser, "--threads", None, "the model's request threads of a broker (8 with kafka, 1 otherwise)")
    add_output(parser, plots="latency-partitions.png and latency-load.png")
    parser.add_argument("--quick", action="store_true", help="one second, and a smaller cluster")
    add_count(parser, "--brokers", 3, "brokers of the cluster that is started")
    add_count(parser, "--rate", 2_000, "records a second, without --spec")
    add_count(parser, "--seed", 1, "seed of payloads and arrivals", 0)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return plots_needed(arguments) if arguments.model is not None else CLIENTS


def default_workload(rate: int, replicas: int) -> Workload:
    conf = {"acks": "all", "linger.ms": "5", "batch.size": "16384", "compression.type": "lz4"}
    topic = Partitions(6, replicas)
    value = UniformRandomPayload(512)
    return ProduceBench(rate, 10**9, {"lab-latency": topic}, producer_conf=conf, value_generator=value)


def run(arguments: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    if arguments.model is not None:
        return _model(arguments, load)
    if arguments.calibrate is not None:
        return _calibrate(arguments, load)
    if arguments.experiment is not None or arguments.fit:
        return _experiments(arguments, load)
    if arguments.as_trogdor:
        return _as_trogdor(arguments)
    if arguments.quick:
        arguments.seconds, arguments.brokers = 1.0, 1
    arguments.seconds = arguments.seconds or 10.0
    replicas = min(3, arguments.brokers)
    try:
        spec = arguments.spec
        workload = default_workload(arguments.rate, replicas) if spec is None else read_workload_file(spec)
    except BadWorkload as error:
        raise CouldNotRun(str(error)) from error
    if arguments.own_stamps:
        return _own_stamps(arguments, workload, load)
    found = _measured(arguments, workload)
    figures = summary(found) | {"circumstances": circumstances(load)}
    show(arguments, figures, _text(figures))
    return 0


def _experiments(arguments: argparse.Namespace, load: float) -> int:
    from tests.benchmarks.latency_experiments import measured
    from tests.benchmarks.latency_fit import run as run_fit
    from tests.benchmarks.latency_model import text_of

    found = {"fit": run_fit(arguments)} if arguments.fit else measured(arguments)
    where = circumstances(load)
    show(arguments, found | {"circumstances": where}, f"{text_of(found)}\n{where}")
    return 0


def _as_trogdor(arguments: argparse.Namespace) -> int:
    from tests.benchmarks.latency_trogdor import status_of

    if arguments.spec is None or arguments.bootstrap is None:
        raise CouldNotRun("--as-trogdor: expected --spec and --bootstrap, too")
    try:
        bench = read_bench_file(arguments.spec)
    except BadWorkload as error:
        raise CouldNotRun(str(error)) from error
    if isinstance(bench, ProduceBench):
        make_topics(arguments.bootstrap, topics_of(bench))
    figures = status_of(bench, arguments.bootstrap)
    show(arguments, figures, _text(figures))
    return 0


def _own_stamps(arguments: argparse.Namespace, workload: Workload, load: float) -> int:
    from tests.benchmarks.latency_stamps import measured

    def clients(bootstrap: str, seen: Observations) -> WorkloadFigures:
        return run_workload(bootstrap, workload, arguments, seen, arguments.seed, produce=_clients(arguments))

    figures = measured(workload, arguments, clients) | {"circumstances": circumstances(load)}
    show(arguments, figures, _text(figures))
    return 0


def _model(arguments: argparse.Namespace, load: float) -> int:
    from controller.labs.latency.experiments import EXPERIMENTS
    from tests.benchmarks.latency_model import draw, experiments, shape_of, text_of

    names = [*EXPERIMENTS] if arguments.model == "all" else arguments.model.split(",")
    seconds = arguments.seconds or (0.5 if arguments.quick else 2.0)
    found = experiments(names, shape_of(arguments.times, arguments.threads), seconds, os.cpu_count() or 1)
    if arguments.plots is not None:
        draw(arguments.plots, found)
    where = circumstances(load)
    show(arguments, found | {"circumstances": where}, f"{text_of(found)}\n{where}")
    return 0


def _calibrate(arguments: argparse.Namespace, load: float) -> int:
    from tests.benchmarks.latency_calibrate import calibrate

    times, points = calibrate(arguments.calibrate, 0.1 if arguments.quick else 1.0)
    print(msgspec.json.encode(times).decode())
    for name, rows in points.items():
        note(f"{name}: " + "; ".join(f"{row[1:]} {cost:.1f} µs" for row, cost in rows))
    note(circumstances(load))
    return 0


def _measured(arguments: argparse.Namespace, workload: Workload) -> WorkloadFigures:
    with ProxyThread() as proxies:
        behind = None if arguments.no_proxy else proxies
        seen = None if arguments.no_proxy else proxies.proxies.observations
        run_ = partial(run_workload, produce=_clients(arguments))
        if arguments.bootstrap is not None:
            at = address(arguments.bootstrap)
            return run_(_bootstrap(at, behind), workload, arguments, seen, arguments.seed)
        with ProxiedCluster(arguments.brokers, behind, {"log.segment.delete.delay.ms": "1000"}) as cluster:
            return run_(cluster.bootstrap_servers, workload, arguments, seen, arguments.seed)


def _clients(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"client": arguments.client, "producers": arguments.producers}


def _bootstrap(at: Address, proxies: ProxyThread | None) -> str:
    if proxies is None:
        return address_text(at)
    ports = [proxies.port((broker.host, broker.port)) for broker in ask_metadata(at, READY_LIMIT_S).brokers]
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def summary(found: WorkloadFigures) -> dict[str, Any]:
    """The figures of a run, without its warm-up."""
    warm = warm_from(found.end_to_end_ms)
    latency_ms = found.end_to_end_ms[warm:]
    figures: dict[str, Any] = {
        "records": found.received,
        "records a second": round(found.received / found.seconds) if found.seconds else 0,
        "warm-up records": warm,
        "end to end ms": {f"p{share * 100:g}": _interval(latency_ms, share) for share in (0.5, 0.99, 0.999)},
        "librdkafka ms": _statistics(found.producers),
        "producer late ms": max(one["late_ms"] for one in found.producers),
        "not delivered": sum(one["unsent"] + len(one["errors"]) for one in found.producers),
    }
    if found.parts is not None:
        order = np.arange(len(found.parts.due_s)) >= warm
        kept = Parts(found.parts.parts_ms[order], found.parts.end_to_end_ms[order], found.parts.due_s[order])
        figures["parts add up"] = round(float(kept.adds_up.mean()), 5)
        figures["parts ms"] = {
            name: {key: round(one, 3) for key, one in row.items()} for name, row in quantiles_ms(kept).items()
        }
    if found.seen is not None:
        batches = np.array([(one.count, one.size_bytes) for those in found.seen.produced.values() for one in those])
        figures["requests seen, of them produce"] = [found.seen.requests, found.seen.produces]
        figures["records and bytes of a batch"] = np.round(batches.reshape(-1, 2).mean(axis=0), 2).tolist()
        figures["stamps dropped"] = found.seen.dropped
    return figures


def _interval(latency_ms: Any, share: float) -> list[float]:
    found = between_blocks(latency_ms, share)
    return [round(found.value, 3), round(found.low, 3), round(found.high, 3)]


def _statistics(producers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Means over brokers and seconds, weighted by their counts."""
    found = {}
    for name in ("int_latency", "outbuf_latency", "rtt"):
        windows = [window for one in producers for second in one["statistics"] for window in second[name]]
        count = sum(window[0] for window in windows)
        found[name] = round(sum(window[0] * window[1] for window in windows) / count / 1e3, 3) if count else 0.0
    return found


def _text(figures: Mapping[str, Any]) -> str:
    lines = [f"{name}: {value}" for name, value in figures.items() if name != "parts ms"]
    rows = figures.get("parts ms", {})
    columns = ("p50", "p99", "mean", "beyond p99")
    head = f"{'part, ms':12}" + "".join(f"{one:>12}" for one in columns)
    shown = [f"{name:12}" + "".join(f"{row[one]:12.3f}" for one in columns) for name, row in rows.items()]
    return "\n".join([*lines, "", head, *shown] if rows else lines)
