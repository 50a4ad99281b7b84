"""The network in memory: order, cuts, and processes at either end that stand still or die."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from controller.clock import Future, VirtualClock
from controller.core.channels import PeerError, PeerTimedOut, PeerUnreachable
from controller.machine.process import Process, ProcessClock
from controller.protocol import ApiKey, ErrorCode, RequestHeader, decode_request, encode_request_body, encode_response
from controller.protocol.control import UpdateMetadataRequest, UpdateMetadataResponse
from controller.simulator.network import Address, Network, Socket
from controller.simulator.requests import BrokerConnection, SimulatedPeers

SERVER: Address = ("server", 9092)
NOBODY: Address = ("nobody", 9092)


class World:
    """Node 1 dials, node 2 listens."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = VirtualClock()
        draw = random.Random(seed).uniform
        self.network = Network(
            self.clock, lambda source, target: draw(0.1, 5.0), lambda address: 2 if address == SERVER else 3
        )
        self.near, self.far = Process("near"), Process("far")
        self.accepted: list[Socket] = []
        self.take: Callable[[Socket], None] = self.accepted.append
        self.network.listen(self.far, SERVER, lambda socket: self.take(socket))

    def dial(self, address: Address = SERVER) -> tuple[Socket, list[bool]]:
        answers: list[bool] = []
        return self.network.dial(1, self.near, address, answers.append), answers

    def connected(self) -> tuple[Socket, Socket]:
        near, answers = self.dial()
        self.pass_ms(20)
        assert answers == [True]
        return near, self.accepted[-1]

    def pass_ms(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)


def frames(socket: Socket) -> list[bytes]:
    got: list[bytes] = []
    socket.on_frame = got.append
    return got


def closings(socket: Socket) -> list[bool]:
    seen: list[bool] = []
    socket.on_closed = lambda: seen.append(True)
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_in_the_order_they_were_sent_both_ways(seed: int) -> None:
    world = World(seed)
    near, far = world.connected()
    to_far, to_near = frames(far), frames(near)
    sent = [bytes([number]) for number in range(50)]
    for frame in sent:
        near.send(frame)
        far.send(frame)
        world.pass_ms(0.3)
    world.pass_ms(50)
    assert to_far == to_near == sent


def test_where_nobody_listens_the_connection_is_refused() -> None:
    world = World()
    _, answers = world.dial(NOBODY)
    world.pass_ms(20)
    assert answers == [False]
    world.far.die()
    _, answers = world.dial()
    world.pass_ms(20)
    assert answers == [False]


def test_an_address_is_free_again_only_after_its_process_died() -> None:
    world = World()
    with pytest.raises(ValueError, match="taken by far"):
        world.network.listen(Process("other"), SERVER, world.accepted.append)
    world.far.die()
    world.network.listen(Process("other"), SERVER, world.accepted.append)
    _, answers = world.dial()
    world.pass_ms(20)
    assert answers == [True]


def test_a_cut_link_hangs_and_delivers_when_it_is_healed() -> None:
    world = World()
    near, far = world.connected()
    to_far, to_near = frames(far), frames(near)
    near.send(b"on its way")
    world.network.cut(1, 2)
    near.send(b"cut")
    far.send(b"reply")
    _, answers = world.dial()
    world.pass_ms(60_000)
    assert (to_far, to_near, answers) == ([], [], [])
    world.network.heal(1, 2)
    world.pass_ms(20)
    assert (to_far, to_near, answers) == ([b"on its way", b"cut"], [b"reply"], [True])


def test_a_cut_link_is_directed_by_who_opens_it() -> None:
    world = World()
    near, far = world.connected()
    to_far = frames(far)
    world.network.cut(2, 1)
    near.send(b"passes")
    world.pass_ms(20)
    assert to_far == [b"passes"]


def test_a_killed_process_resets_its_connections_and_a_cut_one_after_healing() -> None:
    world = World()
    near, far = world.connected()
    other, _ = world.connected()
    first, second = closings(near), closings(other)
    frames(far)
    world.far.die()
    world.pass_ms(20)
    assert first == second == [True]
    world = World()
    near, far = world.connected()
    seen = closings(near)
    world.network.cut(1, 2)
    world.far.die()
    world.pass_ms(60_000)
    assert seen == []
    world.network.heal(1, 2)
    world.pass_ms(20)
    assert seen == [True]


def test_a_paused_process_has_its_connections_accepted_and_its_frames_kept() -> None:
    world = World()
    world.far.pause()
    near, answers = world.dial()
    world.pass_ms(20)
    assert answers == [True]
    assert world.accepted == []
    near.send(b"kept")
    world.pass_ms(20)
    world.far.resume()
    assert len(world.accepted) == 1


def test_after_an_own_close_nothing_is_heard_any_more() -> None:
    world = World()
    near, far = world.connected()
    heard, seen = frames(near), closings(near)
    far.send(b"too late")
    near.close()
    near.send(b"dropped")
    to_far, closed = frames(far), closings(far)
    world.pass_ms(20)
    assert (heard, seen, to_far, closed) == ([], [], [], [True])


# Requests over it.


def answering(world: World, *, after_ms: float = 0.0, delta: int = 0) -> list[int]:
    """A server that answers every UpdateMetadata, some time later, with a correlation id that is off by `delta`."""
    taken: list[int] = []

    def accept(socket: Socket) -> None:
        def take(frame: bytes) -> None:
            request = decode_request(frame)
            taken.append(request.header.correlation_id)
            header = RequestHeader(
                request.header.api_key, request.header.api_version, request.header.correlation_id + delta, None
            )
            answer = encode_response(header, UpdateMetadataResponse(int(ErrorCode.NONE)))
            world.clock.call_later(after_ms, lambda: socket.send(answer))

        socket.on_frame = take

    world.take = accept
    return taken


def asked(world: World, timeout_ms: float = 1000.0) -> Future[bytes]:
    def connect(address: Address) -> BrokerConnection:
        return BrokerConnection(world.network, 1, world.near, ProcessClock(world.clock, world.near), address, "test")

    body = encode_request_body(ApiKey.UPDATE_METADATA, 6, UpdateMetadataRequest(1, 1, (), ()))
    return SimulatedPeers(connect).request(*SERVER, ApiKey.UPDATE_METADATA, 6, body, timeout_ms)


def test_a_request_has_its_answer() -> None:
    world = World()
    taken = answering(world)
    pending = asked(world)
    world.pass_ms(100)
    assert pending.done
    assert isinstance(pending.result(), bytes)
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("slow", PeerTimedOut),
        ("cut", PeerUnreachable),
        ("cut after opening", PeerTimedOut),
        ("killed", PeerUnreachable),
        ("killed under it", PeerUnreachable),
        ("paused", PeerTimedOut),
        ("wrong answer", PeerUnreachable),
    ],
)
def test_a_request_without_an_answer_ends_with_why(fault: str, error: type[PeerError]) -> None:
    world = World()
    answering(world, after_ms=5000.0 if fault in ("slow", "killed under it") else 0.0, delta=fault == "wrong answer")
    if fault == "cut":
        world.network.cut(1, 2)
    if fault == "killed":
        world.far.die()
    if fault == "paused":
        world.far.pause()
    pending = asked(world)
    if fault == "cut after opening":
        world.pass_ms(9)
        world.network.cut(1, 2)
    if fault == "killed under it":
        world.pass_ms(100)
        world.far.die()
    world.pass_ms(10_000)
    assert pending.done
    with pytest.raises(error):
        pending.result()


def lasting(world: World, address: Address = SERVER) -> BrokerConnection:
    clock = ProcessClock(world.clock, world.near)
    peers = SimulatedPeers(lambda to: BrokerConnection(world.network, 1, world.near, clock, to, "1"))
    return peers.connect(*address, "broker-1-fetcher-0")


def ask_over(connection: BrokerConnection, timeout_ms: float = 1_000.0) -> Future[bytes]:
    body = encode_request_body(ApiKey.UPDATE_METADATA, 6, UpdateMetadataRequest(1, 1, (), ()))
    return connection.request(ApiKey.UPDATE_METADATA, 6, body, timeout_ms)


def test_a_lasting_connection_is_opened_once_and_carries_request_after_request() -> None:
    world = World()
    taken = answering(world)
    connection = lasting(world)
    for _ in range(3):
        pending = ask_over(connection)
        world.pass_ms(100)
        assert isinstance(pending.result(), bytes)
    assert taken == [1, 2, 3], "correlation ids of one connection"


def test_a_lasting_connection_that_is_closed_fails_what_was_asked_and_all_that_is() -> None:
    world = World()
    world.take = world.accepted.append  # accepted, and never answered
    connection = lasting(world)
    asking = ask_over(connection)
    world.pass_ms(100)
    connection.close()
    connection.close()
    for pending in (asking, ask_over(connection)):
        with pytest.raises(PeerUnreachable):
            pending.result()


def test_a_lasting_connection_is_not_opened_again_after_an_error_and_opening_takes_of_the_time() -> None:
    world = World()
    answering(world)
    world.network.cut(1, 2)
    connection = lasting(world)
    pending = ask_over(connection, 300.0)
    world.pass_ms(301)
    with pytest.raises(PeerError):
        pending.result()
    world.network.heal(1, 2)
    with pytest.raises(PeerUnreachable):
        ask_over(connection).result()
