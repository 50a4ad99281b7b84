"""Answers that wait until this broker's metadata is as a client asked, or until their time is up: what was created has
its leaders, what was deleted is not there any more (Kafka's DelayedCreateTopics, DelayedCreatePartitions and
DelayedDeleteTopics). Runs on the broker's one thread, as its timers do; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from controller.broker.metadata_cache import MetadataCache, MetadataSnapshot
from controller.clock import Clock, Timer

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


class _Wait:
    __slots__ = ("done", "lacking", "timer")

    def __init__(self, lacking: Lacking, done: Callable[[frozenset[str]], None]) -> None:
        self.lacking = lacking
        self.done = done
        self.timer: Timer | None = None


class MetadataWait:
    def __init__(self, metadata: MetadataCache, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._waiting: list[_Wait] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, lacking: Lacking, deadline_ms: float, done: Callable[[frozenset[str]], None]) -> None:
        """Calls `done` once, with the topics that are lacking: none when there are none (at once if it is so
        already), else those when `deadline_ms` came."""
        wait = _Wait(lacking, done)
        left_ms = deadline_ms - self._clock.now_ms()
        if not self._lacking(wait) or left_ms <= 0:
            done(self._lacking(wait))
            return
        self._waiting.append(wait)
        wait.timer = self._clock.call_later(left_ms, lambda: self._end(wait))

    def metadata_changed(self) -> None:
        for wait in [wait for wait in self._waiting if not self._lacking(wait)]:
            self._end(wait)

    def _end(self, wait: _Wait) -> None:
        if wait not in self._waiting:
            return  # the timer fired while its cancellation was on the way
        self._waiting.remove(wait)
        if wait.timer is not None:
            wait.timer.cancel()
        wait.done(self._lacking(wait))

    def _lacking(self, wait: _Wait) -> frozenset[str]:
        return wait.lacking(self._metadata.snapshot)
