"""The seven timer schemes of Varghese and Lauck behind one interface, to be compared: `Scheme`.

    scheme = UnorderedHashedWheel(256)
    timer = scheme.start(1_000, lambda: print("late"))   # expires 1,000 ticks from now
    scheme.stop(timer)                                   # True: it was yet to come
    scheme.restart(timer, 500)
    scheme.advance_to(500)                               # tick by tick; how many expired

To be used in earnest there is the seventh, as `controller.timer` has it: with drivers, without the frame around it
that makes the others comparable here. `CATALOGUE` has them all with their published costs.
"""

from controller.timer.schemes.catalogue import CATALOGUE, Entry, table_text, wheels_needed
from controller.timer.schemes.heaps import IndexedHeap, LazyHeap
from controller.timer.schemes.hierarchy import HierarchicalWheels
from controller.timer.schemes.lists import OrderedList, UnorderedList
from controller.timer.schemes.scheme import (
    IntervalError,
    IntervalTooLong,
    IntervalTooShort,
    Scheme,
    SchemeTimer,
    TickFromAction,
)
from controller.timer.schemes.wheels import OrderedHashedWheel, SimpleWheel, UnorderedHashedWheel

__all__ = [
    "CATALOGUE",
    "Entry",
    "HierarchicalWheels",
    "IndexedHeap",
    "IntervalError",
    "IntervalTooLong",
    "IntervalTooShort",
    "LazyHeap",
    "OrderedHashedWheel",
    "OrderedList",
    "Scheme",
    "SchemeTimer",
    "SimpleWheel",
    "TickFromAction",
    "UnorderedHashedWheel",
    "UnorderedList",
    "table_text",
    "wheels_needed",
]
