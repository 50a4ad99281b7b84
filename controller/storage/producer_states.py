"""The last batches of each idempotent producer, so that a duplicate is recognised and a missing batch is detected.

Derived from batch headers alone: rebuilt from the log, or from a `.snapshot` file and what follows it. A snapshot is
written when a segment begins and when a log is closed, and read when the log is opened or truncated. Rules and format:
Kafka 2.8's ProducerAppendInfo and ProducerStateManager, without transactions.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from controller.storage.batches import INT_MAX, NO_SEQUENCE, BatchHeader
from controller.storage.disk import Disk
from controller.storage.errors import CorruptLog, ProducerFenced, SequenceOutOfOrder
from controller.storage.segment import SNAPSHOT_SUFFIX, Segment, base_offset_of, segment_path

KEPT_BATCHES = 5
"""As many as a producer may have in flight; a batch before these is no longer known as a duplicate."""

EVICTED_AT_ONCE = 1_000
"""Producer ids beyond a broker's limit: some milliseconds."""

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
_NO_TRANSACTION = -1


class KnownBatch(msgspec.Struct, frozen=True, gc=False):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Producer(NamedTuple):
    """Never changed, so that a snapshot can be encoded later and elsewhere."""

    epoch: int
    timestamp_ms: int
    batches: tuple[KnownBatch, ...] = ()
    """The newest last, KEPT_BATCHES at most, all of `epoch`."""
    appended_ms: int = 0
    """By the broker's clock; 0 for one that was read from the disk. A batch's timestamp is its client's choice."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """In the order of their last batches, the one that was silent longest first."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] | None = None
        """None until there is one: most logs are not written to."""

    @property
    def _known(self) -> OrderedDict[int, Producer]:
        if self._producers is None:
            self._producers = OrderedDict()
        return self._producers

    def __len__(self) -> int:
        return 0 if self._producers is None else len(self._producers)

    def producer(self, producer_id: int) -> Producer | None:
        return None if self._producers is None else self._producers.get(producer_id)

    def duplicate_of(self, header: BatchHeader) -> KnownBatch | None:
        """The batch that was appended before with the same sequences, if it is still known."""
        producer = self.producer(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for known in producer.batches:
            if known.first_sequence == header.base_sequence and known.last_sequence == header.last_sequence:
                return known
        return None

    def check(self, header: BatchHeader, position: int = 0) -> None:
        """Whether a leader may append the batch. Raises ProducerFenced or SequenceOutOfOrder.

        A producer id that is not known may begin anywhere: its records may have been deleted.
        """
        producer = self.producer(header.producer_id)
        if producer is None:
            return
        who = f"producer {header.producer_id}"
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(position, f"{who}: epoch {header.producer_epoch}, seen {producer.epoch}")
        if header.producer_epoch > producer.epoch:
            expected = 0
        elif not producer.batches:
            return
        else:
            expected = (producer.last_sequence + 1) & INT_MAX
        if header.base_sequence != expected:
            raise SequenceOutOfOrder(position, f"{who}: sequence {header.base_sequence}, expected {expected}")

    def check_all(self, headers: Sequence[BatchHeader]) -> None:
        """`check` for the batches of one append, of which each follows those before it."""
        before: dict[int, BatchHeader] = {}
        position = 0
        for header in headers:
            last = before.get(header.producer_id)
            if header.producer_id < 0:
                pass
            elif last is None:
                self.check(header, position)
            elif (header.producer_epoch, header.base_sequence) != (
                last.producer_epoch,
                (last.last_sequence + 1) & INT_MAX,
            ):
                raise SequenceOutOfOrder(
                    position,
                    f"producer {header.producer_id}: sequence {header.base_sequence} after {last.last_sequence}",
                )
            before[header.producer_id] = header
            position += header.size_bytes

    def update(self, header: BatchHeader, now_ms: int = 0) -> bool:
        """The batch is in the log. Nothing is refused: a follower takes what its leader took. Return whether its
        producer id is new here."""
        if header.producer_id < 0:
            return False
        producers = self._known
        producer = producers.get(header.producer_id)
        batches = producer.batches if producer is not None and producer.epoch == header.producer_epoch else ()
        if header.base_sequence != NO_SEQUENCE:  # a control batch has none
            batch = KnownBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp_ms,
            )
            batches = (*batches[1 - KEPT_BATCHES :], batch)
        producers[header.producer_id] = Producer(header.producer_epoch, header.max_timestamp_ms, batches, now_ms)
        if producer is not None:
            producers.move_to_end(header.producer_id)
        return producer is None

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that sent nothing for so long."""
        producers: dict[int, Producer] = self._producers or {}
        expired = [one for one, producer in producers.items() if now_ms - producer.timestamp_ms >= expiration_ms]
        for producer_id in expired:
            del producers[producer_id]

    def keep_newest(self, count: int) -> None:
        """Forget those that were silent longest, until there are `count` at most. One that goes on later may begin with
        any sequence, as after its expiration."""
        while len(self) > count:
            self._known.popitem(last=False)

    def oldest_ms(self) -> int:
        """When the one that was silent longest appended last. There is one."""
        return next(iter(self._known.values())).appended_ms

    def clear(self) -> None:
        self._producers = None

    def encode(self) -> bytes:
        """The bytes of a snapshot file. Of each producer it keeps the last batch alone, as Kafka's does."""
        return self.encoder()()

    def encoder(self) -> Callable[[], bytes]:
        """Makes the bytes of `encode` as of now, whenever it is called, and on any thread."""
        return partial(_encoded, tuple((self._producers or {}).items()))

    @classmethod
    def decode(cls, file: str, data: bytes) -> ProducerStates:
        """Raises CorruptLog: the snapshot is of no use, an older one or the log itself is."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptLog(file, 0, f"{len(data)} bytes, fewer than a snapshot's head")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptLog(file, 0, f"version {version}: expected {_SNAPSHOT_VERSION}")
        if crc32c(data[6:]) != crc:
            raise CorruptLog(file, 2, "CRC-32C of the snapshot is another")
        if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            raise CorruptLog(file, 6, f"{count} producers announced, {len(data)} bytes")
        states = cls()
        for entry in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, _, _ = entry
            batches: tuple[KnownBatch, ...] = ()
            if last_sequence != NO_SEQUENCE:
                first_sequence = (last_sequence - delta) & INT_MAX
                known = KnownBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)
                batches = (known,)
            states._known[producer_id] = Producer(epoch, timestamp_ms, batches)
        return states


class ProducersOfBroker:
    """Bounds what all logs of a broker remember together: beyond `most` producer ids those that were silent longest are
    evicted, whichever log they are in. `states` gives those of every log."""

    __slots__ = ("_count", "_states", "most")

    def __init__(self, most: int, states: Callable[[], Iterable[ProducerStates]]) -> None:
        self.most = most
        self._states = states
        self._count = 0
        """At least as many as there are: what expires is not counted before the limit is reached."""

    def added(self, count: int = 1) -> None:
        self._count += count
        if self._count > self.most:
            self._recount()

    def _recount(self) -> None:
        """Evicts a few more than it must, so that the logs are not looked through for each new producer id."""
        states = [one for one in self._states() if len(one)]
        self._count = sum(map(len, states))
        if self._count <= self.most:
            return
        left = max(self.most - min(EVICTED_AT_ONCE, self.most // 10), 1)
        heads = [(one.oldest_ms(), place) for place, one in enumerate(states)]
        heapify(heads)
        while self._count > left:
            _, place = heads[0]
            states[place].keep_newest(len(states[place]) - 1)
            self._count -= 1
            if len(states[place]):
                heapreplace(heads, (states[place].oldest_ms(), place))
            else:
                heappop(heads)


def _encoded(producers: Sequence[tuple[int, Producer]]) -> bytes:
    body = b"".join(map(_entry, producers))
    head = _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(producers))
    crc = crc32c(head[6:] + body)
    return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc, len(producers)) + body


def _entry(one: tuple[int, Producer]) -> bytes:
    producer_id, producer = one
    last = producer.batches[-1] if producer.batches else KnownBatch(-1, -1, -1, -1, producer.timestamp_ms)
    return _SNAPSHOT_ENTRY.pack(
        producer_id,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.base_offset,
        producer.timestamp_ms,
        -1,
        _NO_TRANSACTION,
    )


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Of what is in a log's directory. Ascending."""
    return sorted([offset for name in names if (offset := base_offset_of(name, SNAPSHOT_SUFFIX)) is not None])


def take_snapshot(disk: Disk, directory: str, offset: int, producers: ProducerStates, *, soon: bool = False) -> None:
    """Write the producer states as of log end offset `offset`. The file is not synced: its CRC shows whether it is
    complete. With `soon`, it may be encoded and written after this returns; if that fails, there is no snapshot."""
    path = segment_path(directory, offset, SNAPSHOT_SUFFIX)
    if soon:
        disk.replace_derived(path, producers.encoder())
    else:
        disk.replace(path, producers.encode(), durable=False)


def restore(
    disk: Disk, directory: str, snapshots: Sequence[int], segments: Sequence[Segment], log_end_offset: int
) -> ProducerStates:
    """The states at the log's end: from the newest of the `snapshots` that can be read, and the headers after it.
    Those that are beyond the end, or can't be read, are removed."""
    states, offset = ProducerStates(), 0
    for found in reversed(snapshots):
        path = segment_path(directory, found, SNAPSHOT_SUFFIX)
        if found > log_end_offset:
            disk.remove(path)
            continue
        try:
            states, offset = ProducerStates.decode(path, disk.read(path)), found
            break
        except CorruptLog:  # of a derived file: what it held is in the log
            disk.remove(path)
    for segment in segments:
        if segment.next_offset > offset and segment.size_bytes:
            for _, header in segment.headers_from(offset):
                states.update(header)
    return states
