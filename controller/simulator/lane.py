"""One partition's records on their way from a simulated producer: what must wait, and what to make of an answer.

Pure. Rules: Kafka 2.8's Java producer (RecordAccumulator.shouldStopDrainBatchesForPartition,
TransactionManager.canRetry).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from controller.simulator.routes import NOBODY


@dataclass(slots=True, eq=False)
class Batch:
    """`records`: the producer's own numbers. `sequence`: Kafka's, of the first of them, within the partition."""

    place: int
    records: list[int]
    sequence: int
    may_be_written: bool = False


@dataclass(slots=True)
class Lane:
    """`due` not yet in a batch, `again` to be sent (once more) in the order of their sequences, `in_flight`.
    `held_ms`: not before this moment. `acknowledged_from`: the lowest sequence that was acknowledged."""

    due: deque[int] = field(default_factory=deque)
    again: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    in_flight_to: int = NOBODY
    broken: bool = False
    held_ms: float = 0.0
    next_sequence: int = 0
    acknowledged_from: int | None = None

    def waits_for_an_answer(self, node: int, *, idempotent: bool) -> bool:
        """Nothing is sent while what failed is not settled, nor to another broker than what is in flight. An idempotent
        producer's batch is sent again when none before it is in flight: the next could be taken where it is refused."""
        if not self.in_flight:
            return False
        return self.broken or self.in_flight_to != node or (idempotent and bool(self.again))

    def acknowledged(self, batch: Batch) -> None:
        if self.acknowledged_from is None or batch.sequence < self.acknowledged_from:
            self.acknowledged_from = batch.sequence

    def may_come_later(self, batch: Batch) -> bool:
        """Whether an answer "out of order" says nothing against the broker: the batch is sent again, in vain or not,
        until its time is over."""
        return self._behind_another(batch) or self._overtaken(batch)

    def _behind_another(self, batch: Batch) -> bool:
        """One before it is yet to be sent again."""
        return any(each.sequence < batch.sequence for each in (*self.again, *self.in_flight))

    def _overtaken(self, batch: Batch) -> bool:
        """One after it, in flight with it, was taken first (KAFKA-14359): a log that knows nothing of a producer begins
        with any sequence, so that it is enough that the ISR grew between the two. Not so once the log had something
        before it: with acks of all each leader knows that, and nothing could pass.

        The Java producer asks whether the batch is the one after the last that was acknowledged, and begins a new epoch
        if it is; where the answer to the one that passed was lost, that writes it twice. Here it is not done: what is
        out of order otherwise shows a leader that knows too little or too much.
        """
        if self.acknowledged_from is not None:
            return batch.sequence < self.acknowledged_from
        return any(each.may_be_written and each.sequence > batch.sequence for each in (*self.again, *self.in_flight))
