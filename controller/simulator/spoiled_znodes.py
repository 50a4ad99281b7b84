"""The fault `spoil-znode`: a value that decodes and makes no sense stands in a znode for a while, then it is repaired.

The fault writes past every session, as an administrator does by hand, because the safety checker judges what nodes
write. The repair restores the former value only where the spoiled value still stands: the znode may have been deleted
or rewritten meanwhile. The faults come from a random stream of their own and are added to a generated plan, so that the
rest of the plan stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from controller.simulator.plan import ChangeRegistration, SpoilZnode
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, encode_topic_assignment
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import ANY_VERSION, Create, SetData

STATE, REGISTRATION, TOPIC = KINDS = ("state", "registration", "topic")

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
