"""Incidents whose moment no plan can name, or that take what no plan has happen, as worlds: each gives a whole log.

An operator beside the brokers writes into ZooKeeper, asks brokers, and notes what no broker's event shows: a gauge, an
answer, a znode. Every story ends at rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controller.protocol import ApiKey, ErrorCode
from controller.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    FeatureUpdate,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    UpdateFeaturesRequest,
)
from controller.protocol.client import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from controller.protocol.control import (
    AllocateProducerIdsRequest,
    AlterIsrPartition,
    AlterIsrRequest,
    AlterIsrTopic,
    ControlledShutdownRequest,
    IsrMember,
)
from controller.scenarios.faults import LoseReply, SlowZooKeeper
from controller.simulator import Simulation
from controller.simulator.columns import log_text
from controller.simulator.custom_node import CustomNode
from controller.zookeeper import paths
from controller.zookeeper.codecs import (
    ControllerZnode,
    IsrChangeZnode,
    TopicAssignment,
    decode_topic_assignment,
    encode_controller,
    encode_isr_change_notification,
    encode_topic_assignment,
)
from controller.zookeeper.operations import ANY_VERSION, Create, Delete, SetData, Write
from tests.simulator.test_incidents_in_worlds import (
    S40_SEEDS,
    T,
    an_empty_follower_is_asked_in,
    error,
    log_end,
    produce,
    stopped_late,
)
from tests.simulator.test_incidents_in_worlds import world as world_with_logs

LONG_MS = 60_000


class Operator:
    """A node of its own with a ZooKeeper session, and a voice in the log."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.node: CustomNode = world.add_node("an operator")
        self._connection = self.node.connection(LONG_MS)
        world.answer(self._connection.start())

    def write(self, *writes: Write) -> None:
        self.world.answer(self._connection.multi(list(writes)))

    def delete_controller(self, *more: Write) -> None:
        """As `delete-controller` in a plan, with what stands in its place at once."""
        row = self.world.zookeeper.row(paths.CONTROLLER)
        assert row is not None
        self.world.safety_checker.expires(row.stat.ephemeral_owner)
        self.write(Delete(paths.CONTROLLER, ANY_VERSION), *more)

    def say(self, text: str) -> None:
        self.node.note(text, "operator")

    def data(self, path: str) -> bytes:
        row = self.world.zookeeper.row(path)
        assert row is not None, path
        assert row.data is not None, path
        return row.data

    def broker_epoch(self, broker: int) -> int:
        row = self.world.zookeeper.row(paths.broker(broker))
        assert row is not None
        return row.stat.czxid


def world(brokers: int, seed: int, replication_factor: int = 0, partitions: int = 1, **settings: str) -> Simulation:
    """At rest; with `replication_factor` there is a topic "t"."""
    made = Simulation(brokers, seed=seed, settings={name.replace("_", "."): text for name, text in settings.items()})
    made.run_until(lambda: len(made.registered) == brokers)
    if replication_factor:
        assert made.answer(made.create_topic("t", partitions, replication_factor)) == "done"
    made.run_until_rest()
    return made


def told(made: Simulation) -> str:
    made.run_until_rest()
    return log_text(made.records, range(1, len(made.running) + 1))


def controller_of(made: Simulation) -> int:
    found = made.controller
    assert found is not None
    return found


def own_id_in_anothers_znode() -> str:
    """S07: /controller has a broker's id, and is a session's that is not the broker's."""
    made = world(3, 4)
    operator = Operator(made)
    now = controller_of(made)
    named = next(broker for broker in made.running if broker != now)
    operator.say(f"/controller is another session's, with the id of broker {named}")
    znode = encode_controller(ControllerZnode(named, 0))
    operator.delete_controller(Create(paths.CONTROLLER, znode, ephemeral=True))
    made.run_for(2_000)
    assert not any(_leads(made, broker) for broker in made.running)
    operator.say("it goes")
    operator.delete_controller()
    made.run_until(lambda: _leads(made, controller_of(made)) if made.controller else False)
    return told(made)


def _leads(made: Simulation, broker: int) -> bool:
    node = made.node(broker)
    assert node is not None
    return node.controller.active


def gauges_of_nobody() -> str:
    """S10: /controller is gone, and nobody wins: every attempt is lost on its way."""
    made = world(3, 4)
    operator = Operator(made)

    def say_gauges() -> None:
        nodes = [made.node(broker) for broker in made.running]
        found = {node.settings.broker_id: node.controller.active_controller_id for node in nodes if node is not None}
        operator.say(f"each broker's gauge of the controller's id: {found}")

    say_gauges()
    for broker in made.running:
        made.inject(LoseReply(at_ms=made.now_ms, node=broker, applied=False))
    operator.delete_controller()
    made.run_for(50)
    assert made.controller is None
    say_gauges()
    made.run_until(lambda: made.controller is not None)
    made.run_until_rest()
    say_gauges()
    return told(made)


def requests_in_the_queue() -> str:
    """S19: one request of each kind waits behind an event that waits for ZooKeeper, until the lease runs out."""
    made = world(3, 4, 3)
    operator = Operator(made)
    now = controller_of(made)
    made.cut_zookeeper(now)
    asked = {ApiKey.CREATE_TOPICS: made.ask(now, ApiKey.CREATE_TOPICS, creation("first"), 20_000)}
    made.run_for(20)
    epoch = operator.broker_epoch(now)
    for key, request in (
        (ApiKey.DELETE_TOPICS, DeleteTopicsRequest((DeleteTopicState("t"),), 20_000)),
        (ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest((CreatePartitionsTopic("t", 2),), 20_000)),
        (ApiKey.ELECT_LEADERS, ElectLeadersRequest((ElectLeadersTopic("t", (0,)),), 20_000)),
        (ApiKey.ALTER_PARTITION_REASSIGNMENTS, moved_to((1, 2))),
        (ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(None, 20_000)),
        (ApiKey.ALTER_ISR, AlterIsrRequest(now, (), epoch)),
        (ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownRequest(now, epoch)),
        (ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest((FeatureUpdate("any", 1),), 20_000)),
        (ApiKey.ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest(now, epoch)),
    ):
        asked[key] = made.ask(now, key, request, 20_000)
        made.run_for(5)  # over a connection of its own each: in this order
    operator.say(f"waiting for an answer: {sum(not one.done for one in asked.values())} of {len(asked)}")
    for key, pending in asked.items():
        errors = sorted({ErrorCode(code).name for code in codes(made.answer(pending))})
        operator.say(f"{key.name} is answered: {', '.join(errors)}")
    made.heal_zookeeper(now)
    return told(made)


def creation(topic: str) -> CreateTopicsRequest:
    return CreateTopicsRequest((CreatableTopic(topic, 1, 2),), 20_000)


def moved_to(replicas: tuple[int, ...]) -> AlterPartitionReassignmentsRequest:
    return AlterPartitionReassignmentsRequest((ReassignableTopic("t", (ReassignablePartition(0, replicas),)),), 20_000)


def codes(answer: Any) -> list[int]:
    """Every error code in a response, at whatever depth; that of the whole alone where it is no success."""
    if isinstance(answer, tuple):
        return [code for one in answer for code in codes(one)]
    if not hasattr(answer, "__slots__"):
        return []
    own = getattr(answer, "error_code", 0)
    inner = [code for name in answer.__slots__ for code in codes(getattr(answer, name))]
    return inner if inner and not own else [own]


def topic_made_without_a_session() -> str:
    """S25: the only broker's session has ended, and its tool makes a topic before there is another."""
    made = world(1, 4)
    operator = Operator(made)
    made.expire(1)
    made.run_until(lambda: made.controller is None)
    made.run_for(20)
    operator.say("makes topic x, with nobody to hear of it")
    operator.write(Create(paths.topic("x"), encode_topic_assignment(TopicAssignment(None, {0: (1,)}))))
    made.run_until(lambda: ("x", 0) in made.partitions())
    return told(made)


def notifications_in_a_row() -> str:
    """S23: as leaders below inter-broker protocol 2.7 leave them, more of them while others are handled."""
    made = world(3, 4, 3, partitions=3)
    operator = Operator(made)
    for partitions in ((0,), (0, 1), (2,)):
        notice = encode_isr_change_notification(IsrChangeZnode(tuple(("t", one) for one in partitions)))
        path = paths.child(paths.ISR_CHANGE_NOTIFICATION, paths.ISR_CHANGE_PREFIX)
        operator.write(Create(path, notice, sequential=True))
    made.run_until(lambda: not made.zookeeper.children(paths.ISR_CHANGE_NOTIFICATION))
    operator.say("no notification is left")
    return told(made)


def a_leader_ahead_of_its_controller() -> str:
    """S42: /controller goes while its owner hears nothing of ZooKeeper; its successor elects a leader, and the former
    one is asked by it for a change."""
    made = world(4, 4, 3)
    operator = Operator(made)
    zombie, before = controller_of(made), made.partitions()[T]
    made.cut_zookeeper(zombie)
    operator.delete_controller()
    made.run_until(lambda: made.controller is not None)
    made.expire(before.leader)
    made.run_until(lambda: made.partitions()[T].leader not in (before.leader, -1))
    now = made.partitions()[T]
    assert zombie != now.leader, "another seed"
    assert _leads(made, zombie), "its lease lasts"
    node = made.node(now.leader)
    assert node is not None
    topic_id = node.broker.metadata.snapshot.topic_ids["t"]
    isr = tuple(IsrMember(broker) for broker in now.isr[:1])
    asked = AlterIsrPartition(0, now.leader_epoch, current_isr_version=1, new_isr_with_epochs=isr)
    epoch = operator.broker_epoch(now.leader)
    request = AlterIsrRequest(now.leader, (AlterIsrTopic("", (asked,), topic_id),), epoch)
    answer = made.answer(made.ask(zombie, ApiKey.ALTER_ISR, request))
    said = ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code).name
    operator.say(f"broker {now.leader}, leader in epoch {now.leader_epoch}, asks broker {zombie}, which answers {said}")
    made.heal_zookeeper(zombie)
    made.run_until(lambda: not _leads(made, zombie))
    return told(made)


def imbalance_of_a_topic_that_goes() -> str:
    """S56d: a topic is deleted whose partitions are off their preferred leaders."""
    made = world(3, 4, 3, partitions=3, auto_leader_rebalance_enable="false")
    operator = Operator(made)
    now = controller_of(made)
    node = made.node(now)
    assert node is not None
    dead = next(broker for broker in made.running if broker != now)

    def say_figures() -> None:
        found = node.controller.measures.figures
        operator.say(
            f"PreferredReplicaImbalanceCount {found.preferred_replica_imbalance}, TopicsToDeleteCount"
            f" {found.topics_to_delete}, OfflinePartitionsCount {found.offline_partitions}"
        )
        assert found.preferred_replica_imbalance >= 0

    made.kill(dead)
    made.run_until(lambda: dead not in made.registered)
    made.run_until_rest()
    say_figures()
    deletion = made.delete_topic("t")
    made.run_for(1_000)
    say_figures()
    made.start(dead)
    assert made.answer(deletion) == "done"
    made.run_until_rest()
    say_figures()
    return told(made)


def a_topics_other_fields() -> str:
    """S56e: a topic's znode has a field that no controller here knows; partitions are added to the topic."""
    made = world(3, 4, 2)
    operator = Operator(made)
    path = paths.topic("t")
    topic_id = decode_topic_assignment(path, operator.data(path)).topic_id
    operator.write(SetData(path, operator.data(path)[:-1] + b',"later":{"kept":[1,2]}}', ANY_VERSION))
    assert made.answer(made.add_partitions("t", 2)) == "done"
    made.run_until_rest()
    found = decode_topic_assignment(path, operator.data(path))
    assert b'"later":{"kept":[1,2]}' in operator.data(path)
    operator.say(
        f"the id is the same: {found.topic_id == topic_id}, of {len(found.partitions)} partitions; 'later' is kept"
    )
    return told(made)


def a_busy_hour() -> str:
    """S21: events wait in the queue for a while, then nothing happens for longer than a histogram remembers."""
    made = world(1, 4, auto_leader_rebalance_enable="false")
    operator = Operator(made)
    node = made.node(1)
    assert node is not None

    def say_waits() -> None:
        waited = node.events.waited_ms.quantiles(made.now_ms)
        operator.say(f"EventQueueTimeMs, 99th percentile: {waited[0.99]:.0f} ms")

    made.inject(SlowZooKeeper(at_ms=made.now_ms, node=1, slower=300.0, for_ms=3_000.0))
    topics = [made.create_topic(f"t{number}", 1, 1) for number in range(3)]
    for one in topics:
        assert made.answer(one) == "done"
    say_waits()
    made.run_for(301_000)
    say_waits()
    return told(made)


def a_stop_that_was_overtaken() -> str:
    """S30."""
    made, _, code = stopped_late(4)
    Operator(made).say(f"the StopReplica of the epoch before is answered {ErrorCode(code).name}")
    made.run_for(5_000)
    return told(made)


def a_follower_without_its_disk() -> str:
    """S40."""
    made, leader, follower = an_empty_follower_is_asked_in(S40_SEEDS[0])
    operator = Operator(made)
    operator.say(f"broker {follower} has a disk without the record, and is not in the ISR {made.partitions()[T].isr}")
    made.heal(follower, leader)
    made.run_until_rest()
    made.kill(leader)
    made.run_until(lambda: made.partitions()[T].leader == follower)
    operator.say(f"broker {follower} leads, and has {log_end(made, follower)} record")
    made.start(leader)
    return told(made)


def an_answer_for_a_shrunk_isr() -> str:
    """S44."""
    made = world_with_logs(3, 2, 0)
    operator = Operator(made)
    leader, follower = made.partitions()[T].isr
    made.pause(follower)
    answer = produce(made, leader, b"the last for now", timeout_ms=20_000)
    operator.say("a producer waits for the whole ISR")
    code = error(made.answer(answer))
    operator.say(f"and has its answer: {ErrorCode(code).name}")
    made.resume(follower)
    return told(made)


STORIES: dict[str, Callable[[], str]] = {
    "s07-own-id-in-anothers-znode": own_id_in_anothers_znode,
    "s10-gauges-of-nobody": gauges_of_nobody,
    "s19-requests-in-the-queue": requests_in_the_queue,
    "s21-a-busy-hour": a_busy_hour,
    "s23-notifications-in-a-row": notifications_in_a_row,
    "s25-topic-made-without-a-session": topic_made_without_a_session,
    "s30-a-stop-that-was-overtaken": a_stop_that_was_overtaken,
    "s40-a-follower-without-its-disk": a_follower_without_its_disk,
    "s42-a-leader-ahead-of-its-controller": a_leader_ahead_of_its_controller,
    "s44-an-answer-for-a-shrunk-isr": an_answer_for_a_shrunk_isr,
    "s56d-imbalance-of-a-topic-that-goes": imbalance_of_a_topic_that_goes,
    "s56e-a-topics-other-fields": a_topics_other_fields,
}
