"""Which groups this broker coordinates, and how their state lasts: the partitions of __consumer_offsets that it leads.

Who leads a partition of __consumer_offsets coordinates its groups. When a broker becomes the leader it reads the
partition from its beginning, and until it has, it answers COORDINATOR_LOAD_IN_PROGRESS; when it ceases to lead, it
forgets the groups. What changes is appended as a client's records with acks=all are, and counts once every member of
the ISR has it. Source: Kafka 2.8's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from controller.broker.groups.group import ConsumerGroup, TopicPartition
from controller.broker.groups.offsets_topic import (
    GROUP_VERSION,
    OFFSETS_TOPIC,
    CommittedOffset,
    UnknownRecord,
    group_key,
    group_value,
    offset_key,
    offset_value,
    partition_of,
    read_group,
    read_key,
    read_offset,
)
from controller.broker.metadata import MetadataCache
from controller.broker.partition import Partition, Role
from controller.broker.records.list_offsets import decompress
from controller.broker.records.writes import ProduceHandler
from controller.broker.request_context import SLICE, Drive, Job, JobLane, Steps
from controller.broker.settings import BrokerSettings
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.groups import OffsetCommitKey
from controller.protocol.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ProducePartition,
    ProducePartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from controller.storage import PartitionLog, StorageError
from controller.storage.batches import HEADER_BYTES, BatchHeader, Record, decode_records, encode_batch, headers_of
from controller.storage.errors import CorruptBatch
from statemachines.group import Dead, Empty

PRODUCE_VERSION = 8
_NOT_AVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
_NOT_COORDINATOR = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE})
_COMMIT_COMMITTED = b"\x00\x00\x00\x01"
"""The key of a control record that commits a transaction: version 0, type 1."""


@dataclass(slots=True, eq=False)
class CoordinatedPartition:
    """A partition of __consumer_offsets that this broker leads. Until it `is_loaded` its groups are not known."""

    index: int
    groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    is_loaded: bool = False


@dataclass(slots=True)
class _Loading:
    """What the records read so far say. `open`: offsets of transactions that have not ended, by producer id."""

    groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    open: dict[int, list[tuple[str, TopicPartition, CommittedOffset | None]]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def take(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if header.is_control:
            ended = self.open.pop(header.producer_id, ())
            if records and records[0].key == _COMMIT_COMMITTED:
                for group, key, committed in ended:
                    self._offset(group, key, committed)
            return
        for record in records:
            try:
                self._record(header, record)
            except UnknownRecord as error:
                self.damaged.append(f"offset {record.offset}: {error}")

    def _record(self, header: BatchHeader, record: Record) -> None:
        key = read_key(record.key)
        if not isinstance(key, OffsetCommitKey):
            if record.value is None:
                self.groups.pop(key.group, None)
            else:
                self.groups[key.group] = ConsumerGroup.of_record(key.group, read_group(record.value))
            return
        committed = None if record.value is None else read_offset(record.value, header.base_offset)
        if header.is_transactional:
            self.open.setdefault(header.producer_id, []).append((key.group, (key.topic, key.partition), committed))
        else:
            self._offset(key.group, (key.topic, key.partition), committed)

    def _offset(self, group: str, key: TopicPartition, committed: CommittedOffset | None) -> None:
        offsets = self.offsets.setdefault(group, {})
        if committed is None:
            offsets.pop(key, None)
        else:
            offsets[key] = committed


class GroupStore:
    """`of_loads` and `of_unloads` are called with each group that this broker begins, or ceases, to coordinate."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        produce: ProduceHandler,
        clock: Clock,
        drive: Drive,
        note: Callable[[str, str], None],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._produce = produce
        self._clock = clock
        self._drive = drive
        self._note = note
        self._partitions: dict[int, CoordinatedPartition] = {}
        self._group_version = 2 if settings.inter_broker_protocol.startswith("2.2") else GROUP_VERSION
        self.of_loads: list[Callable[[ConsumerGroup], None]] = []
        self.of_unloads: list[Callable[[ConsumerGroup], None]] = []

    # Which groups.

    def partition_of(self, group_id: str) -> int:
        """The partition of __consumer_offsets that the group belongs to."""
        known = self._metadata.snapshot.topics.get(OFFSETS_TOPIC)
        return partition_of(group_id, len(known) if known else self._settings.offsets_topic_num_partitions)

    def refusal(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode | None:
        """Why a request about this group can't be answered here; None if it can."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        partition = self._partitions.get(self.partition_of(group_id))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return None if partition.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def is_loading(self) -> bool:
        return any(not partition.is_loaded for partition in self._partitions.values())

    def group(self, group_id: str) -> ConsumerGroup | None:
        return self._partitions[self.partition_of(group_id)].groups.get(group_id)

    def add(self, group_id: str) -> ConsumerGroup:
        """A new group, or the one that there is."""
        groups = self._partitions[self.partition_of(group_id)].groups
        return groups.setdefault(group_id, ConsumerGroup(group_id, since_ms=self._clock.wall_ms()))

    def groups(self) -> list[ConsumerGroup]:
        return [group for partition in self._partitions.values() for group in partition.groups.values()]

    # Writing.

    def store_group(
        self, group: ConsumerGroup, assignments: Mapping[str, bytes], then: Callable[[ErrorCode], None]
    ) -> None:
        """Write a group with its members' assignments. `then`: the error for its members, NONE if it is written."""
        record = (group_key(group.id), group_value(group.recorded(dict(assignments)), self._group_version))

        def appended(result: ProducePartitionResult) -> None:
            error = ErrorCode(result.error_code)
            if error in _NOT_AVAILABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif error in _NOT_COORDINATOR:
                error = ErrorCode.NOT_COORDINATOR
            elif error is ErrorCode.REQUEST_TIMED_OUT:
                error = ErrorCode.REBALANCE_IN_PROGRESS
            elif error in _TOO_LARGE:
                self._note("error", f"group {group.id} can't be written: {error.name} ({len(record[1])} bytes)")
                error = ErrorCode.UNKNOWN_SERVER_ERROR
            then(error)

        self._append(self.partition_of(group.id), [record], ACKS_ALL, appended)

    def store_offsets(
        self,
        group: ConsumerGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[Mapping[TopicPartition, ErrorCode]], None],
    ) -> Steps:
        """Write committed offsets, all in one batch. `answer`: the error of each."""
        limit = self._settings.offset_metadata_max_bytes
        errors = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        kept = {key: committed for key, committed in offsets.items() if len(committed.metadata) <= limit}
        if not kept:
            answer(errors)
            return
        group.commits += 1
        records: list[tuple[bytes, bytes | None]] = []
        for key, committed in kept.items():
            records.append((offset_key(group.id, *key), offset_value(committed)))
            if len(records) % SLICE == 0:
                yield None

        def appended(result: ProducePartitionResult) -> None:
            group.commits -= 1
            error = ErrorCode(result.error_code)
            if error is ErrorCode.NONE and group.state is not Dead:
                for (topic, index), committed in kept.items():
                    group.commit((topic, index), _at(committed, result.base_offset))
            elif error in _NOT_AVAILABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif error in _NOT_COORDINATOR:
                error = ErrorCode.NOT_COORDINATOR
            elif error in _TOO_LARGE:
                error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            answer(errors | dict.fromkeys(kept, error))

        make = partial(_batch, records, self._clock.wall_ms())
        batch = make() if len(records) <= SLICE else (yield Job(make))
        self._append_batch(self.partition_of(group.id), batch, ACKS_ALL, appended)

    def delete_offsets(
        self,
        group: ConsumerGroup,
        keys: Sequence[TopicPartition],
        *,
        with_group: bool = False,
        keep_group: bool = False,
    ) -> None:
        """Forget these offsets, and the group if it is empty and has none left. Records without a value say so; if they
        are lost, the same follows from what is left when it is read again."""
        records: list[tuple[bytes, bytes | None]] = []
        for key in keys:
            if group.offsets.pop(key, None) is not None:
                records.append((offset_key(group.id, *key), None))
        is_idle = group.state is Empty and not group.pending and not keep_group
        if is_idle and not group.offsets and (with_group or not group.commits):
            group.move(Dead, self._clock.wall_ms())
            self._partitions[self.partition_of(group.id)].groups.pop(group.id, None)
            if group.generation > 0:
                records.append((group_key(group.id), None))
        if records:
            self._append(self.partition_of(group.id), records, ACKS_LEADER, lambda _result: None)

    def _append(
        self,
        index: int,
        records: Sequence[tuple[bytes, bytes | None]],
        acks: int,
        then: Callable[[ProducePartitionResult], None],
    ) -> None:
        self._append_batch(index, _batch(records, self._clock.wall_ms()), acks, then)

    def _append_batch(
        self, index: int, batch: bytes, acks: int, then: Callable[[ProducePartitionResult], None]
    ) -> None:
        request = ProduceRequest(
            acks,
            self._settings.offsets_commit_timeout_ms,
            (ProduceTopic(OFFSETS_TOPIC, (ProducePartition(index, batch),)),),
        )

        def answered(response: ProduceResponse) -> None:
            then(response.responses[0].partition_responses[0])

        self._drive(self._produce.handle(request, PRODUCE_VERSION, answered, internal=True))

    # Reading, when this broker comes to lead a partition.

    def roles_taken(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            if partition.topic != OFFSETS_TOPIC:
                continue
            if partition.role is not Role.LEADER:
                self._unload(partition.index)
            elif partition.index not in self._partitions:
                coordinated = self._partitions[partition.index] = CoordinatedPartition(partition.index)
                self._clock.call_later(0.0, partial(self._begin_load, coordinated, partition))

    def stopped(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            if partition.topic == OFFSETS_TOPIC:
                self._unload(partition.index)

    def _unload(self, index: int) -> None:
        coordinated = self._partitions.pop(index, None)
        if coordinated is None:
            return
        for group in coordinated.groups.values():
            for unloaded in self.of_unloads:
                unloaded(group)

    def _begin_load(self, coordinated: CoordinatedPartition, partition: Partition) -> None:
        log = partition.log
        if log is not None and self._partitions.get(coordinated.index) is coordinated:
            self._drive(self._load(coordinated, log))

    def _load(self, coordinated: CoordinatedPartition, log: PartitionLog) -> Steps:
        """In slices, and away from the broker's thread where there is much to read. Given up when the lead is lost."""
        loading = _Loading()
        offset, end = log.log_start_offset, log.log_end_offset
        began_ms = self._clock.now_ms()
        where = f"{OFFSETS_TOPIC}-{coordinated.index}"
        try:
            while offset < end:
                found = log.read(offset, self._settings.offsets_load_buffer_size, end)
                read: list[tuple[BatchHeader, list[Record]]] = yield Job(partial(_records, found.read), JobLane.RECORDS)
                if self._partitions.get(coordinated.index) is not coordinated:
                    return
                if not read:
                    break
                for header, records in read:
                    loading.take(header, records)
                offset = read[-1][0].next_offset
        except StorageError as error:
            self._note("error", f"{where}: the groups after offset {offset} can't be read: {error}")
        self._loaded(coordinated, loading)
        for problem in loading.damaged[:10]:
            self._note("error", f"{where}, {problem}: it is passed over")
        took_ms = self._clock.now_ms() - began_ms
        self._note("info", f"{where}: {len(coordinated.groups)} groups were read in {took_ms:.0f} ms")

    def _loaded(self, coordinated: CoordinatedPartition, loading: _Loading) -> None:
        for group_id, offsets in loading.offsets.items():
            if offsets and group_id not in loading.groups:
                loading.groups[group_id] = ConsumerGroup(group_id, since_ms=self._clock.wall_ms())
        for group_id, group in loading.groups.items():
            group.offsets = loading.offsets.get(group_id, {})
            coordinated.groups[group_id] = group
        coordinated.is_loaded = True
        for group in tuple(coordinated.groups.values()):
            for loaded in self.of_loads:
                loaded(group)


def _batch(records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> bytes:
    return encode_batch([Record(number, now_ms, key, value) for number, (key, value) in enumerate(records)])


def _at(committed: CommittedOffset, appended_at: int) -> CommittedOffset:
    return CommittedOffset(
        committed.offset,
        committed.leader_epoch,
        committed.metadata,
        committed.committed_ms,
        committed.expires_ms,
        appended_at,
    )


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
