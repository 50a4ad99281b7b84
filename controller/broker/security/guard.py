"""Checks each request against the table of `table.py`, before its handler sees it.

What is denied is answered here and taken out of the request; `RequestContext.transform` adds it to the response. A
denial is one line of the log, with principal, operation, host and resource as Kafka's authorizer writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace

from controller.broker.error_responses import refusal
from controller.broker.metadata import MetadataCache
from controller.broker.request_context import RequestContext
from controller.broker.security import special_checks
from controller.broker.security.acls import CLUSTER_NAME, AclOperation, Authorizer, ResourceType
from controller.broker.security.principal import Requester
from controller.broker.security.table import (
    ACCESS,
    ERRORS,
    Check,
    Each,
    Special,
    Whole,
    operation_title,
    resource_title,
)
from controller.protocol.codec import ApiKey
from controller.protocol.errors import ErrorCode
from controller.protocol.produce import ACKS_NONE, ProduceRequest
from controller.protocol.schema import RequestValue, ResponseValue

Transform: TypeAlias = Callable[[ResponseValue], ResponseValue]


class CheckedRequest:
    """One request that is being checked. `request` is what is left of it."""

    __slots__ = ("_guard", "client", "exchange", "key", "metadata", "request")

    def __init__(self, guard: AccessGuard, client: Requester, exchange: RequestContext, request: Any) -> None:
        self._guard = guard
        self.client = client
        self.exchange = exchange
        self.key: ApiKey = exchange.header.api_key
        self.metadata = guard.metadata
        self.request: Any = request

    @property
    def creates_topics(self) -> bool:
        """Whether Metadata creates topics that are missing."""
        return self._guard.creates_topics

    def allows(
        self,
        operation: AclOperation,
        resource_type: ResourceType = ResourceType.CLUSTER,
        name: str = CLUSTER_NAME,
        *,
        quietly: bool = False,
    ) -> bool:
        """`quietly`: no line in the log, where the client did not ask for this resource by its name."""
        allowed = self._guard.authorizer.allows(self.client, operation, resource_type, name)
        if not (allowed or quietly):
            self._guard.note_denied(self.client, self.key, operation, resource_type, name)
        return allowed

    def allows_some(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        allowed = self._guard.authorizer.allows_some(self.client, operation, resource_type)
        if not allowed:
            self._guard.note_denied(self.client, self.key, operation, resource_type, "any")
        return allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The bits of the operations that the client may do (KIP-430)."""
        return special_checks.operation_bits(self.client, self._guard.authorizer, resource_type, name)

    def refuse(self, error: ErrorCode) -> None:
        """Answer all that is left."""
        if isinstance(self.request, ProduceRequest) and self.request.acks == ACKS_NONE:
            self.exchange.close()
        else:
            self.exchange.refuse(self.request, error)

    def then(self, transform: Transform) -> None:
        """Change the response before it is sent."""
        before = self.exchange.transform
        self.exchange.transform = transform if before is None else lambda value: transform(before(value))

    def split(
        self,
        array: str,
        answered_in: str,
        denied_error: Callable[[Any], ErrorCode | None],
        refused: Callable[[Any, ErrorCode], ResponseValue] = refusal,
    ) -> None:
        """Take the elements with an error out of the request, and answer them beside the others."""
        kept: list[Any] = []
        denied: dict[ErrorCode, list[Any]] = {}
        for element in getattr(self.request, array):
            error = denied_error(element)
            if error is None:
                kept.append(element)
            else:
                denied.setdefault(error, []).append(element)
        if not denied:
            return
        request = self.request
        answers = [refused(replace(request, **{array: tuple(some)}), error) for error, some in denied.items()]
        added = tuple(element for answer in answers for element in getattr(answer, answered_in))
        if isinstance(request, ProduceRequest) and request.acks == ACKS_NONE:
            self.then(lambda value: value)  # closes the connection, as a failed append does
        else:
            self.then(lambda value: replace(value, **{answered_in: (*getattr(value, answered_in), *added)}))
        self.request = replace(request, **{array: tuple(kept)})
        if kept:
            return
        if isinstance(request, ProduceRequest) and request.acks == ACKS_NONE:
            self.exchange.close()
            return
        empty: Any = replace(answers[0], **{answered_in: ()})
        self.exchange.answer(replace(empty, error_code=ErrorCode.NONE) if hasattr(empty, "error_code") else empty)


@dataclass(eq=False)
class AccessGuard:
    """`authorizer` decides, where `may_decide_for` the client; before that the connection is closed, and the client
    tries again: to deny would end producers. `note` logs (level, line). `creates_topics`: auto.create.topics.enable."""

    authorizer: Authorizer
    metadata: MetadataCache
    note: Callable[[str, str], None]
    creates_topics: bool = False
    may_decide_for: Callable[[Requester], bool] = lambda _client: True

    def admitted(self, client: Requester, exchange: RequestContext, request: RequestValue) -> Any:
        """Return what of the request the client may ask; None if all of it has been answered."""
        if not self.may_decide_for(client):
            exchange.close()
            return None
        asked = CheckedRequest(self, client, exchange, request)
        checks = ACCESS.get(asked.key)
        if checks is None:
            self.note("info", f"{asked.key.name} of {client} refused: it has no row in the table of checks")
            asked.refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return None
        for check in checks:
            _carry_out(check, asked)
            if exchange.answered:
                return None
        return asked.request

    def note_denied(
        self, client: Requester, key: ApiKey, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        resource = f"{resource_title(resource_type)}:LITERAL:{name:.249}"
        self.note(
            "info",
            f"Principal = {client.principal} is Denied Operation = {operation_title(operation)} from host ="
            f" {client.host} on resource = {resource} for request = {key.name}",
        )


def _carry_out(check: Check, asked: CheckedRequest) -> None:
    if isinstance(check, Special):
        special_checks.SPECIAL[check.name](asked)
    elif isinstance(check, Whole):
        name = CLUSTER_NAME if check.name_in is None else getattr(asked.request, check.name_in)
        if name is not None and not asked.allows(check.operation, check.resource_type, name):
            asked.refuse(ERRORS[check.resource_type])
    else:
        _each(check, asked)


def _each(check: Each, asked: CheckedRequest) -> None:
    def denied(element: Any) -> ErrorCode | None:
        name = element if check.name_in is None else getattr(element, check.name_in)
        return None if asked.allows(check.operation, check.resource_type, name) else ERRORS[check.resource_type]

    asked.split(check.array, check.answered_in, denied)
