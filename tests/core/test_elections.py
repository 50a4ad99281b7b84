"""Leaders moved on purpose: by request, by znode, by the clock; and what each partition is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from controller.core.context import PartitionTable, padded
from controller.core.events import (
    AutoPreferredElection,
    ElectionKind,
    ElectionOutcome,
    ElectLeadersRequested,
    Outcomes,
    Shutdown,
    TopicPartition,
)
from controller.core.handlers.elections import to_rebalance
from controller.core.leadership import ControllerSettings
from controller.core.state_changes import take_in
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.trace import PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.codecs import PreferredElection, encode_preferred_election
from controller.zookeeper.operations import ANY_VERSION, Create, SetData
from tests.core.driving import Cluster, Host, check_written
from tests.core.test_terms import expire_at

PREFERRED, UNCLEAN = ElectionKind.PREFERRED, ElectionKind.UNCLEAN
QUIET = ControllerSettings(auto_leader_rebalance=False)


def cluster_to_balance() -> Cluster:
    """Brokers 1, 2 and 3 live, 4 does not. t-0 may go back to 2; t-1 is led as it should be; the preferred leader of
    t-2 is not in its ISR; nobody of t-3's ISR lives, and 3 does; nobody of t-4 lives at all."""
    cluster = Cluster()
    cluster.topic("t", {0: (2, 1, 3), 1: (1, 2), 2: (2, 1), 3: (4, 3), 4: (4, 5)})
    for partition, leader, isr in ((0, 1, (1, 2)), (1, 1, (1, 2)), (2, 1, (1,)), (3, 4, (4,)), (4, 4, (4,))):
        cluster.state("t", partition, leader, isr, 3)
    cluster.register(2, 3)
    return cluster


def scene(settings: ControllerSettings = QUIET) -> tuple[Cluster, Host]:
    cluster = cluster_to_balance()
    return cluster, cluster.host(1, settings)


def ask(cluster: Cluster, host: Host, kind: ElectionKind, *partitions: TopicPartition) -> dict[TopicPartition, Any]:
    answers: list[Outcomes] = []
    host.events.put(ElectLeadersRequested(kind, partitions, answers.append))
    cluster.settle()
    (outcomes,) = answers
    return {one: (outcome.error, outcome.leader) for one, outcome in outcomes.items()}


def all_of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    return tuple((topic, partition) for partition in range(count))


def put_znode(cluster: Cluster, *partitions: TopicPartition) -> None:
    cluster.write(Create(paths.PREFERRED_ELECTION, encode_preferred_election(PreferredElection(partitions))))


# -- by request


def test_a_preferred_election_by_request_says_of_each_partition_what_came_of_it() -> None:
    cluster, host = scene()
    mark = len(host.sent)
    assert ask(cluster, host, PREFERRED, *all_of("t", 6), ("none", 0)) == {
        ("t", 0): (ErrorCode.NONE, 2),
        ("t", 1): (ErrorCode.ELECTION_NOT_NEEDED, -1),
        ("t", 2): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1),
        ("t", 3): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1),
        ("t", 4): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1),
        ("t", 5): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ("none", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }
    assert cluster.states()["t-0"] == (2, 4, (1, 2), 1), "the epoch grows, the ISR is as it was"
    told = [(sent.broker, sent.api) for sent in host.sent[mark:] if "t-0" in sent.states()]
    assert told == [(broker, api) for api in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA) for broker in (1, 2, 3)]
    (written,) = [one for one in host.trace.of(PartitionStateWritten) if one.partition == 0]
    assert (written.why, written.unclean) == ("preferred", False)
    check_written(written)
    cluster.check()


def test_an_unclean_election_by_request_needs_no_config_and_takes_only_what_has_no_leader() -> None:
    cluster, host = scene()
    assert ask(cluster, host, UNCLEAN, *all_of("t", 5)) == {
        ("t", 0): (ErrorCode.ELECTION_NOT_NEEDED, -1),
        ("t", 1): (ErrorCode.ELECTION_NOT_NEEDED, -1),
        ("t", 2): (ErrorCode.ELECTION_NOT_NEEDED, -1),
        ("t", 3): (ErrorCode.NONE, 3),
        ("t", 4): (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1),
    }
    assert cluster.states()["t-3"][0:3:2] == (3, (3,))
    (written,) = [one for one in host.trace.of(PartitionStateWritten) if one.partition == 3 and one.leader == 3]
    assert written.unclean
    cluster.check()


def test_an_unclean_election_takes_the_isr_first() -> None:
    """A leader that shuts down lives still, so that nothing is elected for it; one that is gone leaves 1, in sync."""
    cluster = Cluster()
    cluster.topic("t", {0: (3, 2, 1)})
    cluster.state("t", 0, 2, (2, 1), 7)
    cluster.register(2, 3)
    host = cluster.host(1, QUIET)
    assert host.controller.term is not None
    cluster.state("t", 0, -1, (2, 1), 7)
    take_in(host.controller.term, 0, cluster.server.row(paths.partition_state("t", 0)))
    assert ask(cluster, host, UNCLEAN, ("t", 0)) == {("t", 0): (ErrorCode.NONE, 2)}
    assert cluster.states()["t-0"] == (2, 8, (2, 1), 2)
    assert not any(one.unclean for one in host.trace.of(PartitionStateWritten))


def test_a_topic_on_its_way_out_is_not_elected_for() -> None:
    cluster, host = scene()
    cluster.write(Create(paths.delete_topic("t"), None))
    cluster.settle()
    assert ask(cluster, host, PREFERRED, ("t", 0)) == {("t", 0): (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)}
    assert cluster.states()["t-0"][0] != 2


def test_a_partition_that_never_had_a_state_is_asked_for() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (7,)})
    host = cluster.host(1, QUIET)
    assert ask(cluster, host, PREFERRED, ("t", 0)) == {("t", 0): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert ask(cluster, host, UNCLEAN, ("t", 0)) == {("t", 0): (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1)}


def test_a_broker_that_shuts_down_is_not_preferred() -> None:
    cluster, host = scene()
    assert host.controller.term is not None
    host.controller.term.context.mark_shutting_down(2)
    assert ask(cluster, host, PREFERRED, ("t", 0)) == {("t", 0): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1)}


def test_a_state_that_moved_under_the_election_is_decided_anew() -> None:
    """The ISR lost the preferred leader in ZooKeeper, and the controller has not heard of it."""
    cluster, host = scene()
    cluster.state("t", 0, 1, (1,), 3)
    assert ask(cluster, host, PREFERRED, ("t", 0)) == {("t", 0): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert cluster.states()["t-0"] == (1, 3, (1,), 1)
    cluster.check(told=False)  # whoever wrote the state notifies the controller later


def test_whoever_is_not_the_controller_refuses_each_partition() -> None:
    cluster, _ = scene()
    other = cluster.host(3, QUIET)
    assert ask(cluster, other, PREFERRED, ("t", 0), ("t", 1)) == dict.fromkeys(
        (("t", 0), ("t", 1)), (ErrorCode.NOT_CONTROLLER, -1)
    )


# -- by znode


def test_the_znode_is_carried_out_and_goes() -> None:
    cluster, host = scene()
    put_znode(cluster, *all_of("t", 3), ("none", 1))
    cluster.settle()
    assert cluster.server.row(paths.PREFERRED_ELECTION) is None
    assert cluster.states()["t-0"][:2] == (2, 4)
    assert cluster.states()["t-1"][:2] == (1, 3)
    assert [note.split("] ")[1].split(",")[0] for note in host.notes("warning") if "ELECTION" not in note][-2:] == [
        "t-2: PREFERRED_LEADER_NOT_AVAILABLE",
        "none-1: UNKNOWN_TOPIC_OR_PARTITION",
    ]
    put_znode(cluster, ("t", 2))
    cluster.settle()
    assert cluster.server.row(paths.PREFERRED_ELECTION) is None, "the next one is seen too"
    cluster.check()


def test_what_nobody_carried_out_the_next_controller_does() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (2, 1)})
    cluster.state("t", 0, 1, (1, 2), 3)
    cluster.register(2)
    put_znode(cluster, ("t", 0))
    cluster.host(1, QUIET)
    assert cluster.states()["t-0"] == (2, 4, (1, 2), 1)
    assert cluster.server.row(paths.PREFERRED_ELECTION) is None
    cluster.check()


@pytest.mark.parametrize("at", range(1, 6))
def test_a_controller_that_dies_at_any_await_leaves_it_to_the_next(at: int) -> None:
    """Restarted from every prefix it ends as an undisturbed one: elected once, the znode gone."""
    cluster, host = scene()
    successor = cluster.new_host(3, QUIET)
    host.die_at_await = host.awaits + at
    put_znode(cluster, ("t", 0))
    cluster.settle()
    died = host.dead
    host.kill()
    cluster.unregister(3)
    successor.start()
    cluster.pass_ms(5_000)
    cluster.settle()
    assert died == (at <= 4), "four awaits: read, write, delete, and the look that the deletion's watch asks for"
    state = cluster.states()["t-0"]
    assert (state[0], state[1] >= 4) == (2, True)
    assert cluster.server.row(paths.PREFERRED_ELECTION) is None
    cluster.check()


def test_a_damaged_znode_is_named_and_left() -> None:
    cluster, host = scene()
    cluster.write(Create(paths.PREFERRED_ELECTION, b"{"))
    cluster.settle()
    assert any(paths.PREFERRED_ELECTION in note for note in host.notes("error"))
    assert cluster.server.row(paths.PREFERRED_ELECTION) is not None
    data = encode_preferred_election(PreferredElection((("t", 0),)))
    cluster.write(SetData(paths.PREFERRED_ELECTION, data, ANY_VERSION))
    cluster.settle()
    assert cluster.states()["t-0"][0] == 2
    cluster.check(errors=True)


# -- by the clock

SOON = ControllerSettings(leader_imbalance_check_interval_seconds=7)


def test_leaders_go_back_five_seconds_after_the_failover_and_at_each_interval() -> None:
    cluster = cluster_to_balance()
    host = cluster.new_host(1, SOON)
    began_ms = cluster.clock.now_ms()
    host.start()
    cluster.until(lambda: cluster.states()["t-0"][0] == 2)
    assert 5_000 < cluster.clock.now_ms() - began_ms < 5_200
    cluster.settle()
    assert cluster.states()["t-0"][:2] == (2, 4), "what can be moved is"
    assert cluster.states()["t-2"][:2] == (1, 3), "and what can't is not tried"
    assert not [note for note in host.notes("warning") if "preferred" in note]
    for _ in range(2):
        drift(cluster, host)
        cluster.pass_ms(7_100)
        cluster.settle()
        assert cluster.states()["t-0"][0] == 2
    cluster.check()


def drift(cluster: Cluster, host: Host) -> None:
    """t-0 is led by 1 again, as after a failure that is over."""
    term = host.controller.term
    assert term is not None
    cluster.state("t", 0, 1, (1, 2), 50)
    row = term.context.partitions.row_of("t", 0)
    assert row is not None
    take_in(term, row, cluster.server.row(paths.partition_state("t", 0)))


@pytest.mark.parametrize("what", ["adding", "removing"])
def test_nothing_goes_back_while_partitions_are_reassigned(what: str) -> None:
    cluster, host = scene(SOON)
    term = host.controller.term
    assert term is not None
    getattr(term.context.partitions, what)[1] = (3,)
    cluster.pass_ms(5_100)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 1
    getattr(term.context.partitions, what).clear()
    cluster.pass_ms(7_100)
    cluster.settle()
    assert cluster.states()["t-0"][0] == 2


def test_a_topic_that_is_to_be_deleted_does_not_go_back() -> None:
    cluster, host = scene(SOON)
    cluster.write(Create(paths.delete_topic("t"), None))
    cluster.pass_ms(6_000)
    cluster.settle()
    assert any(isinstance(event, AutoPreferredElection) for event in host.handled)
    assert cluster.states()["t-0"][0] != 2
    assert host.failures() == []


def test_switched_off_it_never_looks_and_a_term_that_is_over_has_no_timer() -> None:
    cluster, host = scene()
    cluster.pass_ms(200_000)
    assert not any(isinstance(event, AutoPreferredElection) for event in host.handled)
    cluster, host = scene(SOON)
    host.controller.resign("a test")
    cluster.pass_ms(20_000)
    assert not any(isinstance(event, AutoPreferredElection) for event in host.handled)


def test_a_look_of_an_earlier_term_does_nothing_and_starts_no_second_clock() -> None:
    cluster, host = scene(SOON)
    host.events.put(AutoPreferredElection(0))
    cluster.settle()
    assert cluster.states()["t-0"][0] == 1
    cluster.pass_ms(30_000)
    looks = [event for event in host.handled if isinstance(event, AutoPreferredElection)]
    assert looks.count(AutoPreferredElection(1)) == 4


# -- how much is too much


def table_of(*partitions: tuple[Sequence[int], int]) -> PartitionTable:
    """(assignment, leader) of t-0, t-1, ..."""
    table = PartitionTable()
    count = len(partitions)
    zeros, numbers = np.zeros(count, dtype=np.int32), np.arange(count, dtype=np.int32)
    table.add([("t", bytes(16))], zeros, numbers, padded([one for one, _ in partitions]), {}, {})
    table.leader[:] = [leader for _, leader in partitions]
    table.zk_version[:] = 0
    return table


@pytest.mark.parametrize(
    ("wanted", "missed", "percentage", "moved"),
    [(10, 1, 10, 0), (10, 2, 10, 2), (11, 1, 9, 1), (1, 1, 99, 1), (1, 1, 100, 0), (3, 1, 33, 1), (3, 1, 34, 0)],
)
def test_more_than_so_many_percent_of_what_a_broker_should_lead(
    wanted: int, missed: int, percentage: int, moved: int
) -> None:
    partitions = [((1, 2), 2 if place < missed else 1) for place in range(wanted)]
    table = table_of(*partitions, *[((2, 1), 2)] * 50)
    assert to_rebalance(table, table.all_rows(), percentage).tolist() == list(range(moved))


def test_large_broker_ids_are_judged_as_small_ones_are() -> None:
    large = 2_000_000_000
    table = table_of(((large, 2), 2), ((large, 2), large), ((2, large), 2), ((2, large), 2))
    assert to_rebalance(table, table.all_rows(), 10).tolist() == [0]
    assert to_rebalance(table, table.all_rows(), 50).tolist() == []


def test_brokers_are_judged_apart_and_what_has_no_state_is_not_judged() -> None:
    table = table_of(((1, 2), 2), ((1, 2), 1), ((2, 1), 1), ((2, 1), 2), ((2, 1), 2), ((3,), -1), ((4,), -1))
    table.zk_version[6] = -1
    assert table.are_off_preferred(table.all_rows()).tolist() == [True, False, True, False, False, True, False]
    assert to_rebalance(table, table.all_rows(), 40).tolist() == [0, 5]
    assert to_rebalance(PartitionTable(), PartitionTable().all_rows(), 0).tolist() == []


def test_an_event_is_answered_once() -> None:
    answers: list[Outcomes] = []
    event = ElectLeadersRequested(PREFERRED, (("t", 0),), answers.append)
    before = event.answered
    event.refuse()
    assert (before, event.answered) == (False, True)
    assert answers == [
        {("t", 0): ElectionOutcome(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")}
    ]
    with pytest.raises(RuntimeError, match="answered twice"):
        event.refuse()


# -- what went wrong with it in Kafka


@pytest.mark.parametrize("at", [1, 2])
def test_s17_a_session_that_ends_while_leaders_go_back_ends_the_term_and_the_next_one_goes_on(at: int) -> None:
    """KAFKA-4360: the resignation waited for the scheduler, which waited for the controller's lock."""
    cluster, host = scene(SOON)
    host.events.put(AutoPreferredElection(1))
    if at == 2:  # while its write is on its way
        expire_at(cluster, host, host.awaits + 1)
    else:
        cluster.server.expire(host.client.session())
    cluster.pass_ms(20_000)
    cluster.settle()
    assert host.controller.controller_epoch == 2
    assert cluster.states()["t-0"][0] == 2
    cluster.check()


def test_s18_a_shutdown_leaves_no_clock_behind() -> None:
    """KAFKA-1699: the scheduler of the rebalance was stopped while it waited for the lock of who stopped it."""
    cluster, host = scene(SOON)
    term = host.controller.term
    assert term is not None
    host.events.put(Shutdown())
    cluster.settle()
    assert host.controller.term is None
    looks = host.handled.count(AutoPreferredElection(1))
    cluster.pass_ms(30_000)
    assert host.handled.count(AutoPreferredElection(1)) == looks
    assert term.timers._set == {}
