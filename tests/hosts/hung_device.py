"""A broker one of whose two log directories is on a FUSE file system that stops answering; root, Linux and /dev/fuse.

    python -m tests.hosts.hung_device [--seconds 5]

prints what clients saw, as JSON. The process makes a mount namespace of its own, and its children end with it: nothing
is left behind, whatever ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from controller.broker.settings import Address
from controller.hosts.local_cluster import BrokerChild, LocalCluster, ask_broker
from controller.protocol.client import CreatableTopic, CreateTopicsRequest
from controller.protocol.codec import ApiKey, decode_response
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchResponse
from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection
from tests.benchmarks.broker import percentile
from tests.benchmarks.cold_reads import FETCH_BYTES, FETCH_VERSION, BenchClient, batch_of
from tests.hosts.fuse_folder import mounted_folder
from tests.processes import eventually

DEADLINE_S = 60.0
DEVICE_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 2_000
THREADS = 2
TOPICS = ("first", "second")
MEGABYTES = 4
RATE = 100.0
SESSION_TIMEOUT_MS = 6_000
SETTINGS = {
    "camerlengo.device.timeout.ms": str(DEVICE_TIMEOUT_MS),
    "camerlengo.device.close.timeout.ms": str(CLOSE_TIMEOUT_MS),
    "camerlengo.device.threads": str(THREADS),
    "controlled.shutdown.enable": "false",
}


def unavailable() -> str:
    """Why this machine can't run it; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root: it mounts a file system"
    return "" if Path("/dev/fuse").exists() else "needs FUSE: /dev/fuse does not exist"


class TwoDirectories(LocalCluster):
    """One broker with a log directory on its own file system and one at `mounted`."""

    def __init__(self, folder: Path, mounted: Path) -> None:
        self._mounted = mounted
        super().__init__(1, data_dir=folder, settings=SETTINGS, session_timeout_ms=SESSION_TIMEOUT_MS)

    def broker_child(self, number: int, settings: Mapping[str, str]) -> BrokerChild:
        return super().broker_child(number, {**settings, "log.dirs": f"{settings['log.dirs']},{self._mounted}"})


class _NoEvents:
    def put(self, event: object) -> None:
        """This client watches nothing."""


def registration(connect: str) -> int:
    """The czxid of the broker's ephemeral node: another session has another."""
    client = ZooKeeperClient(KazooConnection(connect, ThreadClock(), 10_000), ThreadClock(), _NoEvents())
    try:
        wait(client.start(), DEADLINE_S)
        row = wait(client.read([paths.broker(1)]), DEADLINE_S).rows[0]
    finally:
        wait(client.close(), DEADLINE_S)
    return -1 if row is None else row.stat.czxid


def latencies_ms(step: Callable[[], object], seconds: float) -> list[float]:
    """Each from when its request was due."""
    found, began_s = [], time.perf_counter()
    for number in range(int(RATE * seconds)):
        due_s = began_s + number / RATE
        if (wait_s := due_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        step()
        found.append((time.perf_counter() - due_s) * 1_000.0)
    return found


def error_of(frame: bytes) -> ErrorCode:
    response = decode_response(ApiKey.FETCH, FETCH_VERSION, frame)[1]
    assert isinstance(response, FetchResponse)
    return ErrorCode(response.responses[0].partitions[0].error_code)


def _make_topics(cluster: LocalCluster) -> None:
    """One in each directory: a new partition goes where there are fewest."""
    at = _address(cluster)
    for name in TOPICS:
        ask_broker(at, ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest((CreatableTopic(name, 1, 1),), 60_000), DEADLINE_S)
        eventually(partial(_leads, at, name), f"{name} has a leader")


def _address(cluster: LocalCluster) -> Address:
    at = cluster.brokers[1].ready_at()
    assert at is not None
    return at


def _leads(at: Address, topic: str) -> bool:
    client = BenchClient(at)
    try:
        client.produce(topic, batch_of([bytes(100)]))
    except RuntimeError:
        return False
    finally:
        client.socket.close()
    return True


def run(folder: Path, seconds: float) -> dict[str, Any]:
    shown, mounted = folder / "shown", folder / "mounted"
    for each in (shown, mounted):
        each.mkdir()
    with mounted_folder(shown, mounted) as server, TwoDirectories(folder / "cluster", mounted) as cluster:
        broker = cluster.brokers[1]
        _make_topics(cluster)
        hung, other = sorted(TOPICS, key=lambda name: not (shown / f"{name}-0").exists())
        filling = BenchClient(_address(cluster))
        for _ in range(4 * MEGABYTES):
            filling.produce(hung, batch_of([os.urandom(1024)] * 256))
        # After a restart nothing counts as appended lately.
        assert broker.stop(DEADLINE_S) == 0
        broker.start()
        broker.await_ready(time.monotonic() + DEADLINE_S)
        at = _address(cluster)
        eventually(lambda: _leads(at, other) and _leads(at, hung), "the broker leads again")
        for log in mounted.glob("*/*.log"):
            fd = os.open(log, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        found = measured(cluster, server.pid, hung, other, seconds)
        began_s = time.monotonic()
        found["exit status"] = broker.stop(DEADLINE_S)
        found["shutdown s"] = round(time.monotonic() - began_s, 1)
        found["log"] = broker.log_file.read_text()
    return found


def measured(cluster: LocalCluster, server: int, hung: str, other: str, seconds: float) -> dict[str, Any]:
    """The server is stopped at the end."""
    at = _address(cluster)
    registered = registration(cluster.zookeeper.connect_string)
    client, waiting = BenchClient(at), [BenchClient(at) for _ in range(THREADS + 1)]
    batch = batch_of([bytes(100)])
    end = client.produce(other, batch)

    def step() -> None:
        nonlocal end
        end = client.produce(other, batch)
        assert len(client.fetch(other, end, FETCH_BYTES))

    found: dict[str, Any] = {}

    def note(name: str) -> None:
        latencies = latencies_ms(step, seconds)
        found[name] = {f"p{percent}": round(percentile(latencies, percent), 2) for percent in (50, 99)}
        found[name] |= {"max": round(max(latencies), 2), "requests": 2 * len(latencies)}

    note("before")
    os.kill(server, signal.SIGSTOP)
    began_s = time.monotonic()
    for each in waiting:
        each.send_fetch(hung, 0, FETCH_BYTES)
    note("while it hangs")
    found["errors"] = [error_of(each.answer()).name for each in waiting]
    found["answered within s"] = round(time.monotonic() - began_s, 1)
    began_s = time.monotonic()
    waiting[0].send_fetch(hung, 0, FETCH_BYTES)
    found["error later"] = error_of(waiting[0].answer()).name
    found["answered later within s"] = round(time.monotonic() - began_s, 1)
    step()
    found["session kept"] = registration(cluster.zookeeper.connect_string) == registered != -1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a broker one of whose devices hangs.")
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    if unavailable():
        parser.error(unavailable())
    folder = Path(tempfile.mkdtemp(prefix="camerlengo-hung-"))
    try:
        print(json.dumps(run(folder, seconds), indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
