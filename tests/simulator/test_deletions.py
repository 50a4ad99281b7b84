"""Topics deleted in simulated clusters while brokers die, stand still and are cut off: they are gone in the end, in
ZooKeeper and in every broker, and the others are as they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import Coro, spawn
from controller.core import topic_deletion
from controller.core.request_batch import RequestBatch
from controller.protocol.client import DeleteTopicsRequest, DeleteTopicState
from controller.protocol.codec import ApiKey, encode_request_body
from controller.scenarios.faults import Expire, Kill, Link, Pause
from controller.scenarios.host import TopicSpec, Workload
from controller.scenarios.language import ClusterSpec
from controller.simulator import DeleteController, Simulation, SpoilZnode
from controller.simulator.host import SimulatedHost
from controller.trace import Noted
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.operations import ANY_VERSION, SetData

VERSION = 6
NODES = (1, 2, 3)
LIMIT_MS = 60_000.0
GONE = TopicSpec("gone", 1, 2)
"""One broker has none of it, and hears of it all the same."""
KEPT = TopicSpec("kept", 3, 3)


class Deleting:
    def __init__(self, seed: int) -> None:
        self.host = SimulatedHost(seed)
        self.rng = random.Random(seed)
        self.do(self.host.boot(ClusterSpec(), Workload()))
        self.server = self.host._world.zookeeper
        for node in NODES:
            self.do(self.host.start(node))
        self.until(lambda: self.controller != -1 and len(self.server.children(paths.BROKER_IDS) or ()) == 3)
        self.do(self.host.create_topics([GONE, KEPT]))
        self.until(lambda: self.knows_everywhere("gone") and self.knows_everywhere("kept"))

    def do(self, task: Coro[Any]) -> None:
        pending = spawn(task)
        self.until(lambda: pending.done)
        pending.result()

    def until(self, condition: Callable[[], bool]) -> None:
        clock = self.host.clock
        assert clock.run_until(condition, clock.now_ms() + LIMIT_MS), f"it did not come to that: {self.state()}"

    @property
    def controller(self) -> int:
        row = self.server.row(paths.CONTROLLER)
        return -1 if row is None else decode_controller(row.path, row.data).broker_id

    def ask(self) -> None:
        """Whoever is controller, without waiting for an answer."""
        client = self.host._client
        assert client is not None
        body = encode_request_body(
            ApiKey.DELETE_TOPICS, VERSION, DeleteTopicsRequest((DeleteTopicState("gone"),), 1_000)
        )
        spawn(client._ask(self.controller, ApiKey.DELETE_TOPICS, VERSION, body, 30_000.0))

    def topics_of(self, node: int) -> set[str]:
        broker = self.host._process(node)._node
        return set() if broker is None else set(broker.broker.metadata.snapshot.topics)

    def replicas_of(self, node: int) -> set[str]:
        broker = self.host._process(node)._node
        return set() if broker is None else {partition.topic for partition in broker.broker.replicas.partitions()}

    def knows_everywhere(self, topic: str) -> bool:
        return all(topic in self.topics_of(node) for node in self.host.running())

    def left(self) -> list[str]:
        return [row.path for row in self.server.rows() if row.path.rpartition("/")[2] == "gone"]

    def over(self) -> bool:
        return (
            self.host.running() == NODES
            and self.left() == []
            and all(
                self.topics_of(node) == {"kept"} and self.replicas_of(node) <= {"kept"} for node in self.host.running()
            )
        )

    def state(self) -> object:
        return self.left(), {node: (self.topics_of(node), self.replicas_of(node)) for node in self.host.running()}

    def pass_ms(self, ms: float) -> None:
        self.host.clock.advance_to(self.host.clock.now_ms() + ms)

    # -- what befalls it

    def kill(self, node: int) -> None:
        self.do(self.host.inject(Kill(node=node)))
        self.pass_ms(self.rng.uniform(0, 4_000))
        self.do(self.host.start(node))

    def pause(self, node: int) -> None:
        self.do(self.host.inject(Pause(node=node)))
        self.pass_ms(self.rng.uniform(0, 4_000))
        self.do(self.host.resume(node))

    def cut(self, node: int) -> None:
        """What the controller sends to it arrives late, or the controller is another by then."""
        link = Link(self.controller, node)
        self.do(self.host.cut(link))
        self.pass_ms(self.rng.uniform(0, 4_000))
        self.do(self.host.heal(link))

    def cut_off_and_killed(self, node: int) -> None:
        """The controller dies before it can reach a broker again."""
        leader = self.controller
        link = Link(leader, node)
        self.do(self.host.cut(link))
        self.pass_ms(self.rng.uniform(0, 1_000))
        self.kill(leader)
        self.do(self.host.heal(link))

    def expire(self, node: int) -> None:
        self.do(self.host.inject(Expire(node=node)))


def deleted_under(seed: int, fault: str) -> None:
    cluster = Deleting(seed)
    cluster.ask()
    cluster.pass_ms(cluster.rng.choice((0.0, 3.0, 12.0, 60.0)) * cluster.rng.random())
    whom = cluster.controller if cluster.rng.random() < 0.5 else cluster.rng.choice(NODES)
    getattr(cluster, fault)(whom)
    cluster.until(lambda: cluster.controller != -1 and len(cluster.server.children(paths.BROKER_IDS) or ()) == 3)
    while paths.topic("gone") in cluster.left() and paths.delete_topic("gone") not in cluster.left():
        cluster.ask()  # it was lost with whoever was asked
        cluster.pass_ms(500)
    cluster.until(cluster.over)
    errors = [record.event for record in cluster.host.records() if isinstance(record.event, Noted)]
    assert [event.message for event in errors if event.level == "error"] == []


@pytest.mark.parametrize("fault", ["kill", "pause", "cut", "cut_off_and_killed", "expire"])
def test_a_topic_is_gone_whatever_befalls_a_broker_meanwhile(fault: str) -> None:
    for seed in range(8):
        deleted_under(seed, fault)


def test_a_broker_that_never_heard_of_it_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault, Kafka's own way: the znodes go when the replicas are gone, whoever has not been told yet, and
    the next controller does not say which topics there are."""
    monkeypatch.setattr(topic_deletion, "_is_forgotten", lambda term, topic: True)
    monkeypatch.setattr(RequestBatch, "name_all_topics", lambda self: None)
    assert any(never_over(seed) for seed in range(25, 50))


def never_over(seed: int) -> bool:
    try:
        deleted_under(seed, "cut_off_and_killed")
    except AssertionError as error:
        return "it did not come to that" in str(error)
    return False


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("repaired", ["within a term", "between terms"])
def test_a_broker_that_could_not_be_told_of_a_deletion_forgets_the_topic(repaired: str, others: int) -> None:
    """No controller can read its registration while a topic is deleted; afterwards it is the same registration (the
    swarm's seeds 2911 and 3060)."""
    world, broker = with_topics(others)
    spoiled = world.inject(SpoilZnode(at_ms=world.now_ms, node=broker, what="registration"))
    change_controller(world, broker)
    assert world.answer(world.delete_topic("gone")) == "done"
    world.run_until(lambda: world.zookeeper.row(paths.topic("gone")) is None)
    if repaired == "between terms":
        controller = world.controller
        assert controller is not None
        world.pause(controller)
        world.expire(controller)
        world.heal_all()
        world.run_until(lambda: world.controller not in (None, controller))
    world.heal_all()
    world.run_until_rest()
    assert spoiled.result() == "ended"
    assert ("gone", 0) not in (world.metadata(broker) or {})


@pytest.mark.parametrize("others", [0, 1])
def test_a_broker_whose_session_ended_before_a_deletion_forgets_the_topic(others: int) -> None:
    """Also if no topic is left that the controller could name to it."""
    world, broker = with_topics(others)
    change_controller(world, broker)
    world.cut_zookeeper(broker)
    world.run_until(lambda: broker not in world.registered)
    assert world.answer(world.delete_topic("gone")) == "done"
    world.run_until(lambda: world.zookeeper.row(paths.topic("gone")) is None)
    world.heal_all()
    world.run_until_rest()
    assert ("gone", 0) not in (world.metadata(broker) or {})


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_no_controller_can_read_stays_in_the_metadata_of_the_brokers(restarts: bool) -> None:
    """Its leaders go on serving it, and clients have to find them."""
    world, broker = with_topics(1)
    held = world.zookeeper.row(paths.topic("gone"))
    assert held is not None
    world.zookeeper.restore([SetData(held.path, b'{"partitions":{"0":[1,1]}}', ANY_VERSION)])
    change_controller(world, broker)
    if restarts:
        other = next(node for node in (1, 2, 3, 4) if node not in (broker, world.controller))
        world.kill(other, for_ms=100.0)
        world.run_until(lambda: other in world.running and len(world.registered) == 4)
    world.run_for(2_000.0)
    shown = world.metadata(broker)
    assert shown is not None
    assert ("gone", 0) in shown
    assert ("other-0", 0) in shown


def with_topics(others: int) -> tuple[Simulation, int]:
    """A cluster at rest with the topic "gone" of one replica; and a broker that does not hold it."""
    world = Simulation(brokers=4, seed=3, session_timeout_ms=2_000)
    world.safety_checker.expected_errors = SpoilZnode.expected_errors
    world.run_until(lambda: len(world.registered) == 4)
    for name in ("gone", *(f"other-{number}" for number in range(others))):
        assert world.answer(world.create_topic(name, 1, 1)) == "done"
    world.run_until_rest()
    (holder,) = world.partitions()["gone", 0].assignment
    return world, next(node for node in (1, 2, 3, 4) if node not in (holder, world.controller))


def change_controller(world: Simulation, other_than: int) -> None:
    """Until it is another one, and not that broker."""
    epoch = world.controller_epoch
    while world.controller in (None, other_than) or world.controller_epoch == epoch:
        world.inject(DeleteController(at_ms=world.now_ms))
        world.run_for(1_000.0)
