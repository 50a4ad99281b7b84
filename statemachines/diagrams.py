"""The machines' diagrams for `docs/`: `python -m statemachines.diagrams docs/images` draws them anew.

The one file of this room that writes files; nothing imports it but its test.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statemachines.machine import CompiledMachine
from statemachines.svg import Kind, Layout, Place, draw
from statemachines.tables import OPERATION, PARTITION, REASSIGNMENT, REPLICA

PARTITION_LAYOUT = Layout(
    title="The partition machine",
    width=860,
    height=310,
    places={
        "NonExistent": Place(110, 85, Kind.Absent, "never created, or deleted"),
        "New": Place(400, 85, Kind.Absent, "no leader, no ISR yet"),
        "Online": Place(690, 85, Kind.Serving, "has a leader"),
        "Offline": Place(690, 245, Kind.Down, "its leader is gone"),
    },
    bends={("Offline", "NonExistent"): 45.0},
)

REPLICA_LAYOUT = Layout(
    title="The replica machine",
    width=900,
    height=475,
    places={
        "NonExistent": Place(110, 85, Kind.Absent, "never created, or deleted"),
        "New": Place(400, 85, Kind.Absent, "being created or added"),
        "Online": Place(690, 85, Kind.Serving, "leads or follows"),
        "Offline": Place(690, 245, Kind.Down, "broker dead or stopping"),
        "DeletionSuccessful": Place(110, 415, Kind.Deleting, "its broker deleted it"),
        "DeletionStarted": Place(400, 415, Kind.Deleting, "deletion requested"),
        "DeletionIneligible": Place(690, 415, Kind.Deleting, "can't be deleted now"),
    },
    bends={("DeletionIneligible", "Online"): -160.0},
)

OPERATION_LAYOUT = Layout(
    title="The delayed operation's machine",
    width=560,
    height=300,
    places={
        "Pending": Place(110, 150, Kind.Absent, "not answered yet"),
        "Completed": Place(450, 50, Kind.Serving, "its condition held"),
        "Expired": Place(450, 150, Kind.Down, "its time was over"),
        "Cancelled": Place(450, 250, Kind.Deleting, "what it awaited is gone"),
    },
)

REASSIGNMENT_LAYOUT = Layout(
    title="The reassignment machine",
    width=860,
    height=310,
    places={
        "Settled": Place(110, 85, Kind.Serving, "its replicas are as wanted"),
        "Waiting": Place(110, 245, Kind.Absent, "too many others move"),
        "Adding": Place(690, 245, Kind.Absent, "the target is not in sync"),
        "Completing": Place(690, 85, Kind.Deleting, "the target leads, others go"),
    },
    bends={("Completing", "Settled"): 45.0},
)

DIAGRAMS: Mapping[str, tuple[CompiledMachine[Any], Layout]] = {
    "partition-machine.svg": (PARTITION, PARTITION_LAYOUT),
    "replica-machine.svg": (REPLICA, REPLICA_LAYOUT),
    "operation-machine.svg": (OPERATION, OPERATION_LAYOUT),
    "reassignment-machine.svg": (REASSIGNMENT, REASSIGNMENT_LAYOUT),
}


def table_text(machine: CompiledMachine[Any]) -> str:
    """The machine as a Markdown table: what may follow each state, and from where each may be entered."""
    rows = ["| | state | may move to | may be entered from |", "| --- | --- | --- | --- |"]
    for state in machine.states:
        targets = ", ".join(target.name for target in machine.states if machine.allowed[state, target])
        sources = ", ".join(source.name for source in machine.states if machine.allowed[source, state])
        rows.append(f"| {int(state)} | {state.name} | {targets} | {sources} |")
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m statemachines.diagrams DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, (machine, layout) in DIAGRAMS.items():
        (directory / name).write_text(draw(machine, layout), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
