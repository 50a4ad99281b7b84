"""`camerlengo bench watches`: watches in ZooKeeper, and the events that a change of the cluster fires, by the number of
brokers.

The present design is measured: real brokers in the simulator. The old design, which Kafka once had, is counted by its
rule: every broker watches the lists of brokers and topics and each topic's assignment, each replica watches its
partition's state, and a dead leader's replicas elect by themselves. A watch that fired counts as set again at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeAlias
from unittest.mock import patch

from controller.core.placement import assign_replicas
from controller.scenarios.faults import Reassign
from controller.simulator import Simulation
from controller.zookeeper.memory.session import ClientSession
from controller.zookeeper.operations import WatchEvent
from tests.benchmarks import common

PAGE = "docs/controller.md"
TABLE = "watches"
PARTITIONS = 100
REPLICAS = 3
LIMIT_MS = 600_000.0
LOOK_MS = 1_000.0
"""Between two looks at the cluster's state: at each event, as in `Simulation.run_until`, they would cost the most."""
SETTLE_MS = 3_000.0
"""Of virtual time, after which a change has been carried out; to look whether it has would take far longer."""
WATCHES, MOST = "watches", "watches of one broker"
DEATH, CREATION, REASSIGNMENT = "broker dies", f"topic of {PARTITIONS}", "reassignment"
FIGURES = (WATCHES, MOST, DEATH, CREATION, REASSIGNMENT)
Figures: TypeAlias = Mapping[str, int]


class EventCount:
    """Counts the watch events that clients receive, in a world that is built while `installed`."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        """The sessions of the clients that count."""
        self.count = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        receive = ClientSession.receive

        def counted(session: ClientSession, message: Any) -> None:
            self.count += isinstance(message, WatchEvent) and session.session() in self.sessions
            receive(session, message)

        with patch.object(ClientSession, "receive", counted):
            yield


def present(brokers: int) -> Figures:
    """The present design. The cluster has one topic, then two."""
    events = EventCount()
    with events.installed():
        return _present(brokers, events)


def _present(brokers: int, events: EventCount) -> Figures:
    made = Simulation(brokers, seed=1, session_timeout_ms=6_000)
    wait(made, lambda: len(made.registered) == brokers)
    replicas = min(REPLICAS, brokers)

    def fired(change: Callable[[], object]) -> int:
        made.run_for(SETTLE_MS)
        events.sessions, events.count = {*made.registered.values()}, 0
        change()
        made.run_for(SETTLE_MS)
        return events.count

    def create(topic: str) -> None:
        assert made.answer(made.create_topic(topic, PARTITIONS, replicas), LIMIT_MS) == "done"

    def reassign() -> None:
        first, *others = made.partitions()["before", 0].assignment
        asked = Reassign(at_ms=made.now_ms, topic="before", partition=0, replicas=[*others, first])
        made.answer(made.inject(asked), LIMIT_MS)

    def kill() -> None:
        dead = max(broker for broker in made.running if broker != made.controller)
        made.kill(dead)
        wait(made, lambda: dead not in made.registered)

    create("before")
    made.run_for(SETTLE_MS)
    held = [len(made.zookeeper.watched(session)) for session in made.registered.values()]
    figures = {WATCHES: sum(held), MOST: max(held), REASSIGNMENT: fired(reassign)}
    figures[CREATION] = fired(lambda: create("now"))
    figures[DEATH] = fired(kill) if brokers > 1 else 0
    return figures


def wait(made: Simulation, holds: Callable[[], bool]) -> None:
    """Turn the clock until the condition holds. Raises AssertionError after LIMIT_MS of virtual time."""
    limit_ms = made.now_ms + LIMIT_MS
    while not holds():
        assert made.now_ms < limit_ms, f"not within {LIMIT_MS:,.0f} ms of virtual time"
        made.run_for(LOOK_MS)


def old(brokers: int) -> Figures:
    """The old design, by its rule, on a cluster like that of `present`."""
    replicas = min(REPLICAS, brokers)
    nodes = [(broker, None) for broker in range(1, brokers + 1)]
    placed = [assign_replicas(nodes, PARTITIONS, replicas, rng=Random(topic)) for topic in (1, 2)]
    before = list(placed[0].values())
    dead = brokers
    held = [3 + sum(broker in assignment for assignment in before) for broker, _ in nodes]
    lost = [assignment for topic in placed for assignment in topic.values() if dead in assignment]
    return {
        WATCHES: sum(held),
        MOST: max(held),
        # The list of brokers fires for each that lives; then each lost leader, and each smaller ISR, is a write of the
        # partition's state, which fires for each replica that lives.
        DEATH: (brokers - 1) + len(lost) * (replicas - 1) if brokers > 1 else 0,
        # The list of topics fires for each broker; then each partition's state is created.
        CREATION: brokers + PARTITIONS * replicas,
        # The topic's assignment fires for each broker; then the new leader writes the state.
        REASSIGNMENT: brokers + replicas,
    }


DESIGNS: Mapping[str, Callable[[int], Figures]] = {"present": present, "old": old}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Counts the watches that brokers hold in ZooKeeper, and the watch events that reach them when a broker dies, a"
        " topic is created and a partition is reassigned: the present design in the simulator, and by its rule the old"
        " one, in which every broker watched everything."
    )
    parser.add_argument(
        "--sizes",
        type=common.integers(),
        default=(1, 3, 10, 30, 100, 300, 1000),
        metavar="LIST",
        help="numbers of brokers (1,3,10,30,100,300,1000)",
    )
    common.add_output(parser, "watches.png", PAGE, (TABLE,))


needs = common.plots_needed


def run(arguments: argparse.Namespace) -> int:
    load_before = os.getloadavg()[0]
    found = {name: {size: count(size) for size in arguments.sizes} for name, count in DESIGNS.items()}
    rows = table(found)
    if arguments.page is not None:
        common.put_table(
            arguments.page, TABLE, [*common.markdown(rows[0], rows[1:]), "", common.circumstances(load_before)]
        )
    if arguments.plots is not None:
        draw(found, arguments.plots / "watches.png")
    common.show(arguments, {"benchmark": "watches", "partitions": PARTITIONS, "designs": found}, common.aligned(rows))
    return 0


def table(found: Mapping[str, Mapping[int, Figures]]) -> list[list[str]]:
    """A row for each number of brokers; each cell has the present figure and the old one."""
    head = ["brokers", *(f"{name}, present / old" for name in FIGURES)]
    sizes = list(found["present"])
    return [head] + [
        [f"{size:,}", *(f"{found['present'][size][name]:,} / {found['old'][size][name]:,}" for name in FIGURES)]
        for size in sizes
    ]


def draw(found: Mapping[str, Mapping[int, Figures]], place: Path) -> None:
    panels = []
    for title, names in (("Watches held", (WATCHES, MOST)), ("Watch events", (DEATH, CREATION, REASSIGNMENT))):
        lines = [
            common.Line(
                f"{name}, {design}", list(by_size), [max(one[name], 0.5) for one in by_size.values()], colour, look
            )
            for colour, name in enumerate(names)
            for (design, by_size), look in zip(found.items(), (common.Look.Measured, common.Look.Dashed), strict=True)
        ]
        panels.append(common.Panel(title, "brokers", "number", lines, log_x=True, log_y=True))
    common.save(place, "Watches: only the controller watches the cluster, or every broker does", panels)
