"""Channels and peers on real sockets, against a broker that answers, breaks off, keeps silent or goes away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from controller.broker.request_context import Respond
from controller.broker.security.principal import Requester
from controller.broker.settings import Address, Listener
from controller.clock import Future
from controller.core.channels import ControllerChannels, ControlRequest, Endpoint, PeerTimedOut, PeerUnreachable
from controller.hosts.network import NetworkThread
from controller.hosts.peers import PIECE_BYTES, SocketConnection, SocketPeers, socket_channels
from controller.hosts.server import ServerLimits, SocketServer
from controller.protocol.codec import (
    ApiKey,
    decode_request,
    decode_response_body,
    encode_request_body,
    encode_response_parts,
)
from controller.protocol.control import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from controller.system import HeldPorts
from controller.zookeeper.blocking import wait
from tests.hosts.harness import KeptTrace, running_network
from tests.processes import eventually
from tests.sync_points import Script, installed

VERSION = 7
DEADLINE_S = 30.0
LONG_MS = 30_000.0


class Broker:
    """Notes the number in each request (its controller epoch), and answers as `script` says, call by call: "answer",
    "break" (closes the connection without one), "silence". After the script's end it answers."""

    def __init__(self, network: NetworkThread) -> None:
        self.server = SocketServer(network, ServerLimits(1_000_000), KeptTrace())
        self.port = self.server.bind([Listener("PLAINTEXT", "127.0.0.1", 0)])["PLAINTEXT"]
        self.server.serve(self.receive)
        self.received: list[int] = []
        self.clients: set[str | None] = set()
        self.script: list[str] = []

    def receive(self, frame: bytes, respond: Respond, _client: Requester) -> None:
        request = decode_request(frame)
        assert isinstance(request.value, UpdateMetadataRequest)
        self.received.append(request.value.controller_epoch)
        self.clients.add(request.header.client_id)
        match self.script.pop(0) if self.script else "answer":
            case "answer":
                respond(encode_response_parts(request.header, UpdateMetadataResponse(request.value.controller_epoch)))
            case "break":
                respond(None)


class Events:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, event: Any) -> None:
        self.seen.append(event)


class Wired:
    def __init__(self, network: NetworkThread) -> None:
        self.network = network
        self.broker = Broker(network)
        self.events = Events()
        self.trace = KeptTrace()
        self.detour: dict[Address, Address] = {}
        self.silent_port = HeldPorts(1)
        self.holds = True

    def lead_astray(self) -> None:
        """What is dialled to the broker goes where nobody listens."""
        self.detour[("127.0.0.1", self.broker.port)] = ("127.0.0.1", self.silent_port.numbers[0])

    def dial(self, host: str, port: int) -> Address:
        return self.detour.get((host, port), (host, port))

    def channels(self, timeout_ms: float = LONG_MS) -> ControllerChannels:
        return socket_channels(
            SocketPeers(self.network, "1", self.dial),
            self.network.clock,
            self.events,
            self.trace,
            request_timeout_ms=timeout_ms,
            may_send=lambda: self.holds,
        )

    def endpoint(self, epoch: int = 60, rack: str | None = None) -> Endpoint:
        return Endpoint(2, epoch, "127.0.0.1", self.broker.port, rack)

    def await_events(self, expected: list[int]) -> None:
        eventually(lambda: len(self.events.seen) >= len(expected), f"answers {expected}, have {self.events.seen}")
        assert self.events.seen == expected


@pytest.fixture
def wired() -> Iterator[Wired]:
    with running_network() as network:
        under_test = Wired(network)
        yield under_test
        under_test.broker.server.close()
        under_test.silent_port.release()


def numbered(number: int) -> ControlRequest:
    """A request whose answer's event is its own number."""
    body = encode_request_body(ApiKey.UPDATE_METADATA, VERSION, UpdateMetadataRequest(1, number, (), ()))

    def event(answer: bytes) -> int:
        value = decode_response_body(ApiKey.UPDATE_METADATA, VERSION, answer)
        assert isinstance(value, UpdateMetadataResponse)
        return value.error_code

    return ControlRequest(ApiKey.UPDATE_METADATA, VERSION, body, event)


def test_requests_are_answered_in_order_one_after_the_other(wired: Wired) -> None:
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    for number in range(50):
        channels.send(2, numbered(number))
    wired.await_events(list(range(50)))
    assert wired.broker.received == list(range(50))
    assert wired.broker.clients == {"1"}
    channels.close()


def test_a_request_in_two_parts_arrives_whole(wired: Wired) -> None:
    """As an UpdateMetadata to many brokers is: each one's beginning, and a rest that all have in common, here too
    long to be written at once."""
    brokers = tuple(
        UpdateMetadataBroker(number, (UpdateMetadataEndpoint(9092, "h" * 250, "PLAINTEXT"),)) for number in range(3_000)
    )
    whole = encode_request_body(ApiKey.UPDATE_METADATA, VERSION, UpdateMetadataRequest(1, 7, (), brokers))
    assert len(whole) > 2 * PIECE_BYTES
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    channels.send(
        2, ControlRequest(ApiKey.UPDATE_METADATA, VERSION, whole[:16], numbered(7).response_event, whole[16:])
    )
    channels.send(2, numbered(8))
    wired.await_events([7, 8])
    assert wired.broker.received == [7, 8]
    channels.close()


def test_s33_a_request_whose_answer_was_lost_goes_first_over_the_next_connection(wired: Wired) -> None:
    """KAFKA-1738: it was sent, perhaps carried out, and its connection died: nothing may overtake it."""
    wired.broker.script = ["answer", "break", "break"]
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    for number in range(4):
        channels.send(2, numbered(number))
    wired.await_events([0, 1, 2, 3])
    assert wired.broker.received == [0, 1, 1, 1, 2, 3]
    channels.close()


def test_a_broker_that_keeps_silent_is_asked_again_after_the_timeout(wired: Wired) -> None:
    wired.broker.script = ["silence"]
    channels = wired.channels(timeout_ms=1_000.0)
    channels.announce([wired.endpoint()])
    channels.send(2, numbered(0))
    channels.send(2, numbered(1))
    wired.await_events([0, 1])
    assert wired.broker.received == [0, 0, 1]
    channels.close()


def test_a_broker_that_can_not_be_reached_yet_gets_everything_once_it_can(wired: Wired) -> None:
    wired.lead_astray()
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    channels.send(2, numbered(0))
    eventually(lambda: bool(wired.trace.notes("info")), "a failed connection is noted")
    assert "broker 2" in wired.trace.notes("info")[0]
    wired.detour.clear()
    wired.await_events([0])
    channels.close()


def test_a_channel_to_an_earlier_life_is_dropped_with_its_queue(wired: Wired) -> None:
    wired.broker.script = ["silence"]
    channels = wired.channels()
    channels.announce([wired.endpoint(epoch=60)])
    channels.send(2, numbered(0))
    channels.send(2, numbered(1))
    eventually(lambda: wired.broker.received == [0], "the first was sent")
    channels.announce([wired.endpoint(epoch=77)])
    channels.send(2, numbered(2))
    wired.await_events([2])
    assert wired.broker.received == [0, 2]
    channels.close()


def test_a_channel_that_is_announced_again_keeps_its_queue(wired: Wired) -> None:
    wired.broker.script = ["break"]
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    channels.send(2, numbered(0))
    channels.announce([wired.endpoint(rack="r1")])
    channels.send(2, numbered(1))
    wired.await_events([0, 1])
    channels.close()


def test_who_was_not_announced_can_not_be_sent_to(wired: Wired) -> None:
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    channels.announce([])
    with pytest.raises(KeyError):
        channels.send(2, numbered(0))
    channels.close()


def test_s12_nothing_goes_out_while_the_term_does_not_hold(wired: Wired) -> None:
    """A lease that is extended in time lets the requests go on, in their order."""
    channels = wired.channels()
    channels.announce([wired.endpoint()])
    channels.send(2, numbered(0))
    wired.await_events([0])
    wired.holds = False
    channels.send(2, numbered(1))
    channels.send(2, numbered(2))
    with installed(Script(DEADLINE_S)) as script:
        script.await_reached("channel: request taken", 3)
    assert wired.broker.received == [0]
    wired.holds = True
    wired.await_events([0, 1, 2])
    assert wired.broker.received == [0, 1, 2]
    channels.close()


def test_after_the_term_no_answer_becomes_an_event(wired: Wired) -> None:
    answering = threading.Event()
    release = threading.Event()

    def held(_answer: bytes) -> int:
        answering.set()
        release.wait(DEADLINE_S)
        return 99

    channels = wired.channels()
    channels.announce([wired.endpoint()])
    request = numbered(0)
    channels.send(2, ControlRequest(request.api_key, request.api_version, request.body, held))
    assert answering.wait(DEADLINE_S)
    channels.close()
    release.set()
    next_term = wired.channels()
    next_term.announce([wired.endpoint()])
    next_term.send(2, numbered(5))
    wired.await_events([5])
    next_term.close()


def ask(wired: Wired, number: int, timeout_ms: float = LONG_MS) -> int:
    request = numbered(number)
    peers = SocketPeers(wired.network, "1", wired.dial)
    answer = peers.request(
        "127.0.0.1", wired.broker.port, request.api_key, request.api_version, request.body, timeout_ms
    )
    body = wait(answer, DEADLINE_S)
    assert request.response_event is not None
    answered: int = request.response_event(body)
    return answered


def test_a_peer_is_asked_once(wired: Wired) -> None:
    assert ask(wired, 7) == 7
    assert wired.broker.received == [7]


@pytest.mark.parametrize(
    ("script", "timeout_ms", "error"), [("break", LONG_MS, PeerUnreachable), ("silence", 1_000.0, PeerTimedOut)]
)
def test_a_peer_that_does_not_answer_is_an_error_and_not_asked_again(
    wired: Wired, script: str, timeout_ms: float, error: type[Exception]
) -> None:
    wired.broker.script = [script]
    with pytest.raises(error, match=rf"127\.0\.0\.1:{wired.broker.port}"):
        ask(wired, 7, timeout_ms)
    assert wired.broker.received == [7]


def test_a_peer_that_can_not_be_reached_is_an_error(wired: Wired) -> None:
    wired.lead_astray()
    with pytest.raises(PeerUnreachable):
        ask(wired, 7)


def numbered_over(connection: SocketConnection, number: int, timeout_ms: float = LONG_MS) -> Future[bytes]:
    request = numbered(number)
    return connection.request(request.api_key, request.api_version, request.body, timeout_ms)


def test_a_lasting_connection_carries_one_request_after_another_under_its_own_name(wired: Wired) -> None:
    connection = SocketPeers(wired.network, "1", wired.dial).connect(
        "127.0.0.1", wired.broker.port, "broker-1-fetcher-0"
    )
    for number in range(5):
        assert wait(numbered_over(connection, number), DEADLINE_S)
    assert wired.broker.received == [0, 1, 2, 3, 4]
    assert wired.broker.clients == {"broker-1-fetcher-0"}
    assert len(wired.broker.server.connections) == 1
    connection.close()


@pytest.mark.parametrize(("script", "error"), [("break", PeerUnreachable), ("silence", PeerTimedOut)])
def test_a_lasting_connection_is_of_no_more_use_after_an_error(
    wired: Wired, script: str, error: type[Exception]
) -> None:
    wired.broker.script = [script]
    connection = SocketPeers(wired.network, "1", wired.dial).connect("127.0.0.1", wired.broker.port)
    for number in range(2):
        with pytest.raises(error, match=rf"127\.0\.0\.1:{wired.broker.port}"):
            wait(numbered_over(connection, number, 1_000.0), DEADLINE_S)
    assert wired.broker.received == [0]


@pytest.mark.parametrize("before_ms", [200.0, LONG_MS])
def test_each_request_over_a_lasting_connection_has_its_own_time(wired: Wired, before_ms: float) -> None:
    wired.broker.script = ["answer", "silence"]
    connection = SocketPeers(wired.network, "1", wired.dial).connect("127.0.0.1", wired.broker.port)
    assert wait(numbered_over(connection, 0, before_ms), DEADLINE_S)
    asked_ms = wired.network.clock.now_ms()
    with pytest.raises(PeerTimedOut, match="no answer in 600 ms"):
        wait(numbered_over(connection, 1, 600.0), DEADLINE_S / 2)
    assert wired.network.clock.now_ms() >= asked_ms + 600.0


@pytest.mark.parametrize("on_loop", [False, True])
def test_closing_a_lasting_connection_answers_whoever_waits_even_before_it_was_opened(
    wired: Wired, on_loop: bool
) -> None:
    wired.broker.script = ["silence"]
    connection = SocketPeers(wired.network, "1", wired.dial).connect("127.0.0.1", wired.broker.port)
    asked: list[Future[bytes]] = []

    def ask_and_close() -> None:
        asked.append(numbered_over(connection, 0))
        connection.close()
        connection.close()

    async def at_once() -> None:
        ask_and_close()

    if on_loop:
        wired.network.run(at_once(), DEADLINE_S)
    else:
        asked.append(numbered_over(connection, 0))
        eventually(lambda: wired.broker.received == [0], "the request arrived")
        connection.close()
    with pytest.raises(PeerUnreachable, match="closed at this end"):
        wait(asked[0], DEADLINE_S)


def test_a_lasting_connection_leaves_nothing_on_the_loop(wired: Wired) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks()) - 1

    before = wired.network.run(tasks(), DEADLINE_S)
    connection = SocketPeers(wired.network, "1", wired.dial).connect("127.0.0.1", wired.broker.port)
    assert wait(numbered_over(connection, 0), DEADLINE_S)
    connection.close()
    eventually(lambda: wired.network.run(tasks(), DEADLINE_S) == before, "no task is left")
    eventually(lambda: not wired.broker.server.connections, "the connection is closed")


def test_whoever_waits_for_a_peer_is_answered_when_the_network_ends() -> None:
    with running_network() as network:
        under_test = Wired(network)
        under_test.broker.script = ["silence"]
        connection = SocketPeers(network, "1", under_test.dial).connect("127.0.0.1", under_test.broker.port)
        asked = numbered_over(connection, 0)
        eventually(lambda: under_test.broker.received == [0], "the request arrived")
        under_test.silent_port.release()
    with pytest.raises(PeerUnreachable):
        wait(asked, DEADLINE_S)


def test_an_answer_that_comes_in_pieces_of_any_size_is_put_together(wired: Wired) -> None:
    """Header and size torn apart, several pieces in one, and a body of many reads."""
    for size, cut in ((1, 1), (40, 3), (70, 7), (300_000, 50_001)):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)

        async def serve(reader: Any, writer: Any, body: bytes = body, cut: int = cut) -> None:
            asked = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            frame = asked[4:8] + b"\0" + body
            answer = len(frame).to_bytes(4, "big") + frame
            for start in range(0, len(answer), cut):
                writer.write(answer[start : start + cut])
                await writer.drain()

        server = wired.network.run(asyncio.start_server(serve, "127.0.0.1", 0), DEADLINE_S)
        connection = SocketPeers(wired.network, "1", wired.dial).connect(*server.sockets[0].getsockname())
        assert wait(connection.request(ApiKey.UPDATE_METADATA, VERSION, b"", LONG_MS), DEADLINE_S) == body
        connection.close()
        wired.network.call(server.close)
