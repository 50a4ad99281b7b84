"""Faults planted once, in the checkers: what each rule finds must be missed by both hosts then, so both use the rule.

The simulator feeds a checker while the run goes on, and chaos with the merged trace afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from controller.scenarios import checkers
from controller.scenarios.checkers import (
    STATE_RULES,
    Checker,
    ElectionOrder,
    RequestOrder,
    StateSoundness,
    StateWrite,
    TermEnds,
)
from controller.scenarios.invariants import INVARIANTS
from controller.simulator.safety_checker import SafetyChecker
from controller.trace import ControllerElected, ControllerResigned, RequestAnswered, RequestSent, TraceEvent
from controller.trace_records import TraceRecord
from tests.scenarios.evidence import AFTER_KILL, evidence, written

Patch = pytest.MonkeyPatch
Events = tuple[tuple[float, int, TraceEvent], ...]
LATER = replace(AFTER_KILL, zk_version=2, leader_epoch=2)


def order_ignored(patch: Patch) -> None:
    patch.setattr(RequestOrder, "_in_order", lambda self, node, event: None)


def answers_of_another_kind_taken(patch: Patch) -> None:
    patch.setattr(RequestOrder, "_answered", lambda self, at_ms, node, event: self._in_order(node, event))


def resignations_forgotten(patch: Patch) -> None:
    patch.setattr(TermEnds, "_resigned", lambda self, at_ms, node, event: None)


def elections_not_compared(patch: Patch) -> None:
    patch.setattr(checkers, "_rightful", lambda state: None)


def without(patch: Patch, rule: str) -> None:
    patch.setattr(checkers, "STATE_RULES", {name: one for name, one in STATE_RULES.items() if name != rule})


def empty_isr_taken(patch: Patch) -> None:
    without(patch, "an empty ISR")


def epochs_not_compared(patch: Patch) -> None:
    without(patch, "a leader epoch that went back")


SENT = (13.0, 1, RequestSent(1, 2, 50, "UpdateMetadata", 1, 1))
FOUND: dict[Callable[[Patch], None], tuple[str, Events]] = {
    order_ignored: ("requests-in-order", (SENT, (14.0, 1, RequestSent(1, 2, 50, "UpdateMetadata", 1, 1)))),
    answers_of_another_kind_taken: (
        "requests-in-order",
        (SENT, (14.0, 1, RequestAnswered(1, 2, "LeaderAndIsr", 1, 0))),
    ),
    resignations_forgotten: (
        "no-write-after-resignation",
        ((2200.0, 2, ControllerResigned(2, "lease")), (2210.0, 2, RequestSent(2, 3, 50, "LeaderAndIsr", 0, 1))),
    ),
    elections_not_compared: ("leaders-in-assignment-order", ((2300.0, 2, replace(LATER, assignment=(1, 3, 2))),)),
    empty_isr_taken: ("partition-states-sound", ((2300.0, 2, replace(LATER, why="alter isr", leader=-1, isr=())),)),
    epochs_not_compared: ("partition-states-sound", ((2300.0, 2, replace(LATER, leader_epoch=0)),)),
}
"""A fault, the invariant, and events that violate it."""


def violated_live(invariant: str, events: Events) -> bool:
    """As the simulator checks: each event as it is recorded, and each state as ZooKeeper applies it."""
    checker = SafetyChecker(clean=False)
    checker.take(0.0, 1, ControllerElected(1, 1, 0xA))
    checker.take(0.0, 2, ControllerElected(2, 2, 0xB))
    last = AFTER_KILL
    for at_ms, node, event in events:
        checker.take(at_ms, node, event)
        if isinstance(event, type(last)):
            for one in checker.checkers:
                one.on_commit(StateWrite("t-0", node, event, last, event.assignment))
    return checker.violation is not None and checker.violation.invariant == invariant


def violated_in_trace(invariant: str, events: Events) -> bool:
    return INVARIANTS[invariant](evidence(*events)).held is False


HOSTS = {"simulated": violated_live, "real": violated_in_trace}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("plant", FOUND, ids=lambda plant: plant.__name__)
def test_both_hosts_use_the_rule(plant: Callable[[Patch], None], host: str, monkeypatch: Patch) -> None:
    invariant, events = FOUND[plant]
    assert HOSTS[host](invariant, events)
    plant(monkeypatch)
    assert not HOSTS[host](invariant, events)


def test_every_rule_of_a_checker_is_an_invariant_of_both_hosts() -> None:
    kinds: tuple[type[Checker], ...] = (ElectionOrder, RequestOrder, StateSoundness, TermEnds)
    assert {kind for kind in Checker.__subclasses__() if kind.__module__ == checkers.__name__} == {*kinds}
    assert {name for kind in kinds for name in kind.invariants} <= INVARIANTS.keys()
    assert {type(one) for one in SafetyChecker(clean=True).checkers} == {*kinds}


def test_a_term_that_was_not_resigned_is_found_in_the_end() -> None:
    found: list[str] = []
    checker = TermEnds(lambda name, nodes, detail: found.append(detail))
    records = [TraceRecord(float(epoch), epoch, ControllerElected(epoch, epoch, epoch)) for epoch in (1, 2, 3)]
    checkers.feed(
        checker, [*records, TraceRecord(4.0, 1, ControllerResigned(1, "lease")), TraceRecord(5.0, 3, written())]
    )
    assert found == ["epoch 2 was never resigned by broker 2"]
