"""`camerlengo bench compaction`: MB per second of the log cleaner, and producing beside it; `KAFKA_HOME`: Kafka's too.

A round fills a compacted topic whose records are too young to be cleaned, measures a producer of another topic (the
probe of `cold_reads`) without a cleaning, then lets the cleaner begin and measures the same again.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from controller.broker.settings import Address, address_text
from controller.cli.requirements import Need, zookeeper_server
from controller.cli.values import number_from
from controller.hosts.local_cluster import LocalCluster, ask_broker
from controller.protocol.admin import (
    OPERATION_SET,
    RESOURCE_TOPIC,
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from controller.protocol.client import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.storage.batches import Record, encode_batch
from controller.storage.checkpoints import decode_offsets
from tests.benchmarks import common
from tests.benchmarks.broker import cpu_s, percentile
from tests.benchmarks.clusters import Child
from tests.benchmarks.cold_reads import HOT, HOT_BEHIND, BenchClient, start
from tests.benchmarks.groups import KAFKAS, OURS, made

TABLE = "compaction"
LIMIT_S = 120.0
BATCH_RECORDS = 64
SEGMENT_BYTES = 8 * 1024 * 1024
TOO_YOUNG_MS = 10 * 24 * 3_600 * 1_000
SETTINGS = {"log.cleaner.backoff.ms": "100", "auto.create.topics.enable": "false"}
HEAD = ("", "cleaned MB/s", "CPU ms a MB", "p99 without, ms", "p99 beside it, ms", "ratio", "cleaning covered")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts one broker. In each round a compacted topic is filled; a client produces records of 100 bytes with"
        " acks=1 to another topic, at a steady rate, first alone and then while that topic is cleaned. MB/s is what was"
        " read of the dirty part, from the change of the config that lets the cleaner begin. With KAFKA_HOME the same"
        " with a broker of Kafka 2.8, afterwards."
    )
    common.add_count(parser, "--megabytes", 48, "MB of the compacted topic")
    common.add_count(parser, "--keys", 20_000, "different keys")
    common.add_count(parser, "--record-bytes", 512, "size of a record's value")
    common.add_count(parser, "--rate", 200, "requests per second of the producer, and of a consumer beside it")
    common.add_count(parser, "--rounds", 3, "rounds; latencies of all together")
    parser.add_argument(
        "--seconds", type=number_from(), default=5.0, metavar="S", help="duration of each measurement (5)"
    )
    common.add_output(parser, page="docs/compaction.md", tables=(TABLE,))
    common.add_zookeeper_jars(parser)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_server(arguments.zookeeper_jars) if os.environ.get("KAFKA_HOME") else ()


def run(arguments: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    sides = {OURS: measured(OURS, arguments)}
    if os.environ.get("KAFKA_HOME"):
        sides[KAFKAS] = measured(KAFKAS, arguments)
    common.progress("")
    found = {
        "benchmark": "compaction",
        "megabytes": arguments.megabytes,
        "keys": arguments.keys,
        "sides": sides,
        "circumstances": common.circumstances(load),
    }
    common.show(arguments, found, "\n".join([common.aligned([HEAD, *rows(found)]), *notes(found)]))
    if arguments.page is not None:
        common.put_table(arguments.page, TABLE, [*common.markdown(HEAD, rows(found)), "", *notes(found)])
    return 0


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        cluster = made(name, 1, SETTINGS, arguments.zookeeper_jars, stack)
        stack.enter_context(cluster)
        at = cluster.brokers[1].ready_at()
        assert at is not None
        create(at, HOT, {})
        client = BenchClient(at)
        for _ in range(2 * HOT_BEHIND):
            client.produce(HOT, encode_batch([Record(0, int(time.time() * 1_000), None, bytes(100))]))
        rounds = []
        for number in range(arguments.rounds):
            common.progress(f"{name}: round {number + 1} of {arguments.rounds}")
            rounds.append(one_round(cluster, at, f"compacted-{number}", arguments))
    return figures(rounds)


def one_round(cluster: LocalCluster, at: Address, topic: str, arguments: argparse.Namespace) -> dict[str, Any]:
    young = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": str(TOO_YOUNG_MS),
    }
    create(at, topic, young)
    fill(at, topic, arguments)
    directory = cluster.folder / "logs-1"
    segments = sorted((directory / f"{topic}-0").glob("*.log"))
    dirty_bytes = sum(path.stat().st_size for path in segments[:-1])
    end = int(segments[-1].stem)
    alone = latencies_of(probing(at, arguments))
    pid = cluster.brokers[1].pid
    probe = probing(at, arguments)
    before_s, began_s = cpu_s(pid), time.perf_counter()
    alter(at, topic, "min.compaction.lag.ms", "0")
    while cleaned_to(directory, topic) < end:
        if time.perf_counter() - began_s > LIMIT_S:
            raise common.CouldNotRun(
                f"{topic}: cleaned up to {cleaned_to(directory, topic)} of {end} after {LIMIT_S:g} s"
            )
        time.sleep(0.02)
    took_s = time.perf_counter() - began_s
    beside = latencies_of(probe)
    return {
        "mb": dirty_bytes / 1e6,
        "seconds": took_s,
        "cpu_s": cpu_s(pid) - before_s,
        "alone_ms": alone,
        "beside_ms": beside,
        "covered": min(took_s / arguments.seconds, 1.0),
    }


def probing(at: Address, arguments: argparse.Namespace) -> Child:
    """A steady producer, which has begun."""
    given = {"at": address_text(at), "seconds": arguments.seconds, "rate": arguments.rate}
    return start("probe", given)


def latencies_of(child: Child) -> Any:
    """In ms, but for those that `at_usual_speed` of `cold_reads` leaves out."""
    with closing(child):
        return child.ask()["produce"]


def create(at: Address, topic: str, config: Mapping[str, str]) -> None:
    made = CreatableTopic(topic, 1, 1, (), tuple(CreatableTopicConfig(*one) for one in config.items()))
    answer = ask_broker(at, ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest((made,), int(LIMIT_S * 1_000)), LIMIT_S)
    assert isinstance(answer, CreateTopicsResponse)
    if answer.topics[0].error_code != ErrorCode.NONE:
        raise common.CouldNotRun(f"{topic}: {ErrorCode(answer.topics[0].error_code).name}")


def alter(at: Address, topic: str, name: str, value: str) -> None:
    change = IncrementalAlterConfigsResource(RESOURCE_TOPIC, topic, (AlterableConfig(name, OPERATION_SET, value),))
    request = IncrementalAlterConfigsRequest((change,))
    answer = ask_broker(at, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request, LIMIT_S)
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    if answer.responses[0].error_code != ErrorCode.NONE:
        raise common.CouldNotRun(f"{topic}, {name}: {ErrorCode(answer.responses[0].error_code).name}")


def fill(at: Address, topic: str, arguments: argparse.Namespace) -> None:
    client, random_ = BenchClient(at), random.Random(1)
    value = os.urandom(arguments.record_bytes)
    for _ in range(arguments.megabytes * 1_000_000 // (BATCH_RECORDS * (arguments.record_bytes + 16))):
        now_ms = int(time.time() * 1_000)
        keys = (random_.randrange(arguments.keys).to_bytes(8, "big") for _ in range(BATCH_RECORDS))
        client.produce(topic, encode_batch([Record(place, now_ms, key, value) for place, key in enumerate(keys)]))


def cleaned_to(directory: Path, topic: str) -> int:
    path = directory / "cleaner-offset-checkpoint"
    data = path.read_bytes() if path.exists() else b""  # Kafka's broker makes an empty one at its start
    return decode_offsets(str(path), data).get((topic, 0), 0) if data else 0


def figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    p99 = {name: percentile([one for each in rounds for one in each[name]], 99) for name in ("alone_ms", "beside_ms")}
    return {
        "mb_per_s": common.spread([one["mb"] / one["seconds"] for one in rounds]),
        "cpu_ms_a_mb": common.spread([1e3 * one["cpu_s"] / one["mb"] for one in rounds]),
        "p99_alone_ms": p99["alone_ms"],
        "p99_beside_ms": p99["beside_ms"],
        "ratio": round(p99["beside_ms"] / p99["alone_ms"], 2),
        "ratios": [round(percentile(one["beside_ms"], 99) / percentile(one["alone_ms"], 99), 2) for one in rounds],
        "covered_percent": round(100 * sum(one["covered"] for one in rounds) / len(rounds)),
    }


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            f"{side['mb_per_s']['median']:,}",
            f"{side['cpu_ms_a_mb']['median']:,}",
            f"{side['p99_alone_ms']:.2f}",
            f"{side['p99_beside_ms']:.2f}",
            f"{side['ratio']:.2f} ({', '.join(map(str, side['ratios']))})",
            f"{side['covered_percent']} %",
        ]
        for name, side in found["sides"].items()
    ]


def notes(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{found['megabytes']} MB with {found['keys']:,} keys a round; p99 of all rounds together, its ratio in each"
        " round in brackets; the share of the producer's time during which the cleaner was at work. CPU is the"
        " broker's, with that of serving the producer.",
        found["circumstances"],
    ]
