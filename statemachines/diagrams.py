"""The machines' diagrams for `docs/`: `python -m statemachines.diagrams docs/images` draws them anew.

The one file of this room that writes files; nothing imports it but its test.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from math import hypot
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from statemachines.group import GROUP
from statemachines.log_segment import SEGMENT
from statemachines.machine import CompiledMachine
from statemachines.partition import PARTITION
from statemachines.reassignment import REASSIGNMENT
from statemachines.replica import REPLICA
from statemachines.transaction import TRANSACTION

_NODE_WIDTH, _NODE_HEIGHT = 196.0, 56.0
_LOOP_WIDTH, _LOOP_REACH = 30.0, 44.0
_ARROW_GAP = 3.0
_BOTH_WAYS_BEND = 26.0


class BoxKind(Enum):
    """The look of a state's box: its fill and border."""

    Absent = ("#f3f4f6", "#9ca3af")
    Serving = ("#e3f4e7", "#3f9a57")
    Down = ("#fdeadf", "#d0743c")
    Deleting = ("#ece8fa", "#7d68c4")


@dataclass(frozen=True, slots=True)
class StateBox:
    """The centre of a state's box (pixels), its kind, and the text under its name."""

    x: float
    y: float
    kind: BoxKind
    note: str


@dataclass(frozen=True, slots=True)
class DiagramLayout:
    """`bends` moves an arrow's middle sideways, in pixels, to its left when looking along it if positive: arrows
    that go both ways are bent apart by themselves."""

    title: str
    width: int
    height: int
    places: Mapping[str, StateBox]
    bends: Mapping[tuple[str, str], float] = field(default_factory=dict)


def draw(machine: CompiledMachine[Any], layout: DiagramLayout) -> str:
    """The picture, as SVG text that ends with a line break.

    Raises ValueError if the layout does not place exactly the machine's states, or bends an arrow that isn't there.
    """
    names = [state.name for state in machine.states]
    if sorted(layout.places) != sorted(names):
        raise ValueError(f"{machine.name}: the layout places {sorted(layout.places)}, the states are {sorted(names)}")
    moves = [
        (source, target) for target in machine.states for source in machine.states if machine.allowed[source, target]
    ]
    stray = set(layout.bends) - {(source.name, target.name) for source, target in moves}
    if stray:
        raise ValueError(f"{machine.name}: the layout bends moves that the table does not have: {sorted(stray)}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {layout.height}" width="{layout.width}" '
        f'height="{layout.height}" role="img" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(layout.title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M0 1 L10 5 L0 9 z" fill="#4b5563"/></marker></defs>',
        f'<rect width="{layout.width}" height="{layout.height}" fill="#ffffff"/>',
        '<g fill="none" stroke="#4b5563" stroke-width="1.6">',
        *(_arrow(machine, layout, source, target) for source, target in moves),
        "</g>",
        *(_box(state, layout.places[state.name]) for state in machine.states),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _box(state: IntEnum, place: StateBox) -> str:
    fill, border = place.kind.value
    left, top = place.x - _NODE_WIDTH / 2, place.y - _NODE_HEIGHT / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{_NODE_WIDTH:g}" height="{_NODE_HEIGHT:g}" rx="10" fill="{fill}" '
        f'stroke="{border}" stroke-width="1.6"/>\n'
        f'<text x="{place.x:g}" y="{place.y - 3:g}" text-anchor="middle" font-size="15" font-weight="bold" '
        f'fill="#111827">{escape(state.name)}</text>\n'
        f'<text x="{place.x:g}" y="{place.y + 16:g}" text-anchor="middle" font-size="11.5" fill="#4b5563">'
        f"{int(state)} · {escape(place.note)}</text>"
    )


def _arrow(machine: CompiledMachine[Any], layout: DiagramLayout, source: IntEnum, target: IntEnum) -> str:
    start, end = layout.places[source.name], layout.places[target.name]
    if source is target:
        path = _loop(start)
    else:
        both_ways = _BOTH_WAYS_BEND if machine.allowed[target, source] else 0.0
        path = _curve(start, end, layout.bends.get((source.name, target.name), both_ways))
    return f'<path d="{path}" marker-end="url(#arrow)"><title>{source.name} to {target.name}</title></path>'


def _curve(start: StateBox, end: StateBox, bend: float) -> str:
    along_x, along_y = end.x - start.x, end.y - start.y
    length = hypot(along_x, along_y)
    # A quadratic curve's middle lies halfway to its control point.
    control_x = (start.x + end.x) / 2 + 2 * bend * along_y / length
    control_y = (start.y + end.y) / 2 - 2 * bend * along_x / length
    from_x, from_y = _border(start, control_x, control_y, 0.0)
    to_x, to_y = _border(end, control_x, control_y, _ARROW_GAP)
    return f"M{from_x:.1f} {from_y:.1f} Q{control_x:.1f} {control_y:.1f} {to_x:.1f} {to_y:.1f}"


def _border(place: StateBox, toward_x: float, toward_y: float, gap: float) -> tuple[float, float]:
    """Return the point where the way from the box's centre leaves it, `gap` pixels further on."""
    way_x, way_y = toward_x - place.x, toward_y - place.y
    length = hypot(way_x, way_y)
    across = _NODE_WIDTH / 2 / abs(way_x) if way_x else float("inf")
    down = _NODE_HEIGHT / 2 / abs(way_y) if way_y else float("inf")
    share = min(across, down) + gap / length
    return place.x + way_x * share, place.y + way_y * share


def _loop(place: StateBox) -> str:
    """A move to the same state, at the right side of its box."""
    edge, reach = place.x + _NODE_WIDTH / 2, place.x + _NODE_WIDTH / 2 + _LOOP_REACH
    side = _LOOP_WIDTH / 2
    return (
        f"M{edge:.1f} {place.y - side:.1f} "
        f"C{reach:.1f} {place.y - side * 1.6:.1f} {reach:.1f} {place.y + side * 1.6:.1f} "
        f"{edge + _ARROW_GAP:.1f} {place.y + side:.1f}"
    )


PARTITION_LAYOUT = DiagramLayout(
    title="The partition machine",
    width=860,
    height=310,
    places={
        "NonExistent": StateBox(110, 85, BoxKind.Absent, "never created, or deleted"),
        "New": StateBox(400, 85, BoxKind.Absent, "no leader, no ISR yet"),
        "Online": StateBox(690, 85, BoxKind.Serving, "has a leader"),
        "Offline": StateBox(690, 245, BoxKind.Down, "its leader is gone"),
    },
    bends={("Offline", "NonExistent"): 45.0},
)

REPLICA_LAYOUT = DiagramLayout(
    title="The replica machine",
    width=900,
    height=475,
    places={
        "NonExistent": StateBox(110, 85, BoxKind.Absent, "never created, or deleted"),
        "New": StateBox(400, 85, BoxKind.Absent, "being created or added"),
        "Online": StateBox(690, 85, BoxKind.Serving, "leads or follows"),
        "Offline": StateBox(690, 245, BoxKind.Down, "broker dead or stopping"),
        "DeletionSuccessful": StateBox(110, 415, BoxKind.Deleting, "its broker deleted it"),
        "DeletionStarted": StateBox(400, 415, BoxKind.Deleting, "deletion requested"),
        "DeletionIneligible": StateBox(690, 415, BoxKind.Deleting, "can't be deleted now"),
    },
    bends={("DeletionIneligible", "Online"): -160.0},
)

REASSIGNMENT_LAYOUT = DiagramLayout(
    title="The reassignment machine",
    width=860,
    height=310,
    places={
        "Settled": StateBox(110, 85, BoxKind.Serving, "its replicas are as wanted"),
        "Waiting": StateBox(110, 245, BoxKind.Absent, "too many others move"),
        "Adding": StateBox(690, 245, BoxKind.Absent, "the target is not in sync"),
        "Completing": StateBox(690, 85, BoxKind.Deleting, "the target leads, others go"),
    },
    bends={("Completing", "Settled"): 45.0},
)

GROUP_LAYOUT = DiagramLayout(
    title="The group machine",
    width=860,
    height=475,
    places={
        "Empty": StateBox(110, 85, BoxKind.Absent, "no members"),
        "PreparingRebalance": StateBox(400, 85, BoxKind.Down, "members join"),
        "CompletingRebalance": StateBox(690, 85, BoxKind.Absent, "the leader assigns"),
        "Stable": StateBox(690, 245, BoxKind.Serving, "assignments are known"),
        "Dead": StateBox(400, 415, BoxKind.Deleting, "deleted, or elsewhere"),
    },
    bends={},
)

SEGMENT_LAYOUT = DiagramLayout(
    title="The machine of a log segment on two tiers",
    width=1040,
    height=640,
    places={
        "Active": StateBox(150, 85, BoxKind.Serving, "appended to, SSD alone"),
        "OnlyCache": StateBox(150, 245, BoxKind.Serving, "sealed, SSD alone"),
        "Copying": StateBox(520, 85, BoxKind.Absent, "SSD; a copy is under way"),
        "Cached": StateBox(520, 245, BoxKind.Serving, "SSD and HDD"),
        "WithoutCache": StateBox(860, 245, BoxKind.Serving, "HDD alone"),
        "ActiveOnHdd": StateBox(860, 85, BoxKind.Serving, "appended to, HDD alone"),
        "Deleting": StateBox(330, 555, BoxKind.Deleting, "its files are removed"),
        "Lost": StateBox(710, 555, BoxKind.Down, "its only device is lost"),
    },
    bends={("Active", "Deleting"): -150.0, ("Active", "Lost"): 20.0, ("Copying", "Deleting"): 45.0},
)

TRANSACTION_LAYOUT = DiagramLayout(
    title="The transaction machine",
    width=1040,
    height=640,
    places={
        "Empty": StateBox(150, 85, BoxKind.Absent, "a producer, no transaction"),
        "Ongoing": StateBox(520, 85, BoxKind.Serving, "partitions are written to"),
        "PrepareEpochFence": StateBox(860, 85, BoxKind.Down, "its producer is fenced"),
        "PrepareCommit": StateBox(520, 245, BoxKind.Absent, "markers are written"),
        "PrepareAbort": StateBox(860, 245, BoxKind.Absent, "markers are written"),
        "CompleteCommit": StateBox(330, 405, BoxKind.Serving, "all have their markers"),
        "CompleteAbort": StateBox(710, 405, BoxKind.Serving, "all have their markers"),
        "Dead": StateBox(150, 555, BoxKind.Deleting, "expired"),
    },
    bends={},
)

DIAGRAMS: Mapping[str, tuple[CompiledMachine[Any], DiagramLayout]] = {
    "partition-machine.svg": (PARTITION, PARTITION_LAYOUT),
    "replica-machine.svg": (REPLICA, REPLICA_LAYOUT),
    "reassignment-machine.svg": (REASSIGNMENT, REASSIGNMENT_LAYOUT),
    "group-machine.svg": (GROUP, GROUP_LAYOUT),
    "transaction-machine.svg": (TRANSACTION, TRANSACTION_LAYOUT),
    "segment-machine.svg": (SEGMENT, SEGMENT_LAYOUT),
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
