"""LeaderAndIsr and UpdateMetadata from columns: the same bytes as the codec's, without an object a partition.

A request of a hundred thousand partitions is laid out as one matrix of bytes, a row a partition, as wide as the widest
partition; what a narrower one lacks is masked, and the mask's compression is the rows' bytes one after the other. They
are cut where the topic changes, and each topic's head goes between. The versions are those in which partitions are
grouped by topic: LeaderAndIsr 2 to 5, UpdateMetadata 5 to 7 (`inter.broker.protocol.version` 2.2 and later).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from controller.protocol.compiler import Writer, compile_struct
from controller.protocol.control import (
    LEADER_AND_ISR_UNSPECIFIED,
    NO_BROKER_EPOCH,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrRequest,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from controller.protocol.errors import UnencodableValue
from controller.protocol.primitives import varint, write_count, write_tags, write_text, write_texts

Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
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
