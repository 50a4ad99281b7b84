"""What a follower knows of a partition while it follows one leader in one leader epoch. Values and state; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from controller.broker.partition import Partition
from controller.protocol.fetch_values import NO_LEADER_EPOCH, FetchPartition
from controller.storage import PartitionLog

Key: TypeAlias = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True, eq=False)
class Followed:
    """One for each LeaderAndIsr: an answer is taken only while its partition is followed by the same object, so that
    one to an older leader epoch, or to an earlier life of the partition, changes nothing.

    Where to fetch from is the log's own end, always. `agreed`: the log holds nothing that the leader's has not, as far
    as that must be known before it is fetched from. `ready_ms`: not asked about before that time. `refusals`: how many
    times in a row the leader said that it is not, or does not know. `is_behind`: it lacks something that the leader has
    committed, as far as it knows.
    """

    partition: Partition
    log: PartitionLog
    leader_epoch: int
    agreed: bool
    ready_ms: float = 0.0
    refusals: int = 0
    is_behind: bool = True
    _asked: FetchPartition | None = None

    @property
    def key(self) -> Key:
        return self.partition.key

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"

    def has_asked(self, question: FetchPartition) -> bool:
        """Whether this asked that question, and has not moved on since."""
        return self._asked is question and question.fetch_offset == self.log.log_end_offset

    def question(self, max_bytes: int, tells_epoch: bool) -> FetchPartition:
        """What is to be fetched next: the same object for as long as it is the same."""
        end, start = self.log.log_end_offset, self.log.log_start_offset
        epoch = self.log.epochs.latest if tells_epoch else NO_LEADER_EPOCH
        asked = self._asked
        if (
            asked is None
            or asked.fetch_offset != end
            or asked.log_start_offset != start
            or asked.last_fetched_epoch != epoch
        ):
            asked = _asked(self.partition.index, end, max_bytes, self.leader_epoch, epoch, start)
            self._asked = asked
        return asked


_asked = lru_cache(maxsize=1_024)(FetchPartition)
"""Of idle partitions many are asked the same."""
