"""Answers that wait until this broker's metadata is as a client asked, or until their time is up: what was created has
its leaders, what was deleted is not there any more (Kafka's DelayedCreateTopics, DelayedCreatePartitions and
DelayedDeleteTopics). They wait in a purgatory; runs on the broker's one thread, as its timer does; no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from controller.broker.metadata.metadata_cache import MetadataCache, MetadataSnapshot
from controller.clock import Clock
from controller.timer.operation import DelayedOperation
from controller.timer.ports import Timer
from controller.timer.purgatory import Purgatory
from controller.timer.task import TimerTask

Lacking: TypeAlias = Callable[[MetadataSnapshot], frozenset[str]]
"""Of the topics waited for, those that are not yet as they were asked to be."""


def without_leaders(wanted: Sequence[tuple[str, int]]) -> Lacking:
    """`wanted`: (topic, number of partitions). Lacking is a topic of which a partition has no leader."""
    return lambda snapshot: frozenset(
        topic
        for topic, partitions in wanted
        if not all(snapshot.has_leader(topic, partition) for partition in range(partitions))
    )


def still_there(topics: Sequence[str]) -> Lacking:
    return lambda snapshot: frozenset(topic for topic in topics if topic in snapshot.topics)


class DelayedTopics(DelayedOperation):
    """`done` is given the topics that are lacking when it ends."""

    __slots__ = ("_done", "_lacking", "_metadata")

    def __init__(
        self, timeout_ms: int, lacking: Lacking, metadata: MetadataCache, done: Callable[[frozenset[str]], None]
    ) -> None:
        super().__init__(timeout_ms)
        self._lacking = lacking
        self._metadata = metadata
        self._done = done

    def try_complete(self) -> bool:
        return not self._lacking(self._metadata.snapshot) and self.force_complete()

    def on_complete(self) -> None:
        self._done(self._lacking(self._metadata.snapshot))


class MetadataWait:
    """`timer` is shared by all waiting requests of the broker; `on_error` is called if an answer could not be made,
    and the others are still made."""

    def __init__(
        self,
        metadata: MetadataCache,
        timer: Timer,
        clock: Clock,
        on_error: Callable[[TimerTask, Exception], None],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self.purgatory: Purgatory[str, DelayedTopics] = Purgatory(timer, on_error=on_error)

    def __len__(self) -> int:
        return self.purgatory.delayed

    def wait(self, lacking: Lacking, deadline_ms: float, done: Callable[[frozenset[str]], None]) -> None:
        """Calls `done` once, with the topics that are lacking: none when there are none (at once if it is so
        already), else those when `deadline_ms` came."""
        left_ms = math.ceil(deadline_ms - self._clock.now_ms())
        operation = DelayedTopics(left_ms, lacking, self._metadata, done)
        if left_ms <= 0:
            operation.force_complete()
        else:
            self.purgatory.try_complete_else_watch(operation, (_METADATA,))

    def metadata_changed(self) -> None:
        self.purgatory.check_and_complete(_METADATA)


_METADATA = "metadata"
"""One key for all: requests about topics are few, and a snapshot may change in any of its topics at once."""
