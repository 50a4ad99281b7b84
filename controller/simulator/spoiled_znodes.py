"""The fault `spoil-znode`: a value that decodes and makes no sense stands in a znode for a while, then it is repaired.

The fault writes past every session, as an administrator does by hand, because the safety checker judges what nodes
write. The repair restores the former value only where the spoiled value still stands: the znode may have been deleted
or rewritten meanwhile. The faults come from a random stream of their own and are added to a generated plan, so that the
rest of the plan stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import msgspec

from controller.simulator.plan import ChangeRegistration, CreateTopic, Happening, Plan, SpoilZnode
from controller.simulator.randomness import Streams
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, SetData

STATE, REGISTRATION, TOPIC = KINDS = ("state", "registration", "topic")
ON = 0.3
"""The chance of a run to have any."""
BETWEEN_MS = (300.0, 3_000.0)
LASTING_MS = (100.0, 1_000.0, 4_000.0)

Undo = Callable[[], None]


class SpoiledZnodes:
    """Those of one simulated cluster."""

    def __init__(self, zookeeper: InMemoryZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._spoiled: dict[str, tuple[bytes, bytes]] = {}

    def begin(self, fault: SpoilZnode) -> Undo | None:
        """None: there is no such znode now, or it is spoiled already."""
        path = path_of(fault)
        row = self._zookeeper.row(path)
        if path in self._spoiled or (row is None) != (fault.what == TOPIC):
            return None
        if row is None:
            sound = encode_topic_assignment(TopicAssignment(None, {0: (fault.node,)}, version=2))
            value = encode_topic_assignment(TopicAssignment(None, {0: (fault.node, fault.node)}, version=2))
            self._zookeeper.restore([Create(path, value)])
        else:
            sound = row.data or b""
            value = _spoiled(fault.what, sound)
            self._zookeeper.restore([SetData(path, value, ANY_VERSION)])
        self._spoiled[path] = (value, sound)
        return lambda: self._repair(path)

    def repair_all(self) -> None:
        """Repairs every znode that is still spoiled."""
        for path in list(self._spoiled):
            self._repair(path)

    def _repair(self, path: str) -> None:
        value, sound = self._spoiled.pop(path, (b"", b""))
        row = self._zookeeper.row(path)
        if row is not None and row.data == value:
            self._zookeeper.restore([SetData(path, sound, ANY_VERSION)])


def change_registration(zookeeper: InMemoryZooKeeper, fault: ChangeRegistration) -> Undo | None:
    """Return what ends it, which does nothing; None: the broker is not registered."""
    path = paths.broker(fault.node)
    row = zookeeper.row(path)
    if row is None:
        return None
    registration = {**json.loads(row.data or b"{}"), "rack": fault.rack}
    zookeeper.restore([SetData(path, json.dumps(registration).encode(), ANY_VERSION)])
    return _nothing


def _nothing() -> None:
    pass


def path_of(fault: SpoilZnode) -> str:
    if fault.what == STATE:
        return paths.partition_state(fault.topic, fault.partition)
    return paths.broker(fault.node) if fault.what == REGISTRATION else paths.topic(fault.topic)


def _spoiled(what: str, sound: bytes) -> bytes:
    fields = json.loads(sound)
    if what == STATE:
        fields["isr"] = [*fields["isr"], *fields["isr"]]
    else:
        fields["rack"] = "r" * 40_000
    return json.dumps(fields).encode()


def with_spoiled_znodes(plan: Plan) -> Plan:
    """The plan with znodes spoiled now and then, or as it was."""
    rng = Streams(plan.seed).stream("swarm-spoiled-znodes")
    created = [each for each in plan.happenings if isinstance(each, CreateTopic)]
    if rng.random() >= ON or not created:
        return plan
    happenings: list[Happening] = [*plan.happenings]
    at_ms, mean_ms = min(each.at_ms for each in created), rng.uniform(*BETWEEN_MS)
    while True:
        at_ms += rng.expovariate(1.0 / mean_ms)
        if at_ms >= plan.calm_ms:
            break
        happenings.append(_spoil(rng, round(at_ms, 1), rng.choice(created), plan.cluster.brokers))
    return msgspec.structs.replace(plan, happenings=tuple(sorted(happenings, key=lambda each: each.at_ms)))


def _spoil(rng: Random, at_ms: float, topic: CreateTopic, brokers: int) -> SpoilZnode:
    what = rng.choice((STATE, STATE, REGISTRATION, TOPIC))
    return SpoilZnode(
        at_ms=at_ms,
        what=what,
        topic=f"spoiled-{rng.randrange(3)}" if what == TOPIC else topic.topic,
        partition=0 if what == TOPIC else rng.randrange(topic.partitions),
        node=rng.randint(1, brokers),
        for_ms=round(rng.choice(LASTING_MS) * rng.uniform(0.5, 1.5)),
    )
