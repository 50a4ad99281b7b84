"""Codecs for a whole cluster at once: partition states and assignments as numpy columns, a row a partition.

A batch of znodes comes as one JSON array (`Columns`). States that are spelled alike are read by their shape; what is
left msgspec decodes into typed rows, many times faster than one by one. That works as long as every row is exactly what
Kafka 2.8 writes; a batch in which one is not is taken apart, and the odd row decoded by the codec for one znode, so
both say the same of it: either it has fields that are not known, and they are kept (`extra`), or it is damaged, and
costs only itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from controller.zookeeper.codecs_topics import (
    decode_partition_state,
    decode_topic_assignment,
    encode_partition_state,
)
from controller.zookeeper.operations import Columns
from controller.zookeeper.row_writes import FallbackRows, Int32s, column, joined, padded, unpadded
from controller.zookeeper.state_shapes import ShapedStates, read_by_shape
from controller.zookeeper.znode_json import Id, IdOrNone, Ids


class _State(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    controller_epoch: Id
    leader: IdOrNone
    leader_epoch: Id
    isr: Ids
    version: Literal[1] = 1


class _WrittenState(msgspec.Struct, gc=False):
    """In Kafka's order of fields."""

    controller_epoch: int
    leader: int
    version: int
    leader_epoch: int
    isr: tuple[int, ...]


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    partitions: dict[Id, Ids]
    topic_id: str | None = None
    adding_replicas: dict[Id, Ids] = msgspec.field(default_factory=dict)
    removing_replicas: dict[Id, Ids] = msgspec.field(default_factory=dict)
    version: Id = 1


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
    if not batches:
        return _decoded_states([], width)
    parts = [_decode_batch(batch, width) for batch in batches]
    return parts[0] if len(parts) == 1 else _in_a_row(parts)


def _decode_batch(batch: Columns, width: int) -> PartitionStateColumns:
    """Most rows by their shape, the rest as JSON."""
    shaped = read_by_shape(batch.json, batch.ends, width, _STATE.decode)
    if shaped is None:
        return _decoded_states([batch], width)
    odd = np.flatnonzero(~shaped.read)
    if not len(odd):
        return PartitionStateColumns(
            shaped.leader,
            shaped.leader_epoch,
            shaped.controller_epoch,
            shaped.isr,
            batch.versions,
            shaped.read,
            (),
            {},
        )
    return _merged(shaped, _decoded_states([batch.pick(odd)], shaped.isr.shape[1]), odd, batch.versions)


def _merged(
    shaped: ShapedStates, others: PartitionStateColumns, rows: npt.NDArray[np.intp], versions: Int32s
) -> PartitionStateColumns:
    """`others` are the states of `rows`."""
    isr = np.full((len(versions), others.isr.shape[1]), -1, dtype=np.int32)
    isr[:, : shaped.isr.shape[1]] = shaped.isr
    isr[rows] = others.isr
    columns = [(shaped.leader, others.leader), (shaped.leader_epoch, others.leader_epoch)]
    columns.append((shaped.controller_epoch, others.controller_epoch))
    for mine, theirs in columns:
        mine[rows] = theirs
    present = shaped.read.copy()
    present[rows] = others.present
    return PartitionStateColumns(
        shaped.leader,
        shaped.leader_epoch,
        shaped.controller_epoch,
        isr,
        versions,
        present,
        tuple((int(rows[place]), data) for place, data in others.damaged),
        {int(rows[place]): data for place, data in others.extra.items()},
    )


def _in_a_row(parts: Sequence[PartitionStateColumns]) -> PartitionStateColumns:
    firsts = np.cumsum([0, *(len(part.leader) for part in parts)]).tolist()
    width = max(part.isr.shape[1] for part in parts)
    isr = np.full((firsts[-1], width), -1, dtype=np.int32)
    for first, part in zip(firsts, parts, strict=False):
        isr[first : first + len(part.isr), : part.isr.shape[1]] = part.isr
    return PartitionStateColumns(
        np.concatenate([part.leader for part in parts]),
        np.concatenate([part.leader_epoch for part in parts]),
        np.concatenate([part.controller_epoch for part in parts]),
        isr,
        np.concatenate([part.versions for part in parts]),
        np.concatenate([part.present for part in parts]),
        tuple((first + row, data) for first, part in zip(firsts, parts, strict=False) for row, data in part.damaged),
        {first + row: data for first, part in zip(firsts, parts, strict=False) for row, data in part.extra.items()},
    )


def _decoded_states(batches: Sequence[Columns], width: int) -> PartitionStateColumns:
    rows = FallbackRows(batches, _STATES, _STATE, _lenient_state)
    states = rows.filled(_ABSENT_STATE)
    isrs = [state.isr for state in states]
    return PartitionStateColumns(
        leader=column(states, "leader"),
        leader_epoch=column(states, "leader_epoch"),
        controller_epoch=column(states, "controller_epoch"),
        isr=padded(isrs, width),
        versions=joined(batches),
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
    firsts, same_as = _alike((epochs, leader, leader_epoch, *isr.T), count)
    isrs = unpadded(isr[firsts])
    numbers = (epochs[firsts].tolist(), leader[firsts].tolist(), repeat(1), leader_epoch[firsts].tolist())
    distinct = list(map(_ENCODER.encode, map(_WrittenState, *numbers, isrs)))
    encoded = distinct if same_as is None else list(map(distinct.__getitem__, same_as.tolist()))
    for row, original in (extra or {}).items():
        state = replace(
            decode_partition_state("", original),
            leader=int(leader[row]),
            leader_epoch=int(leader_epoch[row]),
            controller_epoch=int(epochs[row]),
            isr=unpadded(isr[row : row + 1])[0],
        )
        encoded[row] = encode_partition_state(state)
    return encoded


def _alike(columns: Sequence[Int32s], count: int) -> tuple[npt.NDArray[np.intp] | slice, npt.NDArray[np.intp] | None]:
    """The first of each kind of row, and for each row which of these kinds it is; all rows, and None, where it is not
    worth while to tell them apart. What a lost broker's partitions become differs in few of thousands."""
    kinds = np.zeros(count, dtype=np.int64)
    room = np.iinfo(np.int64).max
    for numbers in columns if count else ():
        lowest = int(numbers.min())
        span = int(numbers.max()) - lowest + 1
        room //= span
        if not room:  # the numbers of a row don't fit into one
            return slice(None), None
        kinds *= span
        kinds += numbers.astype(np.int64) - lowest
    _, firsts, same_as = np.unique(kinds, return_index=True, return_inverse=True)
    return (firsts, same_as) if len(firsts) <= count // 2 else (slice(None), None)


def decode_topic_assignments(columns: Columns | Sequence[Columns], names: Sequence[str]) -> TopicAssignmentColumns:
    """The assignments of the topics `names`, in the order in which they were read. Never raises for what a znode
    holds; ValueError if there are not as many names as znodes."""
    batches = [columns] if isinstance(columns, Columns) else columns
    rows = FallbackRows(batches, _TOPICS, _TOPIC, _lenient_topic)
    topics = rows.filled(_ABSENT_TOPIC)
    if len(topics) != len(names):
        raise ValueError(f"{len(names)} topic names for {len(topics)} znodes")
    sizes = np.fromiter((len(topic.partitions) for topic in topics), dtype=np.int64, count=len(topics))
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    count = int(starts[-1])
    topic_index = np.repeat(np.arange(len(topics), dtype=np.int32), sizes)
    partition = np.fromiter(chain.from_iterable(topic.partitions for topic in topics), dtype=np.int32, count=count)
    assignment = padded(list(chain.from_iterable(topic.partitions.values() for topic in topics)), 0)
    if np.any((partition[1:] <= partition[:-1]) & (topic_index[1:] == topic_index[:-1])):
        order = np.lexsort((partition, topic_index))
        partition, assignment = partition[order], assignment[order]
    return TopicAssignmentColumns(
        names=tuple(names),
        topic_ids=tuple(topic.topic_id for topic in topics),
        versions=joined(batches),
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
    """Convert replicas by topic and partition to replicas by row number, without partitions that have no row."""
    found: dict[int, tuple[int, ...]] = {}
    for topic, replicas_by_partition in enumerate(sparse):
        if not replicas_by_partition:
            continue
        start, end = int(starts[topic]), int(starts[topic + 1])
        for number, replicas in replicas_by_partition.items():
            row = start + int(np.searchsorted(partition[start:end], number))
            if replicas and row < end and partition[row] == number:
                found[row] = replicas
    return found


def _lenient_state(data: bytes) -> _State:
    state = decode_partition_state("", data)
    return _State(state.controller_epoch, state.leader, state.leader_epoch, state.isr)


def _lenient_topic(data: bytes) -> _Topic:
    topic = decode_topic_assignment("", data)
    return _Topic(dict(topic.partitions), topic.topic_id, dict(topic.adding), dict(topic.removing))
