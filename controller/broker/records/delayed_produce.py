"""A produce with acks=all that waits until every member of the ISR has its batches.

A partition's part is over when the high watermark has passed what was appended, when this broker no longer leads, or
when the time is up. Whether it *still* leads is asked of the very leadership that appended: one that was lost and won
again may have had the batches cut off in between. Source: Kafka 2.8's DelayedProduce and
Partition.checkEnoughReplicasReachOffset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.broker.leader_state import LeaderState
from controller.broker.partition import Partition
from controller.broker.records.delayed_parts import DelayedParts
from controller.protocol.errors import ErrorCode
from controller.protocol.produce_values import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from controller.quick import quick

MinInsync = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Replication:
    """What a result waits for. `leading`: the leadership that appended; `offset`: the one after the last appended."""

    partition: Partition
    leading: LeaderState
    offset: int

    def outcome(self, min_insync: MinInsync) -> ErrorCode | None:
        """None: it is not decided yet."""
        partition = self.partition
        if partition.leading is not self.leading:
            return ErrorCode.KAFKA_STORAGE_ERROR if partition.offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.high_watermark < self.offset:
            return None
        if len(self.leading.maximal_isr) < min_insync(partition.topic):
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE


quick(Replication)


@dataclass(slots=True)
class ProducePart:
    """One partition's result, which is final once nothing is `awaited`."""

    result: ProducePartitionResult
    awaited: Replication | None = None

    def settle(self, error: ErrorCode) -> None:
        self.awaited = None
        if error is not ErrorCode.NONE:
            self.result = replace(self.result, error_code=error)


Parts = Sequence[tuple[str, Sequence[ProducePart]]]
"""By topic, as the request has them."""


def response(parts: Parts) -> ProduceResponse:
    return ProduceResponse(
        tuple(ProduceTopicResult(topic, tuple(part.result for part in those)) for topic, those in parts)
    )


class DelayedProduce(DelayedParts[ProducePart]):
    __slots__ = ("_answer", "_min_insync")

    def __init__(
        self, timeout_ms: int, parts: Parts, min_insync: MinInsync, answer: Callable[[ProduceResponse], None]
    ) -> None:
        super().__init__(timeout_ms, parts)
        self._min_insync = min_insync
        self._answer = answer

    def look_at(self, part: ProducePart) -> None:
        error = part.awaited.outcome(self._min_insync) if part.awaited is not None else None
        if error is not None:
            part.settle(error)

    def give_up(self, part: ProducePart) -> None:
        part.settle(ErrorCode.REQUEST_TIMED_OUT)

    def answer(self) -> None:
        self._answer(response(self._parts))
