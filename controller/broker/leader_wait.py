"""Answers that wait until this broker's metadata has a leader for every partition of what was created, or until their
time is up (Kafka's DelayedCreateTopics and DelayedCreatePartitions). Runs on the broker's one thread, as its timers
do; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from controller.broker.metadata_cache import MetadataCache
from controller.clock import Clock, Timer

Wanted: TypeAlias = Sequence[tuple[str, int]]
"""(topic, number of partitions) of each topic waited for."""


class _Wait:
    __slots__ = ("done", "timer", "wanted")

    def __init__(self, wanted: Wanted, done: Callable[[frozenset[str]], None]) -> None:
        self.wanted = wanted
        self.done = done
        self.timer: Timer | None = None


class LeaderWait:
    def __init__(self, metadata: MetadataCache, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._waiting: list[_Wait] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, wanted: Wanted, deadline_ms: float, done: Callable[[frozenset[str]], None]) -> None:
        """Calls `done` once, with the topics that still lack a leader: none when the metadata is complete (at once if
        it is already), else those that did when `deadline_ms` came."""
        wait = _Wait(wanted, done)
        left_ms = deadline_ms - self._clock.now_ms()
        if not self._missing(wait) or left_ms <= 0:
            done(self._missing(wait))
            return
        self._waiting.append(wait)
        wait.timer = self._clock.call_later(left_ms, lambda: self._end(wait))

    def metadata_changed(self) -> None:
        for wait in [wait for wait in self._waiting if not self._missing(wait)]:
            self._end(wait)

    def _end(self, wait: _Wait) -> None:
        if wait not in self._waiting:
            return  # the timer fired while its cancellation was on the way
        self._waiting.remove(wait)
        if wait.timer is not None:
            wait.timer.cancel()
        wait.done(self._missing(wait))

    def _missing(self, wait: _Wait) -> frozenset[str]:
        snapshot = self._metadata.snapshot
        return frozenset(
            topic
            for topic, partitions in wait.wanted
            if not all(snapshot.has_leader(topic, partition) for partition in range(partitions))
        )
