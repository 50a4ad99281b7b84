"""The events of what is asked about the cluster as a whole: finalized features, and blocks of producer ids.

As those of `events`: values only, each answered exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.events import RESIGNED, AnsweredOnce
from controller.protocol.cluster_values import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from controller.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True, eq=False)
class UpdateFeaturesRequested(AnsweredOnce):
    """A client asks that features be finalized at other levels, or not at all."""

    value: UpdateFeaturesRequest
    respond: Callable[[UpdateFeaturesResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(UpdateFeaturesResponse(int(error), message))


@dataclass(frozen=True, slots=True, eq=False)
class AllocateProducerIdsRequested(AnsweredOnce):
    """A broker asks for a block of producer ids of its own."""

    value: AllocateProducerIdsRequest
    respond: Callable[[AllocateProducerIdsResponse], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        self.respond(AllocateProducerIdsResponse(int(error)))
