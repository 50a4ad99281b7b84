"""Whose turn it is on the network's loop: connections in turn, large requests in slices, jobs on threads."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.broker.request_context import Gate, Job, JobLane, Respond, Steps
from controller.broker.security.principal import Requester
from controller.hosts.network import (
    PIECE_BYTES,
    REST_AFTER_S,
    REST_S,
    LoopScheduler,
    NetworkThread,
    _CountingSelector,
)
from controller.hosts.request_stages import RequestStages
from controller.hosts.sending import SendQueue
from controller.hosts.server import ACCEPTED_AT_ONCE, LARGE_BYTES, ServerLimits
from controller.protocol.framing import framed
from controller.storage.disk import Device, FileRange
from controller.storage.disk_files import FileDisk
from tests.hosts.harness import running_network
from tests.hosts.test_server import DEADLINE_S, Serving, read, serving_with
from tests.processes import eventually

FRAMES = 50


@pytest.fixture
def serving() -> Iterator[Serving]:
    with serving_with(ServerLimits(1_000)) as serving:
        yield serving


@pytest.fixture
def network() -> Iterator[NetworkThread]:
    with running_network() as network:
        yield network


def test_connections_with_many_requests_take_turns(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("server", "network"):
        monkeypatch.setattr(f"controller.hosts.{module}.TURN_S", 0.0)  # a turn is one request
    with closing(serving.connect()) as one, closing(serving.connect()) as other:
        for connection in (one, other):
            connection.sendall(framed(b"first"))
            assert read(connection) == b"first"
        serving.echo.received.clear()
        standing = threading.Event()
        serving.server.network.loop.call_soon_threadsafe(standing.wait, DEADLINE_S)
        one.sendall(framed(b"one") * FRAMES)
        other.sendall(framed(b"other") * FRAMES)
        standing.set()
        for connection, answer in ((one, b"one"), (other, b"other")):
            assert [read(connection) for _ in range(FRAMES)] == [answer] * FRAMES
    runs = [(frame, len([*those])) for frame, those in groupby(serving.echo.received)]
    assert len(serving.echo.received) == 2 * FRAMES
    assert len(runs) > FRAMES, "as many of one connection at once as of the other"


def test_a_request_in_many_slices_lets_others_be_answered_and_its_own_connection_wait(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.hosts.network.TURN_S", 0.0)
    other_answered = threading.Event()
    slices = []

    def receive(frame: bytes, respond: Respond, client: Requester) -> Steps | None:
        if frame != b"long":
            serving.echo.receive(frame, respond, client)
            return None

        def steps() -> Steps:
            while not other_answered.is_set():
                slices.append(1)
                yield None
            respond([b"long"])

        return steps()

    serving.server.receive = receive
    with closing(serving.connect()) as one, closing(serving.connect()) as other:
        one.sendall(framed(b"long") + framed(b"next"))
        eventually(lambda: len(slices) > 10, "it has begun")
        other.sendall(framed(b"other"))
        assert read(other) == b"other"
        assert serving.echo.received == [b"other"], "the next request of the same connection waits"
        other_answered.set()
        assert [read(one), read(one)] == [b"long", b"next"]


FETCHES = {
    "follower": b"\0\x01\0\x0b\0\0\0\x01\xff\xff\0\0\0\x02",
    "client": b"\0\x01\0\x0b\0\0\0\x01\xff\xff\xff\xff\xff\xff",
}


@pytest.mark.parametrize("first", ["follower", "client"])
def test_a_followers_fetch_is_read_after_what_clients_sent(serving: Serving, first: str) -> None:
    """Planted: read both in the order in which they came. A follower then fetched each produce on its own."""
    stands, standing = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        standing.wait(DEADLINE_S)

    serving.server.stages = RequestStages()
    second = next(one for one in FETCHES if one != first)
    with closing(serving.connect()) as one, closing(serving.connect()) as other:
        for connection, who in ((one, first), (other, second)):
            connection.sendall(framed(FETCHES[who]))
            assert read(connection) == FETCHES[who]
        serving.echo.received.clear()
        serving.server.network.call(stand)
        assert stands.wait(DEADLINE_S)
        one.sendall(framed(FETCHES[first]))
        other.sendall(framed(FETCHES[second]))
        standing.set()
        assert [read(one), read(other)] == [FETCHES[first], FETCHES[second]]
    assert serving.echo.received == [FETCHES["client"], FETCHES["follower"]]


def test_many_new_connections_are_accepted_some_at_a_time(serving: Serving) -> None:
    loop, server = serving.server.network.loop, serving.server
    counts: list[int] = []
    standing = threading.Event()
    many = 5 * ACCEPTED_AT_ONCE

    def look() -> None:
        counts.append(len(server.connections))
        if counts[-1] < many:
            loop.call_soon(look)

    loop.call_soon_threadsafe(standing.wait, DEADLINE_S)
    clients = [serving.connect() for _ in range(many)]
    loop.call_soon_threadsafe(look)
    standing.set()
    try:
        eventually(lambda: bool(counts) and counts[-1] == many, "all are accepted")
    finally:
        for client in clients:
            client.close()
    assert max(after - before for before, after in pairwise([0, *counts])) <= ACCEPTED_AT_ONCE


def test_a_request_of_a_connection_that_is_closed_is_given_up(serving: Serving) -> None:
    ended = threading.Event()

    def receive(frame: bytes, respond: Respond, client: Requester) -> Steps:
        def steps() -> Steps:
            try:
                while True:
                    yield None
            finally:
                ended.set()

        begun = steps()
        next(begun)
        return begun

    serving.server.receive = receive
    with closing(serving.connect()) as connection:
        connection.sendall(framed(b"for ever"))
        eventually(lambda: serving.server.held_bytes > 0, "it is under way")
    assert ended.wait(DEADLINE_S)


def test_a_job_runs_on_another_thread_and_its_outcome_comes_back(network: NetworkThread) -> None:
    seen: list[object] = []
    done = threading.Event()
    turns = LoopScheduler(network, seen.append)

    def steps() -> Steps:
        seen.append((yield Job(threading.get_ident, JobLane.RECORDS)))
        try:
            yield Job(lambda: 1 // 0)
        except ZeroDivisionError:
            seen.append("failed")
        seen.append(threading.get_ident())
        done.set()

    turns.drive(steps())
    assert done.wait(DEADLINE_S)
    turns.close()
    job_thread, failed, loop_thread = seen
    assert failed == "failed"
    assert job_thread != loop_thread


def test_steps_end_on_the_thread_of_a_job_that_is_the_last(network: NetworkThread) -> None:
    ended_on: list[str] = []
    ended = threading.Event()

    def steps() -> Steps:
        try:
            yield Job(lambda: None, Device("8:9"), is_last=True)
        finally:
            ended_on.append(threading.current_thread().name)
            ended.set()

    LoopScheduler(network, lambda error: pytest.fail(str(error))).drive(steps())
    assert ended.wait(DEADLINE_S)
    assert ended_on == ["disk-8:9"]


def test_what_steps_let_out_is_told_and_costs_no_others(network: NetworkThread) -> None:
    errors: list[Exception] = []
    done = threading.Event()
    turns = LoopScheduler(network, errors.append)

    def broken() -> Steps:
        yield None
        raise KeyError("planted")

    def sound() -> Steps:
        yield None
        done.set()

    turns.drive(broken())
    turns.drive(sound())
    assert done.wait(DEADLINE_S)
    eventually(lambda: len(errors) == 1, "it is told")
    assert repr(errors[0]) == "KeyError('planted')"


def test_steps_wait_at_a_gate_until_others_have_left(network: NetworkThread) -> None:
    gate, go_on = Gate(1), threading.Event()
    order: list[str] = []
    done = threading.Event()
    turns = LoopScheduler(network, lambda error: order.append(repr(error)))

    def steps(name: str) -> Steps:
        yield gate
        order.append(f"{name} in")
        while not go_on.is_set():
            yield None
        order.append(f"{name} out")
        gate.leave()
        if name == "second":
            done.set()

    turns.drive(steps("first"))
    turns.drive(steps("second"))
    eventually(lambda: order == ["first in"], "one is in")
    go_on.set()
    assert done.wait(DEADLINE_S)
    assert order == ["first in", "first out", "second in", "second out"]


def test_what_arrives_does_not_wait_for_connections_that_are_never_idle(network: NetworkThread) -> None:
    turns = LoopScheduler(network, lambda error: None)
    busy, seen = [0], list[int]()
    done = threading.Event()

    def never_idle() -> None:
        busy[0] += 1
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.001:
            pass
        if not done.is_set():
            turns.wait(never_idle)

    def arrived(at: int) -> None:
        seen.append(busy[0] - at)
        if len(seen) == 20:
            done.set()
        else:
            network.loop.call_soon(arrive)

    def arrive() -> None:
        at = busy[0]
        for _ in range(5):
            turns.arrive(lambda: time.sleep(0.003))  # more than there is time for at once
        turns.arrive(lambda: arrived(at))

    for _ in range(200):
        network.call(lambda: turns.wait(never_idle))
    network.call(arrive)
    assert done.wait(DEADLINE_S)
    turns.close()
    assert max(seen) < 100, "in 20 rounds, each of which is 200 turns"


def test_large_requests_that_have_begun_to_arrive_are_read_after_small_ones() -> None:
    large = framed(b"x" * 2 * LARGE_BYTES)
    with serving_with(ServerLimits(len(large))) as serving, closing(serving.connect()) as small:
        clients = [serving.connect() for _ in range(5)]
        for client in clients:
            client.sendall(large[:-1])
        eventually(
            lambda: sum(one.arrived_bytes >= 2 * LARGE_BYTES - 1 for one in serving.server.connections) == len(clients),
            "all but the last byte has arrived",
        )
        stands, standing = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            standing.wait(DEADLINE_S)

        serving.server.network.loop.call_soon_threadsafe(stand)
        assert stands.wait(DEADLINE_S)
        for client in clients:
            client.sendall(large[-1:])
        small.sendall(framed(b"small"))
        standing.set()
        assert read(small) == b"small"
        for client in clients:
            assert read(client) == b"x" * 2 * LARGE_BYTES
            client.close()
    assert serving.echo.received[0] == b"small"


def test_giving_way_costs_no_round_when_nothing_else_waits(network: NetworkThread) -> None:
    turns = LoopScheduler(network, lambda error: None)
    order: list[str] = []
    done = threading.Event()

    def turn(name: str) -> Callable[[], None]:
        return partial(order.append, name)

    def alone_and_then_not() -> None:
        turns.give_way(turn("alone"))
        turns.wait(turn("waiting"))
        turns.give_way(turn("beside"))
        order.append("later")
        turns.give_way(done.set)

    network.call(alone_and_then_not)
    assert done.wait(DEADLINE_S)
    turns.close()
    assert order == ["alone", "later", "waiting", "beside"]


@pytest.mark.parametrize(("select_s", "rests"), [(REST_S / 5, True), (REST_S, False)])
def test_a_loop_that_is_never_idle_lets_other_threads_run(
    monkeypatch: pytest.MonkeyPatch, select_s: float, rests: bool
) -> None:
    """Planted: never rest. A thread that wanted the interpreter back waited for more than a minute."""
    now_s, rested = 0.0, list[float]()

    def perf_counter() -> float:
        nonlocal now_s
        now_s += select_s
        return now_s

    monkeypatch.setattr(
        "controller.hosts.network.time", SimpleNamespace(perf_counter=perf_counter, sleep=rested.append)
    )
    with closing(_CountingSelector()) as selector:
        while now_s < 2.5 * REST_AFTER_S:
            selector.select(0.0)
    assert rested == [REST_S] * (2 if rests else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="asked for on Linux alone")
def test_whether_others_ask_is_known_before_the_loop_comes_round(
    network: NetworkThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, to_one), (other, to_other) = socket.socketpair(), socket.socketpair()
    found: list[bool] = []

    def ask() -> None:
        for near in (one, other):
            network.loop.add_reader(near.fileno(), partial(near.recv, 10))
        network.loop.add_writer(other.fileno(), lambda: network.loop.remove_writer(other.fileno()))
        for far in (None, to_one, to_other):
            if far is not None:
                far.sendall(b"asks")
            found.append(network.others_ask(one.fileno(), PIECE_BYTES))
        monkeypatch.setattr(network._selector, "ready", 3)
        found.append(network.others_ask(one.fileno(), 2 * PIECE_BYTES))

    with one, to_one, other, to_other:
        network.call(ask)
        eventually(lambda: len(found) == 4, "it was asked")
        assert found[:3] == [False, False, True], "neither its own request, nor a socket that can be written to"
        assert not found[3], "it has not had its turn: as many were ready"
        eventually(lambda: not network.others_ask(one.fileno(), PIECE_BYTES), "it was read")
        for near in (one, other):
            network.call(partial(network.loop.remove_reader, near.fileno()))
        network.stop()


def test_a_large_answer_goes_out_although_others_ask_all_the_time(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.hosts.sending.PIECE_BYTES", 50)
    asked: list[int] = []

    def others_ask(fd: int, _: int) -> bool:
        asked.append(fd)
        return True

    monkeypatch.setattr(serving.server.network, "others_ask", others_ask)
    with closing(serving.connect()) as one:
        for size in (10, 900):
            large = bytes(size)
            one.sendall(framed(large))
            assert read(one) == large
    assert len(asked) >= 900 // 50


@pytest.mark.skipif(sys.platform != "linux", reason="asked for on Linux alone")
def test_an_answer_that_gives_way_goes_out_after_those_that_asked_while_it_was_made(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: send it in the same turn. Others then waited for both."""
    order: list[str] = []
    send = SendQueue.send
    file = FileDisk().open(str(tmp_path / "log"))
    file.append(bytes(PIECE_BYTES))

    def noted_send(queue: SendQueue, **how: bool) -> None:
        order.append("large answer" if queue.left_bytes >= PIECE_BYTES else "answer")
        send(queue, **how)

    def receive(frame: bytes, respond: Respond, _client: Requester) -> None:
        order.append(frame.decode())
        if frame == b"other":
            respond([frame])
        else:
            other.sendall(framed(b"other"))
            respond([FileRange(file, 0, PIECE_BYTES, is_recent=frame == b"latest")])

    monkeypatch.setattr(SendQueue, "send", noted_send)
    serving.server.receive = receive
    with closing(serving.connect()) as one, closing(serving.connect()) as other:
        eventually(lambda: len(serving.server.connections) == 2, "both are connected")
        for kind, expected in (
            ("behind", ["behind", "other", "answer", "large answer"]),
            ("latest", ["latest", "large answer", "other", "answer"]),
        ):
            order.clear()
            one.sendall(framed(kind.encode()))
            assert read(other) == b"other"
            assert read(one) == bytes(PIECE_BYTES)
            assert order[:4] == expected


def test_a_connection_that_is_closed_sends_its_answer_whatever_others_ask(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.hosts.sending.PIECE_BYTES", 50)

    def others_ask(_: int, __: int) -> bool:
        for connection in serving.server.connections:
            serving.server.network.loop.call_soon(connection.close)
        return True

    monkeypatch.setattr(serving.server.network, "others_ask", others_ask)
    with closing(serving.connect()) as one:
        one.sendall(framed(bytes(900)))
        assert read(one) == bytes(900)
