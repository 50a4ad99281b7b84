"""A new controller's first work: in Kafka's order, and complete wherever the one before it stopped."""

from __future__ import annotations

from typing import Any

import pytest

from controller.clock import Future
from controller.core.leadership import ControllerSettings
from controller.protocol.codec import ApiKey
from controller.trace import ControllerElected, FailoverCompleted, FailoverPhase, PartitionStateWritten
from controller.zookeeper import paths
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, UnknownOutcome
from tests.core.driving import Cluster, Host, registration

PHASES = [
    "feature znode",
    "watches",
    "old notifications",
    "load context",
    "pending deletions",
    "update metadata",
    "replica machine",
    "partition machine",
    "pause",
    "reassignments",
    "topic deletions",
    "preferred elections",
]


def test_a_topic_is_created_and_survives_a_broker() -> None:
    cluster = Cluster()
    cluster.register(2, 3)
    cluster.host(1)
    cluster.topic("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 0, (1, 2, 3), 0), "t-1": (2, 0, (2, 3, 1), 0)}
    cluster.check()
    cluster.unregister(2)
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 1, (1, 3), 1), "t-1": (3, 1, (3, 1), 1)}
    cluster.check()


def test_the_phases_run_in_kafkas_order_and_are_told_with_a_table() -> None:
    cluster = Cluster()
    cluster.topic("t", {0: (1,), 1: (1,)})
    host = cluster.host(1)
    phases = host.trace.of(FailoverPhase)
    assert [phase.phase for phase in phases] == PHASES
    assert {phase.phase: phase.items for phase in phases} == {
        **dict.fromkeys(PHASES, 0),
        "watches": 9,
        "load context": 2,
        "update metadata": 1,
        "replica machine": 2,
        "partition machine": 2,
    }
    (completed,) = host.trace.of(FailoverCompleted)
    assert completed.partitions == 2
    assert completed.duration_ms == pytest.approx(sum(phase.duration_ms for phase in phases))
    (table,) = [note for note in host.notes("info") if "failover took" in note]
    assert [line.rsplit(maxsplit=3)[0].strip() for line in table.splitlines()[1:]] == PHASES


def test_what_all_brokers_are_told_is_in_memory_once() -> None:
    """An UpdateMetadata of 100,000 partitions to 1,000 brokers is some megabytes, not gigabytes."""
    cluster = Cluster()
    cluster.register(*range(2, 12))
    cluster.topic("t", dict.fromkeys(range(50), (2, 3, 4)))
    host = cluster.host(1)
    told = [sent for sent in host.sent if sent.api is ApiKey.UPDATE_METADATA and len(sent.states()) == 50]
    assert {sent.broker for sent in told} == set(range(1, 12))
    assert len({sent.value.broker_epoch for sent in told}) == 11
    assert len(told[0].rest) > 1_000
    assert all(sent.rest is told[0].rest for sent in told)
    cluster.check()


def test_s32_update_metadata_precedes_leader_and_isr() -> None:
    """KAFKA-4443: a broker must know the endpoints before it hears of a leader."""
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", {0: (1, 2)})
    cluster.state("t", 0, 2, (2, 1))
    host = cluster.host(1)
    for broker in (1, 2):
        first = next(sent for sent in host.sent if sent.broker == broker)
        assert first.api is ApiKey.UPDATE_METADATA
        assert [live.id for live in first.value.live_brokers] == [1, 2]


def test_the_first_of_all_requests_says_whether_partitions_follow() -> None:
    """Else a broker that has just started would tell clients that there are no topics, until it hears of them."""
    told_of = {}
    for replicas in ((1, 2), (3, 4), ()):
        cluster = Cluster()
        cluster.register(2)
        cluster.topic("new", {0: (2,)})
        if replicas:
            cluster.topic("t", {0: replicas})
            cluster.state("t", 0, replicas[0], replicas)
        host = cluster.host(1)
        requests = [sent.value for sent in host.sent if sent.api is ApiKey.UPDATE_METADATA and sent.broker == 2]
        told_of[replicas] = [(len(one.topic_states), one.partitions_follow) for one in requests]
    assert told_of[1, 2] == [(0, True), (2, False)]
    assert told_of[3, 4][0] == (0, False), "none of its replicas lives: nothing would be told of it"
    assert told_of[()] == [(0, False), (1, False)], "a topic without a state is told of once it has one"


def test_s38_a_dead_follower_leaves_the_isr_at_start_up_and_a_dead_leader_is_bumped_twice() -> None:
    """KAFKA-3096, KAFKA-3143: the dead controller's broker was a follower, too."""
    cluster = Cluster()
    cluster.register(3)
    cluster.topic("t", {0: (2, 1, 3), 1: (1, 3, 2)})
    cluster.state("t", 0, 2, (2, 1, 3), 4)
    cluster.state("t", 1, 1, (1, 3, 2), 4)
    host = cluster.host(2)
    assert cluster.states() == {"t-0": (2, 5, (2, 3), 1), "t-1": (3, 6, (3, 2), 2)}
    written = [(event.partition, event.why, event.leader) for event in host.trace.of(PartitionStateWritten)]
    assert written == [(0, "replica offline", 2), (1, "replica offline", -1), (1, "offline", 3)]
    cluster.check()


@pytest.mark.parametrize(
    ("registered", "isr", "expected"),
    [
        ((2, 3), (3, 2), (2, 6, (2,), 2)),
        ((2, 3), (3,), (3, 4, (3,), 0)),
        ((3,), (3, 2), (3, 4, (3, 2), 0)),
    ],
    ids=["another of the ISR", "none in the ISR", "none alive"],
)
def test_a_leader_outside_the_assignment_leaves_the_isr_for_another_member(
    registered: tuple[int, ...], isr: tuple[int, ...], expected: tuple[int, int, tuple[int, ...], int]
) -> None:
    """Of an older controller, or of a state that an administrator restored after a reassignment. Replica 4 is dead."""
    cluster = Cluster()
    cluster.register(*registered)
    cluster.topic("t", {0: (2, 4)})
    cluster.state("t", 0, 3, isr, 4)
    cluster.host(1)
    assert cluster.states() == {"t-0": expected}
    cluster.check()


def test_broker_0_is_a_broker() -> None:
    cluster = Cluster()
    cluster.register(2)
    cluster.topic("t", {0: (0, 1, 2), 1: (1, 0, 2), 2: (0,)})
    cluster.state("t", 0, 0, (0, 1, 2))
    cluster.state("t", 1, 1, (1, 0, 2))
    cluster.state("t", 2, 0, (0,))
    host = cluster.host(1)
    led = {name: (leader, isr) for name, (leader, _, isr, _) in cluster.states().items()}
    assert led == {"t-0": (1, (1, 2)), "t-1": (1, (1, 2)), "t-2": (-1, (0,))}
    cluster.check()
    cluster.register(0)
    cluster.settle()
    assert cluster.states()["t-2"][0] == 0
    assert host.failures() == []
    cluster.check()


def test_a_cluster_without_the_parent_of_topics_has_none() -> None:
    cluster = Cluster()
    cluster.write(Delete(paths.BROKER_TOPICS, ANY_VERSION))
    host = cluster.new_host(1)
    register = host.writes.register_broker
    host.controller._register = lambda: register(1, registration(1))
    host.start()
    cluster.settle()
    assert host.failures() == []
    assert host.controller.active


def test_s37_the_last_of_an_isr_stays_in_it() -> None:
    """KAFKA-708."""
    cluster = Cluster()
    cluster.topic("t", {0: (1, 2)})
    cluster.state("t", 0, 1, (1,), 3)
    host = cluster.host(2)
    assert cluster.states() == {"t-0": (-1, 4, (1,), 1)}
    term = host.controller.term
    assert term is not None
    assert term.context.offline_partitions == 1
    cluster.check()
    cluster.register(1)
    cluster.settle()
    assert cluster.states() == {"t-0": (1, 5, (1,), 2)}
    assert term.context.offline_partitions == 0
    cluster.check()


def test_an_isr_that_is_gone_as_a_whole_stays_as_it_was() -> None:
    cluster = Cluster()
    cluster.register(4)
    cluster.topic("t", {0: (1, 2, 3, 4)})
    cluster.state("t", 0, 2, (3, 2, 1))
    cluster.host(5)
    assert cluster.states() == {"t-0": (-1, 1, (3, 2, 1), 1)}
    cluster.register(2)
    cluster.settle()
    assert cluster.states() == {"t-0": (2, 2, (2,), 2)}
    cluster.check()


def test_old_notifications_are_deleted_before_anything_is_read() -> None:
    cluster = Cluster()
    for parent in (paths.ISR_CHANGE_NOTIFICATION, paths.LOG_DIR_EVENT_NOTIFICATION):
        for number in range(3):
            cluster.write(Create(f"{parent}/old_{number}", b"{}"))
    host = cluster.host(1)
    assert cluster.server.children(paths.ISR_CHANGE_NOTIFICATION) == ()
    assert cluster.server.children(paths.LOG_DIR_EVENT_NOTIFICATION) == ()
    phase = next(phase for phase in host.trace.of(FailoverPhase) if phase.phase == "old notifications")
    assert phase.items == 6
    cluster.check()


@pytest.mark.parametrize(
    ("protocol", "before", "after"),
    [
        ("2.8", None, b'{"features":{},"version":1,"status":1}'),
        ("2.6", None, b'{"features":{},"version":1,"status":0}'),
        (
            "2.8",
            b'{"features":{"f":{"max_version_level":2,"min_version_level":1}},"version":1,"status":1,"new":7}',
            None,
        ),
        (
            "2.6",
            b'{"features":{"f":{}},"version":1,"status":1,"new":7}',
            b'{"features":{},"version":1,"status":0,"new":7}',
        ),
        ("2.8", b"damaged", None),
    ],
)
def test_the_feature_znode_is_as_kafka_leaves_it(protocol: str, before: bytes | None, after: bytes | None) -> None:
    cluster = Cluster()
    if before is not None:
        cluster.write(Create(paths.FEATURE, before))
    cluster.host(1, ControllerSettings(inter_broker_protocol=protocol))
    row = cluster.server.row(paths.FEATURE)
    assert row is not None
    assert row.data == (before if after is None else after)
    cluster.check(errors=True)


class Lost:
    """A write whose reply is lost: it is not made."""

    def __init__(self, host: Host, path: str, times: int) -> None:
        self.left, self.path, self.commit = times, path, host.client.commit
        host.client.commit = self  # type: ignore[method-assign]

    def __call__(self, leadership: Any, operations: Any) -> Any:
        if self.left and any(one.path == self.path for one in operations):
            self.left -= 1
            return Future.failed(UnknownOutcome("lost"))
        return self.commit(leadership, operations)


@pytest.mark.parametrize(("times", "made"), [(1, True), (9, True), (10, False)])
def test_the_feature_znode_is_looked_at_again_where_the_reply_was_lost(times: int, made: bool) -> None:
    cluster = Cluster()
    host = cluster.new_host(1)
    Lost(host, paths.FEATURE, times)
    host.start()
    cluster.settle()
    assert (cluster.server.row(paths.FEATURE) is not None) == made
    said = [note for note in host.notes("error") if "/feature changed under 10 looks and is left as it is" in note]
    assert len(said) == (not made)
    assert host.controller.active


@pytest.mark.parametrize(("times", "gone"), [(1, True), (9, True), (10, False)])
def test_old_notifications_are_deleted_again_where_the_reply_was_lost(times: int, gone: bool) -> None:
    cluster = Cluster()
    path = paths.child(paths.ISR_CHANGE_NOTIFICATION, "isr_change_0000000001")
    cluster.write(Create(path, b'{"version":1,"partitions":[]}'))
    host = cluster.new_host(1)
    Lost(host, path, times)
    host.start()
    cluster.settle()
    assert (cluster.server.row(path) is None) == gone
    said = f"{paths.ISR_CHANGE_NOTIFICATION}: 1 children could not be deleted, isr_change_0000000001 among them"
    assert [note.rpartition("] ")[2] for note in host.notes("error")] == ([] if gone else [said])
    assert host.controller.active


def test_a_request_to_reassign_nothing_goes() -> None:
    cluster = Cluster()
    cluster.write(Create(paths.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[]}'))
    cluster.host(1)
    assert cluster.server.row(paths.REASSIGN_PARTITIONS) is None


def failover_scene() -> Cluster:
    """What a failover finds: a dead leader, a dead follower, an ISR of one, a new topic, and one half created."""
    cluster = Cluster()
    cluster.register(3, 4)
    cluster.topic("led", {0: (2, 3, 4), 1: (3, 2, 4), 2: (2,)})
    cluster.state("led", 0, 2, (2, 3, 4), 1)
    cluster.state("led", 1, 3, (3, 2), 1)
    cluster.state("led", 2, 2, (2,), 1)
    cluster.topic("new", {0: (3, 2), 1: (4, 3)})
    cluster.topic("half", {0: (4, 3), 1: (3, 4)})
    cluster.state("half", 0, 4, (4, 3), 0)
    return cluster


def assert_failed_over(cluster: Cluster) -> None:
    """However often it was begun: what leads, and who is in sync. Epochs may be higher than after one failover."""
    states = {name: (state[0], state[2]) for name, state in cluster.states().items()}
    assert states == {
        "led-0": (3, (3, 4)),
        "led-1": (3, (3,)),
        "led-2": (-1, (2,)),
        "new-0": (3, (3,)),
        "new-1": (4, (4, 3)),
        "half-0": (4, (4, 3)),
        "half-1": (3, (3, 4)),
    }
    cluster.check()


def test_a_failover_that_dies_at_any_await_is_completed_by_the_next_controller() -> None:
    for at in range(1, 100):
        cluster = failover_scene()
        first = cluster.new_host(1)
        first.die_at_await = at
        first.start()
        cluster.settle()
        if not first.dead:
            assert_failed_over(cluster)
            assert at > 20
            return
        second: Host = cluster.host(5)
        cluster.pass_ms(8_000)
        assert_failed_over(cluster)
        epochs = [event.controller_epoch for event in second.trace.of(ControllerElected)]
        assert epochs in ([1], [2]), (at, epochs)
    raise AssertionError("it never came to its end")


def test_every_live_broker_ends_up_knowing_what_zookeeper_holds() -> None:
    """Invariant 7 from the brokers' side: what they were told last, put together."""
    cluster = failover_scene()
    host = cluster.host(1)
    cluster.topic("later", {0: (4, 3, 1)})
    cluster.settle()
    cluster.unregister(4)
    cluster.settle()
    for broker in (1, 3):
        told: dict[str, tuple[int, int, tuple[int, ...], int]] = {}
        for sent in host.sent:
            if sent.broker == broker and sent.api is ApiKey.UPDATE_METADATA:
                states = sent.states().items()
                told.update({name: (s.leader, s.leader_epoch, s.isr, s.zk_version) for name, s in states})
        assert told == cluster.states()
    cluster.check()
