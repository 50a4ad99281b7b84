"""The seven schemes in a table: their number, their costs as Varghese and Lauck give them, and how one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.timer.schemes.heaps import IndexedHeap, LazyHeap
from controller.timer.schemes.hierarchy import HierarchicalWheels
from controller.timer.schemes.lists import OrderedList, UnorderedList
from controller.timer.schemes.scheme import Scheme
from controller.timer.schemes.wheels import OrderedHashedWheel, SimpleWheel, UnorderedHashedWheel


@dataclass(frozen=True, slots=True)
class Entry:
    """One scheme in one form. `start`, `stop` and `tick` are its published costs: n timers, M slots, m wheels.

    `make(longest, slots)` builds it for intervals up to `longest` ticks, where its memory depends on them, with
    `slots` buckets in all where it has a choice.
    """

    number: int
    name: str
    structure: str
    start: str
    stop: str
    tick: str
    make: Callable[[int, int], Scheme]


def wheels_needed(longest: int, slots: int) -> int:
    """m: how many wheels it takes for intervals up to `longest` ticks, if `slots` are dealt out evenly over them.

    Raises ValueError if no number of wheels of 2 slots or more reaches that far.
    """
    for wheels in range(1, slots // 2 + 1):
        if (slots // wheels) ** wheels >= longest:
            return wheels
    raise ValueError(f"{slots} slots: no number of wheels of 2 slots or more spans {longest} ticks")


def _hierarchy(longest: int, slots: int) -> Scheme:
    return HierarchicalWheels(slots // wheels_needed(longest, slots))


CATALOGUE: tuple[Entry, ...] = (
    Entry(1, "unordered list", "a list", "O(1)", "O(1)", "O(n)", lambda longest, slots: UnorderedList()),
    Entry(2, "ordered list", "a list by due tick", "O(n)", "O(1)", "O(1)", lambda longest, slots: OrderedList()),
    Entry(3, "heap, lazy stop", "heapq", "O(log n)", "O(1)", "O(1)", lambda longest, slots: LazyHeap()),
    Entry(3, "heap, indexed", "a heap", "O(log n)", "O(log n)", "O(1)", lambda longest, slots: IndexedHeap()),
    Entry(4, "simple wheel", "a slot a tick", "O(1)", "O(1)", "O(1)", lambda longest, slots: SimpleWheel(longest)),
    Entry(
        5,
        "hashed wheel, ordered",
        "M slots, each a list by due tick",
        "worst O(n), mean O(1) if n < M",
        "O(1)",
        "O(1)",
        lambda longest, slots: OrderedHashedWheel(slots),
    ),
    Entry(
        6,
        "hashed wheel, unordered",
        "M slots, each a list",
        "O(1)",
        "O(1)",
        "worst O(n), mean O(n/M)",
        lambda longest, slots: UnorderedHashedWheel(slots),
    ),
    Entry(7, "hierarchical wheels", "m wheels, M slots in all", "O(m)", "O(1)", "O(1)", _hierarchy),
)


def table_text() -> str:
    """The catalogue as a Markdown table that ends with a line break."""
    rows = ["| | scheme | structure | start | stop | tick |", "| --- | --- | --- | --- | --- | --- |"]
    for entry in CATALOGUE:
        cells = (str(entry.number), entry.name, entry.structure, entry.start, entry.stop, entry.tick)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
