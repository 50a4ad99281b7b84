"""Codecs for a whole cluster at once: partition states and assignments as numpy columns, a row a partition.

A batch of znodes comes as one JSON array (`Columns`), which msgspec decodes into typed rows many times faster than
one by one. That works as long as every row is exactly what Kafka 2.8 writes; a batch in which one is not is taken
apart, and the odd row decoded by the codec for one znode, so both say the same of it: either it has fields that are
not known, and they are kept (`extra`), or it is damaged, and costs only itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from controller.zookeeper.codecs_topics import (
    decode_partition_state,
    decode_topic_assignment,
    encode_partition_state,
)
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.operations import Columns
from controller.zookeeper.znode_json import UNREADABLE, Id, IdOrNone

Int32s = npt.NDArray[np.int32]
T = TypeVar("T")

_CLOSING_BRACE, _END_OF_NULL = ord("}"), ord("l")


class _State(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    controller_epoch: Id
    leader: IdOrNone
    leader_epoch: Id
    isr: tuple[Id, ...]
    version: Literal[1] = 1


class _WrittenState(msgspec.Struct, gc=False):
    """In Kafka's order of fields."""

    controller_epoch: int
    leader: int
    version: int
    leader_epoch: int
    isr: tuple[int, ...]


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    partitions: dict[Id, tuple[Id, ...]]
    topic_id: str | None = None
    adding_replicas: dict[Id, tuple[Id, ...]] = msgspec.field(default_factory=dict)
    removing_replicas: dict[Id, tuple[Id, ...]] = msgspec.field(default_factory=dict)
    version: int = 1


_STATES = msgspec.json.Decoder(list[_State | None])
_STATE = msgspec.json.Decoder(_State)
_TOPICS = msgspec.json.Decoder(list[_Topic | None])
_TOPIC = msgspec.json.Decoder(_Topic)
_ENCODER = msgspec.json.Encoder()
_ABSENT_STATE = _State(0, -1, 0, ())
_ABSENT_TOPIC = _Topic({})


@dataclass(frozen=True, slots=True)
class PartitionStateColumns:
    """n partition states, a row for each path that was read, in order.

    `leader` (-1: none), `leader_epoch`, `controller_epoch`, `versions` (the znode's): [n]; `isr` [n, width], padded
    with -1 at the end. `present` [n] is False where there is no node or it is damaged: -1, 0, 0 and an empty ISR
    stand there. `damaged` has (row, bytes) of nodes that can't be read; `extra` the bytes of rows with fields that
    this codec does not know, to be handed to `encode_partition_states` when such a row is written again.
    """

    leader: Int32s
    leader_epoch: Int32s
    controller_epoch: Int32s
    isr: Int32s
    versions: Int32s
    present: npt.NDArray[np.bool_]
    damaged: tuple[tuple[int, bytes], ...]
    extra: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class TopicAssignmentColumns:
    """t topics with n partitions in all, rows grouped by topic in the order of `names`, by partition within each.

    By topic [t]: `topic_ids`, `versions` (the znode's), `present` (False: no node, or damaged) and `starts` [t+1],
    where each topic's rows begin. By row [n]: `topic_index`, `partition`, `assignment` [n, width] padded with -1 at
    the end, `adding` and `removing` by row number, for the rows that are being reassigned. `damaged` and `extra` are
    by topic, as in PartitionStateColumns.
    """

    names: tuple[str, ...]
    topic_ids: tuple[str | None, ...]
    versions: Int32s
    present: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    topic_index: Int32s
    partition: Int32s
    assignment: Int32s
    adding: Mapping[int, tuple[int, ...]]
    removing: Mapping[int, tuple[int, ...]]
    damaged: tuple[tuple[int, bytes], ...]
    extra: Mapping[int, bytes]


def decode_partition_states(columns: Columns | Sequence[Columns], width: int) -> PartitionStateColumns:
    """The states of one batch, or of several in a row. `isr` is `width` wide, wider if an ISR is. Never raises for
    what a znode holds."""
    batches = [columns] if isinstance(columns, Columns) else columns
    rows = _Rows(batches, _STATES, _STATE, _lenient_state)
    states = rows.filled(_ABSENT_STATE)
    isrs = [state.isr for state in states]
    return PartitionStateColumns(
        leader=_column(states, "leader"),
        leader_epoch=_column(states, "leader_epoch"),
        controller_epoch=_column(states, "controller_epoch"),
        isr=_padded(isrs, width),
        versions=_joined(batches),
        present=rows.present(),
        damaged=tuple(rows.damaged),
        extra=rows.extra,
    )


def encode_partition_states(
    leader: Int32s,
    leader_epoch: Int32s,
    controller_epoch: Int32s | int,
    isr: Int32s,
    extra: Mapping[int, bytes] | None = None,
) -> list[bytes]:
    """Kafka 2.8's bytes for each row of the columns (as in PartitionStateColumns; `controller_epoch` may be one
    number for all). `extra` has, by row, the bytes as read of those whose unknown fields must be kept."""
    count = len(leader)
    epochs = np.broadcast_to(np.asarray(controller_epoch, dtype=np.int32), count)
    isrs = _unpadded(isr)
    states = map(_WrittenState, epochs.tolist(), leader.tolist(), repeat(1), leader_epoch.tolist(), isrs)
    encoded = list(map(_ENCODER.encode, states))
    for row, original in (extra or {}).items():
        state = replace(
            decode_partition_state("", original),
            leader=int(leader[row]),
            leader_epoch=int(leader_epoch[row]),
            controller_epoch=int(epochs[row]),
            isr=isrs[row],
        )
        encoded[row] = encode_partition_state(state)
    return encoded


def decode_topic_assignments(columns: Columns | Sequence[Columns], names: Sequence[str]) -> TopicAssignmentColumns:
    """The assignments of the topics `names`, in the order in which they were read. Never raises for what a znode
    holds; ValueError if there are not as many names as znodes."""
    batches = [columns] if isinstance(columns, Columns) else columns
    rows = _Rows(batches, _TOPICS, _TOPIC, _lenient_topic)
    topics = rows.filled(_ABSENT_TOPIC)
    if len(topics) != len(names):
        raise ValueError(f"{len(names)} topic names for {len(topics)} znodes")
    sizes = np.fromiter((len(topic.partitions) for topic in topics), dtype=np.int64, count=len(topics))
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    count = int(starts[-1])
    topic_index = np.repeat(np.arange(len(topics), dtype=np.int32), sizes)
    partition = np.fromiter(chain.from_iterable(topic.partitions for topic in topics), dtype=np.int32, count=count)
    assignment = _padded(list(chain.from_iterable(topic.partitions.values() for topic in topics)), 0)
    if np.any((partition[1:] <= partition[:-1]) & (topic_index[1:] == topic_index[:-1])):
        order = np.lexsort((partition, topic_index))
        partition, assignment = partition[order], assignment[order]
    return TopicAssignmentColumns(
        names=tuple(names),
        topic_ids=tuple(topic.topic_id for topic in topics),
        versions=_joined(batches),
        present=rows.present(),
        starts=starts,
        topic_index=topic_index,
        partition=partition,
        assignment=assignment,
        adding=_by_row([topic.adding_replicas for topic in topics], starts, partition),
        removing=_by_row([topic.removing_replicas for topic in topics], starts, partition),
        damaged=tuple(rows.damaged),
        extra=rows.extra,
    )


def _by_row(
    sparse: Sequence[Mapping[int, tuple[int, ...]]], starts: npt.NDArray[np.int64], partition: Int32s
) -> dict[int, tuple[int, ...]]:
    """What is told of a topic's partitions, by row number; of a partition that is not there, nothing."""
    found: dict[int, tuple[int, ...]] = {}
    for topic, replicas_by_partition in enumerate(sparse):
        start, end = int(starts[topic]), int(starts[topic + 1])
        for number, replicas in replicas_by_partition.items():
            row = start + int(np.searchsorted(partition[start:end], number))
            if replicas and row < end and partition[row] == number:
                found[row] = replicas
    return found


class _Rows:
    """The typed rows of some batches (None: no node, or damaged), with what was odd about any."""

    def __init__(
        self, batches: Sequence[Columns], whole: msgspec.json.Decoder[Any], one: msgspec.json.Decoder[Any], lenient: Any
    ) -> None:
        self.rows: list[Any] = []
        self.damaged: list[tuple[int, bytes]] = []
        self.extra: dict[int, bytes] = {}
        for columns in batches:
            decoded = _decode_whole(columns, whole)
            if decoded is None:
                self._take_apart(columns, one, lenient)
            else:
                self.rows += decoded

    def _take_apart(self, columns: Columns, one: msgspec.json.Decoder[Any], lenient: Any) -> None:
        for element, version in zip(_elements(columns), columns.versions.tolist(), strict=True):
            row = None
            if element == b"null":
                if version >= 0:
                    self.damaged.append((len(self.rows), b""))
            else:
                try:
                    row = one.decode(element)
                except UNREADABLE:
                    row = self._odd_one(element, lenient)
            self.rows.append(row)

    def _odd_one(self, element: bytes, lenient: Any) -> Any:
        try:
            row = lenient(element)
        except DamagedZnode:
            self.damaged.append((len(self.rows), element))
            return None
        self.extra[len(self.rows)] = element
        return row

    def present(self) -> npt.NDArray[np.bool_]:
        return np.fromiter((row is not None for row in self.rows), dtype=np.bool_, count=len(self.rows))

    def filled(self, absent: Any) -> list[Any]:
        return [absent if row is None else row for row in self.rows]


def _decode_whole(columns: Columns, decoder: msgspec.json.Decoder[list[T]]) -> list[T] | None:
    """None unless every element is what is expected, and one row's. Broken rows can join into whole ones: a row
    that does not end where its object does gives that away."""
    ends = columns.ends
    last = np.frombuffer(columns.json, dtype=np.uint8)[ends - 1]
    if not np.all((last == _CLOSING_BRACE) | ((last == _END_OF_NULL) & (columns.versions < 0))):
        return None
    try:
        decoded = decoder.decode(columns.json)
    except UNREADABLE:
        return None
    return decoded if len(decoded) == len(ends) else None


def _elements(columns: Columns) -> Iterator[bytes]:
    start = 1
    for end in columns.ends.tolist():
        yield columns.json[start:end]
        start = end + 1


def _lenient_state(data: bytes) -> _State:
    state = decode_partition_state("", data)
    return _State(state.controller_epoch, state.leader, state.leader_epoch, state.isr)


def _lenient_topic(data: bytes) -> _Topic:
    topic = decode_topic_assignment("", data)
    return _Topic(dict(topic.partitions), topic.topic_id, dict(topic.adding), dict(topic.removing))


def _column(rows: Sequence[Any], name: str) -> Int32s:
    return np.fromiter(map(attrgetter(name), rows), dtype=np.int32, count=len(rows))


def _joined(batches: Sequence[Columns]) -> Int32s:
    return np.concatenate([columns.versions for columns in batches]) if batches else np.empty(0, dtype=np.int32)


def _padded(lists: Sequence[tuple[int, ...]], width: int) -> Int32s:
    """[n, at least `width`], each row's numbers first and -1 after them."""
    count = len(lists)
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=count)
    longest = int(lengths.max(initial=0))
    flat = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(lengths.sum()))
    padded = np.full((count, max(width, longest)), -1, dtype=np.int32)
    if longest and lengths.min() == longest:
        padded[:, :longest] = flat.reshape(count, longest)
    else:
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded


def _unpadded(padded: Int32s) -> list[tuple[int, ...]]:
    """Each row's numbers, in their order, without the -1 (wherever it stands)."""
    count, width = padded.shape
    members = padded >= 0
    if members.all():
        return list(zip(*padded.T.tolist(), strict=True)) if width else [()] * count
    lengths = members.sum(axis=1)
    flat = padded[members].tolist()
    ends = np.cumsum(lengths).tolist()
    return [tuple(flat[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
