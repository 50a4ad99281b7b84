"""What a leader asks of the controller for its ISRs, on the wire: AlterIsr 0, or AlterPartition 1 to 3 (KIP-497,
KIP-704, KIP-903), as the controller's broker offers it; and what each answer means. Pure.

From version 2 on topics go by their ids, from 3 on each member goes with the life that is meant. Below 3 the lives are
a tagged field, which Kafka's brokers pass over.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from controller.protocol.control_values import (
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    AlterIsrPartition,
    AlterIsrPartitionResult,
    AlterIsrRequest,
    AlterIsrResponse,
    AlterIsrTopic,
    IsrMember,
)
from controller.protocol.errors import ErrorCode
from controller.protocol.versions import VersionRange
from controller.quick import maker, quick

Key: TypeAlias = tuple[str, int]
_asked_for, _member = maker(AlterIsrPartition), maker(IsrMember)
NAMED_BY_ID = 2
"""The version from which on topics have ids instead of names."""
WITH_LIVES = 3
"""From which on each member is told with its broker epoch."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The ISR that is asked for, by the state that it was decided on, and which lives of its members had what made
    them fit for it (empty: not known). `kept_from`: a controller that knows better, and is not asked again."""

    leader_epoch: int
    zk_version: int
    isr: tuple[int, ...]
    lives: tuple[int, ...] = ()
    topic_id: bytes = NO_TOPIC_ID
    kept_from: int | None = None


quick(Proposal)


def version_to_ask(least: int, known: VersionRange, offered: VersionRange | None, proposals: Iterable[Proposal]) -> int:
    """The newest that both ends know and in which these can be said (Kafka's AlterPartitionRequest.Builder).

    `least`: what the inter-broker protocol has; it is what a controller is asked in that offers nothing, or nothing
    that is known here.
    """
    if offered is None:
        return least
    named = all(one.topic_id != NO_TOPIC_ID for one in proposals)
    newest = min(known.last, offered.last, known.last if named else NAMED_BY_ID - 1)
    return newest if newest >= max(known.first, offered.first) else least


def request_of(broker: int, broker_epoch: int, proposals: Mapping[Key, Proposal], version: int) -> AlterIsrRequest:
    topics: dict[tuple[str, bytes], list[AlterIsrPartition]] = {}
    for (topic, index), one in proposals.items():
        of_topic = ("", one.topic_id) if version >= NAMED_BY_ID else (topic, NO_TOPIC_ID)
        topics.setdefault(of_topic, []).append(_asked(index, one, version))
    named = tuple(AlterIsrTopic(name, tuple(asked), topic_id) for (name, topic_id), asked in topics.items())
    return AlterIsrRequest(broker, named, broker_epoch)


def _asked(index: int, one: Proposal, version: int) -> AlterIsrPartition:
    if version < WITH_LIVES:
        return _asked_for(index, one.leader_epoch, one.isr, one.zk_version, one.lives)
    lives = one.lives or (NO_BROKER_EPOCH,) * len(one.isr)
    members = tuple([_member(broker, life) for broker, life in zip(one.isr, lives, strict=True)])
    return _asked_for(index, one.leader_epoch, current_isr_version=one.zk_version, new_isr_with_epochs=members)


def results_of(
    response: AlterIsrResponse, proposals: Mapping[Key, Proposal], version: int
) -> dict[Key, AlterIsrPartitionResult]:
    """By what was asked, not by what the metadata has by now; of topics that were not asked for nothing is taken."""
    names = {one.topic_id: topic for (topic, _), one in proposals.items()}
    found: dict[Key, AlterIsrPartitionResult] = {}
    for topic in response.topics:
        name = names.get(topic.topic_id, "") if version >= NAMED_BY_ID else topic.name
        found.update(
            {(name, one.partition_index): one for one in topic.partitions if (name, one.partition_index) in proposals}
        )
    return found


class Verdict(enum.Enum):
    """What becomes of a proposal. Until it is made or dropped, nobody knows which of the two ISRs holds."""

    MADE = "made"
    DROP = "drop"
    """It was not made, by nobody: the version was found right. What holds is the ISR as it was; another may be asked
    for."""
    KEEP = "keep"
    """The controller knows better, and says it: by a LeaderAndIsr of a newer epoch, or metadata of a newer version."""
    RETRY = "retry"
    """It may or may not be made: sent again as it is, so that it is recognised if it was."""


_VERDICTS: Mapping[int, Verdict] = MappingProxyType(
    {
        ErrorCode.NONE: Verdict.MADE,
        ErrorCode.OPERATION_NOT_ATTEMPTED: Verdict.DROP,
        ErrorCode.INELIGIBLE_REPLICA: Verdict.DROP,
        ErrorCode.INVALID_REQUEST: Verdict.DROP,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Verdict.KEEP,
        ErrorCode.UNKNOWN_TOPIC_ID: Verdict.KEEP,
        ErrorCode.FENCED_LEADER_EPOCH: Verdict.KEEP,
        ErrorCode.INVALID_UPDATE_VERSION: Verdict.KEEP,
        ErrorCode.NEW_LEADER_ELECTED: Verdict.KEEP,
    }
)


def verdict(error_code: int) -> Verdict:
    """As Partition.handleAlterPartitionError has it in Kafka 3.9, but for INVALID_REQUEST: there it waits for metadata,
    here it is decided anew, since an ISR that a leader of ours asks for is found invalid only after its epoch and its
    version were found right."""
    return _VERDICTS.get(error_code, Verdict.RETRY)
