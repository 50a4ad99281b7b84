"""Every operation of several steps is completed by whoever leads next, wherever the controller before it stopped."""

from __future__ import annotations

import pytest

from tests.incidents.deletion import DELETION
from tests.incidents.interruption import STRIKES, Operation, Strike, at_await, every_place
from tests.incidents.more_operations import MORE_OPERATIONS
from tests.incidents.on_request import ON_REQUEST
from tests.incidents.operations import HELD_SHUTDOWN, OPERATIONS
from tests.incidents.reassignment import ENDING, REASSIGNMENTS

LEAST = {
    "election": (20, 4),
    "failover": (25, 6),
    "topic creation": (6, 3),
    "controlled shutdown": (2, 2),
    "controlled shutdown that is held back": (3, 2),
    "topic deletion": (8, 3),
    "broker failure": (4, 2),
    "broker start-up": (4, 2),
    "expansion": (4, 2),
    "ISR change": (1, 1),
    "reassignment": (4, 2),
    "reassignment by znode": (4, 2),
    "end of a reassignment": (6, 4),
    "cancellation of a reassignment": (4, 3),
    "override of a reassignment": (4, 3),
    "reassignments, one at a time": (6, 3),
    "preferred election": (1, 1),
    "unclean election": (1, 1),
    "config change": (2, 1),
    "log directory failure": (3, 2),
    "feature update": (2, 1),
}
"""At least so many awaits and writes there are: fewer would mean that the strikes missed it."""


CASES = [(operation, strike) for operation in (*OPERATIONS, DELETION, *MORE_OPERATIONS, ENDING) for strike in STRIKES]
FATAL = [strike for strike in STRIKES if strike.name in ("dies", "is deposed inside its session")]
CASES += [(operation, strike) for operation in (HELD_SHUTDOWN, *ON_REQUEST) for strike in FATAL]
CASES += [(operation, strike) for operation in REASSIGNMENTS if operation is not ENDING for strike in FATAL]
"""What only begins, or is taken back, is struck by the two strikes that leave its prefix to another controller: alone,
and with the first one coming back."""


@pytest.mark.parametrize(
    ("operation", "strike"), CASES, ids=lambda one: str(one.name) if isinstance(one, Operation | Strike) else ""
)
def test_wherever_it_is_interrupted_the_next_controller_completes_it(operation: Operation, strike: Strike) -> None:
    awaits, writes = LEAST[operation.name]
    assert every_place(operation, strike) >= (awaits if strike.arm is at_await else writes)
