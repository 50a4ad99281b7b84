"""A fleet's failures, modelled in SimPy: machines break down, a crew repairs them, one after the other. What runs on
the machines is a cluster of this project's brokers and controllers, so that what a failure does to the data is not
modelled but happens.

    python docs/examples/fleet.py
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from controller.simulator import Simulation
from controller.simulator.simpy_bridge import SimPyBridge

PARTITIONS = 12
LOOK_S = 0.05


@dataclass
class Figures:
    """`breakdowns`; and for how long partitions had no leader, in partition-seconds."""

    breakdowns: int = 0
    leaderless_s: float = 0.0


def machine(
    env: simpy.Environment, bridge: SimPyBridge, broker: int, crew: simpy.Resource, rng: random.Random, figures: Figures
) -> Generator[simpy.Event, Any, None]:
    """Breaks down now and then, and is back when the crew has come and has repaired it."""
    while True:
        yield env.timeout(rng.expovariate(1 / 60.0))
        bridge.act(lambda world: world.kill(broker))
        figures.breakdowns += 1
        with crew.request() as turn:
            yield turn
            yield env.timeout(rng.uniform(5.0, 15.0))
        bridge.act(lambda world: world.start(broker))


def look(env: simpy.Environment, bridge: SimPyBridge, figures: Figures) -> Generator[simpy.Event, Any, None]:
    """Counts whose leader is nobody, or dead, twenty times a second."""
    while True:
        yield env.timeout(LOOK_S)
        world = bridge.world
        running = world.running
        figures.leaderless_s += LOOK_S * sum(state.leader not in running for state in world.partitions().values())


def simulate(brokers: int, crews: int, seconds: float, seed: int) -> Figures:
    env = simpy.Environment()
    world = Simulation(brokers, seed=seed, session_timeout_ms=2_000)
    world.run_until(lambda: len(world.registered) == brokers)
    world.answer(world.create_topic("orders", PARTITIONS, 3))
    world.run_until_rest()

    bridge = SimPyBridge(env, world)  # from here on its time is SimPy's
    figures = Figures()
    crew = simpy.Resource(env, capacity=crews)
    for broker in world.running:
        env.process(machine(env, bridge, broker, crew, random.Random(f"{seed}/{broker}"), figures))
    env.process(look(env, bridge, figures))
    env.run(until=seconds)
    return figures


def main() -> None:
    for crews in (1, 2):
        figures = simulate(brokers=5, crews=crews, seconds=300, seed=11)
        print(
            f"{crews} crew{'s' if crews > 1 else ''}: {figures.breakdowns} breakdowns,"
            f" {figures.leaderless_s:.2f} partition-seconds without a leader"
        )


if __name__ == "__main__":
    main()
