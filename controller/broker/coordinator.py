"""FindCoordinator: consumer groups and transactions are not supported, so ApiVersions does not offer it, and a client
that needs a coordinator fails at once with an error that names the request.

librdkafka is the exception. It takes FindCoordinator for the sign that a broker reads lz4, and without it sends lz4
batches uncompressed; and its `subscribe()` waits in silence whether or not the request is offered. So it is offered to
librdkafka alone, which gets COORDINATOR_NOT_AVAILABLE, an error that a consumer with `assign()` passes over, and each
client is named once in the log.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.broker.request_context import RequestContext
from controller.protocol.client import (
    COORDINATOR_OF_GROUP,
    COORDINATOR_OF_TRANSACTION,
    ApiVersionsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from controller.protocol.errors import ErrorCode

NO_GROUPS = "Consumer groups are not supported: use assign() instead of subscribe()."
NO_TRANSACTIONS = "Transactions are not supported."
NAMED_MAX = 1_000
"""How many clients are remembered as named in the log; further ones are not named."""


def needs_coordinator_offered(request: ApiVersionsRequest) -> bool:
    """Whether librdkafka asks, by itself or inside a client that has a name of its own (kcat, confluent-kafka)."""
    return "rdkafka" in request.client_software_name or "rdkafka" in request.client_software_version


class NoCoordinators:
    """`note(level, message)` writes to the log."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._named: set[tuple[str | None, str]] = set()

    def find_coordinator(self, exchange: RequestContext, request: FindCoordinatorRequest) -> None:
        error, client = ErrorCode.COORDINATOR_NOT_AVAILABLE, exchange.header.client_id
        if request.key_type == COORDINATOR_OF_GROUP:
            self._name(client, request.key, f"group {request.key!r}", NO_GROUPS)
            exchange.answer(FindCoordinatorResponse(error, NO_GROUPS))
        elif request.key_type == COORDINATOR_OF_TRANSACTION:
            self._name(client, request.key, f"transactional id {request.key!r}", NO_TRANSACTIONS)
            exchange.answer(FindCoordinatorResponse(error, NO_TRANSACTIONS))
        else:
            words = f"Key type {request.key_type}: expected 0 or 1."
            exchange.answer(FindCoordinatorResponse(ErrorCode.INVALID_REQUEST, words))

    def _name(self, client: str | None, key: str, what: str, words: str) -> None:
        if (client, key) in self._named or len(self._named) >= NAMED_MAX:
            return
        self._named.add((client, key))
        self._note("warning", f"client {client!r} looks for the coordinator of {what}. {words}")
