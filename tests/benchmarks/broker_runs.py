"""The runs of `camerlengo bench broker`: a topic a run, a client in a fresh process, what the brokers spent on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.hosts.local_cluster import LocalCluster

PARTITIONS = 3
BROKERS = 3
WORKER_LIMIT_S = 600
READY_LIMIT_S = 60.0
SETTINGS = {
    "log.segment.delete.delay.ms": "1000",  # a run's records make room for the next run's
    "min.insync.replicas": "2",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """The replication of a topic, and the acks of its producer."""

    replication_factor: int
    acks: str

    def __str__(self) -> str:
        return f"RF {self.replication_factor} acks={self.acks}"


@dataclass(frozen=True, slots=True)
class Work:
    """What one client's process did. `cpu_s` is that of all brokers together while it ran, `client_cpu_s` the client's
    while it worked."""

    seconds: float
    requests: int
    cpu_s: float
    client_cpu_s: float
    latency_ms: tuple[float, ...] = ()


class Bench:
    """Over a cluster that runs."""

    def __init__(self, cluster: LocalCluster) -> None:
        from confluent_kafka.admin import AdminClient

        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        self._topics = 0

    @contextmanager
    def topic(self, setup: Setup) -> Iterator[str]:
        """A new one, in sync on all of its replicas; deleted at the end."""
        from confluent_kafka.admin import NewTopic

        self._topics += 1
        name = f"bench-{self._topics}"
        config = {"min.insync.replicas": str(min(setup.replication_factor, 2))}
        made = NewTopic(name, PARTITIONS, setup.replication_factor, config=config)
        self._admin.create_topics([made])[name].result(READY_LIMIT_S)
        self._await_leaders(name, setup.replication_factor)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(READY_LIMIT_S)

    def _await_leaders(self, topic: str, replicas: int) -> None:
        until_s = time.monotonic() + READY_LIMIT_S
        while True:
            partitions = self._admin.list_topics(topic, READY_LIMIT_S).topics[topic].partitions.values()
            if len(partitions) == PARTITIONS and all(
                one.leader >= 0 and len(one.isrs) == replicas for one in partitions
            ):
                return
            if time.monotonic() > until_s:
                raise RuntimeError(f"{topic} had not all its leaders and replicas in {READY_LIMIT_S:g} s")
            time.sleep(0.05)

    def work(self, kind: str, **given: Any) -> Work:
        """One client's process. Raises CalledProcessError, with what it said on its standard error shown."""
        words = json.dumps({"servers": self._cluster.bootstrap_servers, "partitions": PARTITIONS} | given)
        command = [sys.executable, "-m", "tests.benchmarks.broker_worker", kind, words]
        before_s = self._cpu_s()
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=WORKER_LIMIT_S, check=True)
        spent_s = self._cpu_s() - before_s
        answer: Mapping[str, Any] = json.loads(done.stdout)
        latency_ms = tuple(answer.get("latency_ms", ()))
        return Work(answer["seconds"], int(answer["requests"]), spent_s, answer["client_cpu_s"], latency_ms)

    def _cpu_s(self) -> float:
        return sum(cpu_s(broker.pid) for broker in self._cluster.brokers.values())


def cpu_s(pid: int) -> float:
    """A process's own and the system's time for it, so far, by /proc."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")
