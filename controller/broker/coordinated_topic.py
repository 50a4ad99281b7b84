"""What coordinators share: state that lasts in an internal topic, whose partitions' leaders coordinate what belongs to
them.

A key (a group, a transactional id) belongs to one partition of the topic, and who leads the partition coordinates it.
When a broker becomes the leader it reads the partition from its beginning, and until every member of the ISR has what
it read, it answers COORDINATOR_LOAD_IN_PROGRESS; when it ceases to lead, it forgets what it read. What changes is
appended as a client's records with acks=all are, and counts once every member of the ISR has it. Keys and values of
records begin with their version. Source: Kafka 2.8's GroupMetadataManager and TransactionStateManager.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition, Role
from controller.broker.records.cold_reads import until_cached
from controller.broker.records.list_offsets import decompress
from controller.broker.records.writes import ProduceHandler, Replication
from controller.broker.request_context import SLICE, Drive, Job, JobLane, Steps
from controller.clock import Clock, Timer
from controller.protocol.compiler import layout
from controller.protocol.errors import ErrorCode, MalformedFrame
from controller.protocol.produce import (
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.protocol.schema import RequestValue
from controller.storage import PartitionLog, StorageError
from controller.storage.batches import HEADER_BYTES, BatchHeader, Record, decode_records, encode_batch, headers_of
from controller.storage.disk import is_shortage
from controller.storage.errors import CorruptBatch
from controller.storage.transactions import Origin

PRODUCE_VERSION = 8
NOT_AVAILABLE = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
NOT_COORDINATOR = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE})
READ_AGAIN_MS = 5_000.0
DAMAGED_NAMED = 10
"""How many of a partition's records that can't be read are named in the log."""
_VERSION = struct.Struct(">h")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
KeyAndValue = tuple[bytes, bytes | None]


class UnknownRecord(ValueError):
    """A record of an internal topic that can't be read: says which, and why."""


def partition_of(key: str, partitions: int) -> int:
    """The partition that a group or a transactional id belongs to: Java's hash of its name, modulo their number."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8) + low) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def written(value: RequestValue, version: int) -> bytes:
    """The bytes of a record's key or value."""
    return _VERSION.pack(version) + layout(value.message, version).write(value)


def version_of(data: bytes, what: str) -> int:
    """Raises UnknownRecord."""
    if len(data) < _VERSION.size:
        raise UnknownRecord(f"{what} of {len(data)} bytes: expected a version")
    version: int = _VERSION.unpack_from(data)[0]
    return version


def read_versioned(kind: type[RequestValue], data: bytes, what: str) -> RequestValue:
    """Raises UnknownRecord."""
    message = kind.message
    version = version_of(data, what)
    if not message.first <= version <= message.last:
        raise UnknownRecord(f"{what} of version {version}: expected {message.first} to {message.last}")
    try:
        value: RequestValue = layout(message, version).read(data, _VERSION.size, rest_allowed=True)
    except MalformedFrame as error:
        raise UnknownRecord(f"{what}: {error}") from None
    return value


def batch_of(
    records: Sequence[KeyAndValue], now_ms: int, attributes: int = 0, producer: tuple[int, int] | None = None
) -> bytes:
    """`producer`: the id and epoch of the one whose transaction it belongs to."""
    entries = [Record(number, now_ms, key, value) for number, (key, value) in enumerate(records)]
    if producer is None:
        return encode_batch(entries, attributes=attributes)
    return encode_batch(
        entries, attributes=attributes, producer_id=producer[0], producer_epoch=producer[1], base_sequence=0
    )


@dataclass(slots=True, eq=False)
class CoordinatedPartition(Generic[T]):
    """A partition of the topic that this broker leads. Until it `is_loaded`, its `entries` are not known.
    `epoch`: its leader epoch when this broker came to lead it."""

    partition: Partition
    epoch: int
    entries: dict[str, T] = field(default_factory=dict)
    is_loaded: bool = False
    waiting: dict[Callable[[], None], Timer] = field(default_factory=dict)
    """What is to be called once it is loaded or unloaded, with what ends the wait before."""

    @property
    def index(self) -> int:
        return self.partition.index


class Reading(Protocol[T_co]):
    """What the records read so far say. `damaged`: what could not be read, for the log."""

    damaged: list[str]

    def take(self, read: Iterable[tuple[BatchHeader, Sequence[Record]]]) -> None: ...

    def entries(self) -> Mapping[str, T_co]:
        """What they say, once all are read."""


@dataclass(eq=False, repr=False)
class CoordinatedTopic(Generic[T]):
    """`_count`: how many partitions the topic is created with. `_reading` begins to read a partition. `_on_loaded` and
    `_on_unloaded` are called with each partition whose entries this broker begins, or ceases, to coordinate. `_what`:
    what its entries are called in the log."""

    name: str
    _what: str
    _count: int
    _load_bytes: int
    _metadata: MetadataCache
    _produce: ProduceHandler
    _clock: Clock
    drive: Drive
    _note: Callable[[str, str], None]
    _reading: Callable[[], Reading[T]]
    _on_loaded: Callable[[CoordinatedPartition[T]], None]
    _on_unloaded: Callable[[CoordinatedPartition[T]], None]
    _is_counted: bool = field(default=False, init=False)
    """Whether the metadata has named the topic: until then it may have another number of partitions."""
    _partitions: dict[int, CoordinatedPartition[T]] = field(default_factory=dict, init=False)

    # Which entries.

    def index_of(self, key: str) -> int:
        """The partition that the key belongs to."""
        return partition_of(key, self._count)

    def metadata_changed(self) -> None:
        """With another number of partitions, keys belong to other ones: read all of them again, and keep of each what
        belongs to it. Requests that wait are answered with NOT_COORDINATOR."""
        known = self._metadata.snapshot.topics.get(self.name)
        if not known:
            return
        is_new, changed = not self._is_counted, len(known) != self._count
        self._count, self._is_counted = len(known), True
        for coordinated in tuple(self._partitions.values()) if changed else ():
            if not is_new or any(self.index_of(key) != coordinated.index for key in coordinated.entries):
                self._unload(coordinated.index)
                self._take(coordinated.partition)

    def partition(self, key: str) -> CoordinatedPartition[T] | None:
        return self._partitions.get(self.index_of(key))

    def at(self, index: int) -> CoordinatedPartition[T] | None:
        return self._partitions.get(index)

    def refusal(self, key: str) -> ErrorCode | None:
        """Why a request about this key can't be answered here; None if it can."""
        partition = self.partition(key)
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return None if partition.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def when_loaded(self, key: str, limit_ms: float, then: Callable[[], None]) -> None:
        """Call `then` once, when what the key belongs to is loaded, which is under way, or unloaded, or after
        `limit_ms`."""
        partition = self.partition(key)
        assert partition is not None
        waiting = partition.waiting

        def time_is_up() -> None:
            del waiting[then]
            then()

        waiting[then] = self._clock.call_later(limit_ms, time_is_up)

    def _end_waits(self, coordinated: CoordinatedPartition[T]) -> None:
        waiting, coordinated.waiting = coordinated.waiting, {}
        for timer in waiting.values():
            timer.cancel()
        if waiting:
            self.drive(self._call_all(waiting))

    def _call_all(self, waiting: Iterable[Callable[[], None]]) -> Steps:
        for number, call in enumerate(waiting, 1):
            try:
                call()
            except Exception:  # noqa: BLE001 - logged with its traceback; the others are unaffected
                self._note("error", f"a request that waited until {self.name} was loaded\n{traceback.format_exc()}")
            if number % SLICE == 0:
                yield None

    @property
    def is_loading(self) -> bool:
        return any(not partition.is_loaded for partition in self._partitions.values())

    def partitions(self) -> list[CoordinatedPartition[T]]:
        """Those that this broker leads."""
        return list(self._partitions.values())

    def entries(self) -> list[T]:
        return [entry for partition in self._partitions.values() for entry in partition.entries.values()]

    # Writing.

    def append(
        self, index: int, batch: bytes, acks: int, timeout_ms: int, then: Callable[[ProducePartitionResult], None]
    ) -> None:
        """Append one batch to a partition of the topic. `then` is called once."""
        partition = ProducePartition(index, batch)
        request = ProduceRequest(acks, timeout_ms, (ProduceTopic(self.name, (partition,)),))

        def answered(response: ProduceResponse) -> None:
            then(response.responses[0].partition_responses[0])

        self.drive(self._produce.handle(request, PRODUCE_VERSION, answered, origin=Origin.COORDINATOR))

    # Reading, when this broker comes to lead a partition.

    def roles_taken(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            if partition.topic != self.name:
                continue
            if partition.role is not Role.LEADER:
                self._unload(partition.index)
            elif partition.index not in self._partitions:
                self._take(partition)

    def _take(self, partition: Partition) -> None:
        coordinated = CoordinatedPartition[T](partition, partition.leader_epoch)
        self._partitions[partition.index] = coordinated
        self._clock.call_later(0.0, partial(self._begin_load, coordinated))

    def stopped(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            if partition.topic == self.name:
                self._unload(partition.index)

    def _unload(self, index: int) -> None:
        coordinated = self._partitions.pop(index, None)
        if coordinated is not None:
            self._on_unloaded(coordinated)
            self._end_waits(coordinated)

    def _begin_load(self, coordinated: CoordinatedPartition[T]) -> None:
        log = coordinated.partition.log
        if log is not None and self._partitions.get(coordinated.index) is coordinated:
            self.drive(self._load(coordinated, log))

    def _load(self, coordinated: CoordinatedPartition[T], log: PartitionLog) -> Steps:
        """In slices, and away from the broker's thread where there is much to read. Given up when the lead is lost."""
        reading = self._reading()
        offset, end = log.log_start_offset, log.log_end_offset
        began_ms = self._clock.now_ms()
        where = f"{self.name}-{coordinated.index}"
        try:
            while offset < end:
                those = (offset, self._load_bytes, end)
                found = yield from until_cached(log, partial(log.read_cached, *those), partial(log.read, *those))
                read: list[tuple[BatchHeader, list[Record]]] = yield Job(partial(_records, found.read), JobLane.RECORDS)
                if self._partitions.get(coordinated.index) is not coordinated:
                    return
                if not read:
                    break
                reading.take(read)
                offset = read[-1][0].next_offset
        except (OSError, StorageError) as error:
            if isinstance(error, OSError) and not is_shortage(error):
                error = log.health.fail(error)
            has_moved = coordinated.partition.log is not log  # to another directory
            if not has_moved:
                self._note("error", f"{where}: the {self._what} after offset {offset} can't be read: {error}")
            if has_moved or not isinstance(error, CorruptBatch):  # on a lost HDD: it is not forgotten
                delay_ms = 0.0 if has_moved else READ_AGAIN_MS
                self._clock.call_later(delay_ms, partial(self._begin_load, coordinated))
                return
        self._finish_once_replicated(coordinated, end, partial(self._finish_load, coordinated, reading, began_ms))

    def _finish_once_replicated(
        self, coordinated: CoordinatedPartition[T], end: int, finish: Callable[[], None]
    ) -> None:
        """Call `finish` once each member of the ISR has what was read up to `end`. A leadership that ends does not
        show that: the next one is waited for, unless the partition is unloaded, as it is when no other follows."""
        partition, leading = coordinated.partition, coordinated.partition.leading
        if leading is None or self._partitions.get(coordinated.index) is not coordinated:
            return
        if partition.high_watermark >= end:
            finish()
            return

        def decided() -> None:
            """Not within the call that moves the high watermark: a listener there may not write."""
            self._clock.call_later(0.0, partial(self._finish_once_replicated, coordinated, end, finish))

        self._produce.when_replicated(Replication(partition, leading, end), decided)

    def _finish_load(self, coordinated: CoordinatedPartition[T], reading: Reading[T], began_ms: float) -> None:
        where = f"{self.name}-{coordinated.index}"
        coordinated.entries.update(
            (key, entry)
            for key, entry in reading.entries().items()
            if not self._is_counted or self.index_of(key) == coordinated.index
        )
        coordinated.is_loaded = True
        self._on_loaded(coordinated)
        for problem in reading.damaged[:DAMAGED_NAMED]:
            self._note("error", f"{where}, {problem}: it is passed over")
        took_ms = self._clock.now_ms() - began_ms
        self._note("info", f"{where}: {len(coordinated.entries)} {self._what} were read in {took_ms:.0f} ms")
        self._end_waits(coordinated)


def _records(read: Callable[[], bytes]) -> list[tuple[BatchHeader, list[Record]]]:
    """The records of the batches. A batch whose compression is damaged has none."""
    data = memoryview(read())
    found = []
    for header, payload in _batches(data):
        plain: memoryview | bytes | None = payload
        if header.codec:
            plain = decompress(header.codec, bytes(payload))
        try:
            found.append((header, [] if plain is None else list(decode_records(header, plain))))
        except CorruptBatch:
            found.append((header, []))
    return found


def _batches(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    position = 0
    for header in headers_of(data):
        end = position + header.size_bytes
        yield header, data[position + HEADER_BYTES : end]
        position = end
