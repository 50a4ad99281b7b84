"""Every scenario once, its whole trace written down: for comparing what two processes make of the same seeds.

    PYTHONHASHSEED=1 python -m tests.simulator.determinism FOLDER PART
    PYTHONHASHSEED=1 python -m tests.simulator.determinism FOLDER --planted

PART is 0 or 1: every other scenario. `--planted` runs one world alone, and puts in what must not be: chance that
depends on the hash of a string.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from controller.scenarios.files import built_in, load_scenario
from controller.scenarios.language import Scenario
from controller.simulator import Simulation
from controller.simulator.randomness import Streams
from controller.simulator.run import simulate
from controller.trace_records import TraceRecord, encode_record
from tests.simulator.scenarios import FAULTS, scenario

SEED = 7
PARTS = 2
WITH_CLIENTS = ("coordinator-kill", "exactly-once", "group-rebalance")
"""Scenarios that are about records, of which there are fewer here."""
OWN_WORLD = "a world of one's own"


def scenarios() -> Iterator[tuple[str, Scenario]]:
    """All there are, of those with transactions one; `acks-1-loss` alone with clients of records, which are what it is
    about."""
    for name in sorted(built_in()):
        if "[workload.transactions]" in built_in()[name] and name != "exactly-once":
            continue
        parameters = load_scenario(name).parameters
        fewer = {"simulated_rate": "10"} if name in WITH_CLIENTS else {}
        yield name, load_scenario(name, {"records": "false"} if parameters.get("records") is True else fewer)
    for name in sorted(FAULTS):
        yield name, scenario(name)


def own_world() -> list[TraceRecord]:
    """A world with user-defined nodes."""
    world = Simulation(3, seed=SEED)
    names = [world.add_node(f"own-{number}") for number in range(3)]
    for node in names:
        node.on_message = lambda sender, message, node=node: node.note(f"{sender}: {message!r}")  # type: ignore[misc]
        for other in names:
            node.clock.call_later(500.0, lambda node=node, other=other: node.send(other.id, b"?"))  # type: ignore[misc]
    world.run_for(1_500.0)
    world.kill(world.controller or 1, for_ms=500.0)
    world.run_for(3_000.0)
    return list(world.records)


def traces(part: int) -> Iterator[tuple[str, list[TraceRecord]]]:
    for number, (name, each) in enumerate(scenarios()):
        if number % PARTS == part:
            yield name, list(simulate(each, SEED).report.records)
    if part == 0:
        yield OWN_WORLD, own_world()


def main(words: list[str]) -> None:
    folder = Path(words[0])
    if words[1] != "--planted":
        written = traces(int(words[1]))
    else:
        Streams.stream = lambda self, purpose: random.Random(hash(f"{self.seed}/{purpose}"))  # type: ignore[method-assign]
        written = iter([(OWN_WORLD, own_world())])
    for number, (name, records) in enumerate(written):
        (folder / f"{number:02} {name}.jsonl").write_bytes(b"".join(map(encode_record, records)))


if __name__ == "__main__":
    main(sys.argv[1:])
