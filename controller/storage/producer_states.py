"""The last batches of each idempotent producer, so that a duplicate is recognised and a missing batch is detected; and
which producers have a transaction open in the log.

Derived from batch headers and markers: rebuilt from the log, or from a `.snapshot` file and what follows it. A snapshot
is written when a segment begins and when a log is closed, and read when the log is opened or truncated. Rules and
format: Kafka 2.8's ProducerAppendInfo and ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import takewhile
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from controller.storage.batches import HEADER_BYTES, INT_MAX, NO_SEQUENCE, BatchHeader
from controller.storage.disk import Disk
from controller.storage.errors import (
    CoordinatorFenced,
    CorruptLog,
    InvalidTransactionState,
    ProducerFenced,
    SequenceOutOfOrder,
)
from controller.storage.segment import SNAPSHOT_SUFFIX, Segment, base_offset_of, segment_path
from controller.storage.transactions import MARKER_BYTES_MAX, NO_TRANSACTION, AbortedRange, Marker, Origin, marker_of

KEPT_BATCHES = 5
"""As many as a producer may have in flight; a batch before these is no longer known as a duplicate."""

LOOK_BACK = 500
"""Records before a snapshot's offset whose batches are read when it is loaded."""

EVICTED_AT_ONCE = 1_000
"""Producer ids beyond a broker's limit: some milliseconds."""

_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_VERSION = 1
NO_COORDINATOR = -1


class KnownBatch(msgspec.Struct, frozen=True, gc=False):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


def _batch_of(header: BatchHeader) -> KnownBatch:
    return KnownBatch(
        header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp_ms
    )


class Producer(NamedTuple):
    """Never changed, so that a snapshot can be encoded later and elsewhere."""

    epoch: int
    timestamp_ms: int
    batches: tuple[KnownBatch, ...] = ()
    """The newest last, KEPT_BATCHES at most, all of `epoch`."""
    appended_ms: int = 0
    """By the broker's clock; 0 for one that was read from the disk. A batch's timestamp is its client's choice."""
    first_offset: int = NO_TRANSACTION
    """Of the first record of its open transaction in this log."""
    coordinator_epoch: int = NO_COORDINATOR
    """Of the coordinator that wrote its last marker."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerStates:
    """In the order of their last batches, the one that was silent longest first. A producer with an open transaction is
    never forgotten: without it, nothing would hold readers back from the transaction's records."""

    __slots__ = ("_open", "_producers", "_unreplicated")

    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] | None = None
        """None until there is one: most logs are not written to."""
        self._open: dict[int, int] = {}
        """The producer id of each open transaction by its first offset, ascending."""
        self._unreplicated: dict[int, int] = {}
        """Of transactions that have ended, but whose marker may lie above the high watermark: first offset, marker."""

    @property
    def _known(self) -> OrderedDict[int, Producer]:
        if self._producers is None:
            self._producers = OrderedDict()
        return self._producers

    def __len__(self) -> int:
        return 0 if self._producers is None else len(self._producers)

    def items(self) -> Iterable[tuple[int, Producer]]:
        """By producer id."""
        return () if self._producers is None else self._producers.items()

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
        self._check_epoch(header, producer, position)
        if producer.first_offset != NO_TRANSACTION and not header.is_transactional:
            raise InvalidTransactionState(position, f"{who} has a transaction open, and the batch is outside of one")
        if header.producer_epoch > producer.epoch:
            expected = 0
        elif not producer.batches:
            return
        else:
            expected = (producer.last_sequence + 1) & INT_MAX
        if header.base_sequence != expected:
            raise SequenceOutOfOrder(position, f"{who}: sequence {header.base_sequence}, expected {expected}")

    def _check_epoch(self, header: BatchHeader, producer: Producer, position: int) -> None:
        if header.producer_epoch < producer.epoch:
            who = f"producer {header.producer_id}"
            raise ProducerFenced(position, f"{who}: epoch {header.producer_epoch}, seen {producer.epoch}")

    def check_coordinators(self, header: BatchHeader, marker: Marker | None) -> None:
        """Whether a leader may append a coordinator's batch. Raises ProducerFenced or CoordinatorFenced."""
        producer = self.producer(header.producer_id)
        if producer is None:
            return
        self._check_epoch(header, producer, 0)
        if marker is not None and marker.coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                0,
                f"producer {header.producer_id}: a marker of coordinator epoch {marker.coordinator_epoch}, "
                f"seen {producer.coordinator_epoch}",
            )

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
        first_offset = NO_TRANSACTION if producer is None else producer.first_offset
        if header.is_transactional and not header.is_control and first_offset == NO_TRANSACTION:
            first_offset = header.base_offset
            self._open[first_offset] = header.producer_id
        if header.base_sequence != NO_SEQUENCE:  # a control batch has none
            batches = (*batches[1 - KEPT_BATCHES :], _batch_of(header))
        producers[header.producer_id] = Producer(
            header.producer_epoch,
            header.max_timestamp_ms,
            batches,
            now_ms,
            first_offset,
            NO_COORDINATOR if producer is None else producer.coordinator_epoch,
        )
        if producer is not None:
            producers.move_to_end(header.producer_id)
        return producer is None

    def look_back(self, headers: Iterable[BatchHeader]) -> None:
        """Know the batches before each producer's last one, too, as far as they are among these, in the log's order."""
        found: dict[int, tuple[KnownBatch, ...]] = {}
        for header in headers:
            producer = self.producer(header.producer_id)
            if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
                continue
            if header.base_sequence != NO_SEQUENCE and header.last_offset < producer.batches[0].last_offset:
                found[header.producer_id] = (*found.get(header.producer_id, ())[1 - KEPT_BATCHES :], _batch_of(header))
        for producer_id, batches in found.items():
            producer = self._known[producer_id]
            kept = (*batches, *producer.batches)[-KEPT_BATCHES:]
            self._known[producer_id] = producer._replace(batches=kept)

    # Transactions.

    def end_transaction(self, header: BatchHeader, marker: Marker) -> AbortedRange | None:
        """The marker is in the log, and `update` was called for it. Return the transaction if it is aborted and has
        records in this log."""
        producer = self._known[header.producer_id]
        first_offset = producer.first_offset
        self._known[header.producer_id] = producer._replace(
            first_offset=NO_TRANSACTION, coordinator_epoch=marker.coordinator_epoch
        )
        if first_offset == NO_TRANSACTION:
            return None
        self._open.pop(first_offset, None)
        self._unreplicated[first_offset] = header.last_offset
        if marker.commits:
            return None
        stable = next(iter(self._open), header.next_offset)
        return AbortedRange(header.producer_id, first_offset, header.last_offset, stable)

    def replicated(self, high_watermark: int) -> None:
        """Markers below the high watermark are on every replica that counts."""
        ended = [first for first, marker in self._unreplicated.items() if marker < high_watermark]
        for first_offset in ended:
            del self._unreplicated[first_offset]

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction whose end is not certain: it is open, or its marker is at the high
        watermark or above. None: there is none."""
        first = next(iter(self._open), None)
        if self._unreplicated:
            self.replicated(high_watermark)
            first = min((*self._unreplicated, *(() if first is None else (first,))), default=None)
        return first

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that sent nothing for so long, and have no transaction open."""
        producers: dict[int, Producer] = self._producers or {}
        expired = [
            one
            for one, producer in producers.items()
            if now_ms - producer.timestamp_ms >= expiration_ms and producer.first_offset == NO_TRANSACTION
        ]
        for producer_id in expired:
            del producers[producer_id]

    def keep_newest(self, count: int) -> None:
        """Forget those that were silent longest, until there are `count` at most. One that goes on later may begin with
        any sequence, as after its expiration."""
        known = self._known if len(self) > count else None
        while known is not None and len(known) > max(count, len(self._open)):
            producer_id, producer = known.popitem(last=False)
            if producer.first_offset != NO_TRANSACTION:
                known[producer_id] = producer

    def oldest_ms(self) -> int:
        """When the one that was silent longest appended last. There is one."""
        return next(iter(self._known.values())).appended_ms

    def clear(self) -> None:
        self._producers = None
        self._open, self._unreplicated = {}, {}

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
            producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first_offset = entry
            batches: tuple[KnownBatch, ...] = ()
            if last_sequence != NO_SEQUENCE:
                first_sequence = (last_sequence - delta) & INT_MAX
                known = KnownBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)
                batches = (known,)
            states._known[producer_id] = Producer(epoch, timestamp_ms, batches, 0, first_offset, coordinator_epoch)
            if first_offset != NO_TRANSACTION:
                states._open[first_offset] = producer_id
        states._open = dict(sorted(states._open.items()))
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
        producer.coordinator_epoch,
        producer.first_offset,
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


def note_batch(
    states: ProducerStates, header: BatchHeader, marker: Marker | None, now_ms: int, segment: Segment
) -> bool:
    """A batch with a producer id was appended to `segment`. Return whether the producer id is new."""
    is_new = states.update(header, now_ms)
    if marker is not None:
        aborted = states.end_transaction(header, marker)
        if aborted is not None:
            segment.aborted.append(aborted)
    return is_new


def require_allowed(
    states: ProducerStates, headers: Sequence[BatchHeader], markers: Sequence[Marker | None], origin: Origin
) -> KnownBatch | None:
    """Return the batch of which this append is a repetition. Raises what the checks of ProducerStates raise."""
    if origin is Origin.COORDINATOR:
        for header, marker in zip(headers, markers, strict=True):
            states.check_coordinators(header, marker)
        return None
    known = states.duplicate_of(headers[0])
    if known is None:
        states.check_all(headers)
    return known


def _marker_at(segment: Segment, position: int, header: BatchHeader) -> Marker | None:
    if not header.is_control or header.size_bytes > MARKER_BYTES_MAX:
        return None
    return marker_of(header, segment.file.read_at(position + HEADER_BYTES, header.size_bytes - HEADER_BYTES))


def _look_back(states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    if len(states) and segments:
        first, disk = offset - LOOK_BACK, segments[-1].disk  # a start does not depend on another tier's disk
        those = [one for one in segments if one.base_offset < offset and one.next_offset > first and one.disk is disk]
        headers = (header for segment in those for _, header in segment.headers_from(first))
        with suppress(CorruptLog):  # what a snapshot covers is not checked at a start
            states.look_back(takewhile(lambda header: header.base_offset < offset, headers))
        for sealed in those[:-1]:
            sealed.unload()


def restore(
    disk: Disk,
    directory: str,
    snapshots: Sequence[int],
    segments: Sequence[Segment],
    log_end_offset: int,
    unsound_from: int | None = None,
) -> ProducerStates:
    """The states at the log's end: from the newest of the `snapshots` that can be read, and the batches after it.
    Of the last batches before it, which a snapshot does not keep, those of the last records are known, too: a producer
    that sends them again after a restart gets their offsets. Kafka refuses them as out of order.
    Those that are beyond the end, or can't be read, are removed. `unsound_from`: of segments that begin there or later
    the transaction index is made again, which takes a snapshot that is not later."""
    states, offset = ProducerStates(), 0
    for found in reversed(snapshots):
        path = segment_path(directory, found, SNAPSHOT_SUFFIX)
        if found > log_end_offset:
            disk.remove(path)
            continue
        if unsound_from is not None and found > unsound_from:
            continue
        try:
            states, offset = ProducerStates.decode(path, disk.read(path)), found
            _look_back(states, segments, offset)
            break
        except CorruptLog:  # of a derived file: what it held is in the log
            disk.remove(path)
    for segment in segments:
        remade = unsound_from is not None and segment.base_offset >= unsound_from
        if remade:
            segment.aborted.begin_anew()
        if segment.next_offset > offset and segment.size_bytes:
            for position, header in segment.headers_from(offset):
                if header.producer_id >= 0:
                    states.update(header)
                    marker = _marker_at(segment, position, header)
                    aborted = None if marker is None else states.end_transaction(header, marker)
                    if aborted is not None and remade:
                        segment.aborted.append(aborted)
    return states
