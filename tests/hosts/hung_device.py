"""A broker one of whose two log directories is on a FUSE file system that stops answering; root, Linux and /dev/fuse.

    python -m tests.hosts.hung_device [--seconds 5] [--kinds read,appended]

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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from controller.broker.settings import Address
from controller.hosts.local_cluster import BrokerChild, LocalCluster, ask_broker
from controller.protocol.client import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import FetchResponse
from controller.protocol.framing import framed
from controller.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.protocol.schema import RequestValue
from controller.zookeeper import paths
from controller.zookeeper.blocking import ThreadClock, wait
from controller.zookeeper.client import ZooKeeperClient
from controller.zookeeper.kazoo_connection import KazooConnection
from tests.benchmarks.broker import percentile
from tests.benchmarks.cold_reads import FETCH_BYTES, FETCH_VERSION, PRODUCE_VERSION, BenchClient, batch_of
from tests.hosts.fuse_folder import mounted_folder
from tests.processes import eventually

DEADLINE_S = 60.0
DEVICE_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 2_000
THREADS = 2
CONFIGS: Mapping[str, Mapping[str, str]] = {
    "read": {},
    "deleted": {},
    "rolled": {"segment.bytes": "16384"},
    "synced": {"flush.messages": "1"},
    "appended": {},
    "followed": {"segment.bytes": "16384", "flush.messages": "5"},
}
"""By kind: a topic of each in either directory. What is done with the one on the hung device: cold fetches, a deletion,
rolls, syncs, appends with acks=1 and all, and appends, rolls and syncs of a follower, whose leader is broker 2."""
KINDS = (*CONFIGS, "created")
"""`created`: two topics are created while it hangs, one after the other; then it answers for as long as they need."""
CREATED = 4
"""Partitions of each, on broker 1."""
MEGABYTES = 4
RATE = 100.0
SESSION_TIMEOUT_MS = 6_000
SETTINGS = {
    "camerlengo.device.timeout.ms": str(DEVICE_TIMEOUT_MS),
    "camerlengo.device.close.timeout.ms": str(CLOSE_TIMEOUT_MS),
    "camerlengo.device.threads": str(THREADS),
    "controlled.shutdown.enable": "false",
    "replica.lag.time.max.ms": "2000",
}


def unavailable() -> str:
    """Why this machine can't run it; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root: it mounts a file system"
    return "" if Path("/dev/fuse").exists() else "needs FUSE: /dev/fuse does not exist"


class TwoDirectories(LocalCluster):
    """Two brokers, the first with a log directory on its own file system and one at `mounted`."""

    def __init__(self, folder: Path, mounted: Path) -> None:
        self._mounted = mounted
        super().__init__(2, data_dir=folder, settings=SETTINGS, session_timeout_ms=SESSION_TIMEOUT_MS)

    def broker_child(self, number: int, settings: Mapping[str, str]) -> BrokerChild:
        paths = f"{settings['log.dirs']},{self._mounted}" if number == 1 else settings["log.dirs"]
        return super().broker_child(number, {**settings, "log.dirs": paths})


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


def produced(client: BenchClient, topic: str, batch: bytes, acks: int, partition: int = 0) -> ErrorCode:
    part = ProduceTopic(topic, (ProducePartition(partition, batch),))
    header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench")
    client.socket.sendall(framed(encode_request(header, ProduceRequest(acks, int(DEADLINE_S * 1_000), (part,)))))
    response = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, client.answer())[1]
    assert isinstance(response, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


class Producing:
    """A client for each kind of acks that produces to one topic, one request after another, until it ends."""

    def __init__(self, at: Address, topic: str, batch: bytes) -> None:
        self._over = threading.Event()
        self.errors: Counter[str] = Counter()
        self.longest_s = 0.0
        self._threads = [
            threading.Thread(target=self._run, args=(BenchClient(at), topic, batch, acks), daemon=True)
            for acks in (ACKS_LEADER, ACKS_ALL)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, client: BenchClient, topic: str, batch: bytes, acks: int) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            self.errors[produced(client, topic, batch, acks).name] += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self._over.wait(0.01)

    def end(self) -> dict[str, Any]:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        return {"answers": dict(self.errors), "longest s": round(self.longest_s, 1)}


def _make_topics(cluster: LocalCluster, shown: Path) -> tuple[dict[str, str], dict[str, str]]:
    """By kind, the topic in the directory that is `shown`, and the one in the other: a new partition goes where there
    are fewest."""
    hung: dict[str, str] = {}
    other: dict[str, str] = {}
    for kind, config in CONFIGS.items():
        for name in (f"{kind}-first", f"{kind}-second"):
            configs = tuple(CreatableTopicConfig(*one) for one in config.items())
            replicas = CreatableReplicaAssignment(0, (2, 1) if kind == "followed" else (1,))
            asked = CreateTopicsRequest((CreatableTopic(name, -1, -1, (replicas,), configs),), 60_000)
            _ask_controller(cluster, ApiKey.CREATE_TOPICS, 4, asked)
            eventually(partial(_leads, _address(cluster, replicas.broker_ids[0]), name), f"{name} has a leader")
            made = partial(_has_log, (shown, cluster.folder / "logs-1"), name)
            eventually(made, f"broker 1 has a log of {name}")
            (hung if (shown / f"{name}-0").exists() else other)[kind] = name
    assert hung.keys() == other.keys() == CONFIGS.keys(), (hung, other)
    return hung, other


def _has_log(folders: Sequence[Path], topic: str) -> bool:
    return any((folder / f"{topic}-0").exists() for folder in folders)


def _ask_controller(cluster: LocalCluster, key: ApiKey, version: int, request: RequestValue) -> None:
    """The broker that is not the controller refuses it."""
    for number in cluster.brokers:
        ask_broker(_address(cluster, number), key, version, request, DEADLINE_S)


def _address(cluster: LocalCluster, number: int = 1) -> Address:
    at = cluster.brokers[number].ready_at()
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


def run(folder: Path, seconds: float, kinds: Sequence[str]) -> dict[str, Any]:
    shown, mounted = folder / "shown", folder / "mounted"
    for each in (shown, mounted):
        each.mkdir()
    with mounted_folder(shown, mounted) as server, TwoDirectories(folder / "cluster", mounted) as cluster:
        broker = cluster.brokers[1]
        hung, other = _make_topics(cluster, shown)
        filling = BenchClient(_address(cluster))
        for _ in range(4 * MEGABYTES):
            filling.produce(hung["read"], batch_of([os.urandom(1024)] * 256))
        # After a restart nothing counts as appended lately.
        assert broker.stop(DEADLINE_S) == 0
        broker.start()
        broker.await_ready(time.monotonic() + DEADLINE_S)
        at = _address(cluster)
        for kind, topic in (*hung.items(), *other.items()):
            leader = _address(cluster, 2) if kind == "followed" else at
            eventually(partial(_leads, leader, topic), f"{topic} has a leader again")
        _flush(mounted)
        found: dict[str, Any] = {}
        try:
            Hanging(cluster, server.pid, mounted, hung, other["appended"], seconds, found).measure(kinds)
        except (TimeoutError, ConnectionError) as error:
            found["blocked"] = repr(error)
        began_s = time.monotonic()
        found["exit status"] = broker.stop(DEADLINE_S)
        found["shutdown s"] = round(time.monotonic() - began_s, 1)
        found["log"] = broker.log_file.read_text()
    return found


def _flush(folder: Path) -> None:
    """Nothing of the logs is in memory then. What is dirty would hold up the end of the broker's process."""
    for log in folder.glob("*/*.log"):
        fd = os.open(log, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Hanging:
    """`server` and `folder`: of the directory that hangs. `hung`: topics there by kind; `other`: one in the other
    directory. What is measured is put into `found`."""

    def __init__(
        self,
        cluster: LocalCluster,
        server: int,
        folder: Path,
        hung: Mapping[str, str],
        other: str,
        seconds: float,
        found: dict[str, Any],
    ) -> None:
        self._cluster = cluster
        self._server = server
        self._folder = folder
        self._at = _address(cluster)
        self._hung = hung
        self._other = other
        self._seconds = seconds
        self._found = found
        self._client = BenchClient(self._at)
        self._batch = batch_of([bytes(100)])
        self._end = self._client.produce(other, self._batch)

    def _step(self) -> None:
        self._end = self._client.produce(self._other, self._batch)
        assert len(self._client.fetch(self._other, self._end, FETCH_BYTES))

    def _note(self, name: str) -> None:
        latencies = latencies_ms(self._step, self._seconds)
        self._found[name] = {f"p{percent}": round(percentile(latencies, percent), 2) for percent in (50, 99)}
        self._found[name] |= {"max": round(max(latencies), 2), "requests": 2 * len(latencies)}

    def measure(self, kinds: Sequence[str]) -> None:
        """The server is stopped at the end."""
        registered = registration(self._cluster.zookeeper.connect_string)
        clients = [BenchClient(self._at) for _ in range(THREADS + 1)]
        self._note("before")
        os.kill(self._server, signal.SIGSTOP)
        for kind in kinds:
            if kind == "read":
                self._read(clients)
            elif kind == "deleted":
                with self._deleting():
                    self._note("while deleted")
            elif kind == "created":
                self._create("created-first")
                self._create("created-next")
                self._note("while created")
                os.kill(self._server, signal.SIGCONT)
                began_s = time.monotonic()
                eventually(lambda: self._led("created-first") == CREATED, "all partitions are led")
                self._found["all led after s"] = round(time.monotonic() - began_s, 1)
                _flush(self._folder)
                os.kill(self._server, signal.SIGSTOP)
            else:
                values = [bytes(1000)] * (8 if kind in ("rolled", "followed") else 1)
                leader = _address(self._cluster, 2) if kind == "followed" else self._at
                producing = Producing(leader, self._hung[kind], batch_of(values))
                self._note(f"while {kind}")
                self._found[f"answers while {kind}"] = producing.end()
        self._step()
        kept = registration(self._cluster.zookeeper.connect_string) == registered != -1
        self._found["session kept"] = kept

    def _read(self, waiting: Sequence[BenchClient]) -> None:
        began_s = time.monotonic()
        for each in waiting:
            each.send_fetch(self._hung["read"], 0, FETCH_BYTES)
        self._note("while it hangs")
        self._found["errors"] = [error_of(each.answer()).name for each in waiting]
        self._found["answered within s"] = round(time.monotonic() - began_s, 1)
        began_s = time.monotonic()
        waiting[0].send_fetch(self._hung["read"], 0, FETCH_BYTES)
        self._found["error later"] = error_of(waiting[0].answer()).name
        self._found["answered later within s"] = round(time.monotonic() - began_s, 1)

    def _create(self, topic: str) -> None:
        """What is led of it within the device's limit, and when half of its partitions were."""
        began_s = time.monotonic()
        replicas = tuple(CreatableReplicaAssignment(number, (1,)) for number in range(CREATED))
        asked = CreateTopicsRequest((CreatableTopic(topic, -1, -1, replicas, ()),), 1)
        _ask_controller(self._cluster, ApiKey.CREATE_TOPICS, 4, asked)
        eventually(lambda: self._led(topic) >= CREATED // 2, f"half of {topic} is led")
        half_s = round(time.monotonic() - began_s, 1)
        time.sleep(max(0.0, 2 * DEVICE_TIMEOUT_MS / 1_000.0 - half_s))
        self._found[topic] = {"half led after s": half_s, "led": self._led(topic)}

    def _led(self, topic: str) -> int:
        client = BenchClient(self._at)
        try:
            errors = [produced(client, topic, self._batch, ACKS_LEADER, number) for number in range(CREATED)]
        finally:
            client.socket.close()
        return errors.count(ErrorCode.NONE)

    @contextmanager
    def _deleting(self) -> Iterator[None]:
        asked = DeleteTopicsRequest((DeleteTopicState(self._hung["deleted"]),), 1_000)
        thread = threading.Thread(
            target=_ask_controller, args=(self._cluster, ApiKey.DELETE_TOPICS, 6, asked), daemon=True
        )
        thread.start()
        yield
        thread.join(DEADLINE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a broker one of whose devices hangs.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="what is done, in this order (%(default)s)")
    arguments = parser.parse_args()
    if unavailable():
        parser.error(unavailable())
    folder = Path(tempfile.mkdtemp(prefix="camerlengo-hung-"))
    try:
        print(json.dumps(run(folder, arguments.seconds, arguments.kinds.split(",")), indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
