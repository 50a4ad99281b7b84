"""Contract: how sessions begin, outlive broken connections, and end, and what becomes of the requests meanwhile. In
memory and on a real server, whose link a test cuts, breaks or robs of a reply."""

from __future__ import annotations

import math

import pytest

from controller.clock import Future
from controller.zookeeper.operations import (
    ConnectionLost,
    Create,
    Delete,
    SessionGone,
    SessionState,
    SetData,
    UnknownOutcome,
)
from tests.zookeeper.contract import MAX_REQUEST_BYTES, SHORT_SESSION_MS, TICK_MS, Backend, Client

CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED
EXPIRED, CLOSED = SessionState.EXPIRED, SessionState.CLOSED


def until_states(client: Client, *states: SessionState) -> None:
    client.backend.until(lambda: client.states == list(states), f"{states} told")


def test_a_connection_starts_with_a_session_of_its_own(backend: Backend, client: Client) -> None:
    other = backend.client(start=False)
    assert other.connection.session() == 0
    assert other.connection.last_zxid() == 0
    session = backend.wait(other.connection.start())
    assert session == other.connection.session() not in (0, client.connection.session())
    assert other.states == client.states == [CONNECTED]


@pytest.mark.parametrize(("asked", "granted"), [(700, 2 * TICK_MS), (1_000, 1_000), (3_210, 3_210)])
def test_the_server_has_the_last_word_on_the_session_timeout(backend: Backend, asked: int, granted: int) -> None:
    assert backend.client(asked).connection.session_timeout_ms == granted


def test_what_is_asked_for_outside_of_a_session_is_refused(backend: Backend) -> None:
    client = backend.client(start=False)
    pendings: list[Future[object]] = [
        client.connection.read([backend.root]),  # type: ignore[list-item]
        client.connection.multi([Create(backend.path("never"), b"")]),  # type: ignore[list-item]
    ]
    client.cut()  # so that it is not connected before it asks again
    started = client.connection.start()
    pendings.append(client.connection.watch([backend.root], []))  # type: ignore[arg-type]
    client.heal()
    for pending in pendings:
        with pytest.raises(SessionGone):
            backend.wait(pending)
    backend.wait(started)
    assert client.row(backend.path("never")) is None


def test_close_ends_the_session_and_its_ephemerals_at_once(backend: Backend, client: Client) -> None:
    other = backend.client()
    session = other.connection.session()
    other.create(backend.path("ephemeral"), ephemeral=True)
    other.create(backend.path("persistent"))
    other.cut(to_server=False)  # so that the answer can't be there before the close
    pending = other.connection.read([backend.root])
    closed = other.connection.close()
    assert other.connection.session() == 0
    other.heal()
    backend.wait(closed)
    assert other.states == [CONNECTED, CLOSED]
    with pytest.raises(SessionGone) as caught:
        backend.wait(pending)
    assert caught.value.session == session
    assert client.row(backend.path("ephemeral")) is None
    assert client.there(backend.path("persistent")).stat.ephemeral_owner == 0
    with pytest.raises(SessionGone):
        backend.wait(other.connection.multi([Create(backend.path("late"), b"")]))
    backend.wait(other.connection.close())
    assert other.states == [CONNECTED, CLOSED]


def test_close_before_the_first_session_leaves_nobody_waiting(backend: Backend) -> None:
    never = backend.client(start=False)
    backend.wait(never.connection.close())
    unreachable = backend.client(start=False)
    unreachable.cut()
    started = unreachable.connection.start()
    backend.wait(unreachable.connection.close())
    with pytest.raises(SessionGone):
        backend.wait(started)
    assert unreachable.connection.session() == 0
    assert CONNECTED not in unreachable.states


def test_a_broken_connection_comes_back_to_the_same_session(backend: Backend, client: Client) -> None:
    session = client.connection.session()
    client.create(backend.path("mine"), ephemeral=True)
    for count in (1, 2):
        client.reset()
        until_states(client, CONNECTED, *[SUSPENDED, CONNECTED] * count)
        assert client.connection.session() == session
    assert client.there(backend.path("mine")).stat.ephemeral_owner == session


def test_a_request_made_while_suspended_waits_for_the_same_session(backend: Backend, client: Client) -> None:
    path = backend.path("waited")
    client.create(path)
    made: list[Future[object]] = []

    def ask(state: SessionState) -> None:
        if state is SUSPENDED:
            for number in range(3):
                made.append(client.note(client.connection.multi([SetData(path, b"%d" % number, number)]), "set"))  # type: ignore[arg-type]
                made.append(client.note(client.connection.read([path]), "read"))  # type: ignore[arg-type]

    client.on_state = ask
    client.reset()
    until_states(client, CONNECTED, SUSPENDED, CONNECTED)
    for pending in made:
        backend.wait(pending)
    assert client.log == [CONNECTED, SUSPENDED, CONNECTED, *["set", "read"] * 3]
    assert client.there(path).data == b"2"


def test_a_request_made_as_the_connection_comes_back_is_behind_those_that_waited(
    backend: Backend, client: Client
) -> None:
    def ask(state: SessionState) -> None:
        client.note(client.connection.read([backend.root]), f"read when {state.value}")

    client.on_state = ask
    client.reset()
    until_states(client, CONNECTED, SUSPENDED, CONNECTED)
    backend.until(lambda: len(client.log) == 5, "both answered")
    assert client.log[3:] == ["read when suspended", "read when connected"]


def test_an_expired_session_takes_its_ephemerals_and_what_waits_in_it(backend: Backend, client: Client) -> None:
    other = backend.client()
    session = other.connection.session()
    other.create(backend.path("mine"), ephemeral=True)
    seen: list[tuple[SessionState, int]] = []
    made: list[Future[object]] = []

    def ask(state: SessionState) -> None:
        seen.append((state, other.connection.session()))
        if state is SUSPENDED:
            made.append(other.connection.multi([Create(backend.path("late"), b"")]))  # type: ignore[arg-type]
            made.append(other.connection.read([backend.root]))  # type: ignore[arg-type]
        if state is EXPIRED:
            made.append(other.connection.read([backend.root]))  # type: ignore[arg-type]

    other.on_state = ask
    other.expire()
    until_states(other, CONNECTED, SUSPENDED, EXPIRED, CONNECTED)
    for pending in made:
        with pytest.raises(SessionGone) as caught:
            backend.wait(pending)
        assert caught.value.session == session
    assert seen == [(SUSPENDED, session), (EXPIRED, 0), (CONNECTED, other.connection.session())]
    assert other.connection.session() not in (0, session)
    assert client.row(backend.path("mine")) is None
    assert client.row(backend.path("late")) is None
    assert other.there(backend.root).path == backend.root


def test_a_client_that_is_cut_off_stays_suspended_while_its_session_ends(backend: Backend, client: Client) -> None:
    lost = backend.client(SHORT_SESSION_MS)
    session = lost.connection.session()
    lost.create(backend.path("mine"), ephemeral=True)
    created_ms = backend.now_ms()
    lost.cut()
    read = lost.connection.read([backend.root])
    write = lost.connection.multi([Create(backend.path("in flight"), b"")])
    until_states(lost, CONNECTED, SUSPENDED)
    noticed_ms = backend.now_ms() - created_ms
    with pytest.raises(ConnectionLost):
        backend.wait(read)
    with pytest.raises(UnknownOutcome):
        backend.wait(write)
    waiting = lost.connection.read([backend.root])
    backend.until(lambda: client.row(backend.path("mine")) is None, "the ephemeral gone")
    ended_ms = backend.now_ms() - created_ms
    assert lost.states == [CONNECTED, SUSPENDED]
    assert lost.connection.session() == session
    assert not waiting.done
    assert noticed_ms < ended_ms
    assert ended_ms >= SHORT_SESSION_MS - 50
    lost.heal()
    until_states(lost, CONNECTED, SUSPENDED, EXPIRED, CONNECTED)
    with pytest.raises(SessionGone):
        backend.wait(waiting)


@pytest.mark.parametrize("way", ["to_server", "to_client"])
def test_a_link_cut_one_way_is_noticed_and_healed(backend: Backend, client: Client, way: str) -> None:
    path = backend.path("one way")
    half = backend.client(3 * SHORT_SESSION_MS)
    session = half.connection.session()
    half.create(backend.path("mine"), ephemeral=True)
    half.cut(to_server=way == "to_server", to_client=way == "to_client")
    write = half.connection.multi([Create(path, b"")])
    until_states(half, CONNECTED, SUSPENDED)
    with pytest.raises(UnknownOutcome):
        backend.wait(write)
    if way == "to_client":
        assert client.there(path).stat.version == 0  # it was applied: only its reply is missing
    half.heal()
    until_states(half, CONNECTED, SUSPENDED, CONNECTED)
    assert half.connection.session() == session
    half.multi(Delete(backend.path("mine"), 0))


def test_an_idle_session_is_kept_by_pings_and_they_are_acknowledged(backend: Backend) -> None:
    timeout_ms = 3 * SHORT_SESSION_MS // 2
    idle = backend.client(timeout_ms)
    session = idle.connection.session()
    first_ms = idle.connection.acknowledged_sent_ms()
    backend.until(lambda: idle.connection.acknowledged_sent_ms() > first_ms + 1.2 * timeout_ms, "pings acknowledged")
    assert idle.connection.session() == session
    assert idle.states == [CONNECTED]


def test_acknowledged_is_when_the_request_was_sent_not_when_it_was_answered(backend: Backend) -> None:
    client = backend.client(2 * SHORT_SESSION_MS, start=False)
    assert client.connection.acknowledged_sent_ms() == -math.inf
    before_ms = backend.now_ms()
    backend.wait(client.connection.start())
    assert before_ms <= client.connection.acknowledged_sent_ms() <= backend.now_ms()
    asked_ms = backend.now_ms()
    backend.wait(client.connection.read([backend.root]))
    assert asked_ms <= client.connection.acknowledged_sent_ms() <= backend.now_ms()
    client.cut(to_client=True, to_server=False)
    read = client.connection.read([backend.root])
    asked_ms = backend.now_ms()
    backend.until(lambda: backend.now_ms() > asked_ms + SHORT_SESSION_MS / 4, "a while")
    healed_ms = backend.now_ms()
    client.heal()
    backend.wait(read)
    assert asked_ms - SHORT_SESSION_MS / 4 < client.connection.acknowledged_sent_ms() < healed_ms


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_reply_is_an_unknown_outcome_whether_or_not_it_was_applied(
    backend: Backend, client: Client, applied: bool
) -> None:
    path = backend.path("unknown")
    session = client.connection.session()
    client.lose_reply(applied=applied)
    with pytest.raises(UnknownOutcome):
        client.multi(Create(path, b"", ephemeral=True))
    until_states(client, CONNECTED, SUSPENDED, CONNECTED)
    row = client.row(path)
    assert (row is not None) is applied
    assert client.connection.session() == session == (row.stat.ephemeral_owner if row else session)
    client.create(backend.path("next"))


def test_close_while_cut_off_is_answered_and_makes_no_session_after(backend: Backend, client: Client) -> None:
    gone = backend.client(SHORT_SESSION_MS)
    gone.create(backend.path("mine"), ephemeral=True)
    gone.cut()
    until_states(gone, CONNECTED, SUSPENDED)
    waiting = gone.connection.read([backend.root])
    backend.wait(gone.connection.close())
    with pytest.raises(SessionGone):
        backend.wait(waiting)
    gone.heal()
    backend.until(lambda: client.row(backend.path("mine")) is None, "the ephemeral gone")
    assert gone.states == [CONNECTED, SUSPENDED, CLOSED]
    assert gone.connection.session() == 0


def test_close_on_a_link_that_is_cut_but_not_yet_known_to_be_is_answered(backend: Backend) -> None:
    client = backend.client(SHORT_SESSION_MS)
    client.cut()
    pending = client.connection.multi([Create(backend.path("x"), b"")])
    backend.wait(client.connection.close())
    with pytest.raises(SessionGone):
        backend.wait(pending)
    assert client.states[-1] is CLOSED


def test_the_last_zxid_is_the_highest_that_a_reply_carried(backend: Backend, client: Client) -> None:
    """Whatever else changes meanwhile: sessions of other tests may end on the same server."""
    client.create(backend.path("one"))
    created = client.there(backend.path("one")).stat.czxid
    carried = client.connection.last_zxid()
    assert carried >= created
    other = backend.client()
    other.create(backend.path("two"))
    later = other.there(backend.path("two")).stat.czxid
    assert client.connection.last_zxid() == carried < later
    assert backend.wait(client.connection.read([])).zxid == client.connection.last_zxid() >= later


def test_a_request_that_is_too_large_breaks_the_connection_and_is_not_applied(backend: Backend, client: Client) -> None:
    path = backend.path("large")
    client.create(path, b"small")
    with pytest.raises(UnknownOutcome):
        client.multi(SetData(path, b"x" * MAX_REQUEST_BYTES, 0))
    until_states(client, CONNECTED, SUSPENDED, CONNECTED)
    assert client.there(path).data == b"small"
