"""The attacks of `camerlengo bench hostile`: each is a client with plain sockets that returns a sentence on its result.

An attack returns when its requests are answered, its connections are closed, or its time is up.
"""

from __future__ import annotations

import gzip
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from controller.broker.settings import Address
from controller.protocol.admin import RESOURCE_TOPIC, DescribeConfigsRequest, DescribeConfigsResource
from controller.protocol.client import (
    ApiVersionsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from controller.protocol.codec import RequestHeader, decode_response, encode_request
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
from controller.protocol.messages import ApiKey
from controller.protocol.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from controller.protocol.schema import RequestValue, ResponseValue
from controller.storage.batches import Record, encode_batch, resealed

ATTACK_LIMIT_S = 120.0
HOLD_S = 5.0
TOPIC = "hostile"
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
