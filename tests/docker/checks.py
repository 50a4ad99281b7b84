"""What must hold of a cluster in containers, judged from what ZooKeeper, the brokers and their traces say.

Pure: documents and views in, sentences about what is wrong out. The containers' tests wait until there are none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.trace import ControllerElected, ControllerResigned, PartitionStateWritten, RequestSent
from controller.trace_records import TraceRecord

State = Mapping[str, Any]
"""The document that `camerlengo state --json` prints."""


@dataclass(frozen=True, slots=True)
class Partition:
    """As ZooKeeper or a broker's metadata shows it; an epoch that is not told is -1."""

    leader: int
    isr: tuple[int, ...]
    assignment: tuple[int, ...]
    leader_epoch: int = -1
    controller_epoch: int = -1


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What one broker's metadata says. `controller` -1: none."""

    brokers: tuple[int, ...]
    controller: int
    partitions: Mapping[tuple[str, int], Partition]


def live_brokers(state: State) -> dict[int, int]:
    """The registered brokers' epochs by their ids: another life, another epoch."""
    return {broker["id"]: broker["broker_epoch"] for broker in state["brokers"] if broker["live"]}


def controller_of(state: State) -> int:
    """The controller's broker id, -1 if there is none or it is not registered."""
    controller = state["controller"]
    return int(controller["broker_id"]) if controller is not None and controller["live"] else -1


def partitions_of(state: State, topic: str) -> dict[tuple[str, int], Partition]:
    """The topic's partitions that have a state; empty where there is no such topic."""
    return {
        (topic, partition["partition"]): Partition(
            partition["leader"],
            tuple(partition["isr"]),
            tuple(partition["assignment"]),
            partition["leader_epoch"],
            partition["controller_epoch"],
        )
        for one in state["topics"]
        if one["name"] == topic
        for partition in one["partitions"]
        if partition.get("leader_epoch") is not None
    }


def unsettled(state: State, topic: str | None, count: int, live: Collection[int]) -> list[str]:
    """What ZooKeeper shows that is not as it should be once a fault is over: `live` registered, one of them controller,
    and `count` partitions of the topic, if one is named, led from within an ISR of live brokers."""
    wrong = []
    if live_brokers(state).keys() != set(live):
        wrong.append(f"registered: {sorted(live_brokers(state))}, expected {sorted(live)}")
    if controller_of(state) not in live:
        wrong.append(f"controller: {state['controller']}, expected one of {sorted(live)}")
    if topic is None:
        return wrong
    partitions = partitions_of(state, topic)
    if len(partitions) != count:
        wrong.append(f"{topic}: {len(partitions)} partitions have a state, expected {count}")
    for (_, number), view in sorted(partitions.items()):
        if view.leader not in view.isr or not set(view.isr) <= set(live):
            wrong.append(f"{topic}-{number}: leader {view.leader}, ISR {view.isr}, live {sorted(live)}")
    return wrong


def incomplete(state: State, topic: str | None, broker: int, view: BrokerView) -> list[str]:
    """What a broker's metadata tells a client that is not what ZooKeeper holds."""
    wrong = []
    if set(view.brokers) != live_brokers(state).keys():
        wrong.append(f"broker {broker} lists {sorted(view.brokers)}, registered {sorted(live_brokers(state))}")
    if view.controller != controller_of(state):
        wrong.append(f"broker {broker} says controller {view.controller}, it is {controller_of(state)}")
    for key, held in sorted(partitions_of(state, topic).items() if topic is not None else ()):
        told = view.partitions.get(key)
        if told is None or (told.leader, told.isr, told.leader_epoch) != (held.leader, held.isr, held.leader_epoch):
            wrong.append(f"broker {broker} tells {key[0]}-{key[1]} as {told}, it is {held}")
    return wrong


def written_by_another_epoch(before: State, after: State, topic: str, epoch: int) -> list[str]:
    """The topic's states that changed without carrying `epoch`, the only controller's in between."""
    was, now = partitions_of(before, topic), partitions_of(after, topic)
    return [
        f"{topic}-{number}: {was.get((topic, number))} became {view}, the controller's epoch is {epoch}"
        for (_, number), view in sorted(now.items())
        if view != was.get((topic, number)) and view.controller_epoch != epoch
    ]


def acts_as_controller(records: Iterable[TraceRecord], after_ms: float) -> list[str]:
    """What a broker did as controller after a moment of the machine's monotonic clock: elections won, states written,
    requests sent."""
    return [
        f"at {record.at_ms:.0f} ms: {record.event}"
        for record in records
        if record.at_ms > after_ms and isinstance(record.event, ControllerElected | PartitionStateWritten | RequestSent)
    ]


def resignation(records: Iterable[TraceRecord], epoch: int) -> TraceRecord | None:
    """The record of the end of the term of that epoch."""
    for record in records:
        if isinstance(record.event, ControllerResigned) and record.event.controller_epoch == epoch:
            return record
    return None


def election(records: Iterable[TraceRecord], epoch: int) -> TraceRecord | None:
    """The record of the election to that epoch."""
    for record in records:
        if isinstance(record.event, ControllerElected) and record.event.controller_epoch == epoch:
            return record
    return None
