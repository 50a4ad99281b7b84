"""Rules for what a controller moves voluntarily, checked as it happens, for the safety checker.

    paused              in a term that began while /admin/camerlengo_pause existed, the controller moves no leader back
                        to a preferred replica and begins no reassignment, as long as the znode exists
    partitions move     the periodic check moves no leader back while any partition is being reassigned
    a broker goes       a broker to which a controller answered that all leaders were moved leads no partition that
                        another could lead, as far as that controller's own writes go; the controller that it asked
                        elects it nowhere and sends it LeaderAndIsr for each leader that was moved away (S46)
    replicas go         a broker that a topic's znode no longer names was sent StopReplica, if the controller knew it,
                        and is not in the ISR (partition-states-sound)

A term that began before the pause may be in the middle of an operation when the pause comes: it is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from controller.trace import Noted, PartitionStateWritten, RequestSent
from controller.zookeeper import paths
from controller.zookeeper.codecs import TopicAssignment, decode_partition_state, decode_topic_assignment
from controller.zookeeper.errors import DamagedZnode
from controller.zookeeper.memory.server import InMemoryZooKeeper
from controller.zookeeper.operations import Create, Delete, SetData, Write
from controller.zookeeper.znode_sense import sound_partition_state, state_fault

INVARIANT = "moves-by-choice"
ELECTIONS = frozenset({"initial", "offline", "controlled shutdown", "reassigned", "preferred"})
GIVEN_BACK = "partitions go back to their preferred leaders"
SHUTTING_DOWN = re.compile(r"\[controller \d+, epoch (\d+)\] broker (\d+) is shutting down.*")
ALL_MOVED = "controlled shutdown: everything was moved"
Violated = Callable[[str, Sequence[int], str], None]


class ByChoice:
    """`violated`: the invariant, whose doing it was, in words."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._paused_in: int | None = None
        self._moving: dict[str, frozenset[int]] = {}
        self._going: dict[int, int] = {}
        self._unnotified: dict[int, str] = {}
        self._replicas: dict[str, dict[int, tuple[int, ...]]] = {}
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # the epoch in which it was sent something last, and its incarnation
        self._stopped: dict[int, tuple[int, int]] = {}  # the same of StopReplica

    # -- ZooKeeper's writes; `epoch` and `winner`: the present controller's

    def committed(self, operation: Write, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None = None) -> None:
        path = operation.path
        if path == paths.CONTROLLER_PAUSE:
            if isinstance(operation, Create):
                self._paused_in = epoch
            elif isinstance(operation, Delete):
                self._paused_in = None
        elif path.startswith(paths.BROKER_TOPICS) and path.count("/") == 3:
            if isinstance(operation, Create | SetData):
                self._topic_written(operation, epoch, winner, zookeeper)
            elif isinstance(operation, Delete):
                self._moving.pop(path, None)
                self._replicas.pop(path, None)

    def _topic_written(
        self, operation: Create | SetData, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None
    ) -> None:
        topic = decode_topic_assignment(operation.path, operation.data)
        moving = moving_of(topic)
        before, self._replicas[operation.path] = self._replicas.get(operation.path, {}), dict(topic.partitions)
        for partition, replicas in before.items():
            for broker in replicas:
                if broker not in topic.partitions.get(partition, (broker,)):
                    self._removed(broker, operation.path, epoch, winner, zookeeper)
                    self._left_in_isr(broker, operation.path, partition, winner, zookeeper)
        begun = moving - self._moving.get(operation.path, frozenset())
        self._moving[operation.path] = moving
        if begun and self._is_paused_before(epoch):
            where = operation.path.rpartition("/")[2]
            self._violated(
                INVARIANT, [winner], f"a reassignment of {where} {sorted(begun)} begins, though it is paused"
            )

    def _removed(self, broker: int, path: str, epoch: int, winner: int, zookeeper: InMemoryZooKeeper | None) -> None:
        row = None if zookeeper is None else zookeeper.row(paths.broker(broker))
        if row is None or self._known.get(broker) != (epoch, row.stat.czxid):
            return
        if self._stopped.get(broker) != self._known[broker]:
            where = path.rpartition("/")[2]
            self._violated(INVARIANT, [winner], f"{where} leaves broker {broker}, which was never sent StopReplica")

    def _left_in_isr(
        self, broker: int, path: str, partition: int, winner: int, zookeeper: InMemoryZooKeeper | None
    ) -> None:
        topic = path.rpartition("/")[2]
        row = None if zookeeper is None else zookeeper.row(paths.partition_state(topic, partition))
        if row is None:
            return
        try:
            state = sound_partition_state(row.path, row.data)
        except DamagedZnode:
            return  # the state makes no sense: no controller may change it
        if broker in state.isr:
            detail = f"{topic}-{partition} leaves broker {broker}, which is in the ISR {list(state.isr)} still"
            self._violated("partition-states-sound", [winner], detail)

    def _is_paused_before(self, epoch: int) -> bool:
        """Whether the term of that epoch began after the pause, which is there still."""
        return self._paused_in is not None and epoch > self._paused_in

    # -- the trace

    def state_written(self, node: int, event: PartitionStateWritten) -> None:
        if event.why == "preferred" and self._is_paused_before(event.controller_epoch):
            name = f"{event.topic}-{event.partition}"
            self._violated(INVARIANT, [node], f"{name} goes back to its preferred leader, though it is paused")
        if self._going:
            self._written_while_going(node, event)

    def _written_while_going(self, node: int, event: PartitionStateWritten) -> None:
        name = f"{event.topic}-{event.partition}"
        for going, epoch in self._going.items():
            if epoch != event.controller_epoch:
                continue
            if event.why in ELECTIONS and event.leader == going:
                self._violated(INVARIANT, [node], f"{name}: {going} is elected ({event.why}), and is shutting down")
            elif event.why == "controlled shutdown" and going in event.previous_isr and event.leader >= 0:
                self._unnotified[going] = name

    def sent(self, event: RequestSent) -> None:
        known = (event.controller_epoch, event.to_broker_epoch)
        self._known[event.to_broker] = known
        if event.api == "StopReplica":
            self._stopped[event.to_broker] = known
        elif event.api == "LeaderAndIsr":
            self._unnotified.pop(event.to_broker, None)

    def registered(self, node: int) -> None:
        """What was said of its life before says nothing of this one."""
        self._going.pop(node, None)
        self._unnotified.pop(node, None)

    def noted(self, node: int, event: Noted, epoch: int, winner: int, zookeeper: InMemoryZooKeeper) -> None:
        going = SHUTTING_DOWN.fullmatch(event.message)
        if going is not None:
            self._going[int(going[2])] = int(going[1])
            self._unnotified.pop(int(going[2]), None)
        elif node == winner and event.message.endswith(GIVEN_BACK):
            moving = [path for path, partitions in self._moving.items() if partitions]
            if moving:
                self._violated(INVARIANT, [node], f"leaders are given back while partitions move: {sorted(moving)}")
        elif event.message == ALL_MOVED and self._going.get(node) == epoch:
            if node in self._unnotified:
                detail = f"it was not notified that it no longer leads {self._unnotified[node]}"
                self._violated(INVARIANT, [node, winner], f"everything was moved, and {detail}")
            led = _led_by(zookeeper, node)
            if led:
                self._violated(INVARIANT, [node, winner], f"everything was moved, it was notified, and it leads {led}")


def moving_of(topic: TopicAssignment) -> frozenset[int]:
    return frozenset(one for one in topic.adding.keys() | topic.removing.keys())


def _led_by(zookeeper: InMemoryZooKeeper, node: int) -> list[str]:
    """What it leads that others hold too, of topics that stay."""
    found = []
    for name in zookeeper.children(paths.BROKER_TOPICS) or ():
        row = zookeeper.row(paths.topic(name))
        if row is None or zookeeper.row(paths.delete_topic(name)) is not None:
            continue
        for partition, replicas in decode_topic_assignment(row.path, row.data).partitions.items():
            state = zookeeper.row(paths.partition_state(name, partition))
            if len(replicas) < 2 or state is None:
                continue
            known = decode_partition_state(state.path, state.data)
            if known.leader == node and state_fault(known) is None:  # a state that makes no sense is not moved
                found.append(f"{name}-{partition}")
    return found
