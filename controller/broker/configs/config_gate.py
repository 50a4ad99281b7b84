"""Delays a LeaderAndIsr request until the configs of its new topics have been read.

Kafka also reads them before it creates a log, so that min.insync.replicas applies from a topic's first record on.
Requests are handled in the order of their arrival. None waits for longer than a limit, because leaders must also be
informed while ZooKeeper is unavailable. `topic_configs.py` says how a topic without a known config is treated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from controller.broker.configs.config_watch import ConfigWatch
from controller.broker.configs.topic_configs import TopicConfigs
from controller.clock import Clock, Timer
from controller.core.topic_rules import name_fault
from controller.protocol.control_values import LeaderAndIsrRequest

WAIT_MS = 2_000.0
"""Far below controller.socket.timeout.ms, after which the controller would ask again."""


@dataclass(slots=True)
class _Held:
    missing: set[str]
    let_in: Callable[[], None]
    timer: Timer | None = None


class ConfigGate:
    def __init__(self, watch: ConfigWatch, configs: TopicConfigs, clock: Clock) -> None:
        self._watch = watch
        self._configs = configs
        self._clock = clock
        self._held: deque[_Held] = deque()
        watch.looked = self._looked

    def __len__(self) -> int:
        return len(self._held)

    def let_in(self, request: LeaderAndIsrRequest, action: Callable[[], None]) -> None:
        """Calls `action` once, at once or later."""
        named = dict.fromkeys(topic.topic_name for topic in request.topic_states)
        missing = [topic for topic in named if not self._configs.known(topic) and name_fault(topic) is None]
        if not missing and not self._held:
            action()
            return
        held = _Held(set(missing), action)
        held.timer = self._clock.call_later(WAIT_MS, lambda: self._late(held))
        self._held.append(held)
        self._watch.wanted(missing)

    def _looked(self, topics: Collection[str]) -> None:
        """These were read, or can't be."""
        for held in self._held:
            held.missing.difference_update(topics)
        self._open()

    def _late(self, held: _Held) -> None:
        held.missing.clear()
        self._open()

    def _open(self) -> None:
        while self._held and not self._held[0].missing:
            held = self._held.popleft()
            if held.timer is not None:
                held.timer.cancel()
            held.let_in()
