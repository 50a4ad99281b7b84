"""`camerlengo bench hostile`: the latency of a client while another one attacks, and what the brokers use.

    python -m tests.benchmarks.hostile HOST:PORT,...

is the probe, a well-behaved client in its own process: it sends small requests to each broker, again and again, and for
each line on its input it prints, as one line of JSON, what it has measured since the last one.

An attack is a client with plain sockets that returns a sentence on its result: when its requests are answered, its
connections are closed, or its time is up.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controller.broker.coordinated_topic import partition_of
from controller.broker.settings import Address, address
from controller.cli.main import UsageError
from controller.cli.values import integer, number, output_folder
from controller.hosts.local_cluster import LocalCluster, ask_metadata
from controller.protocol.admin import RESOURCE_TOPIC, DescribeConfigsRequest, DescribeConfigsResource
from controller.protocol.client import (
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from controller.protocol.codec import ApiKey, RequestHeader, decode_response, encode_request
from controller.protocol.errors import ErrorCode
from controller.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from controller.protocol.framing import SIZE_BYTES, framed
from controller.protocol.groups import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from controller.protocol.produce import (
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.protocol.schema import RequestValue, ResponseValue
from controller.storage.batches import Record, encode_batch, resealed
from tests.benchmarks.clusters import Child
from tests.benchmarks.common import add_output, note, show

ATTACK_LIMIT_S = 120.0
HOLD_S = 5.0
RETRY_S = 0.1
TOPIC, GROUPS, TRANSACTIONS = "hostile", "__consumer_offsets", "__transaction_state"
_GZIP = 1
INT_MAX = 2**31 - 1


class AttackClient:
    """One connection. OSError where the broker closes it or does not answer in time."""

    def __init__(self, at: Address, limit_s: float = ATTACK_LIMIT_S) -> None:
        self.socket = socket.create_connection(at, limit_s)
        self._correlation = 0

    def send(self, key: ApiKey, version: int, value: RequestValue, times: int = 1) -> None:
        self._correlation += 1
        frame = framed(encode_request(RequestHeader(key, version, self._correlation, "hostile"), value))
        self.socket.sendall(frame * times)

    def receive(self) -> bytes:
        return self._read(int.from_bytes(self._read(SIZE_BYTES), "big"))

    def ask(self, key: ApiKey, version: int, value: RequestValue) -> ResponseValue:
        self.send(key, version, value)
        return decode_response(key, version, self.receive())[1]

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise ConnectionError("closed")
            parts += part
        return bytes(parts)

    def close(self) -> None:
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Target:
    """`addresses` of the brokers by id, `controller` among them. `scale` 1 is an attack as it is described."""

    addresses: Mapping[int, Address]
    controller: int
    leader: int
    scale: float

    def times(self, count: int) -> int:
        return max(int(count * self.scale), 1)

    @contextmanager
    def client(self, broker: int | None = None) -> Iterator[AttackClient]:
        client = AttackClient(self.addresses[self.leader if broker is None else broker])
        try:
            yield client
        finally:
            client.close()


def attempt(target: Target, key: ApiKey, version: int, value: RequestValue) -> str:
    """One large request."""
    with target.client() as client:
        began_s = time.monotonic()
        try:
            client.send(key, version, value)
            size = len(client.receive())
        except TimeoutError:
            return f"no answer in {ATTACK_LIMIT_S:g} s"
        except OSError:
            return "refused: connection closed"
        return f"answered: {size / 1e6:.1f} MB in {time.monotonic() - began_s:.1f} s"


def announced(target: Target) -> str:
    clients = [AttackClient(target.addresses[target.leader]) for _ in range(5)]
    for client in clients:
        client.socket.sendall((100 * 1024 * 1024).to_bytes(4, "big") + b"four")
    time.sleep(HOLD_S)
    for client in clients:
        client.close()
    return f"held for {HOLD_S:g} s"


def metadata(count: int) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        names = tuple(MetadataRequestTopic(f"n{number}") for number in range(target.times(count)))
        return attempt(target, ApiKey.METADATA, 8, MetadataRequest(names))

    return attack


def fetch(count: int) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        partitions = tuple(FetchPartition(number, 0, 1_000) for number in range(target.times(count)))
        return attempt(target, ApiKey.FETCH, 4, FetchRequest(500, 1, (FetchTopic(TOPIC, partitions),)))

    return attack


def configs(count: int) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        resources = (DescribeConfigsResource(RESOURCE_TOPIC, TOPIC),) * target.times(count)
        return attempt(target, ApiKey.DESCRIBE_CONFIGS, 2, DescribeConfigsRequest(resources))

    return attack


def pipelined(target: Target) -> str:
    """Everything is sent before anything is read."""
    count = target.times(100_000)
    with target.client() as client:
        client.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest(), count)
        for _ in range(count):
            client.receive()
    return f"{count:,} answered"


def busy(target: Target) -> str:
    """Many connections, none of which is ever idle until all of its requests are answered."""
    count, each = target.times(200), target.times(1_000)
    frame = framed(encode_request(RequestHeader(ApiKey.API_VERSIONS, 0, 1, "hostile"), ApiVersionsRequest()))
    with target.client() as client:
        client.send(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        answer_bytes = SIZE_BYTES + len(client.receive())
    clients = [AttackClient(target.addresses[target.leader]) for _ in range(count)]
    left = {client.socket: each * answer_bytes for client in clients}
    deadline_s = time.monotonic() + ATTACK_LIMIT_S
    try:
        for client in clients:
            client.socket.sendall(frame * each)
        while left and time.monotonic() < deadline_s:
            for ready in select.select(list(left), [], [], 1.0)[0]:
                left[ready] -= len(ready.recv(1 << 20)) or left[ready]
                if left[ready] <= 0:
                    del left[ready]
    finally:
        for client in clients:
            client.close()
    return f"{count - len(left)} connections with {each:,} requests each answered"


def list_offsets(target: Target) -> str:
    """Look-ups by time in a batch of the smallest records, compressed, that is just below what is decompressed."""
    records = [Record(offset, 1_000 + (offset == 399_999), None, b"") for offset in range(400_000)]
    payload = gzip.compress(encode_batch(records)[61:])
    batch = encode_batch([records[0], records[-1]], attributes=_GZIP, payload=payload)
    batch = resealed(batch, len(records))
    count = target.times(100)
    with target.client() as client:
        produced = client.ask(ApiKey.PRODUCE, 7, _produce(batch))
        error = _error(produced)
        asked = ListOffsetsRequest((ListOffsetsTopic(TOPIC, (ListOffsetsPartition(0, 1_001),)),))
        client.send(ApiKey.LIST_OFFSETS, 4, asked, count)
        client.socket.settimeout(30.0)
        answered = 0
        with suppress(OSError):
            for _ in range(count):
                client.receive()
                answered += 1
    return f"batch {error.name}; {answered} of {count} answered"


def _produce(batch: bytes, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(acks, 10_000, (ProduceTopic(TOPIC, (ProducePartition(0, batch),)),))


def _error(response: ResponseValue) -> ErrorCode:
    assert isinstance(response, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def create(topics: int, partitions: int, replicas: int, name: str, limit_ms: int = 60_000) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        wanted = tuple(
            CreatableTopic(f"{name}-{number}", partitions, replicas)
            for number in range(target.times(topics) if topics > 1 else 1)
        )
        began_s = time.monotonic()
        with target.client(target.controller) as client:
            try:
                response = client.ask(ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest(wanted, limit_ms))
            except OSError as error:
                return f"no answer: {error}"
            assert isinstance(response, CreateTopicsResponse)
            codes = {ErrorCode(topic.error_code).name for topic in response.topics}
        return f"{', '.join(sorted(codes))} in {time.monotonic() - began_s:.1f} s"

    return attack


def delete_all(target: Target) -> str:
    """The topics of the attack before."""
    with target.client(target.controller) as client:
        everything = client.ask(ApiKey.METADATA, 8, MetadataRequest(None))
        assert isinstance(everything, MetadataResponse)
        names = [topic.name for topic in everything.topics if topic.name != TOPIC]
        gone = tuple(DeleteTopicState(name) for name in names)
        with suppress(OSError):
            client.ask(ApiKey.DELETE_TOPICS, 4, DeleteTopicsRequest(gone, 60_000))
            return f"{len(names):,} topics deleted"
    return "no answer"


def garbage(target: Target) -> str:
    """A batch that says 1,000 records and holds random bytes, its CRC right."""
    batch = resealed_garbage()
    with target.client() as client:
        return f"answered {_error(client.ask(ApiKey.PRODUCE, 7, _produce(batch))).name}"


def resealed_garbage() -> bytes:
    return resealed(encode_batch([Record(0, 1_000, None, b"")], payload=bytes(range(256)) * 4), 1_000)


def claimed(target: Target) -> str:
    """Batches of 70 bytes that claim 2^31-1 records each."""
    batch = resealed(encode_batch([Record(0, 1_000, None, b"")]), INT_MAX)
    codes: dict[str, int] = {}
    with target.client() as client:
        for _ in range(target.times(1_000)):
            error = _error(client.ask(ApiKey.PRODUCE, 7, _produce(batch))).name
            codes[error] = codes.get(error, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in codes.items())


def producer_ids(target: Target) -> str:
    count, ahead = target.times(300_000), 50
    record = [Record(0, int(time.time() * 1_000), None, b"x")]
    with target.client() as client:
        for first in range(0, count, ahead):
            for number in range(first, min(first + ahead, count)):
                batch = encode_batch(record, producer_id=10_000_000 + number, producer_epoch=0, base_sequence=0)
                client.send(ApiKey.PRODUCE, 7, _produce(batch))
            for _ in range(first, min(first + ahead, count)):
                client.receive()
    return f"{count:,} ids"


def coordinated(target: Target, kind: int, topic: str) -> Iterator[str]:
    """Ids that the target's leader coordinates, without end. `kind`: 0 of groups, 1 of transactional ids."""
    with target.client() as client:
        deadline_s = time.monotonic() + ATTACK_LIMIT_S
        leaders: dict[int, int] = {}
        while not leaders or min(leaders.values()) < 0:
            if time.monotonic() > deadline_s:
                raise OSError(f"{topic} has no leaders after {ATTACK_LIMIT_S:g} s")
            client.ask(ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest("any", kind))
            time.sleep(0.1)
            answer = client.ask(ApiKey.METADATA, 8, MetadataRequest((MetadataRequestTopic(topic),)))
            assert isinstance(answer, MetadataResponse)
            leaders = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
    names = (f"id-{count}" for count in itertools.count())
    return (name for name in names if leaders[partition_of(name, len(leaders))] == target.leader)


def group_ids(target: Target) -> str:
    """A new group each, whose only member never uses the id that it is given."""
    names, metadata = coordinated(target, 0, GROUPS), bytes(1_000)
    return ahead(target, 200_000, ApiKey.JOIN_GROUP, 5, (joining(name, metadata) for name in names))


def members(target: Target) -> str:
    """Clients of old, who join at once: each with 100 kB of metadata, and gone before it has an answer."""
    names, metadata, count = coordinated(target, 0, GROUPS), bytes(100_000), target.times(10_000)
    clients: deque[AttackClient] = deque()
    for name in itertools.islice(names, count):  # on a connection a request waits for the one before
        with suppress(ConnectionError):
            clients.append(AttackClient(target.addresses[target.leader]))
            clients[-1].send(ApiKey.JOIN_GROUP, 2, joining(name, metadata))
        if len(clients) > 50:
            clients.popleft().close()
    for client in clients:
        client.close()
    resets, until_s = 0, time.monotonic() + ATTACK_LIMIT_S
    while True:
        try:  # while the broker works off what it was sent, it may have all the connections that it takes
            with target.client() as client:
                answer = client.ask(ApiKey.JOIN_GROUP, 2, joining(next(names), metadata))
            break
        except ConnectionError:
            resets += 1
            if time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)
    assert isinstance(answer, JoinGroupResponse)
    further = ErrorCode(answer.error_code).name
    return f"{count:,} members of 100 kB; a further one: {further}, after {resets} refused connections"


def commits(target: Target) -> str:
    """A new group each, without members."""
    topics = (OffsetCommitTopic(TOPIC, (OffsetCommitPartition(0, 7, "x" * 100),)),)
    names = coordinated(target, 0, GROUPS)
    return ahead(target, 150_000, ApiKey.OFFSET_COMMIT, 7, (OffsetCommitRequest(name, topics) for name in names))


def transactional_ids(target: Target) -> str:
    names = coordinated(target, 1, TRANSACTIONS)
    requests = (InitProducerIdRequest(name, 60_000) for name in names)
    return ahead(target, 20_000, ApiKey.INIT_PRODUCER_ID, 1, requests)


def ahead(target: Target, count: int, key: ApiKey, version: int, requests: Iterator[RequestValue]) -> str:
    """Send so many requests, 50 before their answers are read; count those that were refused."""
    left = count = target.times(count)
    codes: dict[str, int] = {}
    with target.client() as client:
        while left:
            some = list(itertools.islice(requests, min(left, 50)))
            left -= len(some)
            for one in some:
                client.send(key, version, one)
            for _ in some:
                response: Any = decode_response(key, version, client.receive())[1]
                of = response.topics[0].partitions[0] if key is ApiKey.OFFSET_COMMIT else response
                name = ErrorCode(of.error_code).name
                codes[name] = codes.get(name, 0) + 1
    return ", ".join(f"{name} {number_:,}" for name, number_ in codes.items())


def joining(group: str, metadata: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(group, 30_000, "", "consumer", (JoinGroupProtocol("range", metadata),), 300_000)


_CONNECT = """
import socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
held = [socket.create_connection((host, port), 10.0) for _ in range(count)]
time.sleep(2.0)
closed = 0
for one in held:
    one.setblocking(False)
    try:
        closed += one.recv(1) == b""
    except BlockingIOError:
        pass
    except OSError:
        closed += 1
print(closed, flush=True)
sys.stdin.readline()
"""


def connections(target: Target) -> str:
    """More than the broker has descriptors for, from two processes that have as few themselves."""
    host, port = target.addresses[target.leader]
    each = [sys.executable, "-c", _CONNECT, host, str(port), "750"]
    clients = [subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        closed = sum(int(one.stdout.readline() or 0) for one in clients if one.stdout is not None)
        time.sleep(HOLD_S)
    finally:
        for one in clients:
            one.kill()
            one.communicate()
    return f"{1_500 - closed:,} open, {closed:,} closed by the broker"


def idle(target: Target) -> str:
    """Nothing at all: the quiet value."""
    time.sleep(HOLD_S)
    return ""


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    run: Callable[[Target], str]


ATTACKS: Sequence[Attack] = (
    Attack("nothing", idle),
    Attack("5 connections announce 100 MiB, send 4 bytes", announced),
    Attack("Metadata of 1,000,000 names", metadata(1_000_000)),
    Attack("Metadata of 95,000 names", metadata(95_000)),
    Attack("Fetch v4 of 1,000,000 partitions", fetch(1_000_000)),
    Attack("Fetch v4 of 95,000 partitions", fetch(95_000)),
    Attack("DescribeConfigs of 300,000 resources", configs(300_000)),
    Attack("DescribeConfigs of 95,000 resources", configs(95_000)),
    Attack("100,000 pipelined ApiVersions", pipelined),
    Attack("200 connections, 1,000 pipelined ApiVersions each", busy),
    Attack("100 ListOffsets by time, compressed batch", list_offsets),
    Attack("garbage batch with a right CRC", garbage),
    Attack("1,000 batches that claim 2^31-1 records", claimed),
    Attack("300,000 producer ids", producer_ids),
    Attack("200,000 group ids, a member id of each", group_ids),
    Attack("10,000 members with 100 kB of metadata", members),
    Attack("offsets of 150,000 group ids", commits),
    Attack("20,000 transactional ids", transactional_ids),
    Attack("1,500 connections", connections),
    Attack("CreateTopics of 2^31-1 partitions", create(1, INT_MAX, 1, "most")),
    Attack("CreateTopics of 100,000 x 3 partitions", create(1, 100_000, 3, "large")),
    Attack("CreateTopics of 10,000 x 3 partitions", create(1, 10_000, 3, "allowed")),
    Attack("DeleteTopics of that", delete_all),
    Attack("CreateTopics of 5,000 topics, RF 3", create(5_000, 1, 3, "many")),
    Attack("DeleteTopics of those", delete_all),
)


def scaled(attacks: Sequence[Attack], names: Sequence[str]) -> list[Attack]:
    """Those whose names contain one of `names`; all of them for none."""
    return [replace(one) for one in attacks if not names or any(name.lower() in one.name.lower() for name in names)]


BROKERS = 3
BOUND_MS = 100.0
BOUND_BYTES = 4 * 104_857_600
"""queued.max.request.bytes by default."""
PROBE_LIMIT_S = 60.0
AFTER_S = 0.5
"""How long after an attack the probe goes on to measure: an attack that is over at once has an effect as well."""
CALM_S = 3.0
"""Between two attacks, and how long the probe measures what is quiet before each."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a ZooKeeper and three brokers on loopback, each with `ulimit -n 1024`. One attack after the other runs"
        " against them, while a probe in a process of its own asks each broker for little every 10 ms. For each attack"
        " the table has the probe's worst latency beside that of the quiet seconds before, how much more memory a"
        " broker used at most, the descriptors it held, and whether the bounds held: 100 ms more than when quiet,"
        " queued.max.request.bytes, and every broker alive."
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="run the attacks whose names contain TEXT"
    )
    parser.add_argument(
        "--scale", type=number(0, 1), default=1.0, metavar="N", help="factor for the number of requests (1)"
    )
    parser.add_argument(
        "--descriptors",
        type=integer(256, 1_000_000),
        default=1024,
        metavar="N",
        help="file descriptor limit of each broker (1024)",
    )
    add_output(parser)
    parser.add_argument(
        "--logs", type=output_folder, metavar="DIR", help="keep the brokers' settings, logs and data in DIR"
    )


def run(arguments: argparse.Namespace) -> int:
    attacks = scaled(ATTACKS, arguments.only)
    if not attacks:
        names = "; ".join(one.name for one in ATTACKS)
        raise UsageError(f"--only {arguments.only[-1]}: expected a substring of one of: {names}")
    cluster = LocalCluster(brokers=BROKERS, data_dir=arguments.logs)
    try:
        with _descriptors(arguments.descriptors):
            cluster.start()
        rows = list(_rows(cluster, attacks, arguments.scale))
    finally:
        cluster.close()
    found = {"benchmark": "hostile", "descriptors": arguments.descriptors, "scale": arguments.scale, "attacks": rows}
    show(arguments, found, table(rows))
    return 0 if all(row["verdict"] == "held" for row in rows) else 1


@contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """The limit that processes started within have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))  # a broker raises its soft limit to the hard one
    try:
        yield
    finally:
        # Only the superuser may raise the hard limit again: for others the attacks have as many descriptors.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4_096, hard)), hard))


def _rows(cluster: LocalCluster, attacks: list[Attack], scale: float) -> Iterator[dict[str, Any]]:
    target = _target(cluster, scale)
    probe = Child(__name__, cluster.bootstrap_servers, hello=False)
    try:
        time.sleep(CALM_S)
        for attack in attacks:
            probe.ask()
            time.sleep(CALM_S)
            quiet = probe.ask()
            before = {number: resident(broker.pid) for number, broker in cluster.brokers.items()}
            for broker in cluster.brokers.values():
                _forget_peak(broker.pid)
            began_s = time.monotonic()
            try:
                outcome = attack.run(target)
            except OSError as error:
                outcome = f"{type(error).__name__}: {error}"
            time.sleep(AFTER_S)
            measured = probe.ask()
            alive = [number for number, broker in cluster.brokers.items() if broker.running]
            grown = max((peak(cluster.brokers[number].pid) - before[number] for number in alive), default=0)
            row = {
                "attack": attack.name,
                "outcome": outcome,
                "seconds": round(time.monotonic() - began_s, 1),
                "quiet_worst_ms": quiet["worst_ms"],
                "p50_ms": measured["p50_ms"],
                "worst_ms": measured["worst_ms"],
                "grown_mib": round(grown / 2**20, 1),
                "descriptors": max((descriptors(cluster.brokers[number].pid) for number in alive), default=0),
                "verdict": verdict(quiet, measured, grown, len(alive)),
            }
            note(f"{attack.name}: {outcome} ({row['verdict']})")
            yield row
            if len(alive) < BROKERS:
                return
    finally:
        probe.close()


def _target(cluster: LocalCluster, scale: float) -> Target:
    addresses = {number: broker.ready_at() for number, broker in cluster.brokers.items()}
    known = {number: at for number, at in addresses.items() if at is not None}
    controller = ask_metadata(known[1], PROBE_LIMIT_S).controller_id
    client = AttackClient(known[controller])
    client.ask(ApiKey.CREATE_TOPICS, 4, CreateTopicsRequest((CreatableTopic(TOPIC, 1, 3),), 30_000))
    client.close()
    deadline = time.monotonic() + PROBE_LIMIT_S
    while time.monotonic() < deadline:
        topics = {topic.name: topic for topic in ask_metadata(known[1], PROBE_LIMIT_S).topics}
        if TOPIC in topics and topics[TOPIC].partitions[0].leader_id >= 0:
            return Target(known, controller, topics[TOPIC].partitions[0].leader_id, scale)
        time.sleep(0.1)
    raise UsageError(f"topic {TOPIC} has no leader after {PROBE_LIMIT_S:g} s")


def verdict(quiet: dict[str, Any], measured: dict[str, Any], grown: int, alive: int) -> str:
    broken = []
    if alive < BROKERS:
        broken.append("a broker is gone")
    if measured["worst_ms"] is None or measured["worst_ms"] > BOUND_MS + (quiet["worst_ms"] or 0.0):
        broken.append("latency")
    if grown > BOUND_BYTES:
        broken.append("memory")
    return ", ".join(broken) or "held"


def resident(pid: int) -> int:
    return _status(pid, "VmRSS")


def peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'attack':<46}{'quiet':>8}{'p50':>8}{'worst ms':>10}{'MiB more':>10}{'fds':>6}  {'verdict':<9} outcome"]
    for row in rows:
        figures = f"{_shown(row['quiet_worst_ms']):>8}{_shown(row['p50_ms']):>8}{_shown(row['worst_ms']):>10}"
        spent = f"{row['grown_mib']:>10}{row['descriptors']:>6}"
        lines.append(f"{row['attack']:<46}{figures}{spent}  {row['verdict']:<9} {row['outcome']}")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


INTERVAL_S = 0.01
ANSWER_LIMIT_S = 120.0


class LatencyProbe:
    """One broker's client. `took_ms`: how long each answer took; one that is due counts with its age."""

    def __init__(self, at: str) -> None:
        self._address = address(at)
        self._frame = framed(encode_request(RequestHeader(ApiKey.METADATA, 9, 1, "probe"), MetadataRequest(())))
        self._lock = threading.Lock()
        self._took_ms: list[float] = []
        self._asked_s: float | None = None
        self._failures = 0

    def run(self) -> None:
        while True:
            try:
                with socket.create_connection(self._address, ANSWER_LIMIT_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while True:
                        self._ask(connection)
                        time.sleep(INTERVAL_S)
            except OSError:
                with self._lock:
                    self._failures += 1
                    self._asked_s = None
                time.sleep(INTERVAL_S)

    def _ask(self, connection: socket.socket) -> None:
        began_s = self._asked_s = time.perf_counter()
        connection.sendall(self._frame)
        size = int.from_bytes(_read(connection, SIZE_BYTES), "big")
        _read(connection, size)
        with self._lock:
            self._took_ms.append((time.perf_counter() - began_s) * 1_000.0)
            self._asked_s = None

    def taken(self) -> tuple[list[float], int]:
        with self._lock:
            took_ms, self._took_ms = self._took_ms, []
            failures, self._failures = self._failures, 0
            if self._asked_s is not None:
                took_ms.append((time.perf_counter() - self._asked_s) * 1_000.0)
        return took_ms, failures


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def probe(addresses: str) -> None:
    probes = [LatencyProbe(at) for at in addresses.split(",")]
    for probe in probes:
        threading.Thread(target=probe.run, daemon=True).start()
    for _ in sys.stdin:
        took_ms: list[float] = []
        failures = 0
        for probe in probes:
            some, failed = probe.taken()
            took_ms += some
            failures += failed
        took_ms.sort()
        found = {
            "requests": len(took_ms),
            "failures": failures,
            "p50_ms": round(took_ms[len(took_ms) // 2], 2) if took_ms else None,
            "worst_ms": round(took_ms[-1], 1) if took_ms else None,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    probe(sys.argv[1])
