"""Every operation of several steps is completed by whoever leads next, wherever the controller before it stopped."""

from __future__ import annotations

import pytest

from tests.incidents.deletion import DELETION
from tests.incidents.interruption import STRIKES, Operation, Strike, at_await, every_place
from tests.incidents.more_operations import MORE_OPERATIONS
from tests.incidents.operations import OPERATIONS

LEAST = {
    "election": (20, 4),
    "failover": (25, 6),
    "topic creation": (6, 3),
    "controlled shutdown": (2, 2),
    "topic deletion": (8, 3),
    "broker failure": (4, 2),
    "broker start-up": (4, 2),
    "expansion": (4, 2),
    "ISR change": (1, 1),
}
"""At least so many awaits and writes there are: fewer would mean that the strikes missed it."""


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: str(strike.name))
@pytest.mark.parametrize(
    "operation", [*OPERATIONS, DELETION, *MORE_OPERATIONS], ids=lambda operation: str(operation.name)
)
def test_wherever_it_is_interrupted_the_next_controller_completes_it(operation: Operation, strike: Strike) -> None:
    awaits, writes = LEAST[operation.name]
    assert every_place(operation, strike) >= (awaits if strike.arm is at_await else writes)
