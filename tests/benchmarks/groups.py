"""`camerlengo bench groups`: consumer groups of a thousand members, beside Kafka's where `KAFKA_HOME` names one.

The members are asyncio clients in one process (`group_members`). `in process` is a cluster of `controller.testing`:

    python -m tests.benchmarks.groups testing RUNS
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from controller.broker.settings import Address, address
from controller.cli.requirements import Need, zookeeper_server
from controller.cli.values import number_from
from controller.hosts.local_cluster import LocalCluster, ask_broker, ask_metadata
from controller.protocol.client import CreatableTopic, CreateTopicsRequest
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from tests.benchmarks import common
from tests.benchmarks.broker import cpu_s, percentile
from tests.benchmarks.clusters import Child
from tests.benchmarks.group_members import START_LIMIT_S, TOPIC, BenchMember, found_coordinator, gathered, settled

OURS, KAFKAS = "camerlengo", "Kafka"
TABLE = "groups"
MEMBERS = "tests.benchmarks.group_members"
TRIO = 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "10",
    "auto.create.topics.enable": "false",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts brokers on loopback and members of consumer groups in one other process, which all join at once;"
        " rebalances all groups at once; heartbeats at a steady rate; commits as fast as it goes. CPU is that of all"
        " brokers. With KAFKA_HOME the same against Kafka 2.8, afterwards. Then groups of three in a cluster of"
        " controller.testing: the time until the group is stable, and until it is again after a member was killed."
    )
    common.add_count(parser, "--members", 1_000, "members of all groups together")
    common.add_count(parser, "--groups", 100, "groups")
    common.add_count(parser, "--brokers", 3, "brokers; committed offsets have as many replicas, at most 3")
    common.add_count(parser, "--rate", 1_000, "heartbeats per second, of all members")
    common.add_count(parser, "--rebalances", 5, "rebalances of all groups")
    common.add_count(parser, "--heartbeat-ms", 100, "interval of heartbeats during a rebalance")
    common.add_count(parser, "--trios", 20, "groups of three in process; 0: none", least=0)
    parser.add_argument(
        "--seconds", type=number_from(), default=5.0, metavar="S", help="duration of heartbeats, and of commits (5)"
    )
    common.add_output(parser, page="docs/groups.md", tables=(TABLE,))
    common.add_zookeeper_jars(parser)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return zookeeper_server(arguments.zookeeper_jars) if os.environ.get("KAFKA_HOME") else ()


def run(arguments: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    replicas = str(min(arguments.brokers, 3))
    settings = SETTINGS | {"offsets.topic.replication.factor": replicas}
    found: dict[str, Any] = {"benchmark": "groups", "members": arguments.members, "groups": arguments.groups}
    found["sides"] = {
        name: measured(cluster, name, arguments, stack)
        for name in (OURS, *([KAFKAS] if os.environ.get("KAFKA_HOME") else []))
        for stack in [ExitStack()]
        for cluster in [made(name, arguments.brokers, settings, arguments.zookeeper_jars, stack)]
    }
    if arguments.trios:
        common.progress(f"{arguments.trios} groups of three, in process")
        found["trios"] = common.run_worker(__name__, "testing", str(arguments.trios))
    common.progress("")
    found["circumstances"] = common.circumstances(load)
    common.show(arguments, found, text(found))
    if arguments.page is not None:
        common.put_table(arguments.page, TABLE, page_table(found))
    return 0


def made(
    name: str, brokers: int, settings: Mapping[str, str], zookeeper_jars: Path | None, stack: ExitStack
) -> LocalCluster:
    """The brokers, not started; what they need is closed with `stack`."""
    if name == OURS:
        return LocalCluster(brokers, settings=settings)
    from tests.interop.kafka import FULL_SPEED, Kafka, KafkaCluster, jars_of

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="camerlengo-bench-")))
    kafka = Kafka(jars_of(os.environ["KAFKA_HOME"]), folder, FULL_SPEED)
    return KafkaCluster(kafka, brokers, zookeeper_jars=zookeeper_jars, settings=settings)


def measured(cluster: LocalCluster, name: str, arguments: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    with stack, cluster:
        server = cluster.bootstrap_servers.partition(",")[0]
        create_topic(cluster, TOPIC)
        child = Child(MEMBERS, server, str(arguments.members), str(arguments.groups))
        pids = [broker.pid for broker in cluster.brokers.values()]

        def step(words: str) -> dict[str, Any]:
            common.progress(f"{name}: {words}")
            before_s = sum(map(cpu_s, pids))
            answer: dict[str, Any] = child.ask(words)
            return answer | {"cpu_s": sum(map(cpu_s, pids)) - before_s}

        try:
            joined = step("join")
            rebalanced = [step(f"rebalance {arguments.heartbeat_ms}") for _ in range(arguments.rebalances)]
            step("commits 1")  # the first ones are not counted
            commits = step(f"commits {arguments.seconds:g}")
            idle = step(f"heartbeats {arguments.seconds:g} 0")
            heartbeats = step(f"heartbeats {arguments.seconds:g} {arguments.rate}")
        finally:
            child.close()
    idle_s = idle["cpu_s"] * heartbeats["seconds"] / idle["seconds"]
    return {
        "join": rebalance_figures([joined], arguments.members),
        "rebalance": rebalance_figures(rebalanced, arguments.members),
        "heartbeat": {
            "count": heartbeats["count"],
            "cpu_us": round((heartbeats["cpu_s"] - idle_s) * 1e6 / heartbeats["count"], 1),
            "client_cpu_us": round(heartbeats["client_cpu_s"] * 1e6 / heartbeats["count"], 1),
            "latency_ms": latency(heartbeats),
        },
        "idle_cpu_percent": round(100 * idle["cpu_s"] / idle["seconds"], 1),
        "commit": {
            "count": commits["count"],
            "per_s": round(commits["count"] / commits["seconds"]),
            "cpu_us": round(commits["cpu_s"] * 1e6 / commits["count"], 1),
            "client_cpu_us": round(commits["client_cpu_s"] * 1e6 / commits["count"], 1),
            "latency_ms": latency(commits),
        },
    }


def create_topic(cluster: LocalCluster, name: str) -> None:
    """Every broker knows it: a commit names a partition that there is."""
    until_s = time.monotonic() + START_LIMIT_S
    request = CreateTopicsRequest((CreatableTopic(name, 1, 1),), 30_000)
    addresses = [at for broker in cluster.brokers.values() if (at := broker.ready_at()) is not None]
    while not all(
        any(topic.name == name and topic.error_code == ErrorCode.NONE for topic in ask_metadata(at, 30.0).topics)
        for at in addresses
    ):
        if time.monotonic() > until_s:
            raise common.CouldNotRun(f"topic {name} is not known after {START_LIMIT_S:g} s")
        for at in addresses:  # the controller alone takes it
            ask_broker(at, ApiKey.CREATE_TOPICS, 4, request, 30.0)
        time.sleep(0.1)


def rebalance_figures(runs: Sequence[Mapping[str, Any]], members: int) -> dict[str, Any]:
    groups = [time_ms for one in runs for time_ms in one["group_ms"]]
    return {
        "all_ms": round(statistics.median(one["all_ms"] for one in runs)),
        "group_ms": {f"p{percent}": percentile(groups, percent) for percent in (50, 99)},
        "cpu_us_a_member": round(statistics.median(one["cpu_s"] for one in runs) * 1e6 / members),
    }


def latency(step: Mapping[str, Any]) -> dict[str, float]:
    return {f"p{percent}": percentile(step["latency_ms"], percent) for percent in (50, 99)}


ROWS = (
    ("all members join at once: all groups stable, ms", ("join", "all_ms")),
    ("… CPU of the brokers a member, µs", ("join", "cpu_us_a_member")),
    ("all groups rebalance at once: all stable, ms", ("rebalance", "all_ms")),
    ("… a group, p50, ms", ("rebalance", "group_ms", "p50")),
    ("… a group, p99, ms", ("rebalance", "group_ms", "p99")),
    ("… CPU of the brokers a member, µs", ("rebalance", "cpu_us_a_member")),
    ("CPU of the brokers a heartbeat, µs", ("heartbeat", "cpu_us")),
    ("heartbeat, p99, ms", ("heartbeat", "latency_ms", "p99")),
    ("commits per second", ("commit", "per_s")),
    ("CPU of the brokers a commit, µs", ("commit", "cpu_us")),
    ("commit, p50, ms", ("commit", "latency_ms", "p50")),
    ("commit, p99, ms", ("commit", "latency_ms", "p99")),
)


def cells(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    sides = found["sides"]
    rows = []
    for label, path in ROWS:
        row = [label]
        for side in sides.values():
            value = side
            for key in path:
                value = value[key]
            row.append(f"{value:,}")
        rows.append(row)
    return ["", *sides], rows


def notes(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{found['members']} members in {found['groups']} groups."]
    if "trios" in found:
        trios = found["trios"]
        lines.append(
            f"In process, groups of three (median, least to most, ms): stable {_worded(trios['stable_ms'])}; stable at"
            f" the next coordinator after the kill of theirs, with a rebalance, {_worded(trios['killed_ms'])};"
            f" rebalanced after a member has left {_worded(trios['left_ms'])}."
        )
    return [*lines, found["circumstances"]]


def _worded(figure: Mapping[str, float]) -> str:
    return f"{figure['median']:.1f} ({figure['min']:.1f} to {figure['max']:.1f})"


def text(found: Mapping[str, Any]) -> str:
    head, rows = cells(found)
    return "\n".join([common.aligned([head, *rows]), *notes(found)])


def page_table(found: Mapping[str, Any]) -> list[str]:
    head, rows = cells(found)
    return [*common.markdown(head, rows), "", *notes(found)]


# -- groups of three, in this process


def testing(runs: int) -> dict[str, Any]:
    """Times in ms. `stable`: from the first JoinGroup of a new group. `left`: from a LeaveGroup of a member, which ends
    its membership as an expired session does, until the other two are stable. `killed`: from the kill of the group's
    coordinator, whose session expires at once, until all three are stable at the next one, after a rebalance.

    `killed_undisturbed`: of the kills during which the machine's host took no processor time, as far as Linux says.
    Python's collector does not look at what was there before, such as modules; what kills leave it does collect."""
    from controller.testing import Kafka

    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {"stable_ms": [], "left_ms": [], "killed_ms": [], "killed_undisturbed_ms": []}
    settings = {"offsets.topic.num.partitions": "3"}
    with Kafka(brokers=3, settings=settings) as kafka:
        loop = asyncio.new_event_loop()
        for number in range(runs + 1):
            trio = Trio(f"trio-{number}", [address(one) for one in kafka.bootstrap_servers.split(",")])
            loop.run_until_complete(trio.connect())
            found = {"stable_ms": loop.run_until_complete(trio.settle())}
            coordinator = trio.coordinator
            stolen, began_s = stolen_ticks(), time.perf_counter()
            kafka.broker(coordinator).kill()
            found["killed_ms"] = loop.run_until_complete(trio.go_on(began_s))
            if stolen_ticks() == stolen:
                found["killed_undisturbed_ms"] = found["killed_ms"]
            kafka.broker(coordinator).start()
            kafka.wait_until_healthy()
            found["left_ms"] = loop.run_until_complete(trio.leave())
            trio.close()
            for name, time_ms in found.items() if number else ():  # the first one creates __consumer_offsets
                times[name].append(time_ms)
        loop.close()
    return {name: common.spread(those) | {"count": len(those)} for name, those in times.items() if those}


def stolen_ticks() -> int:
    """What the machine's host took of its processors so far; 0 where that is not known."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) if sys.platform == "linux" else 0


class Trio:
    """Three members of a group; they heartbeat each `HEARTBEAT_S` while they wait for a rebalance, and ask a
    coordinator that is not ready again after as long."""

    HEARTBEAT_S = 0.005

    def __init__(self, group: str, servers: Sequence[Address]) -> None:
        self._servers = servers
        self._members = [BenchMember(group, number, self.HEARTBEAT_S) for number in range(TRIO)]
        self.coordinator = -1

    async def connect(self, before: int = -1) -> None:
        """Find the coordinator, another one than `before`, and open the members' connections to it."""
        self.coordinator, at = await found_coordinator(self._servers, self._members[0].group, before)
        await gathered(member.connection.open(at) for member in self._members)

    async def settle(self) -> float:
        return await settled(self._members, time.perf_counter(), self.HEARTBEAT_S)

    async def go_on(self, began_s: float) -> float:
        """The coordinator was killed: find the next one, and join again."""
        self.close()
        await self.connect(self.coordinator)
        return await settled(self._members, began_s, self.HEARTBEAT_S)

    async def leave(self) -> float:
        *others, gone = self._members
        began_s = time.perf_counter()
        await gathered((gone.leave(), *(member.learn(self.HEARTBEAT_S) for member in others)))
        return await settled(others, began_s, self.HEARTBEAT_S, join=False)

    def close(self) -> None:
        for member in self._members:
            member.connection.close()


def main(words: list[str]) -> None:
    _, runs = words
    print(json.dumps(testing(int(runs))))


if __name__ == "__main__":
    main(sys.argv[1:])
