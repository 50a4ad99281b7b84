"""Topics deleted in simulated clusters while brokers die, stand still and are cut off: they are gone in the end, in
ZooKeeper and in every broker, and the others are as they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from controller.core import topic_deletion
from controller.pending import Task
from controller.protocol.api_keys import ApiKey
from controller.protocol.client_values import DeleteTopicsRequest, DeleteTopicState
from controller.protocol.codec import encode_request_body
from controller.scenarios.host import ClusterSpec, Link, TopicSpec, Workload
from controller.simulator.host import SimulatedHost
from controller.trace import Noted
from controller.zookeeper import paths
from controller.zookeeper.codecs import decode_controller
from controller.zookeeper.drive import drive

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
        self.do(self.host.boot(ClusterSpec(3, 1, 2_000), Workload()))
        self.server = self.host._world.zookeeper
        for node in NODES:
            self.do(self.host.start(node))
        self.until(lambda: self.controller != -1 and len(self.server.children(paths.BROKER_IDS) or ()) == 3)
        self.do(self.host.create_topics([GONE, KEPT]))
        self.until(lambda: self.knows_everywhere("gone") and self.knows_everywhere("kept"))

    def do(self, task: Task[Any]) -> None:
        pending = drive(task)
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
        drive(client._ask(self.controller, ApiKey.DELETE_TOPICS, VERSION, body, 30_000.0))

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
        self.do(self.host.kill(node))
        self.pass_ms(self.rng.uniform(0, 4_000))
        self.do(self.host.start(node))

    def pause(self, node: int) -> None:
        self.do(self.host.pause(node))
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
        self.do(self.host.expire(node))


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
    """A planted fault, Kafka's own way: the znodes go when the replicas are gone, whoever has not been told yet."""
    monkeypatch.setattr(topic_deletion, "_is_forgotten", lambda term, topic: True)
    assert any(never_over(seed) for seed in range(25, 50))


def never_over(seed: int) -> bool:
    try:
        deleted_under(seed, "cut_off_and_killed")
    except AssertionError as error:
        return "it did not come to that" in str(error)
    return False
