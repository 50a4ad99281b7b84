"""The simulated listener: a connection's requests handled as they come, answered in their order, as the real one's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from controller.broker.request_context import Respond
from controller.clock import VirtualClock
from controller.machine.process import Process, ProcessClock
from controller.simulator.network import Address, Network, Socket
from controller.simulator.server import Server

ADDRESS: Address = ("2", 9092)
COST_MS = 1.0


@dataclass(frozen=True, slots=True)
class Range:
    """Records of a file; `there`: as many bytes of it as can still be read."""

    length: int
    there: int

    def read(self) -> bytes:
        return b"r" * min(self.length, self.there)


class World:
    """A client's socket on a server whose answers the test gives."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = Network(self.clock, lambda source, target: 1.0, lambda address: int(address[0]))
        self.server_process, self.client_process = Process("server"), Process("client")
        self.asked: list[tuple[float, bytes, Respond]] = []
        self.received: list[bytes] = []
        server = Server(self, ProcessClock(self.clock, self.server_process), lambda: COST_MS)
        self.network.listen(self.server_process, ADDRESS, server.accept)
        opened: list[bool] = []
        self.socket: Socket = self.network.dial(1, self.client_process, ADDRESS, opened.append)
        self.socket.on_frame = self.received.append
        self.pass_ms(10)
        assert opened == [True]

    def receive(self, frame: bytes, respond: Respond) -> None:
        self.asked.append((self.clock.now_ms(), frame, respond))

    def ask(self, *frames: bytes) -> None:
        for frame in frames:
            self.socket.send(frame)
        self.pass_ms(50)

    def answer(self, number: int, *parts: bytes | Range) -> None:
        self.asked[number][2](parts)

    def pass_ms(self, ms: float) -> None:
        self.clock.advance_to(self.clock.now_ms() + ms)


@pytest.fixture
def world() -> World:
    return World()


def test_requests_are_handled_without_the_one_before_having_been_answered(world: World) -> None:
    world.ask(b"1", b"2", b"3")
    assert [frame for _, frame, _ in world.asked] == [b"1", b"2", b"3"]
    times = [at for at, _, _ in world.asked]
    assert [after - before for before, after in pairwise(times)] == [COST_MS, COST_MS]


def test_they_are_answered_in_order_whatever_was_ready_first(world: World) -> None:
    world.ask(b"1", b"2", b"3")
    world.answer(2, b"three")
    world.answer(1)  # it has no response
    world.pass_ms(10)
    assert world.received == []
    world.answer(0, b"o", b"ne")
    world.pass_ms(10)
    assert world.received == [b"one", b"three"]


def test_parts_are_joined_with_the_ranges_between_them(world: World) -> None:
    world.ask(b"1")
    world.answer(0, b"head ", Range(3, 3), b" tail")
    world.pass_ms(10)
    assert world.received == [b"head rrr tail"]


def test_a_range_that_was_cut_closes_the_connection_after_the_answers_before_it(world: World) -> None:
    world.ask(b"1", b"2", b"3")
    world.answer(0, b"one")
    world.answer(1, b"head", Range(3, 2))
    world.answer(2, b"three")
    world.pass_ms(10)
    assert (world.received, world.socket.open) == ([b"one"], False)


def test_none_closes_the_connection_in_its_turn(world: World) -> None:
    world.ask(b"1", b"2")
    world.asked[1][2](None)
    world.pass_ms(10)
    assert world.socket.open
    world.answer(0, b"one")
    world.pass_ms(10)
    assert (world.received, world.socket.open) == ([b"one"], False)
