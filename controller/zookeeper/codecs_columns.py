"""Codecs for a whole cluster at once: partition states and assignments as numpy columns, a row a partition.

A batch of znodes comes as one JSON array (`Columns`). States that are spelled alike are read by their shape; what is
left msgspec decodes into typed rows, many times faster than one by one. That works as long as every row is exactly what
Kafka 2.8 writes; a batch in which one is not is taken apart, and the odd row decoded by the codec for one znode, so
both say the same of it: either it has fields that are not known, and they are kept (`extra`), or it is damaged, and
costs only itself.

Partition states read by their shape: a row that differs from a decoded one in its digits alone is not decoded again.

The states of a cluster are written by one program, and most of them spell the same sentence with other numbers. One
row of a shape is decoded as JSON by the strict codec, which shows where each field's digits stand; all rows of that
shape are then compared with it, byte by byte, and their numbers taken out as columns. A row of which this cannot be
said for certain is left to the codec: what is here never accepts a row that the codec would not, nor reads it otherwise
(a property test holds the two against each other).

Below the codecs are the rules that a decoded znode must satisfy beyond the types, for one znode and for columns. A
codec accepts every value of the right types. No Kafka cluster can have some of those: a broker named twice in one
replica set, an ISR of 130 members, a host name that no request can carry. Elections and request encoders rely on these
rules. A value that breaks one is a DamagedZnode, like a value that cannot be decoded: only its own topic, partition or
broker is affected. `sound_X` decodes and checks. Pure: bytes in, columns out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    INT32_MAX,
    REPLICAS_MAX,
    UNREADABLE,
    BrokerRegistration,
    Id,
    IdOrNone,
    Ids,
    PartitionStateZnode,
    TopicAssignment,
    decode_broker_registration,
    decode_partition_state,
    decode_topic_assignment,
    encode_partition_state,
)
from controller.zookeeper.operations import Columns, DamagedZnode
from controller.zookeeper.row_writes import FallbackRows, Int32s, column, joined, padded, unpadded

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

SHAPES_TRIED = 24
"""By batch. A rare shape is cheaper to decode than to compare everything with."""
FEWEST_ROWS = 8
"""Of one length, for which comparing pays."""
_FIELDS = (b'"controller_epoch":', b'"leader":', b'"version":', b'"leader_epoch":', b'"isr":[')
_NUMBER = re.compile(rb"[0-9]+")
_MOST_DIGITS = 9
"""Any such number is an int32."""
_ZERO, _MINUS = ord("0"), ord("-")


class ShapedStates(msgspec.Struct, frozen=True, eq=False):
    """n states; those that were `read` [n] have their numbers in `leader`, `leader_epoch`, `controller_epoch` [n] and
    `isr` [n, width], padded with -1 at the end."""

    read: Bools
    leader: Int32s
    leader_epoch: Int32s
    controller_epoch: Int32s
    isr: Int32s


class _Shape(msgspec.Struct, frozen=True):
    """The positions [start, end) of a row's numbers, by field; `negative` if the leader is written as -1."""

    controller_epoch: tuple[int, int]
    leader: tuple[int, int]
    version: tuple[int, int]
    leader_epoch: tuple[int, int]
    isr: tuple[tuple[int, int], ...]
    negative: bool

    def numbers(self) -> tuple[tuple[int, int], ...]:
        return (self.controller_epoch, self.leader, self.version, self.leader_epoch, *self.isr)


def read_by_shape(
    json: bytes, ends: npt.NDArray[np.int64], width: int, decode: Callable[[bytes], Any]
) -> ShapedStates | None:
    """The rows of one batch, as `Columns` has them, as far as they have a shape in common; None if none has. `decode`
    is the strict codec, which raises one of `UNREADABLE`."""
    text = np.frombuffer(json, dtype=np.uint8)
    starts = np.concatenate((np.ones(1, dtype=np.int64), ends[:-1] + 1))
    lengths = ends - starts
    read = np.zeros(len(ends), dtype=np.bool_)
    parts: list[tuple[npt.NDArray[np.intp], Bytes, _Shape]] = []
    tried = 0
    for length in _common_lengths(lengths):
        rows = np.flatnonzero(lengths == length)
        block = _block(text, starts, rows, int(length))
        while len(rows) >= FEWEST_ROWS and tried < SHAPES_TRIED:
            tried += 1
            first = block[0].tobytes()
            shape = shape_of(first, decode)
            fits = np.zeros(len(rows), dtype=np.bool_) if shape is None else _fits(block, first, shape)
            if shape is not None and fits.all():
                read[rows] = True
                parts.append((rows, block, shape))
                break
            if shape is not None:
                read[rows[fits]] = True
                parts.append((rows[fits], block[fits], shape))
            fits[0] = True  # read, or left to the codec
            rows, block = rows[~fits], block[~fits]
    if not parts:
        return None
    return _columns(read, parts, max(width, *(len(shape.isr) for _, _, shape in parts)))


def _common_lengths(lengths: npt.NDArray[np.int64]) -> Iterator[int]:
    """The most frequent first."""
    if len(lengths) and (lengths == lengths[0]).all():
        yield int(lengths[0])
        return
    values, counts = np.unique(lengths, return_counts=True)
    yield from values[np.argsort(-counts, kind="stable")].tolist()


def _block(text: Bytes, starts: npt.NDArray[np.int64], rows: npt.NDArray[np.intp], length: int) -> Bytes:
    """[rows, length], a row's bytes each."""
    if len(rows) == len(starts):  # all of them: evenly spaced, each with the comma after it
        return text[1:].reshape(len(rows), length + 1)[:, :length]
    block: Bytes = text[starts[rows][:, None] + np.arange(length)]
    return block


def shape_of(row: bytes, decode: Callable[[bytes], Any]) -> _Shape | None:
    """None for a row that the codec refuses, or whose digits are not its fields' numbers and nothing else."""
    try:
        decode(row)
    except UNREADABLE:
        return None
    numbers = [match.span() for match in _NUMBER.finditer(row)]
    places = [row.find(field) + len(field) for field in _FIELDS]
    # What the codec accepted has every field. A fraction or an exponent adds a number beyond the number of fields, a
    # repeated field adds quotes, and a name with an escape in it is not found.
    by_start = {start: (start, end) for start, end in numbers}
    negative = row[places[1]] == _MINUS
    places[1] += negative
    isr_end = row.find(b"]", places[4])
    isr = tuple(span for span in numbers if places[4] <= span[0] < isr_end)
    found = [by_start.pop(place, None) for place in places[:4]]
    if len(numbers) != len(isr) + 4 or row.count(b"-") != negative or row.count(b'"') != 2 * len(_FIELDS):
        return None
    controller_epoch, leader, version, leader_epoch = found
    if controller_epoch is None or leader is None or version is None or leader_epoch is None:
        return None
    if any(end - start > _MOST_DIGITS for start, end in numbers) or isr_end < 0:
        return None
    return _Shape(controller_epoch, leader, version, leader_epoch, isr, negative)


def _fits(block: Bytes, first: bytes, shape: _Shape) -> Bools:
    """Which rows have the first one's bytes wherever that has no digit, and a number where it has one."""
    digit = np.zeros(len(first), dtype=np.bool_)
    for start, end in shape.numbers():
        digit[start:end] = True
    sample = np.frombuffer(first, dtype=np.uint8)
    fits: Bools = (block[:, ~digit] == sample[~digit]).all(axis=1)
    fits &= (block[:, digit] - _ZERO <= 9).all(axis=1)  # bytes below "0" wrap to large ones
    for start, end in shape.numbers():
        if end - start > 1:
            fits &= block[:, start] != _ZERO
    for (start, _), value in ((shape.version, 1), (shape.leader, 1))[: 1 + shape.negative]:
        fits &= block[:, start] == _ZERO + value
    return fits


def _columns(read: Bools, parts: list[tuple[npt.NDArray[np.intp], Bytes, _Shape]], width: int) -> ShapedStates:
    leader = np.full(len(read), -1, dtype=np.int32)
    leader_epoch, controller_epoch = np.zeros(len(read), dtype=np.int32), np.zeros(len(read), dtype=np.int32)
    isr = np.full((len(read), width), -1, dtype=np.int32)
    for rows, block, shape in parts:
        if not shape.negative:
            leader[rows] = _numbers(block, shape.leader)
        leader_epoch[rows] = _numbers(block, shape.leader_epoch)
        controller_epoch[rows] = _numbers(block, shape.controller_epoch)
        for place, span in enumerate(shape.isr):
            isr[rows, place] = _numbers(block, span)
    return ShapedStates(read, leader, leader_epoch, controller_epoch, isr)


def _numbers(block: Bytes, span: tuple[int, int]) -> Int32s:
    start, end = span
    value = (block[:, start] - _ZERO).astype(np.int32)
    for place in range(start + 1, end):
        value = value * 10 + (block[:, place] - _ZERO)
    return value


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


class PartitionStateColumns(msgspec.Struct, frozen=True):
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


class TopicAssignmentColumns(msgspec.Struct, frozen=True):
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
            shaped.leader, shaped.leader_epoch, shaped.controller_epoch, shaped.isr, batch.versions, shaped.read, (), {}
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


LEADER_EPOCH_MAX = INT32_MAX - (1 << 20)
"""The highest leader epoch that is read: each election adds one, and no epoch may leave the 32 bits."""
CONTROLLER_EPOCH_MAX = INT32_MAX - 1_000_000
"""The highest controller epoch of a state that is read, which is the highest that an election gives."""
STATE_BYTES_MAX = 64 << 10
"""The most bytes of a partition's state, unknown fields included: it has to fit into a request beside others."""
TEXT_BYTES_MAX = 32_767
"""The most bytes of a string in Kafka's protocol."""
HOST_LENGTH_MAX = 255
TOPIC_NAME_LENGTH_MAX = 249
SECURITY_PROTOCOLS: Mapping[str, int] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PAIRWISE_WIDTH = 8
"""Up to this width duplicates are found by comparing columns, beyond it by sorting rows."""


# -- topics


def topic_name_fault(name: str) -> str | None:
    """Return Kafka 2.8's error message for a topic name, or None if it is valid."""
    if not name:
        return "Topic name is illegal, it can't be empty"
    if name in (".", ".."):
        return 'Topic name cannot be "." or ".."'
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"Topic name is illegal, it can't be longer than {TOPIC_NAME_LENGTH_MAX} characters, topic name: {name}"
    if not _LEGAL_TOPIC.fullmatch(name):
        return (
            f'Topic name "{name}" is illegal, it contains a character other than ASCII alphanumerics, ".", "_" and "-"'
        )
    return None


def replicas_fault(replicas: Sequence[int]) -> str | None:
    """Return why these broker ids are not the replicas of a partition, or None if they can be."""
    if not replicas:
        return "it has no replicas"
    if len(replicas) > REPLICAS_MAX:
        return f"it has {len(replicas)} replicas, expected {REPLICAS_MAX} at most"
    if min(replicas) < 0 or max(replicas) > INT32_MAX:
        return f"{list(replicas)}: expected broker ids from 0 to {INT32_MAX}"
    if len(set(replicas)) != len(replicas):
        return f"{list(replicas)} names a broker twice"
    return None


def reassigning_fault(replicas: Sequence[int], adding: Sequence[int], removing: Sequence[int]) -> str | None:
    """Return why these are not the replicas of a partition that is being reassigned, or None if they can be."""
    for name, some in (("adding", adding), ("removing", removing)):
        if len(set(some)) != len(some) or not set(some) <= set(replicas):
            return f"{name} replicas {list(some)} are not some of its replicas {list(replicas)}, each once"
        if len(some) == len(replicas):
            return f"{name} replicas {list(some)} are all of its replicas"
    if set(adding) & set(removing):
        return f"replicas {sorted(set(adding) & set(removing))} are both added and removed"
    return None


def topic_fault(topic: TopicAssignment) -> str | None:
    """Return why no controller could serve the topic, or None if one can.

    `adding` and `removing` of partitions that the topic does not have are ignored.
    """
    for partition, replicas in topic.partitions.items():
        fault = replicas_fault(replicas) or reassigning_fault(
            replicas, topic.adding.get(partition, ()), topic.removing.get(partition, ())
        )
        if fault is not None:
            return f"partition {partition}: {fault}"
    return None


def sound_topic_assignment(path: str, data: bytes | None) -> TopicAssignment:
    """Raises DamagedZnode."""
    topic = decode_topic_assignment(path, data)
    if (fault := topic_fault(topic)) is not None:
        raise DamagedZnode(path, f"a topic's assignment ({fault})", data)
    return topic


def sound_topics(columns: TopicAssignmentColumns) -> tuple[TopicAssignmentColumns, dict[int, str]]:
    """The columns without the topics of no sense, and by topic number what is wrong with each of those, in the words of
    a DamagedZnode. They are not `present`, have no rows, and are not among the `damaged`, which cannot be decoded."""
    faults: dict[int, str] = {}
    for row in np.flatnonzero(_unsound_sets(columns.assignment, empty=True)).tolist():
        fault = replicas_fault(_members(columns.assignment[row]))
        faults.setdefault(int(columns.topic_index[row]), _in_topic(columns, row, fault))
    for row in sorted(columns.adding.keys() | columns.removing.keys()):
        fault = reassigning_fault(
            _members(columns.assignment[row]), columns.adding.get(row, ()), columns.removing.get(row, ())
        )
        if fault is not None:
            faults.setdefault(int(columns.topic_index[row]), _in_topic(columns, row, fault))
    return (without_topics(columns, list(faults)), faults) if faults else (columns, faults)


def _in_topic(columns: TopicAssignmentColumns, row: int, fault: str | None) -> str:
    path = paths.topic(columns.names[columns.topic_index[row]])
    return f"{path}: expected a topic's assignment (partition {columns.partition[row]}: {fault})"


def without_topics(columns: TopicAssignmentColumns, topics: Sequence[int]) -> TopicAssignmentColumns:
    """The columns without the rows of these topics, which are not `present`."""
    present = columns.present.copy()
    present[topics] = False
    kept = ~np.isin(columns.topic_index, topics)
    moved_to = np.cumsum(kept) - 1
    sizes = np.bincount(columns.topic_index[kept], minlength=len(columns.names))
    return msgspec.structs.replace(
        columns,
        present=present,
        starts=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        topic_index=columns.topic_index[kept],
        partition=columns.partition[kept],
        assignment=columns.assignment[kept],
        adding={int(moved_to[row]): one for row, one in columns.adding.items() if kept[row]},
        removing={int(moved_to[row]): one for row, one in columns.removing.items() if kept[row]},
        extra={topic: data for topic, data in columns.extra.items() if topic not in topics},
    )


# -- partition states


def state_fault(state: PartitionStateZnode) -> str | None:
    """Return why a controller cannot continue from the state, or None if it can.

    An empty ISR, and a leader or members that are not in the assignment, are contradictions that the next election
    ends.
    """
    if len(state.isr) > REPLICAS_MAX:
        return f"its ISR has {len(state.isr)} members, expected {REPLICAS_MAX} at most"
    if len(set(state.isr)) != len(state.isr):
        return f"its ISR {list(state.isr)} names a broker twice"
    if state.leader_epoch > LEADER_EPOCH_MAX:
        return _epoch_fault("leader", state.leader_epoch, LEADER_EPOCH_MAX)
    if state.controller_epoch > CONTROLLER_EPOCH_MAX:
        return _epoch_fault("controller", state.controller_epoch, CONTROLLER_EPOCH_MAX)
    return None


def sound_partition_state(path: str, data: bytes | None) -> PartitionStateZnode:
    """Raises DamagedZnode."""
    state = decode_partition_state(path, data)
    fault = state_fault(state) or _size_fault(data)
    if fault is not None:
        raise DamagedZnode(path, f"a partition's state ({fault})", data)
    return state


def state_faults(columns: PartitionStateColumns) -> dict[int, str]:
    """By row, what is wrong with the states of no sense; those that cannot be decoded are not among them."""
    faults: dict[int, str] = {}
    for row in np.flatnonzero(_unsound_sets(columns.isr, empty=False)).tolist():
        faults[row] = f"its ISR {list(_members(columns.isr[row]))} names a broker twice"
    for row in np.flatnonzero(columns.controller_epoch > CONTROLLER_EPOCH_MAX).tolist():
        faults[row] = _epoch_fault("controller", int(columns.controller_epoch[row]), CONTROLLER_EPOCH_MAX)
    for row in np.flatnonzero(columns.leader_epoch > LEADER_EPOCH_MAX).tolist():
        faults[row] = _epoch_fault("leader", int(columns.leader_epoch[row]), LEADER_EPOCH_MAX)
    for row, data in columns.extra.items():
        if (fault := _size_fault(data)) is not None:
            faults[row] = fault
    return faults


def sound_states(columns: PartitionStateColumns) -> tuple[PartitionStateColumns, dict[int, str]]:
    """The columns with the states of no sense as if they were absent, and by row what is wrong with each."""
    faults = state_faults(columns)
    if not faults:
        return columns, faults
    rows = list(faults)
    leader, isr, present = columns.leader.copy(), columns.isr.copy(), columns.present.copy()
    leader_epoch, controller_epoch = columns.leader_epoch.copy(), columns.controller_epoch.copy()
    leader[rows], isr[rows], present[rows] = -1, -1, False
    leader_epoch[rows], controller_epoch[rows] = 0, 0
    sound = msgspec.structs.replace(
        columns,
        leader=leader,
        leader_epoch=leader_epoch,
        controller_epoch=controller_epoch,
        isr=isr,
        present=present,
        extra={row: data for row, data in columns.extra.items() if row not in faults},
    )
    return sound, faults


def _epoch_fault(whose: str, epoch: int, most: int) -> str:
    return f"{whose} epoch {epoch}, expected {most} at most"


def _size_fault(data: bytes | None) -> str | None:
    size = len(data or b"")
    return f"it has {size} bytes, expected {STATE_BYTES_MAX} at most" if size > STATE_BYTES_MAX else None


# -- registrations


def registration_fault(registration: BrokerRegistration) -> str | None:
    """Return why the registration cannot be sent to other brokers, or None if it can."""
    if (fault := _text_fault("rack", registration.rack or "")) is not None:
        return fault
    for endpoint in registration.endpoints:
        if (fault := _text_fault("listener", endpoint.listener)) is not None:
            return fault
        if len(endpoint.host) > HOST_LENGTH_MAX:
            return f"its host has {len(endpoint.host)} characters, expected {HOST_LENGTH_MAX} at most"
        if endpoint.port > 65_535:
            return f"port {endpoint.port}, expected 65535 at most"
        if endpoint.security_protocol not in SECURITY_PROTOCOLS:
            named = endpoint.security_protocol[:50]
            return f"security protocol {named!r}, expected one of {', '.join(SECURITY_PROTOCOLS)}"
    return None


def _text_fault(name: str, text: str) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"its {name} is not Unicode text: {error.reason}"
    return f"its {name} has {size} bytes, expected {TEXT_BYTES_MAX} at most" if size > TEXT_BYTES_MAX else None


def sound_registration(path: str, data: bytes | None) -> BrokerRegistration:
    """Raises DamagedZnode."""
    registration = decode_broker_registration(path, data)
    if (fault := registration_fault(registration)) is not None:
        raise DamagedZnode(path, f"a broker registration ({fault})", data)
    return registration


# -- columns of sets


def _members(row: Int32s) -> tuple[int, ...]:
    return tuple(broker for broker in row.tolist() if broker >= 0)


def _unsound_sets(sets: Int32s, *, empty: bool) -> Bools:
    """Return as bool[n] the rows that name a broker twice or, if `empty`, no broker.

    The codec has already checked ids and lengths.
    """
    count, width = sets.shape
    unsound = np.zeros(count, dtype=np.bool_)
    if empty:
        unsound |= (sets < 0).all(axis=1)
    if width <= _PAIRWISE_WIDTH:
        for later in range(1, width):
            for earlier in range(later):
                unsound |= (sets[:, later] == sets[:, earlier]) & (sets[:, later] >= 0)
        return unsound
    wide = np.flatnonzero((sets[:, 2:] >= 0).any(axis=1) | (sets[:, 0] == sets[:, 1]))
    ordered = np.sort(sets[wide], axis=1)
    unsound[wide] |= ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    return unsound
