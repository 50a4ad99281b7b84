"""FindCoordinator: there are no groups and no transactions here, so that nobody coordinates them. Pure.

COORDINATOR_NOT_AVAILABLE is what a Kafka cluster answers as long as it has no coordinator: a client asks again, and one
that only wanted to know goes on without.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.protocol.admin_values import (
    COORDINATOR_OF_GROUP,
    COORDINATOR_OF_TRANSACTION,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from controller.protocol.errors import ErrorCode

NO_GROUPS = "There are no consumer groups here: consume with partitions that are assigned by hand."
NO_TRANSACTIONS = "There are no transactions here."


def find_coordinator(
    request: FindCoordinatorRequest, version: int, answer: Callable[[FindCoordinatorResponse], None]
) -> None:
    if request.key_type == COORDINATOR_OF_GROUP:
        answer(FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_GROUPS))
    elif request.key_type == COORDINATOR_OF_TRANSACTION:
        answer(FindCoordinatorResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_TRANSACTIONS))
    else:
        answer(FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, f"Key type {request.key_type}: expected 0 or 1."))
