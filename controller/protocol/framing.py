"""The four bytes before every frame, and the limit on what they may say."""

from __future__ import annotations

from collections.abc import Iterable

from controller.protocol.errors import MalformedFrame, UnencodableValue
from controller.protocol.records import Part, RecordRange, joined, size_bytes

SIZE_BYTES = 4
FRAME_BYTES_SAID_MAX = 2**31 - 1
FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's default of socket.request.max.bytes: a broker closes the connection of a client that announces more."""


def framed(frame: bytes) -> bytes:
    """The frame with its size before it, as it goes over the connection."""
    return len(frame).to_bytes(SIZE_BYTES, "big") + frame


def framed_parts(parts: Iterable[Part]) -> list[bytes | RecordRange]:
    """A frame in parts with its size before it, ready to be sent one after the other: what is in memory is joined
    (copied once) up to the next range. UnencodableValue for more than a size can say."""
    parts = list(parts)
    size = sum(map(size_bytes, parts))
    if size > FRAME_BYTES_SAID_MAX:
        raise UnencodableValue(f"a frame of {size} bytes: four bytes can say {FRAME_BYTES_SAID_MAX}")
    ready: list[bytes | RecordRange] = []
    in_memory: list[Part] = [size.to_bytes(SIZE_BYTES, "big")]
    for part in parts:
        if isinstance(part, bytes | memoryview):
            in_memory.append(part)
        else:
            ready += (joined(in_memory), part)
            in_memory = []
    return [*ready, joined(in_memory)] if in_memory else ready


def frame_size(prefix: bytes, limit: int = FRAME_BYTES_MAX) -> int:
    """The size that the four bytes announce. MalformedFrame if it is negative or over the limit, so that nobody
    waits for, or makes room for, a frame that will not be taken."""
    if len(prefix) != SIZE_BYTES:
        raise MalformedFrame(f"a size of {len(prefix)} bytes")
    size = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= size <= limit:
        raise MalformedFrame(f"a frame of {size} bytes is announced, the limit is {limit}")
    return size


class FrameBuffer:
    """Cuts a stream of bytes into frames: `feed` what came, and take the frames that are whole."""

    __slots__ = ("_limit", "_pending")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes, in order. MalformedFrame once a size is impossible: the stream is lost
        then, since nobody knows where the next frame begins."""
        self._pending += data
        frames: list[bytes] = []
        start = 0
        while len(self._pending) - start >= SIZE_BYTES:
            body = start + SIZE_BYTES
            stop = body + frame_size(bytes(self._pending[start:body]), self._limit)
            if stop > len(self._pending):
                break
            with memoryview(self._pending) as pending:
                frames.append(bytes(pending[body:stop]))
            start = stop
        del self._pending[:start]
        return frames
