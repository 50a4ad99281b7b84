"""`camerlengo bench security`: what TLS, SASL_SSL, ACLs and quotas cost a produce and a fetch, as ratios to PLAINTEXT.

Each mode has a topic of one partition on one of three brokers that run throughout: one listens with PLAINTEXT, SSL and
SASL_SSL, one asks an authorizer with 10,000 ACLs, one has quotas that are never reached. In each round every mode
works once, in an order that is rotated, with confluent-kafka in a process of its own (`broker_worker`). A ratio is that
of a mode to PLAINTEXT in the same round.

A check of an ACL is measured by itself, without a broker: CPU time, for several ways in which 10,000 ACLs may be laid
out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.broker.security.acls import AclEntry, AclOperation, AclPermission, AclRules, PatternType, ResourceType
from controller.broker.security.acls import ResourcePattern as Pattern
from controller.broker.security.principal import ANONYMOUS, USER, Principal, Requester
from controller.cli.requirements import CLIENTS, Need
from controller.cli.values import number, number_from
from controller.hosts.local_cluster import LocalCluster
from controller.system import HeldPorts
from controller.zookeeper.acl_znodes import LITERAL, PREFIXED, AclResource, AclRow, encode_acls
from controller.zookeeper.codecs import ConfigZnode, encode_config
from tests.benchmarks.broker import cpu_s, percentile
from tests.benchmarks.common import (
    add_count,
    add_output,
    aligned,
    circumstances,
    progress,
    run_worker,
    show,
    spread,
    subset,
)

MODES = ("PLAINTEXT", "SSL", "SASL_SSL", "ACLs", "quotas")
BASE = MODES[0]
ACLS = 10_000
TOPIC = "bench"
LIMIT_S = 60.0
GOAL_US = 2.0
"""Of one check."""
FIGURES = {
    "produce_records_per_s": "produced/s",
    "produce_cpu_us": "CPU us",
    "consume_records_per_s": "consumed/s",
    "consume_cpu_us": "CPU us",
    "p99_ms": "p99 ms",
    "latency_cpu_us": "CPU us a request",
}
"""What is measured of a mode in a round. CPU is the broker's, for each record; in the latency run for each request."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where a mode's clients connect, their further settings, and the broker's process."""

    servers: str
    pid: int
    client: Mapping[str, str]


# -- checks of ACLs


def layouts(acls: int) -> Iterator[tuple[str, list[tuple[Pattern, str]], list[str]]]:
    """(name, the patterns with the name of the user that each allows to read, names to ask for) of each."""
    topic, alice = ResourceType.TOPIC, "alice"
    names = [f"team-{at % 97:02d}.orders.{at}" for at in range(acls)]
    prefixed = [Pattern(topic, f"{name}.", PatternType.PREFIXED) for name in names]
    yield "literal", [(Pattern(topic, name), alice) for name in names], names
    yield "prefixed", [(one, alice) for one in prefixed], [f"{one.name}v1" for one in prefixed]
    lengths = [(Pattern(topic, f"{at:05d}{'x' * (at % 240)}", PatternType.PREFIXED), alice) for at in range(acls)]
    yield "prefixed, of 240 lengths", lengths, [f"{one.name}-events" for one, _ in lengths]
    half = [(Pattern(topic, f"{name}.v1"), alice) for name in names[::2]] + [(one, alice) for one in prefixed[::2]]
    half += [(Pattern(topic, "*"), "bob"), (Pattern(topic, "team-", PatternType.PREFIXED), "bob")]
    yield "literal, *, two prefixes", half, [f"{name}.v1" for name in names[::2]]
    yield "all on one topic", [(Pattern(topic, "shared"), f"user-{at}") for at in range(acls)], ["shared"]


def check_us(acls: int, checks: int = 10_000, repeats: int = 40) -> list[dict[str, Any]]:
    """The least CPU time of a check over `repeats` passes. Layouts take turns: a core may be slow for seconds."""
    asked = {}
    for name, patterns, names in layouts(acls):
        entries: dict[Pattern, list[AclEntry]] = {}
        for pattern, user in patterns:
            entry = AclEntry(Principal(USER, user), "*", AclOperation.READ, AclPermission.ALLOW)
            entries.setdefault(pattern, []).append(entry)
        rules = AclRules()
        clients = [Requester("L", "10.0.0.1", Principal(USER, "alice"))]
        if len(names) == 1:  # of many users, each of which asks
            clients = [Requester("L", "10.0.0.1", Principal(USER, user)) for _, user in patterns]
        rules.replace_all(entries)
        asked[name] = rules, [(clients[at % len(clients)], names[at % len(names)]) for at in range(checks)]
        assert rules.allows(asked[name][1][0][0], AclOperation.READ, ResourceType.TOPIC, names[0])
    least = map(min, zip(*([_timed(*one) for one in asked.values()] for _ in range(repeats)), strict=True))
    return [{"acls": name, "check_us": round(us, 2)} for name, us in zip(asked, least, strict=True)]


def _timed(rules: AclRules, asked: list[tuple[Requester, str]]) -> float:
    began_s = time.process_time()
    for client, name in asked:
        rules.allows(client, AclOperation.READ, ResourceType.TOPIC, name)
    return (time.process_time() - began_s) * 1e6 / len(asked)


# -- brokers


def acl_znodes(count: int) -> list[tuple[str, bytes]]:
    """`count` ACLs: half of literal names and half of prefixes, and what the clients and the broker itself need."""
    everyone = str(ANONYMOUS)
    needed = [("Cluster", "kafka-cluster", LITERAL), ("Topic", TOPIC, PREFIXED), ("Group", "*", LITERAL)]
    found = [(AclResource(*one), AclRow(everyone, "Allow", "All", "*")) for one in needed]
    for at in range(count - len(found)):
        kind = PREFIXED if at % 2 else LITERAL
        found.append((AclResource("Topic", f"team-{at}.", kind), AclRow("User:alice", "Allow", "Read", "*")))
    return [(resource.path, encode_acls([row])) for resource, row in found]


def quota_znodes() -> list[tuple[str, bytes]]:
    rates = {"producer_byte_rate": "1e12", "consumer_byte_rate": "1e12", "request_percentage": "100000"}
    return [("/config/clients/<default>", encode_config(ConfigZnode(rates)))]


class ListeningCluster(LocalCluster):
    """Writes `znodes` before its broker starts, which then knows them as it serves."""

    def __init__(self, znodes: Iterable[tuple[str, bytes]], settings: Mapping[str, str]) -> None:
        self._znodes = list(znodes)
        super().__init__(1, settings=settings)

    def broker_child(self, number: int, settings: Mapping[str, str]) -> Any:
        from kazoo.client import KazooClient

        client = KazooClient(self.zookeeper.connect_string, timeout=LIMIT_S)
        client.start(LIMIT_S)
        try:
            for path in dict.fromkeys(path.rpartition("/")[0] for path, _ in self._znodes):
                client.ensure_path(path)
            for pending in [client.create_async(path, data) for path, data in self._znodes]:
                pending.get(timeout=LIMIT_S)
        finally:
            client.stop()
            client.close()
        return super().broker_child(number, settings)


@contextmanager
def served(modes: Iterable[str], acls: int) -> Iterator[dict[str, Served]]:
    """The brokers that the modes need."""
    with ExitStack() as stack:
        found: dict[str, Served] = {}
        listening = [mode for mode in modes if mode in (BASE, "SSL", "SASL_SSL")]
        found |= stack.enter_context(_listening(listening))
        if "ACLs" in modes:
            authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
            found["ACLs"] = _plain(stack.enter_context(ListeningCluster(acl_znodes(acls), authorizer)))
        if "quotas" in modes:
            found["quotas"] = _plain(stack.enter_context(ListeningCluster(quota_znodes(), {})))
        yield found


def _plain(cluster: LocalCluster) -> Served:
    return Served(cluster.bootstrap_servers, cluster.brokers[1].pid, {})


@contextmanager
def _listening(protocols: list[str]) -> Iterator[dict[str, Served]]:
    """One broker with a listener for each."""
    from controller.hosts.secured import ClusterSecurity, Security

    with tempfile.TemporaryDirectory(prefix="camerlengo-bench-") as folder:
        made = ClusterSecurity(Path(folder) / "secrets", Security(), 1)
        ports = HeldPorts(len(protocols))
        try:
            own = made.broker_settings(1, ("SASL_SSL",))
            passed = ("ssl.", "listener.name.", "sasl.enabled.mechanisms")
            settings = {name: value for name, value in own.items() if name.startswith(passed)}
            at = [f"{one}://127.0.0.1:{port}" for one, port in zip(protocols, ports.numbers, strict=True)]
            settings["listeners"] = ",".join(at)
            with ListeningCluster(made.znodes(), settings) as cluster:
                pid, found = cluster.brokers[1].pid, {}
                for protocol, port in zip(protocols, ports.numbers, strict=True):
                    servers = f"127.0.0.1:{port}"
                    options = made.client(servers).confluent
                    if protocol == BASE:
                        options = {}
                    elif protocol == "SSL":
                        options = {name: value for name, value in options.items() if name.startswith("ssl.")}
                        options["security.protocol"] = "SSL"
                    options.pop("bootstrap.servers", None)
                    found[protocol] = Served(servers, pid, options)
                yield found
        finally:
            ports.release()


# -- rounds


def measure(mode: Served, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One mode in one round: produce, consume, and produce at a steady rate."""
    records = max(int(arguments.megabytes * 1e6 / arguments.size), 1)
    topic = f"{TOPIC}-{name}"
    _create(mode, topic)
    given: dict[str, Any] = {"servers": mode.servers, "topic": topic, "partitions": 1, "client": dict(mode.client)}
    found: dict[str, float] = {}
    for kind, more in (
        ("produce", {"acks": "all", "records": records, "size": arguments.size}),
        ("consume", {"records": records}),
    ):
        before_s = cpu_s(mode.pid)
        answer = run_worker("tests.benchmarks.broker_worker", kind, json.dumps(given | more))
        found[f"{kind}_records_per_s"] = records / answer["seconds"]
        found[f"{kind}_cpu_us"] = (cpu_s(mode.pid) - before_s) * 1e6 / records
    if arguments.seconds:
        count = max(int(arguments.rate * arguments.seconds), 1)
        words = {"acks": "all", "records": count, "size": arguments.size, "per_second": arguments.rate}
        before_s = cpu_s(mode.pid)
        answer = run_worker("tests.benchmarks.broker_worker", "latency", json.dumps(given | words))
        found["p99_ms"] = percentile(answer["latency_ms"], 99)
        found["latency_cpu_us"] = (cpu_s(mode.pid) - before_s) * 1e6 / count
    return found


def _create(mode: Served, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": mode.servers, "log_level": 2, **mode.client})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(LIMIT_S)


def rounds(brokers: Mapping[str, Served], arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in brokers}
    order = list(brokers)
    for turn in range(arguments.runs):
        for mode in order:
            progress(f"round {turn + 1} of {arguments.runs}: {mode}")
            found[mode].append(measure(brokers[mode], f"{mode}-{turn}", arguments))
        order = [*order[1:], order[0]]
    progress("")
    return found


def summary(found: Mapping[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each mode: the median of each figure, and of its ratios to PLAINTEXT in the same rounds, with the least
    and the most."""
    rows: list[dict[str, Any]] = []
    for mode, turns in found.items():
        row: dict[str, Any] = {"mode": mode}
        for name in turns[0]:
            row[name] = round(statistics.median(turn[name] for turn in turns), 3)
            pairs = zip(turns, found[BASE], strict=True)
            row[f"{name}_ratio"] = spread([turn[name] / max(base[name], 1e-9) for turn, base in pairs], 2)
        rows.append(row)
    return rows


def table(found: Mapping[str, Any]) -> str:
    shown = [(name, title) for name, title in FIGURES.items() if found["modes"] and name in found["modes"][0]]
    head = ["", *(cell for _, title in shown for cell in (title, "ratio"))]
    rows = [head]
    for row in found["modes"]:
        cells = [row["mode"]]
        for name, _ in shown:
            ratio = row[f"{name}_ratio"]
            value = f"{row[name]:,.0f}" if name.endswith("per_s") else f"{row[name]:,.2f}"
            cells += [value, f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"]
        rows.append(cells)
    checks = [["a check", "CPU us"], *([row["acls"], f"{row['check_us']:.2f}"] for row in found["checks"])]
    slow = [row["acls"] for row in found["checks"] if row["check_us"] > GOAL_US]
    verdict = f"at most {GOAL_US:g} us a check: " + (f"not with {', '.join(slow)}" if slow else "held")
    parts = [aligned(rows)] if found["modes"] else []
    return "\n".join((*parts, f"{found['acl_count']:,} ACLs", aligned(checks), verdict, found["circumstances"]))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Produces to and consumes from one broker in each mode, in alternating rounds, and gives throughput, latency"
        " and the broker's CPU as ratios to PLAINTEXT; then measures a check of an ACL. Needs confluent-kafka and"
        " cryptography."
    )
    parser.add_argument(
        "--modes", type=subset(*MODES), default=MODES, metavar="NAME,...", help=f"some of {', '.join(MODES)} (all)"
    )
    add_count(parser, "--size", 1_024, "bytes of a record")
    parser.add_argument("--megabytes", type=number(), default=50.0, metavar="N", help="MB produced in each run (50)")
    add_count(parser, "--runs", 5, "number of rounds; the output has medians")
    add_count(parser, "--rate", 300, "records per second of the latency runs")
    parser.add_argument(
        "--seconds", type=number_from(), default=5.0, metavar="S", help="duration of each latency run (5; 0: none)"
    )
    add_count(parser, "--acls", ACLS, "number of ACLs")
    parser.add_argument("--checks-only", action="store_true", help="measure a check of an ACL alone")
    add_output(parser)


def needs(arguments: argparse.Namespace) -> Iterable[Need]:
    return () if arguments.checks_only else CLIENTS


def run(arguments: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    modes: list[dict[str, Any]] = []
    if not arguments.checks_only:
        wanted = tuple(dict.fromkeys((BASE, *arguments.modes)))
        with served(wanted, arguments.acls) as brokers:
            modes = summary(rounds({mode: brokers[mode] for mode in wanted}, arguments))
    found = {
        "benchmark": "security",
        "modes": modes,
        "acl_count": arguments.acls,
        "checks": check_us(arguments.acls),
        "circumstances": circumstances(load),
    }
    show(arguments, found, table(found))
    return 0
