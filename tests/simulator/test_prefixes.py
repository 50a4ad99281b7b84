"""Each operation of several steps, its controller killed after each of its writes: whoever leads next ends it where an
undisturbed one ends. `tests/incidents/test_prefixes.py` strikes at every await and in more ways, with brokers that are
models; here everything is real but the machines.
"""

from __future__ import annotations

import pytest

from controller.core import topic_deletion
from controller.core.handlers import reassignment
from controller.core.leadership import Term
from controller.simulator.simulation import NotInTime
from tests.simulator.prefixes import OPERATIONS, Operation, Strike, carried_out

AFTER_MS = (0.0, 2.0)
"""Before it can hear that its write was made; when it has told brokers of it."""

WRITES = {
    "failover": 4,
    "broker failure and return": 2,
    "ISR change": 4,
    "topic creation": 3,
    "topic deletion": 3,
    "partition addition": 2,
    "reassignment that adds": 5,
    "reassignment that removes": 4,
    "reassignment that reorders": 2,
    "reassignment to others": 6,
    "cancellation": 2,
    "override": 4,
    "preferred election": 1,
    "preferred election by znode": 2,
    "unclean election": 1,
    "config change": 2,
    "controlled shutdown": 1,
    "log directory failure": 2,
    "feature update": 1,
}
"""At least so many there are: fewer would mean that the strikes missed it."""


def every_prefix(operation: Operation) -> int:
    """How many writes an undisturbed one takes. AssertionError names the one after which it went wrong."""
    undisturbed, writes = carried_out(operation)
    for at in range(1, writes + 1):
        for after_ms in AFTER_MS:
            end, _ = carried_out(operation, Strike(at, after_ms))
            assert end == undisturbed, f"{operation.name}, killed {after_ms:g} ms after write {at}"
    return writes


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: str(one.name))
def test_wherever_its_controller_dies_it_ends_where_an_undisturbed_one_ends(operation: Operation) -> None:
    assert every_prefix(operation) >= WRITES[operation.name]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (reassignment, "reassignment to others"),
        (topic_deletion, "topic deletion"),
    ],
    ids=["reassignments", "deletions"],
)
def test_a_controller_that_takes_nothing_up_is_found(place: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(term: Term) -> int:
        return 0

    monkeypatch.setattr(place, "take_up", nothing)
    operation = next(one for one in OPERATIONS if one.name == name)
    with pytest.raises((AssertionError, NotInTime)):
        every_prefix(operation)
