"""What goes out on a socket: every byte once and in order, whether from memory or from a file, and never too few."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from controller.hosts.sending import RECENT_S, SENDFILE_FROM_BYTES, RangeCut, SendQueue
from controller.machine.disk import MemoryDisk
from controller.protocol.framing import Part, framed, joined
from controller.storage.disk import Device, FileRange, NotCached
from controller.storage.disk_files import FileDisk, OpenFile

FILE_BYTES = 2 * 1024 * 1024
BUFFER_BYTES = 16 * 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OpenFile]:
    opened = OpenFile(str(tmp_path / "log"))
    opened.append(random.Random(1).randbytes(FILE_BYTES))
    yield opened
    opened.close()


def frames_of(file: OpenFile, seed: int) -> list[list[Part]]:
    """Frames of bytes, views and ranges: small ones, large ones, none, one after the other."""
    draw = random.Random(seed)
    sizes = (0, 1, 100, SENDFILE_FROM_BYTES - 1, SENDFILE_FROM_BYTES, 5 * BUFFER_BYTES, FILE_BYTES // 4)

    def part() -> Part:
        size = draw.choice(sizes)
        match draw.randrange(4):
            case 0:
                return draw.randbytes(size)
            case 1:
                return memoryview(draw.randbytes(size))
            case _:
                return FileRange(file, draw.randrange(FILE_BYTES - size), size)

    return [[part() for _ in range(draw.randrange(1, 6))] for _ in range(draw.randrange(1, 12))]


def send_all(outgoing: SendQueue, far: socket.socket, draw: random.Random) -> bytes:
    """Sends and receives in turns; what was received."""
    received = bytearray()
    while True:
        outgoing.send()
        for _ in range(draw.randrange(1, 4)):
            try:
                received += far.recv(draw.choice((1, 1_000, 1 << 20)))
            except BlockingIOError:
                if not outgoing.left_bytes:
                    return bytes(received)
                break


def expected(frames: Sequence[Sequence[Part]]) -> bytes:
    return b"".join(framed(joined(parts)) for parts in frames)


@pytest.mark.parametrize("has_sendfile", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_every_byte_goes_out_once_and_in_order(
    pair: tuple[socket.socket, socket.socket],
    file: OpenFile,
    monkeypatch: pytest.MonkeyPatch,
    has_sendfile: bool,
    seed: int,
) -> None:
    monkeypatch.setattr("controller.hosts.sending.HAS_SENDFILE", has_sendfile)
    monkeypatch.setattr("controller.hosts.sending.HAS_SENDMSG", has_sendfile)
    monkeypatch.setattr("controller.hosts.sending.SEND_AT_ONCE_BYTES", 100_000)
    monkeypatch.setattr("controller.hosts.sending.PIECE_BYTES", 10_000)
    near, far = pair
    draw = random.Random(seed)
    outgoing = SendQueue(near, lambda *_: draw.random() < 0.5)
    frames = frames_of(file, seed)
    received = b""
    for parts in frames:
        outgoing.put(parts)
        if draw.random() < 0.3:
            received += send_all(outgoing, far, draw)
    received += send_all(outgoing, far, draw)
    assert received == expected(frames)


def test_a_large_range_is_not_read(pair: tuple[socket.socket, socket.socket], file: OpenFile) -> None:
    class Unread(OpenFile):
        def read_at(self, position: int, length: int) -> bytes:
            raise AssertionError("read")

    near, far = pair
    unread = Unread(file.path)
    outgoing = SendQueue(near)
    outgoing.put([b"head", FileRange(unread, 10, 100_000), b"tail"])
    received = send_all(outgoing, far, random.Random(1))
    assert received == framed(b"head" + file.read_at(10, 100_000) + b"tail")
    unread.close()


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_a_large_answer_stops_for_others(
    pair: tuple[socket.socket, socket.socket], file: OpenFile, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setattr("controller.hosts.sending.PIECE_BYTES", 5_000)
    near, far = pair
    outgoing = SendQueue(near, lambda fd, sent: fd == near.fileno() and sent >= 5_000)
    large = FileRange(file, 0, 100_000)
    outgoing.put([large.read()] if in_memory else [large])
    for sends in range(1, 3):
        outgoing.send()
        assert sends * 5_000 <= 100_004 - outgoing.left_bytes <= sends * 5_004
    left_bytes = outgoing.left_bytes
    outgoing.send(gives_way=False)
    assert outgoing.left_bytes < left_bytes - 5_004, "a connection that is closed sends what the socket takes"
    assert send_all(outgoing, far, random.Random(1)) == framed(large.read())


def test_recent_records_are_sent_at_once_and_asked_for_once_their_client_is_slow(
    pair: tuple[socket.socket, socket.socket], file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: never ask. A client that stops reading for an hour then makes the broker's thread wait for a disk."""
    monkeypatch.setattr("controller.hosts.sending.PIECE_BYTES", 5_000)
    asked: list[int] = []
    monkeypatch.setattr(OpenFile, "require_cached", lambda _file, position, _length: asked.append(position))
    near, far = pair
    outgoing = SendQueue(near, lambda _fd, sent: sent >= 5_000)
    outgoing.put([FileRange(file, 0, 20 * BUFFER_BYTES, is_recent=True)])
    outgoing.send()
    assert not asked
    assert 0 < outgoing.left_bytes < 20 * BUFFER_BYTES - 10_000, "as much as the socket took, though others ask"
    far.recv(1 << 20)
    later_s = time.monotonic() + RECENT_S
    monkeypatch.setattr("controller.hosts.sending.time.monotonic", lambda: later_s)
    outgoing.send()
    assert asked


def test_a_large_range_of_a_file_in_memory_is_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    file = MemoryDisk().open("/log")
    file.append(random.Random(1).randbytes(FILE_BYTES))
    near, far = pair
    outgoing = SendQueue(near)
    outgoing.put([FileRange(file, 10, 5 * SENDFILE_FROM_BYTES)])
    assert send_all(outgoing, far, random.Random(1)) == framed(file.read_at(10, 5 * SENDFILE_FROM_BYTES))


def test_a_removed_file_is_sent_to_its_end(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    disk = FileDisk()
    file = disk.open(str(tmp_path / "old"))
    file.append(bytes(300_000))
    near, far = pair
    outgoing = SendQueue(near)
    outgoing.put([FileRange(file.held(), 0, 300_000)])
    outgoing.send()
    disk.remove(file.path)
    del file
    assert send_all(outgoing, far, random.Random(1))[:4] + bytes(300_000) == framed(bytes(300_000))


@pytest.mark.parametrize("length", [1_000, 100_000], ids=["read", "sendfile"])
def test_a_range_that_was_cut_off_is_told_before_anything_else_is_sent_in_its_place(
    pair: tuple[socket.socket, socket.socket], file: OpenFile, length: int
) -> None:
    near, far = pair
    file.truncate(500)
    outgoing = SendQueue(near)

    def put_and_send() -> None:
        outgoing.put([b"head", FileRange(file, 0, length), b"tail"])
        while True:
            outgoing.send()

    with pytest.raises(RangeCut, match="cut off"):
        put_and_send()
    received = far.recv(1 << 20) if length == 100_000 else b""
    assert received == framed(b"head" + file.read_at(0, 500) + bytes(length + 4 - 500))[: len(received)]
    assert len(received) in (0, 4 + 4 + 500)


def test_a_file_that_was_closed_is_an_error(pair: tuple[socket.socket, socket.socket], file: OpenFile) -> None:
    outgoing = SendQueue(pair[0])
    outgoing.put([FileRange(file, 0, 100_000)])
    file.close()
    with pytest.raises(OSError):
        outgoing.send()


@pytest.mark.parametrize("length", [100, 20 * BUFFER_BYTES], ids=["read", "sendfile"])
@pytest.mark.parametrize("has_sendfile", [True, False])
def test_what_has_been_evicted_since_it_was_read_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket],
    file: OpenFile,
    monkeypatch: pytest.MonkeyPatch,
    has_sendfile: bool,
    length: int,
) -> None:
    """Planted: send without asking again. A consumer that reads slowly then makes the broker's thread wait for a disk,
    for it was in the page cache that the records were when the answer was made."""
    monkeypatch.setattr("controller.hosts.sending.HAS_SENDFILE", has_sendfile)
    evicted: list[tuple[int, int]] = []

    def require_cached(_: OpenFile, position: int, length: int) -> None:
        if len(evicted) % 2 == 0:
            evicted.append((position, length))
            raise NotCached(Device("8:1"), lambda: evicted.append((position, length)), length, "cold")

    def read_cached(file: OpenFile, position: int, length: int) -> bytes | None:
        """What is sent with the bytes around it, for which nothing is asked before."""
        try:
            require_cached(file, position, length)
        except NotCached:
            return None
        return file.read_at(position, length)

    monkeypatch.setattr(OpenFile, "require_cached", require_cached)
    monkeypatch.setattr(OpenFile, "read_cached", read_cached)
    near, far = pair
    outgoing = SendQueue(near)
    outgoing.put([b"head", FileRange(file, 10, length), b"tail"])
    received, was_read_in = b"", False
    while outgoing.left_bytes:
        try:
            outgoing.send(was_read_in=was_read_in)
            was_read_in = False
        except NotCached as cold:
            cold.read_in()
            was_read_in = True
        with suppress(BlockingIOError):
            received += far.recv(1 << 20)
    assert received == framed(b"head" + file.read_at(10, length) + b"tail")
    assert evicted
