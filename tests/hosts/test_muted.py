"""Connections whose clients exceed a quota: muted for the time that their answer says, and no burden meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from controller.broker.request_context import Respond, Throttled
from controller.broker.security.principal import Requester
from controller.hosts.server import ServerConnection, ServerLimits
from controller.protocol.framing import framed
from tests.hosts.test_server import Serving, read, serving_with
from tests.processes import eventually

LONG_MS = 3_600_000


def throttling(serving: Serving) -> list[bytes]:
    """From now on the answer to the text of a number is throttled for so many ms. Returns what is received."""
    received: list[bytes] = []

    def receive(frame: bytes, respond: Respond, _client: Requester) -> None:
        received.append(frame)
        respond(Throttled([frame], int(frame)) if frame.isdigit() else [frame])

    serving.server.receive = receive
    return received


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serving_with(ServerLimits(10_000_000, 20_000_000)) as serving:
        yield serving


def only(serving: Serving) -> ServerConnection:
    (connection,) = serving.server.muted
    return connection


def test_a_muted_connection_is_answered_at_once_and_not_heard_until_its_time_is_over(serving: Serving) -> None:
    received = throttling(serving)
    with closing(serving.connect()) as muted, closing(serving.connect()) as other:
        muted.sendall(framed(b"%d" % LONG_MS) + framed(b"pipelined"))
        assert read(muted) == b"%d" % LONG_MS
        for _ in range(3):
            other.sendall(framed(b"other"))
            assert read(other) == b"other"
        assert b"pipelined" not in received
        serving.server.network.call(only(serving)._unmute)
        assert read(muted) == b"pipelined"
    assert not serving.server.muted


def test_its_time_ends_by_the_timer(serving: Serving) -> None:
    throttling(serving)
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"1") + framed(b"2") + framed(b"after"))
        assert [read(connection) for _ in range(3)] == [b"1", b"2", b"after"]


def test_a_longer_time_holds_and_a_shorter_one_does_not_end_it(serving: Serving) -> None:
    throttling(serving)
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"%d" % LONG_MS))
        assert read(connection) is not None
        muted = only(serving)
        until_s = muted._muted_until_s
        serving.server.network.call(lambda: muted._mute(1))
        serving.server.network.call(lambda: muted._mute(2 * LONG_MS))
        eventually(lambda: muted._muted_until_s > until_s, "the longer time holds")
        assert muted._muted_until_s > until_s + LONG_MS / 2_000.0


def test_a_shutdown_closes_muted_connections(serving: Serving) -> None:
    throttling(serving)
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"%d" % LONG_MS))
        assert read(connection) is not None
        serving.server.close()
        assert read(connection) is None
    assert (len(serving.server.muted), len(serving.server.connections)) == (0, 0)
    assert serving.server.held_bytes == 0


def test_a_muted_connection_is_closed_when_it_was_idle_for_long() -> None:
    with serving_with(ServerLimits(1_000, idle_ms=50)) as serving:
        throttling(serving)
        with closing(serving.connect()) as connection:
            connection.sendall(framed(b"%d" % LONG_MS))
            assert read(connection) is not None
            assert read(connection) is None
    assert not serving.server.muted


def test_a_large_request_of_a_muted_connection_holds_up_nobody_who_needs_its_memory(serving: Serving) -> None:
    throttling(serving)
    with closing(serving.connect()) as muted, closing(serving.connect()) as other:
        muted.sendall(framed(b"x" * 9_999_999)[:9_000_000])
        eventually(lambda: serving.server.held_bytes > 8_999_000, "it has begun to arrive")
        (connection,) = (one for one in serving.server.connections if one.arrived_bytes)
        serving.server.network.call(lambda: connection._mute(LONG_MS))
        eventually(lambda: bool(serving.server.muted), "it is muted")
        other.sendall(framed(b"y" * 2_000_000))
        assert read(other) == b"y" * 2_000_000
        assert read(muted) is None
    assert not serving.server.muted


def test_a_client_that_ignores_its_throttle_takes_neither_turns_nor_memory(serving: Serving) -> None:
    """What it sends on stays in the system's buffers, until these are full."""
    received = throttling(serving)
    with closing(serving.connect()) as hostile, closing(serving.connect()) as other:
        hostile.sendall(framed(b"%d" % LONG_MS))
        assert read(hostile) == b"%d" % LONG_MS
        hostile.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                hostile.send(framed(b"1") * 10_000)
        for _ in range(3):
            other.sendall(framed(b"other"))
            assert read(other) == b"other"
        assert received.count(b"1") == 0
        assert serving.server.held_bytes < 10_000
