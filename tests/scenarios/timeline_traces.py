"""Crafted traces for timelines: a zombie with a cut link and an unclean election, and a long run of a large cluster."""

from __future__ import annotations

from functools import cache

from controller.trace import (
    BrokerRegistered,
    ControllerElected,
    ControllerResigned,
    EphemeralSeen,
    FailoverCompleted,
    FailoverPhase,
    FaultInjected,
    MetadataSeen,
    PartitionMoved,
    SessionEnded,
    SessionStarted,
    StepEnded,
    StepStarted,
    StoodStill,
    TraceEvent,
)
from controller.trace_records import OBSERVER, TraceRecord
from tests.scenarios.evidence import written

Event = tuple[float, int, TraceEvent]


def in_order(events: list[Event]) -> list[TraceRecord]:
    return sorted((TraceRecord(*event) for event in events), key=lambda record: record.at_ms)


def joins(at_ms: float, broker: int, session: int, broker_epoch: int = 1) -> list[Event]:
    """A broker's session and, 20 ms later, its registration."""
    return [
        (at_ms, broker, SessionStarted(session)),
        (at_ms + 20, broker, BrokerRegistered(broker, broker_epoch, session)),
        (at_ms + 21, OBSERVER, EphemeralSeen(f"/brokers/ids/{broker}", broker, True, session)),
    ]


def leaves(at_ms: float, broker: int, session: int) -> Event:
    return (at_ms, OBSERVER, EphemeralSeen(f"/brokers/ids/{broker}", broker, False, session))


def rules(at_ms: float, broker: int, session: int, epoch: int, failover_ms: float = 60.0) -> list[Event]:
    """An election won, and a failover of three phases."""
    third = failover_ms / 3
    phases = [
        (at_ms + third * (number + 1), broker, FailoverPhase(epoch, name, third, 12))
        for number, name in enumerate(("load context", "replica machine", "partition machine"))
    ]
    return [
        (at_ms, broker, ControllerElected(epoch, epoch, session)),
        (at_ms + 1, OBSERVER, EphemeralSeen("/controller", broker, True, session)),
        *phases,
        (at_ms + failover_ms, broker, FailoverCompleted(epoch, failover_ms, 12)),
    ]


def abdicates(at_ms: float, broker: int, session: int) -> Event:
    return (at_ms, OBSERVER, EphemeralSeen("/controller", broker, False, session))


def answers(from_ms: float, to_ms: float, led: int, expected: int, controller: int, error: str = "") -> list[Event]:
    """A client that asks every 100 ms."""
    times = range(int(from_ms), int(to_ms), 100)
    return [(at_ms, OBSERVER, MetadataSeen(expected, led, controller, (1, 2, 3), error)) for at_ms in times]


def zombie() -> list[TraceRecord]:
    """12 s: controller 1 is paused at 3 s, loses its session at 5 s to broker 2, and wakes at 8 s; broker 3 is cut off
    at 6 s, stopped at 9 s; an unclean election at 9.5 s; the machine stands still for a second until 10.6 s; topic u
    is deleted at 11 s; the last step fails."""
    events: list[Event] = [
        (0.0, OBSERVER, StepStarted(0, "start", "start brokers 1, 2, 3")),
        *(event for broker in (1, 2, 3) for event in joins(500 + 100 * broker, broker, 0xA0 + broker, broker)),
        *rules(800, 1, 0xA1, 1),
        *((1000.0 + n, 1, written(partition=n, leader=n % 3 + 1, assignment=(1, 2, 3))) for n in range(6)),
        (1010.0, 1, written(topic="u", leader=3)),
        *answers(1100, 5000, 7, 7, 1),
        (3000.0, OBSERVER, FaultInjected("pause", "1")),
        leaves(5000, 1, 0xA1),
        abdicates(5000, 1, 0xA1),
        *rules(5020, 2, 0xA2, 2),
        (5060.0, 2, written(controller_epoch=2, why="offline", leader=2, zk_version=1, isr=(2, 3))),
        (5061.0, 2, written(controller_epoch=2, partition=3, why="offline", leader=2, zk_version=1, isr=(2, 3))),
        *answers(5000, 5200, 5, 7, 2),
        *answers(5200, 8500, 7, 7, 2),
        (6000.0, OBSERVER, FaultInjected("cut", "3->zookeeper")),
        (7000.0, OBSERVER, FaultInjected("heal", "3->zookeeper")),
        (8000.0, OBSERVER, FaultInjected("resume", "1")),
        (8150.0, 1, SessionEnded(0xA1)),
        (8151.0, 1, ControllerResigned(1, "session 0xa1 is gone")),
        *joins(8300, 1, 0xB1, 9),
        (9000.0, OBSERVER, StepStarted(1, "stop", "stop broker 3")),
        (9000.0, OBSERVER, FaultInjected("stop", "3")),
        (9300.0, 3, SessionEnded(0xA3)),
        leaves(9301, 3, 0xA3),
        (9350.0, OBSERVER, StepEnded(1, "stop", True, "")),
        *answers(9300, 9500, 4, 7, 2),
        (9500.0, 2, written(controller_epoch=2, partition=2, why="offline", leader=1, zk_version=1, unclean=True)),
        (9501.0, 2, written(controller_epoch=2, partition=5, why="offline", leader=-1, zk_version=1)),
        *answers(9600, 10600, 0, 0, -1, "timed out"),
        (10600.0, OBSERVER, StoodStill(1_000.0)),
        (11000.0, 2, PartitionMoved(2, "u", 0, -1, "Offline", "NonExistent")),
        (11500.0, OBSERVER, StepStarted(2, "wait", "wait until metadata")),
        (12000.0, OBSERVER, StepEnded(2, "wait", False, "not within 500 ms: 5 of 6 led")),
    ]
    return in_order(events)


@cache
def large(brokers: int = 30, minutes: int = 10, faults: int = 20, partitions: int = 1_500) -> list[TraceRecord]:
    """A broker is killed every so often, in turn, and comes back; the client asks ten times a second. Some 25,000
    events as it stands."""
    events: list[Event] = []
    session = 100
    held = {}
    for broker in range(1, brokers + 1):
        held[broker] = session
        events += joins(100.0 * broker, broker, session, session)
        session += 1
    end_ms = minutes * 60_000.0
    controller, epoch = 1, 1
    events += rules(150, 1, held[1], 1)
    leader = {n: n % brokers + 1 for n in range(partitions)}
    version = dict.fromkeys(leader, 0)
    events += [(4000.0 + n / 10, 1, written(partition=n, leader=leader[n])) for n in leader]
    events += answers(5000, end_ms, partitions, partitions, controller)
    every_ms = (end_ms - 20_000) / faults
    for number in range(faults):
        at_ms, struck = 10_000 + number * every_ms, number % brokers + 1
        events.append((at_ms, OBSERVER, FaultInjected("kill", str(struck))))
        events.append(leaves(at_ms + 2000, struck, held[struck]))
        if struck == controller:
            events.append(abdicates(at_ms + 2000, struck, held[struck]))
            controller, epoch = struck % brokers + 1, epoch + 1
            events += rules(at_ms + 2010, controller, held[controller], epoch)
        for n in [n for n in leader if leader[n] == struck]:
            leader[n], version[n] = controller, version[n] + 1
            state = written(
                controller_epoch=epoch, partition=n, why="offline", leader=controller, zk_version=version[n]
            )
            events.append((at_ms + 2100 + n / 10, controller, state))
        held[struck] = session
        events.append((at_ms + 3000, OBSERVER, StepStarted(number, "start", f"start broker {struck}")))
        events += joins(at_ms + 4000, struck, session, session)
        session += 1
    return in_order(events)
