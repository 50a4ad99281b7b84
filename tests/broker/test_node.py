"""A whole node in virtual time over the in-memory ZooKeeper: its registration in each session, and its shutdown."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controller.broker.lifecycle import registration_data
from controller.broker.node import ACKNOWLEDGED_LIMIT_MS, Node, within
from controller.broker.settings import BrokerSettings
from controller.clock import Coro, Future, VirtualClock, spawn
from controller.core.channels import ControlRequest, Endpoint, PeerError, PeerTimedOut, PeerUnreachable
from controller.protocol.codec import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    request_head,
    response_body,
)
from controller.protocol.control import (
    SHUTDOWN_CHECKED,
    SHUTDOWN_FORCED,
    ControlledShutdownRequest,
    UpdateMetadataResponse,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.framing import Part, joined
from controller.trace import BrokerRegistered, SessionEnded, SessionStarted
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import BrokerIdInUse
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Create
from tests.broker.harness import BROKER, AskedConnection, KeptTrace, header, live, metadata, settings

TIMEOUT_MS = 2_000
LIMIT_MS = 10_000_000.0


class Channels:
    """To nobody: nothing sent is answered."""

    def announce(self, brokers: Sequence[Endpoint]) -> None:
        pass

    def send(self, broker: int, request: ControlRequest) -> None:
        pass

    def close(self) -> None:
        pass


REMAINING = b"\0\0\x02\x02t\0\0\0\0\0"
REASON = "1 partition would be left under min.insync.replicas: t-0 (1 of 2)"


class Peers:
    """Answers the n-th request as the n-th of `script` says: an error code, a partition that remains as "remaining",
    one with a reason as "held back", or an error; the last one over and over."""

    def __init__(self, *script: PeerError | str | int) -> None:
        self.script = list(script)
        self.asked: list[tuple[str, int, ControlledShutdownRequest]] = []

    def request(
        self, host: str, port: int, api_key: int, api_version: int, body: bytes, timeout_ms: float
    ) -> Future[bytes]:
        head = RequestHeader(ApiKey(api_key), api_version, 0, "1")
        value = decode_request(request_head(head) + body).value
        assert isinstance(value, ControlledShutdownRequest)
        self.asked.append((host, port, value))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, PeerError):
            return Future.failed(answer)
        if answer == "remaining":
            return Future.resolved(REMAINING + b"\0")
        if answer == "held back":
            return Future.resolved(REMAINING + b"\x01\0" + bytes((len(REASON) + 1, len(REASON) + 1)) + REASON.encode())
        return Future.resolved(int(answer).to_bytes(2, "big") + b"\x01\0")

    def connect(self, host: str, port: int, client_id: str | None = None) -> AskedConnection:
        raise AssertionError("nobody is asked twice over one connection")


class Hosted:
    """A node driven one event at a time."""

    def __init__(self, zookeeper: InMemoryZooKeeper, clock: VirtualClock, peers: Peers | None = None) -> None:
        self.clock = clock
        self.trace = KeptTrace()
        self.peers = peers or Peers(0)
        self.connection = zookeeper.connect(TIMEOUT_MS, latency=lambda: 1.0)
        self.node = Node(
            settings(),
            self.connection,
            Channels,
            self.peers,
            clock,
            self.trace,
            random.Random(5),
            wake=self._wake,
        )
        self.failure: BaseException | None = None
        self._busy = False

    def _wake(self) -> None:
        self.clock.call_later(0.0, self._next)

    def _next(self) -> None:
        event = None if self._busy or self.failure else self.node.events.take()
        if event is None:
            return
        self._busy = True
        ended = spawn(self.node.process(event))
        ended.on_done(lambda: self._ended(ended))

    def _ended(self, ended: Future[None]) -> None:
        self._busy = False
        try:
            ended.result()
        except Exception as error:  # noqa: BLE001 - what a host would end its process with
            self.failure = error
        self._wake()

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.clock.run_until(condition, self.clock.now_ms() + LIMIT_MS), "did not happen"

    def run(self, task: Coro[Any]) -> float:
        """Runs it to its end; how many virtual milliseconds it took."""
        began_ms = self.clock.now_ms()
        ended = spawn(task)
        self.until(lambda: ended.done)
        ended.result()
        return self.clock.now_ms() - began_ms

    def tell(self, controller: int, *brokers: int) -> None:
        told = metadata(controller_id=controller, brokers=live(*brokers), broker_epoch=-1)
        answers: list[Sequence[Part] | None] = []
        self.node.broker.receive(encode_request(header(ApiKey.UPDATE_METADATA, 7), told), answers.append)
        self.until(lambda: bool(answers))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def zookeeper(clock: VirtualClock) -> InMemoryZooKeeper:
    return InMemoryZooKeeper(clock, tick_ms=500)


@pytest.fixture
def hosted(zookeeper: InMemoryZooKeeper, clock: VirtualClock) -> Hosted:
    """Registered, and controller."""
    under_test = Hosted(zookeeper, clock)
    under_test.node.start()
    under_test.until(lambda: under_test.node.controller.active)
    return under_test


def test_a_first_start_makes_the_tree_the_cluster_id_and_the_registration(
    hosted: Hosted, zookeeper: InMemoryZooKeeper
) -> None:
    for path in paths.PERSISTENT_PATHS:
        row = zookeeper.row(path)
        assert row is not None
        assert row.data in (None, b""), path
    row = zookeeper.row(paths.broker(BROKER))
    assert row is not None
    assert hosted.node.registered.result() == row.stat.czxid == hosted.node.identity.broker_epoch
    assert (row.stat.ephemeral_owner, row.stat.version) == (hosted.node.client.session(), 1)
    cluster_id = zookeeper.row(paths.CLUSTER_ID)
    assert cluster_id is not None
    assert json.loads(cluster_id.data or b"")["id"] == hosted.node.identity.cluster_id
    assert len(hosted.node.identity.cluster_id or "") == 22
    assert hosted.trace.events(BrokerRegistered) == [BrokerRegistered(BROKER, row.stat.czxid, row.stat.ephemeral_owner)]


def test_a_registrations_bytes_are_kafkas() -> None:
    """The bytes of broker 2 in a real cluster's /brokers/ids, and of a broker with a rack under an older protocol."""
    given = {"broker.id": "2", "listeners": "PLAINTEXT://127.0.0.1:19093"}
    assert registration_data(settings(**given), 1795248187109) == (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:19093"],"jmx_port":-1,"port":19093,"host":"127.0.0.1","version":5,'
        b'"timestamp":"1795248187109"}'
    )
    older = json.loads(registration_data(settings(inter_broker_protocol_version="2.6", broker_rack="r1"), 1))
    assert (older["version"], older["rack"], "features" in older) == (4, "r1", False)


def test_s29_a_new_session_is_a_new_life(hosted: Hosted, zookeeper: InMemoryZooKeeper) -> None:
    first = hosted.node.identity.broker_epoch
    zookeeper.expire(hosted.node.client.session())
    hosted.until(lambda: hosted.node.identity.broker_epoch > first and hosted.node.controller.active)
    kinds = [type(event) for event in hosted.trace.events((SessionStarted, SessionEnded, BrokerRegistered))]  # type: ignore[arg-type]
    assert kinds == [SessionStarted, BrokerRegistered, SessionEnded, SessionStarted, BrokerRegistered]
    answers: list[Sequence[Part] | None] = []
    late = encode_request(header(ApiKey.UPDATE_METADATA, 7), metadata(broker_epoch=first, controller_epoch=9))
    hosted.node.broker.receive(late, answers.append)
    assert answers[0] is not None
    _, answer = decode_response(ApiKey.UPDATE_METADATA, 7, joined(answers[0]))
    assert answer == UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH)


def test_s09_a_start_without_zookeeper_goes_on_until_there_is_one(
    zookeeper: InMemoryZooKeeper, clock: VirtualClock
) -> None:
    hosted = Hosted(zookeeper, clock)
    zookeeper.stop()
    hosted.node.start()
    clock.advance_to(600_000.0)
    assert not hosted.node.registered.done
    zookeeper.start()
    hosted.until(lambda: hosted.node.controller.active)


def test_s09_a_start_that_zookeeper_leaves_half_done_is_taken_up_again(
    zookeeper: InMemoryZooKeeper, clock: VirtualClock
) -> None:
    hosted = Hosted(zookeeper, clock)
    hosted.node.start()
    hosted.until(lambda: zookeeper.row(paths.BROKER_TOPICS) is not None)
    zookeeper.stop()
    clock.advance_to(clock.now_ms() + 600_000.0)
    assert not hosted.node.registered.done
    zookeeper.start()
    hosted.until(lambda: hosted.node.controller.active)
    assert hosted.failure is None


def test_an_id_in_use_is_told_and_not_tried_for_ever(zookeeper: InMemoryZooKeeper, clock: VirtualClock) -> None:
    other = zookeeper.connect(TIMEOUT_MS)
    started = other.start()
    assert clock.run_until(lambda: started.done, LIMIT_MS)
    registration = Create(paths.broker(BROKER), b"{}", ephemeral=True)
    created = other.multi([Create("/brokers", None), Create(paths.BROKER_IDS, None), registration])
    assert clock.run_until(lambda: created.done, LIMIT_MS)
    hosted = Hosted(zookeeper, clock)
    hosted.node.start()
    hosted.until(lambda: hosted.node.registered.done)
    with pytest.raises(BrokerIdInUse):
        hosted.node.registered.result()
    hosted.until(lambda: isinstance(hosted.failure, BrokerIdInUse))


def test_a_shutdown_asks_the_controller_resigns_and_ends_the_session(
    hosted: Hosted, zookeeper: InMemoryZooKeeper
) -> None:
    hosted.tell(2, 1, 2)
    hosted.run(hosted.node.shut_down())
    ((host, port, asked),) = hosted.peers.asked
    assert (host, port) == ("127.0.0.1", 9092)
    assert (asked.broker_id, asked.broker_epoch) == (BROKER, hosted.node.identity.broker_epoch)
    assert not hosted.node.controller.active
    assert zookeeper.row(paths.broker(BROKER)) is None
    assert zookeeper.row(paths.CONTROLLER) is None
    assert isinstance(hosted.trace.recorder.records[-1].event, SessionEnded)


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (["remaining", 0], 2),
        ([ErrorCode.NOT_CONTROLLER, PeerUnreachable("planted"), 0], 3),
        ([PeerTimedOut("planted")], 3),
        ([ErrorCode.STALE_BROKER_EPOCH], 3),
    ],
)
def test_a_shutdown_asks_a_bounded_number_of_times(
    zookeeper: InMemoryZooKeeper, clock: VirtualClock, script: list[PeerError | str | int], asked: int
) -> None:
    hosted = Hosted(zookeeper, clock, Peers(*script))
    hosted.node.start()
    hosted.until(lambda: hosted.node.controller.active)
    hosted.tell(2, 1, 2)
    took_ms = hosted.run(hosted.node.shut_down())
    assert len(hosted.peers.asked) == asked
    assert took_ms < 3 * 5_000 + 100
    unmoved = any("going all the same" in note for note in hosted.trace.notes("warning"))
    assert unmoved == (script[-1] != 0)


def test_a_broker_that_is_held_back_says_why_and_goes_when_its_attempts_are_used_up(
    zookeeper: InMemoryZooKeeper, clock: VirtualClock
) -> None:
    hosted = Hosted(zookeeper, clock, Peers("held back"))
    hosted.node.start()
    hosted.until(lambda: hosted.node.controller.active)
    hosted.tell(2, 1, 2)
    assert hosted.run(hosted.node.shut_down()) < 3 * 5_000 + 100
    assert [asked.manner for _, _, asked in hosted.peers.asked] == [SHUTDOWN_CHECKED] * 3
    why = f"1 partitions are still this broker's: t-0; {REASON}"
    assert hosted.trace.notes("warning")[-4:] == [
        *(f"controlled shutdown, {attempt} of 3: {why}" for attempt in (1, 2, 3)),
        f"going all the same, as the attempts are used up: {why}",
    ]
    assert zookeeper.row(paths.broker(BROKER)) is None


def test_a_broker_may_be_told_to_go_by_force(zookeeper: InMemoryZooKeeper, clock: VirtualClock) -> None:
    hosted = Hosted(zookeeper, clock)
    forced: BrokerSettings = settings(camerlengo_controlled_shutdown_check="false")
    hosted.node.settings = forced
    hosted.node.start()
    hosted.until(lambda: hosted.node.controller.active)
    hosted.tell(2, 1, 2)
    hosted.run(hosted.node.shut_down())
    assert [asked.manner for _, _, asked in hosted.peers.asked] == [SHUTDOWN_FORCED]


def test_a_shutdown_does_not_sit_out_its_backoff_once_another_controller_is_known(hosted: Hosted) -> None:
    hosted.peers.script = [ErrorCode.NOT_CONTROLLER, 0]
    hosted.tell(2, 1, 2, 3)
    hosted.clock.call_later(100.0, lambda: hosted.tell(3, 1, 2, 3))
    # No broker answers anything here, so that this controller waits its whole time for its last words to be heard.
    assert hosted.run(hosted.node.shut_down()) < ACKNOWLEDGED_LIMIT_MS + 300.0
    assert [port for _, port, _ in hosted.peers.asked] == [9092, 9093]


@pytest.mark.parametrize("known", [True, False])
def test_s20_a_shutdown_without_zookeeper_is_bounded(hosted: Hosted, zookeeper: InMemoryZooKeeper, known: bool) -> None:
    """KAFKA-9189. With the controller's address in the metadata or without it, and a handler that waits in vain."""
    if known:
        hosted.tell(2, 1, 2)
    zookeeper.stop()
    hosted.clock.advance_to(hosted.clock.now_ms() + 10_000.0)
    took_ms = hosted.run(hosted.node.shut_down())
    assert took_ms < 20_000.0
    assert len(hosted.peers.asked) == (1 if known else 0)


def test_a_shutdown_before_the_registration_is_no_shutdown_to_control(
    zookeeper: InMemoryZooKeeper, clock: VirtualClock
) -> None:
    hosted = Hosted(zookeeper, clock)
    zookeeper.stop()
    hosted.node.start()
    assert hosted.run(hosted.node.shut_down()) < 10_000.0
    assert hosted.peers.asked == []


def test_a_broker_may_be_told_not_to_ask(zookeeper: InMemoryZooKeeper, clock: VirtualClock) -> None:
    hosted = Hosted(zookeeper, clock)
    unasked: BrokerSettings = settings(controlled_shutdown_enable="false")
    hosted.node.settings = unasked
    hosted.node.start()
    hosted.until(lambda: hosted.node.controller.active)
    hosted.run(hosted.node.shut_down())
    assert hosted.peers.asked == []


def test_within_says_which_came_first(clock: VirtualClock) -> None:
    early: Future[None] = Future()
    outcome = within(early, clock, 10.0)
    early.resolve(None)
    clock.advance_to(20.0)
    assert outcome.result()
    late: Future[None] = Future()
    outcome = within(late, clock, 10.0)
    clock.advance_to(40.0)
    late.resolve(None)
    assert not outcome.result()


def test_the_planted_answers_are_the_protocols() -> None:
    """What `Peers` answers with is what its test means."""
    for body, remaining in ((b"\0\0\x01\0", 0), (b"\0\0\x02\x02t\0\0\0\0\0\0", 1)):
        _, value = decode_response(ApiKey.CONTROLLED_SHUTDOWN, 3, b"\0\0\0\x2a\0" + body)
        assert len(value.remaining_partitions) == remaining  # type: ignore[attr-defined]
        assert response_body(ApiKey.CONTROLLED_SHUTDOWN, 3, b"\0\0\0\x2a\0" + body)[1] == body
