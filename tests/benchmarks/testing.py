"""`camerlengo bench testing`: what a cluster inside a test's process costs.

    python -m tests.benchmarks.testing cold|numpy|second|recovery|sequence [N]

is one measurement, in a process of its own, and prints one JSON object. `cold`: CPU from the interpreter's start to a
record that was written with acks=all to three brokers and read back. `second`: CPU of the second cluster of a process.
`recovery`: from the kill of a leader to another one that all brokers know. `sequence`: what many clusters leave, among
it the live memory, which is what malloc gave out and did not get back. Where malloc counts it (glibc) and serves all
objects (PYTHONMALLOC=malloc), a leak differs in it from free memory that an allocator keeps for later.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.cli.requirements import Need

BROKERS = 3
WARM = 20
"""Clusters of a sequence before the first count."""
CLIENT = {"log_level": 0, "reconnect.backoff.ms": 5}


def configure(parser: argparse.ArgumentParser) -> None:
    from tests.benchmarks.common import add_count, add_output  # not with the module: `cold` counts what is imported

    parser.description = "Starts clusters of three brokers inside one process, and prints what they cost."
    add_count(parser, "--runs", 5, "processes for each of the first two figures")
    add_count(parser, "--kills", 50, "kills of a leader")
    add_count(parser, "--clusters", 1_000, "clusters in sequence", least=WARM + 1)
    add_output(parser)


def needs(_arguments: argparse.Namespace) -> Iterable[Need]:
    from controller.cli.requirements import CLIENTS

    return CLIENTS


def run(arguments: argparse.Namespace) -> int:
    from tests.benchmarks.common import show

    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        # Compiled modules are kept, as in any installation, whatever this shell says.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        found = measured(arguments, load)
    show(arguments, found, text(found, arguments))
    return 0


def measured(arguments: argparse.Namespace, load: float) -> dict[str, Any]:
    from tests.benchmarks.common import circumstances, run_worker, spread

    run_worker(__name__, "cold")  # compiles
    cold = [run_worker(__name__, "cold") for _ in range(arguments.runs)]
    return {
        "benchmark": "testing",
        "cold_cpu_ms": spread([one["cpu_ms"] for one in cold]),
        "cold_import_cpu_ms": spread([one["import_cpu_ms"] for one in cold]),
        "client_import_cpu_ms": spread([one["client_import_cpu_ms"] for one in cold]),
        "numpy_import_cpu_ms": spread([run_worker(__name__, "numpy")["cpu_ms"] for _ in range(arguments.runs)]),
        "second_cpu_ms": spread([run_worker(__name__, "second")["cpu_ms"] for _ in range(arguments.runs)]),
        "recovery_ms": run_worker(__name__, "recovery", str(arguments.kills)),
        "sequence": run_worker(__name__, "sequence", str(arguments.clusters), environment={"PYTHONMALLOC": "malloc"}),
        "circumstances": circumstances(load),
    }


def text(found: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    def worded(figure: Mapping[str, float]) -> str:
        return f"median {figure['median']:.1f}, {figure['min']:.1f} to {figure['max']:.1f}"

    sequence = found["sequence"]
    return "\n".join(
        [
            f"cold process to a record read back, CPU ms ({arguments.runs} runs): {worded(found['cold_cpu_ms'])}",
            f"  of which the import of controller.testing: {worded(found['cold_import_cpu_ms'])}",
            f"  and that of the client, confluent-kafka: {worded(found['client_import_cpu_ms'])}",
            f"  the import of numpy alone, to compare machines with: {worded(found['numpy_import_cpu_ms'])}",
            f"second cluster, CPU ms ({arguments.runs} runs): {worded(found['second_cpu_ms'])}",
            f"kill to a leader that all know, ms ({arguments.kills} kills): {worded(found['recovery_ms'])}",
            f"{arguments.clusters} clusters in sequence: {sequence['cpu_ms_each']:.1f} ms of CPU each; growth after the"
            f" first {WARM}: {sequence['threads']} threads, {sequence['descriptors']} descriptors,"
            f" {sequence['objects']} objects, {sequence['live_kib']} KiB of live memory, of which"
            f" {sequence['second_half_objects']} objects and {sequence['second_half_live_kib']} KiB in the second half;"
            f" resident, with what the allocator keeps: {sequence['rss_kib']} KiB",
            found["circumstances"],
        ]
    )


def cold() -> dict[str, float]:
    before_ms = time.process_time() * 1e3
    from controller.testing import Kafka

    import_ms = time.process_time() * 1e3 - before_ms
    with Kafka(brokers=BROKERS) as kafka:
        kafka.create_topic("payments", replication_factor=BROKERS)
        client_before_ms = time.process_time() * 1e3
        from confluent_kafka import Consumer, Producer, TopicPartition

        client_ms = time.process_time() * 1e3 - client_before_ms
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", **CLIENT})
        producer.produce("payments", b"one")
        if producer.flush(30):
            raise RuntimeError("the record was not acknowledged in 30 s")
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "any", "enable.auto.commit": False}
        consumer = Consumer({**settings, **CLIENT})
        consumer.assign([TopicPartition("payments", 0, 0)])
        message = consumer.poll(30)
        if message is None or message.value() != b"one":
            raise RuntimeError(f"read {message!r}: expected the record that was written")
        consumer.close()
    return {"cpu_ms": time.process_time() * 1e3, "import_cpu_ms": import_ms, "client_import_cpu_ms": client_ms}


def import_numpy() -> dict[str, float]:
    before_ms = time.process_time() * 1e3
    import numpy  # noqa: F401

    return {"cpu_ms": time.process_time() * 1e3 - before_ms}


def second() -> dict[str, float]:
    from controller.testing import Kafka

    before_ms = 0.0
    for _ in range(2):
        before_ms = time.process_time() * 1e3
        with Kafka(brokers=BROKERS) as kafka:
            kafka.create_topic("payments", replication_factor=BROKERS)
    return {"cpu_ms": time.process_time() * 1e3 - before_ms}


def recovery(kills: int) -> dict[str, float]:
    from controller.testing import Kafka
    from tests.benchmarks.common import spread

    times_ms = []
    with Kafka(brokers=BROKERS) as kafka:
        kafka.create_topic("payments", replication_factor=BROKERS)
        for _ in range(kills):
            leader = kafka.wait_for_leader("payments")
            began = time.perf_counter()
            kafka.broker(leader).kill()
            kafka.wait_for_leader("payments")
            times_ms.append((time.perf_counter() - began) * 1e3)
            kafka.broker(leader).start()
            kafka.wait_until_healthy()
    return spread(times_ms)


def live_memory_bytes() -> int:
    """What malloc gave out and did not get back; 0 where malloc does not count it."""
    import ctypes  # not with the module: `cold` counts what is imported

    class Counts(ctypes.Structure):
        """glibc's `struct mallinfo2`."""

        _fields_ = [(f"count_{number}", ctypes.c_size_t) for number in range(4)] + [
            ("mapped", ctypes.c_size_t),
            *[(f"count_{number}", ctypes.c_size_t) for number in range(5, 7)],
            ("in_use", ctypes.c_size_t),
            *[(f"count_{number}", ctypes.c_size_t) for number in range(8, 10)],
        ]

    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo2.restype = Counts
    counts = mallinfo2()
    return int(counts.mapped + counts.in_use)


def usage() -> dict[str, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "live_kib": live_memory_bytes() // 1024,
        "rss_kib": int(resident.split()[1]),
    }


def sequence(clusters: int) -> dict[str, float]:
    from controller.testing import Kafka

    before = halfway = usage()
    for number in range(clusters):
        if number == WARM:
            before = halfway = usage()
        elif number == clusters // 2:
            halfway = usage()
        with Kafka(brokers=BROKERS) as kafka:
            kafka.create_topic("payments", replication_factor=BROKERS)
    after = usage()
    grown: dict[str, float] = {name: after[name] - before[name] for name in before}
    late: dict[str, float] = {f"second_half_{name}": after[name] - halfway[name] for name in halfway}
    return {**grown, **late, "cpu_ms_each": time.process_time() * 1e3 / clusters}


def main(words: list[str]) -> None:
    figures = {"cold": cold, "second": second, "numpy": import_numpy}
    counted = {"recovery": recovery, "sequence": sequence}
    found = figures[words[0]]() if words[0] in figures else counted[words[0]](int(words[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
