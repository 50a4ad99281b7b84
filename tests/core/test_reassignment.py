"""Partition reassignment: by the znode and by request, to its end, back, or elsewhere; and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from controller.clock import spawn
from controller.core import reassignment
from controller.core.context import Rows
from controller.core.events import ControlledShutdownRequested
from controller.core.leadership import ControllerSettings, Term
from controller.core.reassignment import new_epoch
from controller.core.state_changes import take_in_all
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.trace import PartitionMoved, PartitionStateWritten, RequestSent, TraceEvent
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    PartitionStateZnode,
    TopicAssignment,
    encode_partition_state,
    encode_topic_assignment,
)
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from controller.zookeeper.row_writes import operation_bytes
from statemachines.reassignment import Assignment
from tests.core.deleting import ask as ask_to_delete
from tests.core.deleting import left_of, word_of
from tests.core.driving import TOPIC_ID, Cluster, Host
from tests.core.reassigning import (
    ask,
    ask_by_znode,
    asked,
    assignment,
    in_sync,
    led,
    listed,
    put_request,
    two_of_three,
)

ON_ITS_WAY = Assignment((3, 4, 2), (4,), (2,))
ADDED, REMOVED, UNNEEDED = 4, 2, 4


def test_what_the_znode_asks_for_is_carried_out_and_the_znode_goes() -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {0: (3, 4)})
    assert assignment(cluster, 0) == ON_ITS_WAY
    assert cluster.states()["t-0"][:3] == (2, 1, (2, 3))
    assert asked(cluster) == {("t", 0): (3, 4)}
    cluster.check()
    in_sync(cluster, host, 0, 2, 3, 4)
    assert assignment(cluster, 0) == Assignment((3, 4))
    assert led(cluster)["t-0"] == (3, (3, 4))
    assert asked(cluster) is None
    assert listed(cluster, host) == {}
    assert [sent.broker for sent in host.sent if word_of(sent) == "delete t-0"] == [REMOVED]
    cluster.check()


def test_the_steps_of_each_replica_are_those_of_its_machine() -> None:
    cluster, host = two_of_three()
    mark = len(host.trace.events)
    ask(cluster, host, {0: (3, 4)})
    in_sync(cluster, host, 0, 2, 3, 4)
    moves = [event for event in host.trace.events[mark:] if isinstance(event, PartitionMoved) and event.replica >= 0]
    steps: dict[int, list[str]] = {}
    for event in moves:
        steps.setdefault(event.replica, [event.source]).append(event.target)
    assert steps == {
        ADDED: ["NonExistent", "New", "Online"],
        REMOVED: ["Online", "Offline", "DeletionStarted", "DeletionSuccessful", "NonExistent"],
    }
    assert host.notes("error") == []
    whys = [event.why for event in host.trace.of(PartitionStateWritten) if event.why != "initial"]
    assert whys == ["reassignment", "alter isr", "reassigned", "replica offline"]


def test_a_leader_that_stays_leads_on_in_another_epoch() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (2, 4)})
    in_sync(cluster, host, 0, 2, 3, 4)
    assert cluster.states()["t-0"][:3] == (2, 3, (2, 4))
    whys = [event.why for event in host.trace.of(PartitionStateWritten) if event.why != "initial"]
    assert whys == ["reassignment", "alter isr", "reassignment", "replica offline"]
    cluster.check()


@pytest.mark.parametrize(
    ("target", "leader", "isr"), [((3, 2), 2, (2, 3)), ((3,), 3, (3,)), ((2,), 2, (2,)), ((2, 3), 2, (2, 3))]
)
def test_what_adds_nobody_is_done_at_once(target: tuple[int, ...], leader: int, isr: tuple[int, ...]) -> None:
    """Another order, fewer replicas, or what is so already."""
    cluster, host = two_of_three()
    assert ask(cluster, host, {0: target}) == {0: 0}
    assert assignment(cluster, 0) == Assignment(target)
    assert led(cluster)["t-0"] == (leader, isr)
    assert listed(cluster, host) == {}
    cluster.check()


def test_many_partitions_go_together() -> None:
    cluster, host = two_of_three()
    assert ask(cluster, host, {0: (3, 4), 1: (4, 2)}) == {0: 0, 1: 0}
    assert listed(cluster, host) == {"t-0": ON_ITS_WAY, "t-1": Assignment((4, 2, 3), (4,), (3,))}
    in_sync(cluster, host, 1, 3, 2, 4)
    assert listed(cluster, host) == {"t-0": ON_ITS_WAY}
    in_sync(cluster, host, 0, 2, 3, 4)
    assert led(cluster) == {"t-0": (3, (3, 4)), "t-1": (4, (2, 4))}
    cluster.check()


def test_a_target_that_an_unclean_election_brings_into_sync_ends_it() -> None:
    """Its leader has nothing left to ask for. Kafka looks at the state's znode, which the controller writes too."""
    cluster, host = two_of_three()
    cluster.topic_config("t", **{"unclean.leader.election.enable": "true"})
    ask(cluster, host, {0: (4,)})
    cluster.unregister(2, 3)
    cluster.settle()
    assert led(cluster)["t-0"] == (4, (4,))
    assert assignment(cluster, 0) == Assignment((4,))
    assert listed(cluster, host) == {}
    cluster.check()


# -- what may be asked for


@pytest.mark.parametrize(
    ("topic", "partition", "target", "error"),
    [
        ("t", 0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (3, 3), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (3, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, (3, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("t", 7, (3, 4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 7, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("none", 0, (3, 4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, (9,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_cant_be_is_refused_as_kafka_refuses_it(
    topic: str, partition: int, target: tuple[int, ...] | None, error: ErrorCode
) -> None:
    cluster, host = two_of_three()
    before = cluster.states(), len(host.sent)
    assert ask(cluster, host, {partition: target}, topic) == {partition: error}
    assert (cluster.states(), len(host.sent)) == before
    cluster.check()


def test_some_of_a_request_may_be_refused_and_the_rest_done() -> None:
    cluster, host = two_of_three()
    errors = ask(cluster, host, {0: (3, 4), 1: (9,)})
    assert errors == {0: 0, 1: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert listed(cluster, host) == {"t-0": ON_ITS_WAY}


def test_a_broker_that_is_no_controller_any_more_refuses() -> None:
    cluster, host = two_of_three()
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))
    host.events.close()
    (answer,) = put_request(host, {0: (3, 4)})
    assert (answer.error_code, answer.responses) == (ErrorCode.NOT_CONTROLLER, ())


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({7: (3, 4)}, "The partition does not exist."),
        ({0: ()}, "Empty replica list"),
        ({0: (3, 3)}, "Duplicate replica ids"),
    ],
)
def test_what_the_znode_asks_for_in_vain_is_taken_out_of_it(entries: dict[int, tuple[int, ...]], said: str) -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {**entries, 1: (4, 2)})
    assert asked(cluster) == {("t", 1): (4, 2)}
    assert listed(cluster, host) == {"t-1": Assignment((4, 2, 3), (4,), (3,))}
    assert said in " ".join(host.notes("warning"))


def test_a_znode_that_asks_for_nothing_goes_and_one_that_cant_be_read_stays() -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {})
    assert asked(cluster) is None
    cluster.put(paths.REASSIGN_PARTITIONS, b"damaged")
    cluster.settle()
    row = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert row is not None
    assert row.data == b"damaged"
    assert paths.REASSIGN_PARTITIONS in " ".join(host.notes("error"))
    assert ask(cluster, host, {0: (3, 4)}) == {0: 0}
    assert host.failures() == []
    assert host.controller.measures.figures.quarantined == 1
    ask_by_znode(cluster, {1: (3, 4)})
    assert host.controller.measures.figures.quarantined == 0
    assert listed(cluster, host)["t-1"] == Assignment((3, 4, 2), (4,), (2,))
    cluster.check(errors=True)


# -- back, or elsewhere


def test_a_cancellation_goes_back_and_what_was_begun_is_deleted() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    mark = len(host.sent)
    assert ask(cluster, host, {0: None}) == {0: 0}
    assert assignment(cluster, 0) == Assignment((3, 2))
    assert led(cluster)["t-0"] == (2, (2, 3))
    assert [sent.broker for sent in host.sent[mark:] if word_of(sent) == "delete t-0"] == [UNNEEDED]
    assert ask(cluster, host, {0: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    cluster.check()


def test_a_cancellation_takes_whoever_came_into_sync_out_again() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (4, 1)})
    in_sync(cluster, host, 0, 2, 3, 4)
    assert ask(cluster, host, {0: None}) == {0: 0}
    assert led(cluster)["t-0"] == (2, (2, 3))
    cluster.check()


def test_a_cancellation_that_leaves_the_leader_behind_elects_another() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (4, 1)})
    in_sync(cluster, host, 0, 2, 3, 4)
    cluster.unregister(2)
    cluster.unregister(3)
    cluster.settle()
    assert led(cluster)["t-0"] == (4, (4,))
    cluster.register(3)
    cluster.settle()
    in_sync(cluster, host, 0, 4, 3)
    assert ask(cluster, host, {0: None}) == {0: 0}
    assert led(cluster)["t-0"] == (3, (3,))
    cluster.check()


def test_what_would_stop_all_that_are_in_sync_is_refused() -> None:
    """Kafka cancels, and leaves a partition whose records nobody has."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (4, 1)})
    in_sync(cluster, host, 0, 2, 3, 4)
    cluster.unregister(2)
    cluster.unregister(3)
    cluster.settle()
    assert led(cluster)["t-0"] == (4, (4,))
    assert ask(cluster, host, {0: None}) == {0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert led(cluster)["t-0"] == (4, (4,))
    cluster.check()


def test_another_target_takes_over_and_what_it_needs_not_is_deleted() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    mark = len(host.sent)
    assert ask(cluster, host, {0: (3, 1)}) == {0: 0}
    assert assignment(cluster, 0) == Assignment((3, 1, 2), (1,), (2,))
    assert [sent.broker for sent in host.sent[mark:] if word_of(sent) == "delete t-0"] == [UNNEEDED]
    in_sync(cluster, host, 0, 2, 3, 1)
    assert (assignment(cluster, 0), led(cluster)["t-0"]) == (Assignment((3, 1)), (3, (3, 1)))
    cluster.check()


@pytest.mark.parametrize("died_at", [1, 2, 3, 4, None])
def test_nobody_of_another_target_leads_before_the_znode_names_it(died_at: int | None) -> None:
    """Wherever the controller dies: a partition without a leader waits for one of its ISR, and is no reason for an
    unclean election when its reassignment is replaced."""
    cluster, host = two_of_three()
    cluster.topic("u", {0: (2,)}, "BBBBBBBBQBCBBBBBBBBBBQ")
    cluster.topic_config("u", **{"unclean.leader.election.enable": "true"})
    cluster.settle()
    cluster.unregister(2)
    cluster.settle()
    ask(cluster, host, {0: (3,)}, "u")
    assert assignment(cluster, 0, "u") == Assignment((3, 2), (3,), (2,))
    host.die_at_await = None if died_at is None else host.awaits + died_at
    mark = len(host.sent)
    put_request(host, {0: (4,)}, "u")
    cluster.settle()
    assert host.dead == (died_at is not None)
    assert led(cluster)["u-0"] == (-1, (2,))
    replicas = assignment(cluster, 0, "u").replicas
    told = {sent.broker for sent in host.sent_after(mark, ApiKey.LEADER_AND_ISR)}
    assert told <= set(replicas)
    if died_at is None:
        assert replicas == (4, 2)
        cluster.register(2)
        cluster.settle()
        assert led(cluster)["u-0"] == (2, (2,))
        cluster.check()


def test_where_the_leader_is_not_needed_any_more_another_in_sync_leads_at_once() -> None:
    """The new target is not in sync, so that phase B, which elects too, has to wait."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4, 1)})
    in_sync(cluster, host, 0, 2, 3, 4)
    cluster.unregister(2, 3)
    cluster.settle()
    cluster.register(2, 3)
    cluster.settle()
    assert led(cluster)["t-0"] == (4, (4,))
    in_sync(cluster, host, 0, 4, 3)
    assert ask(cluster, host, {0: (3, 1)}) == {0: 0}
    assert led(cluster)["t-0"] == (3, (3,))
    assert assignment(cluster, 0) == Assignment((3, 1, 2), (1,), (2,))
    cluster.check()


def test_s51_a_request_that_takes_over_from_the_znode_is_what_the_next_controller_finds() -> None:
    """KAFKA-9089: the znode's entry goes in the very multi that says where the partition goes now."""
    cluster, host = two_of_three()
    ask_by_znode(cluster, {0: (3, 4), 1: (4, 2)})
    assert ask(cluster, host, {0: (3, 1)}) == {0: 0}
    assert asked(cluster) == {("t", 1): (4, 2)}
    host.kill()
    cluster.host(5)
    cluster.pass_ms(8_000)
    assert assignment(cluster, 0) == Assignment((3, 1, 2), (1,), (2,))
    assert assignment(cluster, 1) == Assignment((4, 2, 3), (4,), (3,))
    cluster.check()


# -- what it waits for


def test_s49_a_target_that_is_dead_is_waited_for() -> None:
    """KAFKA-4214: it stays pending, over the next controller too, and goes on when the broker is back."""
    cluster, host = two_of_three()
    cluster.unregister(4)
    cluster.settle()
    ask_by_znode(cluster, {0: (3, 4)})
    assert assignment(cluster, 0) == ON_ITS_WAY
    host.kill()
    second = cluster.host(5)
    cluster.pass_ms(8_000)
    assert listed(cluster, second) == {"t-0": ON_ITS_WAY}
    mark = len(second.sent)
    cluster.register(4)
    cluster.settle()
    told = [sent for sent in second.sent_after(mark, ApiKey.LEADER_AND_ISR) if sent.broker == ADDED]
    assert any(sent.states()["t-0"].is_new for sent in told)
    in_sync(cluster, second, 0, 2, 3, 4)
    assert assignment(cluster, 0) == Assignment((3, 4))
    cluster.check()


@pytest.mark.parametrize("target", [(3,), (3, 9)], ids=["a live target", "a target that is in part dead"])
def test_a_partition_that_no_live_replica_could_lead_is_led_by_one_that_is_added(target: tuple[int, ...]) -> None:
    """It never had a state, so that no replica has anything that another lacks."""
    cluster, _ = two_of_three()
    cluster.topic("u", {0: (9,)})
    cluster.settle()
    assert cluster.read_state("u", 0) is None
    ask_by_znode(cluster, {0: target}, topic="u")
    assert cluster.states()["u-0"][:3] == (3, 1 if target == (3,) else 0, (3,))
    assert (asked(cluster) is None) == (target == (3,))
    cluster.check()


def test_s53_what_is_added_may_be_made_in_any_log_directory() -> None:
    """KAFKA-10314: `is_new` for those that are added and for nobody else."""
    cluster, host = two_of_three()
    mark = len(host.sent)
    ask(cluster, host, {0: (3, 4)})
    new = {(sent.broker, sent.states()["t-0"].is_new) for sent in host.sent_after(mark, ApiKey.LEADER_AND_ISR)}
    assert new == {(2, False), (3, False), (ADDED, True)}


def test_s54_whoever_is_removed_is_out_of_the_isr_when_it_is_done() -> None:
    """KAFKA-9672: for a moment the ISR is not within the replicas that brokers are told."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    mark = len(host.sent)
    in_sync(cluster, host, 0, 2, 3, 4)
    told = [sent.states()["t-0"] for sent in host.sent_after(mark, ApiKey.LEADER_AND_ISR) if sent.broker == ADDED]
    assert [(state.isr, state.replicas) for state in told] == [((2, 3, 4), (3, 4)), ((3, 4), (3, 4))]


def test_with_nobody_of_the_target_to_lead_the_others_go_on() -> None:
    """Kafka takes the leader away, and the partition is offline though its replicas live."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (4,)})
    cluster.unregister(4)
    cluster.settle()
    cluster.state("t", 0, 2, (2, 3, 4), 5, controller_epoch=1)  # in sync as it died
    host.kill()
    second = cluster.host(5)
    cluster.pass_ms(8_000)
    assert led(cluster)["t-0"] == (2, (2, 3))
    assert listed(cluster, second) == {"t-0": Assignment((4, 2, 3), (4,), (2, 3))}
    cluster.check()


def test_a_target_that_lost_its_sync_as_it_was_to_lead_is_given_up_for_now() -> None:
    """An older leader takes the target out of the ISR under the election: the others stay, until it is back."""
    cluster, host = two_of_three(ControllerSettings(inter_broker_protocol="2.6"))
    ask(cluster, host, {0: (4,), 1: (2, 4)})
    emit, done = host.trace.emit, list[object]()

    def rewrite(event: TraceEvent) -> None:
        emit(event)
        if "partitions is in sync" in str(event) and not done:
            done.append(event)
            state = PartitionStateZnode(2, 5, (2, 3), 1)
            path = paths.partition_state("t", 0)
            cluster._admin.multi([SetData(path, encode_partition_state(state), ANY_VERSION)])

    host.trace.emit = rewrite  # type: ignore[method-assign]
    state = PartitionStateZnode(2, 4, (2, 3, 4), 1)
    cluster.put(paths.partition_state("t", 0), encode_partition_state(state))
    cluster.settle()
    assert done
    said = "t-0: no replica of the target can lead, so that the others stay"
    assert [note.rpartition("] ")[2] for note in host.notes("warning") if said in note] == [said]
    assert assignment(cluster, 0) == Assignment((4, 2, 3), (4,), (2, 3))
    assert listed(cluster, host)["t-0"] == Assignment((4, 2, 3), (4,), (2, 3))
    cluster._check_context(host)
    cluster.put(paths.partition_state("t", 0), encode_partition_state(PartitionStateZnode(2, 6, (2, 3, 4), 1)))
    cluster.settle()
    assert assignment(cluster, 0) == Assignment((4,))
    assert led(cluster)["t-0"] == (4, (4,))


def test_a_state_that_is_repaired_with_the_target_in_sync_ends_the_reassignment() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    cluster.put(paths.partition_state("t", 0), b"{")
    cluster.unregister(2)
    cluster.settle()
    assert host.controller.measures.figures.quarantined == 1
    cluster.put(paths.partition_state("t", 0), encode_partition_state(PartitionStateZnode(3, 9, (3, 4), 1)))
    cluster.settle()
    assert assignment(cluster, 0) == Assignment((3, 4))
    assert listed(cluster, host) == {}
    cluster.check(errors=True)


def test_a_request_that_is_fulfilled_leaves_the_znode_of_others_unwritten() -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {1: (4, 2)})
    before = cluster.server.row(paths.REASSIGN_PARTITIONS)
    assert ask(cluster, host, {0: (3, 2)}) == {0: 0}
    assert assignment(cluster, 0) == Assignment((3, 2))
    assert cluster.server.row(paths.REASSIGN_PARTITIONS) == before
    cluster.check()


def test_what_is_on_its_way_there_is_not_begun_again() -> None:
    cluster, host = two_of_three()
    ask_by_znode(cluster, {0: (3, 4)})
    before, mark = cluster.states(), len(host.sent)
    children, listed_paths = host.client.children, list[str]()

    def listing(some: Sequence[str]) -> Any:
        listed_paths.extend(some)
        return children(some)

    host.client.children = listing  # type: ignore[method-assign, assignment]
    ask_by_znode(cluster, {0: (3, 4)})
    assert paths.BROKER_TOPICS not in listed_paths, "every topic is known"
    assert cluster.states() == before
    assert host.sent[mark:] == []
    ask_by_znode(cluster, {0: (3, 4), 1: (3, 4)})
    assert {sent_state for sent in host.sent[mark:] for sent_state in sent.states()} == {"t-1"}
    cluster.check()


@pytest.mark.parametrize(("more", "beside"), [(-1, 1), (0, 2), (1, 2)])
def test_what_fits_beside_the_removal_goes_with_it(more: int, beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    removal, write = Delete(paths.REASSIGN_PARTITIONS, 7), SetData(paths.topic("t"), b"x" * 40, 3)
    room = operation_bytes(removal) + 2 * operation_bytes(write)
    for limits in ((room + more, 0), (0, room + more)):
        monkeypatch.setattr(reassignment, "BATCH_BYTES", limits[0])
        monkeypatch.setattr(reassignment, "ZNODE_BYTES_MAX", limits[1])
        plan = reassignment._Plan(writes=[(write, (("t", one),)) for one in range(4)])
        assert reassignment._beside(removal, plan) == [write] * beside
    monkeypatch.setattr(reassignment, "BATCH", 3)
    assert reassignment._beside(removal, plan) == [write]


def test_a_topic_that_is_made_with_the_request_for_it_is_reassigned() -> None:
    """The request is handled before the change of topics."""
    cluster, host = two_of_three()
    partitions = b'{"version":1,"partitions":[{"topic":"u","partition":0,"replicas":[3,4]}]}'
    topic = encode_topic_assignment(TopicAssignment("AAAAAAAAQACAAAAAAAAAAg", {0: (2, 3)}))
    cluster.write(Create(paths.REASSIGN_PARTITIONS, partitions), Create(paths.topic("u"), topic))
    cluster.settle()
    assert assignment(cluster, 0, "u") == Assignment((3, 4, 2), (4,), (2,))
    assert not [note for note in host.notes("warning") if "not reassigned" in note]
    cluster.check()


def test_a_topic_is_deleted_when_its_reassignment_has_ended() -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    ask_to_delete(cluster, "t")
    assert paths.delete_topic("t") in left_of(cluster, "t")
    assert ask(cluster, host, {0: None}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert ask(cluster, host, {1: (4, 2)}) == {1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    in_sync(cluster, host, 0, 2, 3, 4)
    assert left_of(cluster, "t") == []
    cluster.check()


def test_a_topic_that_waits_for_its_reassignment_is_forgotten_by_nobody() -> None:
    """A leader lets in whom its metadata shows: brokers that forgot the topic could never end what it waits for."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4), 1: (4, 2)})
    ask_to_delete(cluster, "t")
    host.kill()
    second = cluster.host(5)
    cluster.pass_ms(8_000)
    cluster.unregister(4)
    cluster.register(4)
    cluster.settle()
    assert not [sent for sent in second.sent if word_of(sent).startswith("forget")]
    second.answering = True
    in_sync(cluster, second, 0, 2, 3, 4)
    in_sync(cluster, second, 1, 3, 2, 4)
    assert paths.delete_topic("t") in left_of(
        cluster, "t"
    )  # replicas on broker 1, where nobody answers, there are none
    assert [sent for sent in second.sent if word_of(sent).startswith("forget")]


def test_older_leaders_write_states_themselves_and_the_znode_says_so() -> None:
    cluster, host = two_of_three(ControllerSettings(inter_broker_protocol="2.6"))
    ask(cluster, host, {0: (3, 4)})
    state = ("node", paths.partition_state("t", 0))
    assert state in host.client.watched()
    cluster.state("t", 0, 2, (2, 3, 4), 1, controller_epoch=1)
    cluster.settle()
    assert assignment(cluster, 0) == Assignment((3, 4))
    assert led(cluster)["t-0"] == (3, (3, 4))
    assert state not in host.client.watched()
    cluster.check()


def test_a_target_that_an_older_leader_lets_in_at_once_has_a_state() -> None:
    """The leader is among the replicas that another target does not need. The next leader is sent the new replicas with
    its election, and writes the ISR before the controller reads the state."""
    cluster, host = two_of_three(ControllerSettings(inter_broker_protocol="2.6"))
    ask(cluster, host, {0: (4, 2)})
    path = paths.partition_state("t", 0)
    cluster.put(path, encode_partition_state(PartitionStateZnode(4, 3, (4, 3), 1)))
    cluster.settle()
    emit, done = host.trace.emit, list[object]()

    def let_in(event: TraceEvent) -> None:
        emit(event)
        if isinstance(event, RequestSent) and (event.api, event.to_broker) == ("LeaderAndIsr", 1) and not done:
            leader, epoch, isr, _ = cluster.states()["t-0"]
            done.append(event)
            state = PartitionStateZnode(leader, epoch, (*isr, 1), 1)
            cluster._admin.multi([SetData(path, encode_partition_state(state), ANY_VERSION)])

    host.trace.emit = let_in  # type: ignore[method-assign]
    ask(cluster, host, {0: (3, 1)})
    assert done
    cluster.settle()
    assert host.notes("error") == []
    assert (assignment(cluster, 0), led(cluster)["t-0"]) == (Assignment((3, 1)), (3, (3, 1)))
    cluster.check()


def _meets(cluster: Cluster, partition: int) -> list[tuple[tuple[int, ...], PartitionStateZnode]]:
    """Filled at each write of topic t's znode: the partition's replicas, and its state at that moment."""
    met: list[tuple[tuple[int, ...], PartitionStateZnode]] = []

    def look(_: int, operations: Sequence[Write]) -> None:
        if any(isinstance(one, SetData) and one.path == paths.topic("t") for one in operations):
            state = cluster.read_state("t", partition)
            assert state is not None
            met.append((assignment(cluster, partition).replicas, state))

    cluster.server.on_commit(look)
    return met


def _told(host: Host, broker: int) -> list[tuple[int, tuple[int, ...]]]:
    """Leader epoch and replicas of t-0, as that broker was told them."""
    sent = [one.states() for one in host.sent if one.broker == broker and one.api is ApiKey.LEADER_AND_ISR]
    return [(one["t-0"].leader_epoch, one["t-0"].replicas) for one in sent if "t-0" in one]


@pytest.mark.parametrize("protocol", ["2.6", "2.8"])
def test_a_leader_that_shuts_down_hears_who_leaves_in_a_new_epoch(protocol: str) -> None:
    """It may stay long, if others would be left under min.insync.replicas. In the epoch that it knows, it would let
    broker 3 into the ISR after the znode has forgotten it."""
    cluster, host = two_of_three(ControllerSettings(inter_broker_protocol=protocol))
    cluster.unregister(3)
    cluster.settle()
    cluster.register(3)
    cluster.settle()
    assert led(cluster)["t-0"] == (2, (2,))
    row = cluster.server.row(paths.broker(2))
    assert row is not None
    answers: list[Any] = []
    host.events.put(ControlledShutdownRequested(2, row.stat.czxid, answers.append))
    cluster.settle()
    assert led(cluster)["t-0"] == (2, (2,))
    epoch = cluster.states()["t-0"][1]
    met = _meets(cluster, 0)
    ask_by_znode(cluster, {0: (2,)})
    assert [(replicas, state.leader, state.isr) for replicas, state in met[-1:]] == [((2,), 2, (2,))]
    assert met[-1][1].leader_epoch > epoch
    assert _told(host, 2)[-1] == (met[-1][1].leader_epoch, (2,))
    cluster.check()


def test_who_is_unneeded_is_taken_from_the_leader_though_not_in_sync() -> None:
    """The leader may be about to let it in: by a new epoch it can't any more, before the znode names it no more."""
    cluster, host = two_of_three(ControllerSettings(inter_broker_protocol="2.6"))
    ask(cluster, host, {0: (3, 4)})
    epoch = cluster.states()["t-0"][1]
    met = _meets(cluster, 0)
    ask(cluster, host, {0: (3, 1)})
    replicas, state = met[0]
    assert UNNEEDED not in replicas
    assert (state.leader, state.isr) == (2, (2, 3))
    assert state.leader_epoch > epoch
    assert (state.leader_epoch, (3, 2)) in _told(host, 2)
    assert host.notes("error") == []


@pytest.mark.parametrize(
    ("replicas", "isr", "dies", "expected"),
    [((2,), (2, 3), 2, (-1, (2,))), ((2, 4), (2, 4, 3), 2, (4, (4,))), ((2, 4), (2, 4, 3), 4, (2, (2,)))],
    ids=["the last one that the znode names", "an election", "a follower"],
)
def test_an_isr_beyond_the_assignment_comes_back_into_it(
    replicas: tuple[int, ...], isr: tuple[int, ...], dies: int, expected: tuple[int, tuple[int, ...]]
) -> None:
    """Left by a controller that did not wait for leaders to hear. Only broker 3 would remain, which has deleted it."""
    cluster, _ = two_of_three()
    cluster.topic("u", {0: replicas}, "BBBBBBBBQBCBBBBBBBBBBQ")
    cluster.state("u", 0, 2, isr, 5)
    cluster.hosts[0].kill()
    cluster.unregister(dies)
    second = cluster.host(5)
    cluster.pass_ms(8_000)
    assert second.controller.term is not None
    assert led(cluster)["u-0"] == expected
    cluster.check()


@pytest.mark.parametrize("leaving", [(), (3,)], ids=["outside", "about to be removed"])
def test_states_are_written_within_what_the_znode_names(leaving: tuple[int, ...]) -> None:
    cluster, host = two_of_three()
    cluster.topic("u", {0: (2, 4), 1: (2, 4)}, "BBBBBBBBQBCBBBBBBBBBBQ")
    cluster.settle()
    cluster.state("u", 0, 2, (2, 3, 4), 1, controller_epoch=1)
    cluster.state("u", 1, 3, (3, 2), 1, controller_epoch=1)
    term = host.controller.term
    assert term is not None
    table = term.context.partitions
    rows = np.array([table.row_of("u", 0), table.row_of("u", 1)], dtype=np.int64)
    cluster.wait(spawn(_read_again(term, rows)))
    table.leaving.update(dict.fromkeys(rows.tolist(), leaving) if leaving else {})
    cluster.wait(spawn(new_epoch(term, rows)))
    assert led(cluster)["u-0"] == (2, (2, 3, 4) if leaving else (2, 4))
    assert led(cluster)["u-1"] == (3, (3, 2))  # its leader is no replica: an election's to change
    assert {state[1] for name, state in cluster.states().items() if name.startswith("u")} == {2}


async def _read_again(term: Term, rows: Rows) -> None:
    found = await term.zookeeper.read(term.context.partitions.state_paths(rows))
    await take_in_all(term, list(zip(rows.tolist(), found.rows, strict=True)))


# -- how many at once


LIMITED = ControllerSettings(reassignments_in_cluster=1)


def test_above_the_limit_they_wait_in_the_znode_and_begin_when_there_is_room() -> None:
    cluster, host = two_of_three(LIMITED)
    assert ask(cluster, host, {0: (3, 4), 1: (4, 2)}) == {0: 0, 1: 0}
    assert (assignment(cluster, 0), assignment(cluster, 1)) == (ON_ITS_WAY, Assignment((3, 2)))
    assert asked(cluster) == {("t", 1): (4, 2)}
    assert listed(cluster, host) == {"t-0": ON_ITS_WAY, "t-1": Assignment((4, 2, 3), (4,), (3,))}
    in_sync(cluster, host, 0, 2, 3, 4)
    assert assignment(cluster, 1) == Assignment((4, 2, 3), (4,), (3,))
    in_sync(cluster, host, 1, 3, 2, 4)
    assert asked(cluster) is None
    assert led(cluster) == {"t-0": (3, (3, 4)), "t-1": (4, (2, 4))}
    cluster.check()


def test_what_waits_can_be_taken_back_or_sent_elsewhere_and_outlives_the_controller() -> None:
    cluster, host = two_of_three(LIMITED)
    ask(cluster, host, {0: (3, 4), 1: (4, 2)})
    assert ask(cluster, host, {1: None}) == {1: 0}
    assert asked(cluster) is None
    ask_by_znode(cluster, {1: (4, 2)})
    assert ask(cluster, host, {1: (1, 2)}) == {1: 0}
    assert asked(cluster) == {("t", 1): (1, 2)}
    host.kill()
    second = cluster.host(5, LIMITED)
    cluster.pass_ms(8_000)
    assert assignment(cluster, 1) == Assignment((3, 2))
    in_sync(cluster, second, 0, 2, 3, 4)
    assert assignment(cluster, 1) == Assignment((1, 2, 3), (1,), (3,))
    cluster.check()


def test_the_limit_of_a_broker_holds_up_no_other() -> None:
    cluster, host = two_of_three(ControllerSettings(reassignments_on_broker=1))
    cluster.topic("u", {0: (2, 3)}, "BBBBBBBBQBCBBBBBBBBBBQ")
    cluster.settle()
    ask(cluster, host, {0: (3, 4), 1: (4, 2)})
    ask(cluster, host, {0: (2, 1)}, "u")
    assert assignment(cluster, 0) == ON_ITS_WAY
    assert assignment(cluster, 1) == Assignment((3, 2))
    assert assignment(cluster, 0, "u").adding == (1,)


# -- what else happens to the topic meanwhile


def _expanded(cluster: Cluster, host: Host) -> None:
    more = TopicAssignment(TOPIC_ID, {0: (3, 4, 2), 1: (3, 2), 2: (1, 2)}, {0: (4,)}, {0: (2,)})
    cluster.put(paths.topic("t"), encode_topic_assignment(more))
    cluster.settle()


def _other_term(cluster: Cluster, host: Host) -> None:
    cluster.write(Delete(paths.CONTROLLER, ANY_VERSION))
    cluster.settle()


@pytest.mark.parametrize("meanwhile", [_expanded, _other_term])
def test_what_the_znode_holds_besides_is_kept(meanwhile: Callable[[Cluster, Host], None]) -> None:
    cluster, host = two_of_three()
    ask(cluster, host, {0: (3, 4)})
    meanwhile(cluster, host)
    in_sync(cluster, host, 0, 2, 3, 4)
    states: dict[str, Any] = led(cluster)
    assert states["t-0"] == (3, (3, 4))
    assert assignment(cluster, 0) == Assignment((3, 4))
    assert ("t-2" in states) == (meanwhile is _expanded)
    cluster.check()


def test_a_topic_that_waits_for_its_reassignment_is_led_until_that_has_ended() -> None:
    """In Kafka nobody is elected for it, and what waits for the reassignment waits for good."""
    cluster, host = two_of_three()
    ask(cluster, host, {0: (4,)})
    ask_to_delete(cluster, "t")
    cluster.unregister(2)
    cluster.settle()
    assert led(cluster)["t-0"] == (3, (3,))
    in_sync(cluster, host, 0, 3, 4)
    assert assignment(cluster, 0) == Assignment((4,))
    assert "replica's broker is dead" in " ".join(host.notes("info"))
    cluster.register(2)
    cluster.settle()
    assert left_of(cluster, "t") == []
    cluster.check()
