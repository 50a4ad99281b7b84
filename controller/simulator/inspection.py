"""What is inside one broker of a simulated cluster at this moment, for reading."""

from __future__ import annotations

from collections.abc import Iterator

from controller.broker.node import Node
from controller.core.context import NO_STATE
from controller.core.leadership import Term
from controller.simulator.broker_process import SimulatedBroker
from controller.zookeeper.memory.server import InMemoryZooKeeper


def inside(process: SimulatedBroker | None, zookeeper: InMemoryZooKeeper) -> str:
    return "\n".join(_lines(process, zookeeper)) + "\n"


def _lines(process: SimulatedBroker | None, zookeeper: InMemoryZooKeeper) -> Iterator[str]:
    if process is None:
        yield "it was never started"
        return
    session = process.connection.session()
    yield f"process   {process.process.name}, {process.process.state.value}"
    yield f"clock     {process.clock.now_ms():.1f} ms, wall {process.clock.wall_ms()}"
    yield f"session   {f'0x{session:x}' if session else 'none'}, {_held(session, zookeeper)}"
    node = process.node
    if node is None or not process.alive:
        return
    yield f"events    {len(node.events)} wait, {process.event_loop.doing()}"
    yield from _controller(node)
    yield from _broker(node)
    for waiting in process.unanswered():
        yield f"asked     {waiting.api}, {waiting.waiting_ms:.1f} ms ago, unanswered"
    for kind, path in sorted(node.client.watched()):
        armed = session and (kind, path) in zookeeper.watched(session)
        yield f"watch     {kind} {path}{'' if armed else ' (not armed at the server)'}"


def _held(session: int, zookeeper: InMemoryZooKeeper) -> str:
    if session not in zookeeper.sessions():
        return "which ZooKeeper does not know"
    return f"with {', '.join(zookeeper.ephemerals(session)) or 'no ephemerals'}"


def _controller(node: Node) -> Iterator[str]:
    controller = node.controller
    term = controller.term
    yield f"takes     {controller.active_controller_id} for controller"
    if term is None:
        return
    void = controller.void_reason()
    lease_ms = controller.lease_until_ms() - term.clock.now_ms()
    yield f"leads     in controller epoch {term.epoch}, " + (
        f"void: {void}" if void else f"lease {lease_ms:.0f} ms more"
    )
    yield f"knows     brokers {list(term.context.broker_ids)}, shutting down {sorted(term.context.shutting_down)}"
    yield from _partitions(term)


def _partitions(term: Term) -> Iterator[str]:
    table = term.context.partitions
    for row in range(len(table)):
        state = (
            "no state"
            if table.zk_version[row] == NO_STATE
            else (
                f"leader {table.leader[row]} epoch {table.leader_epoch[row]} ISR {list(table.isr_of(row))}"
                f" v{table.zk_version[row]}"
            )
        )
        yield f"context   {table.name_of(row)} on {list(table.assignment_of(row))}: {state}"
    for name in sorted(term.context.deletions.queued):
        yield f"deleting  {name}"


def _broker(node: Node) -> Iterator[str]:
    snapshot = node.broker.metadata.snapshot
    yield f"metadata  brokers {sorted(snapshot.brokers)}, controller {snapshot.controller_id}"
    for topic, states in sorted(snapshot.topics.items()):
        for number, state in sorted(states.items()):
            yield f"metadata  {topic}-{number}: leader {state.leader} epoch {state.leader_epoch} ISR {list(state.isr)}"
    for partition in node.broker.replicas.partitions():
        yield (
            f"replica   {partition.topic}-{partition.index}: {partition.role.value}, leader {partition.leader} epoch"
            f" {partition.leader_epoch}"
        )
