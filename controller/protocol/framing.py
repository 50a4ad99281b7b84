"""Frames as they go over a connection: their parts, records among them that are not copied, and their size before.

Records are bytes that the protocol does not inspect. When read, they are a view into the frame, which they keep alive.
When written, they are spliced in: a message is a sequence of parts, and records in a file may stay there until a server
sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

from controller.protocol.errors import MalformedFrame, UnencodableValue

SIZE_BYTES = 4
_SIZE = Struct(">i")
FRAME_BYTES_SAID_MAX = 2**31 - 1
FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's default of socket.request.max.bytes: a broker closes the connection of a client that announces more."""


class RecordRange(Protocol):
    """Records that lie elsewhere, in a file most likely, and need not be read to be sent."""

    @property
    def length(self) -> int:
        """Bytes, which the message announces: no fewer and no more may be sent."""

    def read(self) -> bytes: ...


Part: TypeAlias = bytes | memoryview | RecordRange
"""A message's bytes are those of its parts, one after the other."""
IN_MEMORY: Final = (bytes, memoryview)
"""The types of parts that are not ranges. A constant, since `bytes | memoryview` makes an object at each evaluation."""


class Output(bytearray):
    """What is being written, and where records are to go into it."""

    _splices: list[tuple[int, Part]] | None = None

    def splice(self, records: Part) -> None:
        if self._splices is None:
            self._splices = []
        self._splices.append((len(self), records))

    def parts(self) -> list[Part]:
        if self._splices is None:
            return [bytes(self)]
        parts: list[Part] = []
        start = 0
        with memoryview(self) as written:
            for stop, records in self._splices:
                parts += (bytes(written[start:stop]), records)
                start = stop
            parts.append(bytes(written[start:]))
        return parts


def size_bytes(records: Part) -> int:
    if isinstance(records, bytes):
        return len(records)
    return records.nbytes if isinstance(records, memoryview) else records.length


def joined(parts: Iterable[Part]) -> bytes:
    """The parts as one, each byte copied once. Ranges are read: UnencodableValue for one that has not its length."""
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]  # as of most messages, which have no records
    return b"".join([part if isinstance(part, IN_MEMORY) else _read(part) for part in parts])


def _read(records: RecordRange) -> bytes:
    data = records.read()
    if len(data) != records.length:
        raise UnencodableValue(f"a range of {records.length} bytes of records gives {len(data)}")
    return data


Frame: TypeAlias = bytes | memoryview
"""A memoryview is of a block of a `FrameMemory`, which is not used again while the view is kept."""
BLOCK_FROM_BYTES = 16 * 1024
"""A frame of which more than this is still to come is received into a block, if one is free."""


def framed(frame: bytes) -> bytes:
    """The frame with its size before it, as it goes over the connection."""
    return len(frame).to_bytes(SIZE_BYTES, "big") + frame


def framed_parts(parts: Sequence[Part], take: Callable[[Any], Part] = lambda part: part) -> list[bytes | RecordRange]:
    """A frame in parts with its size before it, ready to be sent one after the other: what is in memory is joined
    (copied once) up to the next range. `take` may read a range. UnencodableValue for more than a size can say."""
    if len(parts) == 1 and type(only := parts[0]) is bytes and len(only) <= FRAME_BYTES_SAID_MAX:
        return [framed(only)]
    size = 0
    first: list[Any] = [b""]  # where the size goes
    in_memory, groups = first, list[Any]()
    for part in parts:
        if not isinstance(part, IN_MEMORY):
            part = take(part)
        if type(part) is bytes:
            size += len(part)
            in_memory.append(part)
        elif isinstance(part, IN_MEMORY):
            size += size_bytes(part)
            in_memory.append(part)
        else:
            size += part.length
            groups += (b"".join(in_memory) if groups else first, part)
            in_memory = []
    if size > FRAME_BYTES_SAID_MAX:
        raise UnencodableValue(f"a frame of {size} bytes: four bytes can say {FRAME_BYTES_SAID_MAX}")
    first[0] = _SIZE.pack(size)
    if groups:
        groups[0] = b"".join(first)
    if in_memory:
        groups.append(b"".join(in_memory))
    return groups


def frame_size(prefix: Frame, limit: int = FRAME_BYTES_MAX) -> int:
    """Return the size in the four bytes of the prefix. MalformedFrame if it is negative or over the limit, so that no
    reader waits or allocates memory for a frame that will be rejected."""
    if len(prefix) != SIZE_BYTES:
        raise MalformedFrame(f"a size of {len(prefix)} bytes")
    size = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= size <= limit:
        raise MalformedFrame(f"a frame of {size} bytes is announced, the limit is {limit}")
    return size


READ_BYTES_MAX = 1024 * 1024
"""Read at once into a block: about 0.1 ms."""
FIRST_BYTES_MAX = 256 * 1024
"""Read at once before a frame's size is known."""
AHEAD_BYTES = 2 * 1024
"""Room in a block behind a frame: where the next one has begun to arrive, its size is known without another read."""


class FrameMemory:
    """Blocks of memory that large frames are received into, which saves a copy of each frame. A block is free once no
    view of it is left. To be used on one thread; any thread may release a view."""

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self.scratch = memoryview(bytearray(64 * 1024))
        """To read into what is copied from it at once."""

    def take(self, size: int) -> memoryview | None:
        """None if that is more than a block may have, or all blocks are in use."""
        if size > BLOCK_BYTES_MAX:
            return None
        for at, block in enumerate(self._blocks):
            try:
                block.append(0)  # which no bytearray allows that is viewed
            except BufferError:
                continue
            block.pop()
            if len(block) < BLOCK_BEGIN + size:
                block = self._blocks[at] = bytearray(BLOCK_BEGIN + size)
            break
        else:
            if len(self._blocks) == BLOCKS:
                return None
            self._blocks.append(block := bytearray(BLOCK_BEGIN + max(size, BLOCK_BYTES)))
        return memoryview(block)[BLOCK_BEGIN : BLOCK_BEGIN + size]


BLOCKS, BLOCK_BEGIN = 8, 2 * 1024
"""Frames begin in the middle of a page of memory. Processors of AMD copy several times slower (`rep movsb`) where the
destination is within its page a few bytes behind the source, which for a socket's data mostly begins a page."""
BLOCK_BYTES, BLOCK_BYTES_MAX = 1024 * 1024 + 4096, 4 * 1024 * 1024
"""A block's size: at first, enough for 1 MiB of records, and at most."""


@dataclass(slots=True, eq=False)
class FrameBuffer:
    """Cuts a stream of bytes into frames: `feed` what came, and take the frames that are whole.

    A frame that comes in pieces is copied once, when the last has come: a buffer that grows is copied with each. A
    large one that begins with `block_prefix` is received into a block of `memory` instead. `limit`: of a frame's size.
    """

    limit: int = FRAME_BYTES_MAX
    memory: FrameMemory | None = None
    block_prefix: bytes = b""
    _prefix: bytes = b""
    _missing: int | None = None
    """Bytes to come of the frame that `_pieces` begins; None while its size is not known."""
    _pieces: list[bytes] = field(default_factory=list)
    _view: memoryview | None = None
    """The frame, where it is received into a block."""
    room: memoryview | None = None
    """The rest of it, and a little more: what is read into that has `arrived`."""
    _first: memoryview | None = None
    """What `begin` returned the beginning of."""
    begun_bytes: int = 0
    """The size of the frame that is being waited for, once it is known; 0 between frames."""
    arrived_bytes: int = 0
    """How much of it is here."""

    @property
    def is_within(self) -> bool:
        """Some bytes of a frame, or of its size, have come, and not all of them."""
        return self._missing is not None or bool(self._prefix)

    def clear(self) -> None:
        """Drop what has come of a frame: it was taken, or will never be whole."""
        self._missing, self._pieces, self._view, self.room = None, [], None, None
        self.begun_bytes = self.arrived_bytes = 0

    def begin(self) -> memoryview:
        """Return memory for the next bytes that come while there is no `room`: what is read into it has `arrived`."""
        assert self.memory is not None
        self._first = self.memory.take(BLOCK_BYTES) or self.memory.scratch
        return self._first[:FIRST_BYTES_MAX]

    def arrived(self, count: int) -> list[Any]:
        """So many bytes were read into `room`, or into what `begin` returned. Return the frames that they complete.
        Raises what `feed` does."""
        room = self.room
        if room is None:
            return self._begun(count)
        self.arrived_bytes += count
        missing = self.begun_bytes - self.arrived_bytes
        if missing > 0:
            self.room = room[count:]
            return []
        whole = self._view
        self.clear()
        return [whole, *self.feed(room[count + missing : count])] if missing else [whole]

    def _begun(self, count: int) -> list[Any]:
        first, self._first = self._first, None
        assert first is not None
        if count > BLOCK_FROM_BYTES and not self.is_within and self.memory and first is not self.memory.scratch:
            size = frame_size(first[:SIZE_BYTES], self.limit)
            if BLOCK_FROM_BYTES < size == count - SIZE_BYTES:  # as mostly
                return [first[SIZE_BYTES:count].toreadonly()]
            if BLOCK_FROM_BYTES < size <= len(first) - SIZE_BYTES - AHEAD_BYTES:
                self._missing = self.begun_bytes = size
                self.room = first[SIZE_BYTES:]
                self._view = self.room[:size].toreadonly()
                return self.arrived(count - SIZE_BYTES)
        return self.feed(first[:count])

    def receive(self, sock: Any, size: int, *, may_begin: bool = True, reads_on: bool = True) -> list[Any]:
        """Return the frames that a read of a socket completes, of at most `size` bytes, and, if it `reads_on`, one into
        a block that has begun with it. Unless it `may_begin` the next frame, nothing is read behind the one that has
        begun. Raises EOFError at the socket's end, what the socket raises, and what `feed` does."""
        room, most = self.room, READ_BYTES_MAX if may_begin else self.begun_bytes - self.arrived_bytes
        if room is None:
            data = sock.recv(min(size, most))
            if not data:
                raise EOFError
            frames = self.feed(data)
            if self.room is not None and reads_on and len(data) == size:  # most of a large frame has arrived, as a rule
                with suppress(OSError):  # the next read says what is wrong
                    frames += self.arrived(sock.recv_into(self.room[:READ_BYTES_MAX]))
            return frames
        count = sock.recv_into(room[: min(most, READ_BYTES_MAX)])
        if not count:
            raise EOFError
        return self.arrived(count)

    def feed(self, data: Frame) -> list[bytes]:
        """Return the frames that `data`, which is not kept, completes, in order.

        Raises: MalformedFrame for an impossible size; the stream can't be resumed, as the next frame's start is
            unknown."""
        frames: list[bytes] = []
        prefix = self.block_prefix
        pos = 0 if self.is_within else self._whole(data, frames)
        while pos < len(data):
            if self._missing is None:
                stop = pos + SIZE_BYTES - len(self._prefix)
                self._prefix += data[pos:stop]
                pos = stop
                if len(self._prefix) < SIZE_BYTES:
                    break
                self._missing = self.begun_bytes = frame_size(self._prefix, self.limit)
                self._prefix = b""
            piece = data[pos : pos + self._missing]
            pos += len(piece)
            self._missing -= len(piece)
            self.arrived_bytes += len(piece)
            is_large = self._missing > BLOCK_FROM_BYTES and not self._pieces and piece[: len(prefix)] == prefix
            block = self.memory.take(self.begun_bytes + AHEAD_BYTES) if is_large and self.memory is not None else None
            if block is not None:
                block[: len(piece)] = piece
                self._view, self.room = block[: self.begun_bytes].toreadonly(), block[len(piece) :]
                break
            self._pieces.append(bytes(piece))
            if not self._missing:
                frames.append(b"".join(self._pieces))
                self.clear()
        return frames

    def _whole(self, data: Frame, frames: list[bytes]) -> int:
        """Add the frames that `data` holds from its start on, and return where the first incomplete one begins. A
        client that pipelines small requests sends hundreds of frames in one read."""
        pos, limit = 0, self.limit
        while (start := pos + SIZE_BYTES) <= len(data):
            (size,) = _SIZE.unpack_from(data, pos)
            if not 0 <= size <= limit or start + size > len(data):
                break  # the rest of a frame is to come, or none is
            pos = start + size
            frames.append(bytes(data[start:pos]))
        return pos
