"""Which groups this broker coordinates, and how their state lasts: the partitions of __consumer_offsets that it leads
(`coordinated_topic.py`). Source: Kafka 2.8's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from controller.broker.coordinated_topic import (
    NOT_AVAILABLE,
    NOT_COORDINATOR,
    TOO_LARGE,
    CoordinatedPartition,
    CoordinatedTopic,
    KeyAndValue,
    UnknownRecord,
    batch_of,
)
from controller.broker.groups.bounds import GroupTally
from controller.broker.groups.group import ConsumerGroup, TopicPartition
from controller.broker.groups.offsets_topic import (
    GROUP_VERSION,
    OFFSETS_TOPIC,
    CommittedOffset,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group,
    read_key,
    read_offset,
)
from controller.broker.metadata import MetadataCache
from controller.broker.records.writes import ProduceHandler
from controller.broker.request_context import SLICE, Drive, Job, Steps
from controller.broker.settings import BrokerSettings
from controller.clock import Clock
from controller.protocol.errors import ErrorCode
from controller.protocol.groups import OffsetCommitKey
from controller.protocol.produce import ACKS_ALL, ACKS_LEADER, ProducePartitionResult
from controller.storage.batches import BatchHeader, Record
from controller.storage.transactions import TRANSACTIONAL, marker_in
from statemachines.group import Dead, Empty

ProducerIdAndEpoch = tuple[int, int]


@dataclass(slots=True)
class _GroupReading:
    """What the records read so far say. `open`: offsets of transactions that have not ended, by producer id."""

    now_ms: int
    damaged: list[str] = field(default_factory=list)
    groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    open: dict[int, list[tuple[str, TopicPartition, CommittedOffset | None]]] = field(default_factory=dict)

    def take(self, read: Iterable[tuple[BatchHeader, Sequence[Record]]]) -> None:
        of_groups: dict[str, list[Record]] = {}
        for header, records in read:
            if header.is_control:
                ended = self.open.pop(header.producer_id, ())
                marker = marker_in(records)
                if marker is not None and marker.commits:
                    for group, key, committed in ended:
                        self._offset(group, key, committed)
                continue
            for record in records:
                try:
                    self._record(header, record, of_groups)
                except UnknownRecord as error:
                    self.damaged.append(f"offset {record.offset}: {error}")
        for group, records in of_groups.items():
            self._last(group, records)

    def _record(self, header: BatchHeader, record: Record, of_groups: dict[str, list[Record]]) -> None:
        key = read_key(record.key)
        if not isinstance(key, OffsetCommitKey):
            of_groups.setdefault(key.group, []).append(record)
            return
        committed = None if record.value is None else read_offset(record.value, header.base_offset)
        if header.is_transactional:
            self.open.setdefault(header.producer_id, []).append((key.group, (key.topic, key.partition), committed))
        else:
            self._offset(key.group, (key.topic, key.partition), committed)

    def _last(self, group: str, records: Sequence[Record]) -> None:
        """Of a group's records, only the last is decoded; the one before if that is damaged."""
        for record in reversed(records):
            try:
                if record.value is None:
                    self.groups.pop(group, None)
                else:
                    self.groups[group] = ConsumerGroup.of_record(group, read_group(record.value))
                return
            except UnknownRecord as error:
                self.damaged.append(f"offset {record.offset}: {error}")

    def _offset(self, group: str, key: TopicPartition, committed: CommittedOffset | None) -> None:
        offsets = self.offsets.setdefault(group, {})
        if committed is None:
            offsets.pop(key, None)
        else:
            offsets[key] = committed

    def entries(self) -> Mapping[str, ConsumerGroup]:
        for group_id, offsets in self.offsets.items():
            if offsets:
                self._group(group_id).offsets = offsets
        for producer_id, commits in self.open.items():
            for group_id, key, committed in commits:
                if committed is not None:
                    self._group(group_id).commit_open(producer_id, {key: committed})
        return self.groups

    def _group(self, group_id: str) -> ConsumerGroup:
        return self.groups.setdefault(group_id, ConsumerGroup(group_id, since_ms=self.now_ms))


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
        self._clock = clock
        self._note = note
        self._group_version = 2 if settings.inter_broker_protocol.startswith("2.2") else GROUP_VERSION
        self.of_loads: list[Callable[[ConsumerGroup], None]] = []
        self.of_unloads: list[Callable[[ConsumerGroup], None]] = []
        self.tally = GroupTally()
        self._open: dict[int, dict[int, dict[str, None]]] = {}
        """The groups with offsets of transactions that have not ended, by partition and producer id."""
        self._ended: dict[int, dict[int, bool]] = {}
        """Whether transactions commit that ended while their partition was loaded, by partition and producer id."""
        self.topic = CoordinatedTopic[ConsumerGroup](
            OFFSETS_TOPIC,
            "groups",
            settings.offsets_topic_num_partitions,
            settings.offsets_load_buffer_size,
            metadata,
            produce,
            clock,
            drive,
            note,
            lambda: _GroupReading(clock.wall_ms()),
            self._loaded,
            self._unloaded,
        )

    # Which groups.

    def refusal(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode | None:
        """Why a request about this group can't be answered here; None if it can."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        return self.topic.refusal(group_id)

    def group(self, group_id: str) -> ConsumerGroup | None:
        return self._groups_with(group_id).get(group_id)

    def add(self, group_id: str) -> ConsumerGroup:
        """A new group, or the one that there is."""
        groups = self._groups_with(group_id)
        group = groups.get(group_id)
        if group is None:
            groups[group_id] = group = ConsumerGroup(group_id, since_ms=self._clock.wall_ms())
            group.kept_by(self.tally)
        return group

    @property
    def is_full(self) -> bool:
        """Whether there may be no further group (camerlengo.groups.max)."""
        return self.tally.groups >= self._settings.groups_max

    def has_place_for(self, more_bytes: int) -> bool:
        """Whether members may hold so much more (camerlengo.group.members.max.bytes)."""
        return more_bytes <= 0 or self.tally.member_bytes + more_bytes <= self._settings.group_members_max_bytes

    def _groups_with(self, group_id: str) -> dict[str, ConsumerGroup]:
        partition = self.topic.partition(group_id)
        assert partition is not None
        return partition.entries

    # Writing.

    def store_group(
        self, group: ConsumerGroup, assignments: Mapping[str, bytes], then: Callable[[ErrorCode], None]
    ) -> None:
        """Write a group with its members' assignments. `then`: the error for its members, NONE if it is written."""
        record = (group_key(group.id), group_value(group.recorded(dict(assignments)), self._group_version))

        def appended(result: ProducePartitionResult) -> None:
            error = ErrorCode(result.error_code)
            if error in NOT_AVAILABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif error in NOT_COORDINATOR:
                error = ErrorCode.NOT_COORDINATOR
            elif error is ErrorCode.REQUEST_TIMED_OUT:
                error = ErrorCode.REBALANCE_IN_PROGRESS
            elif error in TOO_LARGE:
                self._note("error", f"group {group.id} can't be written: {error.name} ({len(record[1])} bytes)")
                error = ErrorCode.UNKNOWN_SERVER_ERROR
            then(error)

        self._append(self.topic.index_of(group.id), [record], ACKS_ALL, appended)

    def store_offsets(
        self,
        group: ConsumerGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[Mapping[TopicPartition, ErrorCode]], None],
        producer: ProducerIdAndEpoch | None = None,
    ) -> Steps:
        """Write committed offsets, all in one batch. `answer`: the error of each. `producer`: they count once its
        transaction has committed."""
        limit = self._settings.offset_metadata_max_bytes
        errors = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        kept = {key: committed for key, committed in offsets.items() if len(committed.metadata) <= limit}
        if not kept:
            answer(errors)
            return
        index = self.topic.index_of(group.id)
        group.commits += 1
        if producer is not None:
            group.commit_open(producer[0], kept)
            self._note_open(index, producer[0], group.id)
        records: list[KeyAndValue] = []
        for key, committed in kept.items():
            records.append((offset_key(group.id, *key), offset_value(committed)))
            if len(records) % SLICE == 0:
                yield None

        def appended(result: ProducePartitionResult) -> None:
            group.commits -= 1
            error = ErrorCode(result.error_code)
            if producer is not None and group.state is not Dead:
                _appended_open(group, producer[0], kept, result.base_offset if error is ErrorCode.NONE else None)
            if error is ErrorCode.NONE and group.state is not Dead:
                if producer is None:
                    for key, committed in kept.items():
                        group.commit(key, _at(committed, result.base_offset))
            elif error in NOT_AVAILABLE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif error in NOT_COORDINATOR:
                error = ErrorCode.NOT_COORDINATOR
            elif error in TOO_LARGE:
                error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            answer(errors | dict.fromkeys(kept, error))

        attributes = 0 if producer is None else TRANSACTIONAL
        make = partial(batch_of, records, self._clock.wall_ms(), attributes, producer)
        batch = make() if len(records) <= SLICE else (yield Job(make))
        self._append_batch(index, batch, ACKS_ALL, appended)

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
        records: list[KeyAndValue] = []
        for key in keys:
            if group.offsets.pop(key, None) is not None:
                records.append((offset_key(group.id, *key), None))
        is_idle = group.state is Empty and not group.pending and not keep_group and not group.open_offsets
        if is_idle and not group.offsets and (with_group or not group.commits):
            group.move(Dead, self._clock.wall_ms())
            self._groups_with(group.id).pop(group.id, None)
            group.kept_by(None)
            if group.generation > 0:
                records.append((group_key(group.id), None))
        if records:
            self._append(self.topic.index_of(group.id), records, ACKS_LEADER, lambda _result: None)

    def _append(
        self, index: int, records: Sequence[KeyAndValue], acks: int, then: Callable[[ProducePartitionResult], None]
    ) -> None:
        self._append_batch(index, batch_of(records, self._clock.wall_ms()), acks, then)

    def _append_batch(
        self, index: int, batch: bytes, acks: int, then: Callable[[ProducePartitionResult], None]
    ) -> None:
        self.topic.append(index, batch, acks, self._settings.offsets_commit_timeout_ms, then)

    # Transactions.

    def end_transaction(self, index: int, producer_id: int, *, commits: bool) -> None:
        """The marker of a transaction is in a partition of the topic, and replicated."""
        partition = self.topic.at(index)
        if partition is not None and not partition.is_loaded:
            self._ended.setdefault(index, {}).setdefault(producer_id, commits)
            return
        groups = self._open.get(index, {}).pop(producer_id, {})
        for group_id in groups:
            group = None if partition is None else partition.entries.get(group_id)
            if group is not None:
                group.end_transaction(producer_id, commits=commits)

    def _note_open(self, index: int, producer_id: int, group_id: str) -> None:
        self._open.setdefault(index, {}).setdefault(producer_id, {})[group_id] = None

    # This broker begins, or ceases, to coordinate.

    def _loaded(self, partition: CoordinatedPartition[ConsumerGroup]) -> None:
        for group in tuple(partition.entries.values()):
            group.kept_by(self.tally)
            for producer_id in group.open_offsets:
                self._note_open(partition.index, producer_id, group.id)
            for loaded in self.of_loads:
                loaded(group)
        for producer_id, commits in self._ended.pop(partition.index, {}).items():
            self.end_transaction(partition.index, producer_id, commits=commits)

    def _unloaded(self, partition: CoordinatedPartition[ConsumerGroup]) -> None:
        self._open.pop(partition.index, None)
        self._ended.pop(partition.index, None)
        for group in partition.entries.values():
            group.kept_by(None)
            for unloaded in self.of_unloads:
                unloaded(group)


def _at(committed: CommittedOffset, appended_at: int) -> CommittedOffset:
    return replace(committed, appended_at=appended_at)


def _appended_open(
    group: ConsumerGroup, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset], appended_at: int | None
) -> None:
    """Offsets of a transaction are written; None: they are not."""
    held = group.open_offsets.get(producer_id, {})
    if appended_at is None:
        group.drop_open(producer_id, offsets)
        return
    for key, committed in offsets.items():
        if held.get(key) is committed:  # else the transaction has ended, or sent another
            held[key] = _at(committed, appended_at)
