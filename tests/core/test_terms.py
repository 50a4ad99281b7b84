"""How a term begins and ends: whoever resigned does nothing more, and every callback is answered once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from controller.clock import Future, spawn
from controller.core import controller as controller_module
from controller.core.controller import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS
from controller.core.events import (
    AlterIsrRequested,
    BrokerChange,
    ControlledShutdownRequested,
    ControllerChange,
    CreatePartitionsRequested,
    CreateTopicsRequested,
    LeaderAndIsrResponseReceived,
    ReassignmentIsrChange,
    Reelect,
    SessionExpired,
    Shutdown,
    StopReplicaResponseReceived,
    TopicChange,
    UpdateMetadataResponseReceived,
)
from controller.core.leadership import HIGHEST_EPOCH, Reason, Term
from controller.protocol import control
from controller.protocol.client import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from controller.protocol.control import AlterIsrRequest, AlterIsrResponse, ControlledShutdownResponse
from controller.protocol.errors import ErrorCode
from controller.trace import ControllerElected, ControllerResigned
from controller.zookeeper import paths
from controller.zookeeper.operations import ACL, ANY_VERSION, PERM_ALL, Create, Delete, SetData
from tests.core.driving import Cluster, Host


class Answers:
    """Events with a callback of every kind, and what came back."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.events = (
            AlterIsrRequested(AlterIsrRequest(1, (), 1), self.got.append),
            ControlledShutdownRequested(1, 1, self.got.append),
            CreateTopicsRequested(CreateTopicsRequest((CreatableTopic("a", 1, 1),)), 5, self.got.append),
            CreatePartitionsRequested(
                CreatePartitionsRequest((CreatePartitionsTopic("a", 2),), 1_000), self.got.append
            ),
        )

    def errors(self) -> list[int]:
        found = []
        for answer in self.got:
            if isinstance(answer, AlterIsrResponse | ControlledShutdownResponse):
                found.append(answer.error_code)
            else:
                found.append((getattr(answer, "topics", None) or answer.results)[0].error_code)
        return found


NOT_CONTROLLER = [ErrorCode.NOT_CONTROLLER] * 4


def test_s03_a_fenced_write_ends_the_term_and_nothing_more_is_written() -> None:
    """KAFKA-6082: work is queued while /controller_epoch has moved on."""
    cluster = Cluster()
    cluster.register(2)
    host = cluster.host(1)
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"7", ANY_VERSION))
    before = cluster.server.zxid
    cluster.topic("t", {0: (1, 2)})
    cluster.until(lambda: bool(host.trace.of(ControllerResigned)))
    assert cluster.states() == {}
    assert cluster.server.zxid > before
    cluster.settle()
    # The session lives on: it stood again, above the epoch it found, and did the work in that term.
    assert [event.controller_epoch for event in host.trace.of(ControllerElected)] == [1, 8]
    assert cluster.states() == {"t-0": (1, 0, (1, 2), 0)}
    cluster.check()


def test_s04_a_handler_checks_that_it_leads_when_its_turn_comes() -> None:
    """KAFKA-4447: events queued while active, processed after the resignation."""
    cluster = Cluster()
    host = cluster.host(1)
    host.controller.resign("for the test")
    cluster.topic("t", {0: (1,)})
    answers = Answers()
    for event in (BrokerChange(), TopicChange(), *answers.events):
        host.events.put(event)
    mark = len(host.sent)
    cluster.settle()
    assert host.sent[mark:] == []
    assert cluster.states() == {}
    assert answers.errors() == NOT_CONTROLLER


def test_s19_every_queued_callback_is_answered_once_at_resignation() -> None:
    """KAFKA-10193. The queue is full of requests when the term ends; an event is being handled, too."""
    cluster = Cluster()
    host = cluster.host(1)
    answers = Answers()
    for event in answers.events:
        host.events.put(event)
    host.controller.resign("for the test")
    assert answers.errors() == NOT_CONTROLLER
    cluster.settle()
    assert len(answers.got) == 4


@pytest.mark.parametrize("which", range(4))
def test_s19_the_callback_of_the_event_in_hand_is_answered_too(which: int) -> None:
    cluster = Cluster()
    host = cluster.host(1)
    cluster.topic("a", {0: (1,)})
    cluster.settle()
    answers = Answers()
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"7", ANY_VERSION))
    session = host.client.session()
    host.events.put(answers.events[which])
    cluster.server.expire(session)
    cluster.settle()
    cluster.pass_ms(5_000)
    assert len(answers.got) == 1


def test_s11_a_batch_that_an_error_ended_does_not_reach_the_next_term() -> None:
    """KAFKA-12315: states were decided, requests gathered, then the fence failed; the second term starts clean."""
    cluster = Cluster()
    cluster.register(2, 3)
    host = cluster.host(1)
    cluster.topic("t", {0: (2, 1), 1: (1, 2), 2: (3, 2)})
    cluster.settle()
    mark = len(host.sent)
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"1", ANY_VERSION))
    cluster.unregister(2)
    cluster.settle()
    assert [event.controller_epoch for event in host.trace.of(ControllerElected)] == [1, 2]
    assert {sent.value.controller_epoch for sent in host.sent[mark:]} == {2}
    assert cluster.states() == {"t-0": (1, 2, (1,), 2), "t-1": (1, 1, (1,), 1), "t-2": (3, 1, (3,), 1)}
    cluster.check()


def test_s12_a_leader_that_is_cut_off_stops_before_its_session_ends() -> None:
    """It hears nothing from ZooKeeper, not even that the connection is gone."""
    cluster = Cluster()
    host = cluster.host(1)
    other = cluster.host(2)
    cluster.pass_ms(1_000)
    host.connection.cut()
    cut_ms = cluster.clock.now_ms()
    cluster.until(lambda: bool(host.trace.of(ControllerResigned)))
    resigned_ms = cluster.clock.now_ms()
    assert resigned_ms - cut_ms <= 2_000 * 2 / 3 + 1
    assert host.channels[-1].closed
    cluster.until(lambda: other.controller.active)
    assert cluster.clock.now_ms() > resigned_ms
    host.connection.heal()
    cluster.pass_ms(10_000)
    assert cluster.leader() is other
    assert host.controller.active_controller_id == 2
    cluster.check()


def test_s12_in_the_middle_of_a_failover_too() -> None:
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", dict.fromkeys(range(4), (1, 2)))
    host = cluster.new_host(1)
    host.start()
    cluster.until(lambda: host.controller.active)
    host.connection.cut()
    cluster.until(lambda: bool(host.trace.of(ControllerResigned)), 2_000)
    host.connection.heal()
    cluster.settle()
    cluster.pass_ms(8_000)
    assert set(cluster.states()) == {f"t-{partition}" for partition in range(4)}
    cluster.check()


def test_s10_the_gauge_says_nobody_when_nobody_leads() -> None:
    """KAFKA-16509."""
    cluster = Cluster()
    cluster.host(1)
    other = cluster.host(2)
    assert other.controller.active_controller_id == 1
    epoch = cluster.server.row(paths.CONTROLLER_EPOCH)
    assert epoch is not None
    # Nobody can win: the epoch can't be read.
    cluster.write(SetData(paths.CONTROLLER_EPOCH, b"?", ANY_VERSION), Delete(paths.CONTROLLER, ANY_VERSION))
    cluster.until(lambda: not cluster.hosts[0].controller.active)
    cluster.pass_ms(500)
    assert [host.controller.active_controller_id for host in cluster.hosts] == [-1, -1]
    cluster.write(SetData(paths.CONTROLLER_EPOCH, epoch.data, ANY_VERSION))
    cluster.pass_ms(2 * LONGEST_BACKOFF_MS)
    leader = cluster.leader()
    assert {host.controller.active_controller_id for host in cluster.hosts} == {leader.broker_id}


def test_s01_a_later_controllers_state_makes_an_earlier_one_stop() -> None:
    """KAFKA-532: the state says that its writer is later, and the fence confirms it, before anything is written."""
    cluster = Cluster()
    cluster.register(2)
    host = cluster.host(1)
    cluster.topic("t", {0: (2, 1)})
    cluster.settle()
    cluster.put(paths.CONTROLLER_EPOCH, b"9")
    cluster.state("t", 0, 2, (2, 1), 5, controller_epoch=9)
    host.events.put(ReassignmentIsrChange("t", 0))
    cluster.until(lambda: bool(host.trace.of(ControllerResigned)))
    assert cluster.states()["t-0"] == (2, 5, (2, 1), 1)


def test_a_controller_epoch_that_somebody_wrote_into_a_state_ends_no_term() -> None:
    cluster = Cluster()
    cluster.register(2)
    host = cluster.host(1)
    cluster.topic("t", {0: (2, 1)})
    cluster.settle()
    cluster.state("t", 0, 2, (2, 1), 5, controller_epoch=9)
    cluster.unregister(2)
    cluster.settle()
    assert host.trace.of(ControllerResigned) == []
    assert cluster.states()["t-0"] == (1, 6, (1,), 2)
    cluster.check()


def test_a_session_that_ends_ends_the_term_and_the_next_one_registers_again() -> None:
    """S09 (KAFKA-5473): ZooKeeper is away for minutes; the broker is back when it is."""
    cluster = Cluster()
    cluster.register(2)
    host = cluster.host(1)
    cluster.topic("t", {0: (1, 2)})
    cluster.settle()
    session = host.client.session()
    cluster.server.stop()
    cluster.pass_ms(180_000)
    assert not host.controller.active
    cluster.server.start()
    cluster.server.expire(session)
    cluster.pass_ms(10_000)
    row = cluster.server.row(paths.broker(1))
    assert row is not None
    assert row.stat.ephemeral_owner == host.client.session() != session
    cluster.check()


def test_a_term_resigned_inside_a_session_that_lives_on_is_followed_by_another() -> None:
    cluster = Cluster()
    host, other = cluster.host(1), cluster.host(2)
    host.controller.resign("for the test")
    assert host.client.watched() == frozenset({("node", paths.CONTROLLER)})
    assert host.channels[-1].closed
    assert host.controller.term is None
    assert (host.controller.term, host.controller.controller_epoch) == (None, 0)
    host.events.put(Reelect())
    cluster.settle()
    assert cluster.leader() is host
    assert not other.controller.active
    assert [event.controller_epoch for event in host.trace.of(ControllerElected)] == [1, 2]
    cluster.check()


def test_whoever_finds_another_in_its_place_resigns() -> None:
    cluster = Cluster()
    host, other = cluster.host(1), cluster.host(2)
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))
    cluster.settle()
    assert len(host.trace.of(ControllerResigned)) == 1
    assert sum(one.controller.active for one in (host, other)) == 1
    cluster.check()


def test_a_change_of_controller_that_is_none_changes_nothing() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    host.events.put(ControllerChange())
    host.events.put(Reelect())
    cluster.settle()
    assert len(host.trace.of(ControllerElected)) == 1
    assert host.controller.active


def test_shutdown_resigns_and_handles_nothing_more() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    host.events.put(Shutdown())
    host.events.put(Reelect())
    answers = Answers()
    for event in answers.events:
        host.events.put(event)
    cluster.settle()
    assert not host.controller.active
    assert answers.errors() == NOT_CONTROLLER
    assert [event.reason for event in host.trace.of(ControllerResigned)] == ["shutting down"]


# -- errors that nobody expected


class Planted(Exception):
    pass


def plant(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The first so many TopicChange events fail in the middle."""
    handler = controller_module.HANDLERS[TopicChange]
    left = [times]

    async def failing(term: Term, event: TopicChange) -> None:
        await term.zookeeper.sync(paths.BROKER_TOPICS)
        if left[0] > 0:
            left[0] -= 1
            raise Planted("in the middle")
        await handler(term, event)

    monkeypatch.setattr(controller_module, "HANDLERS", {**controller_module.HANDLERS, TopicChange: failing})
    return left


def test_an_unexpected_error_is_named_and_another_broker_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    host, other = cluster.host(1), cluster.host(2)
    plant(monkeypatch, 1)
    cluster.topic("t", {0: (1, 2)})
    cluster.pass_ms(FIRST_BACKOFF_MS * 4)
    assert len(host.failures()) == 1
    assert "TopicChange() failed: Planted('in the middle')" in host.failures()[0]
    assert "Traceback" in host.failures()[0]
    assert [event.reason for event in host.trace.of(ControllerResigned)] == [
        "TopicChange() failed: Planted('in the middle')"
    ]
    assert cluster.leader() is other
    assert cluster.states() == {"t-0": (1, 0, (1, 2), 0)}
    assert host.controller.active_controller_id == 2


def test_alone_it_stands_again_after_a_while_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    host = cluster.host(1)
    plant(monkeypatch, 5)
    elected_ms: list[float] = []
    emit = host.trace.emit

    def note_time(event: Any) -> None:
        if isinstance(event, ControllerElected):
            elected_ms.append(cluster.clock.now_ms())
            host.events.put(TopicChange())
        emit(event)

    monkeypatch.setattr(host.trace, "emit", note_time)
    cluster.topic("t", {0: (1,)})
    cluster.pass_ms(60_000)
    assert len(host.failures()) == 5
    assert len(elected_ms) == 5
    waits = [later - earlier for earlier, later in itertools.pairwise(elected_ms)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(waits)), waits
    assert cluster.states() == {"t-0": (1, 0, (1,), 0)}
    assert cluster.leader() is host


def test_the_callback_of_an_event_that_failed_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(term: Term, event: AlterIsrRequested) -> None:
        raise Planted

    cluster = Cluster()
    host = cluster.host(1)
    monkeypatch.setattr(controller_module, "HANDLERS", {AlterIsrRequested: failing})
    answers = Answers()
    host.events.put(answers.events[0])
    cluster.settle()
    assert answers.errors() == [ErrorCode.NOT_CONTROLLER]


def test_a_registration_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S09: nothing but its own registration keeps this broker from standing."""
    cluster = Cluster()
    host = cluster.new_host(1)
    register, failures = host._register, [3]

    async def failing() -> int:
        if failures[0]:
            failures[0] -= 1
            raise Planted
        return await register()

    monkeypatch.setattr(host.controller, "_register", failing)
    host.start()
    cluster.pass_ms(5_000)
    assert failures == [0]
    assert cluster.leader() is host


def test_another_events_failure_does_not_cancel_the_retry_of_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a timer of its own: a broker whose registration failed registers, whatever fails meanwhile."""
    cluster = Cluster()
    host = cluster.new_host(1)
    register, failures = host._register, [3]

    async def failing() -> int:
        if failures[0]:
            failures[0] -= 1
            host.events.put(ControllerChange())
            raise Planted
        return await register()

    change = host.controller._controller_change

    async def failing_too() -> None:
        if not host.controller.active and cluster.server.row(paths.broker(1)) is None:
            raise Planted
        await change()

    monkeypatch.setattr(host.controller, "_register", failing)
    monkeypatch.setattr(host.controller, "_controller_change", failing_too)
    host.start()
    cluster.pass_ms(15_000)
    assert failures == [0]
    assert cluster.server.row(paths.broker(1)) is not None
    assert host.controller.active


@pytest.mark.parametrize("path", [paths.CONTROLLER, paths.CONTROLLER_EPOCH])
def test_a_znode_of_the_election_that_the_broker_may_not_read_is_reported(path: str) -> None:
    cluster = Cluster()
    secret = cluster.server.connect(60_000, auth=(("digest", "admin:secret"),))
    cluster.by_hand.add(cluster.wait(secret.start()))
    cluster.wait(secret.multi([Create(path, b"7", acl=(ACL(PERM_ALL, "auth", ""),))]))
    host, other = cluster.host(1), cluster.host(2)
    cluster.pass_ms(30_000)
    for one in (host, other):
        assert not one.controller.active
        assert one.controller.obstacle is not None
        assert one.controller.obstacle.reason is Reason.NO_ACCESS
        assert any(f"{path}: its ACL does not allow this broker" in note for note in one.notes("error"))
    cluster.wait(secret.multi([Delete(path, ANY_VERSION)]))
    cluster.pass_ms(2 * LONGEST_BACKOFF_MS)
    assert cluster.leader().controller.obstacle is None


def test_a_term_dies_at_every_await_of_every_event_and_another_takes_over() -> None:
    """The host throws Resign in wherever the session ends: no await of a handler may swallow it."""
    for at in range(1, 200):
        cluster = Cluster()
        cluster.register(3)
        host = cluster.new_host(1)
        expire_at(cluster, host, at)
        host.start()
        cluster.settle()
        cluster.topic("t", {0: (3, 1)})
        cluster.settle()
        cluster.unregister(3)
        cluster.pass_ms(6_000)
        assert cluster.states() == {"t-0": (1, cluster.states()["t-0"][1], (1,), cluster.states()["t-0"][3])}, at
        cluster.check()
        if host.awaits < at:
            return
    raise AssertionError("it never came to its end")


def expire_at(cluster: Cluster, host: Host, at: int) -> None:
    """Ends the host's session as its handlers wait for the `at`-th time."""
    resume = host._resume

    def watched() -> None:
        before = host.awaits
        resume()
        if before < at == host.awaits and host.client.session():
            waiting: Future[Any] | None = host._waiting
            assert waiting is not None
            cluster.server.expire(host.client.session())

    host._resume = watched  # type: ignore[method-assign]


# -- what a term ends of, by itself


def resignations(host: Host) -> list[tuple[int, str]]:
    return [(event.controller_epoch, event.reason) for event in host.trace.of(ControllerResigned)]


REFUSED = "broker 2 refused controller epoch {}: it has seen a higher one"
RESPONSES: dict[type[Any], Any] = {
    LeaderAndIsrResponseReceived: control.LeaderAndIsrResponse,
    UpdateMetadataResponseReceived: control.UpdateMetadataResponse,
    StopReplicaResponseReceived: control.StopReplicaResponse,
}


@pytest.mark.parametrize("kind", RESPONSES)
def test_a_broker_that_has_seen_a_higher_epoch_ends_the_term_and_the_next_is_higher_by_more(kind: type[Any]) -> None:
    cluster = Cluster()
    cluster.register(2)
    host = cluster.host(1)
    epochs = [host.controller.controller_epoch]
    broker = cluster.leader().controller.term
    assert broker is not None
    life = broker.context.brokers[-1].epoch
    for error in (int(ErrorCode.STALE_BROKER_EPOCH), 999):
        host.events.put(kind(2, life, 1, RESPONSES[kind](error)))
    cluster.settle()
    name = kind.__name__.removesuffix("ResponseReceived")
    notes = [note.rpartition("] ")[2] for note in host.notes("warning")]
    assert notes == [f"broker 2 refused {name}: STALE_BROKER_EPOCH", f"broker 2 refused {name}: 999"]
    assert resignations(host) == []
    for _ in range(3):
        refusal = RESPONSES[kind](int(ErrorCode.STALE_CONTROLLER_EPOCH))
        host.events.put(kind(2, life, host.controller.controller_epoch, refusal))
        cluster.settle()
        epochs.append(host.controller.controller_epoch)
    assert epochs == [1, 1_002, 5_003, 21_004]
    assert resignations(host) == [(epoch, REFUSED.format(epoch)) for epoch in epochs[:-1]]


def test_an_epoch_that_was_lowered_is_found_by_the_failover() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (1,)})
    cluster.state("t", 0, 1, (1,), controller_epoch=7)
    cluster.put(paths.CONTROLLER_EPOCH, b"0")
    host = cluster.host(1)
    cluster.pass_ms(1_000)
    said = "controller epoch 1 is below epoch 7, which a partition's state has"
    assert resignations(host) == [(1, said)]
    assert host.controller.controller_epoch > 7
    cluster.check(errors=True)


@pytest.mark.parametrize("states", [1, 3])
def test_without_the_epochs_znode_the_next_epoch_is_above_every_states(states: int) -> None:
    cluster = Cluster()
    for partition in range(states):
        cluster.topic(f"t{partition}", {0: (1,)})
        cluster.state(f"t{partition}", 0, 1, (1,), controller_epoch=700_000 - partition)
    host = cluster.host(1)
    assert resignations(host) == []
    assert host.controller.controller_epoch == 701_001
    cluster.check(errors=True)


@pytest.mark.parametrize(
    ("highest", "ends"), [(1, False), (2, True), (HIGHEST_EPOCH - 1, True), (HIGHEST_EPOCH, False)]
)
def test_a_states_epoch_ends_a_term_below_it_unless_no_term_can_be_above(highest: int, ends: bool) -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (1,)})
    cluster.state("t", 0, 1, (1,), controller_epoch=highest)
    cluster.put(paths.CONTROLLER_EPOCH, b"0")
    host = cluster.host(1)
    assert bool(resignations(host)) == ends


def test_the_end_of_its_own_session_ends_a_term_and_that_of_another_does_not() -> None:
    cluster = Cluster()
    host = cluster.host(1)
    session = host.client.session()
    cluster.wait(spawn(host.controller.process(SessionExpired(session + 1))))
    assert [host.controller.active] == [True]
    cluster.wait(spawn(host.controller.process(SessionExpired(session))))
    assert not host.controller.active
    assert host.controller.active_controller_id == -1
    assert resignations(host) == [(1, f"session 0x{session:x} has ended")]
    cluster.wait(spawn(host.controller.process(SessionExpired(session))))


def test_what_is_in_the_way_of_every_election_is_said_each_minute_and_when_it_is_gone() -> None:
    cluster = Cluster()
    cluster.put(paths.CONTROLLER_EPOCH, b"seven")
    host = cluster.host(1)
    assert host.controller.active_controller_id == -1
    cluster.pass_ms(59_000)
    said = [note for note in host.notes("error") if "no controller can be elected: " in note]
    assert len(said) == 1
    cluster.pass_ms(20_000)
    said = [note for note in host.notes("error") if "no controller can be elected: " in note]
    assert len(said) == 2
    cluster.put(paths.CONTROLLER_EPOCH, b"7")
    cluster.pass_ms(2 * LONGEST_BACKOFF_MS)
    assert host.notes("info")[0] == "broker 1: controllers can be elected again: /controller_epoch was repaired"
    assert (host.controller.controller_epoch, host.controller.obstacle) == (8, None)
    cluster.check(errors=True)
