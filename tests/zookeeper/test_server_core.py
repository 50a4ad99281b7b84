"""The ZooKeeper server without a host, in virtual time: bounds on connections and handshakes, timers, lost replies."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from controller.clock import VirtualClock
from controller.zookeeper.jute import INT, acl_entries, buffer, string
from controller.zookeeper.operations import OPEN_ACL
from controller.zookeeper.server import wire
from controller.zookeeper.server.connection import ServedConnection
from controller.zookeeper.server.core import ZooKeeperCore
from controller.zookeeper.server.wire import OpCode, RecordReader, ReplyCode

TICK_MS, LONGEST_MS = 500, 10_000
IDLE = 2_000


class RawLink:
    """A client's end: it is given frames, and notes what it is sent. Its transport closes at the next timer."""

    def __init__(self, core: ZooKeeperCore, address: str = "127.0.0.1") -> None:
        self.core = core
        self.received = bytearray()
        self._ended = False
        self.session, self.password = 0, bytes(16)
        self.served = ServedConnection(core)
        self.served.opened(self, (address, 1))

    def write(self, data: bytes) -> None:
        assert not self._ended
        self.received += data

    def ended(self) -> bool:
        return self._ended

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self.core.clock.call_later(0.0, lambda: self.served.connection_lost(None))

    abort = close

    def frames(self) -> Iterator[RecordReader]:
        while len(self.received) >= INT.size:
            end = INT.size + INT.unpack_from(self.received)[0]
            yield RecordReader(bytes(self.received[INT.size : end]))
            del self.received[:end]

    def greeting(self, timeout_ms: int = LONGEST_MS) -> bytes:
        return wire.frame(struct.pack("!iqiq", 0, 0, timeout_ms, self.session), buffer(self.password), b"\0")

    def greet(self, timeout_ms: int = LONGEST_MS) -> int:
        """Complete the handshake; return the session, 0 for none."""
        self.served.data_received(self.greeting(timeout_ms))
        turn(self.core, 0.0)
        (answer,) = self.frames()
        answer.integer(), answer.integer()
        self.session, self.password = answer.long(), answer.buffer() or b""
        return self.session

    def ask(self, operation: int, body: bytes = b"") -> list[tuple[int, int]]:
        """Return (xid, error) of each reply and event."""
        self.served.data_received(wire.frame(struct.pack("!ii", 1, operation), body))
        turn(self.core, 0.0)
        return [(frame.integer(), (frame.long() and 0) or frame.integer()) for frame in self.frames()]

    def create(self, path: str, flags: int = 0) -> list[tuple[int, int]]:
        return self.ask(OpCode.CREATE, string(path) + buffer(b"") + acl_entries(OPEN_ACL) + INT.pack(flags))


def turn(core: ZooKeeperCore, ms: float) -> None:
    assert isinstance(core.clock, VirtualClock)
    core.clock.advance_to(core.clock.now_ms() + ms)


def serving(clock: VirtualClock, **settings: int) -> ZooKeeperCore:
    core = ZooKeeperCore(clock, tick_ms=TICK_MS, max_session_timeout_ms=LONGEST_MS, **settings)  # type: ignore[arg-type]
    core.start()
    return core


@pytest.fixture
def core() -> ZooKeeperCore:
    return serving(VirtualClock())


def test_connections_that_send_nothing_are_closed_after_the_longest_session_timeout(core: ZooKeeperCore) -> None:
    silent = [RawLink(core) for _ in range(IDLE)]
    client = RawLink(core)
    session = client.greet()
    turn(core, LONGEST_MS - 1)
    assert client.ask(OpCode.PING) == [(1, 0)]
    assert not any(link.ended() for link in silent)
    turn(core, 1)
    assert all(link.ended() for link in silent)
    assert list(core.connections) == [client.served]
    assert list(core.sessions) == [session]


def test_a_handshake_that_comes_byte_by_byte_has_no_longer_time(core: ZooKeeperCore) -> None:
    link = RawLink(core)
    for byte in link.greeting():
        turn(core, LONGEST_MS / 20)
        link.served.data_received(bytes([byte]))
    assert link.ended()
    assert not core.connections
    assert not core.sessions


def test_a_completed_handshake_ends_the_bound(core: ZooKeeperCore) -> None:
    link = RawLink(core)
    turn(core, LONGEST_MS - 1)
    link.greet()
    for _ in range(20):
        turn(core, LONGEST_MS - TICK_MS)
        assert link.ask(OpCode.PING) == [(1, 0)]


def test_a_handshake_that_a_partition_holds_back_waits_for_the_healing(core: ZooKeeperCore) -> None:
    first = RawLink(core)
    session = first.greet()
    core.partition(session)
    second = RawLink(core)
    second.session, second.password = session, first.password
    second.served.data_received(second.greeting())
    turn(core, 2 * LONGEST_MS)
    assert not second.ended()
    core.heal(session)
    turn(core, 0)
    assert [frame.integer() for frame in second.frames()] == [0]
    assert second.ended()  # the session has expired meanwhile


def test_a_paused_server_closes_nothing(core: ZooKeeperCore) -> None:
    link, client = RawLink(core), RawLink(core)
    client.greet()
    core.pause()
    turn(core, 2 * LONGEST_MS)
    assert not link.ended()
    assert not client.ended()
    client.served.data_received(wire.frame(struct.pack("!ii", 1, OpCode.PING)))
    core.resume()
    turn(core, TICK_MS)
    assert link.ended()
    assert list(core.sessions) == [client.session]


def test_an_address_has_as_many_connections_as_are_allowed() -> None:
    core = serving(VirtualClock(), max_connections_per_address=3)
    first = [RawLink(core) for _ in range(5)]
    assert [link.ended() for link in first] == [False, False, False, True, True]
    assert first[0].greet()
    other = RawLink(core, "::ffff:10.0.0.1")
    assert not other.ended()
    turn(core, 0)
    assert RawLink(core).ended()
    first[0].served.connection_lost(None)
    assert not RawLink(core).ended()
    assert RawLink(core).ended()


def test_no_bound_is_the_default(core: ZooKeeperCore) -> None:
    links = [RawLink(core) for _ in range(IDLE)]
    assert not any(link.ended() for link in links)


def test_sessions_end_at_the_tick_after_their_timeout(core: ZooKeeperCore) -> None:
    turn(core, 123)
    long, short = RawLink(core), RawLink(core)
    long.greet(5_000)
    short.greet(1_000)
    short.create("/mine", flags=1)
    assert core.processor.tree.ephemerals(short.session) == ("/mine",)
    turn(core, 1_376)
    assert not short.ended()
    turn(core, 1)
    assert short.ended()
    assert not core.processor.tree.ephemerals(short.session)
    assert list(core.sessions) == [long.session]


def test_a_stopped_core_serves_no_new_connection_and_keeps_sessions(core: ZooKeeperCore) -> None:
    link = RawLink(core)
    session = link.greet()
    core.stop()
    assert link.ended()
    assert RawLink(core).ended()
    turn(core, 3 * LONGEST_MS)
    core.start()
    again = RawLink(core)
    again.session, again.password = session, link.password
    assert again.greet() == session
    assert list(core.connections) == [again.served]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(("operation", "path"), [(OpCode.CREATE, "/a"), (OpCode.DELETE, "/b")])
def test_a_lost_reply_is_that_of_the_next_write(
    core: ZooKeeperCore, applied: bool, operation: OpCode, path: str
) -> None:
    link = RawLink(core)
    link.greet()
    link.create("/b")
    core.lose_reply(link.session, applied=applied)
    assert link.ask(OpCode.EXISTS, string("/a") + b"\0") == [(1, ReplyCode.NO_NODE)]
    if operation == OpCode.CREATE:
        assert link.create(path) == []
    else:
        assert link.ask(operation, string(path) + INT.pack(-1)) == []
    assert link.ended()
    assert (path in core.processor.tree.nodes) is (applied if operation == OpCode.CREATE else not applied)


def test_the_reply_to_a_write_that_fails_is_lost_too(core: ZooKeeperCore) -> None:
    link = RawLink(core)
    link.greet()
    core.lose_reply(link.session, applied=True)
    assert link.create("/none/child") == []
    assert link.ended()
    with pytest.raises(KeyError):
        core.lose_reply(link.session, applied=True)


def test_settings_that_make_no_core() -> None:
    with pytest.raises(ValueError, match="max_connections_per_address -1: expected 0 or more"):
        ZooKeeperCore(VirtualClock(), max_connections_per_address=-1)
