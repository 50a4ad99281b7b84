"""A batch of one step's control requests, sent at once: LeaderAndIsr, UpdateMetadata, StopReplica, in that order.

A batch is a local value of the handler that creates it: an exception before `send` discards it with its contents
(KAFKA-12315: there a batch survived its exception and broke the next term). Values are read from the context when the
batch is sent, after the step's last write. docs/protocol.md lists which broker gets which request.

LeaderAndIsr and UpdateMetadata are encoded from columns: the same bytes as the codec's, without an object a partition.
A request of a hundred thousand partitions is laid out as one matrix of bytes, a row a partition, as wide as the widest
partition; what a narrower one lacks is masked, and the mask's compression is the rows' bytes one after the other. They
are cut where the topic changes, and each topic's head goes between. The versions are those in which partitions are
grouped by topic: LeaderAndIsr 2 to 5, UpdateMetadata 5 to 7 (`inter.broker.protocol.version` 2.2 and later).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from controller.core.channels import ControlRequest
from controller.core.context import NO_BROKER, NO_STATE, Bools, Int32s, LiveBroker, PartitionTable, Replicas, Rows
from controller.core.events import (
    LeaderAndIsrResponseReceived,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from controller.core.leadership import Term
from controller.protocol.codec import ApiKey, decode_response_body, encode_request_body
from controller.protocol.compiler import Writer, compile_struct
from controller.protocol.control import (
    EPOCH_DURING_DELETE,
    LEADER_AND_ISR_UNSPECIFIED,
    LEADER_DURING_DELETE,
    NO_BROKER_EPOCH,
    NO_EPOCH,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrRequest,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from controller.protocol.errors import UnencodableValue
from controller.protocol.primitives import varint, write_count, write_tags, write_text, write_texts
from controller.zookeeper.codecs_columns import topic_name_fault
from statemachines.leader_election_columns import live_mask

_RESPONSE_EVENTS = {
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponseReceived,
    ApiKey.UPDATE_METADATA: UpdateMetadataResponseReceived,
    ApiKey.STOP_REPLICA: StopReplicaResponseReceived,
}
NAMES = {
    ApiKey.LEADER_AND_ISR: "LeaderAndIsr",
    ApiKey.UPDATE_METADATA: "UpdateMetadata",
    ApiKey.STOP_REPLICA: "StopReplica",
}
"""The requests' names in the trace."""
FIRST_VERSION_WITH_FLAGS = 3
"""The first StopReplica version with a delete flag by partition; earlier ones have one flag for the request."""


class RequestBatch:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._leader_and_isr: list[tuple[Replicas, bool]] = []
        self._metadata_rows: list[Rows] = []
        self._metadata_brokers: set[int] = set()
        self._partitions_follow = False
        self._complete = False
        self._stops: list[tuple[Rows, Int32s, Int32s, bool]] = []

    def leader_and_isr(self, replicas: Replicas, *, is_new: bool = False) -> None:
        """Send these replicas their partitions' states, and all brokers the partitions' metadata.

        Replicas on dead brokers are skipped.
        """
        if len(replicas):
            self._leader_and_isr.append((replicas, is_new))
            self.update_metadata(replicas.rows)

    def update_metadata(self, rows: Rows, brokers: Iterable[int] | None = None) -> None:
        """Send `brokers` (None: all live and shutting-down ones) the live brokers and these partitions' metadata.

        Partitions without a state are left out, unless the brokers are to forget them.
        """
        self._metadata_rows.append(rows)
        self._metadata_brokers.update(self._term.context.broker_ids if brokers is None else brokers)

    def name_all_topics(self) -> None:
        """Make the batch's UpdateMetadata name all topics, also those it does not send in full.

        The receivers forget all other topics. A broker may know a topic from an earlier controller and not have been
        notified of its deletion, because the controller that deleted it did not know the broker.
        """
        self._complete = True

    def send_live_brokers(self, *, partitions_follow: bool = False) -> None:
        """Send all brokers the live brokers, without partitions; `partitions_follow`: the next batch sends those."""
        self.update_metadata(self._term.context.rows_with_state()[:0])
        self._partitions_follow = partitions_follow

    def stop_replicas(self, replicas: Replicas, *, delete: bool = False) -> None:
        """Send these replicas StopReplica, with delete if `delete`.

        The leader epoch is the current one, before the batch's other changes, as a 2.8 controller sends it. While the
        topic is queued for deletion it is one that is lower than any.
        """
        brokers = self._term.context.partitions.assignment[replicas.rows, replicas.slots]
        self.stop_on(replicas.rows, brokers, delete=delete)

    def stop_on(self, rows: Rows, brokers: Int32s, *, delete: bool = False) -> None:
        """Send StopReplica to replicas that the assignment no longer names: `brokers` by place in `rows`."""
        table = self._term.context.partitions
        known = table.zk_version[rows] != NO_STATE
        epochs = np.where(known, table.leader_epoch[rows], NO_EPOCH)
        epochs[self._term.context.deleting(rows)] = EPOCH_DURING_DELETE
        self._stops.append((rows, brokers, epochs.astype(np.int32), delete))

    def send(self) -> None:
        """Queue all requests of the batch. Raises SessionGone or LeaseExpired, with nothing queued."""
        self._term.require()
        self._send_leader_and_isr()
        self._send_update_metadata()
        self._send_stop_replicas()

    # -- LeaderAndIsr

    def _send_leader_and_isr(self) -> None:
        term, table = self._term, self._term.context.partitions
        version = term.settings.versions.leader_and_isr
        for broker, rows, is_new in self._by_broker():
            columns = self._columns(rows)
            body = leader_and_isr_body(
                version,
                controller_id=term.broker_id,
                controller_epoch=term.epoch,
                broker_epoch=broker.epoch,
                topics=_NamesAndIds(table),
                columns=columns,
                is_new=is_new,
                live_leaders=self._live_leaders(columns.leader),
                adding=_sparse(table.adding, rows),
                removing=_sparse(table.removing, rows),
            )
            self._send(broker, ApiKey.LEADER_AND_ISR, version, body, len(rows))

    def _by_broker(self) -> Iterator[tuple[LiveBroker, Rows, Bools]]:
        """Yield each live broker, by id, with the rows of its partitions, each once, grouped by topic."""
        table = self._term.context.partitions
        if not self._leader_and_isr:
            return
        rows = np.concatenate([replicas.rows for replicas, _ in self._leader_and_isr])
        slots = np.concatenate([replicas.slots for replicas, _ in self._leader_and_isr])
        is_new = np.concatenate([np.full(len(replicas), new) for replicas, new in self._leader_and_isr])
        brokers = table.assignment[rows, slots]
        if len(self._leader_and_isr) == 1 and _ascends(table.topic[rows]):
            order = np.argsort(brokers, kind="stable")  # as nearly always: each partition once, grouped by topic
            rows, brokers, is_new = rows[order], brokers[order], is_new[order]
        else:
            # A partition that was put in twice for one broker comes once, as new if it was new in either.
            order = np.lexsort((~is_new, rows, table.topic[rows], brokers))
            rows, brokers, is_new = rows[order], brokers[order], is_new[order]
            once = np.ones(len(rows), dtype=np.bool_)
            once[1:] = (rows[1:] != rows[:-1]) | (brokers[1:] != brokers[:-1])
            rows, brokers, is_new = rows[once], brokers[once], is_new[once]
        firsts = np.flatnonzero(np.diff(brokers, prepend=NO_BROKER - 1))
        for first, end in zip(firsts.tolist(), np.append(firsts[1:], len(rows)).tolist(), strict=True):
            broker = self._term.context.broker(int(brokers[first]))
            if broker is not None:
                yield broker, rows[first:end], is_new[first:end]

    def _live_leaders(self, leaders: Int32s) -> list[LeaderAndIsrLiveLeader]:
        found = (self._term.context.broker(leader) for leader in np.unique(leaders).tolist())
        return [
            LeaderAndIsrLiveLeader(broker.id, broker.endpoint.host, broker.endpoint.port)
            for broker in found
            if broker is not None
        ]

    # -- UpdateMetadata

    def _send_update_metadata(self) -> None:
        term = self._term
        receivers = [broker for broker in term.context.brokers if broker.id in self._metadata_brokers]
        if not receivers:
            return
        table = term.context.partitions
        rows = self._sorted_once(self._metadata_rows)
        rows = rows[(table.zk_version[rows] != NO_STATE) | term.context.deleting(rows)]
        replicas = table.assignment[rows]
        offline = np.where(term.context.usable(rows, replicas, term.context.eligible_ids), NO_BROKER, replicas).astype(
            np.int32
        )
        version = term.settings.versions.update_metadata
        body = update_metadata_body(
            version,
            controller_id=term.broker_id,
            controller_epoch=term.epoch,
            topics=_NamesAndIds(table),
            columns=self._columns_during_delete(rows),
            offline=offline,
            live_brokers=[broker.advertised for broker in term.context.brokers],
            partitions_follow=self._partitions_follow,
            complete_but=self._topics_not_in_full(rows) if self._complete else None,
        )
        rest = common_part(body)  # of 100,000 partitions some megabytes, and there may be a thousand brokers
        for broker in receivers:
            own = own_part(body, broker.epoch)
            self._send(broker, ApiKey.UPDATE_METADATA, version, own, len(rows), rest=rest)

    def _topics_not_in_full(self, rows: Rows) -> list[str]:
        """Return the topics that these rows do not cover, and those that the term can't read.

        A topic with an illegal name is left out: no broker knows it, and its name may be too long for the request.
        """
        table = self._term.context.partitions
        uncovered = np.setdiff1d(table.all_rows(), rows, assume_unique=True)
        unreadable = (name for name in self._term.context.left_out if topic_name_fault(name) is None)
        return sorted({*unreadable, *table.names_of_topics(uncovered)})

    def _columns_during_delete(self, rows: Rows) -> PartitionColumns:
        """Return the rows' columns, with a reserved leader id for partitions of topics in deletion.

        The reserved id belongs to no broker and makes brokers forget the partition.
        """
        columns, deleting = self._columns(rows), self._term.context.deleting(rows)
        if not deleting.any():
            return columns
        return replace(
            columns,
            leader=np.where(deleting, LEADER_DURING_DELETE, columns.leader).astype(np.int32),
            leader_epoch=np.where(deleting, 0, columns.leader_epoch).astype(np.int32),
            zk_version=np.where(deleting, 0, columns.zk_version).astype(np.int32),
        )

    def _sorted_once(self, parts: Sequence[Rows]) -> Rows:
        """Each row once, grouped by topic."""
        table = self._term.context.partitions
        chosen = np.zeros(len(table), dtype=np.bool_)
        for part in parts:
            chosen[part] = True
        rows = np.flatnonzero(chosen)
        return rows if _ascends(table.topic[rows]) else rows[np.argsort(table.topic[rows], kind="stable")]

    # -- StopReplica

    def _send_stop_replicas(self) -> None:
        term = self._term
        version = term.settings.versions.stop_replica
        stops: dict[int, dict[str, list[StopReplicaPartitionState]]] = {}
        table = term.context.partitions
        for rows, brokers, epochs, delete in self._stops:
            living = live_mask(brokers, term.context.broker_ids)
            chosen = zip(rows[living].tolist(), brokers[living].tolist(), epochs[living].tolist(), strict=True)
            for row, broker, epoch in chosen:
                topic, partition = table.topic_and_partition(row)
                of_broker = stops.setdefault(broker, {})
                of_broker.setdefault(topic, []).append(StopReplicaPartitionState(partition, epoch, delete))
        for receiver in term.context.brokers:
            topics = stops.get(receiver.id)
            if topics is None:
                continue
            states = tuple(StopReplicaTopicState(name, tuple(partitions)) for name, partitions in topics.items())
            to_delete = _to_delete(topics)
            one_flag = version < FIRST_VERSION_WITH_FLAGS and bool(to_delete)
            request = StopReplicaRequest(term.broker_id, term.epoch, states, receiver.epoch, one_flag)
            body = encode_request_body(ApiKey.STOP_REPLICA, version, request)
            count = sum(len(partitions) for partitions in topics.values())
            self._send(receiver, ApiKey.STOP_REPLICA, version, body, count, to_delete)

    # -- all three

    def _columns(self, rows: Rows) -> PartitionColumns:
        table = self._term.context.partitions
        return PartitionColumns(
            topic_index=table.topic[rows],
            partition=table.partition[rows],
            controller_epoch=table.controller_epoch[rows],
            leader=table.leader[rows],
            leader_epoch=table.leader_epoch[rows],
            isr=table.isr[rows],
            zk_version=table.zk_version[rows],
            replicas=table.assignment[rows],
        )

    def _send(
        self,
        broker: LiveBroker,
        api: ApiKey,
        version: int,
        body: bytes,
        partitions: int,
        to_delete: tuple[tuple[str, int], ...] = (),
        rest: bytes = b"",
    ) -> None:
        term = self._term
        event, epoch = _RESPONSE_EVENTS[api], term.epoch

        def response_event(response: bytes) -> object:
            answer = event(broker.id, broker.epoch, epoch, decode_response_body(api, version, response))
            return msgspec.structs.replace(answer, to_delete=to_delete) if to_delete else answer

        term.trace_sent(broker.id, broker.epoch, NAMES[api], partitions)
        term.channels.send(broker.id, ControlRequest(int(api), version, body, response_event, rest))


class _NamesAndIds:
    """Topics' names and ids for a request, by the topic's number in the table."""

    def __init__(self, table: PartitionTable) -> None:
        self._topics = table.topics

    def __getitem__(self, number: int, /) -> tuple[str, bytes]:
        topic = self._topics[number]
        return topic.name, topic.id


def _to_delete(topics: Mapping[str, Sequence[StopReplicaPartitionState]]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, state.partition_index)
        for name, partitions in topics.items()
        for state in partitions
        if state.delete_partition
    )


def _ascends(column: Int32s) -> bool:
    return bool((column[1:] >= column[:-1]).all())


def _sparse(values: dict[int, tuple[int, ...]], rows: Rows) -> dict[int, tuple[int, ...]]:
    """Return the values of those `rows` that have one, by place in `rows`."""
    if not values:
        return {}
    return {place: values[row] for place, row in enumerate(rows.tolist()) if row in values}


Bytes = npt.NDArray[np.uint8]

LEADER_AND_ISR_VERSIONS = range(2, 6)
UPDATE_METADATA_VERSIONS = range(5, 8)
REPLICAS_MAX = 126
"""More replicas than this in one partition would need a longer compact length than the one byte laid out here."""

_PADDING = -1
_TAGS = {field.name: field.tag or 0 for field in UpdateMetadataRequest.struct.fields}
_PARTITIONS_FOLLOW = (_TAGS["partitions_follow"], b"\x01")
_HEAD = struct.Struct(">iiq")
_EPOCH_START, _EPOCH_STOP = 8, 16


class Topics(Protocol):
    """(name, id) of the topic that a number stands for; a sequence will do. Asked only for those that have rows, since
    a cluster has many and most requests name few."""

    def __getitem__(self, number: int, /) -> tuple[str, bytes]: ...


@dataclass(frozen=True, slots=True)
class PartitionColumns:
    """The states of n partitions, a row each, int32 throughout.

    `topic_index` says to which of the request's topics a row belongs and doesn't descend. `isr` and `replicas` are
    [n, width]; -1 is padding wherever it stands, so that a filtered set need not be moved together.
    """

    topic_index: Int32s
    partition: Int32s
    controller_epoch: Int32s
    leader: Int32s
    leader_epoch: Int32s
    isr: Int32s
    zk_version: Int32s
    replicas: Int32s

    def __post_init__(self) -> None:
        rows = len(self.topic_index)
        singles = (self.partition, self.controller_epoch, self.leader, self.leader_epoch, self.zk_version)
        if any(column.shape != (rows,) for column in (self.topic_index, *singles)):
            raise ValueError(f"a column has not the shape ({rows},)")
        if any(sets.ndim != 2 or len(sets) != rows for sets in (self.isr, self.replicas)):
            raise ValueError(f"isr or replicas is not [{rows}, width]")
        if np.any(np.diff(self.topic_index) < 0):
            raise ValueError("topic_index descends: the rows are not grouped by topic")


def leader_and_isr_body(
    version: int,
    *,
    controller_id: int,
    controller_epoch: int,
    broker_epoch: int,
    topics: Topics,
    columns: PartitionColumns,
    is_new: Bools,
    live_leaders: Sequence[LeaderAndIsrLiveLeader],
    adding: Mapping[int, Sequence[int]] | None = None,
    removing: Mapping[int, Sequence[int]] | None = None,
    type: int = LEADER_AND_ISR_UNSPECIFIED,
) -> bytes:
    """A LeaderAndIsr's body. `topics` are (name, id), of which those without rows are left out; `is_new` is bool[n];
    `adding` and `removing` hold the replicas of the few rows that are being reassigned. UnencodableValue."""
    if version not in LEADER_AND_ISR_VERSIONS:
        raise UnencodableValue(f"LeaderAndIsr {version} is not among the bulk encoder's versions")
    flexible = version >= LeaderAndIsrRequest.message.flexible
    if version < 5 and type != LEADER_AND_ISR_UNSPECIFIED:
        raise UnencodableValue(f"type is not in LeaderAndIsr {version}")
    rows = len(columns.topic_index)
    matrix = _states(columns, flexible)
    if version >= 3:
        matrix.ids(_spread(adding or {}, rows))
        matrix.ids(_spread(removing or {}, rows))
    matrix.flags(is_new)
    out = _head(controller_id, controller_epoch, broker_epoch)
    if version >= 5:
        out += struct.pack(">b", type)
    _topics(out, matrix, topics, columns.topic_index, with_ids=version >= 5)
    _structs(out, live_leaders, compile_struct(LeaderAndIsrLiveLeader.struct, version, flexible).write, flexible)
    return _closed(out, flexible)


def update_metadata_body(
    version: int,
    *,
    controller_id: int,
    controller_epoch: int,
    topics: Topics,
    columns: PartitionColumns,
    offline: Int32s,
    live_brokers: Sequence[UpdateMetadataBroker],
    broker_epoch: int = NO_BROKER_EPOCH,
    partitions_follow: bool = False,
    complete_but: Sequence[str] | None = None,
) -> bytes:
    """An UpdateMetadata's body, once for all brokers: each one's is its `own_part` and the `common_part`. `topics` are
    (name, id), of which those without rows are left out; `offline` is int32[n, width], -1 is padding.
    `partitions_follow` and `complete_but` are left out of a version without tagged fields. UnencodableValue."""
    if version not in UPDATE_METADATA_VERSIONS:
        raise UnencodableValue(f"UpdateMetadata {version} is not among the bulk encoder's versions")
    flexible = version >= UpdateMetadataRequest.message.flexible
    matrix = _states(columns, flexible)
    matrix.ids(offline)
    out = _head(controller_id, controller_epoch, broker_epoch)
    _topics(out, matrix, topics, columns.topic_index, with_ids=version >= 7)
    _structs(out, live_brokers, compile_struct(UpdateMetadataBroker.struct, version, flexible).write, flexible)
    tags = [_PARTITIONS_FOLLOW] if partitions_follow else []
    if complete_but is not None:
        content = bytearray()
        write_texts(content, complete_but, compact=True)
        tags.append((_TAGS["complete_but"], bytes(content)))
    return _closed(out, flexible, tags)


def own_part(body: bytes, broker_epoch: int) -> bytes:
    """What is a receiver's own of a request that goes to many: the beginning, with its broker epoch. The body is of
    LeaderAndIsr 2 or later, UpdateMetadata 5 or later, or StopReplica 1 or later: all have the broker epoch behind the
    controller's id and epoch."""
    return body[:_EPOCH_START] + struct.pack(">q", broker_epoch)


def common_part(body: bytes) -> bytes:
    """The rest, the same for all of them: taken once, it is in memory once, however many receivers there are."""
    return body[_EPOCH_STOP:]


class _Matrix:
    """A row of bytes a partition, block by block from left to right, with a mask where a block has padding."""

    def __init__(self, rows: int, flexible: bool) -> None:
        self.rows = rows
        self.flexible = flexible
        self._blocks: list[Bytes] = []
        self._masks: list[Bools | None] = []

    def ints(self, *columns: Int32s) -> None:
        self._put(np.stack(columns, axis=1).astype(">i4").view(np.uint8), None)

    def flags(self, column: Bools) -> None:
        if column.shape != (self.rows,):
            raise ValueError(f"a column has not the shape ({self.rows},)")
        self._put(column.astype(np.uint8).reshape(self.rows, 1), None)

    def ids(self, sets: Int32s) -> None:
        """Arrays of broker ids: the length, and what is no padding."""
        if sets.ndim != 2 or len(sets) != self.rows:
            raise ValueError(f"broker ids are not [{self.rows}, width]")
        present = sets != _PADDING
        counts = present.sum(axis=1, dtype=np.int32)
        if self.flexible:
            if self.rows and counts.max() > REPLICAS_MAX:
                raise UnencodableValue(f"a partition has {counts.max()} replicas, the bulk encoder's most are 126")
            self._put((counts + 1).astype(np.uint8).reshape(self.rows, 1), None)
        else:
            self.ints(counts)
        used = present.any(axis=0)
        if not used.any():
            return
        mask = None if present.all() else np.repeat(present[:, used], 4, axis=1)
        self._put(np.ascontiguousarray(sets[:, used].astype(">i4")).view(np.uint8), mask)

    def _put(self, block: Bytes, mask: Bools | None) -> None:
        self._blocks.append(block)
        self._masks.append(mask)

    def compressed(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The rows' bytes one after the other, and where each row begins (with the end as one more)."""
        if self.flexible:
            self._put(np.zeros((self.rows, 1), np.uint8), None)
        whole = np.concatenate(self._blocks, axis=1)
        starts = np.zeros(self.rows + 1, np.int64)
        if all(mask is None for mask in self._masks):
            starts[1:] = whole.shape[1]
            np.cumsum(starts, out=starts)
            return whole.tobytes(), starts
        mask = np.ones(whole.shape, np.bool_)
        left = 0
        for block, present in zip(self._blocks, self._masks, strict=True):
            if present is not None:
                mask[:, left : left + block.shape[1]] = present
            left += block.shape[1]
        np.cumsum(mask.sum(axis=1), out=starts[1:])
        return whole[mask].tobytes(), starts


def _states(columns: PartitionColumns, flexible: bool) -> _Matrix:
    """What both requests begin a partition with."""
    matrix = _Matrix(len(columns.topic_index), flexible)
    matrix.ints(columns.partition, columns.controller_epoch, columns.leader, columns.leader_epoch)
    matrix.ids(columns.isr)
    matrix.ints(columns.zk_version)
    matrix.ids(columns.replicas)
    return matrix


def _spread(sparse: Mapping[int, Sequence[int]], rows: int) -> Int32s:
    """The few rows that have replicas, as an array of all rows."""
    width = max((len(replicas) for replicas in sparse.values()), default=0)
    sets = np.full((rows, width), _PADDING, np.int32)
    for row, replicas in sparse.items():
        sets[row, : len(replicas)] = replicas
    return sets


def _head(controller_id: int, controller_epoch: int, broker_epoch: int) -> bytearray:
    return bytearray(_HEAD.pack(controller_id, controller_epoch, broker_epoch))


def _topics(out: bytearray, matrix: _Matrix, topics: Topics, topic_index: Int32s, *, with_ids: bool) -> None:
    """The array of topics: each one's head, then its rows."""
    flexible = matrix.flexible
    content, starts = matrix.compressed()
    firsts = np.flatnonzero(np.diff(topic_index, prepend=-1))
    ends = np.append(firsts[1:], len(topic_index))
    write_count(out, len(firsts), flexible)
    spans = zip(
        topic_index[firsts].tolist(),
        (ends - firsts).tolist(),
        starts[firsts].tolist(),
        starts[ends].tolist() if len(firsts) else [],
        strict=True,
    )
    for topic, count, start, stop in spans:
        name, topic_id = topics[topic]
        write_text(out, name, flexible)
        if with_ids:
            if len(topic_id) != 16:
                raise UnencodableValue(f"the id of topic {name} has {len(topic_id)} bytes")
            out += topic_id
        out += varint(count + 1) if flexible else count.to_bytes(4, "big")
        out += content[start:stop]
        if flexible:
            out.append(0)


def _structs(
    out: bytearray,
    values: Sequence[LeaderAndIsrLiveLeader] | Sequence[UpdateMetadataBroker],
    write: Writer,
    flexible: bool,
) -> None:
    write_count(out, len(values), flexible)
    for value in values:
        write(value, out)


def _closed(out: bytearray, flexible: bool, tags: Sequence[tuple[int, bytes]] = ()) -> bytes:
    if flexible:
        write_tags(out, tags)
    return bytes(out)
