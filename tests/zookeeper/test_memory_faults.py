"""What the in-memory ZooKeeper does beyond what a real server can be made to do on purpose: exact times, a server that
goes down, requests that arrive after their client gave up."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from controller.clock import Future, VirtualClock
from controller.zookeeper import InMemoryZooKeeper
from controller.zookeeper.operations import Check, Create, SetData, UnknownOutcome, WatchEvent, WatchKind
from tests.zookeeper.memory_world import (
    CONNECTED,
    RECONNECT_MS,
    SUSPENDED,
    TICK_MS,
    TIMEOUT_MS,
    Listener,
    World,
)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_answered_from_inside_the_call_that_asks(world: World) -> None:
    connection, _ = world.client()
    pending = connection.read(["/"])
    answered = [pending.done]
    for _ in range(2):  # the request arrives, then its reply
        world.clock.step()
        answered.append(pending.done)
    assert answered == [False, False, True]
    assert world.clock.now_ms() == 0.0


def test_messages_take_their_latency_and_never_overtake(world: World) -> None:
    delays = iter([5.0, 5.0, 40.0, 1.0, 1.0, 7.0, 1.0, 1.0, *[0.0] * 50])
    connection, _ = world.client(lambda: next(delays))
    assert world.clock.now_ms() == 10.0
    answers: list[tuple[float, int]] = []
    for number in range(3):
        pending = connection.read(["/"])
        pending.on_done(lambda number=number: answers.append((world.clock.now_ms(), number)))  # type: ignore[misc]
    world.passes(100)
    # Sent at 10: the first takes 40 ms, so the others wait behind it; the replies take 7, 1 and 1.
    assert answers == [(57.0, 0), (57.0, 1), (57.0, 2)]


def test_a_silent_session_ends_at_the_tick_after_its_timeout(world: World) -> None:
    world.passes(130)
    connection, _ = world.client()
    world.done(connection.multi([Create("/mine", b"", ephemeral=True)]))
    connection.kill()
    heard_ms = world.clock.now_ms()
    ends_ms = ((heard_ms + TIMEOUT_MS) // TICK_MS + 1) * TICK_MS
    world.clock.advance_to(ends_ms - 1)
    assert world.server.row("/mine") is not None
    world.clock.advance_to(ends_ms)
    assert world.server.row("/mine") is None
    assert world.server.sessions() == ()


def test_what_is_acknowledged_counts_from_when_it_was_sent(world: World) -> None:
    connection, _ = world.client(lambda: 20.0)
    assert (world.clock.now_ms(), connection.acknowledged_sent_ms()) == (40.0, 0.0)
    read = connection.read(["/"])
    world.passes(39)
    assert connection.acknowledged_sent_ms() == 0.0
    world.done(read)
    assert (world.clock.now_ms(), connection.acknowledged_sent_ms()) == (80.0, 40.0)
    world.passes(TIMEOUT_MS / 3 + 40.0)
    assert connection.acknowledged_sent_ms() == 40.0 + TIMEOUT_MS / 3


def test_a_session_is_kept_by_its_pings_for_as_long_as_they_get_through(world: World) -> None:
    connection, listener = world.client(lambda: 3.0)
    session = connection.session()
    world.passes(1_000_000)
    assert connection.session() == session
    assert listener.told() == [CONNECTED]
    assert world.clock.now_ms() - connection.acknowledged_sent_ms() <= TIMEOUT_MS / 3 + 6.0


def test_silence_is_noticed_after_two_thirds_of_the_timeout_a_reset_at_once(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    world.done(connection.read(["/"]))
    answered_ms = world.clock.now_ms()
    connection.cut()
    world.passes(TIMEOUT_MS)
    assert listener.log[-1] == (answered_ms + TIMEOUT_MS * 2 / 3, SUSPENDED)
    connection.heal()
    world.passes(RECONNECT_MS + 10)
    assert listener.told()[-1] is CONNECTED
    connection.reset()
    assert listener.log[-1] == (world.clock.now_ms(), SUSPENDED)


def test_a_cut_shorter_than_that_only_delays(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    connection.cut()
    write = connection.multi([Create("/late", b"")])
    world.passes(TIMEOUT_MS / 2)
    assert not write.done
    assert world.server.row("/late") is None
    connection.heal()
    assert world.done(write) == ("/late",)
    assert listener.told() == [CONNECTED]


def test_a_request_may_be_applied_after_its_client_gave_it_up(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    connection.cut(to_client=False)
    write = connection.multi([Create("/late", b"")])
    with pytest.raises(UnknownOutcome):
        world.done(write)
    assert world.server.row("/late") is None
    connection.heal()
    assert world.clock.run_until(lambda: world.server.row("/late") is not None, world.clock.now_ms() + 10)
    assert listener.told() == [CONNECTED, SUSPENDED]


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_request_given_up_is_not_applied_once_its_session_has_come_back_elsewhere(world: World, how: str) -> None:
    latency_ms = [0.0]
    client, listener = world.client(lambda: latency_ms[0])
    world.done(client.multi([Create("/epoch", b"")]))
    if how == "reset":
        latency_ms[0] = 1_000.0
        write = client.multi([SetData("/epoch", b"late", 0)])
        client.reset()
    else:
        client.cut()
        write = client.multi([SetData("/epoch", b"late", 0)])
        world.passes(TIMEOUT_MS * 2 / 3)
        latency_ms[0] = 1_000.0
        client.heal()
    latency_ms[0] = 0.0
    with pytest.raises(UnknownOutcome):
        write.result()
    world.passes(900)
    assert listener.told() == [CONNECTED, SUSPENDED, CONNECTED]
    world.passes(1_100)
    row = world.server.row("/epoch")
    assert row is not None
    assert row.data == b""
    assert listener.told() == [CONNECTED, SUSPENDED, CONNECTED]


def test_a_server_that_was_down_has_its_data_and_its_sessions(world: World) -> None:
    connection, listener = world.client(lambda: 1.0)
    session = connection.session()
    world.done(connection.multi([Create("/mine", b"kept", ephemeral=True)]))
    write = connection.multi([Create("/never", b"")])
    world.server.stop()
    world.server.stop()
    world.passes(5)
    with pytest.raises(UnknownOutcome):
        write.result()
    world.passes(100 * TIMEOUT_MS)
    assert listener.told() == [CONNECTED, SUSPENDED]
    waiting = connection.read(["/mine"])
    late, _ = Listener(world.clock), None
    newcomer = world.server.connect(TIMEOUT_MS)
    newcomer.listen(late)
    started = newcomer.start()
    world.passes(TIMEOUT_MS)
    world.server.start()
    world.server.start()
    row = world.done(waiting).rows[0]
    assert row is not None
    assert (row.data, connection.session()) == (b"kept", session)
    assert world.done(started) in world.server.sessions()
    assert world.server.row("/never") is None


def test_a_session_that_does_not_come_back_to_a_restarted_server_ends_a_timeout_later(world: World) -> None:
    connection, _ = world.client()
    world.done(connection.multi([Create("/mine", b"", ephemeral=True)]))
    world.server.stop()
    connection.cut()
    world.passes(100 * TIMEOUT_MS)
    world.server.start()
    world.passes(TIMEOUT_MS - 1)
    assert world.server.row("/mine") is not None
    world.passes(TICK_MS + 1)
    assert world.server.row("/mine") is None


def test_a_connection_asked_for_while_the_server_goes_down_is_tried_again(world: World) -> None:
    connection, listener = world.client(lambda: 10.0)
    connection.reset()
    world.passes(RECONNECT_MS + 5)
    world.server.stop()
    world.passes(1_000)
    world.server.start()
    world.passes(RECONNECT_MS + 30)
    assert listener.told() == [CONNECTED, SUSPENDED, CONNECTED]


def test_sessions_that_fall_due_together_end_in_the_order_of_their_times(world: World) -> None:
    watcher, listener = world.client(timeout_ms=10_000)
    first, _ = world.client(timeout_ms=3_000)
    second, _ = world.client(timeout_ms=1_000)
    world.done(first.multi([Create("/first", b"", ephemeral=True)]))
    world.done(second.multi([Create("/second", b"", ephemeral=True)]))
    world.done(watcher.watch(["/first", "/second"], []))
    first.kill()
    second.kill()
    world.passes(5_000)
    assert listener.log[1:] == [
        (1_500.0, WatchEvent(WatchKind.DELETED, "/second")),
        (3_500.0, WatchEvent(WatchKind.DELETED, "/first")),
    ]


def test_the_server_tells_what_it_watches_and_forgets_it_with_the_connection(world: World) -> None:
    connection, _ = world.client()
    session = connection.session()
    world.done(connection.watch(["/", "/x"], ["/", "/x"]))
    assert world.server.watched(session) == {("node", "/"), ("node", "/x"), ("children", "/")}
    connection.reset()
    assert world.server.watched(session) == frozenset()
    world.done(connection.multi([Create("/x", b"")]))
    assert world.server.watched(0) == frozenset()


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[object]:
        world = World()
        rng = random.Random(seed)
        clients = [world.client(lambda: rng.uniform(0.1, 30.0)) for _ in range(3)]
        world.done(clients[0][0].multi([Create("/shared", b"")]))
        answers: list[object] = []

        def answered(name: str, turn: int, pending: Future[Any]) -> None:
            answers.append((world.clock.now_ms(), name, turn, repr(pending.error)))

        for turn in range(200):
            connection, _ = rng.choice(clients)
            fault = rng.choice([connection.reset, connection.cut, connection.heal, connection.pause, connection.resume])
            if rng.random() < 0.1:
                fault()
            write = connection.multi([SetData("/shared", b"%d" % turn, -1), Check("/shared", turn)])
            watch = connection.watch(["/shared"], [])
            for name, pending in (("write", write), ("watch", watch)):
                pending.on_done(partial(answered, name, turn, pending))
            world.passes(rng.uniform(0.0, 200.0))
        return [answers, [listener.log for _, listener in clients], world.server.rows()]

    assert history(1) == history(1)
    assert history(1) != history(2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tick_ms": 0}, "tick_ms 0"),
        ({"min_session_timeout_ms": 0}, "from 0 to"),
        ({"min_session_timeout_ms": 2_000, "max_session_timeout_ms": 1_000}, "from 2000 to 1000"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        InMemoryZooKeeper(VirtualClock(), **options)


def test_a_scheme_that_the_model_does_not_know_is_named(world: World) -> None:
    with pytest.raises(ValueError, match="sasl"):
        world.server.connect(auth=[("sasl", "x")])
    with pytest.raises(RuntimeError, match="once"):
        world.client()[0].start()
    with pytest.raises(KeyError):
        world.server.expire(1)
