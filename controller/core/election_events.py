"""The events by which leaders are moved on purpose: asked for by a client, left in ZooKeeper, or due by the clock.

As those of `events`: values only, and the one with a callback is answered exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from controller.core.events import RESIGNED, AnsweredOnce
from controller.protocol.errors import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]
NO_LEADER = -1


class ElectionKind(Enum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The outcome of one partition's election: `leader` was written (NONE), or the error that prevented it."""

    error: ErrorCode
    message: str | None = None
    leader: int = NO_LEADER


Outcomes: TypeAlias = Mapping[TopicPartition, ElectionOutcome]


@dataclass(frozen=True, slots=True)
class PreferredElectionAsked:
    """/admin/preferred_replica_election came, changed or went."""

    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AutoPreferredElection:
    """It is time to look whether leaders have drifted, in the term of this epoch: a later one has its own time."""

    controller_epoch: int
    coalesces: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, eq=False)
class ElectLeadersRequested(AnsweredOnce):
    """A client asks for elections; each partition is named once."""

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    respond: Callable[[Outcomes], None]

    def refuse(self, error: ErrorCode = ErrorCode.NOT_CONTROLLER, message: str | None = RESIGNED) -> None:
        """Kafka gives this error partition by partition."""
        self.respond(dict.fromkeys(self.partitions, ElectionOutcome(error, message)))
