"""`SendQueue`, the send queue of one socket: bytes in memory are sent together, a large range of a file with sendfile,
without being read. It lives on the network's loop."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from controller.hosts.network import PIECE_BYTES
from controller.hosts.tls import EncryptedSocket
from controller.protocol.framing import Part, RecordRange, framed_parts
from controller.storage.disk import FileRange

SENDFILE_FROM_BYTES = 16 * 1024
"""A smaller range is read and goes out with the bytes around it, which is cheaper than calls of its own."""
SEND_AT_ONCE_BYTES = 4 * 1024 * 1024
"""The maximum number of bytes of one `send`, so that a client that reads fast does not starve the others."""
SEND_FROM_FILE_BYTES = 1024 * 1024
"""As much is read in at once where it is not in the page cache, and asked for at once whether it is there."""
RECENT_S = 1.0
"""How long a recent range counts as in the page cache from when its answer was made."""
TLS_SEND_BYTES = 64 * 1024
"""At a time, over TLS: what TLS did not take has to be given to it again."""
BUFFERS_AT_ONCE = 64
HAS_SENDFILE = hasattr(os, "sendfile")
HAS_SENDMSG = hasattr(socket.socket, "sendmsg")
MORE = getattr(socket, "MSG_MORE", 0)
"""Where the system supports it: data waits for the data that follows, to share a packet."""


class RangeCut(Exception):
    """A range of a file has fewer bytes than the frame announces: the log was truncated meanwhile."""

    def __init__(self, records: RecordRange) -> None:
        super().__init__(f"records were cut off while they were sent: {records}")


class _FromFile:
    """The unsent part of a range of a file."""

    __slots__ = ("asked_from_s", "left", "position", "range")

    def __init__(self, records: FileRange) -> None:
        self.range = records
        self.asked_from_s = time.monotonic() + RECENT_S if records.is_recent else 0.0
        """If it is recent: from when on the page cache is asked for it."""
        self.position = records.position
        self.left = records.length


class SendQueue:
    """`sock` doesn't block. `others_ask`: `NetworkThread.others_ask`, on which `send` returns. `left_bytes`: what was
    put and has not gone out."""

    __slots__ = ("_older", "_others_ask", "_parts", "_plain", "_socket", "left_bytes")

    def __init__(
        self, sock: socket.socket | EncryptedSocket, others_ask: Callable[[int, int], bool] = lambda _, __: False
    ) -> None:
        self._socket: Any = sock
        self._others_ask = others_ask
        self._plain = isinstance(sock, socket.socket)
        self._parts: deque[Any] = deque()
        """Each is a memoryview or a _FromFile."""
        self._older = 0
        """Ranges among them that are not recent."""
        self.left_bytes = 0

    def put(self, parts: Sequence[Part]) -> None:
        """One frame, behind what is there. RangeCut, UnencodableValue: none of it was put."""
        for part in framed_parts(parts, _read_if_small if self._plain else _read_if_cached):
            if type(part) is bytes:
                if part:  # between two ranges there is nothing, and nothing can't be sent
                    self._parts.append(memoryview(part))
                    self.left_bytes += len(part)
            else:
                assert isinstance(part, FileRange), part
                self._parts.append(_FromFile(part))
                self._older += not part.is_recent
                self.left_bytes += part.length

    def others_come_first(self) -> bool:
        """Whether much is to be sent to a client that is behind, and others ask already."""
        return (
            self._older > 0 and self.left_bytes >= PIECE_BYTES and self._others_ask(self._socket.fileno(), sys.maxsize)
        )

    def send(self, *, was_read_in: bool = False, gives_way: bool = True) -> None:
        """Send as much as the socket accepts now, within limits, and at least something. `was_read_in`: what NotCached
        asked for. `gives_way`: return while others ask.

        Raises:
            OSError: the connection is lost.
            RangeCut: the connection must be closed, since the bytes that the frame announced cannot be sent.
            NotCached: sending would wait for a disk: what was in the page cache when the answer was made has been
                evicted. When its `read_in` has returned, the call is to be repeated.
        """
        allowed, parts = SEND_AT_ONCE_BYTES, self._parts
        try:
            while parts and allowed > 0:
                head = parts[0]
                if type(head) is memoryview:
                    allowed -= self._send_memory()
                elif head.range.is_recent:
                    allowed -= self._send_range(head, allowed, was_read_in or time.monotonic() < head.asked_from_s)
                    was_read_in = False
                    continue
                else:
                    allowed -= self._send_range(head, min(allowed, PIECE_BYTES), was_read_in)
                    was_read_in = False
                sent = SEND_AT_ONCE_BYTES - allowed
                if sent >= PIECE_BYTES and gives_way and parts and self._others_ask(self._socket.fileno(), sent):
                    return
        except BlockingIOError:
            return

    def _send_memory(self) -> int:
        parts = self._parts
        if len(parts) == 1 or not (HAS_SENDMSG and self._plain):
            return self._sent(self._socket.send(parts[0][: PIECE_BYTES if self._plain else TLS_SEND_BYTES]))
        buffers: list[memoryview] = []
        flags = 0
        for part in parts:
            if type(part) is not memoryview:
                flags = MORE
                break
            if len(buffers) == BUFFERS_AT_ONCE:
                break
            buffers.append(part)
        return self._sent(self._socket.sendmsg(buffers, (), flags))

    def _sent(self, count: int) -> int:
        """Drops `count` bytes of memory from what is first."""
        parts, left = self._parts, count
        while left:
            head = parts.popleft()
            left -= len(head)
            if left < 0:
                parts.appendleft(head[left:])
                break
        self.left_bytes -= count
        return count

    def _send_range(self, head: _FromFile, allowed: int, was_read_in: bool) -> int:
        asked = min(head.left, allowed if self._plain else TLS_SEND_BYTES)
        if not was_read_in:
            at_once = SEND_FROM_FILE_BYTES if self._plain else TLS_SEND_BYTES
            unchecked = at_once - (head.position - head.range.position) % at_once
            head.range.file.require_cached(head.position, min(head.left, unchecked))
        if not (self._plain and HAS_SENDFILE):
            return self._load(head, asked)
        count = os.sendfile(self._socket.fileno(), head.range.file.fileno(), head.position, asked)
        if count == 0:
            raise RangeCut(head.range)
        self.left_bytes -= count
        self._advance(head, count)
        return count

    def _load(self, head: _FromFile, asked: int) -> int:
        """Take bytes of the range into memory, as the next to send."""
        data = head.range.file.read_at(head.position, asked)
        if len(data) != asked:
            raise RangeCut(head.range)
        self._advance(head, asked)
        self._parts.appendleft(memoryview(data))
        return 0

    def _advance(self, head: _FromFile, count: int) -> None:
        head.position += count
        head.left -= count
        if not head.left:
            self._parts.popleft()
            self._older -= not head.range.is_recent


def _has_descriptor(part: RecordRange) -> TypeGuard[FileRange]:
    """A file of an in-process cluster's disk may be in memory."""
    if not isinstance(part, FileRange):
        return False
    try:
        part.file.fileno()
    except OSError:
        return False
    return True


def _read_if_small(part: RecordRange) -> Part:
    if part.length >= SENDFILE_FROM_BYTES and HAS_SENDFILE and _has_descriptor(part):
        return part
    return _read_if_cached(part)


def _read_if_cached(part: RecordRange) -> Part:
    """The range itself, where that would wait for the disk: it is asked for again when it is sent."""
    data = part.file.read_cached(part.position, part.length) if _has_descriptor(part) else part.read()
    if data is None:
        return part
    if len(data) != part.length:
        raise RangeCut(part)
    return data
