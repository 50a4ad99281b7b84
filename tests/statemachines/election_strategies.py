"""Random partitions to elect leaders for: any width, ISRs that are empty or name strangers, large broker ids."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.statemachines.election_check import Case

BROKERS = [0, 1, 2, 3, 5, 8, 1001, 1_000_000, 2**31 - 1]
"""Few enough that assignment, ISR and live meet; the last is the largest id that a broker can have."""


@st.composite
def cases(draw: st.DrawFn, shutting_down: frozenset[int] | None = None) -> Case:
    some = st.lists(st.sampled_from(BROKERS), unique=True)
    assignment = tuple(draw(some))
    in_sync = st.lists(st.sampled_from(assignment), unique=True) if assignment else st.just([])
    isr = tuple(draw(st.one_of(in_sync, some)))
    if shutting_down is None:
        shutting_down = frozenset(draw(some))
    return Case(assignment, isr, frozenset(draw(some)), shutting_down, draw(st.booleans()))
