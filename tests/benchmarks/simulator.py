"""`camerlengo bench simulator`: what the simulator gets done in a second, on one core.

The parts: the bare scheduler, a plan of the swarm, a cluster that loses a broker every 30 virtual seconds with all
invariants checked, the same while records are produced, and a large generated cluster that loses some of a thousand
brokers. The benchmark measures the CPU time of this process, so that other work on the machine affects the figures
less; for the large cluster it reports the wall time too.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from controller.cli.gc_tuning import seldom_collected
from controller.cli.values import number, number_from
from controller.clock import VirtualClock, spawn
from controller.report.summary import render_table
from controller.scenarios.faults import CreateTopic, Kill
from controller.scenarios.language import ClusterSpec, Happening, Plan
from controller.scenarios.records.history import ACKNOWLEDGED
from controller.scenarios.records.workload import RecordWorkload
from controller.simulator.large_cluster import LargeClusterSpec, LargeClusterWorld
from controller.simulator.plan_generator import draw_plan
from controller.simulator.swarm import PlanWorld, run_plan
from controller.trace import BrokerRegistered
from tests.benchmarks.common import add_count, add_output, show

Row = dict[str, Any]
WHATS = ("scheduler", "swarm", "cluster", "records", "estate")
KILL_EVERY_MS = 30_000.0
DOWN_MS = 5_000.0
TOPIC_AT_MS = 6_000.0
"""A broker whose first attempt at a session is refused begins its second after two seconds: all are there by then."""
SETTLE_MS = 20_000.0
WARM_UP_MS = 2_000.0
"""Before the measurement, for a producer to find the leaders."""
TOPIC = "wide"
ESTATE_LIMIT_MS = 120_000.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", choices=[[], *WHATS], default=[], help="parts to run (default: all)")
    add_count(parser, "--events", 1_000_000, "events of the bare scheduler")
    add_count(parser, "--seeds", 20, "seeds of the swarm")
    add_count(parser, "--brokers", 5, "brokers of the cluster")
    add_count(parser, "--partitions", 1_000, "partitions of the cluster")
    parser.add_argument(
        "--virtual-seconds",
        type=number(),
        default=120.0,
        help="duration of the cluster's run, after it is at rest (%(default)g)",
    )
    parser.add_argument(
        "--produce", type=number_from(), default=10.0, help="produce requests per virtual second (%(default)g)"
    )
    parser.add_argument(
        "--world",
        default="1000x400000",
        metavar="BROKERSxPARTITIONS",
        type=_world,
        help="size of the large cluster (%(default)s)",
    )
    parser.add_argument("--logs", action="store_true", help="brokers of the large cluster have logs, which are empty")
    add_count(parser, "--lose", 10, "number of brokers that the large cluster loses at once")
    add_output(parser)


def _world(text: str) -> LargeClusterSpec:
    brokers, _, partitions = text.partition("x")
    if not (brokers.isascii() and brokers.isdigit() and partitions.isascii() and partitions.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected brokers x partitions, as in 20x2000")
    spec = LargeClusterSpec(int(brokers), int(partitions))
    if spec.brokers < spec.replication_factor or not spec.partitions:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected {spec.replication_factor} brokers or more, and partitions"
        )
    return spec


def run(arguments: argparse.Namespace) -> int:
    measures: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
        "scheduler": _scheduler,
        "swarm": _swarm,
        "cluster": _cluster,
        "records": _records,
        "estate": _estate,
    }
    with seldom_collected():  # as `camerlengo simulate` runs
        rows = [row for name in arguments.what or WHATS for row in measures[name](arguments)]
    head = ("what", "figure", "unit")
    show(arguments, rows, render_table([head, *((row["what"], f"{row['figure']:,.2f}", row["unit"]) for row in rows)]))
    return 0


def _scheduler(arguments: argparse.Namespace) -> list[Row]:
    """Timers that each set the next: a thousand of them at a time, at moments of their own."""
    clock, left = VirtualClock(), arguments.events

    def fire() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            clock.call_later(1.0 + (left & 1023) / 1024, fire)

    for thousandth in range(1_000):
        clock.call_later(thousandth / 1_000, fire)
    began_s = time.process_time()
    clock.run_until(lambda: left <= 0, float("inf"))
    took_s = time.process_time() - began_s
    return [_row("bare scheduler", arguments.events / took_s, "events/s")]


def _swarm(arguments: argparse.Namespace) -> list[Row]:
    took_s, virtual_s = [], 0.0
    for seed in range(arguments.seeds):
        began_s = time.process_time()
        run = run_plan(draw_plan(seed))
        took_s.append(time.process_time() - began_s)
        virtual_s += run.ended_ms / 1_000
    return [
        _row("swarm, the median seed", statistics.median(took_s), "CPU s"),
        _row("swarm, the slowest seed", max(took_s), "CPU s"),
        _row("swarm", virtual_s / sum(took_s), "virtual s/s"),
    ]


def cluster_plan(brokers: int, partitions: int, virtual_ms: float, *, records: bool = False) -> Plan:
    """One topic of three replicas; from when it is there, a broker is killed every 30 s and is back 5 s later. With
    `records` the brokers have logs, and followers fetch."""
    happenings: list[Happening] = [
        CreateTopic(at_ms=TOPIC_AT_MS, topic=TOPIC, partitions=partitions, replication_factor=min(3, brokers))
    ]
    at_ms, node = SETTLE_MS, 1
    while at_ms < SETTLE_MS + virtual_ms:
        happenings.append(Kill(at_ms=at_ms, node=node, for_ms=DOWN_MS))
        at_ms, node = at_ms + KILL_EVERY_MS, node % brokers + 1
    settings = {"log.dirs": "/logs"} if records else {}
    return Plan(
        name="bench",
        seed=1,
        cluster=ClusterSpec(brokers=brokers, session_timeout_ms=6_000, settings=settings),
        core=tuple(range(1, brokers + 1)),
        calm_ms=SETTLE_MS + virtual_ms,
        metadata_interval_ms=10_000.0,  # clients that have their metadata seldom ask for it
        happenings=tuple(happenings),
    )


def _cluster(arguments: argparse.Namespace) -> list[Row]:
    """Building it is not counted."""
    plan = cluster_plan(arguments.brokers, arguments.partitions, arguments.virtual_seconds * 1_000)
    took_s, events = _run_cluster(plan, 0.0, arguments.partitions)
    name = f"{arguments.brokers} brokers, {arguments.partitions:,} partitions"
    return [
        _row(f"{name}: a kill every {KILL_EVERY_MS / 1000:g} s", arguments.virtual_seconds / took_s, "virtual s/s"),
        _row(f"{name}: trace", events / took_s, "events/s"),
    ]


def _records(arguments: argparse.Namespace) -> list[Row]:
    """The same cluster, whose brokers hold records; a producer waits for all replicas, to another partition each time,
    one record a request."""
    plan = cluster_plan(arguments.brokers, arguments.partitions, arguments.virtual_seconds * 1_000, records=True)
    took_s, _ = _run_cluster(plan, arguments.produce, arguments.partitions)
    name = f"{arguments.brokers} brokers, {arguments.partitions:,} partitions, {arguments.produce:g} produce requests/s"
    return [_row(f"{name}: a kill every {KILL_EVERY_MS / 1000:g} s", arguments.virtual_seconds / took_s, "virtual s/s")]


def _run_cluster(plan: Plan, produce_per_s: float, partitions: int) -> tuple[float, int]:
    """CPU seconds, and events of the trace, from when it is at rest on."""
    world = PlanWorld(plan)
    world.run_to(TOPIC_AT_MS)
    registered = sum(isinstance(record.event, BrokerRegistered) for record in world.safety_checker.records)
    assert registered == plan.cluster.brokers, f"{registered} brokers would share the topic"
    world.run_to(SETTLE_MS - WARM_UP_MS)
    if produce_per_s:
        workload = RecordWorkload(TOPIC, produce_per_s, producers=1, consumers=0, keys=partitions)
        spawn(world.host.produce(workload, [(TOPIC, number) for number in range(partitions)])).result()
    world.run_to(SETTLE_MS)
    with _built():
        events, began_s = len(world.safety_checker.records), time.process_time()
        world.run_to(plan.calm_ms)
        took_s = time.process_time() - began_s
    violation = world.result(None).violation
    assert violation is None, str(violation)
    history = world.host.history()
    assert history is None or (history.sends.outcome == ACKNOWLEDGED).any(), "nothing was acknowledged"
    return took_s, len(world.safety_checker.records) - events


def _estate(arguments: argparse.Namespace) -> list[Row]:
    """Measure the recovery of a large cluster until a check of all of it passes. The time of the check counts; the
    time to build the cluster is reported separately."""
    spec: LargeClusterSpec = replace(arguments.world, logs=arguments.logs)
    began_s = time.process_time()
    world = LargeClusterWorld(spec)
    world.build()
    built_s = time.process_time() - began_s
    lost = range(1, spec.brokers + 1, max(spec.brokers // arguments.lose, 1))[: arguments.lose]
    left = [broker for broker in range(1, spec.brokers + 1) if broker not in lost]
    with _built():
        began_s, wall_s = time.process_time(), time.monotonic()
        world.lose(lost)
        virtual_ms = world.until_converged(left, ESTATE_LIMIT_MS)
        took_s, wall_s = time.process_time() - began_s, time.monotonic() - wall_s
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    world.close()
    name = f"{spec.brokers:,} brokers, {spec.partitions:,} partitions" + (" with logs" if spec.logs else "")
    return [
        _row(f"{name}: building it", built_s, "CPU s"),
        _row(f"{name}: whole without {len(lost)}", took_s, "CPU s"),
        _row(f"{name}: the same by the wall", wall_s, "s"),
        _row(f"{name}: the same in virtual time", virtual_ms / 1_000, "virtual s"),
        _row(f"{name}: most memory", peak_gb, "GB"),
    ]


@contextmanager
def _built() -> Iterator[None]:
    """What stands by now stays: Python's search for garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _row(what: str, figure: float, unit: str) -> Row:
    return {"what": what, "figure": round(figure, 3), "unit": unit}
