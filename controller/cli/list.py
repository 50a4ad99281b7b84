"""`camerlengo list`: the scenarios that `chaos`, `simulate` and `campaign` take by name, with what each does."""

from __future__ import annotations

import argparse

import msgspec

from controller.cli.state import print_text
from controller.scenarios.files import built_in, load_scenario

SWARM = "swarm"
SWARM_DESCRIPTION = (
    "Randomised fault injection, in simulation only: each seed generates a cluster, faults and operations."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists the scenarios that `chaos`, `simulate` and `campaign` take by name, a line each."
    parser.add_argument("--json", action="store_true", help="print JSON: descriptions and parameters by name")


def run(arguments: argparse.Namespace) -> int:
    scenarios = {name: load_scenario(name) for name in built_in()}
    if arguments.json:
        document = {
            name: {"description": scenario.description, "parameters": scenario.parameters}
            for name, scenario in scenarios.items()
        } | {SWARM: {"description": SWARM_DESCRIPTION, "parameters": {}}}
        print_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode("utf-8"))
        return 0
    described = {name: scenario.description for name, scenario in scenarios.items()} | {SWARM: SWARM_DESCRIPTION}
    width = max(map(len, described))
    print_text("\n".join(f"{name:<{width}}  {description}" for name, description in described.items()))
    return 0
