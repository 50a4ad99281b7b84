"""Clients of the in-memory ZooKeeper that are paused, killed, or close in the middle of a callback."""

from __future__ import annotations

from typing import Any

import pytest

from controller.clock import Future
from controller.zookeeper.operations import (
    ConnectionLost,
    Create,
    SessionGone,
    SessionState,
    SetData,
    WatchEvent,
    WatchKind,
)
from tests.zookeeper.memory_world import (
    CLOSED,
    CONNECTED,
    EXPIRED,
    RECONNECT_MS,
    SUSPENDED,
    TIMEOUT_MS,
    Listener,
    World,
)


@pytest.fixture
def world() -> World:
    return World()


def test_a_paused_client_neither_sends_nor_hears_and_its_session_ends(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    other, _ = world.client()
    session = connection.session()
    world.done(connection.multi([Create("/mine", b"", ephemeral=True), Create("/seen", b"")]))
    world.done(connection.watch(["/seen", "/mine"], []))
    listener.log.clear()
    answered: list[float] = []
    connection.read(["/seen"]).on_done(lambda: answered.append(world.clock.now_ms()))
    connection.pause()
    lost = connection.multi([Create("/made while paused", b"")])
    world.done(other.multi([SetData("/seen", b"1", 0)]))
    world.passes(2 * TIMEOUT_MS)
    assert listener.log == []
    assert answered == []
    assert (connection.session(), world.server.row("/mine")) == (session, None)
    resumed_ms = world.clock.now_ms()
    connection.resume()
    # The reply that lay in the socket is read; then SUSPENDED comes before what the watches had to say.
    assert answered == [resumed_ms]
    assert [at for at, _ in listener.log] == [resumed_ms] * 3
    assert listener.told() == [
        SUSPENDED,
        WatchEvent(WatchKind.DATA, "/seen"),
        WatchEvent(WatchKind.DELETED, "/mine"),
    ]
    world.passes(2 * RECONNECT_MS + 20)
    assert listener.told()[3:] == [EXPIRED, CONNECTED]
    assert connection.session() not in (0, session)
    with pytest.raises(SessionGone):
        lost.result()
    assert world.server.row("/made while paused") is None


def test_a_pause_within_the_timeout_goes_unnoticed_but_for_its_length(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    session = connection.session()
    connection.pause()
    write = connection.multi([Create("/after", b"")])
    world.passes(TIMEOUT_MS * 0.9)
    assert world.server.row("/after") is None
    connection.resume()
    assert world.done(write) == ("/after",)
    world.passes(10 * TIMEOUT_MS)
    assert connection.session() == session
    assert listener.told() == [CONNECTED]


@pytest.mark.parametrize("killed", [False, True])
def test_a_client_closed_while_it_connects_hears_no_more(world: World, killed: bool) -> None:
    """Found by the swarm's seed 543: the answer came to one that waited for none."""
    connection, listener = world.client(lambda: 10.0)
    connection.reset()
    world.passes(RECONNECT_MS + 5)
    closed = connection.close()
    if killed:
        connection.kill()
    world.passes(10 * TIMEOUT_MS)
    assert closed.done
    assert listener.told() == [CONNECTED, SUSPENDED, CLOSED]
    assert world.server.sessions() == ()


@pytest.mark.parametrize("when", ["connecting", "suspended", "closing"])
def test_a_client_paused_in_between_goes_on_where_it_was(world: World, when: str) -> None:
    connection, listener = world.client(lambda: 1.0)
    if when == "connecting":
        connection.reset()
        world.passes(RECONNECT_MS + 1)
        connection.pause()
    elif when == "suspended":
        connection.reset()
        connection.pause()
    else:
        connection.pause()
        closed = connection.close()
    before = listener.told()
    world.passes(500)
    assert listener.told() == before
    connection.resume()
    world.passes(RECONNECT_MS + 10)
    if when == "closing":
        assert closed.done
        assert listener.told() == [CONNECTED, CLOSED]
        assert world.server.sessions() == ()
    else:
        assert listener.told() == [CONNECTED, SUSPENDED, CONNECTED]


def test_a_paused_client_learns_of_a_broken_connection_when_it_goes_on(world: World) -> None:
    connection, listener = world.client()
    read = connection.read(["/"])
    connection.pause()
    connection.reset()
    world.passes(10)
    assert listener.told() == [CONNECTED]
    connection.resume()
    assert listener.told() == [CONNECTED, SUSPENDED]
    with pytest.raises(ConnectionLost):
        read.result()


def test_a_killed_client_says_nothing_more_and_its_session_lives_on(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    session = connection.session()
    world.done(connection.multi([Create("/mine", b"", ephemeral=True)]))
    under_way = connection.multi([Create("/sent before", b"")])
    connection.kill()
    connection.kill()
    world.passes(TIMEOUT_MS * 0.9)
    assert world.server.sessions() == (session,)
    assert world.server.row("/sent before") is not None
    assert world.server.ephemerals(session) == ("/mine",)
    world.passes(TIMEOUT_MS)
    assert world.server.sessions() == ()
    assert not under_way.done
    assert listener.told() == [CONNECTED]
    for harmless in (connection.heal, connection.resume, connection.reset):
        harmless()
    world.passes(TIMEOUT_MS)
    assert world.server.sessions() == ()


def test_a_listener_may_close_ask_and_close_again_from_any_callback(world: World) -> None:
    for on in (SUSPENDED, EXPIRED, CONNECTED):
        connection, _ = world.client(lambda: 1.0)

        class Closing(Listener):
            def session_state(self, state: SessionState) -> None:
                super().session_state(state)
                if state is on:  # noqa: B023
                    asked.append(connection.read(["/"]))  # noqa: B023
                    asked.append(connection.close())  # noqa: B023

        asked: list[Future[Any]] = []
        listener = Closing(world.clock)
        connection.listen(listener)
        in_flight = connection.read(["/"])
        world.server.expire(connection.session())
        world.passes(1_000)
        assert listener.told()[-1] is CLOSED
        assert listener.told().count(CLOSED) == 1
        assert in_flight.done
        assert all(each.done for each in asked)
        assert connection.session() == 0
    assert world.server.sessions() == ()
