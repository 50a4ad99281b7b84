"""Records as the protocol carries them: bytes that are not inspected here, and copied as little as possible.

When read, they are a view into the frame, which they keep alive. When written, they are spliced in: a message is a
sequence of parts, and records in a file may stay there until a server sends them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

from controller.protocol.errors import UnencodableValue


class RecordRange(Protocol):
    """Records that lie elsewhere, in a file most likely, and need not be read to be sent."""

    @property
    def length(self) -> int:
        """Bytes, which the message announces: no fewer and no more may be sent."""

    def read(self) -> bytes: ...


Records: TypeAlias = bytes | memoryview | RecordRange
Part: TypeAlias = Records
"""A message's bytes are those of its parts, one after the other."""


class Output(bytearray):
    """What is being written, and where records are to go into it."""

    _splices: list[tuple[int, Records]] | None = None

    def splice(self, records: Records) -> None:
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


def size_bytes(records: Records) -> int:
    if isinstance(records, bytes):
        return len(records)
    return records.nbytes if isinstance(records, memoryview) else records.length


def joined(parts: Iterable[Part]) -> bytes:
    """The parts as one, each byte copied once. Ranges are read: UnencodableValue for one that has not its length."""
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]  # as of most messages, which have no records
    return b"".join([part if isinstance(part, bytes | memoryview) else _read(part) for part in parts])


def _read(records: RecordRange) -> bytes:
    data = records.read()
    if len(data) != records.length:
        raise UnencodableValue(f"a range of {records.length} bytes of records gives {len(data)}")
    return data
