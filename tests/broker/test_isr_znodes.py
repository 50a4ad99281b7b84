"""ISR changes below inter-broker protocol 2.7: the state written by its leader, and the controller notified later."""

from __future__ import annotations

import pytest

from controller.broker.isr_manager import CHECK_MS, DELAY_MAX_MS, LINGER_MS, IsrZnodes, Key, Proposal, Results
from controller.clock import spawn
from controller.protocol.control import AlterIsrPartitionResult
from controller.protocol.errors import ErrorCode
from controller.zookeeper import paths
from controller.zookeeper.broker_writes import PARTITIONS_A_NOTICE, BrokerDataWrites
from controller.zookeeper.codecs import (
    PartitionStateZnode,
    decode_isr_change_notification,
    decode_partition_state,
    encode_partition_state,
)
from controller.zookeeper.operations import Create, SetData
from tests.broker.harness import KeptTrace
from tests.zookeeper.client_bench import Bench

LEADER, CONTROLLER_EPOCH = 1, 4
STATE = PartitionStateZnode(LEADER, 3, (1, 2), CONTROLLER_EPOCH)
GROWN = Proposal(3, 0, (1, 2, 3))


class Scene:
    """t-0 and t-1, led by broker 1 in epoch 3 with an ISR of 1 and 2, version 0."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.node = self.bench.node()
        self.trace = KeptTrace()
        writes = BrokerDataWrites(self.node.client)
        self.znodes = IsrZnodes(LEADER, writes, lambda _key: CONTROLLER_EPOCH, self.bench.clock, self.trace)
        self.bench.create("/brokers", "/brokers/topics", "/brokers/topics/t", paths.partitions("t"))
        self.bench.create(paths.ISR_CHANGE_NOTIFICATION)
        for partition in (0, 1):
            self.bench.create(paths.partition("t", partition))
            self.bench.change(Create(paths.partition_state("t", partition), encode_partition_state(STATE)))

    def change(self, **proposals: Proposal) -> Results:
        """By partition, as p0 and so on."""
        done: list[Results] = []
        named: dict[Key, Proposal] = {("t", int(name[1:])): one for name, one in proposals.items()}
        self.znodes.change(named, lambda answer: done.append(answer.result()))
        self.bench.until(lambda: bool(done))
        return done[0]

    def state(self, partition: int) -> tuple[PartitionStateZnode, int]:
        row = self.bench.row(paths.partition_state("t", partition))
        assert row is not None
        return decode_partition_state(row.path, row.data), row.stat.version

    def notifications(self) -> list[tuple[Key, ...]]:
        parent = paths.ISR_CHANGE_NOTIFICATION
        rows = [self.bench.row(paths.child(parent, name)) for name in sorted(self.bench.server.children(parent) or ())]
        return [decode_isr_change_notification(row.path, row.data).partitions for row in rows if row is not None]


def test_the_state_is_written_with_the_leaders_epochs() -> None:
    scene = Scene()
    assert scene.change(p0=GROWN) == {("t", 0): AlterIsrPartitionResult(0, 0, LEADER, 3, (1, 2, 3), 1)}
    assert scene.state(0) == (PartitionStateZnode(LEADER, 3, (1, 2, 3), CONTROLLER_EPOCH), 1)
    assert scene.state(1) == (STATE, 0)


@pytest.mark.parametrize("applied", [True, False])
def test_a_write_without_an_answer_is_made_once(applied: bool) -> None:
    scene = Scene()
    scene.node.connection.lose_reply(applied=applied)
    assert scene.change(p0=GROWN)["t", 0].isr == (1, 2, 3)
    assert scene.state(0)[1] == 1


@pytest.mark.parametrize(
    ("there", "error"),
    [
        (PartitionStateZnode(LEADER, 3, (1,), CONTROLLER_EPOCH), ErrorCode.NONE),
        (PartitionStateZnode(LEADER, 3, (1, 2, 1), CONTROLLER_EPOCH), ErrorCode.UNKNOWN_SERVER_ERROR),
        (PartitionStateZnode(LEADER, 3, (2,), CONTROLLER_EPOCH), ErrorCode.UNKNOWN_SERVER_ERROR),
        (PartitionStateZnode(LEADER, 4, (1, 2), CONTROLLER_EPOCH), ErrorCode.FENCED_LEADER_EPOCH),
        (PartitionStateZnode(2, 3, (1, 2), CONTROLLER_EPOCH), ErrorCode.FENCED_LEADER_EPOCH),
    ],
    ids=["an ISR by hand", "a member twice", "without its leader", "a newer leader epoch", "another leader"],
)
def test_a_state_that_somebody_else_wrote_stands(there: PartitionStateZnode, error: ErrorCode) -> None:
    """The leader goes on from it where it still leads, and waits for the controller where it does not."""
    scene = Scene()
    scene.bench.change(SetData(paths.partition_state("t", 0), encode_partition_state(there), 0))
    result = scene.change(p0=GROWN)["t", 0]
    assert result.error_code == error
    if error is ErrorCode.NONE:
        assert (result.isr, result.current_isr_version) == (there.isr, 1)
    assert scene.state(0) == (there, 1)


def test_a_state_that_is_gone_or_damaged_is_left_alone() -> None:
    scene = Scene()
    scene.bench.set(paths.partition_state("t", 1), b"?")
    results = scene.change(p0=GROWN, p1=GROWN, p7=GROWN)
    errors = {key[1]: one.error_code for key, one in results.items()}
    assert errors == {0: 0, 1: ErrorCode.UNKNOWN_SERVER_ERROR, 7: ErrorCode.UNKNOWN_SERVER_ERROR}


def test_the_controller_is_notified_once_changes_have_paused() -> None:
    scene = Scene()
    scene.change(p0=GROWN)
    scene.change(p1=GROWN)
    scene.bench.settle(LINGER_MS - 100)
    assert scene.notifications() == []
    scene.bench.settle(CHECK_MS + 200)
    assert scene.notifications() == [(("t", 0), ("t", 1))]
    scene.bench.settle(DELAY_MAX_MS * 2)
    assert len(scene.notifications()) == 1


def test_the_controller_is_notified_although_changes_go_on() -> None:
    scene = Scene()
    began_ms, version = scene.bench.clock.now_ms(), 0
    while not scene.notifications():
        isr = ((1, 2, 3), (1, 2))[version % 2]
        assert scene.change(p0=Proposal(3, version, isr))["t", 0].current_isr_version == version + 1
        version += 1
        scene.bench.settle(LINGER_MS / 2)
        assert scene.bench.clock.now_ms() - began_ms < DELAY_MAX_MS + 2 * CHECK_MS
    assert scene.bench.clock.now_ms() - began_ms >= DELAY_MAX_MS


def test_a_notification_that_can_t_be_left_is_tried_again() -> None:
    scene = Scene()
    scene.change(p0=GROWN)
    scene.node.connection.lose_reply(applied=False)
    scene.bench.settle(LINGER_MS + 10 * CHECK_MS)
    assert scene.notifications() == [(("t", 0),)]


def test_very_many_partitions_take_several_notifications() -> None:
    scene = Scene()
    names = tuple(("x" * 249, partition) for partition in range(PARTITIONS_A_NOTICE + 1))
    scene.bench.wait(spawn(BrokerDataWrites(scene.node.client).notify_of_isr_changes(names)))
    assert [len(one) for one in scene.notifications()] == [PARTITIONS_A_NOTICE, 1]
    rows = [
        scene.bench.row(paths.child(paths.ISR_CHANGE_NOTIFICATION, name))
        for name in scene.bench.server.children(paths.ISR_CHANGE_NOTIFICATION) or ()
    ]
    assert all(row is not None and row.data is not None and len(row.data) < 1_000_000 for row in rows)
