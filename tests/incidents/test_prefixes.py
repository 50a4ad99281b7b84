"""Every operation of several steps is completed by whoever leads next, wherever the controller before it stopped."""

from __future__ import annotations

import pytest

from tests.incidents.interruption import STRIKES, Operation, Strike, at_await, every_place
from tests.incidents.operations import OPERATIONS

AWAITS = {"election": 10, "failover": 20, "topic creation": 6, "controlled shutdown": 2}
WRITES = {"election": 4, "failover": 6, "topic creation": 3, "controlled shutdown": 2}
"""At least so many places there are: fewer would mean that the strikes missed it."""


@pytest.mark.parametrize("strike", STRIKES, ids=lambda strike: str(strike.name))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.name))
def test_wherever_it_is_interrupted_the_next_controller_completes_it(operation: Operation, strike: Strike) -> None:
    places = every_place(operation, strike)
    least = AWAITS if strike.arm is at_await else WRITES
    assert places >= least[operation.name], places
