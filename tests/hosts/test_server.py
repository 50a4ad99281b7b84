"""The socket server: each connection's answers in the order of its requests, and trouble that stays its own."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from controller.broker.quotas.connections import ConnectionSettings
from controller.broker.quotas.rules import Window
from controller.broker.request_context import Respond
from controller.broker.security.principal import Requester
from controller.broker.settings import Listener
from controller.hosts.listening import CannotListen
from controller.hosts.server import ACCEPTED_AT_ONCE, UNANSWERED_MAX, ServerConnection, ServerLimits, SocketServer
from controller.protocol.framing import Part, framed
from controller.storage import DeviceUnavailable
from controller.storage.disk import Device, File, FileRange, NotCached
from controller.storage.disk_files import CachedFile, FileDisk
from tests.hosts.harness import KeptTrace, running_network
from tests.processes import eventually

REQUEST_BYTES_MAX = 1_000
DEADLINE_S = 30.0
RECORDS_BYTES = 3_000_000


class Echo:
    """Answers a frame with itself: at once, or when told to (`held`), or by closing ("close"), not at all ("nothing"),
    or with a range of `file` ("records")."""

    def __init__(self) -> None:
        self.hold = False
        self.received: list[bytes] = []
        self.held: list[Callable[[], None]] = []
        self.listeners: set[str] = set()
        self.file: File | None = None

    def receive(self, frame: bytes, respond: Respond, client: Requester) -> None:
        self.received.append(frame)
        self.listeners.add(client.listener)
        if self.hold:
            self.held.append(lambda: respond(self.answer(frame)))
        else:
            respond(self.answer(frame))

    def answer(self, frame: bytes) -> list[Part] | None:
        if frame == b"close":
            return None
        if frame == b"records":
            assert self.file is not None
            return [b"head", FileRange(self.file, 0, RECORDS_BYTES), b"tail"]
        return [] if frame == b"nothing" else [frame]


class Serving:
    def __init__(self, server: SocketServer, port: int, echo: Echo, trace: KeptTrace) -> None:
        self.server, self.port, self.echo, self.trace = server, port, echo, trace

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)


@contextmanager
def serving_with(limits: ServerLimits) -> Iterator[Serving]:
    echo, trace = Echo(), KeptTrace()
    with running_network() as network:
        server = SocketServer(network, limits, trace)
        ports = server.bind([Listener("PLAINTEXT", "127.0.0.1", 0)])
        server.serve(echo.receive)
        yield Serving(server, ports["PLAINTEXT"], echo, trace)
        server.close()


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serving_with(ServerLimits(REQUEST_BYTES_MAX)) as serving:
        yield serving


def read(connection: socket.socket) -> bytes | None:
    """The next frame; None if the connection was closed instead."""
    (size,) = struct.unpack(">i", received) if (received := _read(connection, 4)) else (None,)
    return None if size is None else _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return parts


def _read_all(connection: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    parts = b""
    while part := connection.recv(1 << 20):
        parts += part
    return parts


def test_requests_sent_ahead_are_answered_in_order(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        frames = [b"%d" % number for number in range(500)]
        connection.sendall(b"".join(framed(frame) for frame in frames))
        assert [read(connection) for _ in frames] == frames
    assert serving.echo.listeners == {"PLAINTEXT"}


def test_answers_that_were_ready_in_another_order_wait_for_their_turn(serving: Serving) -> None:
    serving.echo.hold = True
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1") + framed(b"2") + framed(b"3"))
        eventually(lambda: len(serving.echo.held) == 3, "all three are being handled")
        workers = [threading.Thread(target=answer) for answer in reversed(serving.echo.held)]
        for worker in workers:
            worker.start()
            worker.join()
        assert [read(connection) for _ in range(3)] == [b"1", b"2", b"3"]


def test_one_byte_at_a_time_is_a_frame_too(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        for byte in framed(b"slow"):
            connection.sendall(bytes([byte]))
        assert read(connection) == b"slow"


@pytest.mark.parametrize("announced", [REQUEST_BYTES_MAX + 1, 2**31 - 1, -1])
def test_an_impossible_size_closes_its_connection_alone(serving: Serving, announced: int) -> None:
    with closing(serving.connect()) as bad, closing(serving.connect()) as good:
        good.sendall(framed(b"before"))
        assert read(good) == b"before"
        bad.sendall(struct.pack(">i", announced) + b"x" * 100)
        assert read(bad) is None
        good.sendall(framed(b"after"))
        assert read(good) == b"after"
    assert len(serving.trace.notes("warning")) == 1


def test_a_frame_of_the_largest_size_is_taken(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"x" * REQUEST_BYTES_MAX))
        assert read(connection) == b"x" * REQUEST_BYTES_MAX


def test_no_answer_closes_the_connection_after_the_answers_before_it(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1") + framed(b"close") + framed(b"3"))
        assert [read(connection), read(connection)] == [b"1", None]


def test_a_connection_that_ends_within_a_frame_is_forgotten(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"whole") + framed(b"cut off")[:-3])
        assert read(connection) == b"whole"
        eventually(lambda: len(serving.server.connections) == 1, "it is there")
    eventually(lambda: not serving.server.connections, "it is gone")
    assert serving.echo.received == [b"whole"]


def test_an_answer_to_a_connection_that_is_gone_goes_nowhere(serving: Serving) -> None:
    serving.echo.hold = True
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1"))
        eventually(lambda: bool(serving.echo.held), "it is being handled")
    eventually(lambda: not serving.server.connections, "it is gone")
    serving.echo.held[0]()
    serving.echo.hold = False
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"2"))
        assert read(connection) == b"2"


def test_too_much_unanswered_is_not_read_on(serving: Serving) -> None:
    serving.echo.hold = True
    frames = [b"%d" % number for number in range(UNANSWERED_MAX + 50)]
    with closing(serving.connect()) as connection:
        connection.sendall(b"".join(framed(frame) for frame in frames))
        eventually(lambda: len(serving.echo.held) >= UNANSWERED_MAX, "as many as may be are being handled")
        with closing(serving.connect()) as other:  # the loop has been round since
            serving.echo.hold = False
            other.sendall(framed(b"other"))
            assert read(other) == b"other"
        assert len(serving.echo.held) == UNANSWERED_MAX
        for answer in list(serving.echo.held):
            answer()
        assert [read(connection) for _ in frames] == frames


def test_a_client_that_does_not_read_is_not_answered_into_memory(serving: Serving) -> None:
    """It is not read from either, once what its answers may take is taken, and has everything when it reads."""
    frame = b"x" * REQUEST_BYTES_MAX
    count = 20_000
    with closing(serving.connect()) as connection:
        sender = threading.Thread(target=lambda: connection.sendall(framed(frame) * count))
        sender.start()
        eventually(lambda: len(serving.echo.received) > 10, "some are answered")
        with closing(serving.connect()) as other:
            other.sendall(framed(b"other"))
            assert read(other) == b"other"
        assert len(serving.echo.received) < count
        assert all(read(connection) == frame for _ in range(count))
        sender.join(DEADLINE_S)


def test_a_request_without_a_response_leaves_the_order_to_the_others(serving: Serving) -> None:
    serving.echo.hold = True
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1") + framed(b"nothing") + framed(b"3") + framed(b"nothing") + framed(b"5"))
        eventually(lambda: len(serving.echo.held) == 5, "all are being handled")
        for answer in reversed(serving.echo.held):
            answer()
        assert [read(connection) for _ in range(3)] == [b"1", b"3", b"5"]


def test_records_go_out_of_their_file_between_the_answers_around_them(serving: Serving, tmp_path: Path) -> None:
    records = random.Random(1).randbytes(RECORDS_BYTES)
    serving.echo.file = FileDisk().open(str(tmp_path / "log"))
    serving.echo.file.append(records)
    with closing(serving.connect()) as connection:
        connection.sendall((framed(b"before") + framed(b"records") + framed(b"after")) * 3)
        for _ in range(3):
            assert read(connection) == b"before"
            assert read(connection) == b"head" + records + b"tail"
            assert read(connection) == b"after"


def test_records_that_were_truncated_meanwhile_close_the_connection_alone(serving: Serving, tmp_path: Path) -> None:
    serving.echo.file = FileDisk().open(str(tmp_path / "log"))
    serving.echo.file.append(bytes(RECORDS_BYTES - 1))
    with closing(serving.connect()) as bad, closing(serving.connect()) as good:
        bad.sendall(framed(b"before") + framed(b"records") + framed(b"after"))
        assert read(bad) == b"before"
        assert len(_read_all(bad)) == 4 + 4 + RECORDS_BYTES - 1
        good.sendall(framed(b"good"))
        assert read(good) == b"good"
    assert [note for note in serving.trace.notes("warning") if "cut off" in note]


def evict_each_piece(monkeypatch: pytest.MonkeyPatch, read_in: Callable[[int], None]) -> None:
    """Each piece of a file that is sent has to be read in first."""
    asked: list[int] = []

    def require_cached(_: CachedFile, position: int, length: int) -> None:
        asked.append(position)
        if len(asked) % 2:
            raise NotCached(Device("8:1"), read_in, length, f"read of {length} bytes")

    monkeypatch.setattr(CachedFile, "require_cached", require_cached)


def test_records_that_were_evicted_meanwhile_are_read_in_by_another_thread(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    evict_each_piece(monkeypatch, lambda _: threads.append(serving.server.network.on_loop()))
    records = random.Random(1).randbytes(RECORDS_BYTES)
    serving.echo.file = FileDisk().open(str(tmp_path / "log"))
    serving.echo.file.append(records)
    with closing(serving.connect()) as connection:
        connection.sendall((framed(b"before") + framed(b"records") + framed(b"after")) * 3)
        for _ in range(3):
            assert read(connection) == b"before"
            assert read(connection) == b"head" + records + b"tail"
            assert read(connection) == b"after"
    assert threads
    assert not any(threads)


def test_a_device_that_does_not_answer_closes_the_connections_to_which_its_records_are_sent(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_in(_: int) -> None:
        raise DeviceUnavailable("8:1", "no answer")

    evict_each_piece(monkeypatch, read_in)
    serving.echo.file = FileDisk().open(str(tmp_path / "log"))
    serving.echo.file.append(bytes(RECORDS_BYTES))
    with closing(serving.connect()) as bad, closing(serving.connect()) as good:
        bad.sendall(framed(b"records") + framed(b"after"))
        assert len(_read_all(bad)) == 4 + 4
        good.sendall(framed(b"good"))
        assert read(good) == b"good"
    assert [note for note in serving.trace.notes("warning") if "8:1: no answer" in note]


def test_a_connection_is_closed_when_it_is_idle_and_not_while_it_waits_for_an_answer() -> None:
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, idle_ms=1_000)) as serving:
        serving.echo.hold = True
        with closing(serving.connect()) as waits:
            waits.sendall(framed(b"late"))
            eventually(lambda: len(serving.echo.held) == 1, "it is being handled")
            for _ in range(2):
                with closing(serving.connect()) as idle:
                    assert read(idle) is None
            serving.echo.held[0]()
            assert read(waits) == b"late"
            assert read(waits) is None
    assert len(serving.trace.notes("info")) == 3


def test_a_client_that_takes_no_answers_is_idle_too() -> None:
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, idle_ms=100)) as serving:
        with closing(serving.connect()) as connection:
            frame = framed(b"x" * REQUEST_BYTES_MAX)
            with suppress(OSError):  # what it sends is not taken either, from when its answers are not
                connection.settimeout(None)
                while True:
                    connection.sendall(frame)
            eventually(lambda: not serving.server.connections, "it is closed")


def is_full(server: SocketServer) -> bool:
    return server.held_bytes >= server.queued_bytes


def test_requests_of_all_connections_together_have_a_limit() -> None:
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, queued_bytes=2 * REQUEST_BYTES_MAX)) as serving:
        serving.echo.hold = True
        full = b"x" * REQUEST_BYTES_MAX
        with (
            closing(serving.connect()) as first,
            closing(serving.connect()) as second,
            closing(serving.connect()) as begun,
            closing(serving.connect()) as last,
        ):
            begun.sendall(framed(full)[:100])
            first.sendall(framed(full))
            eventually(lambda: len(serving.echo.held) == 1, "one is handled")
            assert not is_full(serving.server), "what was announced and has not arrived does not count"
            second.sendall(framed(full))
            eventually(lambda: len(serving.echo.held) == 2 and is_full(serving.server), "two are handled, one begun")
            last.sendall(framed(b"last"))
            begun.sendall(framed(full)[100:])
            eventually(lambda: len(serving.echo.held) == 3, "the one that was begun is read to its end")
            assert serving.echo.received == [full, full, full]
            serving.echo.held[0]()
            serving.echo.held[1]()
            assert read(first) == read(second) == full
            eventually(lambda: len(serving.echo.held) == 4, "there is room for the last one")
            serving.echo.held[3]()
            assert read(last) == b"last"
            serving.echo.held[2]()
            assert read(begun) == full
    assert serving.server.held_bytes == 0


def test_requests_that_are_announced_and_do_not_come_keep_nobody_waiting() -> None:
    """Five connections announce more than there is memory for and send nothing."""
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, queued_bytes=REQUEST_BYTES_MAX, stall_ms=1_500)) as serving:
        stalled = [serving.connect() for _ in range(5)]
        for connection in stalled:
            connection.sendall(REQUEST_BYTES_MAX.to_bytes(4, "big") + b"x")
        eventually(lambda: serving.server.held_bytes == 5, "each has one byte")
        with closing(serving.connect()) as other:
            other.sendall(framed(b"other"))
            assert read(other) == b"other"
        for connection in stalled:
            assert connection.recv(1) == b"", "it is closed when nothing more has come for the stall timeout"
            connection.close()
    assert serving.server.held_bytes == 0
    assert len([note for note in serving.trace.notes("warning") if "no byte of a request" in note]) == 5


def test_a_request_that_comes_slowly_and_steadily_is_answered() -> None:
    """Each byte comes after most of the stall timeout: the connection's clock is set back instead of waiting."""
    stall_ms = 1_000_000

    async def age(connection: ServerConnection) -> None:
        connection._arrived_s -= 0.9 * stall_ms / 1_000.0
        connection._watch_stall()

    with (
        serving_with(ServerLimits(REQUEST_BYTES_MAX, stall_ms=stall_ms)) as serving,
        closing(serving.connect()) as slow,
    ):
        frame = framed(b"slow")
        slow.sendall(frame[:4])
        for at in range(4, len(frame) - 1):
            slow.sendall(frame[at : at + 1])
            eventually(lambda at=at: serving.server.held_bytes == at - 3, "the byte arrived")  # type: ignore[misc]
            (connection,) = serving.server.connections
            serving.server.network.run(age(connection), DEADLINE_S)
            assert serving.server.connections
        slow.sendall(frame[-1:])
        assert read(slow) == b"slow"
        slow.sendall(frame[:6])
        eventually(lambda: serving.server.held_bytes == 2, "another begins")
        serving.server.network.run(age(connection), DEADLINE_S)
        serving.server.network.run(age(connection), DEADLINE_S)
        assert not serving.server.connections, "no byte came in nearly twice the time"


def test_a_large_produce_request_is_received_into_a_block_and_no_other_request() -> None:
    kinds: list[type] = []

    def receive(frame: bytes, respond: Respond, _client: Requester) -> None:
        kinds.append(type(frame))
        respond([bytes(frame)])

    with serving_with(ServerLimits(1_000_000)) as serving, closing(serving.connect()) as client:
        serving.server.receive = receive
        for begins in (b"\0\0", b"\0\1", b"\0\0"):
            whole = begins + b"r" * 200_000
            client.sendall(framed(whole))
            assert read(client) == whole
    assert kinds == [memoryview, bytes, memoryview]


@pytest.mark.parametrize("begins", [b"\0\0", b"\0\1"])  # received into blocks, and in pieces
def test_requests_that_a_client_sends_ahead_stay_where_they_are_while_there_is_no_memory(begins: bytes) -> None:
    frames = [begins + b"%d" % number * 90_000 for number in range(9)]
    with serving_with(ServerLimits(1_000_000, queued_bytes=200_000)) as serving, closing(serving.connect()) as client:
        serving.echo.hold = True
        sender = threading.Thread(target=client.sendall, args=(b"".join(map(framed, frames)),), daemon=True)
        sender.start()
        eventually(lambda: len(serving.echo.held) >= 3, "as many as there is memory for")
        for _ in range(100):
            serving.server.network.run(asyncio.sleep(0), DEADLINE_S)
        assert serving.server.held_bytes == 3 * len(frames[0])
        serving.echo.hold = False
        for answer in serving.echo.held:
            answer()
        assert [read(client) for _ in frames] == frames
        sender.join(DEADLINE_S)
    assert serving.server.held_bytes == 0


def test_a_large_request_directly_behind_another_waits_for_those_that_had_begun_before_it() -> None:
    whole = framed(b"\0\0" + b"l" * 100_000)
    with (
        serving_with(ServerLimits(1_000_000)) as serving,
        closing(serving.connect()) as first,
        closing(serving.connect()) as second,
    ):
        first.sendall(whole[:-1])
        eventually(lambda: serving.server.held_bytes == len(whole) - 5, "the first has begun")
        second.sendall(whole[:90_004])
        eventually(lambda: serving.server.held_bytes == len(whole) - 5 + 90_000, "the second has begun")
        standing = threading.Event()
        serving.server.network.loop.call_soon_threadsafe(standing.wait, DEADLINE_S)
        first.sendall(whole[-1:] + whole[:80_004])
        standing.set()
        assert read(first) == whole[4:]
        eventually(lambda: serving.server.held_bytes == 170_000, "the next has begun")
        assert [one.arrived_bytes for one in serving.server._large] == [90_000, 80_000]


def test_large_requests_hold_half_of_the_memory_and_the_first_of_them_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hosts.server.LARGE_BYTES", 100)
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, queued_bytes=2 * REQUEST_BYTES_MAX)) as serving:
        whole = framed(b"l" * REQUEST_BYTES_MAX)
        with (
            closing(serving.connect()) as first,
            closing(serving.connect()) as second,
            closing(serving.connect()) as small,
        ):
            first.sendall(whole[:704])
            eventually(lambda: serving.server.held_bytes == 700, "the first has begun")
            second.sendall(whole[:404])
            eventually(lambda: serving.server.held_bytes == 1_100, "the second has begun")
            second.sendall(whole[404:])
            small.sendall(framed(b"small"))
            assert read(small) == b"small"
            assert serving.server.held_bytes == 1_100, "the second waits"
            first.sendall(whole[704:])
            assert read(first) == read(second) == b"l" * REQUEST_BYTES_MAX
    assert serving.server.held_bytes == 0


def test_of_a_large_produce_request_only_the_beginning_is_read_while_half_of_the_memory_is_held() -> None:
    whole = framed(b"\0\0" + b"l" * 100_000)
    with (
        serving_with(ServerLimits(1_000_000, queued_bytes=180_000)) as serving,
        closing(serving.connect()) as first,
        closing(serving.connect()) as second,
    ):
        first.sendall(whole[:95_004])
        eventually(lambda: serving.server.held_bytes == 95_000, "the first has begun")
        second.sendall(whole[:-1])
        eventually(lambda: serving.server.held_bytes > 95_000, "the second has begun")
        for _ in range(100):
            serving.server.network.run(asyncio.sleep(0), DEADLINE_S)
        assert serving.server.held_bytes == 95_000 + 2_044
        first.sendall(whole[95_004:])
        second.sendall(whole[-1:])
        assert read(first) == read(second) == whole[4:]


def test_a_large_request_that_keeps_others_waiting_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hosts.server.LARGE_BYTES", 100)
    with serving_with(ServerLimits(REQUEST_BYTES_MAX, queued_bytes=1_200, stall_ms=300)) as serving:
        whole = framed(b"l" * REQUEST_BYTES_MAX)
        with closing(serving.connect()) as first, closing(serving.connect()) as second:
            first.sendall(whole[:704])
            eventually(lambda: serving.server.held_bytes == 700, "the first has begun")
            second.sendall(whole)
            with suppress(OSError):
                for at in range(704, len(whole)):  # never stalls, and is never whole in time
                    first.sendall(whole[at : at + 1])
                    threading.Event().wait(0.02)
            assert read(second) == b"l" * REQUEST_BYTES_MAX
    assert serving.server.held_bytes == 0
    assert any("while others waited" in note for note in serving.trace.notes("warning"))


def test_one_connection_has_a_limit_of_unanswered_bytes(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hosts.server.UNANSWERED_BYTES", 2_500)
    serving.echo.hold = True
    frames = [b"%d" % number * REQUEST_BYTES_MAX for number in range(5)]
    with closing(serving.connect()) as connection, closing(serving.connect()) as other:
        connection.sendall(b"".join(map(framed, frames)))
        eventually(lambda: len(serving.echo.held) == 3, "as many as may be are being handled")
        other.sendall(framed(b"other"))
        eventually(lambda: len(serving.echo.held) == 4, "another connection is read")
        assert serving.echo.received == [*frames[:3], b"other"]
        for number in (0, 1, 2, 4, 5):
            eventually(lambda number=number: len(serving.echo.held) > number, "it has its turn")  # type: ignore[misc]
            serving.echo.held[number]()
        assert [read(connection) for _ in frames] == frames


def test_more_connections_than_may_be_wait_for_their_place() -> None:
    limits = ServerLimits(REQUEST_BYTES_MAX, connections=ConnectionSettings(most=1))
    with serving_with(limits) as serving, closing(serving.connect()) as second:
        second.sendall(framed(b"2"))
        assert read(second) == b"2"
        third = serving.connect()
        third.sendall(framed(b"3"))
        eventually(lambda: len(serving.trace.notes("warning")) == 1, "it waits, and the log has a line")
        assert serving.echo.received == [b"2"]
        second.close()
        with closing(third):
            assert read(third) == b"3"
    assert serving.server.gate.quotas.total == 0


def test_an_address_has_as_many_connections_as_it_may_have() -> None:
    limits = ServerLimits(REQUEST_BYTES_MAX, connections=ConnectionSettings(per_ip=1))
    with serving_with(limits) as serving:
        with closing(serving.connect()) as first:
            first.sendall(framed(b"1"))
            assert read(first) == b"1"
            for _ in range(3):
                with closing(serving.connect()) as other:
                    assert read(other) is None
        eventually(lambda: not serving.server.connections, "the first is gone")
        with closing(serving.connect()) as third:
            third.sendall(framed(b"3"))
            assert read(third) == b"3"
    assert len(serving.trace.notes("warning")) == 1


def test_a_connection_between_brokers_takes_the_place_of_the_least_used_one() -> None:
    connections = ConnectionSettings(most=1, protected="BROKERS")
    with running_network() as network:
        server = SocketServer(network, ServerLimits(REQUEST_BYTES_MAX, connections=connections), KeptTrace())
        ports = server.bind([Listener(name, "127.0.0.1", 0) for name in ("CLIENTS", "BROKERS")])
        server.serve(Echo().receive)
        with closing(socket.create_connection(("127.0.0.1", ports["CLIENTS"]), DEADLINE_S)) as client:
            client.sendall(framed(b"client"))
            assert read(client) == b"client"
            with closing(socket.create_connection(("127.0.0.1", ports["BROKERS"]), DEADLINE_S)) as broker:
                broker.sendall(framed(b"broker"))
                assert read(broker) == b"broker"
                assert read(client) is None
        server.close()
    assert server.gate.quotas.total == 0


def test_limits_that_are_altered_count_at_once_and_the_least_used_connections_are_closed() -> None:
    with serving_with(ServerLimits(REQUEST_BYTES_MAX)) as serving, ExitStack() as opened:
        clients = [opened.enter_context(closing(serving.connect())) for _ in range(3 * ACCEPTED_AT_ONCE)]
        for at, client in enumerate(clients):
            client.sendall(framed(b"%d" % at))
            assert read(client) == b"%d" % at
        serving.server.network.call(partial(serving.server.gate.quotas.limit, ConnectionSettings(most=2)))
        assert {read(client) for client in clients[:-2]} == {None}
        clients[-1].sendall(framed(b"used last"))
        assert read(clients[-1]) == b"used last"
        waits = opened.enter_context(closing(serving.connect()))
        waits.sendall(framed(b"waits"))
        eventually(lambda: "connections wait" in str(serving.trace.notes("warning")), "there is no place")
        serving.server.network.call(partial(serving.server.gate.quotas.limit, ConnectionSettings(most=3)))
        assert read(waits) == b"waits"
    assert serving.server.gate.quotas.total == 0


def test_an_address_that_connects_too_fast_is_closed_after_its_throttle_time() -> None:
    limits = ServerLimits(REQUEST_BYTES_MAX, connections=ConnectionSettings(window=Window(2, 50)))
    with serving_with(limits) as serving:
        serving.server.gate.quotas.ip_rates = {"127.0.0.1": 1}
        for _ in range(3):
            with closing(serving.connect()) as connection:
                assert read(connection) is None
    assert not serving.server.gate._throttled


def test_closing_sends_what_was_answered_and_forgets_every_connection(serving: Serving) -> None:
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1"))
        assert read(connection) == b"1"
        serving.server.close()
        assert read(connection) is None
        assert (len(serving.server.connections), serving.server.held_bytes) == (0, 0)


def test_an_address_that_is_taken_is_named() -> None:
    with running_network() as network, closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        server = SocketServer(network, ServerLimits(REQUEST_BYTES_MAX), KeptTrace())
        with pytest.raises(CannotListen, match=f"PLAINTEXT://127.0.0.1:{port}: Address already in use"):
            server.bind([Listener("OTHER", "127.0.0.1", 0), Listener("PLAINTEXT", "127.0.0.1", port)])


def test_every_interface_is_listened_on_where_no_host_is_named() -> None:
    with running_network() as network:
        server = SocketServer(network, ServerLimits(REQUEST_BYTES_MAX), KeptTrace())
        ports = server.bind([Listener("PLAINTEXT", "", 0)])
        server.serve(Echo().receive)
        with closing(socket.create_connection(("127.0.0.1", ports["PLAINTEXT"]), DEADLINE_S)) as connection:
            connection.sendall(framed(b"1"))
            assert read(connection) == b"1"
        server.close()
